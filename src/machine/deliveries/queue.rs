//! How far one group has come in one queue.
//!
//! ```text
//!   offset   0 . . . . . . . . . . . . . . . next . . . . end
//!            done | free | pending | done ... | never considered
//! ```
//! Below `next` an offset is *free* (passed by, still to be handed out), *pending* (handed out at
//! least once, not acknowledged), *dead* (given up after its last attempt, and a dead letter) or, when
//! nobody knows it, *done*: acknowledged, skipped, or expired by retention, which is counted. So memory is in proportion to holes and
//! to what is under way, never to what is done.

use std::collections::{BTreeMap, BTreeSet};

use super::intervals::Intervals;
use crate::base::{CheckoutId, UtcMillis};
use crate::command::{CommandError, Reader, Unit, Writer};
use crate::machine::codec::{read_rows, require, write_rows};
use crate::machine::dead_letters::LetterAt;
use crate::machine::error::SectionError;
use crate::machine::limits::PENDING_PER_QUEUE_MAX;

/// Where a message that was handed out stands. Persisted, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// With its consumer; its checkout renews it.
    InFlight = 1,
    /// With its consumer, which chose the deadline itself; its checkout leaves it alone.
    Held = 2,
    /// With nobody, hidden until its deadline.
    Waiting = 3,
    /// With nobody, visible.
    Ready = 4,
    /// With nobody after its last attempt, until somebody resumes its message group.
    Stopped = 5,
    /// With a consumer that is gone, whose acknowledgement may be on its way; nobody extends it.
    Left = 6,
}

impl Phase {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::InFlight, Self::Held, Self::Waiting, Self::Ready, Self::Stopped, Self::Left]
            .into_iter()
            .find(|phase| *phase as u8 == byte)
    }

    /// Whether it ends by itself.
    pub(super) fn has_deadline(self) -> bool {
        !matches!(self, Self::Ready | Self::Stopped)
    }

    /// Whether the handle of the last delivery is valid.
    pub(super) fn is_live(self) -> bool {
        matches!(self, Self::InFlight | Self::Held | Self::Left)
    }
}

/// A message that was handed out and is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) unit: Unit,
    /// Deliveries so far. A returned one is not counted, so this can be 0.
    pub(super) attempt: u32,
    /// The last delivery's.
    pub(super) checkout: CheckoutId,
    pub(super) phase: Phase,
    /// When it becomes ready; once it is, since when.
    pub(super) due: UtcMillis,
    /// Orders equal deadlines by when they were set.
    pub(super) sequence: u64,
}

/// What an offset is to the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// At or behind `next`.
    Fresh,
    Free,
    Pending,
    Dead,
    Done,
}

#[derive(Debug, Default)]
pub(super) struct QueueDeliveries {
    /// The first offset never considered.
    pub(super) next: u64,
    pub(super) free: Intervals,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// Those of `pending` that are ready and, in order, the first of their message group: derived.
    pub(super) ready: BTreeSet<u64>,
    /// Messages that left with the log's front before the group was done with them.
    pub(super) expired: u64,
    /// Messages that the group gave up after their last attempts, ever.
    pub(super) dead: u64,
    /// Those of them that are dead letters, and where.
    pub(super) buried: BTreeMap<u64, LetterAt>,
}

impl QueueDeliveries {
    /// Of a group that begins at this offset.
    pub(super) fn starting_at(start: u64) -> Self {
        Self { next: start, ..Self::default() }
    }

    pub(super) fn standing(&self, offset: u64) -> Standing {
        if offset >= self.next {
            Standing::Fresh
        } else if self.pending.contains_key(&offset) {
            Standing::Pending
        } else if self.free.contains(offset) {
            Standing::Free
        } else if self.buried.contains_key(&offset) {
            Standing::Dead
        } else {
            Standing::Done
        }
    }

    /// Whether a message that was never handed out may be handed out now (rule R13): there is room
    /// for one more pending, and the number of gaps stays bounded.
    pub(super) fn fits(&self, offset: u64) -> bool {
        self.pending.len() < PENDING_PER_QUEUE_MAX && self.has_room(offset, offset + 1)
    }

    /// What shrinks the number of gaps is always allowed, so the cap cannot lock itself.
    fn has_room(&self, from: u64, to: u64) -> bool {
        let grows = match self.free.around(from) {
            Some((start, end)) => start < from && to < end,
            None => from > self.next,
        };
        !grows || self.free.len() < PENDING_PER_QUEUE_MAX
    }

    /// Takes a message that was never handed out; false when it is not available.
    pub(super) fn take(&mut self, offset: u64) -> bool {
        if !self.fits(offset) {
            return false;
        }
        match self.standing(offset) {
            Standing::Fresh => self.pass_to(offset, offset + 1),
            Standing::Free => self.free.remove(offset),
            Standing::Pending | Standing::Dead | Standing::Done => return false,
        }
        true
    }

    /// Marks offsets that nobody wants as done, as far as they were never handed out.
    pub(super) fn skip(&mut self, from: u64, to: u64) {
        assert!(from < to, "an empty skip {from}..{to}");
        if !self.has_room(from, to) {
            return;
        }
        self.free.remove_range(from, to);
        if to > self.next {
            self.pass_to(from.max(self.next), to);
        }
    }

    /// Moves `next` to `to`; what lies before `from` is passed by.
    fn pass_to(&mut self, from: u64, to: u64) {
        assert!(self.next <= from && from < to, "next never moves back");
        if self.next < from {
            self.free.push(self.next, from);
        }
        self.next = to;
    }

    /// Those with a consumer, waiting, or behind one of their message group.
    pub(super) fn in_flight(&self) -> usize {
        self.pending.len() - self.ready.len()
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.u64(self.next);
        writer.u64(self.expired);
        writer.u64(self.dead);
        write_rows(writer, self.free.iter(), |w, (from, to)| {
            w.u64(from);
            w.u64(to);
        });
        write_rows(writer, self.pending.iter(), |w, (offset, pending)| {
            w.u64(*offset);
            w.put(&pending.unit);
            w.u32(pending.attempt);
            w.put(&pending.checkout);
            w.u8(pending.phase as u8);
            w.put(&pending.due);
            w.u64(pending.sequence);
        });
        write_rows(writer, self.buried.iter(), |w, (offset, (topic, at))| {
            w.u64(*offset);
            w.put(topic);
            w.put(at);
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let (next, expired, dead) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let mut queue = Self { next, expired, dead, ..Self::default() };
        let mut last = 0;
        read_rows(reader, |r| {
            let (from, to) = (r.u64()?, r.u64()?);
            require(last <= from && from < to && to <= queue.next, "gaps out of order")?;
            last = to;
            queue.free.push(from, to);
            Ok(())
        })?;
        read_rows(reader, |r| {
            let offset = r.u64()?;
            let pending = Pending {
                unit: r.get()?,
                attempt: r.u32()?,
                checkout: r.get()?,
                phase: read_phase(r)?,
                due: r.get()?,
                sequence: r.u64()?,
            };
            require(queue.standing(offset) == Standing::Done, "an offset stands twice")?;
            if pending.phase == Phase::Ready {
                queue.ready.insert(offset);
            }
            queue.pending.insert(offset, pending);
            Ok(())
        })?;
        read_rows(reader, |r| {
            let (offset, at) = (r.u64()?, (r.get()?, r.get()?));
            require(queue.standing(offset) == Standing::Done, "an offset stands twice")?;
            queue.buried.insert(offset, at);
            Ok(())
        })?;
        Ok(queue)
    }
}

fn read_phase(reader: &mut Reader) -> Result<Phase, CommandError> {
    let found = reader.u8()?;
    Phase::from_byte(found).ok_or(CommandError::Kind { what: "the phase of a delivery", found })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ARCHITECTURE.md` says what a backlog and what is under way costs.
    #[test]
    fn a_queue_and_a_message_under_way_are_small() {
        assert!(size_of::<QueueDeliveries>() <= 136);
        assert!(size_of::<(u64, Pending)>() <= 80);
        let mut writer = Writer::new();
        QueueDeliveries::starting_at(20_000_000).write(&mut writer);
        assert_eq!(writer.finish().len(), 36, "and four for the number of the queue");
    }
}
