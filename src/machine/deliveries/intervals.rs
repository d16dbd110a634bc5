//! A set of whole numbers as disjoint, never touching intervals.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intervals {
    /// Start → end, exclusive.
    by_start: BTreeMap<u64, u64>,
    /// How many numbers are in the set.
    total: u64,
}

impl Intervals {
    /// Adds `from..to`, which must lie behind everything in the set.
    pub(super) fn push(&mut self, from: u64, to: u64) {
        assert!(from < to, "an empty interval {from}..{to}");
        self.total += to - from;
        if let Some(mut last) = self.by_start.last_entry() {
            assert!(*last.get() <= from, "{from} does not lie behind {}", last.get());
            if *last.get() == from {
                *last.get_mut() = to;
                return;
            }
        }
        self.by_start.insert(from, to);
    }

    /// The interval that contains `number`.
    pub(super) fn around(&self, number: u64) -> Option<(u64, u64)> {
        let (from, to) = self.by_start.range(..=number).next_back()?;
        (number < *to).then_some((*from, *to))
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.around(number).is_some()
    }

    /// Takes one number out; it must be in.
    pub(super) fn remove(&mut self, number: u64) {
        let (from, to) = self.around(number).expect("only what is free is taken");
        self.cut(from, to, number, number + 1);
    }

    /// Takes all of `from..to` out, as far as it is in.
    pub(super) fn remove_range(&mut self, from: u64, to: u64) {
        let first = self.around(from).map_or(from, |(start, _)| start);
        let touched: Vec<_> = self.by_start.range(first..to).map(|(s, e)| (*s, *e)).collect();
        for (start, end) in touched {
            self.cut(start, end, from.max(start), to.min(end));
        }
    }

    /// Takes out all below `end`; answers how many there were.
    pub(super) fn remove_below(&mut self, end: u64) -> u64 {
        let before = self.total;
        if end > 0 {
            self.remove_range(0, end);
        }
        before - self.total
    }

    fn cut(&mut self, start: u64, end: u64, from: u64, to: u64) {
        assert!(start <= from && from < to && to <= end, "{from}..{to} is not in {start}..{end}");
        self.by_start.remove(&start);
        if start < from {
            self.by_start.insert(start, from);
        }
        if to < end {
            self.by_start.insert(to, end);
        }
        self.total -= to - from;
    }

    /// How many intervals the set has.
    pub(super) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// How many numbers are in the set.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.by_start.iter().map(|(from, to)| (*from, *to))
    }

    /// Those that end behind `number`, the first one cut to start there.
    pub(super) fn from(&self, number: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.around(number).map_or(number, |(from, _)| from);
        self.by_start.range(first..).map(move |(from, to)| (*from.max(&number), *to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_keeps_what_lies_around() {
        let mut set = Intervals::default();
        set.push(0, 5);
        set.push(5, 10);
        set.push(20, 30);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(0, 10), (20, 30)]);
        set.remove(3);
        set.remove(0);
        set.remove_range(8, 25);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(1, 3), (4, 8), (25, 30)]);
        assert_eq!((set.total(), set.len()), (11, 3));
        assert!(set.contains(2) && !set.contains(3) && !set.contains(24));
        assert_eq!(set.from(6).collect::<Vec<_>>(), [(6, 8), (25, 30)]);
        assert_eq!(set.remove_below(27), 8);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(27, 30)]);
        set.remove_range(0, 100);
        assert_eq!((set.total(), set.len()), (0, 0));
    }
}
