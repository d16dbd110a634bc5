//! When pending messages fire: coarse buckets for the far, fine ones for the near, and an ordered
//! set for what is being fired. Derived from the rows; 8 bytes for a message until its time comes.
//!
//! Entries of messages that were recalled or moved stay until their old time: whoever pops one
//! looks whether the row still says so.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::{Phase, Rows};
use crate::base::{LogPosition, UtcMillis};

/// A fine bucket has 1024 ms …
const NEAR_BITS: u32 = 10;
/// … and a coarse one 1024 fine ones, about 17 minutes.
const FAR_BITS: u32 = 20;
/// In an entry of a fine bucket: bits of the place, below those of the time.
const PLACE_BITS: u32 = u64::BITS - NEAR_BITS;
/// Entries that one turn moves from a coarse bucket to fine ones.
const TURN: usize = 256;

#[derive(Debug)]
pub(super) struct Wheel {
    /// What is due before `opened` ends.
    open: BTreeSet<(UtcMillis, LogPosition)>,
    /// The first fine bucket that is not in `open`.
    opened: u64,
    /// Entries whose natural order is that of firing.
    near: BTreeMap<u64, Near>,
    /// The first coarse bucket that is not in fine ones.
    unrolled: u64,
    far: BTreeMap<u64, Vec<LogPosition>>,
    len: usize,
}

#[derive(Debug)]
struct Near {
    entries: Vec<u64>,
    first: u64,
}

fn due_of(bucket: u64, entry: u64) -> UtcMillis {
    UtcMillis::new(bucket << NEAR_BITS | entry >> PLACE_BITS)
}

fn place_of(entry: u64) -> LogPosition {
    LogPosition::new(entry & (u64::MAX >> NEAR_BITS))
}

impl Wheel {
    /// Nothing that is added is expected to be due long before `stamp`.
    pub(super) fn starting_at(stamp: UtcMillis) -> Self {
        Self {
            open: BTreeSet::new(),
            opened: stamp.get() >> NEAR_BITS,
            near: BTreeMap::new(),
            unrolled: (stamp.get() >> FAR_BITS) + 1,
            far: BTreeMap::new(),
            len: 0,
        }
    }

    /// Entries, those of no use any more included.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn add(&mut self, due: UtcMillis, position: LogPosition) {
        if due.get() >> FAR_BITS >= self.unrolled {
            self.far.entry(due.get() >> FAR_BITS).or_default().push(position);
            self.len += 1;
        } else {
            self.add_near(due, position);
        }
    }

    fn add_near(&mut self, due: UtcMillis, position: LogPosition) {
        let bucket = due.get() >> NEAR_BITS;
        if bucket < self.opened {
            self.len += usize::from(self.open.insert((due, position)));
            return;
        }
        assert_eq!(position.get() >> PLACE_BITS, 0, "a log of 16 PiB is not to be had");
        // The shift leaves the time within the bucket, and drops which bucket it is.
        let entry = due.get() << PLACE_BITS | position.get();
        let near = self.near.entry(bucket);
        let near = near.or_insert_with(|| Near { entries: Vec::new(), first: entry });
        near.first = near.first.min(entry);
        near.entries.push(entry);
        self.len += 1;
    }

    /// Not after the first due; before it only where that is more than a coarse bucket away, or
    /// was recalled.
    pub(super) fn first(&self) -> Option<UtcMillis> {
        if let Some((due, _)) = self.open.first() {
            return Some(*due);
        }
        let near = self.near.first_key_value().map(|(bucket, near)| due_of(*bucket, near.first));
        let far = self.far.first_key_value().map(|(bucket, _)| UtcMillis::new(bucket << FAR_BITS));
        match (near, far) {
            (Some(near), Some(far)) => Some(near.min(far)),
            (near, far) => near.or(far),
        }
    }

    /// Moves a part of the next coarse bucket into fine ones, when its time is near.
    pub(super) fn turn(&mut self, stamp: UtcMillis, rows: &Rows) {
        let soon = (stamp.get() >> FAR_BITS) + 1;
        if self.far.first_key_value().is_some_and(|(bucket, _)| *bucket <= soon) {
            self.unroll(TURN, rows);
        }
    }

    /// Takes at most so many entries out of the first coarse bucket.
    fn unroll(&mut self, most: usize, rows: &Rows) {
        let Some(mut first) = self.far.first_entry() else { return };
        let bucket = *first.key();
        let keep = first.get().len().saturating_sub(most);
        let part = first.get_mut().split_off(keep);
        if keep == 0 {
            first.remove();
            self.unrolled = self.unrolled.max(bucket + 1);
        }
        self.len -= part.len();
        for position in part {
            let row = rows.get(position).map(|row| row.phase);
            // One that was moved to another time has another entry there.
            if let Some(Phase::Pending { due }) = row
                && due.get() >> FAR_BITS == bucket
            {
                self.add_near(due, position);
            }
        }
    }

    /// Afterwards everything due by `stamp` can be popped.
    pub(super) fn open_until(&mut self, stamp: UtcMillis, rows: &Rows) {
        let now = stamp.get() >> FAR_BITS;
        while self.far.first_key_value().is_some_and(|(bucket, _)| *bucket <= now) {
            self.unroll(usize::MAX, rows);
        }
        while let Some(first) = self.near.first_entry() {
            let bucket = *first.key();
            if due_of(bucket, first.get().first) > stamp {
                break;
            }
            let entries = first.remove().entries;
            self.open_bucket(bucket, entries);
        }
    }

    fn open_bucket(&mut self, bucket: u64, mut entries: Vec<u64>) {
        assert!(bucket >= self.opened, "buckets open in order");
        self.opened = bucket + 1;
        self.len -= entries.len();
        entries.sort_unstable();
        entries.dedup();
        self.len += entries.len();
        let entries = entries.iter().map(|entry| (due_of(bucket, *entry), place_of(*entry)));
        if self.open.is_empty() {
            // A sorted whole makes a full tree at once.
            self.open = entries.collect();
        } else {
            self.open.extend(entries);
        }
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let near = self.near.values().map(|near| 8 * near.entries.capacity() + 96);
        let far = self.far.values().map(|far| 8 * far.capacity() + 96);
        near.chain(far).sum::<usize>() + 32 * self.open.len()
    }

    /// The next entry that is due by `stamp`, in the order of (due, place).
    pub(super) fn pop_until(&mut self, stamp: UtcMillis) -> Option<(UtcMillis, LogPosition)> {
        let (due, _) = self.open.first()?;
        if *due > stamp {
            return None;
        }
        self.len -= 1;
        self.open.pop_first()
    }
}
