//! One seed for each purpose, all from one: what one part draws never shifts what another does.

use raftmq::env::Entropy;
use raftmq::env::sim::SimEntropy;

/// Randomness of one purpose.
#[derive(Debug)]
pub(crate) struct Random(SimEntropy);

/// The seed of a part, from the seed of the whole and the part's name.
pub(crate) fn split(seed: u64, part: &str) -> u64 {
    // FNV-1a over the name, then one round of mixing by the generator itself.
    let mut hash = seed ^ 0xcbf2_9ce4_8422_2325;
    for byte in part.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    SimEntropy::new(hash).u64()
}

impl Random {
    pub(crate) fn new(seed: u64, part: &str) -> Self {
        Self(SimEntropy::new(split(seed, part)))
    }

    pub(crate) fn u64(&self) -> u64 {
        self.0.u64()
    }

    /// A number in `from..to`.
    pub(crate) fn between(&self, from: u64, to: u64) -> u64 {
        assert!(from < to, "nothing lies between {from} and {to}");
        from + self.0.below(to - from)
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&self, chance: u64) -> bool {
        self.0.below(100) < chance
    }

    pub(crate) fn index(&self, len: usize) -> usize {
        usize::try_from(self.0.below(len as u64)).unwrap_or_default()
    }

    pub(crate) fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// `count` of `0..len`, in random order.
    pub(crate) fn some(&self, count: usize, len: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..len).collect();
        let mut chosen = Vec::with_capacity(count);
        while chosen.len() < count && !all.is_empty() {
            chosen.push(all.swap_remove(self.index(all.len())));
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_seed_are_apart_and_repeat() {
        assert_eq!(split(7, "network"), split(7, "network"));
        assert_ne!(split(7, "network"), split(7, "disk"));
        assert_ne!(split(7, "network"), split(8, "network"));
        let random = Random::new(1, "test");
        let chosen = random.some(3, 5);
        assert_eq!(chosen.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
        assert!((0..100).all(|_| (3..9).contains(&random.between(3, 9))));
    }
}
