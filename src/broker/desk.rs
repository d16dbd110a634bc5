//! A desk for each group and topic: which messages are about to be handed out, and which nobody
//! wants. Local to the leader and lost with it; apply decides in the end.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::{GroupId, QueueId, QueueOffset, TopicId};
use crate::command::{Grant, Skip, Take, Unit};
use crate::filter::TagFilter;
use crate::machine::{PENDING_PER_QUEUE_MAX, QueueView, State};

/// Units read from a queue at a time.
const SCAN_CHUNK: usize = 256;
/// Units looked at in one receive before it answers with what it has; a long run of messages that
/// nobody wants must not hold the state for long.
const SCAN_MAX: usize = 8192;

type SharedDesk = Arc<Mutex<Desk>>;

/// A run that nobody wants gets an entry of its own after this time …
const SKIP_AGE: Duration = Duration::from_secs(10);
/// … or when it is this long (rule R21 gives both numbers).
const SKIP_LENGTH: u64 = 64 << 10;

/// All desks of a node.
#[derive(Debug, Default)]
pub(super) struct Desks {
    by_pair: Mutex<HashMap<(GroupId, TopicId), SharedDesk>>,
}

#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Offered in a checkout that is under way.
    reserved: HashMap<QueueId, BTreeSet<QueueOffset>>,
    /// Runs from a queue's `next` that no subscription of `skip_version` wants, not logged yet,
    /// and since when (monotonic) there has been something to log.
    skipped: HashMap<QueueId, (Skip, Duration)>,
    skip_version: u32,
    /// The queue to look at first, so that all get their turn.
    turn: u32,
}

/// What one receive may take, and what it wants.
#[derive(Debug)]
pub(super) struct Wish<'a> {
    pub(super) group: GroupId,
    pub(super) topic: TopicId,
    pub(super) queues: u32,
    pub(super) filter: &'a TagFilter,
    pub(super) batch: usize,
    /// Monotonic.
    pub(super) now: Duration,
}

/// What a scan found; the grants are reserved until [`Desk::settle`].
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) takes: Vec<Take>,
    pub(super) grants: usize,
    /// The scan stopped before it saw everything.
    pub(super) more: bool,
}

impl Desks {
    pub(super) fn desk(&self, group: GroupId, topic: TopicId) -> SharedDesk {
        self.by_pair.lock().entry((group, topic)).or_default().clone()
    }

    /// Those there are now, in the order of their ids.
    pub(super) fn all(&self) -> Vec<((GroupId, TopicId), SharedDesk)> {
        let mut all: Vec<_> =
            self.by_pair.lock().iter().map(|(pair, desk)| (*pair, desk.clone())).collect();
        all.sort_unstable_by_key(|(pair, _)| *pair);
        all
    }

    /// At step-down, or when a topic or group is gone.
    pub(super) fn clear(&self) {
        self.by_pair.lock().clear();
    }
}

/// One queue's part of a scan.
struct Scan<'a> {
    live: &'a [Option<TagFilter>],
    wish: &'a Wish<'a>,
    view: QueueView,
    take: Take,
    room: usize,
    budget: usize,
}

impl Desk {
    /// Picks what this receive may have, redeliveries first, and reserves it.
    pub(super) fn find(&mut self, state: &State, wish: &Wish<'_>) -> io::Result<Found> {
        let (version, expressions) = state.subscriptions(wish.group, wish.topic);
        if version != self.skip_version {
            self.skipped.clear();
            self.skip_version = version;
        }
        // `None` is what cannot be parsed: not written by this version, so it may want anything.
        let live: Vec<Option<TagFilter>> =
            expressions.iter().map(|text| TagFilter::parse(text).ok()).collect();
        let mut found = Found::default();
        let mut budget = SCAN_MAX;
        for step in 0..wish.queues {
            let queue = QueueId::new((self.turn.wrapping_add(step)) % wish.queues);
            let mut scan = Scan {
                live: &live,
                wish,
                view: state.view(wish.group, wish.topic, queue),
                take: Take { queue, skips: Vec::new(), grants: Vec::new() },
                room: wish.batch - found.grants,
                budget,
            };
            self.scan_queue(state, &mut scan)?;
            budget = scan.budget;
            found.grants += scan.take.grants.len();
            if !scan.take.grants.is_empty() {
                let reserved = self.reserved.entry(queue).or_default();
                reserved.extend(scan.take.grants.iter().map(|grant| grant.offset));
                found.takes.push(scan.take);
            }
            if found.grants == wish.batch || budget == 0 {
                found.more = true;
                break;
            }
        }
        self.turn = self.turn.wrapping_add(1);
        Ok(found)
    }

    fn scan_queue(&mut self, state: &State, scan: &mut Scan<'_>) -> io::Result<()> {
        let queue = scan.take.queue;
        for index in 0..scan.view.ready.len() {
            if scan.room == 0 {
                return Ok(());
            }
            let ready = scan.view.ready[index];
            let wanted = scan.wish.filter.may_match(ready.unit.tag_hash);
            if wanted && !self.is_reserved(queue, ready.offset) {
                scan.grant(ready.offset, ready.unit);
            }
        }
        for index in 0..scan.view.free.len() {
            let (from, to) = scan.view.free[index];
            self.scan_range(state, scan, from, to)?;
        }
        if scan.view.in_flight >= PENDING_PER_QUEUE_MAX {
            return Ok(());
        }
        self.scan_new(state, scan)
    }

    /// Offsets below the group's `next` that were passed over for other members.
    fn scan_range(
        &mut self,
        state: &State,
        scan: &mut Scan<'_>,
        from: QueueOffset,
        to: QueueOffset,
    ) -> io::Result<()> {
        let queue = scan.take.queue;
        let mut at = from;
        while at < to && scan.room > 0 && scan.budget > 0 {
            let want = SCAN_CHUNK.min(usize::try_from(to.since(at)).unwrap_or(SCAN_CHUNK));
            let units = state.units(scan.wish.topic, queue, at, want)?;
            if units.is_empty() {
                break;
            }
            for unit in units {
                if scan.room == 0 || scan.budget == 0 {
                    break;
                }
                scan.budget -= 1;
                if !self.is_reserved(queue, at) {
                    if scan.wish.filter.may_match(unit.tag_hash) {
                        scan.grant(at, unit);
                    } else if scan.nobody_wants(unit) {
                        scan.skip(at);
                    }
                }
                at = at.next();
            }
        }
        Ok(())
    }

    /// Offsets from the group's `next` on; a run at its start that nobody wants is remembered, so
    /// that the next receive does not look at it again.
    fn scan_new(&mut self, state: &State, scan: &mut Scan<'_>) -> io::Result<()> {
        let queue = scan.take.queue;
        let end = state.queue_end(scan.wish.topic, queue);
        let mut at = scan.view.next;
        if let Some((skip, _)) = self.skipped.get(&queue) {
            if skip.from <= at && skip.to > at {
                at = skip.to;
            } else if skip.to <= at {
                self.skipped.remove(&queue);
            }
        }
        let mut in_front = true;
        while at < end && scan.room > 0 && scan.budget > 0 {
            let units = state.units(scan.wish.topic, queue, at, SCAN_CHUNK)?;
            assert!(!units.is_empty(), "queue {queue} has no unit at {at} though it ends at {end}");
            for unit in units {
                if scan.room == 0 || scan.budget == 0 {
                    break;
                }
                scan.budget -= 1;
                if self.is_reserved(queue, at) {
                    in_front = false;
                } else if scan.wish.filter.may_match(unit.tag_hash) {
                    in_front = false;
                    scan.grant(at, unit);
                } else if !scan.nobody_wants(unit) {
                    in_front = false;
                } else if in_front {
                    let run = Skip { from: scan.view.next, to: at.next() };
                    self.skipped.entry(queue).or_insert((run, scan.wish.now)).0 = run;
                } else {
                    scan.skip(at);
                }
                at = at.next();
            }
        }
        if let Some((skip, _)) = self.skipped.get(&queue)
            && !scan.take.grants.is_empty()
        {
            scan.take.skips.push(*skip);
        }
        Ok(())
    }

    fn is_reserved(&self, queue: QueueId, offset: QueueOffset) -> bool {
        self.reserved.get(&queue).is_some_and(|reserved| reserved.contains(&offset))
    }

    /// Skips that have waited long enough, or are long enough, for an entry of their own (rule
    /// R21), with the subscription version that they hold for.
    pub(super) fn overdue_skips(&mut self, now: Duration) -> Option<(u32, Vec<Take>)> {
        let overdue = |(_, (skip, since)): &(&QueueId, &(Skip, Duration))| {
            now.saturating_sub(*since) >= SKIP_AGE || skip.to.since(skip.from) >= SKIP_LENGTH
        };
        let mut queues: Vec<QueueId> =
            self.skipped.iter().filter(overdue).map(|(queue, _)| *queue).collect();
        queues.sort_unstable();
        let take = |queue: QueueId| {
            let (skip, _) = self.skipped.remove(&queue)?;
            Some(Take { queue, skips: vec![skip], grants: Vec::new() })
        };
        let takes: Vec<Take> = queues.into_iter().filter_map(take).collect();
        (!takes.is_empty()).then_some((self.skip_version, takes))
    }

    /// The checkout is over, whatever came of it.
    pub(super) fn settle(&mut self, takes: &[(QueueId, Vec<QueueOffset>)]) {
        for (queue, offsets) in takes {
            let Some(reserved) = self.reserved.get_mut(queue) else { continue };
            for offset in offsets {
                reserved.remove(offset);
            }
            if reserved.is_empty() {
                self.reserved.remove(queue);
            }
        }
    }
}

impl Scan<'_> {
    fn grant(&mut self, offset: QueueOffset, unit: Unit) {
        self.take.grants.push(Grant { offset, unit });
        self.room -= 1;
    }

    fn nobody_wants(&self, unit: Unit) -> bool {
        !self
            .live
            .iter()
            .any(|filter| filter.as_ref().is_none_or(|filter| filter.may_match(unit.tag_hash)))
    }

    fn skip(&mut self, at: QueueOffset) {
        match self.take.skips.last_mut() {
            Some(last) if last.to == at => last.to = at.next(),
            _ => self.take.skips.push(Skip { from: at, to: at.next() }),
        }
    }
}
