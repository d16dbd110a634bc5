//! Half messages: stored, shown by no queue, and asked about until somebody decides.
//!
//! A half message is named by where its record lay first. It holds that record, so that it outlives
//! retention, until the first decision in the log: a commit adds a unit that points at the record, a
//! roll-back nothing. Decisions are remembered for a while, so that repeating one gets the same
//! answer and another one is told what was decided.

mod apply;
mod decided;
#[cfg(test)]
mod proptests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::codec::{read_rows, require, write_rows};
use super::deliveries::{Holder, References};
use super::error::SectionError;
use super::limits::HALVES_MAX;
use crate::base::{ClientId, LogPosition, Millis, QueueId, TopicId, UtcMillis};
use crate::command::{Reader, Unit, Writer};

pub(super) use self::decided::DecidedMemory;

/// A half message that nobody has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    pub topic: TopicId,
    /// Where it comes to when it is committed.
    pub queue: QueueId,
    /// Its record; visible since it was prepared, though to nobody.
    pub unit: Unit,
    /// The client that prepared it.
    pub producer: ClientId,
    /// Time from one check to the next.
    pub interval: Millis,
    pub checks_max: u32,
    /// Checks that reached a producer.
    pub checks: u32,
    /// When the next check is due, unless it is parked.
    pub due: UtcMillis,
}

impl Half {
    /// The stamp of the entry that prepared it.
    pub fn prepared(&self) -> UtcMillis {
        self.unit.visible
    }

    /// All checks are done: only its producer, late, or an operator decides.
    pub fn is_parked(&self) -> bool {
        self.checks >= self.checks_max
    }
}

#[derive(Debug, Default)]
pub(super) struct Halves {
    by_place: BTreeMap<LogPosition, Half>,
    /// Those that are not parked, by topic and by when the next check is due: derived.
    due: BTreeMap<TopicId, BTreeSet<(UtcMillis, LogPosition)>>,
    /// Bytes of all records: derived.
    bytes: u64,
}

impl Halves {
    pub(super) fn get(&self, at: LogPosition) -> Option<&Half> {
        self.by_place.get(&at)
    }

    pub(super) fn len(&self) -> usize {
        self.by_place.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn has_room(&self, more: usize) -> bool {
        self.by_place.len() + more <= HALVES_MAX
    }

    /// In the order of their records, from the one behind `after`.
    pub(super) fn iter_after(
        &self,
        after: Option<LogPosition>,
    ) -> impl Iterator<Item = (LogPosition, &Half)> {
        let from = after.map_or(LogPosition::ZERO, |after| after.plus(1));
        self.by_place.range(from..).map(|(at, half)| (*at, half))
    }

    /// Topics with a check that is due by `now`, in the order of ids, from the one behind `after`.
    pub(super) fn topics_due(
        &self,
        now: UtcMillis,
        after: Option<TopicId>,
    ) -> impl Iterator<Item = TopicId> {
        let from = after.map_or(TopicId::new(0), |after| TopicId::new(after.get() + 1));
        let is_due = move |due: &BTreeSet<(UtcMillis, LogPosition)>| {
            due.first().is_some_and(|(due, _)| *due <= now)
        };
        self.due.range(from..).filter(move |(_, due)| is_due(due)).map(|(topic, _)| *topic)
    }

    /// Half messages of a topic whose checks are due by `now`, the most overdue first, from the one
    /// behind `after`.
    pub(super) fn due(
        &self,
        topic: TopicId,
        now: UtcMillis,
        after: Option<(UtcMillis, LogPosition)>,
    ) -> impl Iterator<Item = (LogPosition, &Half)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let of_topic = self.due.get(&topic).into_iter();
        let due = of_topic.flat_map(move |due| due.range((from, Bound::Unbounded)));
        let due = due.take_while(move |(due, _)| *due <= now);
        due.map(|(_, at)| (*at, self.by_place.get(at).expect("the index lists half messages")))
    }

    /// When the next check of all is due.
    pub(super) fn next_due(&self) -> Option<UtcMillis> {
        self.due.values().filter_map(|due| due.first()).map(|(due, _)| *due).min()
    }

    fn schedule(&mut self, at: LogPosition) {
        let half = self.by_place.get(&at).expect("it is there to be scheduled");
        if !half.is_parked() {
            let fresh = self.due.entry(half.topic).or_default().insert((half.due, at));
            assert!(fresh, "a half message has one next check");
        }
    }

    fn unschedule(&mut self, at: LogPosition) {
        let half = self.by_place.get(&at).expect("it is there to be unscheduled");
        if half.is_parked() {
            return;
        }
        let of_topic = self.due.get_mut(&half.topic).expect("its check is listed");
        assert!(of_topic.remove(&(half.due, at)), "its check is listed");
        if of_topic.is_empty() {
            self.due.remove(&half.topic);
        }
    }

    fn add(&mut self, half: Half, references: &mut References) {
        let at = half.unit.position;
        references.hold(at, Holder::Half);
        self.bytes += u64::from(half.unit.size);
        let fresh = self.by_place.insert(at, half);
        assert!(fresh.is_none(), "two half messages in one place");
        self.schedule(at);
    }

    /// Its record is still held.
    fn take(&mut self, at: LogPosition) -> Half {
        self.unschedule(at);
        let half = self.by_place.remove(&at).expect("unscheduled just now");
        self.bytes -= u64::from(half.unit.size);
        half
    }

    /// The next check is due at another time.
    fn reschedule(&mut self, at: LogPosition, checks: u32, due: UtcMillis) {
        self.unschedule(at);
        let half = self.by_place.get_mut(&at).expect("unscheduled just now");
        (half.checks, half.due) = (checks, due);
        self.schedule(at);
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId, references: &mut References) {
        let of_topic = self.by_place.iter().filter(|(_, half)| half.topic == topic);
        let gone: Vec<LogPosition> = of_topic.map(|(at, _)| *at).collect();
        for at in gone {
            self.take(at);
            references.release(at, Holder::Half);
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.by_place.values(), |w, half| {
            w.put(&half.topic);
            w.put(&half.queue);
            w.put(&half.unit);
            w.put(&half.producer);
            w.put(&half.interval);
            w.u32(half.checks_max);
            w.u32(half.checks);
            w.put(&half.due);
        });
    }

    pub(super) fn read(
        reader: &mut Reader,
        references: &mut References,
    ) -> Result<Self, SectionError> {
        let mut halves = Self::default();
        read_rows(reader, |r| {
            let half = Half {
                topic: r.get()?,
                queue: r.get()?,
                unit: r.get()?,
                producer: r.get()?,
                interval: r.get()?,
                checks_max: r.u32()?,
                checks: r.u32()?,
                due: r.get()?,
            };
            require(halves.get(half.unit.position).is_none(), "two half messages in one place")?;
            require(halves.has_room(1), "more half messages than may be")?;
            halves.add(half, references);
            Ok(())
        })?;
        Ok(halves)
    }

    /// Whether each belongs to a queue that there is, and is not decided.
    pub(super) fn check(
        &self,
        has_queue: impl Fn(TopicId, QueueId) -> bool,
        decided: &DecidedMemory,
    ) -> Result<(), SectionError> {
        for (at, half) in &self.by_place {
            require(has_queue(half.topic, half.queue), "a half message of no queue")?;
            require(decided.get(*at).is_none(), "a half message that is decided")?;
        }
        let listed: usize = self.due.values().map(BTreeSet::len).sum();
        let asked = self.by_place.values().filter(|half| !half.is_parked()).count();
        require(listed == asked, "a check of nothing")
    }
}
