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

    /// Consumers seen within `age`, to be told to the leader.
    pub(super) fn recent_consumers(&self, age: Duration, now: Duration) -> Vec<ClientId> {
        let clients = self.by_id.lock();
        let recent = |client: &Client| {
            client.kind != ClientKind::Producer && now.saturating_sub(client.seen) <= age
        };
        let mut ids: Vec<ClientId> =
            clients.iter().filter(|(_, client)| recent(client)).map(|(id, _)| id.clone()).collect();
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
        assert!(clients.recent_consumers(CLIENT_EXPIRY, start).is_empty());
    }

    #[test]
    fn producers_hold_no_deliveries_and_are_not_told_on() {
        let clients = Clients::default();
        let now = Duration::from_secs(5);
        clients.seen(&ClientId::new("p").unwrap(), ClientKind::Producer, None, now);
        clients.seen(&ClientId::new("c").unwrap(), ClientKind::SimpleConsumer, None, now);
        assert_eq!(
            clients.recent_consumers(Duration::from_secs(10), now),
            [ClientId::new("c").unwrap()]
        );
    }
}
