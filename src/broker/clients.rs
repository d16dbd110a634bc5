//! Who is connected: soft state of this node, told on to the leader.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::{ClientId, GroupName};
use crate::broker::api::ClientKind;

/// A client that showed no life for this long is gone; RocketMQ brokers use the same 120 s.
pub(super) const CLIENT_EXPIRY: Duration = Duration::from_secs(120);
/// The same for one whose streams to this node all broke. A client that lives opens another within
/// seconds, and its heartbeats reach some node every ten.
pub(super) const HUNG_UP_EXPIRY: Duration = Duration::from_secs(25);

#[derive(Debug)]
struct Client {
    kind: ClientKind,
    groups: HashSet<GroupName>,
    /// Monotonic.
    seen: Duration,
    /// Its last stream to this node broke, and it has shown itself to other nodes at most since.
    hung_up: bool,
}

impl Client {
    fn lives(&self, now: Duration) -> bool {
        let expiry = if self.hung_up { HUNG_UP_EXPIRY } else { CLIENT_EXPIRY };
        now.saturating_sub(self.seen) < expiry
    }
}

/// The clients that this node has heard of. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Clients {
    by_id: Arc<Mutex<HashMap<ClientId, Client>>>,
}

impl Clients {
    /// By this node itself.
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
            hung_up: false,
        });
        client.kind = kind;
        client.seen = client.seen.max(now);
        client.hung_up = false;
        if let Some(group) = group
            && !client.groups.contains(group)
        {
            client.groups.insert(group.clone());
        }
    }

    /// A consumer was seen by another node.
    pub(super) fn told(&self, id: &ClientId, now: Duration) {
        let mut clients = self.by_id.lock();
        if let Some(client) = clients.get_mut(id) {
            client.seen = client.seen.max(now);
            return;
        }
        let (kind, groups) = (ClientKind::PushConsumer, HashSet::new());
        clients.insert(id.clone(), Client { kind, groups, seen: now, hung_up: false });
    }

    /// The client's last stream to this node is over, without a goodbye.
    pub(super) fn hung_up(&self, id: &ClientId) {
        if let Some(client) = self.by_id.lock().get_mut(id) {
            client.hung_up = true;
        }
    }

    /// Push consumers that hung up and did not come back in time, with their groups.
    pub(super) fn vanished(&self, now: Duration) -> Vec<(ClientId, Vec<GroupName>)> {
        let clients = self.by_id.lock();
        let gone = |client: &Client| {
            client.kind == ClientKind::PushConsumer && client.hung_up && !client.lives(now)
        };
        let gone = clients.iter().filter(|(_, client)| gone(client));
        let mut gone: Vec<_> = gone
            .map(|(id, client)| (id.clone(), client.groups.iter().cloned().collect::<Vec<_>>()))
            .collect();
        gone.sort();
        gone
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
            let recent = now.saturating_sub(client.seen) <= age && !client.hung_up;
            let consumer = client.kind != ClientKind::Producer && recent;
            let holder = consumer && client.groups.iter().any(|group| holds(group, id));
            holder.then(|| id.clone())
        };
        let mut ids: Vec<ClientId> = clients.iter().filter_map(told).collect();
        ids.sort();
        ids
    }

    pub(super) fn is_alive(&self, id: &ClientId, now: Duration) -> bool {
        self.by_id.lock().get(id).is_some_and(|client| client.lives(now))
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
    fn who_hung_up_and_does_not_come_back_is_gone_sooner() {
        let clients = Clients::default();
        let id = ClientId::new("host@1@0@x").unwrap();
        let group = GroupName::new("g").unwrap();
        let seen = |now| clients.seen(&id, ClientKind::PushConsumer, Some(&group), now);
        let start = Duration::from_secs(1000);
        let second = Duration::from_secs(1);
        seen(start);
        clients.hung_up(&id);
        assert!(clients.recent_holders(HUNG_UP_EXPIRY, start, |_, _| true).is_empty());
        // Another node sees it for a while.
        clients.told(&id, start + second);
        assert!(clients.is_alive(&id, start + HUNG_UP_EXPIRY));
        assert!(clients.vanished(start + HUNG_UP_EXPIRY).is_empty());
        let late = start + second + HUNG_UP_EXPIRY;
        assert!(!clients.is_alive(&id, late));
        assert_eq!(clients.vanished(late), [(id.clone(), vec![group.clone()])]);
        // It came back to this node.
        seen(late);
        assert!(clients.is_alive(&id, late + HUNG_UP_EXPIRY) && clients.vanished(late).is_empty());
        // One that other nodes alone know is not taken to have hung up.
        let other = ClientId::new("other").unwrap();
        clients.hung_up(&other);
        clients.told(&other, start);
        assert!(clients.is_alive(&other, start + HUNG_UP_EXPIRY));
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
