//! A desk for each group and topic: which messages are about to be handed out, and which nobody
//! wants. Local to the leader and lost with it; apply decides in the end.

mod lines;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::lines::{Lines, Taken, Wanted};
use crate::base::{GroupId, QueueId, QueueOffset, TopicId};
use crate::command::{Grant, Order, Skip, Take, Unit};
use crate::filter::TagFilter;
use crate::machine::{PENDING_PER_QUEUE_MAX, QueueView, State, VIEW_MAX};
use crate::message::MessageKind;

/// Units read from a queue at a time.
const SCAN_CHUNK: usize = 256;
/// Units looked at in one receive before it answers with what it has; a long run of messages that
/// nobody wants must not hold the state for long.
const SCAN_MAX: usize = 8192;
/// Skips that one checkout carries at most, so that many checkouts fit into one entry.
const SKIPS_MAX: usize = 64;
/// Unwanted runs of a queue that are remembered at most. One beyond is not logged as skipped, which
/// costs the group a gap and no message.
const RUNS_MAX: usize = 1024;
/// Look-alikes of a filter that are remembered at most; forgetting them costs reading them again.
const LOOK_ALIKES_MAX: usize = 65_536;

/// Unwanted runs get an entry of their own after this time …
const SKIP_AGE: Duration = Duration::from_secs(10);
/// … or when they are this long together (rule R21 gives both numbers).
const SKIP_LENGTH: u64 = 64 << 10;

type SharedDesk = Arc<Mutex<Desk>>;

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
    /// Since when (monotonic) a queue has had unwanted runs to log, as the rounds saw it.
    unlogged: HashMap<QueueId, Duration>,
    /// The subscriptions that `unwanted` and `progress` hold for.
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
    /// Messages whose tag has the hash of a wanted tag and is another.
    look_alikes: BTreeSet<(QueueId, QueueOffset)>,
    lines: Lines,
}

/// What one receive may take, and what it wants.
#[derive(Debug)]
pub(super) struct Wish<'a> {
    pub(super) group: GroupId,
    pub(super) topic: TopicId,
    pub(super) queues: u32,
    pub(super) filter: &'a TagFilter,
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

/// One queue's part of a scan.
struct Scan<'a> {
    state: &'a State,
    live: &'a [Option<TagFilter>],
    wish: &'a Wish<'a>,
    queue: QueueId,
    reserved: Option<&'a BTreeMap<QueueOffset, u64>>,
    shared: &'a SharedLines,
    lines: &'a mut Lines,
    taken: &'a mut Taken,
    unwanted: &'a mut BTreeMap<QueueOffset, QueueOffset>,
    look_alikes: &'a mut BTreeSet<(QueueId, QueueOffset)>,
    /// Moves on over what does not match, and stays at the first that does.
    looked: QueueOffset,
    matched: bool,
    /// There is no room to note another message of a line, or apply would not give the next one.
    full: bool,
    /// Apply would not give a message that was never handed out: the queue has as many gaps as may
    /// be, and it would be one more.
    capped: bool,
    /// What may be had behind a grant of this scan: apply takes them one after the other.
    edge: Option<QueueOffset>,
    grants: Vec<Grant>,
    room: usize,
    budget: usize,
}

impl Desk {
    /// Picks what this receive may have, redeliveries first, and reserves it.
    pub(super) fn find(&mut self, state: &State, wish: &Wish<'_>) -> io::Result<Found> {
        let found = self.look(state, wish, SKIPS_MAX)?;
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

    /// Whether [`Self::find`] would find something, or has more to look at. Reserves nothing, and
    /// what it saw is found by the next [`Self::find`].
    pub(super) fn peek(&mut self, state: &State, wish: &Wish<'_>) -> io::Result<bool> {
        let found = self.look(state, wish, 0)?;
        Ok(found.grants > 0 || found.more)
    }

    /// `skips` of the unwanted runs go with what is found.
    fn look(&mut self, state: &State, wish: &Wish<'_>, mut skips: usize) -> io::Result<Found> {
        let live = self.live_filters(state, wish);
        self.note_freed(state, wish);
        let progress = self.progress.entry(wish.filter_text.to_owned()).or_default();
        let mut found = Found { epoch: self.epoch, ..Found::default() };
        let mut budget = SCAN_MAX;
        let mut taken = Taken::new();
        let look_alikes = &progress.look_alikes;
        let wants = |queue, offset, unit: Unit| match wish.filter.may_match(unit.tag_hash) {
            true if look_alikes.contains(&(queue, offset)) => Wanted::Nowhere,
            true => Wanted::Here,
            false if nobody_wants(&live, unit) => Wanted::Nowhere,
            false => Wanted::Elsewhere,
        };
        let place = (state, wish, &self.shared);
        found.takes = lines::free_ones(place, &mut progress.lines, wants, &mut taken)?;
        found.grants = found.takes.iter().map(|take| take.grants.len()).sum();
        if found.grants == wish.batch {
            found.more = true;
            return Ok(found);
        }
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
                live: &live,
                wish,
                queue,
                reserved: self.reserved.get(&queue),
                shared: &self.shared,
                lines: &mut progress.lines,
                taken: &mut taken,
                unwanted: &mut *unwanted,
                look_alikes: &mut progress.look_alikes,
                looked: progress.looked.get(&queue).copied().unwrap_or_default(),
                matched: false,
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
            progress.looked.insert(queue, looked);
            note_capped(&mut self.capped, (state, wish), queue, (capped, grants.is_empty()));
            found.grants += grants.len();
            // What is taken now may make room for what was not.
            found.more |= capped && found.grants > 0;
            if !grants.is_empty() {
                let skips = take_skips(unwanted, &mut skips);
                found.takes.push(Take { queue, skips, grants });
            }
            if found.grants == wish.batch || budget == 0 {
                found.more = true;
                break;
            }
        }
        self.turn = self.turn.wrapping_add(1);
        Ok(found)
    }

    /// Those of the group's members; what was known under others, or before a reset, is void. What is
    /// reserved stays so until its checkout is over, which gets nothing then. `None` is what cannot be
    /// parsed: not written by this version, so it may want anything.
    fn live_filters(&mut self, state: &State, wish: &Wish<'_>) -> Vec<Option<TagFilter>> {
        let (version, expressions) = state.subscriptions(wish.group, wish.topic);
        let epoch = state.epoch(wish.group, wish.topic);
        if (version, epoch) != (self.version, self.epoch) {
            self.unwanted.clear();
            self.unlogged.clear();
            self.progress.clear();
            self.capped.clear();
            (self.version, self.epoch) = (version, epoch);
        }
        expressions.iter().map(|text| TagFilter::parse(text).ok()).collect()
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

    /// The message's tag is none of the filter's, though it has the hash of one.
    pub(super) fn note_look_alike(&mut self, filter: &str, queue: QueueId, offset: QueueOffset) {
        let known = &mut self.progress.entry(filter.to_owned()).or_default().look_alikes;
        if known.len() >= LOOK_ALIKES_MAX {
            known.clear();
        }
        known.insert((queue, offset));
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
            if now.saturating_sub(since) < SKIP_AGE && length < SKIP_LENGTH {
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

fn nobody_wants(live: &[Option<TagFilter>], unit: Unit) -> bool {
    let may_match = |filter: &TagFilter| filter.may_match(unit.tag_hash);
    !live.iter().any(|filter| filter.as_ref().is_none_or(may_match))
}

impl Scan<'_> {
    fn run(&mut self) -> io::Result<()> {
        let view = self.state.view(self.wish.group, self.wish.topic, self.queue);
        self.visible_again(&view);
        // At the cap apply would refuse whatever was not handed out before.
        if view.pending >= PENDING_PER_QUEUE_MAX {
            return Ok(());
        }
        self.passed_by(view.next)?;
        let end = self.state.queue_end(self.wish.topic, self.queue);
        self.range(view.next.max(self.looked), end)
    }

    fn is_over(&self) -> bool {
        self.room == 0 || self.budget == 0 || self.full
    }

    /// All of them are looked at, however many there are: they are in memory, at most
    /// [`PENDING_PER_QUEUE_MAX`], and a wanted one may stand behind any number of others.
    fn visible_again(&mut self, view: &QueueView) {
        let pair = (self.wish.group, self.wish.topic);
        let mut page = view.ready.clone();
        while let Some(last) = page.last().map(|ready| ready.offset) {
            for ready in &page {
                if self.room == 0 {
                    return;
                }
                if self.is_reserved(ready.offset) {
                    continue;
                }
                if !self.wants(ready.offset, ready.unit) {
                    self.nobody_takes_again(ready.offset, ready.unit);
                    continue;
                }
                match self.line(ready.unit) {
                    Some(line) => self.again_in_line(line, (ready.offset, ready.unit)),
                    None => self.grant(ready.offset, ready.unit),
                }
            }
            page = self.state.ready_from(pair, self.queue, last.next(), VIEW_MAX);
        }
    }

    /// Offsets below the group's `next` that were passed over for other members.
    fn passed_by(&mut self, next: QueueOffset) -> io::Result<()> {
        let pair = (self.wish.group, self.wish.topic);
        let mut from = self.looked;
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
        let wanted = self.wants(at, unit);
        if let Some(line) = self.line(unit)
            && (wanted || !self.nobody_wants(unit) && !self.is_look_alike(at))
        {
            self.look_at_line(line, (at, unit), wanted);
            return;
        }
        if wanted {
            self.matched = true;
            if !self.is_reserved(at) && self.fits(at) {
                self.grant_new(at, unit);
            }
            return;
        }
        if self.nobody_wants(unit) {
            self.note_unwanted(at);
        }
        self.look_behind(at.next());
    }

    /// The end of the unwanted run that `at` is in.
    fn behind_unwanted(&mut self, at: QueueOffset) -> Option<QueueOffset> {
        let (_, to) = self.unwanted.range(..=at).next_back()?;
        let to = *to;
        if to <= at {
            return None;
        }
        self.look_behind(to);
        Some(to)
    }

    fn look_behind(&mut self, offset: QueueOffset) {
        if !self.matched {
            self.looked = self.looked.max(offset);
        }
    }

    fn wants(&self, at: QueueOffset, unit: Unit) -> bool {
        self.wish.filter.may_match(unit.tag_hash) && !self.is_look_alike(at)
    }

    fn is_look_alike(&self, at: QueueOffset) -> bool {
        self.look_alikes.contains(&(self.queue, at))
    }

    fn is_reserved(&self, offset: QueueOffset) -> bool {
        self.reserved.is_some_and(|reserved| reserved.contains_key(&offset))
    }

    /// Apply would give this one, which was never handed out; else the scan is over.
    fn fits(&mut self, at: QueueOffset) -> bool {
        let pair = (self.wish.group, self.wish.topic);
        let fits = self.edge == Some(at) || self.state.fits(pair, self.queue, at);
        self.capped |= !fits;
        self.full |= !fits;
        fits
    }

    fn grant_new(&mut self, offset: QueueOffset, unit: Unit) {
        self.grant(offset, unit);
        self.edge = Some(offset.next());
    }

    fn grant(&mut self, offset: QueueOffset, unit: Unit) {
        self.grants.push(Grant { offset, unit });
        self.room -= 1;
    }

    fn nobody_wants(&self, unit: Unit) -> bool {
        nobody_wants(self.live, unit)
    }

    fn note_unwanted(&mut self, at: QueueOffset) {
        let full = self.unwanted.len() >= RUNS_MAX;
        let before = self.unwanted.range_mut(..=at).next_back();
        if let Some((_, to)) = before.filter(|(_, to)| **to >= at) {
            *to = (*to).max(at.next());
        } else if !full {
            self.unwanted.insert(at, at.next());
        }
    }
}

#[cfg(test)]
mod tests;
