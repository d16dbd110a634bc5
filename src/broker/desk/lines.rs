//! What a scan keeps in mind of message groups in order, so that one that is busy is not looked at
//! again and again, and holds back nothing but itself.
//!
//! Every message with a message group that a scan has seen, and that was never handed out, is noted
//! under its line. So a line's first noted message is its first that is open, as far as the scan has
//! come: it alone, or those right behind it, may be handed out. A line is looked at again when the
//! state says that it became free, or when a checkout of it came to an end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Bound;

use super::scan::Scan;
use super::verdicts::{Asked, Asks, Judge};
use super::{SCAN_CHUNK, SharedLines, Wish, add_to_runs};
use crate::base::{QueueId, QueueOffset};
use crate::command::{Grant, Order, Take, Unit};
use crate::machine::State;

/// Messages that are noted for one filter at most, 16 MiB of them; beyond, a scan goes no further
/// until some are done.
const NOTED_MAX: usize = 1 << 20;

/// By the hash of a message group; for one filter.
#[derive(Debug, Default)]
pub(super) struct Lines {
    noted: BTreeMap<u64, BTreeSet<(QueueId, QueueOffset)>>,
    count: usize,
    /// Lines with something noted that may be free.
    maybe_free: BTreeSet<u64>,
}

impl Lines {
    /// False when there is no room.
    fn note(&mut self, line: u64, place: (QueueId, QueueOffset)) -> bool {
        if self.count >= NOTED_MAX {
            return false;
        }
        self.count += usize::from(self.noted.entry(line).or_default().insert(place));
        true
    }

    fn forget(&mut self, line: u64, place: (QueueId, QueueOffset)) {
        let Some(places) = self.noted.get_mut(&line) else { return };
        self.count -= usize::from(places.remove(&place));
        if places.is_empty() {
            self.noted.remove(&line);
            self.maybe_free.remove(&line);
        }
    }

    /// The first noted message of a line, or the first behind another one.
    fn next(
        &self,
        line: u64,
        behind: Option<(QueueId, QueueOffset)>,
    ) -> Option<(QueueId, QueueOffset)> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.noted.get(&line)?.range((from, Bound::Unbounded)).next().copied()
    }

    fn knows(&self, line: u64) -> bool {
        self.noted.contains_key(&line)
    }

    pub(super) fn look_again(&mut self, line: u64) {
        if self.knows(line) {
            self.maybe_free.insert(line);
        }
    }

    pub(super) fn look_at_all(&mut self) {
        self.maybe_free = self.noted.keys().copied().collect();
    }
}

/// What one look has taken of lines, by hash: whether more may be taken behind it.
pub(super) type Taken = BTreeMap<u64, bool>;

/// Unwanted runs by queue: start to end, exclusive.
type Unwanted = HashMap<QueueId, BTreeMap<QueueOffset, QueueOffset>>;

/// The first noted messages of lines that are free, as far as they are wanted.
pub(super) fn free_ones(
    (state, wish, shared): (&State, &Wish<'_>, &SharedLines),
    lines: &mut Lines,
    judge: Judge<'_>,
    (taken, asks, unwanted): (&mut Taken, &mut Asks, &mut Unwanted),
) -> io::Result<Vec<Take>> {
    let pair = (wish.group, wish.topic);
    let mut takes: Vec<Take> = Vec::new();
    let mut room = wish.batch;
    for line in lines.maybe_free.clone() {
        if room == 0 || asks.is_full() {
            break;
        }
        if state.is_locked(pair, line) || shared.reserved.contains_key(&line) {
            lines.maybe_free.remove(&line);
            continue;
        }
        let mut last = None;
        let (mut fits, mut asked) = (true, false);
        while let Some((queue, offset)) = lines.next(line, last) {
            last = Some((queue, offset));
            if !state.is_open(pair, queue, offset) {
                lines.forget(line, (queue, offset));
                continue;
            }
            fits = state.fits(pair, queue, offset);
            if !fits {
                break;
            }
            let unit = state.units(wish.topic, queue, offset, 1)?;
            let Some(unit) = unit.first().copied() else { break };
            match judge.wanted((queue, offset), unit) {
                Wanted::Here => {}
                Wanted::Elsewhere => break,
                Wanted::Nowhere => {
                    // Without room in the runs it stays a gap, as what is beyond them does.
                    add_to_runs(unwanted.entry(queue).or_default(), offset);
                    lines.forget(line, (queue, offset));
                    continue;
                }
                Wanted::Unknown => {
                    asks.add(Asked { queue, offset, unit });
                    asked = true;
                    break;
                }
            }
            taken.insert(line, false);
            let grant = Grant { offset, unit };
            match takes.last_mut().filter(|take| take.queue == queue) {
                Some(take) => take.grants.push(grant),
                None => takes.push(Take { queue, skips: Vec::new(), grants: vec![grant] }),
            }
            room -= 1;
            if room == 0 || shared.order == Order::Single {
                break;
            }
        }
        // One that is offered stays, for a look that only asks whether there is something; where it
        // is taken, the next look finds it reserved or locked, and drops it. And one stays that its
        // queue has no room for yet, or that is to be judged first.
        if !taken.contains_key(&line) && fits && !asked {
            lines.maybe_free.remove(&line);
        }
    }
    Ok(takes)
}

/// By whom a message is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Here,
    /// By another live filter: what is behind it in its line has to wait.
    Elsewhere,
    Nowhere,
    /// Only the record can tell.
    Unknown,
}

impl Scan<'_> {
    /// The line of a message, where that matters.
    pub(super) fn line(&self, unit: Unit) -> Option<u64> {
        (self.shared.order != Order::Off && unit.group_hash != 0).then_some(unit.group_hash)
    }

    /// A message of a line that was never handed out and that some filter wants: it is noted, and
    /// taken if it may be.
    pub(super) fn look_at_line(&mut self, line: u64, (at, unit): (QueueOffset, Unit), here: bool) {
        let pair = (self.wish.group, self.wish.topic);
        let more = self.taken.get(&line).copied();
        let free = match more {
            Some(more) => more,
            None => {
                !self.lines.knows(line)
                    && !self.shared.reserved.contains_key(&line)
                    && !self.state.is_locked(pair, line)
            }
        };
        let offered = here && free && !self.is_reserved(at);
        // Not noted where it does not fit: the next scan begins with it.
        if offered && !self.fits(at) || !self.lines.note(line, (self.queue, at)) {
            self.full = true;
            self.taken.entry(line).and_modify(|more| *more = false);
            return;
        }
        if offered {
            self.matched = true;
            self.grant_new(at, unit);
            self.taken.insert(line, self.shared.order == Order::Batch);
            // From here on it is known, and only what may be free is looked at of known lines: the
            // look that only asked must leave it to the one that takes.
            self.lines.maybe_free.insert(line);
        } else {
            self.taken.entry(line).and_modify(|more| *more = false);
            self.look_behind(at.next());
        }
    }

    /// What was handed out to a filter that nobody has any more would wait for ever: it is skipped like
    /// what was never handed out. The first of a line would lock it, so those behind it go with it.
    pub(super) fn nobody_takes_again(&mut self, at: QueueOffset, unit: Unit) {
        let Some(line) = self.line(unit) else { return self.note_unwanted(at) };
        if self.shared.reserved.contains_key(&line) {
            return;
        }
        self.note_unwanted(at);
        let pair = (self.wish.group, self.wish.topic);
        for (queue, next) in self.state.followers(pair, line, SCAN_CHUNK) {
            let wanted = self.judge.wanted((queue, next.offset), next.unit);
            if queue != self.queue || wanted != Wanted::Nowhere {
                break;
            }
            self.note_unwanted(next.offset);
        }
    }

    /// A message that was handed out before and is the first of its line: it, and those behind it.
    pub(super) fn again_in_line(&mut self, line: u64, (at, unit): (QueueOffset, Unit)) {
        if self.shared.reserved.contains_key(&line) || self.taken.contains_key(&line) {
            return;
        }
        self.grant(at, unit);
        self.taken.insert(line, false);
        if self.shared.order != Order::Batch {
            return;
        }
        let pair = (self.wish.group, self.wish.topic);
        for (queue, next) in self.state.followers(pair, line, self.room) {
            let wanted = self.judge.wanted((queue, next.offset), next.unit);
            if queue != self.queue || wanted != Wanted::Here {
                break;
            }
            self.grant(next.offset, next.unit);
        }
    }
}
