//! Where a record's unit is. Stamps of units never fall along a queue, so a time is found by halves;
//! among units of one stamp the record's place tells which it is.

use std::io;

use crate::base::{LogPosition, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::broker::replica::Inner;
use crate::command::Unit;
use crate::commit_log::ReadError;
use crate::message::{Message, decode_record};

/// Units that are read under one look at the state: nothing is applied meanwhile.
const AT_ONCE: usize = 1024;

/// One queue, as it is searched.
pub(super) struct Units<'a> {
    replica: &'a Inner,
    topic: TopicId,
    queue: QueueId,
}

/// What became of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    At(QueueOffset, Unit),
    /// All units that were meant were looked at.
    Absent,
    /// There were more than may be looked at.
    GaveUp,
}

/// Units that one question may still look at.
#[derive(Debug)]
pub(super) struct Budget(pub(super) usize);

pub(super) fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "this replica was given a state and has not caught up with its queues".to_owned()
        }
        _ => format!("queue units cannot be read: {error}"),
    }
}

impl<'a> Units<'a> {
    pub(super) fn of(replica: &'a Inner, topic: TopicId, queue: QueueId) -> Self {
        Self { replica, topic, queue }
    }

    pub(super) fn bounds(&self) -> (QueueOffset, QueueOffset) {
        let bounds = |state: &crate::machine::State| {
            (state.queue_start(self.topic, self.queue), state.queue_end(self.topic, self.queue))
        };
        self.replica.group.read(bounds)
    }

    fn read(&self, from: QueueOffset, max: usize) -> Result<Vec<Unit>, String> {
        let units = self.replica.group.read(|state| {
            // Retention may take what was there a moment ago.
            let from = from.max(state.queue_start(self.topic, self.queue));
            state.units(self.topic, self.queue, from, max)
        });
        units.map_err(|error| unreadable(&error))
    }

    pub(super) fn at(&self, offset: QueueOffset) -> Result<Option<Unit>, String> {
        Ok(self.read(offset, 1)?.first().copied())
    }

    /// The first offset whose message was visible at this time or later; the queue's end when there
    /// is none.
    pub(super) fn first_visible(&self, at: UtcMillis) -> Result<QueueOffset, String> {
        let (mut low, mut high) = self.bounds();
        while low < high {
            let middle = low.plus(high.since(low) / 2);
            match self.at(middle)? {
                Some(unit) if unit.visible < at => low = middle.next(),
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Looks for a unit that points at one of these places, among those that became visible from
    /// `from` to `to`.
    pub(super) fn search(
        &self,
        places: &[LogPosition],
        (from, to): (UtcMillis, UtcMillis),
        budget: &mut Budget,
    ) -> Result<Search, String> {
        let mut at = self.first_visible(from)?;
        loop {
            if budget.0 == 0 {
                return Ok(Search::GaveUp);
            }
            let at_once = AT_ONCE.min(budget.0);
            at = at.max(self.bounds().0);
            let units = self.read(at, at_once)?;
            budget.0 -= units.len();
            for (number, unit) in units.iter().enumerate() {
                if unit.visible > to {
                    return Ok(Search::Absent);
                }
                if places.contains(&unit.position) {
                    return Ok(Search::At(at.plus(number as u64), *unit));
                }
            }
            if units.len() < at_once {
                return Ok(Search::Absent);
            }
            at = at.plus(units.len() as u64);
        }
    }

    /// Whether units that became visible at `stamp` may have left already.
    pub(super) fn may_have_left(&self, stamp: UtcMillis) -> Result<bool, String> {
        let (start, end) = self.bounds();
        if start == QueueOffset::ZERO {
            return Ok(false);
        }
        let first = if start < end { self.at(start)? } else { None };
        Ok(first.is_none_or(|first| first.visible >= stamp))
    }
}

impl Inner {
    /// The message of a record; `None` once it has left the log.
    pub(super) fn message_at(
        &self,
        position: LogPosition,
        size: u32,
    ) -> Result<Option<Message>, String> {
        let record = match self.group.log().read_record(position, size) {
            Ok(record) => record,
            Err(ReadError::PurgedPosition { .. } | ReadError::Purged { .. }) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let stored = decode_record(&record);
        stored.map(|stored| Some(stored.message)).map_err(|error| error.to_string())
    }
}
