//! Why a request failed: one struct for each cause, one enum for each operation.

use crate::base::{BrokerGroupName, GroupName, Millis, QueueOffset, TopicName};
use crate::broker::Replica;
use crate::filter::FilterError;
use crate::message::MessageKind;

/// No leader could be asked in time, or the node is ending. The request may be repeated; whether
/// it took effect is known only where `outcome_unknown` is false.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unavailable {
    pub reason: String,
    /// True when a proposal was under way: it may still be applied.
    pub outcome_unknown: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("topic {topic} does not exist; create it first (raftmq topic create {topic})")]
pub struct NoTopic {
    pub topic: TopicName,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("consumer group {group} does not exist; create it first (raftmq group create {group})")]
pub struct NoGroup {
    pub group: GroupName,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "broker group {broker_group} is not one of this cluster, which has {}",
    known.iter().map(BrokerGroupName::as_str).collect::<Vec<_>>().join(", ")
)]
pub struct NoBrokerGroup {
    pub broker_group: BrokerGroupName,
    pub known: Vec<BrokerGroupName>,
}

/// A message kind that the topic does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is of kind {}, but topic {topic} takes {}", kind.name(), takes.join(", "))]
pub struct KindConflict {
    pub topic: TopicName,
    pub kind: MessageKind,
    pub takes: Vec<&'static str>,
}

/// A topic that producers do not send to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "topic {topic} takes the dead letters of its consumer group, and nothing that is sent to it"
)]
pub struct NotWritable {
    pub topic: TopicName,
}

/// A kind that this version does not do yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("messages of kind {} are not supported by this version", kind.name())]
pub struct KindNotYet {
    pub kind: MessageKind,
}

/// A value outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value}; allowed is {allowed}")]
pub struct LimitError {
    pub what: &'static str,
    pub value: String,
    pub allowed: String,
}

/// A delayed message for a time that is too far away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is to be delivered in {ahead}; at most {max} ahead are allowed")]
pub struct DelayTooLong {
    pub ahead: Millis,
    pub max: Millis,
}

/// A recall handle that is malformed, forged, or of another topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recall handle {why}; give the one that sending the message answered")]
pub struct BadRecallHandle {
    pub why: &'static str,
}

/// More work than the node may hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; try again in {retry_after}")]
pub struct Overloaded {
    pub what: String,
    pub retry_after: Millis,
}

/// The disks of a majority have no room for new messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DiskFull {
    pub reason: String,
}

/// A receipt handle that is malformed, forged, or names a delivery that is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receipt handle {why}; receive the message again")]
pub struct BadHandle {
    pub why: &'static str,
}

/// More transactional messages wait for their decisions than may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct HalvesFull {
    pub reason: String,
}

/// A transaction id that is malformed, forged, or of another message or topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the transaction id {why}; use the one that sending the message answered")]
pub struct BadTransactionId {
    pub why: &'static str,
}

/// Nothing is known of it (any more).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NoTransaction {
    pub reason: String,
}

/// The first decision was another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DecidedOtherwise {
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndError {
    #[error(transparent)]
    BadTransactionId(#[from] BadTransactionId),
    #[error(transparent)]
    NoTransaction(#[from] NoTransaction),
    #[error(transparent)]
    DecidedOtherwise(#[from] DecidedOtherwise),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error(transparent)]
    NoTopic(#[from] NoTopic),
    #[error(transparent)]
    KindConflict(#[from] KindConflict),
    #[error(transparent)]
    KindNotYet(#[from] KindNotYet),
    #[error(transparent)]
    NotWritable(#[from] NotWritable),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    DelayTooLong(#[from] DelayTooLong),
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
    #[error(transparent)]
    DiskFull(#[from] DiskFull),
    #[error(transparent)]
    HalvesFull(#[from] HalvesFull),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimerError {
    #[error(transparent)]
    NoTopic(#[from] NoTopic),
    #[error(transparent)]
    KindConflict(#[from] KindConflict),
    #[error(transparent)]
    BadRecallHandle(#[from] BadRecallHandle),
    #[error(transparent)]
    DelayTooLong(#[from] DelayTooLong),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    #[error(transparent)]
    NoTopic(#[from] NoTopic),
    #[error(transparent)]
    NoGroup(#[from] NoGroup),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    #[error(transparent)]
    BadHandle(#[from] BadHandle),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    #[error(transparent)]
    BadHandle(#[from] BadHandle),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error(transparent)]
    NoTopic(#[from] NoTopic),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    #[error(transparent)]
    NoTopic(#[from] NoTopic),
    #[error("topic {topic} exists with {exists}, not with {asked}; delete it first")]
    Differs { topic: TopicName, exists: String, asked: String },
    #[error(transparent)]
    NoBrokerGroup(#[from] NoBrokerGroup),
    /// The other broker groups have it as asked; repeating the request goes on where it ended.
    #[error("in broker group {broker_group}: {source}")]
    At { broker_group: BrokerGroupName, source: Box<TopicError> },
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error(transparent)]
    NoGroup(#[from] NoGroup),
    #[error(transparent)]
    NoBrokerGroup(#[from] NoBrokerGroup),
    /// The other broker groups have it as asked; repeating the request goes on where it ended.
    #[error("in broker group {broker_group}: {source}")]
    At { broker_group: BrokerGroupName, source: Box<GroupError> },
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error(transparent)]
    NoTopic(#[from] NoTopic),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffsetError {
    #[error(transparent)]
    NoTopic(#[from] NoTopic),
    #[error(transparent)]
    NoGroup(#[from] NoGroup),
    #[error("offset {offset} lies behind the end of the queue, {end}")]
    Illegal { offset: QueueOffset, end: QueueOffset },
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl TopicError {
    pub(super) fn at(self, replica: &Replica) -> Self {
        Self::At { broker_group: replica.name.clone(), source: Box::new(self) }
    }
}

impl GroupError {
    pub(super) fn at(self, replica: &Replica) -> Self {
        Self::At { broker_group: replica.name.clone(), source: Box::new(self) }
    }
}

/// Making a topic on first use can fail in each of these ways; that it exists in another form is
/// no failure there.
macro_rules! from_topic_error {
    ($($error:ident),*) => {
        $(impl From<TopicError> for $error {
            fn from(error: TopicError) -> Self {
                match error {
                    TopicError::NoTopic(error) => error.into(),
                    TopicError::Limit(error) => error.into(),
                    TopicError::Unavailable(error) => error.into(),
                    TopicError::Differs { .. }
                    | TopicError::NoBrokerGroup(_)
                    | TopicError::At { .. } => {
                        unreachable!("a topic that is used may exist in any form and anywhere")
                    }
                }
            }
        })*
    };
}

from_topic_error!(SendError, ReceiveError, RouteError, OffsetError);

impl From<GroupError> for ReceiveError {
    fn from(error: GroupError) -> Self {
        match error {
            GroupError::NoGroup(error) => error.into(),
            GroupError::NoTopic(error) => error.into(),
            GroupError::Limit(error) => error.into(),
            GroupError::Unavailable(error) => error.into(),
            GroupError::NoBrokerGroup(_) | GroupError::At { .. } => {
                unreachable!("a group that is used may exist anywhere")
            }
        }
    }
}

impl From<GroupError> for OffsetError {
    fn from(error: GroupError) -> Self {
        match error {
            GroupError::NoGroup(error) => error.into(),
            GroupError::NoTopic(error) => error.into(),
            GroupError::Limit(error) => error.into(),
            GroupError::Unavailable(error) => error.into(),
            GroupError::NoBrokerGroup(_) | GroupError::At { .. } => {
                unreachable!("a group that is used may exist anywhere")
            }
        }
    }
}
