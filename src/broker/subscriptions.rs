//! When each filter of a group was last used; local to the leader.
//!
//! Which filters count as live is replicated; this only decides when to propose a change.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::{GroupId, TopicId};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::remote::Declined;
use crate::broker::replica::Inner;
use crate::command::{Command, Refusal, Reply, Subscribe};

/// A filter that nobody used for this long no longer keeps messages from being skipped.
pub(super) const SUBSCRIPTION_EXPIRY: Duration = Duration::from_secs(60);

type Key = (GroupId, TopicId, String);

#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    used: Mutex<HashMap<Key, Duration>>,
}

impl Subscriptions {
    pub(super) fn touch(&self, group: GroupId, topic: TopicId, filter: &str, now: Duration) {
        self.used.lock().insert((group, topic, filter.to_owned()), now);
    }

    /// Whether a filter that the log holds as live has not been used for long. One that this node
    /// has never seen used gets its full time from now: the node has just begun to lead.
    pub(super) fn is_unused(
        &self,
        group: GroupId,
        topic: TopicId,
        filter: &str,
        now: Duration,
    ) -> bool {
        let mut used = self.used.lock();
        let at = *used.entry((group, topic, filter.to_owned())).or_insert(now);
        now.saturating_sub(at) >= SUBSCRIPTION_EXPIRY
    }

    pub(super) fn forget(&self, group: GroupId, topic: TopicId, filter: &str) {
        self.used.lock().remove(&(group, topic, filter.to_owned()));
    }

    pub(super) fn clear(&self) {
        self.used.lock().clear();
    }
}

impl Inner {
    /// The log knows that a live member of the group uses this filter.
    pub(super) async fn ensure_subscribed(
        &self,
        group: GroupId,
        topic: TopicId,
        filter: &str,
    ) -> Result<(), Declined> {
        let known = self.group.read(|state| {
            state.subscriptions(group, topic).1.iter().any(|expression| expression == filter)
        });
        if known {
            return Ok(());
        }
        let subscribe = Subscribe { group, topic, expression: filter.to_owned() };
        let command = Command::Subscribe(subscribe);
        match self.group.propose(command, self.default_deadline()).await {
            Ok(Reply::Subscribed { .. }) => Ok(()),
            Ok(Reply::Refused(Refusal::NoGroup { .. })) => Err(Declined::NoGroup),
            Ok(Reply::Refused(Refusal::NoTopic { .. })) => Err(Declined::NoTopic),
            Ok(Reply::Refused(Refusal::Limit { what, limit })) => {
                Err(Declined::Full { what: format!("the {what} are at their limit of {limit}") })
            }
            Ok(other) => Err(unexpected(&other).into()),
            Err(_) if !self.serving() => Err(Declined::NotLeader),
            Err(error) => Err(unavailable(&error).into()),
        }
    }
}

impl From<crate::broker::error::Unavailable> for Declined {
    fn from(error: crate::broker::error::Unavailable) -> Self {
        Self::Unavailable { reason: error.reason, outcome_unknown: error.outcome_unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_filter_gets_its_full_time() {
        let subscriptions = Subscriptions::default();
        let (group, topic) = (GroupId::new(1), TopicId::new(1));
        let start = Duration::from_secs(100);
        assert!(!subscriptions.is_unused(group, topic, "a", start));
        assert!(!subscriptions.is_unused(group, topic, "a", start + Duration::from_secs(59)));
        assert!(subscriptions.is_unused(group, topic, "a", start + SUBSCRIPTION_EXPIRY));
        subscriptions.touch(group, topic, "a", start + Duration::from_secs(59));
        assert!(!subscriptions.is_unused(group, topic, "a", start + SUBSCRIPTION_EXPIRY));
    }
}
