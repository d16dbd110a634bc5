//! What a leader reads of deliveries. Nothing here changes anything.

use super::Deliveries;
use super::queue::{self, Phase, QueueDeliveries};
use crate::base::{
    CheckoutId, ClientId, GroupId, Millis, QueueId, QueueOffset, TopicId, UtcMillis,
};
use crate::command::{Granted, Handle, Unit};
use crate::machine::limits::VIEW_MAX;

/// How a group stands in one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueView {
    /// The first offset that was never considered.
    pub next: QueueOffset,
    /// Ranges below `next`, ends exclusive, that were never handed out and not skipped: at most
    /// [`VIEW_MAX`], the first ones. [`super::super::State::free_from`] lists more.
    pub free: Vec<(QueueOffset, QueueOffset)>,
    /// Visible again, in the order of offsets, at most [`VIEW_MAX`].
    pub ready: Vec<ReadyMessage>,
    /// With a consumer or waiting for its deadline.
    pub in_flight: usize,
    /// Handed out and not acknowledged, the visible ones included.
    pub pending: usize,
}

/// A message that was handed out before and may be handed out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyMessage {
    pub offset: QueueOffset,
    pub unit: Unit,
    /// Deliveries so far.
    pub attempt: u32,
}

/// What is known of a checkout that still has messages with its consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckoutInfo {
    pub group: GroupId,
    pub topic: TopicId,
    pub consumer: ClientId,
    pub auto_renew: bool,
    /// The stamp of its entry.
    pub first: UtcMillis,
    /// As it was asked for.
    pub invisible: Millis,
    /// Until when it hides its messages, renewals included.
    pub until: UtcMillis,
    /// Messages still with the consumer.
    pub items: usize,
}

/// A checkout that the leader is to extend while its consumer lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    pub checkout: CheckoutId,
    pub consumer: ClientId,
    pub group: GroupId,
    /// The stamp of the checkout's entry: renewing ends some time after it (rule R23).
    pub first: UtcMillis,
    /// It was renewed before.
    pub renewed: bool,
}

/// Whether a handle's delivery lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleState {
    Live,
    Stale,
}

/// How far a group is behind in a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Could be handed out now, as far as no filter speaks against it.
    pub ready: u64,
    /// With a consumer or waiting for a deadline.
    pub in_flight: u64,
    /// Lost to retention before the group was done with them, ever.
    pub expired: u64,
    /// Given up after their last attempts, ever.
    pub dead: u64,
    /// Message groups that stand still after a last attempt.
    pub stopped: u64,
    /// Of the dead, those that are dead letters now.
    pub dead_letters: u64,
}

/// What has become of a message for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Never handed out, and not skipped.
    NotHandedOut,
    /// Handed out before, and to be handed out again.
    Ready,
    /// With a consumer, or hidden until a deadline.
    InFlight,
    /// After its last attempt, until somebody resumes its message group.
    Stopped,
    /// A dead letter.
    Dead,
    /// Acknowledged, skipped, or gone by retention.
    Done,
}

impl Deliveries {
    pub(in crate::machine) fn view(
        &self,
        group: GroupId,
        topic: TopicId,
        queue: QueueId,
    ) -> QueueView {
        let Some(queue) = self.queue(group, topic, queue) else { return QueueView::default() };
        QueueView {
            next: QueueOffset::new(queue.next),
            free: free_from(queue, QueueOffset::ZERO, VIEW_MAX),
            ready: queue.ready.iter().take(VIEW_MAX).map(|at| ready(queue, *at)).collect(),
            in_flight: queue.in_flight(),
            pending: queue.pending.len(),
        }
    }

    pub(in crate::machine) fn free_from(
        &self,
        (group, topic): (GroupId, TopicId),
        queue: QueueId,
        from: QueueOffset,
        limit: usize,
    ) -> Vec<(QueueOffset, QueueOffset)> {
        let queue = self.queue(group, topic, queue);
        queue.map(|queue| free_from(queue, from, limit)).unwrap_or_default()
    }

    pub(in crate::machine) fn ready_from(
        &self,
        (group, topic): (GroupId, TopicId),
        queue: QueueId,
        from: QueueOffset,
        limit: usize,
    ) -> Vec<ReadyMessage> {
        let Some(queue) = self.queue(group, topic, queue) else { return Vec::new() };
        queue.ready.range(from.get()..).take(limit).map(|at| ready(queue, *at)).collect()
    }

    pub(in crate::machine) fn handle_state(&self, handle: &Handle) -> HandleState {
        if self.live(handle).is_some() { HandleState::Live } else { HandleState::Stale }
    }

    pub(in crate::machine) fn checkout(&self, id: CheckoutId) -> Option<CheckoutInfo> {
        let record = self.checkouts.get(id)?;
        Some(CheckoutInfo {
            group: record.group,
            topic: record.topic,
            consumer: record.consumer.clone(),
            auto_renew: record.auto_renew,
            first: record.first,
            invisible: record.invisible,
            until: record.until,
            items: record.items.len(),
        })
    }

    pub(in crate::machine) fn checkout_of_attempt(
        &self,
        group: GroupId,
        topic: TopicId,
        attempt: &str,
        stamp: UtcMillis,
    ) -> Option<Vec<Granted>> {
        let (id, record) = self.checkouts.of_attempt(group, topic, attempt, stamp)?;
        Some(self.granted_of(id, record, stamp)).filter(|granted| !granted.is_empty())
    }

    pub(in crate::machine) fn checkouts_of(
        &self,
        group: GroupId,
        consumer: &ClientId,
    ) -> Vec<CheckoutId> {
        self.checkouts.of_consumer(group, consumer)
    }

    pub(in crate::machine) fn renewals(&self, before: UtcMillis) -> Vec<Renewal> {
        let renewal = |(checkout, record): (CheckoutId, &super::checkouts::Record)| Renewal {
            checkout,
            consumer: record.consumer.clone(),
            group: record.group,
            first: record.first,
            renewed: record.until > record.first.plus(record.invisible),
        };
        self.checkouts.renewals(before).map(renewal).collect()
    }

    pub(in crate::machine) fn standing(
        &self,
        (group, topic): (GroupId, TopicId),
        queue: QueueId,
        offset: QueueOffset,
    ) -> Standing {
        let Some(queue) = self.queue(group, topic, queue) else { return Standing::NotHandedOut };
        match queue.standing(offset.get()) {
            queue::Standing::Fresh | queue::Standing::Free => Standing::NotHandedOut,
            queue::Standing::Dead => Standing::Dead,
            queue::Standing::Done => Standing::Done,
            queue::Standing::Pending => match queue.pending[&offset.get()].phase {
                Phase::Ready => Standing::Ready,
                Phase::Stopped => Standing::Stopped,
                Phase::InFlight | Phase::Held | Phase::Waiting | Phase::Left => Standing::InFlight,
            },
        }
    }

    pub(in crate::machine) fn next_due(&self) -> Option<UtcMillis> {
        self.due.next()
    }

    /// `bounds` lists the least offset and the end of every queue of the topic, from queue 0.
    pub(in crate::machine) fn lag(
        &self,
        group: GroupId,
        topic: TopicId,
        bounds: impl Iterator<Item = (QueueOffset, QueueOffset)>,
    ) -> Lag {
        let queues = self.pairs.get(&(group, topic));
        let mut lag = Lag::default();
        for (number, (start, end)) in (0..).zip(bounds) {
            let Some(queue) = queues.and_then(|queues| queues.get(&QueueId::new(number))) else {
                lag.ready += end.since(start);
                continue;
            };
            lag.ready += end.get() - queue.next + queue.free.total() + queue.ready.len() as u64;
            lag.in_flight += queue.in_flight() as u64;
            lag.expired += queue.expired;
            lag.dead += queue.dead;
            lag.dead_letters += queue.buried.len() as u64;
        }
        lag.stopped = self.stopped(group, topic);
        lag
    }

    /// The topics of which a group has considered anything, in the order of ids.
    pub(in crate::machine) fn topics_of(&self, group: GroupId) -> impl Iterator<Item = TopicId> {
        let first = (group, TopicId::new(0));
        self.pairs
            .range(first..)
            .map(|(pair, _)| *pair)
            .take_while(move |pair| pair.0 == group)
            .map(|pair| pair.1)
    }
}

fn free_from(
    queue: &QueueDeliveries,
    from: QueueOffset,
    limit: usize,
) -> Vec<(QueueOffset, QueueOffset)> {
    let ranges = queue.free.from(from.get()).take(limit);
    ranges.map(|(from, to)| (QueueOffset::new(from), QueueOffset::new(to))).collect()
}

fn ready(queue: &QueueDeliveries, at: u64) -> ReadyMessage {
    let pending = queue.pending.get(&at).expect("what is ready is pending");
    ReadyMessage { offset: QueueOffset::new(at), unit: pending.unit, attempt: pending.attempt }
}
