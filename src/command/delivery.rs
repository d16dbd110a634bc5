//! What happens between a queue and the members of a consumer group.

use crate::base::{
    CheckoutId, ClientId, GroupId, LogPosition, Millis, QueueId, QueueOffset, TopicId, UtcMillis,
};

/// Where a message is, and what can be known of it without reading it. 32 bytes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The record's first byte; its identity for ever (rule R5).
    pub position: LogPosition,
    /// The record's length in bytes.
    pub size: u32,
    /// Java's `String.hashCode` of the tag; 0 without one.
    pub tag_hash: u32,
    /// 0 without a message group.
    pub group_hash: u64,
    /// The stamp of the entry that made it visible.
    pub visible: UtcMillis,
}

/// One step of a delivery's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    Checkout(Checkout),
    Ack(Ack),
    Hold(Hold),
    Renew(Renew),
    Release(Release),
    Return(Return),
    GiveUp(GiveUp),
}

/// Messages are handed to one consumer and hidden from the rest of its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkout {
    pub group: GroupId,
    pub topic: TopicId,
    pub consumer: ClientId,
    /// The same id again is served the same messages, as far as they are still unacknowledged.
    pub attempt_id: Option<String>,
    pub invisible: Millis,
    /// The leader extends it while the consumer lives.
    pub auto_renew: bool,
    /// The group's subscription version that skips were computed under; skips of another version
    /// are dropped (rule R4).
    pub subscription_version: u32,
    pub takes: Vec<Take>,
    /// How often the group had been reset in the topic when this was computed; a checkout of another
    /// count gets nothing (rule R4).
    pub epoch: u32,
}

/// What a checkout takes from one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    pub queue: QueueId,
    pub skips: Vec<Skip>,
    pub grants: Vec<Grant>,
}

/// Offsets `from..to` that no live subscription of the group wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skip {
    pub from: QueueOffset,
    pub to: QueueOffset,
}

/// One message to hand out. The descriptor travels along, since apply may not read queues (R1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub offset: QueueOffset,
    pub unit: Unit,
}

/// Names one delivery of one message exactly. Extending a delivery leaves it unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    pub group: GroupId,
    pub topic: TopicId,
    pub queue: QueueId,
    pub offset: QueueOffset,
    pub checkout: CheckoutId,
    /// 1 for the first delivery.
    pub attempt: u32,
}

/// The consumer is done with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub handle: Handle,
}

/// The delivery ends `invisible` after this entry's stamp instead; 0 means at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    pub handle: Handle,
    pub invisible: Millis,
}

/// All unacknowledged messages of these checkouts stay hidden for `invisible` from this stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    pub checkouts: Vec<CheckoutId>,
    pub invisible: Millis,
}

/// The consumer is gone: its deliveries in this group end `invisible` after this stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub group: GroupId,
    pub consumer: ClientId,
    pub invisible: Millis,
}

/// The reply never reached the consumer: visible again after `invisible`, attempt not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return {
    pub handles: Vec<Handle>,
    pub invisible: Millis,
}

/// The consumer has tried often enough: the message is a dead letter, or in order its message group
/// stands still, as the group's rule says. Where it may not become a dead letter it stays hidden for
/// `otherwise`, since nobody would ever see it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveUp {
    pub handle: Handle,
    pub otherwise: Millis,
}
