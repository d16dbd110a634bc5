//! The values that requests and answers are made of.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{
    BrokerGroupName, ClientId, Durability, GroupId, GroupName, LogIndex, Millis, NodeId, QueueId,
    QueueOffset, TopicId, TopicName, UtcMillis,
};
use crate::broker::dead_letters::DeathFacts;
use crate::broker::error::ReceiveError;
use crate::command::{Backoff, Begin, OrderRule, TimerOutcome};
use crate::filter::{Filter, FilterError};
use crate::message::{Message, MessageKind};
use crate::raft::Member;

/// Messages of one request. They share a topic; the protocol has checked that.
#[derive(Clone, Debug)]
pub struct SendRequest {
    pub topic: TopicName,
    pub messages: Vec<Message>,
    /// When the client stops listening.
    pub deadline: Instant,
}

/// Where one message went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub message_id: String,
    pub queue: QueueId,
    /// 0 for a delayed message, which has none before it is visible.
    pub offset: QueueOffset,
    /// Names a delayed message, to recall it or to change its time.
    pub recall_handle: Option<String>,
}

/// Something is asked for a delayed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerRequest {
    pub topic: TopicName,
    pub which: DelayedMessage,
    pub change: TimerChange,
    pub deadline: Instant,
}

/// How a delayed message is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DelayedMessage {
    /// As sending it answered.
    Handle(String),
    /// By its message id: the oldest of this id that is still to come.
    Id(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerChange {
    Recall,
    /// What has passed becomes visible at once.
    DeliverAt(UtcMillis),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerAnswer {
    pub message_id: String,
    pub outcome: TimerOutcome,
}

#[derive(Clone, Debug)]
pub struct ReceiveRequest {
    pub topic: TopicName,
    pub group: GroupName,
    pub client: ClientId,
    pub filter: FilterText,
    /// 1 to 32.
    pub batch: u32,
    /// How long the messages stay hidden. With `auto_renew` the broker chooses and extends it.
    pub invisible: Millis,
    pub auto_renew: bool,
    pub attempt_id: Option<String>,
    /// How long to wait for a message.
    pub poll: Duration,
}

/// Which messages a consumer wants, as it wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterText {
    /// Tags with `||` between; empty or `*` is everything.
    Tags(String),
    /// An SQL92 condition; a blank one is refused.
    Sql(String),
}

impl FilterText {
    pub(super) fn parse(&self) -> Result<Filter, FilterError> {
        match self {
            Self::Tags(expression) => Filter::tags(expression),
            Self::Sql(expression) => Filter::sql(expression),
        }
    }

    /// Refuses what a receive would refuse, with the place of the mistake.
    pub fn check(&self) -> Result<(), ReceiveError> {
        Ok(self.parse().map(drop)?)
    }
}

/// One message on its way to a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    pub message: Message,
    pub queue: QueueId,
    pub offset: QueueOffset,
    /// When it became visible.
    pub stored: UtcMillis,
    pub store_host: String,
    /// 1 for the first delivery.
    pub attempt: u32,
    /// The receipt handle as text.
    pub handle: String,
    /// What is known of its death, when it comes from a topic of dead letters and is one still.
    pub death: Option<DeathFacts>,
}

#[derive(Clone, Debug)]
pub struct AckRequest {
    pub topic: TopicName,
    pub group: GroupName,
    pub handles: Vec<String>,
    pub deadline: Instant,
}

#[derive(Clone, Debug)]
pub struct HoldRequest {
    pub topic: TopicName,
    pub group: GroupName,
    pub handle: String,
    /// 0 to 12 hours.
    pub invisible: Millis,
    pub deadline: Instant,
}

/// One live node, which clients see as a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerNode {
    pub node: NodeId,
    /// Its own name, stable for ever.
    pub name: String,
    /// The address it tells clients: a host name or an IPv4 literal.
    pub host: String,
    pub port: u16,
}

/// Where a topic can be reached: on every live node, since each forwards to the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Sorted by node; never empty.
    pub nodes: Vec<BrokerNode>,
    /// The most that any broker group has.
    pub queues: u32,
    /// What some broker group takes.
    pub kinds: Vec<MessageKind>,
}

/// What a push consumer is to poll: every live node, any queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub nodes: Vec<BrokerNode>,
    pub kinds: Vec<MessageKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    Producer,
    PushConsumer,
    SimpleConsumer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    pub name: TopicName,
    /// 1 to 1024.
    pub queues: u32,
    pub kinds: Vec<MessageKind>,
    /// Where; none stands for all.
    pub broker_groups: Vec<BrokerGroupName>,
    /// How long its messages can be read; `None` as long as the log is kept.
    pub keep: Option<Millis>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGroup {
    pub name: GroupName,
    /// 1 to 1000.
    pub attempts_max: u32,
    pub backoff: Backoff,
    pub rule: OrderRule,
    /// Where; none stands for all.
    pub broker_groups: Vec<BrokerGroupName>,
    /// How long its dead letters can be read; `None` as long as the log is kept.
    pub dead_keep: Option<Millis>,
    pub begin: Begin,
}

/// A topic as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    pub name: TopicName,
    /// One for each broker group that has it, by name; never empty.
    pub parts: Vec<TopicPart>,
    /// In words, how the broker groups differ. Making the topic again makes them alike where it is
    /// only missing.
    pub differences: Vec<String>,
}

/// What one broker group has of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPart {
    pub broker_group: BrokerGroupName,
    pub id: TopicId,
    pub kinds: Vec<MessageKind>,
    pub created: UtcMillis,
    pub queues: Vec<QueueInfo>,
}

/// A queue holds the messages `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    pub queue: QueueId,
    pub start: QueueOffset,
    pub end: QueueOffset,
}

/// A consumer group as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    pub name: GroupName,
    /// One for each broker group that has it, by name; never empty.
    pub parts: Vec<GroupPart>,
    /// In words, how the broker groups differ.
    pub differences: Vec<String>,
}

/// What one broker group has of a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPart {
    pub broker_group: BrokerGroupName,
    pub id: GroupId,
    pub attempts_max: u32,
    pub backoff: Backoff,
    pub rule: OrderRule,
    pub created: UtcMillis,
    pub topics: Vec<GroupTopic>,
    /// How long its dead letters can be read; `None` as long as the log is kept.
    pub dead_keep: Option<Millis>,
    /// From when on it wants messages; `None` from the first one that there is.
    pub start: Option<UtcMillis>,
    /// Nothing is handed out.
    pub paused: bool,
    /// At most 1000, in the order of topics and names; only where one group is described.
    pub instances: Vec<GroupInstance>,
}

/// An instance that sees everything of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInstance {
    pub topic: TopicName,
    pub instance: ClientId,
    /// Messages that it has not passed.
    pub behind: u64,
    /// Its positions are kept until then.
    pub lease_until: UtcMillis,
    /// Taken by retention before it had passed them, ever.
    pub lost: u64,
}

/// What a group has before it on one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTopic {
    pub topic: TopicName,
    /// Could be handed out now.
    pub ready: u64,
    /// Handed out, not acknowledged, still hidden.
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
    /// Those of live members, in their normal form.
    pub filters: Vec<String>,
    /// Since when members use different ones at the same time.
    pub differ_since: Option<UtcMillis>,
    /// How often they began to, ever.
    pub conflicts: u64,
}

/// A change of who belongs to the broker groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembersChange {
    Add(Member),
    Remove(NodeId),
    /// The new one comes, catches up, and takes the old one's place in one step.
    Replace {
        old: NodeId,
        new: Member,
    },
}

/// How far one broker group is with a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembersStep {
    pub broker_group: BrokerGroupName,
    pub outcome: StepOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// Nothing is left to do.
    Done(String),
    /// Something was done or is under way; ask again.
    Waiting(String),
    /// Ask again in a while: a learner is on its way.
    CatchingUp(CatchUp),
    Refused(String),
}

/// A learner on its way to being a voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUp {
    pub node: NodeId,
    /// The last entry that it has applied, if it could be asked.
    pub has: Option<LogIndex>,
    /// The entry that it must have applied, and have on its disk, before it votes.
    pub goal: LogIndex,
    /// Bytes from its end of the log to the leader's.
    pub bytes_left: Option<u64>,
}

/// A broker group and its replicas, compared at one log index where they can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub group: BrokerGroupName,
    /// What an OK stands for.
    pub durability: Durability,
    /// The entry at which the state hashes were taken; `None` when no leader could be asked.
    pub audit: Option<LogIndex>,
    pub nodes: Vec<NodeStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    pub node: NodeId,
    /// `leader`, `follower`, `candidate`, `learner` or `unreachable`.
    pub role: String,
    /// Its vote counts; a learner's does not.
    pub voter: bool,
    pub term: u64,
    /// The first entry that is still in its log.
    pub first: Option<u64>,
    /// The entry up to which the log has left, which is the same on all once they have applied it.
    pub floor: Option<u64>,
    pub last: Option<u64>,
    pub committed: Option<u64>,
    pub applied: Option<u64>,
    /// Entries that it has to apply, and bytes that its log lacks, to be where the leader is.
    pub behind: Option<(u64, u64)>,
    /// Of everything that replicas must agree on, at the audit's index.
    pub state_hash: Option<u64>,
    /// Of every queue unit, at the audit's index; `None` too when an entry came right after it.
    pub units_hash: Option<u64>,
    pub grpc: String,
    pub error: Option<String>,
}
