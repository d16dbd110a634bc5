//! The one door for protocols: it knows all broker groups of the node and chooses among them.

mod broadcast;
mod catalog;
mod dead_letters;
mod cursors;
mod delay;
mod deliveries;
mod find;
mod receive;
mod send;
mod transactions;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::future::join_all;
use tokio::time::Instant;

use crate::base::{BrokerGroupId, BrokerGroupName, ClientId, GroupName, Millis, NodeId, TopicName};
use crate::broker::api::{Assignment, ClientKind, GroupStatus, MembersChange, MembersStep, Route};
use crate::broker::clients::Clients;
use crate::broker::error::{NoBrokerGroup, NoTopic, RouteError};
use crate::broker::transactions::Producers;
use crate::broker::{Bell, Nodes, Options, Pulse, Replica};
use crate::env::Env;
use crate::index::Index;
use crate::raft::Group;

/// How long a request without a deadline of its own may take.
const DEFAULT_TIMEOUT: Millis = Millis::from_secs(3);

/// A broker group that the node takes part in.
#[derive(Debug)]
pub struct Seat {
    pub name: BrokerGroupName,
    pub group: Group,
    pub bell: Bell,
    /// Where messages are found again; `None` where nobody looks for any.
    pub index: Option<Index>,
}

/// The facade. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    env: Env,
    /// Sorted by name; never empty.
    replicas: Vec<Replica>,
    nodes: Arc<dyn Nodes>,
    clients: Clients,
    producers: Producers,
    options: Options,
    /// Spreads requests over the broker groups.
    turn: AtomicUsize,
}

impl Broker {
    /// The broker and its duties in each broker group, which the caller runs until it stops the
    /// node.
    pub fn new(
        env: Env,
        mut seats: Vec<Seat>,
        nodes: Arc<dyn Nodes>,
        options: Options,
    ) -> (Self, Vec<Pulse>) {
        assert!(!seats.is_empty(), "a node takes part in at least one broker group");
        assert!(options.queues_on_use > 0, "a topic has at least one queue");
        seats.sort_by(|one, other| one.name.cmp(&other.name));
        let clients = Clients::default();
        let producers = Producers::default();
        let seated = |Seat { name, group, bell, index }| {
            Replica::new(
                env.clone(),
                name,
                (group, &bell, index),
                (clients.clone(), producers.clone()),
                options,
            )
        };
        let (replicas, pulses) = seats.into_iter().map(seated).unzip();
        let turn = AtomicUsize::new(0);
        (Self(Arc::new(Inner { env, replicas, nodes, clients, producers, options, turn })), pulses)
    }

    /// A client showed that it lives (any rpc with its id may call this).
    pub fn client_seen(&self, client: &ClientId, kind: ClientKind, group: Option<&GroupName>) {
        self.0.clients.seen(client, kind, group, self.0.env.clock.monotonic());
    }

    /// The last stream of a client to this node is over. If it said no goodbye and does not show
    /// itself again, what it holds becomes visible sooner than if it were only silent.
    pub fn client_hung_up(&self, client: &ClientId) {
        self.0.clients.hung_up(client);
    }

    /// A client said goodbye: what it holds in `group` becomes visible almost at once.
    pub async fn client_gone(&self, client: &ClientId, group: Option<&GroupName>) {
        self.0.clients.forget(client);
        let Some(group) = group else { return };
        join_all(self.0.replicas.iter().map(|replica| replica.client_gone(client, group))).await;
    }

    /// Long polls that wait on this node.
    pub fn waiting(&self) -> usize {
        self.0.replicas.iter().map(|replica| replica.waiters.waiting()).sum()
    }

    /// Answers a peer's request, which came without its first byte
    /// ([`super::ASKED_OF_BROKER`]). Empty for a broker group that the node has no part in.
    pub async fn answer(&self, group: BrokerGroupId, question: Bytes) -> Bytes {
        match self.replica(group) {
            Some(replica) => replica.answer(question).await,
            None => Bytes::new(),
        }
    }

    /// Where a topic can be reached. Creates the topic where the profile says so.
    pub async fn route(&self, topic: &TopicName) -> Result<Route, RouteError> {
        self.resolve_topic(topic, self.default_deadline()).await?;
        let mut queues = 0;
        let mut kinds = Vec::new();
        for replica in &self.0.replicas {
            replica.group.read(|state| {
                let Some(topic) = state.topic(topic) else { return };
                queues = queues.max(topic.queues);
                kinds.extend(topic.kinds.iter().copied());
            });
        }
        if queues == 0 {
            // It was deleted a moment ago.
            return Err(NoTopic { topic: topic.clone() }.into());
        }
        kinds.sort_unstable();
        kinds.dedup();
        let nodes = self.0.nodes.live();
        assert!(!nodes.is_empty(), "a node that answers is live itself");
        Ok(Route { nodes, queues, kinds })
    }

    /// What a push consumer is to poll: any queue, on every live node. The group need not exist
    /// before its first receive.
    pub async fn assignment(&self, topic: &TopicName) -> Result<Assignment, RouteError> {
        let Route { nodes, kinds, .. } = self.route(topic).await?;
        Ok(Assignment { nodes, kinds })
    }

    /// Each broker group at an entry of its own. `units` also reads and hashes every queue unit.
    pub async fn cluster_status(&self, units: bool) -> Vec<GroupStatus> {
        join_all(self.0.replicas.iter().map(|replica| replica.status(units))).await
    }

    /// One step of a change in every broker group, since every node has a replica of each. To be
    /// repeated until all are done.
    pub async fn change_members(&self, change: &MembersChange) -> Vec<MembersStep> {
        join_all(self.0.replicas.iter().map(|replica| replica.change_members(change))).await
    }

    /// Hands the leadership of these broker groups, or of all, to one node.
    pub async fn lead_by(
        &self,
        groups: &[BrokerGroupName],
        to: NodeId,
    ) -> Result<Vec<MembersStep>, NoBrokerGroup> {
        let chosen = self.named(groups)?;
        Ok(join_all(chosen.into_iter().map(|replica| replica.lead_by(to))).await)
    }

    fn replica(&self, group: BrokerGroupId) -> Option<&Replica> {
        self.0.replicas.iter().find(|replica| replica.id == group)
    }

    /// The replicas with these names; all of them when none is named.
    fn named(&self, names: &[BrokerGroupName]) -> Result<Vec<&Replica>, NoBrokerGroup> {
        if names.is_empty() {
            return Ok(self.0.replicas.iter().collect());
        }
        let find = |name: &BrokerGroupName| {
            let found = self.0.replicas.iter().find(|replica| replica.name == *name);
            found.ok_or_else(|| NoBrokerGroup {
                broker_group: name.clone(),
                known: self.0.replicas.iter().map(|replica| replica.name.clone()).collect(),
            })
        };
        names.iter().map(find).collect()
    }

    /// The next turn of a round of `count`.
    fn turn(&self, count: usize) -> usize {
        assert!(count > 0, "there is somebody to take a turn");
        self.0.turn.fetch_add(1, Ordering::Relaxed) % count
    }

    fn default_deadline(&self) -> Instant {
        Instant::now() + DEFAULT_TIMEOUT.duration()
    }
}
