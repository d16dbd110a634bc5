//! What applying a command answers to whoever proposed it.

use bytes::Bytes;

use super::{CommandError, Decided, Placed, Redriven, Scheduled, TimerOutcome, Unit, codec};
use crate::base::{
    CheckoutId, GroupId, LogIndex, LogPosition, QueueId, QueueOffset, TopicId, UtcMillis,
};

/// The answer to one command, equal on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Applied; nothing more to say.
    Done,
    Published(Vec<Published>),
    /// One for each delivery of the entry, in order.
    Deliveries(Vec<DeliveryOutcome>),
    TopicCreated {
        topic: TopicId,
        existed: bool,
    },
    GroupCreated {
        group: GroupId,
        existed: bool,
    },
    Subscribed {
        version: u32,
    },
    Ticked {
        fired: u32,
    },
    Audited {
        index: LogIndex,
        state_hash: u64,
    },
    /// One for each half message, in order.
    Prepared(Vec<Prepared>),
    /// A transaction is over as it was asked for; `repeated` when it was before.
    Ended {
        decided: Decided,
        repeated: bool,
    },
    /// How many checks counted.
    Checked {
        counted: u32,
    },
    Refused(Refusal),
    /// One for each message of the entry, in order.
    Scheduled(Vec<Scheduled>),
    Timer(TimerOutcome),
    /// One for each dead letter, in order.
    Redriven(Vec<Redriven>),
    /// Where an instance stands.
    Placed(Placed),
    /// The group goes on from elsewhere; how often it has been reset in the topic now.
    Reset {
        epoch: u32,
    },
    /// `first` when the members did not differ before.
    MembersDiffer {
        first: bool,
    },
}

impl Reply {
    /// The bytes in which a leader answers a node that forwarded a proposal.
    pub fn encode(&self) -> Bytes {
        codec::encode_reply(self)
    }

    pub fn decode(bytes: &Bytes) -> Result<Self, CommandError> {
        codec::decode_reply(bytes)
    }
}

/// Where a message went. A repeated message gets the outcome of its first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub queue: QueueId,
    pub offset: QueueOffset,
    pub visible: UtcMillis,
    pub repeated: bool,
}

/// Which transaction a half message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    pub at: LogPosition,
    pub repeated: bool,
}

/// What came of one [`crate::command::Delivery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    CheckedOut(CheckedOut),
    Done,
    /// The handle names a delivery that is over.
    Stale,
    /// The topic or the group is gone.
    Refused(Refusal),
}

/// What a checkout really got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedOut {
    pub checkout: CheckoutId,
    pub granted: Vec<Granted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub queue: QueueId,
    pub offset: QueueOffset,
    pub attempt: u32,
    pub unit: Unit,
    /// The checkout of the delivery: an earlier one when an attempt id was served again.
    pub checkout: CheckoutId,
}

/// Why a command changed nothing. Deterministic: it depends on the state and the command only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("topic {topic} does not exist (any more)")]
    NoTopic { topic: TopicId },
    #[error("consumer group {group} does not exist (any more)")]
    NoGroup { group: GroupId },
    #[error("queue {queue} does not exist; the topic has {queues}")]
    NoQueue { queue: QueueId, queues: u32 },
    #[error("the topic exists with {exists}; asked for {asked}")]
    TopicDiffers { exists: String, asked: String },
    #[error("{what}: {limit} is the limit")]
    Limit { what: String, limit: u64 },
    #[error("entry {mark} is not a mark that the log still has")]
    NoMark { mark: LogIndex },
    #[error(
        "{count} messages up to entry {mark} are still under way: the log keeps their records until \
         they are written again"
    )]
    UnderWay { mark: LogIndex, count: u64 },
    #[error(
        "{bytes} bytes of messages that are long under way are kept beyond the log's front, {limit} \
         at most: nothing new is handed out until some are acknowledged"
    )]
    MovedFull { bytes: u64, limit: u64 },
    #[error(
        "delayed messages would have {bytes} bytes together, {limit} at most: no more are taken \
         until some become visible or are recalled"
    )]
    DelayedFull { bytes: u64, limit: u64 },
    #[error(
        "there would be {count} delayed messages, {limit} at most, {visible} of them visible and \
         kept until retention is over: no more are taken until some leave; a shorter retention.time \
         or another broker group makes room"
    )]
    TimersFull { count: u64, visible: u64, limit: u64 },
    #[error(
        "no transaction has its message at {at}: it was decided too long ago to be remembered, its \
         topic was deleted, or there never was one"
    )]
    NoTransaction { at: LogPosition },
    #[error(
        "the transaction was {} by {} at {}, and the first decision stands",
        decided.decision.past(),
        decided.by.name(),
        decided.stamp
    )]
    Decided { decided: Decided },
    #[error(
        "{bytes} bytes of transactional messages would wait for their decisions, {limit} at most: \
         commit, roll back or wait for the checks"
    )]
    HalvesFull { bytes: u64, limit: u64 },
    #[error("topic {name} is for the dead letters of a consumer group that does not exist")]
    NoOwner { name: String },
    #[error("topic {topic} takes dead letters only, and no messages of producers")]
    DeadLettersOnly { topic: TopicId },
    #[error(
        "consumer group {group} has not begun in topic {topic}: where it begins is decided first"
    )]
    NotBegun { group: GroupId, topic: TopicId },
}
