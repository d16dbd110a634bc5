//! Our own client: what the command line asks a broker, over the protocols that brokers serve.
//!
//! What it is: [`Client`], one connection to one node; on it [`Producer`], which sends with a window
//! over several connections, [`SimpleConsumer`], [`PushConsumer`], [`PullConsumer`], and
//! [`BroadcastConsumer`], which sees everything. Messages go by `apache.rocketmq.v2`, the last one's
//! by `raftmq.v1.Broadcast`, the rest by `raftmq.v1.Admin`. Its values derive serde, because the
//! command line prints them.
//! Promises: an `Ok` is what the broker said, and a refusal carries its code and text; nothing is
//! repeated on its own account, so an unknown outcome stays visible; but acknowledgements are, where
//! [`PushConsumer`] makes them.
//! Never: state that outlives a call (but for the places that a [`PullConsumer`] was given),
//! background tasks, or generated types in its signatures.

mod admin;
mod dead_letters;
mod broadcast_consumer;
mod cursors;
mod error;
mod find;
mod messages;
mod producer;
mod pull_consumer;
mod push_consumer;
mod registrar;
mod simple_consumer;
mod transactions;
mod values;

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::wire::raftmq::admin_client::AdminClient;
use crate::wire::rocketmq::messaging_service_client::MessagingServiceClient;

pub use crate::message::PRIORITY_MAX;
pub use broadcast_consumer::{BroadcastConsumer, BroadcastTake, Polled};
pub use dead_letters::{DeadLetter, DeadLetterFilter, GroupChange, RedrivenLetter};
pub use error::ClientError;
pub use find::{FindBy, FindKey, FoundContent, FoundMessage, FoundMessages, FoundPart};
pub use producer::Producer;
pub use pull_consumer::{PullConsumer, Pulled};
pub use push_consumer::{PushConsumer, Pushed};
pub use registrar::Registrar;
pub use simple_consumer::SimpleConsumer;
pub use transactions::{EndedTransaction, HalfMessage, OpenTransaction, TransactionAction};
pub use values::{
    BackoffCurve, BrokerGroupStatus, Delayed, DelayedOutcome, Draft, GroupInfo, GroupInstance,
    GroupPart, GroupReset, GroupShape, GroupTopic, MembersChange, MembersStep, NewMember,
    NodeStatus, Page, QueueInfo, QueueReset, Received, ResetPart, ResetTo, RouteQueue, SQL_PREFIX,
    SentMessage, Take, TopicInfo, TopicPart, TopicShape,
};

/// One connection. Cheap to clone; calls may run side by side.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    id: MetadataValue<Ascii>,
}

/// Connections of one producer or bench. More do not help on few cores (openraft.md, section 2: 41 k
/// calls a second on one, 88 k on four).
pub const CHANNELS: usize = 4;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call may take; polls have their own time on top.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// A full batch of the largest messages.
const ANSWER_BYTES_MAX: usize = 160 << 20;

impl Client {
    /// Connects to `host:port`, plaintext.
    pub async fn connect(endpoint: &str) -> Result<Self, ClientError> {
        let unreachable = |source| ClientError::Unreachable { endpoint: endpoint.into(), source };
        let channel = Endpoint::from_shared(format!("http://{endpoint}"))
            .map_err(unreachable)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .connect()
            .await
            .map_err(unreachable)?;
        Ok(Self { channel, id: Self::fresh_id() })
    }

    fn fresh_id() -> MetadataValue<Ascii> {
        let id = format!("raftmq@{}@{:016x}", std::process::id(), random());
        id.try_into().expect("digits and letters are a header value")
    }

    fn messaging(&self) -> MessagingServiceClient<Channel> {
        MessagingServiceClient::new(self.channel.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
            .max_encoding_message_size(ANSWER_BYTES_MAX)
    }

    fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// A request with the headers that every rpc carries.
    fn request<T>(&self, message: T, timeout: Duration) -> Request<T> {
        let mut request = self.request_without_end(message);
        request.set_timeout(timeout);
        request
    }

    /// The same for a stream that lasts as long as both sides want.
    fn request_without_end<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let headers = request.metadata_mut();
        headers.insert("x-mq-client-id", self.id.clone());
        headers.insert("x-mq-language", MetadataValue::from_static("RUST"));
        headers.insert("x-mq-protocol", MetadataValue::from_static("v2"));
        headers
            .insert("x-mq-client-version", MetadataValue::from_static(env!("CARGO_PKG_VERSION")));
        request
    }
}

/// The hasher's keys are drawn anew for each state; enough for ids that must differ, not for
/// secrets.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        Self::Call { code: status.code().into(), text: status.message().to_owned() }
    }
}
