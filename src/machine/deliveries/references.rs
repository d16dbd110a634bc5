//! Which records are needed by messages that are under way, and where they lie now.
//!
//! A record's identity is where it lay first (rule R5). Before the log's front passes a record that
//! is still needed, it is written again at the log's end; from then on reads go by `moved`.

use std::collections::{BTreeMap, BTreeSet};

use super::Key;
use crate::base::LogPosition;
use crate::command::{Reader, Unit, Writer};
use crate::machine::codec::{read_rows, require, write_rows};
use crate::machine::error::SectionError;

/// Where a record lies that was written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moved {
    position: LogPosition,
    size: u32,
}

#[derive(Debug, Default)]
pub(super) struct References {
    /// Every pending message by its record's first place: derived from the queues.
    held: BTreeSet<(LogPosition, Key)>,
    /// By first place, only of records that are held.
    moved: BTreeMap<LogPosition, Moved>,
    /// Derived from `moved`.
    moved_bytes: u64,
}

impl References {
    pub(super) fn hold(&mut self, original: LogPosition, key: Key) {
        let fresh = self.held.insert((original, key));
        assert!(fresh, "a message is pending twice");
    }

    pub(super) fn release(&mut self, original: LogPosition, key: Key) {
        let held = self.held.remove(&(original, key));
        assert!(held, "what is pending holds its record");
        if !self.is_held(original)
            && let Some(moved) = self.moved.remove(&original)
        {
            self.moved_bytes -= u64::from(moved.size);
        }
    }

    pub(super) fn is_held(&self, original: LogPosition) -> bool {
        let next = self.held.range((original, Key::FIRST)..).next();
        next.is_some_and(|(position, _)| *position == original)
    }

    pub(super) fn holds(&self, original: LogPosition, key: Key) -> bool {
        self.held.contains(&(original, key))
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
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
        let before = self.moved.insert(original, Moved { position, size });
        assert!(before.is_none_or(|before| before.position < position), "copies follow each other");
        self.moved_bytes -= before.map_or(0, |before| u64::from(before.size));
        self.moved_bytes += u64::from(size);
    }

    /// What is held of a record that lies before `front` now, in the order of first places.
    pub(super) fn before(&self, front: LogPosition) -> impl Iterator<Item = (LogPosition, Key)> {
        let end = (front, Key::FIRST);
        let held = self.held.range(..end).copied();
        held.filter(move |(original, _)| self.position(*original) < front)
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.moved.iter(), |w, (original, moved)| {
            w.put(original);
            w.put(&moved.position);
            w.u32(moved.size);
        });
    }

    /// Comes after everything pending is held again.
    pub(super) fn read_moved(&mut self, reader: &mut Reader) -> Result<(), SectionError> {
        read_rows(reader, |r| {
            let (original, position, size) = (r.get()?, r.get()?, r.u32()?);
            require(self.is_held(original), "a copy of a record that nobody needs")?;
            require(original < position, "a copy before its original")?;
            let twice = self.moved.insert(original, Moved { position, size });
            require(twice.is_none(), "two copies of one record")?;
            self.moved_bytes += u64::from(size);
            Ok(())
        })
    }

    /// The same unit, pointing at where the record lies now.
    pub(super) fn unit(&self, unit: Unit) -> Unit {
        Unit { position: self.position(unit.position), ..unit }
    }
}
