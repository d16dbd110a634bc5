//! What is asked for a delayed message: by handle in the broker group that the handle names, by id
//! in each that has the topic.

use crate::base::UtcMillis;
use crate::broker::Broker;
use crate::broker::api::{DelayedMessage, TimerAnswer, TimerChange, TimerRequest};
use crate::broker::delay::RecallHandle;
use crate::broker::error::{BadRecallHandle, DelayTooLong, NoTopic, TimerError};
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
        if !self.0.replicas.iter().any(|replica| replica.knows_topic(&topic)) {
            self.catch_up().await?;
        }
        let having = self.0.replicas.iter().filter(|replica| replica.knows_topic(&topic));
        let having: Vec<_> = having.collect();
        if having.is_empty() {
            return Err(NoTopic { topic }.into());
        }
        having.iter().try_for_each(|replica| replica.check_takes_delayed(&topic))?;
        match which {
            DelayedMessage::Handle(text) => {
                let handle = RecallHandle::parse(&text)?;
                let replica = self.replica(handle.broker_group);
                let replica = replica.ok_or(BadRecallHandle { why: "is of another cluster" })?;
                let (timer, message_id) = replica.open_recall(&topic, handle)?;
                let outcome = replica.change_timer(timer, change, deadline).await?;
                Ok(TimerAnswer { message_id, outcome })
            }
            DelayedMessage::Id(message_id) => {
                let mut outcome = TimerOutcome::NotFound;
                for replica in having {
                    let Some(timer) = replica.timer_of_id(&topic, &message_id) else { continue };
                    outcome = replica.change_timer(timer, change, deadline).await?;
                    if outcome != TimerOutcome::NotFound {
                        break;
                    }
                }
                Ok(TimerAnswer { message_id, outcome })
            }
        }
    }
}
