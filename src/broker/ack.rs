//! Acknowledging, and changing how long a message stays hidden.

use crate::base::{GroupId, GroupName, Millis, TopicId, TopicName};
use crate::broker::api::{AckRequest, HoldRequest};
use crate::broker::error::{AckError, BadHandle, HoldError, Unavailable};
use crate::broker::replica::Inner;
use crate::broker::{Replica, handle};
use crate::command::{Ack, Delivery, DeliveryOutcome, GiveUp, Handle, Hold, Return};

/// How soon messages come back whose reply could not be written.
const RETURN_AFTER: Millis = Millis::from_secs(1);

/// Either cause that both operations share.
enum Failure {
    Handle(BadHandle),
    Unavailable(Unavailable),
}

impl From<Failure> for AckError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Handle(error) => error.into(),
            Failure::Unavailable(error) => error.into(),
        }
    }
}

impl From<Failure> for HoldError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Handle(error) => error.into(),
            Failure::Unavailable(error) => error.into(),
        }
    }
}

impl Replica {
    /// One handle of the request.
    pub(super) async fn ack(&self, text: &str, request: &AckRequest) -> Result<(), AckError> {
        let handle = self.open_handle(text, &request.topic, &request.group)?;
        let delivery = Delivery::Ack(Ack { handle });
        self.step(delivery, request.deadline).await.map_err(AckError::from)
    }

    /// Changes how long a delivered message stays hidden; answers the handle that is valid now.
    pub(super) async fn hold(&self, request: HoldRequest) -> Result<String, HoldError> {
        let handle = self.open_handle(&request.handle, &request.topic, &request.group)?;
        let delivery = Delivery::Hold(Hold { handle, invisible: request.invisible });
        self.step(delivery, request.deadline).await?;
        // The handle names the delivery, not its end, so it stays valid.
        Ok(request.handle)
    }

    /// The consumer tries a message no more; if it may not become a dead letter, it stays hidden for as
    /// long as the request says.
    pub(super) async fn give_up(&self, request: HoldRequest) -> Result<(), HoldError> {
        let handle = self.open_handle(&request.handle, &request.topic, &request.group)?;
        let delivery = Delivery::GiveUp(GiveUp { handle, otherwise: request.invisible });
        self.step(delivery, request.deadline).await.map_err(HoldError::from)
    }

    /// The reply of a receive was written; one of its handles names its checkout.
    pub(super) fn delivered(&self, topic: &TopicName, group: &GroupName, handle: &str) {
        if let Ok(handle) = self.open_handle(handle, topic, group) {
            self.written.note([handle.checkout], self.env.clock.monotonic());
        }
    }

    /// The messages of a receive whose reply could not be written come back within a second.
    pub(super) async fn undelivered(
        &self,
        topic: &TopicName,
        group: &GroupName,
        handles: &[String],
    ) {
        let handles: Vec<Handle> =
            handles.iter().filter_map(|text| self.open_handle(text, topic, group).ok()).collect();
        if handles.is_empty() {
            return;
        }
        let back = Delivery::Return(Return { handles, invisible: RETURN_AFTER });
        if let Err(Failure::Unavailable(error)) = self.step(back, self.default_deadline()).await {
            // They come back all the same, when their invisible time is over.
            tracing::debug!(%error, "messages that were not delivered stay hidden for now");
        }
    }
}

impl Inner {
    async fn step(
        &self,
        delivery: Delivery,
        deadline: tokio::time::Instant,
    ) -> Result<(), Failure> {
        let outcome = tokio::time::timeout_at(deadline, self.lane.submit(delivery, deadline)).await;
        let late = |_| Unavailable {
            reason: "the log did not answer before the request's deadline".into(),
            outcome_unknown: true,
        };
        let outcome = outcome.map_err(late).and_then(|outcome| outcome);
        match outcome.map_err(Failure::Unavailable)? {
            DeliveryOutcome::Done => Ok(()),
            DeliveryOutcome::Stale | DeliveryOutcome::Refused(_) => {
                Err(Failure::Handle(BadHandle { why: "names a delivery that is over" }))
            }
            DeliveryOutcome::CheckedOut(_) => {
                unreachable!("only a checkout is answered with messages")
            }
        }
    }

    /// A handle is good only for the topic and group it was issued for.
    fn open_handle(
        &self,
        text: &str,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<Handle, Failure> {
        let Some(key) = self.handle_key() else {
            let reason = "the broker group has not been founded yet".to_owned();
            return Err(Failure::Unavailable(Unavailable { reason, outcome_unknown: false }));
        };
        let handle = handle::open(self.id, text, &key).map_err(Failure::Handle)?;
        let ids: (Option<TopicId>, Option<GroupId>) = self.group.read(|state| {
            (state.topic(topic).map(|topic| topic.id), state.group(group).map(|group| group.id))
        });
        // A follower may not have applied the creation yet; apply checks the ids again.
        if ids.0.is_some_and(|id| id != handle.topic) {
            return Err(Failure::Handle(BadHandle { why: "belongs to another topic" }));
        }
        if ids.1.is_some_and(|id| id != handle.group) {
            return Err(Failure::Handle(BadHandle { why: "belongs to another consumer group" }));
        }
        Ok(handle)
    }
}
