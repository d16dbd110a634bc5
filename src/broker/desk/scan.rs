//! One queue's part of a look: what is visible again, what was passed by, what is new.

use std::collections::BTreeMap;
use std::io;

use super::hunt::Hunt;
use super::lines::{Lines, Taken, Wanted};
use super::verdicts::{Asked, Asks, Judge};
use super::{SCAN_CHUNK, SharedLines, Wish, add_to_runs};
use crate::base::{QueueId, QueueOffset};
use crate::command::{Grant, Unit};
use crate::machine::{PENDING_PER_QUEUE_MAX, QueueView, State, VIEW_MAX};

pub(super) struct Scan<'a> {
    pub(super) state: &'a State,
    pub(super) judge: Judge<'a>,
    pub(super) wish: &'a Wish<'a>,
    pub(super) queue: QueueId,
    pub(super) reserved: Option<&'a BTreeMap<QueueOffset, u64>>,
    pub(super) shared: &'a SharedLines,
    pub(super) lines: &'a mut Lines,
    pub(super) taken: &'a mut Taken,
    pub(super) unwanted: &'a mut BTreeMap<QueueOffset, QueueOffset>,
    pub(super) hunt: &'a mut Hunt,
    pub(super) asks: &'a mut Asks,
    /// Moves on over what does not match, and stays at the first that does.
    pub(super) looked: QueueOffset,
    pub(super) matched: bool,
    /// Nothing is taken behind a message that has to be judged first; those behind it that have to
    /// be as well are only noted.
    pub(super) asking: bool,
    /// The first that nobody wants and for which there was no room among the unwanted runs.
    pub(super) missed: Option<QueueOffset>,
    /// There is no room to note another message of a line, or apply would not give the next one.
    pub(super) full: bool,
    /// Apply would not give a message that was never handed out: the queue has as many gaps as may
    /// be, and it would be one more.
    pub(super) capped: bool,
    /// What may be had behind a grant of this scan: apply takes them one after the other.
    pub(super) edge: Option<QueueOffset>,
    pub(super) grants: Vec<Grant>,
    pub(super) room: usize,
    pub(super) budget: usize,
}

impl Scan<'_> {
    pub(super) fn run(&mut self) -> io::Result<()> {
        let view = self.state.view(self.wish.group, self.wish.topic, self.queue);
        self.visible_again(&view);
        // What this receive has passed by was not all without a match: an offer may be given up.
        self.matched = self.hunt.fresh_from(self.queue) > self.looked;
        // What comes again goes before what is new, so it is judged before. At the cap apply would
        // refuse whatever was not handed out before.
        if self.asking || view.pending >= PENDING_PER_QUEUE_MAX {
            return Ok(());
        }
        self.passed_by(view.next)?;
        let end = self.state.queue_end(self.wish.topic, self.queue);
        self.range(view.next.max(self.start()), end)
    }

    /// Below this one there is nothing new for this receive.
    fn start(&self) -> QueueOffset {
        self.looked.max(self.hunt.fresh_from(self.queue))
    }

    fn is_over(&self) -> bool {
        self.room == 0 || self.budget == 0 || self.full || self.asks.is_full()
    }

    /// All of them are looked at, however many there are: they are in memory, at most
    /// [`PENDING_PER_QUEUE_MAX`], and a wanted one may stand behind any number of others. Only what
    /// has to be judged first is asked for a part at a time.
    fn visible_again(&mut self, view: &QueueView) {
        let pair = (self.wish.group, self.wish.topic);
        let from = self.hunt.again_from(self.queue);
        let mut page = match from > QueueOffset::ZERO {
            true => self.state.ready_from(pair, self.queue, from, VIEW_MAX),
            false => view.ready.clone(),
        };
        while let Some(last) = page.last().map(|ready| ready.offset) {
            for ready in &page {
                if self.room == 0 || self.asks.is_full() {
                    return;
                }
                if self.is_reserved(ready.offset) {
                    continue;
                }
                match self.judge.wanted((self.queue, ready.offset), ready.unit) {
                    Wanted::Here => match self.line(ready.unit) {
                        Some(line) => self.again_in_line(line, (ready.offset, ready.unit)),
                        None => self.grant(ready.offset, ready.unit),
                    },
                    Wanted::Elsewhere => {}
                    Wanted::Nowhere => self.nobody_takes_again(ready.offset, ready.unit),
                    Wanted::Unknown => {
                        if !self.asking {
                            self.hunt.passed_again(self.queue, ready.offset);
                        }
                        self.ask(ready.offset, ready.unit);
                    }
                }
            }
            page = self.state.ready_from(pair, self.queue, last.next(), VIEW_MAX);
        }
    }

    /// Offsets below the group's `next` that were passed over for other members.
    fn passed_by(&mut self, next: QueueOffset) -> io::Result<()> {
        let pair = (self.wish.group, self.wish.topic);
        let mut from = self.start();
        while from < next && !self.is_over() {
            let ranges = self.state.free_from(pair, self.queue, from, VIEW_MAX);
            let Some((_, last)) = ranges.last().copied() else { break };
            for (start, end) in ranges {
                self.range(start, end)?;
            }
            from = last;
        }
        Ok(())
    }

    /// Offsets `at..end`, none of which was ever handed out.
    fn range(&mut self, mut at: QueueOffset, end: QueueOffset) -> io::Result<()> {
        while at < end && !self.is_over() {
            if let Some(behind) = self.behind_unwanted(at) {
                at = behind;
                continue;
            }
            let want = SCAN_CHUNK.min(usize::try_from(end.since(at)).unwrap_or(SCAN_CHUNK));
            let units = self.state.units(self.wish.topic, self.queue, at, want)?;
            assert!(!units.is_empty(), "queue {} has no unit at {at}, before {end}", self.queue);
            for unit in units {
                if self.is_over() {
                    break;
                }
                self.budget -= 1;
                self.look_at(at, unit);
                at = at.next();
            }
        }
        Ok(())
    }

    fn look_at(&mut self, at: QueueOffset, unit: Unit) {
        let wanted = match self.judge.wanted((self.queue, at), unit) {
            // It was judged when it was offered.
            Wanted::Unknown if self.is_reserved(at) => Wanted::Here,
            wanted => wanted,
        };
        if wanted == Wanted::Unknown {
            if !self.asking {
                self.hunt.passed_fresh(self.queue, at);
            }
            return self.ask(at, unit);
        }
        if self.asking {
            return;
        }
        if wanted != Wanted::Nowhere
            && let Some(line) = self.line(unit)
        {
            self.look_at_line(line, (at, unit), wanted == Wanted::Here);
        } else if wanted == Wanted::Here {
            self.matched = true;
            if !self.is_reserved(at) && self.fits(at) {
                self.grant_new(at, unit);
            }
        } else {
            if wanted == Wanted::Nowhere {
                self.note_unwanted(at);
            }
            self.look_behind(at.next());
        }
        if !self.full {
            self.hunt.passed_fresh(self.queue, at.next());
        }
    }

    fn ask(&mut self, offset: QueueOffset, unit: Unit) {
        self.asking = true;
        self.asks.add(Asked { queue: self.queue, offset, unit });
    }

    /// The end of the unwanted run that `at` is in.
    fn behind_unwanted(&mut self, at: QueueOffset) -> Option<QueueOffset> {
        let (_, to) = self.unwanted.range(..=at).next_back()?;
        let to = *to;
        if to <= at {
            return None;
        }
        if !self.asking {
            self.look_behind(to);
            self.hunt.passed_fresh(self.queue, to);
        }
        Some(to)
    }

    pub(super) fn look_behind(&mut self, offset: QueueOffset) {
        if !self.matched {
            self.looked = self.looked.max(offset);
        }
    }

    pub(super) fn is_reserved(&self, offset: QueueOffset) -> bool {
        self.reserved.is_some_and(|reserved| reserved.contains_key(&offset))
    }

    /// Apply would give this one, which was never handed out; else the scan is over.
    pub(super) fn fits(&mut self, at: QueueOffset) -> bool {
        let pair = (self.wish.group, self.wish.topic);
        let fits = self.edge == Some(at) || self.state.fits(pair, self.queue, at);
        self.capped |= !fits;
        self.full |= !fits;
        fits
    }

    pub(super) fn grant_new(&mut self, offset: QueueOffset, unit: Unit) {
        self.grant(offset, unit);
        self.edge = Some(offset.next());
    }

    pub(super) fn grant(&mut self, offset: QueueOffset, unit: Unit) {
        self.grants.push(Grant { offset, unit });
        self.room -= 1;
    }

    pub(super) fn note_unwanted(&mut self, at: QueueOffset) {
        if !add_to_runs(self.unwanted, at) {
            self.missed = Some(self.missed.map_or(at, |missed| missed.min(at)));
        }
    }
}
