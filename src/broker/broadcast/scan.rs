//! One look at the queues of a topic, from an instance's positions on.

use std::collections::BTreeMap;
use std::io;

use crate::base::{QueueId, QueueOffset, TopicId};
use crate::broker::broadcast::parcel::Wish;
use crate::command::Unit;
use crate::filter::Filter;
use crate::machine::State;

/// Units read from a queue at a time.
const CHUNK: usize = 256;
/// Units that one look considers; the state is held meanwhile.
const SCAN_MAX: usize = 4096;
/// Bytes of records that one answer carries, but for a single larger one. With all that is told
/// beside them it stays far below what one message between nodes may have.
const BYTES_MAX: usize = 4 << 20;

/// How far an instance has read, and what it may still be given.
pub(super) struct Scan {
    positions: BTreeMap<QueueId, QueueOffset>,
    max: usize,
    /// The queue to look at first, so that all get their turn.
    turn: u32,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    /// What the filter may want, by the hash of its tag.
    pub(super) units: Vec<(QueueId, QueueOffset, Unit)>,
    /// Messages that retention has taken.
    pub(super) lost: u64,
    /// A bound ended the look before the ends of the queues.
    pub(super) more: bool,
}

impl Scan {
    pub(super) fn new(wish: &Wish, turn: u32) -> Self {
        Self { positions: wish.positions.iter().copied().collect(), max: wish.max as usize, turn }
    }

    /// The next message of every queue.
    pub(super) fn next(&self) -> Vec<(QueueId, QueueOffset)> {
        self.positions.iter().map(|(queue, offset)| (*queue, *offset)).collect()
    }
}

/// Moves the positions behind what it found, and behind what the filter does not want. `None` when
/// the topic is gone.
pub(super) fn scan(
    state: &State,
    topic: TopicId,
    filter: &Filter,
    scan: &mut Scan,
) -> io::Result<Option<Found>> {
    let Some(queues) = state.topic_by_id(topic).map(|topic| topic.queues) else { return Ok(None) };
    let mut found = Found::default();
    let (mut budget, mut bytes) = (SCAN_MAX, 0);
    // A queue that the topic does not have is nobody's position.
    scan.positions.retain(|queue, _| queue.get() < queues);
    for step in 0..queues {
        let queue = QueueId::new((scan.turn % queues + step) % queues);
        let (start, end) = (state.queue_start(topic, queue), state.queue_end(topic, queue));
        let at = scan.positions.entry(queue).or_default();
        if *at < start {
            found.lost += start.since(*at);
            *at = start;
        }
        // Beyond the end lies what was never there.
        *at = (*at).min(end);
        while *at < end {
            if budget == 0 || found.units.len() >= scan.max {
                found.more = true;
                break;
            }
            let left = usize::try_from(end.since(*at)).unwrap_or(usize::MAX);
            let units = state.units(topic, queue, *at, CHUNK.min(budget).min(left))?;
            assert!(!units.is_empty(), "queue {queue} has no unit at {at}, before {end}");
            for unit in units {
                let size = unit.size as usize;
                let wanted = filter.may_match(unit.tag_hash);
                let full = !found.units.is_empty() && bytes + size > BYTES_MAX;
                if wanted && (full || found.units.len() >= scan.max) {
                    found.more = true;
                    return Ok(Some(complete(found, scan, queues)));
                }
                if wanted {
                    bytes += size;
                    found.units.push((queue, *at, unit));
                }
                budget -= 1;
                *at = at.next();
            }
        }
    }
    Ok(Some(found))
}

/// Queues that were not looked at have positions as well.
fn complete(found: Found, scan: &mut Scan, queues: u32) -> Found {
    for queue in 0..queues {
        scan.positions.entry(QueueId::new(queue)).or_default();
    }
    found
}

#[cfg(test)]
mod tests;
