//! What is asked for a delayed message: by handle in the broker group that the handle names, by id
//! in each that has the topic.

use futures::future::join_all;
use tokio::time::Instant;

use crate::base::{TopicName, UtcMillis};
use crate::broker::api::{DelayedMessage, TimerAnswer, TimerChange, TimerRequest};
use crate::broker::delay::RecallHandle;
use crate::broker::error::{BadRecallHandle, DelayTooLong, NoTopic, TimerError, Unavailable};
use crate::broker::{Broker, Replica};
use crate::command::TimerOutcome;

impl Broker {
    /// Refuses what is further ahead than the setting allows.
    pub(super) fn check_delay(&self, deliver_at: Option<UtcMillis>) -> Result<(), DelayTooLong> {
        let Some(at) = deliver_at else { return Ok(()) };
        let replica = self.0.replicas.first().expect("a node takes part in a broker group");
        let (ahead, max) = (at.since(replica.wall()), self.0.options.delay_max);
        if ahead > max { Err(DelayTooLong { ahead, max }) } else { Ok(()) }
    }

    /// Recalls a delayed message, or changes its time. The log decides against firing, so the answer
    /// is exact. Asking again with a handle, or for the same time, is harmless; a second recall by an
    /// id takes back another message that was sent with that id, if there is one.
    pub async fn change_timer(&self, request: TimerRequest) -> Result<TimerAnswer, TimerError> {
        let TimerRequest { topic, which, change, deadline } = request;
        if let TimerChange::DeliverAt(at) = change {
            self.check_delay(Some(at))?;
        }
        if self.having(&topic).next().is_none() {
            self.catch_up_on(&topic, deadline).await?;
        }
        if self.having(&topic).next().is_none() {
            return Err(NoTopic { topic }.into());
        }
        self.having(&topic).try_for_each(|replica| replica.check_takes_delayed(&topic))?;
        match which {
            DelayedMessage::Handle(text) => {
                let handle = RecallHandle::parse(&text)?;
                let replica = self.replica(handle.broker_group);
                let replica = replica.ok_or(BadRecallHandle { why: "is of another cluster" })?;
                let (timer, message_id) = replica.open_recall(&topic, handle)?;
                let outcome = replica.change_timer(timer, change, deadline).await?;
                // A topic that is gone took its delayed messages along.
                let outcome = outcome.unwrap_or(TimerOutcome::NotFound);
                Ok(TimerAnswer { message_id, outcome })
            }
            DelayedMessage::Id(message_id) => {
                let named = (&topic, message_id.as_str());
                let mut outcome = self.change_by_id(named, change, deadline).await?;
                let asked = self.having(&topic).count();
                if outcome == TimerOutcome::NotFound && asked < self.0.replicas.len() {
                    // A replica that is behind may not know the topic that its group has.
                    self.catch_up_on(&topic, deadline).await?;
                    if self.having(&topic).count() > asked {
                        outcome = self.change_by_id(named, change, deadline).await?;
                    }
                }
                Ok(TimerAnswer { message_id, outcome })
            }
        }
    }

    fn having(&self, topic: &TopicName) -> impl Iterator<Item = &Replica> {
        self.0.replicas.iter().filter(|replica| replica.knows_topic(topic))
    }

    /// Afterwards each replica has the topic, or its group did not have it a moment ago.
    async fn catch_up_on(&self, topic: &TopicName, deadline: Instant) -> Result<(), Unavailable> {
        let lacking = self.0.replicas.iter().filter(|replica| !replica.knows_topic(topic));
        let caught_up = join_all(lacking.map(|replica| replica.catch_up_by(deadline))).await;
        caught_up.into_iter().collect()
    }

    /// Asks every broker group that has the topic: each may have a message of this id.
    async fn change_by_id(
        &self,
        (topic, message_id): (&TopicName, &str),
        change: TimerChange,
        deadline: Instant,
    ) -> Result<TimerOutcome, Unavailable> {
        let mut outcome = TimerOutcome::NotFound;
        for replica in self.having(topic) {
            let of_this = replica.change_by_id((topic, message_id), change, deadline).await?;
            outcome = foremost(outcome, of_this);
        }
        Ok(outcome)
    }
}

/// What is told of several messages of one id: that one is visible, if one is, since that cannot be
/// undone; then that one is still to come.
fn foremost(one: TimerOutcome, other: TimerOutcome) -> TimerOutcome {
    let rank = |outcome: TimerOutcome| match outcome {
        TimerOutcome::NotFound => 0,
        TimerOutcome::Recalled => 1,
        TimerOutcome::Rescheduled => 2,
        TimerOutcome::AlreadyFired => 3,
    };
    if rank(one) > rank(other) { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_outcomes_the_one_that_cannot_be_undone_is_told() {
        use TimerOutcome::{AlreadyFired, NotFound, Recalled, Rescheduled};
        let ascending = [NotFound, Recalled, Rescheduled, AlreadyFired];
        for (at, one) in ascending.into_iter().enumerate() {
            for other in &ascending[at..] {
                assert_eq!((foremost(one, *other), foremost(*other, one)), (*other, *other));
            }
        }
    }
}
