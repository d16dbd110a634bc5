//! Handing out: what a checkout asks for against what is available.

use super::checkouts::Record;
use super::lines::{Line, Rule};
use super::queue::{Pending, Phase, QueueDeliveries, Standing};
use super::{Deliveries, Holder, Key};
use crate::base::{CheckoutId, Mutant, QueueId, QueueOffset, UtcMillis};
use crate::command::{CheckedOut, Checkout, Grant, Granted, Order, Skip};
use crate::machine::effect::ReadyCounts;
use crate::machine::limits::PENDING_MAX;

/// What the rest of the state says about a checkout that is being applied.
pub(in crate::machine) struct Bounds<'a> {
    /// The entry's stamp.
    pub(in crate::machine) stamp: UtcMillis,
    /// The group's subscription version now.
    pub(in crate::machine) subscription_version: u32,
    /// The least offset and the end of a queue of the topic; `None` for one that it does not have.
    pub(in crate::machine) bounds: &'a dyn Fn(QueueId) -> Option<(QueueOffset, QueueOffset)>,
    /// Whether the queue's own file has the unit of a message; for a [`Mutant`] only.
    pub(in crate::machine) has_unit: &'a dyn Fn(QueueId, QueueOffset) -> bool,
    /// Whether messages that were never handed out may be: see [`crate::command::Retention`].
    pub(in crate::machine) fresh: bool,
    /// How the group takes this topic's message groups.
    pub(in crate::machine) rule: Rule,
}

impl Deliveries {
    /// Hands out what is available of what is asked for (rule R4). The answer lists what was
    /// handed out; without anything nothing is stored and the checkout id is 0 (rule R21).
    pub(in crate::machine) fn check_out(
        &mut self,
        checkout: &Checkout,
        bounds: &Bounds<'_>,
        ready: &mut ReadyCounts,
    ) -> CheckedOut {
        if let Some(again) = self.serve_again(checkout, bounds.stamp) {
            return again;
        }
        let id = self.checkouts.next_id();
        self.lines.set_rule(checkout.group, bounds.rule);
        let mut granted = Vec::new();
        for take in &checkout.takes {
            let Some((start, end)) = (bounds.bounds)(take.queue) else { continue };
            let queues = self.pairs.entry((checkout.group, checkout.topic)).or_default();
            let starting = || QueueDeliveries::starting_at(start.get());
            queues.entry(take.queue).or_insert_with(starting);
            let current = checkout.subscription_version == bounds.subscription_version;
            if current || Mutant::SkipKept.is_on() {
                for skip in take.skips.iter().filter(|skip| skip.from < skip.to && skip.to <= end) {
                    self.skip((checkout, take.queue), *skip, bounds, ready);
                }
            }
            for grant in take.grants.iter().filter(|grant| grant.offset < end) {
                if Mutant::ApplyReadsUnit.is_on() && !(bounds.has_unit)(take.queue, grant.offset) {
                    continue;
                }
                granted.extend(self.grant(checkout, take.queue, grant, (id, bounds)));
            }
        }
        if granted.is_empty() {
            return CheckedOut { checkout: CheckoutId::new(0), granted };
        }
        let mut items: Vec<_> = granted.iter().map(|one| (one.queue, one.offset)).collect();
        items.sort_unstable();
        let record = Record {
            group: checkout.group,
            topic: checkout.topic,
            consumer: checkout.consumer.clone(),
            attempt_id: checkout.attempt_id.clone(),
            auto_renew: checkout.auto_renew,
            first: bounds.stamp,
            invisible: checkout.invisible,
            until: bounds.stamp.plus(checkout.invisible),
            items,
        };
        self.checkouts.add(id, record);
        CheckedOut { checkout: id, granted }
    }

    /// An attempt that is known gets what it got before, as far as it is still hidden for it.
    fn serve_again(&self, checkout: &Checkout, stamp: UtcMillis) -> Option<CheckedOut> {
        let attempt = checkout.attempt_id.as_deref()?;
        let (id, record) =
            self.checkouts.of_attempt(checkout.group, checkout.topic, attempt, stamp)?;
        let granted = self.granted_of(id, record, stamp);
        (!granted.is_empty()).then_some(CheckedOut { checkout: id, granted })
    }

    /// What is still with the consumer under a checkout, as it was granted.
    pub(super) fn granted_of(
        &self,
        id: CheckoutId,
        record: &Record,
        stamp: UtcMillis,
    ) -> Vec<Granted> {
        let still = |&(queue, offset): &(QueueId, QueueOffset)| {
            let key = Key { group: record.group, topic: record.topic, queue, offset };
            let pending = self.pending(key).expect("a checkout lists pending messages");
            assert_eq!(pending.checkout, id, "a checkout lists its own messages");
            let Pending { unit, attempt, due, .. } = *pending;
            (due > stamp).then_some(Granted { queue, offset, attempt, unit, checkout: id })
        };
        record.items.iter().filter_map(still).collect()
    }

    /// What nobody wants is done with, also what somebody had once and nobody has now: the first of
    /// a message group would keep those behind it from everybody.
    fn skip(
        &mut self,
        (checkout, queue): (&Checkout, QueueId),
        skip: Skip,
        bounds: &Bounds<'_>,
        ready: &mut ReadyCounts,
    ) {
        let (found, now) = (checkout.subscription_version, bounds.subscription_version);
        assert_eq!(found, now, "a skip holds for the subscriptions it was computed under (R4)");
        let offset = skip.from;
        let key = Key { group: checkout.group, topic: checkout.topic, queue, offset };
        let deliveries = self.queue_mut(key);
        deliveries.skip(skip.from.get(), skip.to.get());
        let pending = deliveries.pending.range(skip.from.get()..skip.to.get());
        let unwanted = pending.filter(|(_, pending)| pending.phase == Phase::Ready);
        let unwanted: Vec<u64> = unwanted.map(|(offset, _)| *offset).collect();
        for offset in unwanted {
            self.take_away(Key { offset: QueueOffset::new(offset), ..key }, ready);
        }
    }

    fn grant(
        &mut self,
        checkout: &Checkout,
        queue: QueueId,
        grant: &Grant,
        (id, bounds): (CheckoutId, &Bounds<'_>),
    ) -> Option<Granted> {
        let offset = grant.offset;
        let key = Key { group: checkout.group, topic: checkout.topic, queue, offset };
        let room = bounds.fresh && self.pending_total < PENDING_MAX;
        let known = self.pending(key).map_or(grant.unit, |pending| pending.unit);
        let ordered = bounds.rule.order != Order::Off && known.group_hash != 0;
        let line = ordered.then(|| Line::of(key, known));
        if line.is_some_and(|line| !self.may_take(line, key, id, bounds.rule)) {
            return None;
        }
        let deliveries = self.queue_mut(key);
        let (unit, attempt) = match deliveries.standing(offset.get()) {
            Standing::Pending => {
                let pending = deliveries.pending.get(&offset.get())?;
                if pending.phase != Phase::Ready {
                    return None;
                }
                deliveries.ready.remove(&offset.get());
                // The unit that came with the first delivery is the message's identity.
                (pending.unit, pending.attempt.saturating_add(1))
            }
            Standing::Fresh | Standing::Free if room && deliveries.take(offset.get()) => {
                self.pending_total += 1;
                self.references.hold(grant.unit.position, Holder::Delivery(key));
                (grant.unit, 1)
            }
            Standing::Fresh | Standing::Free | Standing::Dead | Standing::Done => return None,
        };
        let due = bounds.stamp.plus(checkout.invisible);
        let sequence = self.next_sequence();
        let pending =
            Pending { unit, attempt, checkout: id, phase: Phase::InFlight, due, sequence };
        self.queue_mut(key).pending.insert(offset.get(), pending);
        self.due.add(due, sequence, key);
        if let Some(line) = line {
            self.lines.join(line, key);
        }
        Some(Granted { queue, offset, attempt, unit, checkout: id })
    }
}
