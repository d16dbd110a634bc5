//! What a client can ask for, in no protocol's words.
//!
//! What it is: [`Broker`], the facade that every protocol speaks to, on every node. It checks,
//! builds commands, proposes them, keeps the long polls that wait, and does what only a leader
//! does (ticks, renewals).
//! Promises: an `Ok` is applied and durable at a majority; "unknown" is said when it is not known;
//! losing everything this room holds in memory loses no message.
//! Never: protocol types, stored state, or a decision that replicas would have to share.

mod api;
mod error;

pub use api::{
    AckRequest, Assignment, BrokerNode, ClientKind, Delivered, HoldRequest, NewGroup, NewTopic,
    ReceiveRequest, Route, SendRequest, Sent,
};
pub use error::{
    AckError, BadHandle, GroupError, HoldError, KindConflict, KindNotYet, LimitError, NoGroup, NoTopic,
    Overloaded, ReceiveError, RouteError, SendError, TopicError, Unavailable,
};

use crate::base::{ClientId, GroupName, TopicName};

/// The facade. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker;

#[expect(clippy::todo, clippy::unused_async, reason = "skeleton: replaced by the lead at once")]
impl Broker {
    /// All messages of the request are one entry: all become visible, or none.
    pub async fn send(&self, request: SendRequest) -> Result<Vec<Sent>, SendError> {
        todo!("{request:?}")
    }

    /// Waits until something is there or the polling time is over (then an empty list).
    pub async fn receive(&self, request: ReceiveRequest) -> Result<Vec<Delivered>, ReceiveError> {
        todo!("{request:?}")
    }

    /// The messages of a receive whose reply could not be written come back within a second.
    pub async fn undelivered(&self, messages: Vec<Delivered>) {
        todo!("{messages:?}")
    }

    /// One result for each entry, in order.
    pub async fn ack(&self, request: AckRequest) -> Result<Vec<Result<(), AckError>>, AckError> {
        todo!("{request:?}")
    }

    /// Changes how long a delivered message stays hidden; answers the handle that is valid now.
    pub async fn hold(&self, request: HoldRequest) -> Result<String, HoldError> {
        todo!("{request:?}")
    }

    /// Where a topic can be reached. Creates the topic where the profile says so.
    pub async fn route(&self, topic: &TopicName) -> Result<Route, RouteError> {
        todo!("{topic}")
    }

    pub async fn assignment(
        &self,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<Assignment, RouteError> {
        todo!("{topic} {group}")
    }

    /// What the group's settings tell its clients; defaults for a group that does not exist yet.
    pub fn group_settings(&self, group: &GroupName) -> NewGroup {
        todo!("{group}")
    }

    /// A client showed that it lives (any rpc with its id may call this).
    pub fn client_seen(&self, client: &ClientId, kind: ClientKind, group: Option<&GroupName>) {
        todo!("{client} {kind:?} {group:?}")
    }

    /// A client said goodbye: what it holds in `group` becomes visible within a second.
    pub async fn client_gone(&self, client: &ClientId, group: Option<&GroupName>) {
        todo!("{client} {group:?}")
    }
}
