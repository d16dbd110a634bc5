//! Everything that applied entries have led to, and how it is read.

use std::io;

use bytes::Bytes;

use super::begins::Begins;
use super::conflicts::{Conflict, Conflicts};
use super::consume_queue::{ConsumeQueues, UnitsCursor};
use super::dead_letters::DeadLetters;
use super::dedup::Dedup;
use super::deliveries::{
    CheckoutInfo, Deliveries, HandleState, Holder, Lag, QueueView, ReadyMessage, Renewal,
    ResetPreview, Standing,
};
use super::extents::Extents;
use super::groups::{Group, Groups};
use super::head::Head;
use super::instances::Instances;
use super::late::LateUnits;
use super::retention::{Front, Mark, Marks};
use super::stored_offsets::StoredOffsets;
use super::subscriptions::Subscriptions;
use super::timers::{Ahead, DelayedAt, Most, Timers};
use super::topics::{Topic, Topics};
use super::transactions::{DecidedMemory, Half, Halves};
use crate::base::{
    CheckoutId, ClientId, GroupId, GroupName, LogIndex, LogPosition, QueueId, QueueOffset, Term,
    TopicId, TopicName, UtcMillis,
};
use crate::command::{Decided, Found, Granted, Handle, Order, Retention, Transaction, Unit};

/// The machine's state. Reading it never blocks on anything but the files of queue units.
#[derive(Debug)]
pub struct State {
    pub(super) head: Head,
    pub(super) topics: Topics,
    pub(super) groups: Groups,
    pub(super) queues: ConsumeQueues,
    pub(super) subscriptions: Subscriptions,
    pub(super) deliveries: Deliveries,
    pub(super) dedup: Dedup,
    pub(super) marks: Marks,
    pub(super) timers: Timers,
    pub(super) halves: Halves,
    pub(super) decided: DecidedMemory,
    pub(super) late: LateUnits,
    pub(super) dead: DeadLetters,
    pub(super) instances: Instances,
    pub(super) begins: Begins,
    pub(super) stored: StoredOffsets,
    pub(super) conflicts: Conflicts,
    /// The last audit: volatile, outside the state hash.
    pub(super) audit: Option<(LogIndex, u64)>,
}

impl State {
    /// Before the first entry. `seed` is any number, drawn by this process for itself.
    pub(super) fn empty(extents: Extents, seed: u64) -> Self {
        Self {
            head: Head::default(),
            topics: Topics::default(),
            groups: Groups::default(),
            queues: ConsumeQueues::new(extents),
            subscriptions: Subscriptions::default(),
            deliveries: Deliveries::default(),
            dedup: Dedup::new(seed),
            marks: Marks::default(),
            timers: Timers::new(seed),
            halves: Halves::default(),
            decided: DecidedMemory::default(),
            late: LateUnits::default(),
            dead: DeadLetters::default(),
            instances: Instances::default(),
            begins: Begins::default(),
            stored: StoredOffsets::default(),
            conflicts: Conflicts::default(),
            audit: None,
        }
    }

    /// The last applied entry.
    pub fn applied(&self) -> Option<(LogIndex, Term)> {
        self.head.applied
    }

    /// The stamp of the last applied entry; 0 before the first.
    pub fn stamp(&self) -> UtcMillis {
        self.head.stamp
    }

    /// Where the frame behind the last applied entry starts.
    pub fn log_end(&self) -> LogPosition {
        self.head.log_end
    }

    /// The membership in force and the entry that set it.
    pub fn membership(&self) -> Option<(LogIndex, Term, &Bytes)> {
        self.head.membership.as_ref().map(|(index, term, bytes)| (*index, *term, bytes))
    }

    /// A hash of every replicated field. Costs a copy of the small tables: for audits and tests.
    pub fn hash(&self) -> u64 {
        self.image().hash()
    }

    /// A hash of every queue unit that is held here, read from the files. `InvalidData` when they
    /// are not the ones that were appended.
    pub fn units_hash(&self) -> io::Result<u64> {
        self.queues.units_hash()
    }

    /// Checks some units; see [`UnitsCursor`]. True at the end of a round.
    pub fn check_units(&self, cursor: &mut UnitsCursor, budget: u64) -> io::Result<bool> {
        self.queues.check_some(cursor, budget)
    }

    /// The last audit entry applied since this process started, and the state's hash there.
    pub fn audit(&self) -> Option<(LogIndex, u64)> {
        self.audit
    }

    pub fn founded(&self) -> Option<&Found> {
        self.head.founded.as_ref()
    }

    pub fn topic(&self, name: &TopicName) -> Option<&Topic> {
        self.topics.by_name(name)
    }

    pub fn topic_by_id(&self, id: TopicId) -> Option<&Topic> {
        self.topics.get(id).ok()
    }

    /// In the order of names, from the one behind `after`, which need not exist. Skips nothing: a
    /// page costs the same at the end of the list as at its start.
    pub fn topics_after(&self, after: Option<&TopicName>) -> impl Iterator<Item = &Topic> {
        self.topics.iter_after(after)
    }

    pub fn topics_count(&self) -> usize {
        self.topics.len()
    }

    /// Rises when a topic comes or goes.
    pub fn topics_version(&self) -> u64 {
        self.topics.version()
    }

    pub fn group(&self, name: &GroupName) -> Option<&Group> {
        self.groups.by_name(name)
    }

    pub fn group_by_id(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id).ok()
    }

    /// In the order of names, from the one behind `after`, as [`Self::topics_after`].
    pub fn groups_after(&self, after: Option<&GroupName>) -> impl Iterator<Item = &Group> {
        self.groups.iter_after(after)
    }

    pub fn groups_count(&self) -> usize {
        self.groups.len()
    }

    /// The topics of which a group has been handed anything, or skipped anything.
    pub fn topics_of(&self, group: GroupId) -> impl Iterator<Item = TopicId> {
        self.deliveries.topics_of(group)
    }

    /// The offset that the next message of a queue gets; 0 for a queue that does not exist.
    pub fn queue_end(&self, topic: TopicId, queue: QueueId) -> QueueOffset {
        self.queues.end(topic, queue).unwrap_or_default()
    }

    /// The least offset: what lay before has left with the log's front. Equal on all replicas.
    pub fn queue_start(&self, topic: TopicId, queue: QueueId) -> QueueOffset {
        self.queues.bounds(topic, queue).unwrap_or_default().0
    }

    /// At most `max` units from `from` on. `NotFound` below [`Self::queue_start`], or below what
    /// is held here while a peer's state is not caught up with yet.
    pub fn units(
        &self,
        topic: TopicId,
        queue: QueueId,
        from: QueueOffset,
        max: usize,
    ) -> io::Result<Vec<Unit>> {
        self.queues.read(topic, queue, from, max)
    }

    /// How a group stands in a queue; a new group is at its start with nothing considered.
    pub fn view(&self, group: GroupId, topic: TopicId, queue: QueueId) -> QueueView {
        let view = self.deliveries.view(group, topic, queue);
        QueueView { next: view.next.max(self.queue_start(topic, queue)), ..view }
    }

    /// At most `limit` ranges, ends exclusive, that were passed by and not handed out, from `from`.
    pub fn free_from(
        &self,
        pair: (GroupId, TopicId),
        queue: QueueId,
        from: QueueOffset,
        limit: usize,
    ) -> Vec<(QueueOffset, QueueOffset)> {
        self.deliveries.free_from(pair, queue, from, limit)
    }

    /// At most `limit` messages that are visible again, from offset `from` on.
    pub fn ready_from(
        &self,
        pair: (GroupId, TopicId),
        queue: QueueId,
        from: QueueOffset,
        limit: usize,
    ) -> Vec<ReadyMessage> {
        self.deliveries.ready_from(pair, queue, from, limit)
    }

    /// The version of a group's subscriptions to a topic, and the live filter expressions, sorted.
    pub fn subscriptions(&self, group: GroupId, topic: TopicId) -> (u32, &[String]) {
        self.subscriptions.get(group, topic)
    }

    /// Whether members of a group use different filters on a topic, and how often they began to.
    pub fn conflict(&self, group: GroupId, topic: TopicId) -> Conflict {
        self.conflicts.get((group, topic))
    }

    /// Groups and topics of which a member has ever used a filter, in the order of ids, from the
    /// pair behind `after`.
    pub fn subscribed_after(
        &self,
        after: Option<(GroupId, TopicId)>,
    ) -> impl Iterator<Item = (GroupId, TopicId)> {
        self.subscriptions.pairs_after(after)
    }

    /// What an attempt id was granted before and would be served again; `None` when a receive with
    /// it is a new one.
    pub fn checkout_of_attempt(
        &self,
        group: GroupId,
        topic: TopicId,
        attempt: &str,
    ) -> Option<Vec<Granted>> {
        self.deliveries.checkout_of_attempt(group, topic, attempt, self.head.stamp)
    }

    /// A checkout that still has messages with its consumer.
    pub fn checkout(&self, id: CheckoutId) -> Option<CheckoutInfo> {
        self.deliveries.checkout(id)
    }

    /// A consumer's checkouts in a group, oldest first.
    pub fn checkouts_of(&self, group: GroupId, consumer: &ClientId) -> Vec<CheckoutId> {
        self.deliveries.checkouts_of(group, consumer)
    }

    /// Whether a consumer has messages of a group that it has not settled.
    pub fn holds(&self, group: GroupId, consumer: &ClientId) -> bool {
        !self.deliveries.checkouts_of(group, consumer).is_empty()
    }

    /// Auto-renewed checkouts whose time is over before `before`, the most urgent first.
    pub fn renewals(&self, before: UtcMillis) -> Vec<Renewal> {
        self.deliveries.renewals(before)
    }

    pub fn handle_state(&self, handle: &Handle) -> HandleState {
        self.deliveries.handle_state(handle)
    }

    /// When the next hidden message becomes due, or the next lease is over: a tick is to be proposed
    /// then, not before.
    pub fn next_due(&self) -> Option<UtcMillis> {
        let (hidden, delayed) = (self.deliveries.next_due(), self.timers.next_due());
        [hidden, delayed, self.instances.next_due()].into_iter().flatten().min()
    }

    /// Delayed messages that are not visible yet; a number at hand.
    pub fn delayed(&self) -> usize {
        self.timers.pending()
    }

    /// Delayed messages that are visible and whose rows are still needed; a number at hand.
    pub fn delayed_visible(&self) -> usize {
        self.timers.visible()
    }

    /// Bytes of records that the log keeps wherever its front is, about: of delayed and of half
    /// messages, and of whatever else was written again.
    pub fn needed_bytes(&self) -> u64 {
        self.timers.bytes() + self.halves.bytes() + self.deliveries.moved_bytes()
    }

    /// Bytes of records that were written again because their messages are delayed, or were.
    pub fn delayed_bytes(&self) -> u64 {
        self.timers.kept_bytes()
    }

    /// Messages of all groups that are with a consumer or wait for a deadline; a number at hand.
    pub fn in_flight(&self) -> usize {
        self.deliveries.in_flight()
    }

    /// How a group takes a topic's message groups; off when one of the two is gone.
    pub fn order(&self, group: GroupId, topic: TopicId) -> Order {
        self.rule(group, topic).map_or(Order::Off, |rule| rule.order)
    }

    /// Whether a message group, by its hash, has something handed out and not acknowledged.
    pub fn is_locked(&self, pair: (GroupId, TopicId), hash: u64) -> bool {
        self.deliveries.is_locked(pair, hash)
    }

    /// Hashes of message groups that became free since an earlier call answered `count`, and the
    /// count of now; `None` when not all of them are remembered.
    pub fn freed_since(&self, pair: (GroupId, TopicId), count: u64) -> (Option<Vec<u64>>, u64) {
        self.deliveries.freed_since(pair, count)
    }

    /// What was handed out before and comes, in order, with the first of its message group, at most
    /// `limit`.
    pub fn followers(
        &self,
        pair: (GroupId, TopicId),
        hash: u64,
        limit: usize,
    ) -> Vec<(QueueId, ReadyMessage)> {
        self.deliveries.followers(pair, hash, limit)
    }

    /// What is handed out of a message group and not acknowledged, in order.
    pub fn members(&self, pair: (GroupId, TopicId), hash: u64) -> Vec<(QueueId, QueueOffset)> {
        self.deliveries.members(pair, hash)
    }

    /// Whether a message was never handed out to a group and is still there for it.
    pub fn is_open(&self, pair: (GroupId, TopicId), queue: QueueId, offset: QueueOffset) -> bool {
        offset >= self.queue_start(pair.1, queue)
            && offset < self.queue_end(pair.1, queue)
            && self.deliveries.is_open(pair, queue, offset)
    }

    /// What has become of a message for a group.
    pub fn standing(
        &self,
        pair: (GroupId, TopicId),
        queue: QueueId,
        offset: QueueOffset,
    ) -> Standing {
        self.deliveries.standing(pair, queue, offset)
    }

    /// Whether the bounds of its queue let a group have a message that was never handed out.
    pub fn fits(&self, pair: (GroupId, TopicId), queue: QueueId, offset: QueueOffset) -> bool {
        self.deliveries.fits(pair, queue, offset)
    }

    /// Zero for a topic that does not exist.
    pub fn lag(&self, group: GroupId, topic: TopicId) -> Lag {
        let queues = self.topic_by_id(topic).map_or(0, |topic| topic.queues);
        let bounds = |queue| self.queues.bounds(topic, QueueId::new(queue)).unwrap_or_default();
        self.deliveries.lag(group, topic, (0..queues).map(bounds))
    }

    /// What the group keeps; `None` before it was told, which is for ever.
    pub fn retention(&self) -> Option<Retention> {
        self.marks.retention
    }

    /// Marks that the log's front has not moved to, oldest first.
    pub fn marks(&self) -> impl DoubleEndedIterator<Item = &Mark> {
        self.marks.iter()
    }

    /// Whether the last applied entry is a mark.
    pub fn at_mark(&self) -> bool {
        self.head.applied.is_some_and(|(index, _)| self.marks.is_newest(index))
    }

    /// The mark that the front is meant to move to, or has moved to.
    pub fn purge_intent(&self) -> Option<Front> {
        self.marks.intent()
    }

    /// The mark that the log of every replica may begin behind.
    pub fn floor(&self) -> Option<Front> {
        self.marks.floor()
    }

    /// Messages under way, or delayed, whose records the intended front would pass: where each
    /// record lay first, and a unit that says where it lies now.
    pub fn to_relocate(&self) -> impl Iterator<Item = (LogPosition, Unit)> {
        let front = self.marks.intent().map(|intent| intent.end).unwrap_or_default();
        let delayed = self.timers.needed_before(front);
        // A record that is needed for both is one record.
        let delayed = delayed.filter(|(original, _)| !self.deliveries.needs(*original));
        self.deliveries
            .needed_before(front)
            .map(|(original, holder)| {
                let unit = match holder {
                    Holder::Delivery(key) => self.deliveries.unit_of(key),
                    Holder::Late(at) => self.late.get(&at),
                    Holder::Half => self.halves.get(original).map(|half| half.unit),
                };
                (original, self.locate(unit.expect("what holds a record is there")))
            })
            .chain(delayed)
    }

    /// Delayed messages due by `until` whose records are to be written again before they fire, as
    /// [`Self::to_relocate`] says; of at most so many bytes, but for the first, and of a quarter of a
    /// stride between two marks. `false` when there may be more.
    pub fn delayed_ahead(
        &self,
        ahead: &mut Ahead,
        until: UtcMillis,
        bytes: usize,
    ) -> (Vec<(LogPosition, Unit)>, bool) {
        let of_mark = self.marks.retention.map_or(u64::MAX, |retention| retention.stride / 4);
        let most = Most { at_once: bytes, of_mark };
        self.timers.ahead(ahead, until, self.marks.newest_end(), most)
    }

    /// The unit with the place where its record lies now.
    pub fn locate(&self, unit: Unit) -> Unit {
        let located = self.deliveries.locate(unit);
        match self.timers.moved(unit.position) {
            Some((position, _)) if position > located.position => Unit { position, ..located },
            _ => located,
        }
    }

    /// Bytes of records that were written again because their messages are still under way.
    pub fn moved_bytes(&self) -> u64 {
        self.deliveries.moved_bytes()
    }

    /// A half message that nobody has decided.
    pub fn half(&self, transaction: Transaction) -> Option<&Half> {
        self.halves.get(transaction.at).filter(|half| half.topic == transaction.topic)
    }

    /// What became of a transaction, as long as that is remembered.
    pub fn decided(&self, transaction: Transaction) -> Option<Decided> {
        self.decided.get(transaction.at).copied()
    }

    /// Half messages in the order of their records, from the one behind `after`.
    pub fn halves_after(
        &self,
        after: Option<LogPosition>,
    ) -> impl Iterator<Item = (LogPosition, &Half)> {
        self.halves.iter_after(after)
    }

    pub fn halves_count(&self) -> usize {
        self.halves.len()
    }

    /// When the next check of a half message is due.
    pub fn next_check(&self) -> Option<UtcMillis> {
        self.halves.next_due()
    }

    /// Topics with half messages whose checks are due, in the order of ids, from the one behind
    /// `after`.
    pub fn topics_to_check(
        &self,
        now: UtcMillis,
        after: Option<TopicId>,
    ) -> impl Iterator<Item = TopicId> {
        self.halves.topics_due(now, after)
    }

    /// Half messages of a topic whose checks are due, the most overdue first, from the one behind
    /// `after`: when its check is due, and where it lies.
    pub fn checks_due(
        &self,
        topic: TopicId,
        now: UtcMillis,
        after: Option<(UtcMillis, LogPosition)>,
    ) -> impl Iterator<Item = (LogPosition, &Half)> {
        self.halves.due(topic, now, after)
    }

    /// Messages that a group lost to retention before it was done with them.
    pub fn expired(&self, group: GroupId, topic: TopicId) -> u64 {
        self.deliveries.expired(group, topic)
    }

    /// From when on a group wants messages; `None` from the first one that there is.
    pub fn group_start(&self, group: GroupId) -> Option<UtcMillis> {
        self.begins.start(group)
    }

    /// Whether nothing is handed out to the group.
    pub fn is_paused(&self, group: GroupId) -> bool {
        self.begins.is_paused(group)
    }

    /// How often a group was reset in a topic.
    pub fn epoch(&self, group: GroupId, topic: TopicId) -> u32 {
        self.deliveries.epoch((group, topic))
    }

    /// Whether the group has anything of a topic, be it only the place where it begins.
    pub fn knows(&self, pair: (GroupId, TopicId)) -> bool {
        self.deliveries.knows(pair)
    }

    /// How far a reader by offset said that the group is.
    pub fn stored_offset(
        &self,
        (group, topic): (GroupId, TopicId),
        queue: QueueId,
    ) -> Option<QueueOffset> {
        self.stored.get((group, topic, queue))
    }

    /// What putting a group to an offset of a queue would do; one beyond either end stands for that
    /// end.
    pub fn reset_preview(
        &self,
        pair: (GroupId, TopicId),
        queue: QueueId,
        to: QueueOffset,
    ) -> ResetPreview {
        let (start, end) = (self.queue_start(pair.1, queue), self.queue_end(pair.1, queue));
        self.deliveries.preview(pair, queue, (start, to.clamp(start, end)))
    }

    /// The first message of a queue that became visible at `time` or later; the queue's end when
    /// there is none. Fails as [`Self::units`] does.
    pub fn offset_at(
        &self,
        topic: TopicId,
        queue: QueueId,
        time: UtcMillis,
    ) -> io::Result<QueueOffset> {
        let mut low = self.queue_start(topic, queue).get();
        let mut high = self.queue_end(topic, queue).get();
        // Stamps rise along a queue.
        while low < high {
            let middle = low + (high - low) / 2;
            let units = self.units(topic, queue, QueueOffset::new(middle), 1)?;
            match units.first() {
                Some(unit) if unit.visible < time => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(QueueOffset::new(low))
    }

    /// Topics with a retention of their own, in the order of ids.
    pub fn kept_topics(&self) -> impl Iterator<Item = &Topic> {
        self.topics.iter_by_id().filter(|topic| topic.keep.is_some())
    }

    /// Where a delayed message is that is pending, or whose record is kept beyond the log's front;
    /// by where the record lay first.
    pub fn delayed_at(&self, original: LogPosition) -> Option<DelayedAt> {
        self.timers.at(original)
    }
}
