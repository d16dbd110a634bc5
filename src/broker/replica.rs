//! This node's part in one broker group: what its replica's state, lane and waiters make possible.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::base::{
    BrokerGroupId, BrokerGroupName, ClientId, GroupId, GroupName, Millis, NodeId, TopicId,
    TopicName,
};
use crate::broker::clients::Clients;
use crate::broker::desk::Desks;
use crate::broker::lane::{self, Lane};
use crate::broker::members::Goals;
use crate::broker::pulse::Pulse;
use crate::broker::subscriptions::Subscriptions;
use crate::broker::transactions::Producers;
use crate::broker::waiters::Waiters;
use crate::broker::written::Written;
use crate::broker::{ASKED_OF_BROKER, Bell, Options};
use crate::env::Env;
use crate::index::Index;
use crate::raft::{AskError, Group};

/// How long a request without a deadline of its own may take.
const DEFAULT_TIMEOUT: Millis = Millis::from_secs(3);

/// A broker group as this node takes part in it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Replica(Arc<Inner>);

/// What the clones of a [`Replica`] share; its fields and methods are this room's own.
#[derive(Debug)]
pub struct Inner {
    pub(super) env: Env,
    pub(super) name: BrokerGroupName,
    pub(super) id: BrokerGroupId,
    pub(super) group: Group,
    pub(super) options: Options,
    /// Shared by all replicas of the node.
    pub(super) clients: Clients,
    /// Shared as well.
    pub(super) producers: Producers,
    pub(super) desks: Desks,
    pub(super) lane: Lane,
    pub(super) waiters: Waiters,
    pub(super) written: Written,
    pub(super) subscriptions: Subscriptions,
    /// Spreads sends over the queues of their topics.
    pub(super) turn: AtomicU32,
    /// The secret of receipt handles, once it was read from the state.
    handle_key: Mutex<Option<[u8; 32]>>,
    pub(super) goals: Goals,
    pub(super) pulse: Arc<Notify>,
    pub(super) expired: Arc<Mutex<BTreeMap<(GroupId, TopicId), u64>>>,
    pub(super) dead: Arc<Mutex<BTreeMap<(GroupId, TopicId), u64>>>,
    /// Follows the applied log; another task of the node fills it.
    pub(super) index: Option<Index>,
}

impl std::ops::Deref for Replica {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Replica {
    /// The replica's broker and its duties, which the caller runs until it stops the node.
    pub(super) fn new(
        env: Env,
        name: BrokerGroupName,
        (group, bell, index): (Group, &Bell, Option<Index>),
        (clients, producers): (Clients, Producers),
        options: Options,
    ) -> (Self, Pulse) {
        let (lane, lane_task) = lane::lane();
        let replica = Self(Arc::new(Inner {
            env,
            id: name.id(),
            name,
            group,
            options,
            clients,
            producers,
            desks: Desks::default(),
            lane,
            waiters: bell.waiters.clone(),
            written: Written::default(),
            subscriptions: Subscriptions::default(),
            turn: AtomicU32::new(0),
            handle_key: Mutex::new(None),
            goals: Goals::default(),
            pulse: bell.pulse.clone(),
            expired: bell.expired.clone(),
            dead: bell.dead.clone(),
            index,
        }));
        let pulse = Pulse::new(replica.clone(), lane_task);
        (replica, pulse)
    }

    /// A consumer lives, as another node says, or as a new leader has to take it.
    pub(super) fn client_told(&self, client: &ClientId) {
        self.clients.told(client, self.env.clock.monotonic());
    }
}

impl Inner {
    pub(super) fn knows_topic(&self, topic: &TopicName) -> bool {
        self.group.read(|state| state.topic(topic).is_some())
    }

    pub(super) fn knows_group(&self, group: &GroupName) -> bool {
        self.group.read(|state| state.group(group).is_some())
    }

    pub(super) fn node(&self) -> NodeId {
        self.group.node()
    }

    pub(super) fn leader(&self) -> Option<NodeId> {
        self.group.leadership().borrow().leader
    }

    /// This node leads and may answer as the leader.
    pub(super) fn serving(&self) -> bool {
        self.group.leadership().borrow().serving && self.group.is_awake()
    }

    /// Returns when leadership moved, or after `pause`.
    pub(super) async fn leader_changed(&self, pause: Millis) {
        let mut leadership = self.group.leadership();
        let changed = leadership.changed();
        // Running out of the pause is one of the two ways to go on.
        drop(tokio::time::timeout(pause.duration(), changed).await);
    }

    /// Returns when somebody else leads.
    pub(super) async fn left_behind(&self, leader: NodeId) {
        let mut leadership = self.group.leadership();
        let moved = leadership.wait_for(|now| now.leader.is_some_and(|now| now != leader));
        if moved.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn default_deadline(&self) -> Instant {
        Instant::now() + DEFAULT_TIMEOUT.duration()
    }

    pub(super) async fn ask(
        &self,
        node: NodeId,
        question: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, AskError> {
        let mut request = Vec::with_capacity(1 + question.len());
        request.push(ASKED_OF_BROKER);
        request.extend_from_slice(&question);
        self.group.ask(node, request.into(), deadline).await
    }

    pub(super) fn handle_key(&self) -> Option<[u8; 32]> {
        let mut key = self.handle_key.lock();
        if key.is_none() {
            *key = self.group.read(|state| state.founded().map(|found| found.handle_key));
        }
        *key
    }
}
