//! What entries do to delayed messages: taking them in, firing, recall, another time.

use std::collections::BTreeMap;
use std::io;

use super::Entry;
use super::apply::unit_of;
use super::effect::Effect;
use super::state::State;
use super::timers::{Phase, Row};
use crate::base::{LogPosition, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{
    PublishItem, Published, Refusal, Reply, Schedule, ScheduleItem, Scheduled, TimerKey, Unit,
};

/// Units on their way to the ends of their queues.
type Units = BTreeMap<(TopicId, QueueId), Vec<Unit>>;

impl State {
    pub(super) fn schedule(
        &mut self,
        entry: &Entry,
        schedule: &Schedule,
        effects: &mut Vec<Effect>,
    ) -> io::Result<Reply> {
        if let Err(refusal) = self.check_schedule(entry, schedule) {
            return Ok(Reply::Refused(refusal));
        }
        let mut scheduled = Vec::with_capacity(schedule.items.len());
        let mut units = Units::new();
        for one in &schedule.items {
            self.dedup.forget(entry.stamp);
            let topic = schedule.topic;
            let earlier = schedule.dedup.then(|| self.dedup.find(topic, &one.item)).flatten();
            if let Some(earlier) = earlier {
                // What is remembered of a delayed message is its place, see below.
                let position = LogPosition::new(earlier.offset.get());
                scheduled.push(Scheduled { position, repeated: true });
                continue;
            }
            let position = self.schedule_one(entry, topic, one, &mut units);
            if schedule.dedup {
                self.remember(entry.stamp, topic, &one.item, position);
            }
            scheduled.push(Scheduled { position, repeated: false });
        }
        self.append_units(units, effects)?;
        Ok(Reply::Scheduled(scheduled))
    }

    /// A repeated message takes no room, and is never refused for want of it: its sender would send
    /// it elsewhere, and it would come twice (rules R19 and R20).
    fn check_schedule(&self, entry: &Entry, schedule: &Schedule) -> Result<(), Refusal> {
        let topic = self.topics.get(schedule.topic)?;
        schedule.items.iter().try_for_each(|one| topic.check_queue(one.item.queue))?;
        if u32::try_from(schedule.topic.get()).is_err() {
            let what = "the number of a topic with delayed messages".to_owned();
            return Err(Refusal::Limit { what, limit: u32::MAX.into() });
        }
        let is_known =
            |item: &PublishItem| schedule.dedup && self.dedup.find(topic.id, item).is_some();
        let (mut count, mut bytes) = (0, self.timers.pending_bytes());
        for one in &schedule.items {
            if one.due > entry.stamp && !is_known(&one.item) {
                count += 1;
                bytes += u64::from(unit_of(entry, &one.item).size);
            }
        }
        if count == 0 {
            return Ok(());
        }
        self.timers.check_room(count)?;
        let limit = self.pending_bytes_max();
        if bytes > limit { Err(Refusal::DelayedFull { bytes, limit }) } else { Ok(()) }
    }

    /// Answers where the record lies.
    fn schedule_one(
        &mut self,
        entry: &Entry,
        topic: TopicId,
        one: &ScheduleItem,
        units: &mut Units,
    ) -> LogPosition {
        let Unit { position, size, .. } = unit_of(entry, &one.item);
        let row = Row {
            original: position,
            now: position,
            phase: Phase::Pending { due: one.due },
            id: one.item.id_hash,
            topic,
            size,
            tag_hash: one.item.tag_hash,
            queue: one.item.queue,
        };
        if one.due <= entry.stamp {
            units.entry((topic, row.queue)).or_default().push(row.unit(entry.stamp));
            self.timers.fired_at_once(&row, entry.stamp);
        } else {
            self.timers.add(row);
        }
        position
    }

    /// A delayed message has no offset before it fires: its outcome is where its record lies.
    fn remember(
        &mut self,
        stamp: UtcMillis,
        topic: TopicId,
        item: &PublishItem,
        position: LogPosition,
    ) {
        let offset = QueueOffset::new(position.get());
        let outcome = Published { queue: item.queue, offset, visible: stamp, repeated: false };
        self.dedup.add(topic, item, &outcome);
    }

    /// Makes at most `limit` delayed messages visible that are due by the entry's stamp.
    pub(super) fn fire(
        &mut self,
        entry: &Entry,
        limit: u32,
        effects: &mut Vec<Effect>,
    ) -> io::Result<u32> {
        let rows = self.timers.take_due(entry.stamp, limit);
        let mark = self.marks.newest_end();
        let mut units = Units::new();
        for row in &rows {
            let end = self.queues.end(row.topic, row.queue);
            let end = end.expect("a topic takes its delayed messages along");
            let units = units.entry((row.topic, row.queue)).or_default();
            let offset = end.plus(units.len() as u64);
            units.push(row.unit_when_fired(mark, entry.stamp));
            self.timers.fired(row, offset, mark, entry.stamp);
        }
        self.append_units(units, effects)?;
        Ok(u32::try_from(rows.len()).expect("at most the limit"))
    }

    fn append_units(&mut self, units: Units, effects: &mut Vec<Effect>) -> io::Result<()> {
        for ((topic, queue), units) in units {
            self.queues.append(topic, queue, &units)?;
            self.marks.note_growth(topic, queue);
            let count = u32::try_from(units.len()).expect("an entry counts its messages in a u32");
            effects.push(Effect::Arrived { topic, queue, count });
        }
        Ok(())
    }

    pub(super) fn recall(&mut self, entry: &Entry, key: &TimerKey) -> Reply {
        match self.topics.get(key.topic) {
            Ok(_) => Reply::Timer(self.timers.recall(key, entry.stamp)),
            Err(refusal) => Reply::Refused(refusal),
        }
    }

    pub(super) fn reschedule(&mut self, entry: &Entry, key: &TimerKey, due: UtcMillis) -> Reply {
        match self.topics.get(key.topic) {
            Ok(_) => Reply::Timer(self.timers.reschedule(key, due, entry.stamp)),
            Err(refusal) => Reply::Refused(refusal),
        }
    }
}
