//! What becomes visible again, and when. Derived from the queues.

use std::collections::BTreeMap;

use super::Key;
use crate::base::UtcMillis;

/// Deadlines in the order in which they fire: by time, then by the order in which they were set.
#[derive(Debug, Default)]
pub(super) struct Due {
    by_time: BTreeMap<(UtcMillis, u64), Key>,
}

impl Due {
    pub(super) fn add(&mut self, due: UtcMillis, sequence: u64, key: Key) {
        let known = self.by_time.insert((due, sequence), key);
        assert!(known.is_none(), "two deadlines of one sequence number {sequence}");
    }

    pub(super) fn remove(&mut self, due: UtcMillis, sequence: u64) -> Option<Key> {
        self.by_time.remove(&(due, sequence))
    }

    pub(super) fn contains(&self, due: UtcMillis, sequence: u64) -> bool {
        self.by_time.contains_key(&(due, sequence))
    }

    /// The first deadline that is not after `stamp`.
    pub(super) fn first_until(&self, stamp: UtcMillis) -> Option<Key> {
        let ((due, _), key) = self.by_time.first_key_value()?;
        (*due <= stamp).then_some(*key)
    }

    pub(super) fn next(&self) -> Option<UtcMillis> {
        self.by_time.first_key_value().map(|((due, _), _)| *due)
    }

    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }
}
