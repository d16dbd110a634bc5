//! How far one receive has come in looking for a message.
//!
//! What a receive has passed by without finding anything for itself it does not look at again, also
//! where the desk could not keep in mind what it was. So each look of it goes further than the last,
//! and a receive comes to an end however little is remembered. What changes behind it (a message
//! that comes back, a line that becomes free) wakes a waiter, and that begins a new hunt.

use std::collections::BTreeMap;

use crate::base::{QueueId, QueueOffset};

#[derive(Debug, Default)]
pub(in crate::broker) struct Hunt {
    /// The version of the subscriptions, and how often the group had been reset: what the rest
    /// holds for.
    under: (u32, u32),
    /// Of each queue: below this offset there is nothing that was never handed out.
    fresh: BTreeMap<QueueId, QueueOffset>,
    /// Below this one nothing that is visible again.
    again: BTreeMap<QueueId, QueueOffset>,
}

impl Hunt {
    /// Under other subscriptions, or after a reset, everything is to be looked at again.
    pub(super) fn follow(&mut self, under: (u32, u32)) {
        if self.under != under {
            *self = Self { under, ..Self::default() };
        }
    }

    pub(super) fn fresh_from(&self, queue: QueueId) -> QueueOffset {
        self.fresh.get(&queue).copied().unwrap_or_default()
    }

    pub(super) fn again_from(&self, queue: QueueId) -> QueueOffset {
        self.again.get(&queue).copied().unwrap_or_default()
    }

    pub(super) fn passed_fresh(&mut self, queue: QueueId, to: QueueOffset) {
        self.fresh.insert(queue, to);
    }

    pub(super) fn passed_again(&mut self, queue: QueueId, to: QueueOffset) {
        self.again.insert(queue, to);
    }
}
