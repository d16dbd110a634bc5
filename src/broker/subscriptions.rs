//! When each filter of a group was last used, and by which members; local to the leader.
//!
//! Which filters count as live is replicated, and so is that members differ; this only decides when
//! to propose a change.
//!
//! Members differ when two of them that live poll with different filters *at the same time*: each
//! has polled both before and after the other one began. So a consumer that is restarted with
//! another filter differs from nobody, though the filter it had stays live for a minute; nor does
//! one member that changes its filter, since its last one counts.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::{ClientId, GroupId, TopicId};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::remote::Declined;
use crate::broker::replica::Inner;
use crate::command::{Command, Refusal, Reply, Subscribe};
use crate::filter::SQL_MAX;
use crate::machine::EXPRESSION_MAX;

/// A filter that nobody used for this long no longer keeps messages from being skipped.
pub(super) const SUBSCRIPTION_EXPIRY: Duration = Duration::from_secs(60);

/// A condition's normal text says that it is one.
const _: () = assert!(SQL_MAX + "sql:".len() <= EXPRESSION_MAX);

type Key = (GroupId, TopicId, String);

type Pair = (GroupId, TopicId);

#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    used: Mutex<HashMap<Key, Duration>>,
    members: Mutex<HashMap<Pair, HashMap<ClientId, Use>>>,
}

/// How a member uses a filter; times are monotonic.
#[derive(Debug)]
struct Use {
    filter: String,
    since: Duration,
    last: Duration,
}

impl Subscriptions {
    pub(super) fn touch(&self, pair: Pair, filter: &str, member: &ClientId, now: Duration) {
        self.used.lock().insert((pair.0, pair.1, filter.to_owned()), now);
        let mut members = self.members.lock();
        let members = members.entry(pair).or_default();
        match members.get_mut(member).filter(|one| one.filter == filter && one.is_live(now)) {
            Some(one) => one.last = now,
            None => {
                let filter = filter.to_owned();
                members.insert(member.clone(), Use { filter, since: now, last: now });
            }
        }
    }

    /// Whether some live member differs from this one. Costs a look at all of them.
    fn differ(&self, pair: Pair, member: &ClientId, now: Duration) -> bool {
        let members = self.members.lock();
        let Some(members) = members.get(&pair) else { return false };
        let Some(own) = members.get(member) else { return false };
        members.values().any(|other| {
            let at_once = own.since < other.last && other.since < own.last;
            other.filter != own.filter && at_once && other.is_live(now)
        })
    }

    /// Forgets members that have not polled for long.
    pub(super) fn expire_members(&self, now: Duration) {
        self.members.lock().retain(|_, members| {
            members.retain(|_, one| one.is_live(now));
            !members.is_empty()
        });
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
        self.members.lock().clear();
    }
}

impl Use {
    fn is_live(&self, now: Duration) -> bool {
        now.saturating_sub(self.last) < SUBSCRIPTION_EXPIRY
    }
}

impl Inner {
    /// The log knows that a live member of the group uses this filter, and whether others differ.
    pub(super) async fn ensure_subscribed(
        &self,
        (group, topic): Pair,
        filter: &str,
        member: &ClientId,
    ) -> Result<(), Declined> {
        let (known, may_differ) = self.group.read(|state| {
            let live = state.subscriptions(group, topic).1;
            let told = state.conflict(group, topic).since.is_some();
            (live.iter().any(|expression| expression == filter), live.len() > 1 && !told)
        });
        if known {
            let now = self.env.clock.monotonic();
            if may_differ && self.subscriptions.differ((group, topic), member, now) {
                self.note_difference((group, topic)).await;
            }
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

impl Inner {
    /// One event, however many members find out, and whoever leads.
    async fn note_difference(&self, (group, topic): Pair) {
        let differ = Command::MembersDiffer { group, topic };
        match self.group.propose(differ, self.default_deadline()).await {
            Ok(Reply::MembersDiffer { first: true }) => {}
            Ok(_) => return,
            Err(error) => return tracing::debug!(%error, "told again with the next poll"),
        }
        let names = self.group.read(|state| {
            Some((state.topic_by_id(topic)?.name.clone(), state.group_by_id(group)?.name.clone()))
        });
        let Some((topic, group)) = names else { return };
        crate::metrics::SUBSCRIPTION_CONFLICTS.add([topic.as_str(), group.as_str()], 1);
        tracing::warn!(
            %topic,
            %group,
            "members of the group use different filters: each message goes to a member that wants \
             it, and waits where that one is slow; `group describe` lists the filters"
        );
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
        let (pair, member) = ((group, topic), ClientId::new("c").unwrap());
        subscriptions.touch(pair, "a", &member, start + Duration::from_secs(59));
        assert!(!subscriptions.is_unused(group, topic, "a", start + SUBSCRIPTION_EXPIRY));
    }

    #[test]
    fn members_differ_when_both_poll_at_the_same_time() {
        let subscriptions = Subscriptions::default();
        let pair = (GroupId::new(1), TopicId::new(1));
        let member = |name: &str| ClientId::new(name).unwrap();
        let at = Duration::from_secs;
        let poll = |name: &str, filter: &str, second: u64| {
            subscriptions.touch(pair, filter, &member(name), at(second));
            subscriptions.differ(pair, &member(name), at(second))
        };
        assert!(!poll("x", "a", 100) && !poll("x", "a", 101));
        // Restarted with another filter and another name, then with the same name.
        assert!(!poll("y", "b", 102) && !poll("y", "b", 103), "the old one has not come again");
        assert!(!poll("y", "c", 104) && !poll("y", "c", 105), "its last filter counts");
        assert!(!poll("z", "c", 106) && !poll("y", "c", 107) && !poll("z", "c", 108), "they agree");
        assert!(poll("x", "a", 109), "it lives, and y has polled meanwhile");
        assert!(poll("y", "c", 110));
        let late = at(109) + SUBSCRIPTION_EXPIRY;
        assert!(!subscriptions.differ(pair, &member("y"), late), "x is silent for a minute");
        subscriptions.expire_members(late);
        assert!(!subscriptions.differ(pair, &member("x"), late));
        subscriptions.expire_members(late + SUBSCRIPTION_EXPIRY);
        assert!(subscriptions.members.lock().is_empty());
    }
}
