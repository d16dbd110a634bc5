//! Acknowledging and extending: a receipt handle names its broker group.

use std::collections::BTreeMap;

use futures::future::join_all;

use crate::base::{GroupName, TopicName};
use crate::broker::api::{AckRequest, Delivered, HoldRequest};
use crate::broker::error::{AckError, BadHandle, HoldError};
use crate::broker::{Broker, Replica, handle};

impl Broker {
    /// One result for each handle, in order.
    pub async fn ack(&self, request: AckRequest) -> Vec<Result<(), AckError>> {
        let one = |text: &String| {
            let replica = self.issuer(text);
            let (request, text) = (&request, text.clone());
            async move { replica?.ack(&text, request).await }
        };
        join_all(request.handles.iter().map(one)).await
    }

    /// Changes how long a delivered message stays hidden; answers the handle that is valid now.
    pub async fn hold(&self, request: HoldRequest) -> Result<String, HoldError> {
        self.issuer(&request.handle)?.hold(request).await
    }

    /// The consumer tries a message no more.
    pub async fn give_up(&self, request: HoldRequest) -> Result<(), HoldError> {
        self.issuer(&request.handle)?.give_up(request).await
    }

    /// The reply of a receive that the broker extends was written to a client that is there: only
    /// then is it extended.
    pub fn delivered(&self, topic: &TopicName, group: &GroupName, messages: &[Delivered]) {
        // What one receive hands out is one checkout.
        let Some(first) = messages.first() else { return };
        if let Ok(replica) = self.issuer(&first.handle) {
            replica.delivered(topic, group, &first.handle);
        }
    }

    /// The messages of a receive whose reply could not be written come back within a second.
    pub async fn undelivered(
        &self,
        topic: &TopicName,
        group: &GroupName,
        messages: Vec<Delivered>,
    ) {
        let mut by_issuer: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for message in messages {
            if let Ok(replica) = self.issuer(&message.handle) {
                by_issuer.entry(replica.id).or_default().push(message.handle);
            }
        }
        for (issuer, handles) in by_issuer {
            let replica = self.replica(issuer).expect("a handle's issuer is a replica of the node");
            replica.undelivered(topic, group, &handles).await;
        }
    }

    fn issuer(&self, text: &str) -> Result<&Replica, BadHandle> {
        let stranger = BadHandle { why: "was not issued by this cluster" };
        self.replica(handle::broker_group(text)?).ok_or(stranger)
    }
}
