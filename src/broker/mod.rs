//! What a client can ask for, in no protocol's words.
//!
//! What it is: [`Broker`], the facade that every protocol speaks to, on every node. Behind it is a
//! [`Replica`] for each broker group that the node takes part in, which checks, builds commands,
//! proposes them, keeps the long polls that wait, and does what only a leader does (ticks,
//! renewals). The facade chooses the broker group: a send goes to one, a receive takes from all.
//! Promises: an `Ok` is applied and durable at a majority; "unknown" is said when it is not known;
//! losing everything this room holds in memory loses no message.
//! Never: protocol types, stored state, or a decision that replicas would have to share.
//! Start reading at `api`, then `facade`, `send`, `receive`, `pulse`.

mod ack;
mod answer;
mod api;
mod broadcast;
mod clients;
mod dead_letters;
mod cursors;
mod delay;
mod desk;
mod error;
mod facade;
mod find;
mod forward;
mod gone;
mod groups;
mod handle;
mod judge;
mod lane;
mod members;
mod propose;
mod pull;
mod pulse;
mod readers;
mod receive;
mod remote;
mod replica;
mod retention;
mod send;
mod status;
mod subscriptions;
mod topics;
mod transactions;
mod waiters;
mod watch;
mod written;

pub use api::{
    AckRequest, Assignment, BrokerNode, CatchUp, ClientKind, DelayedMessage, Delivered, FilterText,
    GroupInfo, GroupInstance, GroupPart, GroupStatus, GroupTopic, HoldRequest, MembersChange,
    MembersStep, NewGroup, NewTopic, NodeStatus, QueueInfo, ReceiveRequest, Route, SendRequest,
    Sent, StepOutcome, TimerAnswer, TimerChange, TimerRequest, TopicInfo, TopicPart,
};
pub use broadcast::{
    CommitPlace, FETCH_MAX, FetchPlace, FetchRequest, FetchedPart, InstancePlace, LEASE_MAX,
    LeaveRequest, PlaceRequest,
};
pub use cursors::{QueueReset, ResetRequest, ResetStep, ResetTo};
pub use dead_letters::{
    DeadLetterInfo, DeathFacts, GroupChange, LetterCursor, LetterFilter, LetterPage, RedrivenLetter,
};
pub use error::{
    AckError, BadHandle, BadRecallHandle, BadTransactionId, DecidedOtherwise, DelayTooLong,
    DiskFull, EndError, GroupError, HalvesFull, HoldError, KindConflict, KindNotYet, LimitError,
    NoBrokerGroup, NoGroup, NoTopic, NoTransaction, NotWritable, OffsetError, Overloaded,
    ReceiveError, RouteError, SendError, TimerError, TopicError, Unavailable,
};
pub use facade::{Broker, Seat};
pub use find::{
    Answer, AnswerPart, FindError, FoundMessage, FoundState, KeyQuery, QUERY_MAX, Wanted,
};
pub use gone::{Gone, Leaving, leaving};
pub use pull::{OffsetOf, PULL_QUEUES, PullRequest, Pulled, QueueRequest};
pub use pulse::Pulse;
pub use receive::RECEIVE_BATCH_MAX;
pub use replica::Replica;
pub use transactions::{
    CheckRule, EndRequest, PUBLISHED_MAX, PendingCheck, PrepareRequest, PreparedMessage,
    ProducerStream, TransactionCheck, TransactionFilter, TransactionInfo,
};

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::{GroupId, Millis, NodeId, TopicId};
use crate::broker::waiters::Waiters;
use crate::command::Retention;
pub use crate::command::{
    Backoff, Begin, Curve, DeathReason, Decided, Decider, Decision, Exhausted, GROWTH_MAX, JoinAt,
    Order, OrderRule, Redriven, StartAt, TimerOutcome,
};
use crate::machine::Effect;
use crate::raft::EffectSink;
pub use crate::raft::Member;

/// The first byte of a peer request that is for a broker; `node` dispatches on it.
pub const ASKED_OF_BROKER: u8 = 0x01;

/// Which nodes clients can be sent to; kept by the name server.
pub trait Nodes: Send + Sync + std::fmt::Debug {
    /// Live nodes, sorted by id; on a broker this one included.
    fn live(&self) -> Vec<BrokerNode>;
}

/// How this node's broker behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub node: NodeId,
    /// Topics and groups come into being when they are first used (the dev profile).
    pub create_on_use: bool,
    /// Queues of a topic made on first use.
    pub queues_on_use: u32,
    /// What stored records say of where they were taken in.
    pub store_host: SocketAddrV4,
    /// What a broker group keeps while this node leads it.
    pub retention: Retention,
    /// How far ahead a message may be delayed.
    pub delay_max: Millis,
    /// How half messages that this node takes in are asked about.
    pub checks: CheckRule,
}

/// Carries effects from the machine to whoever waits; made before the raft group, which needs it.
#[derive(Clone, Debug, Default)]
pub struct Bell {
    waiters: Waiters,
    pulse: Arc<Notify>,
    /// Messages that retention took before their groups were done with them, until they are told.
    expired: Arc<Mutex<BTreeMap<(GroupId, TopicId), u64>>>,
    /// Messages that became dead letters, until they are told.
    dead: Arc<Mutex<BTreeMap<(GroupId, TopicId), u64>>>,
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
                Effect::TopicGone { .. } | Effect::GroupGone { .. } | Effect::Resumed { .. } => {
                    self.waiters.wake_all();
                }
                Effect::Expired { group, topic, count } => {
                    *self.expired.lock().entry((group, topic)).or_default() += count;
                }
                Effect::Dead { group, topic, count } => {
                    *self.dead.lock().entry((group, topic)).or_default() += count;
                }
            }
        }
        self.pulse.notify_one();
    }
}
