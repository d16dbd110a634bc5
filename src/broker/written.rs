//! Which checkouts reached their clients: only these are renewed (rule R22).
//!
//! The node that serves a client knows that a reply was written to its stream, and the leader renews.
//! So each node remembers what it wrote and tells the leader in every round, also a new one, until the
//! log itself shows a renewal. What nobody wrote comes back when its first time is over: it must not
//! stay hidden for as long as its client lives.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::CheckoutId;

/// A follower may not have applied a checkout yet whose reply it has written.
const UNAPPLIED: Duration = Duration::from_secs(10);

/// The checkouts of one broker group.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Since when (monotonic) each is known to be written.
    since: Mutex<BTreeMap<CheckoutId, Duration>>,
}

impl Written {
    pub(super) fn note(&self, checkouts: impl IntoIterator<Item = CheckoutId>, now: Duration) {
        let mut since = self.since.lock();
        for checkout in checkouts {
            since.entry(checkout).or_insert(now);
        }
    }

    pub(super) fn contains(&self, checkout: CheckoutId) -> bool {
        self.since.lock().contains_key(&checkout)
    }

    pub(super) fn all(&self) -> Vec<CheckoutId> {
        self.since.lock().keys().copied().collect()
    }

    /// Forgets those that are over, or that the log shows as renewed.
    pub(super) fn keep(&self, now: Duration, waits: impl Fn(CheckoutId) -> bool) {
        let fresh = |since: Duration| now.saturating_sub(since) < UNAPPLIED;
        self.since.lock().retain(|checkout, since| fresh(*since) || waits(*checkout));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_known_until_it_is_over() {
        let written = Written::default();
        let [first, second, third] = [1, 2, 3].map(CheckoutId::new);
        let start = Duration::from_secs(100);
        written.note([first, second], start);
        written.note([second, third], start + UNAPPLIED);
        written.keep(start + UNAPPLIED - Duration::from_millis(1), |_| false);
        assert_eq!(written.all(), [first, second, third], "it may not be applied here yet");
        written.keep(start + UNAPPLIED, |checkout| checkout == first);
        assert_eq!(written.all(), [first, third], "being told again makes nothing younger");
        assert!(written.contains(first) && !written.contains(second));
    }
}
