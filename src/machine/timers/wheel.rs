//! When pending messages fire: coarse buckets for the far, fine ones for the near, and an ordered
//! set for what is being fired. Derived from the rows; 8 bytes for a message until its time comes.
//!
//! Entries of messages that were recalled or moved stay until their old time: whoever pops one
//! looks whether the row still says so.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::rows::{Phase, Rows};
use crate::base::{LogPosition, UtcMillis};

/// A fine bucket has 1024 ms …
const NEAR_BITS: u32 = 10;
/// … and a coarse one 1024 fine ones, about 17 minutes.
const FAR_BITS: u32 = 20;
/// In an entry of a fine bucket: bits of the place, below those of the time.
const PLACE_BITS: u32 = u64::BITS - NEAR_BITS;
/// How long before its time a coarse bucket is to be moved into fine ones, where no entries do it in
/// passing. All at once, when it is due, would hold up the entry that finds it so.
const AHEAD: u64 = 1 << 16;

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

/// How far a look over the next entries has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// The last one of what is open.
    open: Option<(UtcMillis, LogPosition)>,
    /// A fine bucket, and how many of its entries.
    near: (u64, usize),
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

    /// Not after the first due. Before it where that is recalled, or so far away that it is still in
    /// a coarse bucket: then it is when that is to be unrolled.
    pub(super) fn first(&self) -> Option<UtcMillis> {
        if let Some((due, _)) = self.open.first() {
            return Some(*due);
        }
        let near = self.near.first_key_value().map(|(bucket, near)| due_of(*bucket, near.first));
        let unroll = |bucket: &u64| UtcMillis::new((bucket << FAR_BITS).saturating_sub(AHEAD));
        let far = self.far.first_key_value().map(|(bucket, _)| unroll(bucket));
        match (near, far) {
            (Some(near), Some(far)) => Some(near.min(far)),
            (near, far) => near.or(far),
        }
    }

    /// Moves a part of the next coarse bucket into fine ones, when its time is near.
    pub(super) fn turn(&mut self, stamp: UtcMillis, most: usize, rows: &Rows) {
        let soon = (stamp.get() >> FAR_BITS) + 1;
        if self.far.first_key_value().is_some_and(|(bucket, _)| *bucket <= soon) {
            self.unroll(most, rows);
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

    /// Opens the first fine bucket if something in it is due by `stamp`; false when there is none.
    fn open_next(&mut self, stamp: UtcMillis, rows: &Rows) -> bool {
        loop {
            let near = self.near.first_key_value();
            let near = near.map(|(bucket, near)| (*bucket, due_of(*bucket, near.first)));
            let far = self.far.first_key_value().map(|(bucket, _)| *bucket);
            // What is in coarse buckets may come before, so each of them is looked into in time.
            if let Some(far) = far
                && far << FAR_BITS <= stamp.get()
                && near.is_none_or(|(bucket, _)| far << (FAR_BITS - NEAR_BITS) <= bucket)
            {
                self.unroll(usize::MAX, rows);
                continue;
            }
            let Some((bucket, _)) = near.filter(|(_, due)| *due <= stamp) else { return false };
            let entries = self.near.remove(&bucket).expect("it was the first").entries;
            self.open_bucket(bucket, entries);
            return true;
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

    /// What is open, and fine buckets up to that of `until`, from the entry behind `from` on: for
    /// each the place behind it, its time and its message. In no order within a bucket.
    pub(super) fn soon_from(
        &self,
        from: Place,
        until: UtcMillis,
    ) -> impl Iterator<Item = (Place, UtcMillis, LogPosition)> {
        let behind = from.open.map_or(Bound::Unbounded, Bound::Excluded);
        let open = self.open.range((behind, Bound::Unbounded));
        let open = open.take_while(move |(due, _)| *due <= until).map(move |entry| {
            let (due, position) = *entry;
            (Place { open: Some(*entry), ..from }, due, position)
        });
        let (first, passed) = from.near;
        let last = (until.get() >> NEAR_BITS).max(first);
        let near = self.near.range(first..=last).flat_map(move |(bucket, near)| {
            let passed = if *bucket == first { passed } else { 0 };
            let entries = near.entries.iter().zip(1..).skip(passed);
            entries.map(|(entry, at)| ((*bucket, at), due_of(*bucket, *entry), place_of(*entry)))
        });
        let last_open = self.open.range(..=(until, LogPosition::new(u64::MAX))).next_back();
        let open_done = last_open.copied().max(from.open);
        let near =
            near.map(move |(near, due, position)| (Place { open: open_done, near }, due, position));
        open.chain(near)
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let near = self.near.values().map(|near| 8 * near.entries.capacity() + 96);
        let far = self.far.values().map(|far| 8 * far.capacity() + 96);
        near.chain(far).sum::<usize>() + 32 * self.open.len()
    }

    /// The next entry that is due by `stamp`, in the order of (due, place).
    pub(super) fn pop_until(
        &mut self,
        stamp: UtcMillis,
        rows: &Rows,
    ) -> Option<(UtcMillis, LogPosition)> {
        // What is in other buckets comes after all that is open.
        if self.open.is_empty() && !self.open_next(stamp, rows) {
            return None;
        }
        let (due, _) = self.open.first()?;
        if *due > stamp {
            return None;
        }
        self.len -= 1;
        self.open.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Row, TICK_TURN, Timers};
    use super::*;
    use crate::base::{QueueId, QueueOffset, TopicId};
    use crate::command::{TimerKey, TimerOutcome};
    use crate::message::MessageIdHash;

    const TOPIC: TopicId = TopicId::new(1);
    /// The coarse bucket of all messages.
    const BUCKET: u64 = 10;
    const START: u64 = BUCKET << FAR_BITS;

    fn row(at: u64) -> Row {
        Row {
            original: LogPosition::new(at),
            now: LogPosition::new(at),
            phase: Phase::Pending { due: UtcMillis::new(START + at * 7_919 % (1 << FAR_BITS)) },
            id: MessageIdHash::new(at.into()),
            topic: TOPIC,
            size: 200,
            tag_hash: 0,
            queue: QueueId::new(0),
        }
    }

    fn key(at: u64) -> TimerKey {
        TimerKey { topic: TOPIC, id_hash: MessageIdHash::new(at.into()), position: None }
    }

    fn far(timers: &Timers) -> usize {
        timers.wheel.far.get(&BUCKET).map_or(0, Vec::len)
    }

    /// Ticks are asked for early enough, and each moves a bounded part.
    #[test]
    fn a_coarse_bucket_is_unrolled_by_ticks_alone_before_its_time() {
        let mut timers = Timers::new(1);
        let count = 5 * TICK_TURN as u64;
        (0..count).for_each(|at| timers.add(row(at)));
        let (mut stamp, mut turns) = (UtcMillis::ZERO, 0);
        let mut due: Vec<(u64, u64)> = Vec::new();
        let moved = |at: u64| at % 11 == 1;
        while far(&timers) > 0 {
            stamp = stamp.max(timers.next_due().unwrap());
            assert!(stamp < UtcMillis::new(START), "it is prepared in time");
            let before = far(&timers);
            assert_eq!(timers.take_due(stamp, 100), []);
            let turned = before - far(&timers);
            assert!(0 < turned && turned <= TICK_TURN, "{turned} entries in one tick");
            // In between some are taken back, and some moved within the bucket.
            for at in (turns * 100..turns * 100 + 100).filter(|at| at % 11 < 2) {
                if moved(at) {
                    let later = UtcMillis::new(START + at);
                    let outcome = timers.reschedule(&key(at), later, stamp);
                    assert_eq!(outcome, TimerOutcome::Rescheduled);
                    due.push((later.get(), at));
                } else {
                    assert_eq!(timers.recall(&key(at), stamp), TimerOutcome::Recalled);
                }
            }
            turns += 1;
        }
        let others = (0..count).filter(|at| at % 11 > 1 || *at >= turns * 100);
        due.extend(others.map(|at| match row(at).phase {
            Phase::Pending { due } => (due.get(), at),
            Phase::Fired { .. } => panic!("it is pending"),
        }));
        due.sort_unstable();
        let mut fired = Vec::new();
        while timers.pending() > 0 {
            stamp = stamp.max(timers.next_due().unwrap());
            for row in timers.take_due(stamp, 7) {
                let Phase::Pending { due } = row.phase else { panic!("it was pending") };
                assert!(due <= stamp, "nothing is early");
                timers.fired(&row, QueueOffset::ZERO, LogPosition::ZERO, stamp);
                fired.push((due.get(), row.original.get()));
            }
        }
        assert_eq!(fired, due);
    }
}
