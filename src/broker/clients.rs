//! Who is connected: soft state of this node, told on to the leader.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::{ClientId, GroupName};
use crate::broker::api::ClientKind;

/// A client that showed no life for this long is gone; RocketMQ brokers use the same 120 s.
pub(super) const CLIENT_EXPIRY: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Client {
    kind: ClientKind,
    groups: HashSet<GroupName>,
    /// Monotonic.
    seen: Duration,
}

/// The clients that this node has heard of. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Clients {
    by_id: Arc<Mutex<HashMap<ClientId, Client>>>,
}

impl Clients {
    pub(super) fn seen(
        &self,
        id: &ClientId,
        kind: ClientKind,
        group: Option<&GroupName>,
        now: Duration,
    ) {
        let mut clients = self.by_id.lock();
        let client = clients.entry(id.clone()).or_insert_with(|| Client {
            kind,
            groups: HashSet::new(),
            seen: now,
        });
        client.kind = kind;
        client.seen = client.seen.max(now);
        if let Some(group) = group
            && !client.groups.contains(group)
        {
            client.groups.insert(group.clone());
        }
    }

    pub(super) fn forget(&self, id: &ClientId) {
        self.by_id.lock().remove(id);
    }

    /// Consumers seen within `age` of which `holds` says, for one of their groups, that they have
    /// something: to be told to the leader.
    pub(super) fn recent_holders(
        &self,
        age: Duration,
        now: Duration,
        holds: impl Fn(&GroupName, &ClientId) -> bool,
    ) -> Vec<ClientId> {
        let clients = self.by_id.lock();
        let told = |(id, client): (&ClientId, &Client)| {
            let recent = now.saturating_sub(client.seen) <= age;
            let consumer = client.kind != ClientKind::Producer && recent;
            let holder = consumer && client.groups.iter().any(|group| holds(group, id));
            holder.then(|| id.clone())
        };
        let mut ids: Vec<ClientId> = clients.iter().filter_map(told).collect();
        ids.sort();
        ids
    }

    pub(super) fn is_alive(&self, id: &ClientId, now: Duration) -> bool {
        let clients = self.by_id.lock();
        clients.get(id).is_some_and(|client| now.saturating_sub(client.seen) < CLIENT_EXPIRY)
    }

    /// Drops whoever has been silent for too long.
    pub(super) fn expire(&self, now: Duration) {
        self.by_id.lock().retain(|_, client| now.saturating_sub(client.seen) < CLIENT_EXPIRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_client_is_gone_after_the_expiry() {
        let clients = Clients::default();
        let id = ClientId::new("host@1@0@x").unwrap();
        let start = Duration::from_secs(1000);
        clients.seen(&id, ClientKind::PushConsumer, None, start);
        assert!(clients.is_alive(&id, start + CLIENT_EXPIRY - Duration::from_millis(1)));
        assert!(!clients.is_alive(&id, start + CLIENT_EXPIRY));
        clients.expire(start + CLIENT_EXPIRY);
        assert!(clients.recent_holders(CLIENT_EXPIRY, start, |_, _| true).is_empty());
    }

    #[test]
    fn only_who_holds_something_is_told_on() {
        let clients = Clients::default();
        let now = Duration::from_secs(5);
        let group = GroupName::new("g").unwrap();
        let seen = |id: &str, kind| {
            clients.seen(&ClientId::new(id).unwrap(), kind, Some(&group), now);
        };
        seen("producer", ClientKind::Producer);
        seen("idle", ClientKind::PushConsumer);
        seen("busy", ClientKind::PushConsumer);
        seen("busy too", ClientKind::SimpleConsumer);
        let age = Duration::from_secs(10);
        let holders =
            |now| clients.recent_holders(age, now, |of, id| *of == group && id.as_str() != "idle");
        let busy = ["busy", "busy too"].map(|id| ClientId::new(id).unwrap());
        assert_eq!(holders(now), busy);
        assert!(holders(now + age + Duration::from_secs(1)).is_empty(), "not seen lately");
    }
}
