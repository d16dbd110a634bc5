//! Half messages: taking them in, ending them, and asking producers what became of them.
//!
//! The log decides; what is here checks, proposes, and carries questions to producers. Which
//! producers live is soft state of the nodes that they are connected to (`producers`); the leader
//! asks about it anew for each round of checks (`check`).

mod check;
mod end;
mod id;
mod parcel;
mod producers;

use crate::base::{BrokerGroupName, ClientId, Millis, QueueId, TopicName, UtcMillis};
use crate::broker::api::SendRequest;
use crate::command::{Decider, Decision};
use crate::message::Message;

pub(super) use self::check::check;
pub(super) use self::id::{TransactionName, broker_group};
pub(super) use self::parcel::{CheckParcel, Wanted, encode_asked, encode_living};
pub(super) use self::producers::Producers;
pub use self::producers::{PUBLISHED_MAX, PendingCheck, ProducerStream};

/// How often a producer is asked about a message that nobody has decided. It is logged with the
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckRule {
    /// Time to the first check where the message does not say it.
    pub first: Millis,
    pub interval: Millis,
    /// Checks that reach a producer; then it is parked.
    pub max: u32,
}

impl Default for CheckRule {
    /// As RocketMQ's broker does it.
    fn default() -> Self {
        Self { first: Millis::from_secs(6), interval: Millis::from_secs(30), max: 15 }
    }
}

/// Half messages of one request.
#[derive(Clone, Debug)]
pub struct PrepareRequest {
    pub send: SendRequest,
    /// Who is asked first.
    pub producer: ClientId,
    /// For each message, how long to wait before the first check, if it says so.
    pub first_checks: Vec<Option<Millis>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedMessage {
    pub message_id: String,
    /// The transaction id: valid on every node.
    pub transaction: String,
}

#[derive(Clone, Debug)]
pub struct EndRequest {
    pub transaction: String,
    /// What the caller says that the transaction is of; checked if it is there.
    pub topic: Option<TopicName>,
    pub message_id: Option<String>,
    pub decision: Decision,
    pub by: Decider,
    pub deadline: tokio::time::Instant,
}

/// A question to a producer: what became of this?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionCheck {
    pub transaction: String,
    pub message: Message,
    pub queue: QueueId,
    pub prepared: UtcMillis,
    pub store_host: String,
}

/// Which transactions to list.
#[derive(Clone, Debug, Default)]
pub struct TransactionFilter {
    pub topic: Option<TopicName>,
    /// Only those that nobody is asked about any more.
    pub parked: bool,
    /// From the one behind this.
    pub after: Option<String>,
    pub limit: usize,
}

/// A transaction that nobody has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionInfo {
    pub transaction: String,
    pub broker_group: BrokerGroupName,
    pub topic: TopicName,
    pub message_id: String,
    pub producer: ClientId,
    pub bytes: u32,
    pub prepared: UtcMillis,
    /// Checks that reached a producer.
    pub checks: u32,
    pub checks_max: u32,
    /// `None` when it is parked.
    pub next_check: Option<UtcMillis>,
}
