//! Topics, groups and subscriptions.

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
    /// Waiting time after the n-th failed attempt; the last one repeats. Told to clients.
    pub backoff: Vec<Millis>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    pub group: GroupId,
    pub topic: TopicId,
    /// The filter in its normal form, see [`crate::filter::TagFilter`].
    pub expression: String,
}
