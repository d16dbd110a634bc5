//! What follows a last attempt: a message is buried, and may be raised again.
//!
//! A step that ends a last attempt only notes so. The state, which knows whether the message may
//! become a dead letter, buries or spares it right behind that step; until then it is with nobody and
//! stands still.

use std::collections::BTreeMap;

use super::lines::{Line, Rule};
use super::queue::{Pending, Phase, Standing};
use super::{Deliveries, Holder, Key};
use crate::base::{CheckoutId, GroupId, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{DeathReason, DeliveryOutcome, Exhausted, Handle, Order, Unit};
use crate::machine::dead_letters::{DeadLetter, LetterAt};
use crate::machine::effect::ReadyCounts;
use crate::machine::limits::{PENDING_MAX, PENDING_PER_QUEUE_MAX};

/// A message whose last attempt is over.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct Dying {
    pub(in crate::machine) group: GroupId,
    pub(in crate::machine) topic: TopicId,
    pub(in crate::machine) queue: QueueId,
    pub(in crate::machine) offset: QueueOffset,
    pub(in crate::machine) unit: Unit,
    pub(in crate::machine) attempts: u32,
    pub(in crate::machine) checkout: CheckoutId,
    pub(in crate::machine) reason: DeathReason,
}

impl Dying {
    fn key(&self) -> Key {
        let Self { group, topic, queue, offset, .. } = *self;
        Key { group, topic, queue, offset }
    }
}

impl Key {
    fn of_letter(letter: &DeadLetter) -> Self {
        let DeadLetter { group, origin, queue, offset, .. } = *letter;
        Self { group, topic: origin, queue, offset }
    }
}

impl Deliveries {
    /// It is to be buried, or spared, before anything else happens.
    pub(super) fn dies(&mut self, key: Key, reason: DeathReason) {
        let pending = self.pending_mut(key);
        assert!(pending.phase == Phase::Stopped, "{:?} is not the end", pending.phase);
        let Pending { unit, attempt: attempts, checkout, .. } = *pending;
        let Key { group, topic, queue, offset } = key;
        self.dying.push_back(Dying {
            group,
            topic,
            queue,
            offset,
            unit,
            attempts,
            checkout,
            reason,
        });
    }

    pub(in crate::machine) fn next_dying(&mut self) -> Option<Dying> {
        self.dying.pop_front()
    }

    /// It may not become a dead letter, so its group gets it again.
    pub(in crate::machine) fn spare(&mut self, dying: &Dying, ready: &mut ReadyCounts) {
        let key = dying.key();
        self.pending_mut(key).phase = Phase::Ready;
        match self.lines.find(key, dying.unit) {
            Some(line) => self.advance(line, ready),
            None => self.show(key, ready),
        }
    }

    /// What a [`crate::base::Mutant`] does in place of [`Self::bury`].
    pub(in crate::machine) fn lose(&mut self, dying: &Dying, ready: &mut ReadyCounts) {
        self.take_away(dying.key(), ready);
    }

    /// It is the dead letter at this place from now on. Comes after its record is held for that.
    pub(in crate::machine) fn bury(
        &mut self,
        dying: &Dying,
        at: LetterAt,
        ready: &mut ReadyCounts,
    ) {
        let key = dying.key();
        self.take_away(key, ready);
        let queue = self.queue_mut(key);
        queue.dead += 1;
        let fresh = queue.buried.insert(key.offset.get(), at);
        assert!(fresh.is_none(), "a message dies once");
    }

    /// Its dead letter is gone: if it stood as dead by that one, it is done with.
    pub(in crate::machine) fn exhume(&mut self, letter: &DeadLetter, at: LetterAt) {
        let key = Key::of_letter(letter);
        let queues = self.pairs.get_mut(&(key.group, key.topic));
        let Some(queue) = queues.and_then(|queues| queues.get_mut(&key.queue)) else { return };
        if queue.buried.get(&key.offset.get()) == Some(&at) {
            queue.buried.remove(&key.offset.get());
        }
    }

    /// Whether one more message fits among those under way.
    pub(in crate::machine) fn has_room_for(&self, letter: &DeadLetter) -> bool {
        let queue = self.queue(letter.group, letter.origin, letter.queue);
        let fits = |pending: &BTreeMap<u64, Pending>| pending.len() < PENDING_PER_QUEUE_MAX;
        self.pending_total < PENDING_MAX && queue.is_none_or(|queue| fits(&queue.pending))
    }

    /// A dead letter is ready again at its old place, as if it had never been handed out. In order it
    /// comes before everything behind it that is with nobody; what a consumer has of its message
    /// group is waited for. One that does not stand as dead by this letter is with its group already.
    pub(in crate::machine) fn raise(
        &mut self,
        letter: &DeadLetter,
        at: LetterAt,
        (stamp, rule): (UtcMillis, Rule),
        ready: &mut ReadyCounts,
    ) {
        let key = Key::of_letter(letter);
        let offset = key.offset.get();
        let sequence = self.next_sequence();
        let queues = self.pairs.get_mut(&(key.group, key.topic));
        let Some(queue) = queues.and_then(|queues| queues.get_mut(&key.queue)) else { return };
        if queue.standing(offset) != Standing::Dead || queue.buried.get(&offset) != Some(&at) {
            return;
        }
        queue.buried.remove(&offset);
        let (unit, checkout, phase) = (letter.unit, letter.checkout, Phase::Ready);
        let pending = Pending { unit, attempt: 0, checkout, phase, due: stamp, sequence };
        queue.pending.insert(offset, pending);
        self.pending_total += 1;
        self.references.hold(unit.position, Holder::Delivery(key));
        if rule.order == Order::Off || unit.group_hash == 0 {
            return self.show(key, ready);
        }
        let line = Line::of(key, unit);
        let before = self.lines.first(line);
        self.lines.join(line, key);
        if let Some(before) = before.filter(|before| *before > key) {
            self.queue_mut(before).ready.remove(&before.offset.get());
        }
        self.advance(line, ready);
    }

    /// A group's messages get so many attempts from now on.
    pub(in crate::machine) fn set_attempts(&mut self, group: GroupId, attempts_max: u32) {
        self.lines.set_attempts(group, attempts_max);
    }

    /// The message that a handle has, while its delivery lasts.
    pub(in crate::machine) fn unit_of_handle(&self, handle: &Handle) -> Option<Unit> {
        self.live(handle).map(|pending| pending.unit)
    }

    /// Whether giving this delivery up makes its message group stand still.
    pub(in crate::machine) fn stops(&self, handle: &Handle) -> bool {
        let key = Key::of(handle);
        let line = self.live(handle).and_then(|pending| self.lines.find(key, pending.unit));
        line.is_some() && self.lines.rule(key.group).exhausted == Exhausted::Stop
    }

    /// The message dies, or its line stands still; the consumer keeps what it has behind a dead one.
    /// Repeating it is harmless.
    pub(in crate::machine) fn give_up(
        &mut self,
        handle: &Handle,
        stamp: UtcMillis,
        ready: &mut ReadyCounts,
    ) -> DeliveryOutcome {
        let key = Key::of(handle);
        let Some(pending) = self.live(handle).copied() else {
            let queue = self.queue(key.group, key.topic, key.queue);
            let standing = queue.map(|queue| queue.standing(key.offset.get()));
            let over = matches!(standing, Some(Standing::Done | Standing::Dead))
                && !self.resets.bars(handle);
            return if over { DeliveryOutcome::Done } else { DeliveryOutcome::Stale };
        };
        let stops = self.stops(handle);
        let removed = self.due.remove(pending.due, pending.sequence);
        assert_eq!(removed, Some(key), "every hidden message has its deadline");
        self.leave_checkout(key, Phase::Stopped);
        self.pending_mut(key).due = stamp;
        match self.lines.find(key, pending.unit).filter(|_| stops) {
            Some(line) => {
                self.call_back(line, key, stamp);
                self.advance(line, ready);
            }
            None => self.dies(key, DeathReason::GivenUp),
        }
        DeliveryOutcome::Done
    }

    /// The dead letter that a message has become.
    pub(in crate::machine) fn letter_of(&self, handle: &Handle) -> Option<LetterAt> {
        let key = Key::of(handle);
        self.queue(key.group, key.topic, key.queue)?.buried.get(&key.offset.get()).copied()
    }

    /// All messages that stand as dead, with their dead letters.
    pub(in crate::machine) fn buried(
        &self,
    ) -> impl Iterator<Item = (GroupId, TopicId, QueueId, QueueOffset, LetterAt)> {
        self.pairs.iter().flat_map(|((group, topic), queues)| {
            queues.iter().flat_map(move |(queue, deliveries)| {
                let buried = deliveries.buried.iter();
                buried.map(move |(at, letter)| {
                    (*group, *topic, *queue, QueueOffset::new(*at), *letter)
                })
            })
        })
    }
}
