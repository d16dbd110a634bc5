//! A seeded world: a disk that forgets what was not synced, clocks that are set, randomness that
//! repeats. No threads, no real file, no ambient clock.

mod disk;
mod image;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::{Millis, UtcMillis};
use crate::env::{Clock, Entropy, Env};

pub use disk::SimDisk;

/// A world with everything made from one seed, and its parts for the test to pull on.
#[derive(Clone, Debug)]
pub struct Sim {
    pub disk: SimDisk,
    pub clock: Arc<SimClock>,
    pub entropy: Arc<SimEntropy>,
}

impl Sim {
    pub fn new(seed: u64) -> Self {
        Self {
            disk: SimDisk::new(),
            clock: Arc::new(SimClock::new(UtcMillis::new(1_700_000_000_000))),
            entropy: Arc::new(SimEntropy::new(seed)),
        }
    }

    pub fn env(&self) -> Env {
        Env {
            disk: Arc::new(self.disk.clone()),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            entropy: Arc::clone(&self.entropy) as Arc<dyn Entropy>,
        }
    }
}

/// True time, shared by all clocks of a simulation.
#[derive(Debug)]
struct Time {
    started: UtcMillis,
    elapsed: Duration,
}

/// A clock that moves only when told to.
#[derive(Debug)]
pub struct SimClock {
    time: Arc<Mutex<Time>>,
    skew_millis: Mutex<i64>,
}

impl SimClock {
    pub fn new(started: UtcMillis) -> Self {
        let time = Arc::new(Mutex::new(Time { started, elapsed: Duration::ZERO }));
        Self { time, skew_millis: Mutex::new(0) }
    }

    /// Another node's clock on the same true time, wrong by `skew_millis`.
    #[must_use]
    pub fn neighbour(&self, skew_millis: i64) -> Self {
        Self { time: Arc::clone(&self.time), skew_millis: Mutex::new(skew_millis) }
    }

    /// Moves true time on, for all neighbours.
    pub fn advance(&self, length: Millis) {
        self.time.lock().elapsed += length.duration();
    }

    /// Makes this clock's wall time wrong by so much; it may jump back.
    pub fn set_skew(&self, skew_millis: i64) {
        *self.skew_millis.lock() = skew_millis;
    }
}

impl Clock for SimClock {
    fn wall(&self) -> UtcMillis {
        let time = self.time.lock();
        let elapsed = u64::try_from(time.elapsed.as_millis()).unwrap_or(u64::MAX);
        let now = time.started.plus(Millis::new(elapsed)).get();
        UtcMillis::new(now.saturating_add_signed(*self.skew_millis.lock()))
    }

    fn monotonic(&self) -> Duration {
        self.time.lock().elapsed
    }
}

/// Randomness that a seed decides (SplitMix64, public domain, Vigna 2015).
#[derive(Debug)]
pub struct SimEntropy {
    state: Mutex<u64>,
}

impl SimEntropy {
    pub fn new(seed: u64) -> Self {
        Self { state: Mutex::new(seed) }
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing lies below 0");
        self.u64() % bound
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.state.lock();
        for chunk in bytes.chunks_mut(8) {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = *state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            chunk.copy_from_slice(&word.to_be_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_one_simulation_share_time_but_not_skew() {
        let clock = SimClock::new(UtcMillis::new(1_000));
        let late = clock.neighbour(-400);
        clock.advance(Millis::new(50));
        assert_eq!(clock.wall(), UtcMillis::new(1_050));
        assert_eq!(late.wall(), UtcMillis::new(650));
        assert_eq!(late.monotonic(), Duration::from_millis(50));
        late.set_skew(10);
        assert_eq!(late.wall(), UtcMillis::new(1_060));
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (one, two, other) = (SimEntropy::new(7), SimEntropy::new(7), SimEntropy::new(8));
        let numbers = |from: &SimEntropy| (0..4).map(|_| from.u64()).collect::<Vec<_>>();
        let first = numbers(&one);
        assert_eq!(first, numbers(&two));
        assert_ne!(first, numbers(&other));
        assert!(one.below(3) < 3);
    }
}
