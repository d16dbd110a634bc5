//! A desk for each group and topic: which messages are about to be handed out, and which nobody
//! wants. Local to the leader and lost with it; apply decides in the end.

mod hunt;
mod lines;
mod scan;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::lines::{Lines, Taken};
use self::scan::Scan;
use self::verdicts::{Asks, Judge, Verdicts};
use crate::base::{GroupId, QueueId, QueueOffset, TopicId};
use crate::command::{Order, Skip, Take};
use crate::filter::Filter;
use crate::machine::{PENDING_PER_QUEUE_MAX, State};
use crate::message::MessageKind;

pub(super) use self::hunt::Hunt;
pub(super) use self::verdicts::{Asked, Judged, Live, Wants};

/// Units read from a queue at a time.
const SCAN_CHUNK: usize = 256;
/// Units looked at in one receive before it answers with what it has; a long run of messages that
/// nobody wants must not hold the state for long.
const SCAN_MAX: usize = 8192;
/// Skips that one checkout carries at most, so that many checkouts fit into one entry.
const SKIPS_MAX: usize = 64;
/// Unwanted runs of a queue that are remembered at most. What is beyond is looked at again when half
/// of them are logged.
const RUNS_MAX: usize = 1024;

/// Unwanted runs get an entry of their own after this time …
const SKIP_AGE: Duration = Duration::from_secs(10);
/// … or when they are this long together (rule R21 gives both numbers).
const SKIP_LENGTH: u64 = 64 << 10;

pub(super) type SharedDesk = Arc<Mutex<Desk>>;

/// All desks of a node.
#[derive(Debug, Default)]
pub(super) struct Desks {
    by_pair: Mutex<HashMap<(GroupId, TopicId), SharedDesk>>,
}

#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Offered in a checkout that is under way, with the hash of its message group.
    reserved: HashMap<QueueId, BTreeMap<QueueOffset, u64>>,
    shared: SharedLines,
    /// Runs that no live filter wants, not logged yet: start to end, exclusive.
    unwanted: HashMap<QueueId, BTreeMap<QueueOffset, QueueOffset>>,
    /// By the normal text of a filter.
    progress: HashMap<String, Progress>,
    /// The first message of a queue that nobody wants and that is in no run, for want of room or
    /// because its skip was not logged.
    missed: BTreeMap<QueueId, QueueOffset>,
    /// The group's live filters, once they were read.
    live: Arc<Live>,
    verdicts: Verdicts,
    /// Whoever judges messages holds it, so that members who want the same do not read the same
    /// records at once.
    judging: Arc<tokio::sync::Mutex<()>>,
    /// Since when (monotonic) a queue has had unwanted runs to log, as the rounds saw it.
    unlogged: HashMap<QueueId, Duration>,
    /// The subscriptions that what is known of wishes holds for.
    version: u32,
    /// How often the group had been reset: they hold for that as well.
    epoch: u32,
    /// The queue to look at first, so that all get their turn.
    turn: u32,
    /// Queues that give nothing more until what they have many of is done (rule R13).
    capped: BTreeSet<QueueId>,
}

/// What all filters know of message groups in order.
#[derive(Debug)]
struct SharedLines {
    order: Order,
    /// Lines of which something is offered in a checkout under way, with how many messages.
    reserved: BTreeMap<u64, usize>,
    /// How many lines the state had freed at the last look.
    freed: u64,
}

impl Default for SharedLines {
    fn default() -> Self {
        Self { order: Order::Off, reserved: BTreeMap::new(), freed: 0 }
    }
}

/// What is known of one filter, so that no receive looks at the same messages again.
#[derive(Debug, Default)]
struct Progress {
    /// Below this offset nothing matches that was never handed out.
    looked: HashMap<QueueId, QueueOffset>,
    lines: Lines,
}

/// What one receive may take, and what it wants.
#[derive(Debug)]
pub(super) struct Wish<'a> {
    pub(super) group: GroupId,
    pub(super) topic: TopicId,
    pub(super) queues: u32,
    pub(super) filter: &'a Filter,
    /// The filter's normal text.
    pub(super) filter_text: &'a str,
    pub(super) batch: usize,
}

/// What a scan found; the grants are reserved until [`Desk::settle`].
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) takes: Vec<Take>,
    pub(super) grants: usize,
    /// The scan stopped before it saw everything.
    pub(super) more: bool,
    /// How often the group had been reset when this was found: it holds for that only (rule R4).
    pub(super) epoch: u32,
    /// What has to be judged before more can be said; see [`Desk::note`].
    pub(super) ask: Vec<Asked>,
    /// By whom, and under which subscriptions.
    pub(super) live: Arc<Live>,
    pub(super) version: u32,
    /// The place of the wish's filter among the live ones.
    pub(super) own: usize,
}

/// What skips were computed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HoldsFor {
    /// Of the subscriptions.
    pub(super) version: u32,
    /// How often the group had been reset.
    pub(super) epoch: u32,
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

    /// At step-down: what was known locally is void.
    pub(super) fn clear(&self) {
        self.by_pair.lock().clear();
    }

    /// Drops the desks of topics and groups that are gone.
    pub(super) fn keep(&self, exists: impl Fn(GroupId, TopicId) -> bool) {
        self.by_pair.lock().retain(|(group, topic), _| exists(*group, *topic));
    }
}

impl Desk {
    /// Picks what this receive may have, redeliveries first, and reserves it.
    pub(super) fn find(
        &mut self,
        state: &State,
        wish: &Wish<'_>,
        hunt: &mut Hunt,
    ) -> io::Result<Found> {
        let found = self.look(state, wish, hunt, SKIPS_MAX)?;
        // Only now: a queue that cannot be read must not leave others reserved.
        for take in &found.takes {
            let reserved = self.reserved.entry(take.queue).or_default();
            let ordered = self.shared.order != Order::Off;
            for grant in &take.grants {
                let line = if ordered { grant.unit.group_hash } else { 0 };
                reserved.insert(grant.offset, line);
                if line != 0 {
                    *self.shared.reserved.entry(line).or_default() += 1;
                }
            }
        }
        Ok(found)
    }

    /// What [`Self::find`] would find. Reserves nothing, and what it saw is found by the next
    /// [`Self::find`].
    pub(super) fn peek(
        &mut self,
        state: &State,
        wish: &Wish<'_>,
        hunt: &mut Hunt,
    ) -> io::Result<Found> {
        self.look(state, wish, hunt, 0)
    }

    /// `skips` of the unwanted runs go with what is found.
    fn look(
        &mut self,
        state: &State,
        wish: &Wish<'_>,
        hunt: &mut Hunt,
        skips: usize,
    ) -> io::Result<Found> {
        let own = self.follow_filters(state, wish);
        hunt.follow((self.version, self.epoch));
        let live = self.live.clone();
        let (version, epoch) = (self.version, self.epoch);
        let mut found = Found { version, epoch, live: live.clone(), ..Found::default() };
        // Given up this very moment, and live again before the next look.
        let Some(own) = own else { return Ok(Found { more: true, ..found }) };
        found.own = own;
        self.note_freed(state, wish);
        self.look_back();
        let progress = self.progress.entry(wish.filter_text.to_owned()).or_default();
        let judge = Judge { filter: wish.filter, own, live: &live, verdicts: &self.verdicts };
        let (mut taken, mut asks) = (Taken::new(), Asks::default());
        let place = (state, wish, &self.shared);
        let out = (&mut taken, &mut asks, &mut self.unwanted);
        found.takes = lines::free_ones(place, &mut progress.lines, judge, out)?;
        found.grants = found.takes.iter().map(|take| take.grants.len()).sum();
        if found.grants == wish.batch || !asks.list.is_empty() {
            return Ok(Found { more: true, ask: asks.list, ..found });
        }
        self.look_at_queues((state, wish), (hunt, &mut taken), &mut found, skips)?;
        self.turn = self.turn.wrapping_add(1);
        Ok(found)
    }

    /// One queue after the other, until there is enough, or something has to be judged first.
    fn look_at_queues(
        &mut self,
        (state, wish): (&State, &Wish<'_>),
        (hunt, taken): (&mut Hunt, &mut Taken),
        found: &mut Found,
        mut skips: usize,
    ) -> io::Result<()> {
        let live = self.live.clone();
        let judge =
            Judge { filter: wish.filter, own: found.own, live: &live, verdicts: &self.verdicts };
        let progress = self.progress.entry(wish.filter_text.to_owned()).or_default();
        let (mut budget, mut asks) = (SCAN_MAX, Asks::default());
        let urgent_first = takes_priorities(state, wish.topic);
        for step in 0..wish.queues {
            let queue = if urgent_first {
                QueueId::new(wish.queues - 1 - step)
            } else {
                QueueId::new((self.turn.wrapping_add(step)) % wish.queues)
            };
            let unwanted = self.unwanted.entry(queue).or_default();
            let mut scan = Scan {
                state,
                judge,
                wish,
                queue,
                reserved: self.reserved.get(&queue),
                shared: &self.shared,
                lines: &mut progress.lines,
                taken: &mut *taken,
                unwanted: &mut *unwanted,
                hunt: &mut *hunt,
                asks: &mut asks,
                looked: progress.looked.get(&queue).copied().unwrap_or_default(),
                matched: false,
                asking: false,
                missed: self.missed.get(&queue).copied(),
                full: false,
                capped: false,
                edge: None,
                grants: Vec::new(),
                room: wish.batch - found.grants,
                budget,
            };
            scan.run()?;
            budget = scan.budget;
            let (looked, grants, capped) = (scan.looked, scan.grants, scan.capped);
            if let Some(missed) = scan.missed {
                self.missed.insert(queue, missed);
            }
            progress.looked.insert(queue, looked);
            note_capped(&mut self.capped, (state, wish), queue, (capped, grants.is_empty()));
            found.grants += grants.len();
            // What is taken now may make room for what was not.
            found.more |= capped && found.grants > 0;
            if !grants.is_empty() {
                let skips = take_skips(unwanted, &mut skips);
                found.takes.push(Take { queue, skips, grants });
            }
            if found.grants == wish.batch || budget == 0 || !asks.list.is_empty() {
                found.more = true;
                break;
            }
        }
        found.ask = asks.list;
        Ok(())
    }

    /// The group's live filters as the state has them now, and which of them is the wish's; what was
    /// known under others, or before a reset, is void. What is reserved stays so until its checkout is
    /// over, which gets nothing then.
    fn follow_filters(&mut self, state: &State, wish: &Wish<'_>) -> Option<usize> {
        let (version, expressions) = state.subscriptions(wish.group, wish.topic);
        let epoch = state.epoch(wish.group, wish.topic);
        if (version, epoch) != (self.version, self.epoch) {
            self.unwanted.clear();
            self.missed.clear();
            self.unlogged.clear();
            self.progress.clear();
            self.capped.clear();
            self.verdicts.clear();
            self.live = Arc::new(Live::parse(expressions));
            (self.version, self.epoch) = (version, epoch);
        }
        expressions.binary_search_by(|own| own.as_str().cmp(wish.filter_text)).ok()
    }

    /// Where there is room for unwanted runs again, what was missed is looked at again.
    fn look_back(&mut self) {
        let Self { missed, unwanted, progress, .. } = self;
        missed.retain(|queue, at| {
            if unwanted.get(queue).is_some_and(|runs| runs.len() > RUNS_MAX / 2) {
                return true;
            }
            for looked in progress.values_mut().filter_map(|one| one.looked.get_mut(queue)) {
                *looked = (*looked).min(*at);
            }
            false
        });
    }

    /// What the log did not take in as skipped.
    pub(super) fn note_not_skipped(&mut self, takes: &[Take]) {
        for take in takes {
            let Some(first) = take.skips.iter().map(|skip| skip.from).min() else { continue };
            let missed = self.missed.entry(take.queue).or_insert(first);
            *missed = first.min(*missed);
        }
    }

    /// Whoever holds it may judge what a look of this desk asks for.
    pub(super) fn judging(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.judging.clone()
    }

    /// Takes in what the records said under the subscriptions of that version. Answers how many
    /// message groups others may have to look at again.
    pub(super) fn note(&mut self, version: u32, judged: &[Judged]) -> usize {
        if version != self.version {
            return 0;
        }
        let mut freed = BTreeSet::new();
        for Judged { asked, wants } in judged {
            self.verdicts.note((asked.queue, asked.offset), *wants);
            let line = asked.unit.group_hash;
            if *wants == 0 && line != 0 && self.shared.order != Order::Off {
                freed.insert(line);
            }
        }
        freed.iter().for_each(|line| self.look_again(*line));
        freed.len()
    }

    /// Looks at the lines that became free since the last look, or at all of them when it is not
    /// known which.
    fn note_freed(&mut self, state: &State, wish: &Wish<'_>) {
        let pair = (wish.group, wish.topic);
        self.shared.order = state.order(wish.group, wish.topic);
        let (freed, count) = state.freed_since(pair, self.shared.freed);
        self.shared.freed = count;
        match freed {
            Some(freed) => freed.into_iter().for_each(|line| self.look_again(line)),
            None => self.look_at_all_lines(),
        }
    }

    fn look_again(&mut self, line: u64) {
        self.progress.values_mut().for_each(|progress| progress.lines.look_again(line));
    }

    /// Now and then, for lines that became free without anybody saying so: what held them up was
    /// taken by retention.
    pub(super) fn look_at_all_lines(&mut self) {
        self.progress.values_mut().for_each(|progress| progress.lines.look_at_all());
    }

    /// Unwanted runs that have waited long enough, or are long enough, for an entry of their own
    /// (rule R21), with what they hold for.
    pub(super) fn overdue_skips(&mut self, now: Duration) -> Option<(HoldsFor, Vec<Take>)> {
        let Self { unwanted, unlogged, .. } = self;
        unwanted.retain(|_, runs| !runs.is_empty());
        unlogged.retain(|queue, _| unwanted.contains_key(queue));
        let mut queues: Vec<QueueId> = unwanted.keys().copied().collect();
        queues.sort_unstable();
        let mut left = SKIPS_MAX;
        let mut takes = Vec::new();
        for queue in queues {
            let Some(runs) = unwanted.get_mut(&queue) else { continue };
            let since = *unlogged.entry(queue).or_insert(now);
            let length: u64 = runs.iter().map(|(from, to)| to.since(*from)).sum();
            let is_long = length >= SKIP_LENGTH || runs.len() >= RUNS_MAX;
            if now.saturating_sub(since) < SKIP_AGE && !is_long {
                continue;
            }
            let skips = take_skips(runs, &mut left);
            if !skips.is_empty() {
                takes.push(Take { queue, skips, grants: Vec::new() });
            }
        }
        let holds_for = HoldsFor { version: self.version, epoch: self.epoch };
        (!takes.is_empty()).then_some((holds_for, takes))
    }

    /// The checkout is over, whatever came of it.
    pub(super) fn settle(&mut self, takes: &[(QueueId, Vec<QueueOffset>)]) {
        for (queue, offsets) in takes {
            let Some(reserved) = self.reserved.get_mut(queue) else { continue };
            let lines = offsets.iter().filter_map(|offset| reserved.remove(offset));
            let lines: Vec<u64> = lines.filter(|line| *line != 0).collect();
            if reserved.is_empty() {
                self.reserved.remove(queue);
            }
            for line in lines {
                let left = self.shared.reserved.get_mut(&line).expect("reserved with its messages");
                *left -= 1;
                if *left == 0 {
                    self.shared.reserved.remove(&line);
                    self.look_again(line);
                }
            }
        }
    }
}

/// The first of the runs, as many as are left to take, as skips of a checkout.
fn take_skips(runs: &mut BTreeMap<QueueOffset, QueueOffset>, left: &mut usize) -> Vec<Skip> {
    let mut skips = Vec::new();
    while *left > 0
        && let Some((from, to)) = runs.pop_first()
    {
        *left -= 1;
        skips.push(Skip { from, to });
    }
    skips
}

/// The queues of such a topic are its priorities, the last one the most urgent.
fn takes_priorities(state: &State, topic: TopicId) -> bool {
    state.topic_by_id(topic).is_some_and(|topic| topic.kinds.contains(&MessageKind::Priority))
}

/// Says once that a queue gives nothing more (rule R13).
fn note_capped(
    known: &mut BTreeSet<QueueId>,
    (state, wish): (&State, &Wish<'_>),
    queue: QueueId,
    (capped, nothing): (bool, bool),
) {
    if !capped {
        if !nothing {
            known.remove(&queue);
        }
        return;
    }
    if known.insert(queue) {
        let topic = state.topic_by_id(wish.topic).map(|topic| topic.name.to_string());
        let group = state.group_by_id(wish.group).map(|group| group.name.to_string());
        tracing::warn!(
            topic,
            group,
            %queue,
            "{PENDING_PER_QUEUE_MAX} gaps of messages that are not handed out: a slow message group \
             or a filter holds up the queue until some of its messages are acknowledged"
        );
    }
}

/// Adds one message to the runs; false when there is no room.
fn add_to_runs(runs: &mut BTreeMap<QueueOffset, QueueOffset>, at: QueueOffset) -> bool {
    let full = runs.len() >= RUNS_MAX;
    let before = runs.range_mut(..=at).next_back();
    if let Some((_, to)) = before.filter(|(_, to)| **to >= at) {
        *to = (*to).max(at.next());
        return true;
    }
    if !full {
        runs.insert(at, at.next());
    }
    !full
}

#[cfg(test)]
mod tests;
