//! What goes in and what comes out, in no protocol's words. The field names are the keys of
//! `--output json` and stay as they are.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::base::{GroupName, TopicName};
use crate::wire::raftmq as v1;

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub topic: TopicName,
    pub body: Bytes,
    pub tag: Option<String>,
    pub keys: Vec<String>,
    pub properties: Vec<(String, String)>,
    /// Messages of one message group come in the order in which they were sent.
    pub message_group: Option<String>,
    /// From 0 to 2147483647; what is higher goes first, in topics that take priorities.
    pub priority: Option<u32>,
}

impl Draft {
    /// Nothing but a body.
    pub fn new(topic: TopicName, body: impl Into<Bytes>) -> Self {
        Self {
            topic,
            body: body.into(),
            tag: None,
            keys: Vec::new(),
            properties: Vec::new(),
            message_group: None,
            priority: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SentMessage {
    pub message_id: String,
    /// 0 for a delayed message, which has none before it is visible.
    pub offset: i64,
    /// Names a delayed message, to recall it or to change its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recall_handle: Option<String>,
}

/// How a delayed message is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delayed {
    /// As sending it answered.
    Handle(String),
    /// By its message id: the oldest of this id that is still to come.
    Id(String),
}

/// What came of a recall, or of a change of the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DelayedOutcome {
    pub message_id: String,
    /// `RECALLED`, `RESCHEDULED`, `ALREADY_FIRED` or `NOT_FOUND`.
    pub outcome: &'static str,
}

/// What the filter of a [`Take`] begins with where it is a condition and not tags.
pub const SQL_PREFIX: &str = "sql:";

/// What to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    pub topic: TopicName,
    pub group: GroupName,
    /// A tag expression, `*` for everything, or [`SQL_PREFIX`] and a condition.
    pub filter: String,
    /// 1 to 32.
    pub max: u32,
    /// How long the messages stay hidden from others.
    pub invisible: Duration,
    /// How long to wait for a first message.
    pub wait: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Received {
    pub message_id: String,
    pub topic: String,
    pub tag: Option<String>,
    pub message_group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    pub keys: Vec<String>,
    pub properties: BTreeMap<String, String>,
    #[serde(skip)]
    pub body: Bytes,
    pub queue: i32,
    pub offset: i64,
    pub attempt: i32,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub stored: u64,
    pub handle: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteQueue {
    pub queue: i32,
    pub broker: String,
    /// `host:port`, several separated by commas.
    pub address: String,
}

/// What topics are to be like that are created together.
#[derive(Clone, Copy, Debug)]
pub struct TopicShape<'a> {
    pub queues: u32,
    pub kinds: &'a [String],
    /// None stands for all.
    pub broker_groups: &'a [String],
    /// Milliseconds that its messages can be read; 0 as long as the log is kept.
    pub keep: u64,
}

/// Waiting times that grow: the first one, then `growth` thousandths times as long each, up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BackoffCurve {
    /// Milliseconds, at least 1.
    pub initial: u64,
    /// Milliseconds.
    pub max: u64,
    /// 1000 to 100000.
    pub growth: u32,
}

impl BackoffCurve {
    pub(super) fn wire(self) -> v1::BackoffCurve {
        let Self { initial, max, growth } = self;
        v1::BackoffCurve { initial, max, growth }
    }

    pub(super) fn told(told: v1::BackoffCurve) -> Self {
        let v1::BackoffCurve { initial, max, growth } = told;
        Self { initial, max, growth }
    }
}

/// What a consumer group is to be like.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupShape<'a> {
    /// 0 stands for the broker's own choice.
    pub attempts_max: u32,
    /// Milliseconds; none stands for the broker's own choice.
    pub backoff: &'a [u64],
    /// None stands for all.
    pub broker_groups: &'a [String],
    /// `single`, `batch` or `off`; empty stands for `single`.
    pub order: &'a str,
    /// `dead` or `stop`; empty stands for `dead`.
    pub exhausted: &'a str,
    /// Instead of `backoff`.
    pub curve: Option<BackoffCurve>,
    /// Milliseconds that its dead letters can be read; 0 as long as the log is kept.
    pub dead_keep: u64,
    /// Where it begins in a topic that it uses for the first time: `earliest`, which is what `None`
    /// stands for, `latest` or a time.
    pub start: Option<ResetTo>,
    /// Nothing is handed out before it is resumed.
    pub paused: bool,
}

/// A place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetTo {
    /// The first message that there is.
    Earliest,
    /// Behind the last one.
    Latest,
    /// The first message that became visible then or later; milliseconds since 1970-01-01T00:00:00Z.
    Time(u64),
    Offset(u64),
}

/// A consumer group is to go on from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReset<'a> {
    pub group: &'a GroupName,
    pub topic: &'a TopicName,
    pub to: ResetTo,
    /// `None` for all.
    pub queue: Option<u32>,
    /// None stands for all.
    pub broker_groups: &'a [String],
    pub dry_run: bool,
}

/// What a reset comes to in one broker group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResetPart {
    pub broker_group: String,
    /// How often the group has been reset in the topic.
    pub epoch: u32,
    pub queues: Vec<QueueReset>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueReset {
    pub queue: u32,
    /// The first message that the group was not done with.
    pub from: u64,
    pub to: u64,
    /// Messages that come again though they were handed out, or done with.
    pub again: u64,
    /// Messages that the group was not done with and does not get.
    pub passed_by: u64,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Whether something may follow behind the last of `items`.
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopicInfo {
    pub name: String,
    /// One for each broker group that has the topic.
    pub parts: Vec<TopicPart>,
    /// In words, how the broker groups differ.
    pub differences: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopicPart {
    pub broker_group: String,
    pub id: u64,
    pub kinds: Vec<String>,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub created: u64,
    pub queues: Vec<QueueInfo>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueInfo {
    pub queue: u32,
    pub start: u64,
    pub end: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupInfo {
    pub name: String,
    /// One for each broker group that has the consumer group.
    pub parts: Vec<GroupPart>,
    /// In words, how the broker groups differ.
    pub differences: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupPart {
    pub broker_group: String,
    pub id: u64,
    pub attempts_max: u32,
    /// Milliseconds.
    pub backoff: Vec<u64>,
    /// `single`, `batch` or `off`.
    pub order: String,
    /// What follows a last attempt in order: `dead` or `stop`.
    pub exhausted: String,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub created: u64,
    pub topics: Vec<GroupTopic>,
    /// Instead of `backoff`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curve: Option<BackoffCurve>,
    /// Milliseconds that its dead letters can be read; 0 as long as the log is kept.
    pub dead_keep: u64,
    /// From when on it wants messages, in milliseconds since 1970-01-01T00:00:00Z; absent from the
    /// first one that there is.
    pub start: Option<u64>,
    /// Nothing is handed out.
    pub paused: bool,
    /// Only where one group is described.
    pub instances: Vec<GroupInstance>,
}

/// An instance that sees everything of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupInstance {
    pub topic: String,
    pub instance: String,
    /// Messages that it has not passed.
    pub behind: u64,
    /// Its positions are kept until then: milliseconds since 1970-01-01T00:00:00Z.
    pub lease_until: u64,
    /// Taken by retention before it had passed them, ever.
    pub lost: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupTopic {
    pub topic: String,
    pub ready: u64,
    pub in_flight: u64,
    /// Taken by retention before the group was done with them, ever.
    pub expired: u64,
    /// Given up after their last attempts, ever.
    pub dead: u64,
    /// Message groups that stand still after a last attempt.
    pub stopped: u64,
    /// Of the dead, those that are dead letters now.
    pub dead_letters: u64,
    /// How often the group was reset here.
    pub epoch: u32,
    /// Those of live members, in their normal form: tags, or `sql:` and a condition.
    pub filters: Vec<String>,
    /// Since when members use different ones, in milliseconds since 1970-01-01T00:00:00Z.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differ_since: Option<u64>,
    /// How often they began to, ever.
    pub conflicts: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BrokerGroupStatus {
    pub group: String,
    /// The log index at which the hashes were taken.
    pub audit_index: Option<u64>,
    /// What an OK to a send stands for.
    pub durability: String,
    pub nodes: Vec<NodeStatus>,
}

/// One replica; what could not be asked is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    pub node: u64,
    pub role: String,
    /// Its vote counts.
    pub voter: bool,
    pub term: u64,
    /// The first log index that it still holds.
    pub first: Option<u64>,
    /// The entry up to which the log has left by retention.
    pub floor: Option<u64>,
    pub last: Option<u64>,
    pub committed: Option<u64>,
    pub applied: Option<u64>,
    pub behind_entries: Option<u64>,
    pub behind_bytes: Option<u64>,
    /// 16 hexadecimal digits, as JSON numbers do not hold 64 bits.
    pub state_hash: Option<String>,
    pub units_hash: Option<String>,
    pub grpc: String,
    pub error: Option<String>,
}

/// A node that is to come, with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    pub node: u64,
    pub peer: String,
    pub grpc: String,
}

/// A change of who belongs to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembersChange {
    Add(NewMember),
    Remove(u64),
    Replace { old: u64, new: NewMember },
}

/// How far one broker group is with a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MembersStep {
    pub broker_group: String,
    /// `done`, `waiting`, `catching-up` or `refused`.
    pub state: &'static str,
    /// One sentence.
    pub text: String,
    /// The last entry that a learner has applied.
    pub has: Option<u64>,
    /// The entry that makes it a voter.
    pub goal: Option<u64>,
    pub bytes_left: Option<u64>,
}
