//! What keeps message groups in order, beside the ordinary life of a delivery.
//!
//! Only the first of a line can be handed out, and with it, in one checkout, those behind it. When
//! its delivery ends without an ack, all behind it that are still out come back in the same entry,
//! their attempts not counted: a consumer that goes on with them finds their handles stale. So an
//! attempt counts for the first of a line only.

use super::lines::{Line, Rule};
use super::queue::{Phase, Standing};
use super::{Deliveries, Holder, Key, ReadyMessage};
use crate::base::{CheckoutId, GroupId, Mutant, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{DeathReason, Exhausted, Hold, Order};
use crate::machine::codec::require;
use crate::machine::effect::ReadyCounts;
use crate::machine::error::SectionError;

impl Deliveries {
    /// Whether a checkout may have this message of a line now.
    pub(super) fn may_take(&self, line: Line, key: Key, checkout: CheckoutId, rule: Rule) -> bool {
        if Mutant::LineOvertaken.is_on() {
            return true;
        }
        let again = self.pending(key).is_some();
        self.lines.members(line).filter(|other| *other != key).all(|other| {
            let pending = self.pending(other).expect("members of lines are pending");
            let ours = pending.phase.is_live() && pending.checkout == checkout;
            if other < key {
                ours && rule.order == Order::Batch
            } else {
                again && !pending.phase.is_live()
            }
        })
    }

    /// The delivery of a message ended without an ack. Comes after its deadline was removed. `counted`
    /// says why the attempt has failed; without it, it was none.
    pub(super) fn end(
        &mut self,
        key: Key,
        stamp: UtcMillis,
        counted: Option<DeathReason>,
        ready: &mut ReadyCounts,
    ) {
        let before = *self.pending_mut(key);
        self.leave_checkout(key, Phase::Ready);
        let line = self.lines.find(key, before.unit);
        let behind = line.is_some_and(|line| self.lines.first(line) != Some(key));
        let pending = self.pending_mut(key);
        pending.due = stamp;
        if before.phase.is_live() && (counted.is_none() || behind) {
            pending.attempt -= 1;
        }
        let over = counted.filter(|_| before.phase.is_live() && !behind && self.is_exhausted(key));
        let Some(line) = line else {
            match over {
                Some(reason) => self.exhaust(key, reason, Exhausted::Dead),
                None => self.show(key, ready),
            }
            return;
        };
        self.call_back(line, key, stamp);
        match over {
            Some(reason) => self.exhaust(key, reason, self.lines.rule(key.group).exhausted),
            None => self.advance(line, ready),
        }
    }

    fn is_exhausted(&self, key: Key) -> bool {
        let attempt = self.pending(key).expect("looked at before").attempt;
        let attempt = attempt + u32::from(Mutant::DeadEarly.is_on());
        attempt >= self.lines.rule(key.group).attempts_max
    }

    /// The last attempt is over.
    fn exhaust(&mut self, key: Key, reason: DeathReason, exhausted: Exhausted) {
        self.pending_mut(key).phase = Phase::Stopped;
        if exhausted == Exhausted::Dead {
            self.dies(key, reason);
        }
    }

    /// Those behind one whose delivery ended: whoever has them may not go on with them.
    pub(super) fn call_back(&mut self, line: Line, key: Key, stamp: UtcMillis) {
        for behind in self.lines.behind(line, key) {
            let pending = *self.pending_mut(behind);
            if !pending.phase.is_live() {
                continue;
            }
            let removed = self.due.remove(pending.due, pending.sequence);
            assert_eq!(removed, Some(behind), "every hidden message has its deadline");
            self.leave_checkout(behind, Phase::Ready);
            let pending = self.pending_mut(behind);
            pending.due = stamp;
            pending.attempt -= 1;
        }
    }

    /// The first of a line is offered if it is with nobody; a line without any is free, and what
    /// was never handed out of it is not known here.
    pub(super) fn advance(&mut self, line: Line, ready: &mut ReadyCounts) {
        match self.lines.first(line) {
            Some(first) if self.pending_mut(first).phase == Phase::Ready => {
                if !self.is_out(line) {
                    self.show(first, ready);
                }
            }
            Some(_) => {}
            None => ready.add(line.group, line.topic),
        }
    }

    /// Whether a consumer has something of a line. Then its first one may be with nobody only where
    /// it was dead when those behind it were handed out.
    pub(super) fn is_out(&self, line: Line) -> bool {
        let live = |key| self.pending(key).is_some_and(|pending| pending.phase.is_live());
        self.lines.members(line).any(live)
    }

    /// It can be handed out again.
    pub(super) fn show(&mut self, key: Key, ready: &mut ReadyCounts) {
        if self.queue_mut(key).ready.insert(key.offset.get()) {
            ready.add(key.group, key.topic);
        }
    }

    /// A message that is pending is done with, however that came about.
    pub(super) fn take_away(&mut self, key: Key, ready: &mut ReadyCounts) {
        let pending = *self.pending_mut(key);
        if pending.phase.is_live() {
            self.leave_checkout(key, Phase::Waiting);
        }
        if pending.phase.has_deadline() {
            let removed = self.due.remove(pending.due, pending.sequence);
            assert_eq!(removed, Some(key), "every hidden message has its deadline");
        }
        let line = self.lines.find(key, pending.unit);
        let queue = self.queue_mut(key);
        queue.pending.remove(&key.offset.get());
        queue.ready.remove(&key.offset.get());
        self.references.release(pending.unit.position, Holder::Delivery(key));
        self.pending_total -= 1;
        if let Some(line) = line {
            self.lines.leave(line, key);
            self.advance(line, ready);
        }
    }

    /// A hold of a member of a line. One that takes longer than before extends the lock, which has
    /// one deadline; another one, and each of a message that the broker itself extends, says that
    /// the consumer failed, and those behind it come back.
    pub(super) fn hold_in_line(&mut self, line: Line, hold: &Hold, stamp: UtcMillis) {
        let key = Key::of(&hold.handle);
        let until = stamp.plus(hold.invisible);
        let pending = *self.pending_mut(key);
        let record = self.checkouts.get(pending.checkout).expect("what is live has a checkout");
        let failed = record.auto_renew || until < pending.due;
        if failed {
            self.call_back(line, key, stamp);
        }
        let members: Vec<Key> = self.lines.members(line).collect();
        for member in members {
            let other = *self.pending_mut(member);
            let ours = other.phase.is_live() && other.checkout == pending.checkout;
            if member == key || !failed && ours && other.due < until {
                self.pending_mut(member).phase = Phase::Held;
                self.set_due(member, until);
            }
        }
    }

    /// Lines that stand still go on; answers how many.
    pub(in crate::machine) fn resume(
        &mut self,
        (group, topic): (GroupId, TopicId),
        ready: &mut ReadyCounts,
    ) -> u64 {
        let mut resumed = 0;
        for line in self.lines.of_pair(group, topic) {
            let members: Vec<Key> = self.lines.members(line).collect();
            for key in members {
                let pending = self.pending_mut(key);
                if pending.phase == Phase::Stopped {
                    pending.phase = Phase::Ready;
                    pending.attempt = 0;
                    resumed += 1;
                }
            }
            self.advance(line, ready);
        }
        resumed
    }

    /// Comes after everything pending is read. `rule` knows how a group takes a topic's messages.
    pub(in crate::machine) fn restore_lines(
        &mut self,
        rule: impl Fn(GroupId, TopicId) -> Option<Rule>,
    ) -> Result<(), SectionError> {
        for ((group, topic), queues) in &self.pairs {
            let Some(rule) = rule(*group, *topic) else { continue };
            self.lines.set_rule(*group, rule);
            if rule.order == Order::Off {
                continue;
            }
            for (queue, deliveries) in queues {
                for (offset, pending) in &deliveries.pending {
                    if pending.unit.group_hash != 0 {
                        let offset = QueueOffset::new(*offset);
                        let key = Key { group: *group, topic: *topic, queue: *queue, offset };
                        self.lines.join(Line::of(key, pending.unit), key);
                    }
                }
            }
        }
        let pairs: Vec<_> = self.pairs.keys().copied().collect();
        let lines = pairs.into_iter().flat_map(|(group, topic)| self.lines.of_pair(group, topic));
        let lines: Vec<Line> = lines.collect();
        for line in lines {
            let hidden = usize::from(!self.is_out(line));
            let behind: Vec<Key> = self.lines.members(line).skip(hidden).collect();
            for key in behind {
                self.queue_mut(key).ready.remove(&key.offset.get());
            }
        }
        self.check_lines()
    }

    /// No line is with two checkouts, and what is out of it are its first ones.
    pub(super) fn check_lines(&self) -> Result<(), SectionError> {
        for (group, topic) in self.pairs.keys() {
            for line in self.lines.of_pair(*group, *topic) {
                let mut holder = None;
                for key in self.lines.members(line) {
                    let Some(pending) = self.pending(key) else {
                        return require(false, "a member of a line that is not pending");
                    };
                    require(pending.unit.group_hash == line.hash, "a member of another line")?;
                    if pending.phase.is_live() {
                        let ours = *holder.get_or_insert(pending.checkout) == pending.checkout;
                        require(ours, "a message group with two checkouts at once")?;
                    }
                }
            }
        }
        Ok(())
    }

    /// How many messages of ordered groups have a place in a line. For checks.
    pub(super) fn lined_up(&self) -> usize {
        self.lines.count()
    }

    pub(in crate::machine) fn is_locked(
        &self,
        (group, topic): (GroupId, TopicId),
        hash: u64,
    ) -> bool {
        self.lines.is_locked(Line { group, topic, hash }) && !Mutant::LineOvertaken.is_on()
    }

    pub(in crate::machine) fn freed_since(
        &self,
        pair: (GroupId, TopicId),
        count: u64,
    ) -> (Option<Vec<u64>>, u64) {
        self.lines.freed_since(pair, count)
    }

    pub(in crate::machine) fn members(
        &self,
        (group, topic): (GroupId, TopicId),
        hash: u64,
    ) -> Vec<(QueueId, QueueOffset)> {
        let line = Line { group, topic, hash };
        self.lines.members(line).map(|key| (key.queue, key.offset)).collect()
    }

    /// Behind the first of a line: those that would come with it in one checkout, in order.
    pub(in crate::machine) fn followers(
        &self,
        (group, topic): (GroupId, TopicId),
        hash: u64,
        limit: usize,
    ) -> Vec<(QueueId, ReadyMessage)> {
        let line = Line { group, topic, hash };
        let members = self.lines.members(line).skip(1).map_while(|key| {
            let pending = self.pending(key).filter(|pending| pending.phase == Phase::Ready)?;
            let (offset, unit, attempt) = (key.offset, pending.unit, pending.attempt);
            Some((key.queue, ReadyMessage { offset, unit, attempt }))
        });
        members.take(limit).collect()
    }

    /// Whether a message was never handed out to a group and is still there for it.
    pub(in crate::machine) fn is_open(
        &self,
        (group, topic): (GroupId, TopicId),
        queue: QueueId,
        offset: QueueOffset,
    ) -> bool {
        self.queue(group, topic, queue).is_none_or(|queue| {
            matches!(queue.standing(offset.get()), Standing::Fresh | Standing::Free)
        })
    }

    /// Whether the bounds of its queue let a message be handed out that never was.
    pub(in crate::machine) fn fits(
        &self,
        (group, topic): (GroupId, TopicId),
        queue: QueueId,
        offset: QueueOffset,
    ) -> bool {
        self.queue(group, topic, queue).is_none_or(|queue| queue.fits(offset.get()))
    }

    /// Message groups that stand still.
    pub(super) fn stopped(&self, group: GroupId, topic: TopicId) -> u64 {
        let stands = |line: &Line| {
            let mut members = self.lines.members(*line);
            let stopped = |key| self.pending(key).is_some_and(|it| it.phase == Phase::Stopped);
            members.any(stopped)
        };
        self.lines.of_pair(group, topic).iter().filter(|line| stands(line)).count() as u64
    }
}
