//! Topics: make, list, describe, delete.

use tokio::time::Instant;

use crate::base::{QueueId, TopicName};
use crate::broker::Replica;
use crate::broker::api::{NewTopic, QueueInfo, TopicPart};
use crate::broker::error::{LimitError, NoTopic, TopicError, Unavailable};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::replica::Inner;
use crate::command::{Command, CreateTopic, Refusal, Reply};
use crate::machine::{QUEUES_MAX, State, Topic};
use crate::message::MessageKind;

/// Topics that one answer lists at most.
pub(super) const PAGE_MAX: usize = 1000;

impl Replica {
    pub(super) async fn create_topic(
        &self,
        topic: &NewTopic,
        deadline: Instant,
    ) -> Result<(), TopicError> {
        self.propose_topic(topic, deadline).await
    }

    pub(super) async fn delete_topic(&self, name: &TopicName) -> Result<(), TopicError> {
        let topic = self
            .group
            .read(|state| state.topic(name).map(|topic| topic.id))
            .ok_or_else(|| NoTopic { topic: name.clone() })?;
        let reply = self.group.propose(Command::DeleteTopic { topic }, self.default_deadline());
        match reply.await.map_err(|error| unavailable(&error))? {
            Reply::Done => Ok(()),
            Reply::Refused(Refusal::NoTopic { .. }) => Err(NoTopic { topic: name.clone() }.into()),
            other => Err(unexpected(&other).into()),
        }
    }

    /// More queues for a topic that is here.
    pub(super) async fn grow_topic(&self, name: &TopicName, queues: u32) -> Result<(), TopicError> {
        let topic = self
            .group
            .read(|state| state.topic(name).map(|topic| topic.id))
            .ok_or_else(|| NoTopic { topic: name.clone() })?;
        let grow = Command::GrowTopic { topic, queues };
        let reply = self.group.propose(grow, self.default_deadline()).await;
        match reply.map_err(|error| unavailable(&error))? {
            Reply::Done => Ok(()),
            Reply::Refused(Refusal::NoTopic { .. }) => Err(NoTopic { topic: name.clone() }.into()),
            Reply::Refused(Refusal::Limit { what, limit }) => Err(LimitError {
                what: "number of queues",
                value: queues.to_string(),
                allowed: format!("{what}: {limit}"),
            }
            .into()),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Topics by name, from the one behind `after`, at most `limit`, and never more than 1000.
    pub(super) fn topics(
        &self,
        after: Option<&TopicName>,
        limit: usize,
    ) -> Vec<(TopicName, TopicPart)> {
        self.group.read(|state| {
            let page = state.topics_after(after).take(limit.min(PAGE_MAX));
            page.map(|topic| (topic.name.clone(), self.part_of_topic(state, topic))).collect()
        })
    }

    pub(super) fn topic(&self, name: &TopicName) -> Option<TopicPart> {
        self.group.read(|state| state.topic(name).map(|topic| self.part_of_topic(state, topic)))
    }

    fn part_of_topic(&self, state: &State, topic: &Topic) -> TopicPart {
        let queue = |queue| QueueInfo {
            queue,
            start: state.queue_start(topic.id, queue),
            end: state.queue_end(topic.id, queue),
        };
        TopicPart {
            broker_group: self.name.clone(),
            id: topic.id,
            kinds: topic.kinds.clone(),
            created: topic.created,
            queues: (0..topic.queues).map(QueueId::new).map(queue).collect(),
        }
    }
}

impl Inner {
    /// Afterwards this node's state holds everything that was acknowledged before the call.
    pub(super) async fn catch_up(&self) -> Result<(), Unavailable> {
        self.group
            .read_barrier()
            .await
            .map_err(|error| Unavailable { reason: error.to_string(), outcome_unknown: false })
    }

    pub(super) async fn catch_up_by(&self, deadline: Instant) -> Result<(), Unavailable> {
        tokio::time::timeout_at(deadline, self.catch_up()).await.map_err(|_| Unavailable {
            reason: "no leader answered before the request's deadline".into(),
            outcome_unknown: false,
        })?
    }

    /// Whether the topic exists here. Only the leader's word makes "no" true, so it is asked when
    /// this replica does not know the topic.
    pub(super) async fn find_topic(
        &self,
        name: &TopicName,
        deadline: Instant,
    ) -> Result<bool, TopicError> {
        if self.knows_topic(name) {
            return Ok(true);
        }
        self.catch_up_by(deadline).await?;
        Ok(self.knows_topic(name))
    }

    /// The topic exists here afterwards, made on first use where the profile says so.
    pub(super) async fn resolve_topic(
        &self,
        name: &TopicName,
        deadline: Instant,
    ) -> Result<(), TopicError> {
        if self.find_topic(name, deadline).await? {
            return Ok(());
        }
        if !self.options.create_on_use {
            return Err(NoTopic { topic: name.clone() }.into());
        }
        let topic = NewTopic {
            name: name.clone(),
            queues: self.options.queues_on_use,
            kinds: vec![MessageKind::Normal],
            broker_groups: Vec::new(),
            keep: None,
        };
        match self.propose_topic(&topic, deadline).await {
            // Somebody made it otherwise in the meantime: it exists, which is what was asked.
            Ok(()) | Err(TopicError::Differs { .. }) => {}
            Err(error) => return Err(error),
        }
        if !self.knows_topic(name) {
            self.catch_up().await?;
        }
        Ok(())
    }

    async fn propose_topic(&self, topic: &NewTopic, deadline: Instant) -> Result<(), TopicError> {
        if topic.queues == 0 || topic.queues > QUEUES_MAX {
            return Err(LimitError {
                what: "number of queues",
                value: topic.queues.to_string(),
                allowed: format!("1 to {QUEUES_MAX}"),
            }
            .into());
        }
        let mut kinds = topic.kinds.clone();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.is_empty() {
            let allowed = "at least one".to_owned();
            let what = "number of message kinds";
            return Err(LimitError { what, value: "0".into(), allowed }.into());
        }
        let NewTopic { name, queues, keep, .. } = topic.clone();
        let create = CreateTopic { name, queues, kinds, keep };
        let reply = self.group.propose(Command::CreateTopic(create), deadline).await;
        match reply.map_err(|error| unavailable(&error))? {
            Reply::TopicCreated { .. } => Ok(()),
            Reply::Refused(Refusal::TopicDiffers { exists, asked }) => {
                Err(TopicError::Differs { topic: topic.name.clone(), exists, asked })
            }
            Reply::Refused(Refusal::NoOwner { .. }) => {
                Err(NoTopic { topic: topic.name.clone() }.into())
            }
            Reply::Refused(Refusal::Limit { what, limit }) => {
                Err(LimitError { what: "a topic", value: what, allowed: limit.to_string() }.into())
            }
            other => Err(unexpected(&other).into()),
        }
    }
}
