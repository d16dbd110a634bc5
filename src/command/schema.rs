//! Topics, groups and subscriptions.

use super::Backoff;
use super::Begin;
use crate::base::{ClusterId, GroupId, GroupName, Millis, TopicId, TopicName};
use crate::message::MessageKind;

/// What a broker group is born with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub cluster: ClusterId,
    /// Signs receipt handles, so that any node can check one.
    pub handle_key: [u8; 32],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTopic {
    pub name: TopicName,
    /// 1 to [`crate::machine::QUEUES_MAX`].
    pub queues: u32,
    /// The kinds it takes, at least one, sorted.
    pub kinds: Vec<MessageKind>,
    /// How long its messages can be read at least and, to within a mark, at most. `None` as long as
    /// the broker group keeps its log.
    pub keep: Option<Millis>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateGroup {
    pub name: GroupName,
    /// Deliveries a message gets before it counts as exhausted, 1 to 1000.
    pub attempts_max: u32,
    pub backoff: Backoff,
    pub rule: OrderRule,
    /// How long its dead letters can be read; `None` as long as the broker group keeps its log.
    pub dead_keep: Option<Millis>,
    pub begin: Begin,
}

/// What a consumer group does about the order of messages that share a message group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderRule {
    pub order: Order,
    pub exhausted: Exhausted,
}

/// How messages of one message group are handed out. Persisted, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    /// In order, one at a time, on topics that take FIFO messages: right for consumers that process
    /// what they get side by side.
    #[default]
    Single = 1,
    /// In order on every topic, several at once: for consumers that process what they get one after
    /// the other, which clients are told to do.
    Batch = 2,
    /// As if there were no message groups.
    Off = 3,
}

/// What becomes of the first message of a message group after its last attempt. Persisted, never
/// reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Exhausted {
    /// It is a dead letter, and the next one comes.
    #[default]
    Dead = 1,
    /// The message group stands still until somebody resumes it.
    Stop = 2,
}

impl Order {
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Batch => "batch",
            Self::Off => "off",
        }
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Single, Self::Batch, Self::Off].into_iter().find(|order| *order as u8 == byte)
    }
}

impl Exhausted {
    pub fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Stop => "stop",
        }
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Dead, Self::Stop].into_iter().find(|rule| *rule as u8 == byte)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    pub group: GroupId,
    pub topic: TopicId,
    /// The filter in its normal form, see [`crate::filter::Filter`].
    pub expression: String,
}
