//! Units that came behind the mark before which their records lie.
//!
//! The log's front passes such a record before the unit's own time is over, which counts from when
//! the unit became visible (rule R9). So each of them holds its record until its queue starts behind
//! it.

use std::collections::BTreeMap;

use super::codec::{read_rows, require, write_rows};
use super::deliveries::{Holder, References, UnitAt};
use super::error::SectionError;
use crate::base::{LogPosition, QueueId, QueueOffset, TopicId};
use crate::command::{Reader, Unit, Writer};

#[derive(Debug, Default)]
pub(super) struct LateUnits {
    units: BTreeMap<UnitAt, Unit>,
    /// Of all their records: derived.
    bytes: u64,
}

impl LateUnits {
    pub(super) fn add(&mut self, at: UnitAt, unit: Unit, references: &mut References) {
        references.hold(unit.position, Holder::Late(at));
        self.bytes += u64::from(unit.size);
        let fresh = self.units.insert(at, unit);
        assert!(fresh.is_none(), "a unit has one place");
    }

    pub(super) fn get(&self, at: &UnitAt) -> Option<Unit> {
        self.units.get(at).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// Of all records that are kept for them, wherever the front is.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The queue starts at `start` from now on.
    pub(super) fn drop_below(
        &mut self,
        (topic, queue): (TopicId, QueueId),
        start: QueueOffset,
        references: &mut References,
    ) {
        let from = UnitAt { topic, queue, offset: QueueOffset::ZERO };
        let to = UnitAt { topic, queue, offset: start };
        self.drop_range((from, to), references);
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId, references: &mut References) {
        let queue = QueueId::new(0);
        let from = UnitAt { topic, queue, offset: QueueOffset::ZERO };
        let next = TopicId::new(topic.get() + 1);
        self.drop_range((from, UnitAt { topic: next, ..from }), references);
    }

    fn drop_range(&mut self, (from, to): (UnitAt, UnitAt), references: &mut References) {
        let gone: Vec<UnitAt> = self.units.range(from..to).map(|(at, _)| *at).collect();
        for at in gone {
            let unit = self.units.remove(&at).expect("found just now");
            self.bytes -= u64::from(unit.size);
            references.release(unit.position, Holder::Late(at));
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.units.iter(), |w, (at, unit)| {
            w.put(&at.topic);
            w.put(&at.queue);
            w.put(&at.offset);
            w.put(unit);
        });
    }

    pub(super) fn read(
        reader: &mut Reader,
        references: &mut References,
    ) -> Result<Self, SectionError> {
        let mut late = Self::default();
        read_rows(reader, |r| {
            let at = UnitAt { topic: r.get()?, queue: r.get()?, offset: r.get()? };
            let unit: Unit = r.get()?;
            require(!late.units.contains_key(&at), "a unit is late twice")?;
            late.add(at, unit, references);
            Ok(())
        })?;
        Ok(late)
    }

    /// Whether each unit is one of its queue, `bounds` knowing where that starts and ends.
    pub(super) fn check(
        &self,
        bounds: impl Fn(TopicId, QueueId) -> Option<(QueueOffset, QueueOffset)>,
        mark: LogPosition,
    ) -> Result<(), SectionError> {
        for (at, unit) in &self.units {
            let within = bounds(at.topic, at.queue)
                .is_some_and(|(start, end)| start <= at.offset && at.offset < end);
            require(within, "a late unit that its queue does not have")?;
            require(unit.position < mark, "a late unit of a record that lies before no mark")?;
        }
        Ok(())
    }
}
