//! A send goes to one broker group: one that this node leads, if there is one.

use tokio::time::Instant;

use crate::base::{Millis, TopicName};
use crate::broker::api::{SendRequest, Sent};
use crate::broker::error::{NoTopic, SendError};
use crate::broker::{Broker, Replica};
use crate::machine::DEDUP_WINDOW;

/// How long one send is tried at most. A repetition is known as one only within the dedup window,
/// so a proposal that is sent again after a change of leader must not outlive it.
pub(super) const SEND_TIME_MAX: Millis = Millis::from_secs(20);
const _: () = assert!(SEND_TIME_MAX.get() < DEDUP_WINDOW.get());

impl Broker {
    /// Refuses messages of so many bytes when no broker group has room for them: to be asked before
    /// work is done for them.
    pub fn has_room(&self, bytes: usize) -> Result<(), SendError> {
        let mut refused = Ok(());
        for replica in &self.0.replicas {
            refused = replica.has_room(bytes);
            if refused.is_ok() {
                break;
            }
        }
        refused
    }

    /// All messages of the request are one entry of one broker group: all become visible, or none.
    ///
    /// Another group is tried only where the one before did certainly not take them, since each
    /// group knows its own repetitions only.
    pub async fn send(&self, mut request: SendRequest) -> Result<Vec<Sent>, SendError> {
        assert!(!request.messages.is_empty(), "the protocol refuses empty requests");
        request.deadline = request.deadline.min(Instant::now() + SEND_TIME_MAX.duration());
        for message in &request.messages {
            self.check_delay(message.deliver_at)?;
        }
        self.resolve_topic(&request.topic, request.deadline).await?;
        let mut refused = NoTopic { topic: request.topic.clone() }.into();
        let ordered = request.messages.iter().any(|message| message.message_group.is_some());
        let takers = if ordered {
            self.home(&request.topic, request.deadline).await?.into_iter().collect()
        } else {
            self.takers(&request.topic)
        };
        for replica in takers {
            match replica.send(&request).await {
                Err(error) if is_definite(&error) => refused = error,
                outcome => return outcome,
            }
        }
        Err(refused)
    }

    /// The one replica that takes a topic's message groups: where the topic is oldest, so that a
    /// broker group that gets it later moves none of them. While it has no leader they wait; another
    /// one would break their order.
    async fn home(
        &self,
        topic: &TopicName,
        deadline: Instant,
    ) -> Result<Option<&Replica>, SendError> {
        let mut having = Vec::new();
        for replica in &self.0.replicas {
            // With several, each has to say for sure that it does not have it.
            let has = if self.0.replicas.len() == 1 {
                replica.knows_topic(topic)
            } else {
                replica.find_topic(topic, deadline).await?
            };
            let created = replica.group.read(|state| state.topic(topic).map(|topic| topic.created));
            having.extend(created.filter(|_| has).map(|created| (created, replica)));
        }
        having.sort_by_key(|(created, replica)| (*created, replica.name.clone()));
        Ok(having.first().map(|(_, replica)| *replica))
    }

    /// The replicas that have the topic, in the order in which they are tried: those that lead,
    /// then those that know who leads, and in each class by turns.
    pub(super) fn takers(&self, topic: &TopicName) -> Vec<&Replica> {
        let mut takers: Vec<&Replica> =
            self.0.replicas.iter().filter(|replica| replica.knows_topic(topic)).collect();
        if takers.len() > 1 {
            let turn = self.turn(takers.len());
            takers.rotate_left(turn);
            // Stable: the turn decides among equals.
            takers.sort_by_key(|replica| match (replica.serving(), replica.leader()) {
                (true, _) => 0,
                (false, Some(_)) => 1,
                (false, None) => 2,
            });
        }
        takers
    }
}

/// The group did not take the messages, and will not.
pub(super) fn is_definite(error: &SendError) -> bool {
    match error {
        SendError::Unavailable(unavailable) => !unavailable.outcome_unknown,
        SendError::Overloaded(_)
        | SendError::DiskFull(_)
        | SendError::HalvesFull(_)
        | SendError::NoTopic(_) => true,
        SendError::KindConflict(_)
        | SendError::KindNotYet(_)
        | SendError::NotWritable(_)
        | SendError::Limit(_)
        | SendError::DelayTooLong(_) => false,
    }
}
