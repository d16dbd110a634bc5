//! What becomes of a delivery: acknowledged, held, renewed, released, returned.

use super::queue::{Phase, Standing};
use super::{Deliveries, Key};
use crate::base::{Millis, Mutant, UtcMillis};
use crate::command::{Ack, DeathReason, DeliveryOutcome, Hold, Release, Renew, Return};
use crate::machine::effect::ReadyCounts;

impl Deliveries {
    /// Ends a message. Repeating an ack is harmless: a message that is done is done, whichever
    /// delivery the handle names, since the last reset. One that is dead may come again, so it is not
    /// said to be done.
    pub(in crate::machine) fn ack(
        &mut self,
        ack: &Ack,
        ready: &mut ReadyCounts,
    ) -> DeliveryOutcome {
        let key = Key::of(&ack.handle);
        if self.live(&ack.handle).is_some() {
            self.take_away(key, ready);
            return DeliveryOutcome::Done;
        }
        if self.resets.bars(&ack.handle) {
            if Mutant::ResetKeepsInFlight.is_on() {
                let offset = key.offset.get();
                self.queue_mut(key).skip(offset, offset + 1);
                return DeliveryOutcome::Done;
            }
            return DeliveryOutcome::Stale;
        }
        let standing = self
            .queue(key.group, key.topic, key.queue)
            .map_or(Standing::Fresh, |queue| queue.standing(key.offset.get()));
        if standing == Standing::Done { DeliveryOutcome::Done } else { DeliveryOutcome::Stale }
    }

    /// Moves a delivery's end. A hold to zero that comes again finds the message ready and is as
    /// good as done; any other hold of what became visible again is stale.
    pub(in crate::machine) fn hold(
        &mut self,
        hold: &Hold,
        stamp: UtcMillis,
        ready: &mut ReadyCounts,
    ) -> DeliveryOutcome {
        let key = Key::of(&hold.handle);
        let now = hold.invisible == Millis::ZERO;
        let Some(pending) = self.live(&hold.handle).copied() else {
            let repeated = now
                && self.pending(key).is_some_and(|pending| {
                    pending.phase == Phase::Ready
                        && pending.checkout == hold.handle.checkout
                        && pending.attempt == hold.handle.attempt
                });
            return if repeated { DeliveryOutcome::Done } else { DeliveryOutcome::Stale };
        };
        if now {
            self.make_ready(key, stamp, DeathReason::Returned, ready);
        } else if let Some(line) = self.lines.find(key, pending.unit) {
            self.hold_in_line(line, hold, stamp);
        } else {
            self.pending_mut(key).phase = Phase::Held;
            self.set_due(key, stamp.plus(hold.invisible));
        }
        DeliveryOutcome::Done
    }

    /// Never shortens a deadline; checkouts that are over are passed by.
    pub(in crate::machine) fn renew(&mut self, renew: &Renew, stamp: UtcMillis) -> DeliveryOutcome {
        let until = stamp.plus(renew.invisible);
        for id in &renew.checkouts {
            let Some(record) = self.checkouts.get(*id) else { continue };
            let (group, topic) = (record.group, record.topic);
            for (queue, offset) in record.items.clone() {
                let key = Key { group, topic, queue, offset };
                let pending = self.pending_mut(key);
                if pending.phase == Phase::InFlight && pending.due < until {
                    self.set_due(key, until);
                }
            }
            self.checkouts.renew(*id, until);
        }
        DeliveryOutcome::Done
    }

    /// Never lengthens a deadline. Handles stay good until then: an ack may be on its way.
    pub(in crate::machine) fn release(
        &mut self,
        release: &Release,
        stamp: UtcMillis,
        ready: &mut ReadyCounts,
    ) -> DeliveryOutcome {
        let until = stamp.plus(release.invisible);
        for id in self.checkouts.of_consumer(release.group, &release.consumer) {
            let record = self.checkouts.get(id).expect("the index lists live checkouts");
            let (group, topic) = (record.group, record.topic);
            let items = record.items.clone();
            self.checkouts.stop_renewing(id);
            for (queue, offset) in items {
                let key = Key { group, topic, queue, offset };
                // The first of a message group takes those behind it along.
                if !self.checkouts.lists(id, key) {
                    continue;
                }
                if release.invisible == Millis::ZERO {
                    self.make_ready(key, stamp, DeathReason::ConsumerLeft, ready);
                    continue;
                }
                self.pending_mut(key).phase = Phase::Left;
                if self.pending_mut(key).due > until {
                    self.set_due(key, until);
                }
            }
        }
        DeliveryOutcome::Done
    }

    /// The consumer never got these: the delivery does not count. What is over is passed by.
    pub(in crate::machine) fn give_back(
        &mut self,
        returned: &Return,
        stamp: UtcMillis,
        ready: &mut ReadyCounts,
    ) -> DeliveryOutcome {
        for handle in &returned.handles {
            if self.live(handle).is_none() {
                continue;
            }
            let key = Key::of(handle);
            if returned.invisible == Millis::ZERO {
                let pending = *self.pending_mut(key);
                let removed = self.due.remove(pending.due, pending.sequence);
                assert_eq!(removed, Some(key), "every hidden message has its deadline");
                self.end(key, stamp, None, ready);
            } else {
                self.pending_mut(key).attempt -= 1;
                self.leave_checkout(key, Phase::Waiting);
                self.set_due(key, stamp.plus(returned.invisible));
                let unit = self.pending_mut(key).unit;
                if let Some(line) = self.lines.find(key, unit) {
                    self.call_back(line, key, stamp);
                    // A dead letter that came back before it may be the first one.
                    self.advance(line, ready);
                }
            }
        }
        DeliveryOutcome::Done
    }
}
