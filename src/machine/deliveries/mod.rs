//! What each group has of each topic: handed out, waiting, done.
//!
//! Invariant, for each group, topic and queue: every offset below the queue's end is in exactly
//! one of never considered, free, in flight (held, waiting and stopped included), ready, dead, done,
//! expired. Each change goes through one of the few functions here that keep the derived indexes in step.
//!
//! A handle is good while its delivery lasts: until the message is acknowledged, returned, or
//! until its queue is reset, or until the tick that makes it visible again was *applied*. A deadline that has passed without a
//! tick ends nothing, so log order alone decides between an ack and an expiry.

mod checkout;
mod checkouts;
mod death;
mod due;
mod expire;
mod intervals;
mod lines;
mod order;
mod queue;
mod references;
mod resets;
mod settle;
mod views;

use std::collections::{BTreeMap, VecDeque};

use self::checkouts::Checkouts;
use self::due::Due;
use self::lines::Lines;
use self::queue::{Pending, Phase, QueueDeliveries};
use self::resets::Resets;
use super::codec::{read_rows, require, write_rows};
use super::effect::ReadyCounts;
use super::error::SectionError;
use crate::base::{GroupId, LogPosition, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{DeathReason, Handle, Reader, Writer};

pub(super) use self::checkout::Bounds;
pub(super) use self::death::Dying;
pub(super) use self::expire::Starts;
pub(super) use self::lines::Rule;
pub(super) use self::references::{Holder, References, UnitAt};
pub use self::resets::ResetPreview;
pub use self::views::{CheckoutInfo, HandleState, Lag, QueueView, ReadyMessage, Renewal, Standing};

/// A message as a group sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    group: GroupId,
    topic: TopicId,
    queue: QueueId,
    offset: QueueOffset,
}

impl Key {
    /// Before every other.
    const FIRST: Self = Self {
        group: GroupId::new(0),
        topic: TopicId::new(0),
        queue: QueueId::new(0),
        offset: QueueOffset::ZERO,
    };

    fn of(handle: &Handle) -> Self {
        let Handle { group, topic, queue, offset, .. } = *handle;
        Self { group, topic, queue, offset }
    }
}

type Queues = BTreeMap<QueueId, QueueDeliveries>;

#[derive(Debug, Default)]
pub(super) struct Deliveries {
    pairs: BTreeMap<(GroupId, TopicId), Queues>,
    checkouts: Checkouts,
    /// Numbers deadlines in the order in which they are set.
    last_sequence: u64,
    due: Due,
    references: References,
    lines: Lines,
    /// Those whose last attempt was ended by the step that is being applied.
    dying: VecDeque<Dying>,
    resets: Resets,
    /// Messages pending in all queues: derived.
    pending_total: usize,
}

impl Deliveries {
    fn queue(&self, group: GroupId, topic: TopicId, queue: QueueId) -> Option<&QueueDeliveries> {
        self.pairs.get(&(group, topic))?.get(&queue)
    }

    fn pending(&self, key: Key) -> Option<&Pending> {
        self.queue(key.group, key.topic, key.queue)?.pending.get(&key.offset.get())
    }

    /// The queue's part of a key that is known to be pending.
    fn queue_mut(&mut self, key: Key) -> &mut QueueDeliveries {
        let queues = self.pairs.get_mut(&(key.group, key.topic));
        queues.and_then(|queues| queues.get_mut(&key.queue)).expect("a pending key has its queue")
    }

    fn pending_mut(&mut self, key: Key) -> &mut Pending {
        self.queue_mut(key).pending.get_mut(&key.offset.get()).expect("the key is pending")
    }

    /// Every hidden message has exactly one deadline.
    pub(super) fn in_flight(&self) -> usize {
        let hidden = self.due.len();
        assert!(hidden <= self.pending_total, "{hidden} hidden of {} pending", self.pending_total);
        hidden
    }

    fn next_sequence(&mut self) -> u64 {
        self.last_sequence += 1;
        self.last_sequence
    }

    /// The delivery that a handle names, if it is not over.
    fn live(&self, handle: &Handle) -> Option<&Pending> {
        self.pending(Key::of(handle)).filter(|pending| {
            pending.phase.is_live()
                && pending.checkout == handle.checkout
                && pending.attempt == handle.attempt
        })
    }

    /// Gives a message that has a deadline another one.
    fn set_due(&mut self, key: Key, due: UtcMillis) {
        let sequence = self.next_sequence();
        let pending = self.pending_mut(key);
        assert!(pending.phase.has_deadline(), "{:?} has no deadline", pending.phase);
        let (old_due, old_sequence) = (pending.due, pending.sequence);
        pending.due = due;
        pending.sequence = sequence;
        let removed = self.due.remove(old_due, old_sequence);
        assert_eq!(removed, Some(key), "every hidden message has its deadline");
        self.due.add(due, sequence, key);
    }

    /// Takes a message away from its consumer, if it has one: its handle is stale from here on.
    fn leave_checkout(&mut self, key: Key, phase: Phase) {
        assert!(!phase.is_live(), "it would stay with its consumer");
        let pending = self.pending_mut(key);
        let (was, checkout) = (pending.phase, pending.checkout);
        pending.phase = phase;
        if was.is_live() {
            self.checkouts.remove_item(checkout, key);
        }
    }

    /// The end of a deadline: visible from `stamp` on, unless that was the last attempt.
    fn make_ready(
        &mut self,
        key: Key,
        stamp: UtcMillis,
        reason: DeathReason,
        ready: &mut ReadyCounts,
    ) {
        let pending = *self.pending_mut(key);
        let removed = self.due.remove(pending.due, pending.sequence);
        assert_eq!(removed, Some(key), "every hidden message has its deadline");
        self.end(key, stamp, Some(reason), ready);
    }

    /// Ends the first deadline, if it is due by `stamp`.
    pub(super) fn tick(&mut self, stamp: UtcMillis, ready: &mut ReadyCounts) -> bool {
        let Some(key) = self.due.first_until(stamp) else { return false };
        let reason = match self.pending_mut(key).phase {
            Phase::Held => DeathReason::Returned,
            Phase::Left => DeathReason::ConsumerLeft,
            _ => DeathReason::NotAcknowledged,
        };
        self.make_ready(key, stamp, reason, ready);
        true
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId) {
        self.checkouts.drop_where(|record| record.topic == topic);
        self.drop_pairs(|pair| pair.1 == topic);
    }

    pub(super) fn drop_group(&mut self, group: GroupId) {
        self.checkouts.drop_where(|record| record.group == group);
        self.lines.drop_group(group);
        self.drop_pairs(|pair| pair.0 == group);
    }

    fn drop_pairs(&mut self, gone: impl Fn(&(GroupId, TopicId)) -> bool) {
        let (due, pending_total) = (&mut self.due, &mut self.pending_total);
        let references = &mut self.references;
        self.lines.drop_where(&gone);
        self.resets.drop_where(&gone);
        self.pairs.retain(|pair, queues| {
            if !gone(pair) {
                return true;
            }
            let (group, topic) = *pair;
            let all = queues.iter().flat_map(|(queue, deliveries)| {
                deliveries.pending.iter().map(|(offset, pending)| (*queue, *offset, pending))
            });
            for (queue, offset, pending) in all {
                *pending_total -= 1;
                let key = Key { group, topic, queue, offset: QueueOffset::new(offset) };
                references.release(pending.unit.position, Holder::Delivery(key));
                if pending.phase.has_deadline() {
                    let removed = due.remove(pending.due, pending.sequence);
                    assert!(removed.is_some(), "every hidden message has its deadline");
                }
            }
            false
        });
    }

    /// The pairs' part of the state; checkouts have a section of their own.
    pub(super) fn write_pairs(&self, writer: &mut Writer) {
        writer.u64(self.last_sequence);
        write_rows(writer, self.pairs.iter(), |w, ((group, topic), queues)| {
            w.put(group);
            w.put(topic);
            write_rows(w, queues.iter(), |w, (queue, deliveries)| {
                w.put(queue);
                deliveries.write(w);
            });
        });
    }

    pub(super) fn write_checkouts(&self, writer: &mut Writer) {
        self.checkouts.write(writer);
    }

    pub(super) fn read_checkouts(reader: &mut Reader) -> Result<Self, SectionError> {
        Ok(Self { checkouts: Checkouts::read(reader)?, ..Self::default() })
    }

    /// Comes after [`Self::read_checkouts`]; rebuilds every index.
    pub(super) fn read_pairs(&mut self, reader: &mut Reader) -> Result<(), SectionError> {
        self.last_sequence = reader.u64()?;
        let mut pairs = BTreeMap::new();
        read_rows(reader, |r| {
            let pair = (r.get()?, r.get()?);
            let mut queues = Queues::new();
            read_rows(r, |r| {
                let queue = r.get()?;
                let deliveries = QueueDeliveries::read(r)?;
                self.restore(pair, queue, &deliveries)?;
                require(queues.insert(queue, deliveries).is_none(), "a queue comes twice")
            })?;
            require(pairs.insert(pair, queues).is_none(), "a group and topic come twice")
        })?;
        self.pairs = pairs;
        self.checkouts.check_restored()
    }

    fn restore(
        &mut self,
        (group, topic): (GroupId, TopicId),
        queue: QueueId,
        deliveries: &QueueDeliveries,
    ) -> Result<(), SectionError> {
        self.pending_total += deliveries.pending.len();
        for (offset, pending) in &deliveries.pending {
            let key = Key { group, topic, queue, offset: QueueOffset::new(*offset) };
            self.references.hold(pending.unit.position, Holder::Delivery(key));
            if pending.phase.is_live() {
                self.checkouts.restore_item(pending.checkout, key)?;
            }
            if pending.phase.has_deadline() {
                let known = self.due.contains(pending.due, pending.sequence);
                require(!known && pending.sequence <= self.last_sequence, "a deadline twice")?;
                self.due.add(pending.due, pending.sequence, key);
            }
        }
        Ok(())
    }

    /// Comes after [`Self::read_pairs`].
    pub(super) fn read_moved(&mut self, reader: &mut Reader) -> Result<(), SectionError> {
        self.references.read_moved(reader)
    }

    pub(super) fn write_moved(&self, writer: &mut Writer) {
        self.references.write(writer);
    }

    /// Who else needs records says so here.
    pub(super) fn references_mut(&mut self) -> &mut References {
        &mut self.references
    }

    /// Whether the indexes say what the queues say. `bounds` knows each queue's least offset and
    /// its end, `front` where the log starts, `others` how many others hold records.
    pub(super) fn check(
        &self,
        bounds: impl Fn(TopicId, QueueId) -> Option<(QueueOffset, QueueOffset)>,
        front: LogPosition,
        others: usize,
    ) -> Result<(), SectionError> {
        let (mut pending_total, mut hidden, mut live, mut lined_up) = (0, 0, 0, 0);
        for ((group, topic), queues) in &self.pairs {
            for (queue, deliveries) in queues {
                let Some((start, end)) = bounds(*topic, *queue) else {
                    return require(false, "deliveries of a queue that does not exist");
                };
                require(deliveries.next <= end.get(), "deliveries beyond the end of a queue")?;
                let behind_start = start.get() <= deliveries.next;
                let first = deliveries.free.iter().next();
                let free = first.is_none_or(|(from, _)| start.get() <= from);
                require(behind_start && free, "a group before the start of a queue")?;
                let behind = deliveries.pending.range(deliveries.next..).next();
                require(behind.is_none(), "pending behind what was considered")?;
                let dead = |offset: &u64| deliveries.standing(*offset) == queue::Standing::Dead;
                require(deliveries.buried.keys().all(dead), "dead and something else")?;
                pending_total += deliveries.pending.len();
                for (offset, pending) in &deliveries.pending {
                    require(!deliveries.free.contains(*offset), "pending and free")?;
                    let offset = QueueOffset::new(*offset);
                    let key = Key { group: *group, topic: *topic, queue: *queue, offset };
                    let line = self.lines.find(key, pending.unit);
                    lined_up += usize::from(line.is_some());
                    let first = line.is_none_or(|line| {
                        self.lines.first(line) == Some(key) && !self.is_out(line)
                    });
                    let ready = pending.phase == Phase::Ready && first;
                    let indexed = deliveries.ready.contains(&key.offset.get());
                    require(indexed == ready, "the ready index is off")?;
                    let timed = pending.phase.has_deadline();
                    hidden += usize::from(timed);
                    let holds = self.references.holds(pending.unit.position, Holder::Delivery(key));
                    require(holds, "pending without a record")?;
                    let due = self.due.contains(pending.due, pending.sequence);
                    require(due == timed, "a deadline is missing, or there is one too many")?;
                    live += usize::from(pending.phase.is_live());
                    let with =
                        !pending.phase.is_live() || self.checkouts.lists(pending.checkout, key);
                    require(with, "in flight without a checkout")?;
                }
            }
        }
        require(self.references.len() == pending_total + others, "a record held for nothing")?;
        require(self.is_needed_before(front) == 0, "a record before the start of the log")?;
        require(lined_up == self.lined_up(), "a member of a line that is not pending")?;
        self.check_lines()?;
        self.check_resets()?;
        require(hidden == self.due.len(), "a deadline of nothing")?;
        require(self.dying.is_empty(), "a message between life and death")?;
        require(live == self.checkouts.items(), "a checkout of nothing")?;
        require(pending_total == self.pending_total, "the count of pending messages is off")
    }
}
