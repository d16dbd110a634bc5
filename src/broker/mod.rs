//! What a client can ask for, in no protocol's words.
//!
//! What it is: [`Broker`], the facade that every protocol speaks to, on every node. It checks,
//! builds commands, proposes them, keeps the long polls that wait, and does what only a leader
//! does (ticks, renewals).
//! Promises: an `Ok` is applied and durable at a majority; "unknown" is said when it is not known;
//! losing everything this room holds in memory loses no message.
//! Never: protocol types, stored state, or a decision that replicas would have to share.
//! Start reading at `api`, then `send`, `receive`, `pulse`.

mod ack;
mod answer;
mod api;
mod clients;
mod desk;
mod error;
mod groups;
mod handle;
mod lane;
mod propose;
mod pulse;
mod receive;
mod remote;
mod route;
mod send;
mod status;
mod subscriptions;
mod topics;
mod waiters;

pub use api::{
    AckRequest, Assignment, BrokerNode, ClientKind, Delivered, GroupInfo, GroupStatus, GroupTopic,
    HoldRequest, NewGroup, NewTopic, NodeStatus, QueueInfo, ReceiveRequest, Route, SendRequest,
    Sent, TopicInfo,
};
pub use error::{
    AckError, BadHandle, GroupError, HoldError, KindConflict, KindNotYet, LimitError, NoGroup,
    NoTopic, Overloaded, ReceiveError, RouteError, SendError, TopicError, Unavailable,
};
pub use pulse::Pulse;
pub use receive::RECEIVE_BATCH_MAX;

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::base::{BrokerGroupName, ClientId, GroupName, Millis, NodeId};
use crate::broker::clients::Clients;
use crate::broker::desk::Desks;
use crate::broker::lane::Lane;
use crate::broker::subscriptions::Subscriptions;
use crate::broker::waiters::Waiters;
use crate::env::Env;
use crate::machine::Effect;
use crate::raft::{AskError, EffectSink, Group};

/// The first byte of a peer request that is for a broker; `node` dispatches on it.
pub const ASKED_OF_BROKER: u8 = 0x01;

/// Which nodes clients can be sent to; kept by the name server.
pub trait Nodes: Send + Sync + std::fmt::Debug {
    /// Live nodes, sorted by id, this one included.
    fn live(&self) -> Vec<BrokerNode>;
}

/// How this node's broker behaves.
#[derive(Clone, Debug)]
pub struct Options {
    pub group: BrokerGroupName,
    /// Topics and groups come into being when they are first used (the dev profile).
    pub create_on_use: bool,
    /// Queues of a topic made on first use.
    pub queues_on_use: u32,
    /// What stored records say of where they were taken in.
    pub store_host: SocketAddrV4,
}

/// The facade. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker(Arc<Inner>);

/// What the clones of a [`Broker`] share; its fields and methods are this room's own.
#[derive(Debug)]
pub struct Inner {
    env: Env,
    group: Group,
    nodes: Arc<dyn Nodes>,
    options: Options,
    clients: Clients,
    desks: Desks,
    lane: Lane,
    waiters: Waiters,
    subscriptions: Subscriptions,
    /// Spreads sends over the queues of their topics.
    turn: AtomicU32,
    /// The secret of receipt handles, once it was read from the state.
    handle_key: Mutex<Option<[u8; 32]>>,
    pulse: Arc<Notify>,
}

impl std::ops::Deref for Broker {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Carries effects from the machine to whoever waits; made before the raft group, which needs it.
#[derive(Clone, Debug, Default)]
pub struct Bell {
    waiters: Waiters,
    pulse: Arc<Notify>,
}

impl EffectSink for Bell {
    fn applied(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Arrived { topic, count, .. } => {
                    self.waiters.arrived(topic, count as usize);
                }
                Effect::Ready { group, topic, count } => {
                    self.waiters.ready(group, topic, count as usize);
                }
                Effect::TopicGone { .. } | Effect::GroupGone { .. } => self.waiters.wake_all(),
            }
        }
        self.pulse.notify_one();
    }
}

/// How long a request without a deadline of its own may take.
const DEFAULT_TIMEOUT: Millis = Millis::from_secs(3);

impl Broker {
    /// The broker and its duties, which the caller runs until it stops the node.
    pub fn new(
        env: Env,
        group: Group,
        bell: &Bell,
        nodes: Arc<dyn Nodes>,
        options: Options,
    ) -> (Self, Pulse) {
        assert!(options.queues_on_use > 0, "a topic has at least one queue");
        let (lane, lane_task) = lane::lane();
        let broker = Self(Arc::new(Inner {
            env,
            group,
            nodes,
            options,
            clients: Clients::default(),
            desks: Desks::default(),
            lane,
            waiters: bell.waiters.clone(),
            subscriptions: Subscriptions::default(),
            turn: AtomicU32::new(0),
            handle_key: Mutex::new(None),
            pulse: bell.pulse.clone(),
        }));
        let pulse = Pulse::new(broker.clone(), lane_task);
        (broker, pulse)
    }

    /// A client showed that it lives (any rpc with its id may call this).
    pub fn client_seen(&self, client: &ClientId, kind: ClientKind, group: Option<&GroupName>) {
        self.clients.seen(client, kind, group, self.env.clock.monotonic());
    }

    /// Long polls that wait on this node.
    pub fn waiting(&self) -> usize {
        self.waiters.waiting()
    }
}

impl Inner {
    fn node(&self) -> NodeId {
        self.group.node()
    }

    fn leader(&self) -> Option<NodeId> {
        self.group.leadership().borrow().leader
    }

    /// This node leads and may answer as the leader.
    fn serving(&self) -> bool {
        self.group.leadership().borrow().serving
    }

    /// Returns when leadership moved, or after `pause`.
    async fn leader_changed(&self, pause: Millis) {
        let mut leadership = self.group.leadership();
        let changed = leadership.changed();
        // Running out of the pause is one of the two ways to go on.
        drop(tokio::time::timeout(pause.duration(), changed).await);
    }

    /// Returns when somebody else leads.
    async fn left_behind(&self, leader: NodeId) {
        let mut leadership = self.group.leadership();
        let moved = leadership.wait_for(|now| now.leader.is_some_and(|now| now != leader));
        if moved.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn default_deadline(&self) -> Instant {
        Instant::now() + DEFAULT_TIMEOUT.duration()
    }

    async fn ask(
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

    fn handle_key(&self) -> Option<[u8; 32]> {
        let mut key = self.handle_key.lock();
        if key.is_none() {
            *key = self.group.read(|state| state.founded().map(|found| found.handle_key));
        }
        *key
    }

    /// 128 random bits as text.
    fn fresh_id(&self) -> String {
        format!("{:016x}{:016x}", self.env.entropy.u64(), self.env.entropy.u64())
    }
}
