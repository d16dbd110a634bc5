//! Which records are needed by messages that are under way, and where they lie now.
//!
//! A record's identity is where it lay first (rule R5). Before the log's front passes a record that
//! is still needed, it is written again at the log's end; from then on reads go by `moved`.

use std::collections::{BTreeMap, BTreeSet};

use super::Key;
use crate::base::{LogPosition, QueueId, QueueOffset, TopicId};
use crate::command::{Reader, Unit, Writer};
use crate::machine::codec::{read_rows, require, write_rows};
use crate::machine::error::SectionError;

/// Who needs a record. The order matters: deliveries come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::machine) enum Holder {
    /// A message that a group has been handed and is not done with.
    Delivery(Key),
    /// A unit that came behind the mark that its record lies before (rule R9).
    Late(UnitAt),
    /// The half message that lies there, until it is decided.
    Half,
}

impl Holder {
    /// Before every other.
    const FIRST: Self = Self::Delivery(Key::FIRST);
}

/// The place of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::machine) struct UnitAt {
    pub(in crate::machine) topic: TopicId,
    pub(in crate::machine) queue: QueueId,
    pub(in crate::machine) offset: QueueOffset,
}

/// Where a record lies that was written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moved {
    position: LogPosition,
    size: u32,
}

#[derive(Debug, Default)]
pub(in crate::machine) struct References {
    /// Whatever needs a record, by where the record lies now and where it lay first: derived from the
    /// tables. By where it lies now, so that what was written again once is not gone through whenever
    /// somebody asks what the front is to pass.
    held: BTreeSet<(LogPosition, LogPosition, Holder)>,
    /// By first place, only of records that are held.
    moved: BTreeMap<LogPosition, Moved>,
    /// Derived from `moved`: of all records, and of those that deliveries need.
    moved_bytes: u64,
    delivered_bytes: u64,
}

impl References {
    pub(in crate::machine) fn hold(&mut self, original: LogPosition, holder: Holder) {
        let before = self.delivered(original);
        let fresh = self.held.insert((self.position(original), original, holder));
        assert!(fresh, "a record is held twice by {holder:?}");
        self.recount(original, before);
    }

    pub(in crate::machine) fn release(&mut self, original: LogPosition, holder: Holder) {
        let before = self.delivered(original);
        let held = self.held.remove(&(self.position(original), original, holder));
        assert!(held, "{holder:?} holds its record");
        self.recount(original, before);
        if !self.is_held(original)
            && let Some(moved) = self.moved.remove(&original)
        {
            self.moved_bytes -= u64::from(moved.size);
        }
    }

    fn first_holder(&self, original: LogPosition) -> Option<Holder> {
        self.holders(original).next()
    }

    fn holders(&self, original: LogPosition) -> impl Iterator<Item = Holder> {
        let held = self.held.range((self.position(original), original, Holder::FIRST)..);
        held.take_while(move |(_, first, _)| *first == original).map(|(_, _, holder)| *holder)
    }

    pub(super) fn is_held(&self, original: LogPosition) -> bool {
        self.first_holder(original).is_some()
    }

    /// The bytes of a copy that a delivery needs.
    fn delivered(&self, original: LogPosition) -> u64 {
        let Some(moved) = self.moved.get(&original) else { return 0 };
        match self.first_holder(original) {
            Some(Holder::Delivery(_)) => u64::from(moved.size),
            Some(Holder::Late(_) | Holder::Half) | None => 0,
        }
    }

    fn recount(&mut self, original: LogPosition, before: u64) {
        self.delivered_bytes = self.delivered_bytes - before + self.delivered(original);
    }

    pub(in crate::machine) fn holds(&self, original: LogPosition, holder: Holder) -> bool {
        self.held.contains(&(self.position(original), original, holder))
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Of copies that consumers keep from leaving.
    pub(super) fn delivered_bytes(&self) -> u64 {
        self.delivered_bytes
    }

    /// Where a record lies now.
    pub(super) fn position(&self, original: LogPosition) -> LogPosition {
        self.moved.get(&original).map_or(original, |moved| moved.position)
    }

    /// The record was written again. Changes nothing when nobody needs it any more.
    pub(super) fn relocate(&mut self, original: LogPosition, position: LogPosition, size: u32) {
        if !self.is_held(original) {
            return;
        }
        assert!(original < position, "a copy lies behind its original");
        let delivered = self.delivered(original);
        let before = self.place(original, Moved { position, size });
        assert!(before.is_none_or(|before| before.position < position), "copies follow each other");
        self.moved_bytes -= before.map_or(0, |before| u64::from(before.size));
        self.moved_bytes += u64::from(size);
        self.recount(original, delivered);
    }

    /// Notes where a record lies from now on, for all who hold it; answers where it did.
    fn place(&mut self, original: LogPosition, moved: Moved) -> Option<Moved> {
        let (from, to) = (self.position(original), moved.position);
        let holders: Vec<Holder> = self.holders(original).collect();
        for holder in holders {
            self.held.remove(&(from, original, holder));
            self.held.insert((to, original, holder));
        }
        self.moved.insert(original, moved)
    }

    /// What is held of a record that lies before `front` now, by its first place, in the order of
    /// where it lies now.
    pub(super) fn before(&self, front: LogPosition) -> impl Iterator<Item = (LogPosition, Holder)> {
        let end = (front, LogPosition::ZERO, Holder::FIRST);
        self.held.range(..end).map(|(_, original, holder)| (*original, *holder))
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.moved.iter(), |w, (original, moved)| {
            w.put(original);
            w.put(&moved.position);
            w.u32(moved.size);
        });
    }

    /// Comes after all that needs records holds them again.
    pub(super) fn read_moved(&mut self, reader: &mut Reader) -> Result<(), SectionError> {
        read_rows(reader, |r| {
            let (original, position, size) = (r.get()?, r.get()?, r.u32()?);
            require(self.is_held(original), "a copy of a record that nobody needs")?;
            require(original < position, "a copy before its original")?;
            let twice = self.place(original, Moved { position, size });
            require(twice.is_none(), "two copies of one record")?;
            self.moved_bytes += u64::from(size);
            self.delivered_bytes += self.delivered(original);
            Ok(())
        })
    }

    /// The same unit, pointing at where the record lies now.
    pub(super) fn unit(&self, unit: Unit) -> Unit {
        Unit { position: self.position(unit.position), ..unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_again_is_found_where_it_lies_now() {
        let at = LogPosition::new;
        let late = |number| {
            let (topic, queue) = (TopicId::new(1), QueueId::new(0));
            Holder::Late(UnitAt { topic, queue, offset: QueueOffset::new(number) })
        };
        let mut references = References::default();
        for number in 0..3 {
            references.hold(at(number * 10), late(number));
        }
        // Two need the first one.
        references.hold(at(0), Holder::Half);
        let before = |references: &References, front| {
            references.before(at(front)).map(|(first, _)| first.get()).collect::<Vec<_>>()
        };
        assert_eq!(before(&references, 20), [0, 0, 10]);
        references.relocate(at(0), at(100), 7);
        assert_eq!(before(&references, 30), [10, 20], "it lies behind the others");
        assert_eq!(before(&references, 101), [10, 20, 0, 0]);
        references.relocate(at(0), at(200), 7);
        references.relocate(at(10), at(210), 7);
        assert_eq!(before(&references, 300), [20, 0, 0, 10]);
        assert!(references.holds(at(0), Holder::Half) && references.holds(at(0), late(0)));

        // The same after a restart, where the holders come first.
        let mut writer = Writer::new();
        references.write(&mut writer);
        let mut again = References::default();
        for number in 0..3 {
            again.hold(at(number * 10), late(number));
        }
        again.hold(at(0), Holder::Half);
        again.read_moved(&mut Reader::new(writer.finish())).unwrap();
        assert_eq!((&again.held, again.moved_bytes()), (&references.held, 14));

        references.release(at(0), Holder::Half);
        assert_eq!(before(&references, 201), [20, 0]);
        references.release(at(0), late(0));
        assert_eq!((before(&references, 300), references.moved_bytes()), (vec![20, 10], 7));
        assert_eq!(references.position(at(0)), at(0), "nobody needs the copy");
    }
}
