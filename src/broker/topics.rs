//! Topics: make, list, describe, delete.

use tokio::time::Instant;

use crate::base::{QueueId, TopicId, TopicName};
use crate::broker::api::{NewTopic, QueueInfo, TopicInfo};
use crate::broker::error::{LimitError, NoTopic, TopicError, Unavailable};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::{Broker, Inner};
use crate::command::{Command, CreateTopic, Refusal, Reply};
use crate::machine::{QUEUES_MAX, State, Topic};
use crate::message::MessageKind;

/// Topics that one answer lists at most.
pub(super) const PAGE_MAX: usize = 1000;

impl Broker {
    /// Makes a topic; making it again with the same settings changes nothing.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<TopicInfo, TopicError> {
        let id = self.propose_topic(&topic, self.default_deadline()).await?;
        // Where this node leads, the entry is applied here by now.
        let here = self.group.read(|state| state.topic_by_id(id).map(|topic| info(state, topic)));
        match here {
            Some(info) => Ok(info),
            None => self.topic(&topic.name).await,
        }
    }

    /// Its messages are gone with it; a topic of the same name made later starts empty.
    pub async fn delete_topic(&self, name: &TopicName) -> Result<(), TopicError> {
        self.catch_up().await?;
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

    /// Topics by name, from the one behind `after`, at most `limit`, and never more than 1000.
    pub async fn topics(
        &self,
        after: Option<&TopicName>,
        limit: usize,
    ) -> Result<Vec<TopicInfo>, Unavailable> {
        self.catch_up().await?;
        Ok(self.group.read(|state| {
            let page = state.topics_after(after).take(limit.min(PAGE_MAX));
            page.map(|topic| info(state, topic)).collect()
        }))
    }

    pub async fn topic(&self, name: &TopicName) -> Result<TopicInfo, TopicError> {
        self.catch_up().await?;
        self.group
            .read(|state| state.topic(name).map(|topic| info(state, topic)))
            .ok_or_else(|| NoTopic { topic: name.clone() }.into())
    }
}

fn info(state: &State, topic: &Topic) -> TopicInfo {
    let queue = |queue| QueueInfo {
        queue,
        start: state.queue_start(topic.id, queue),
        end: state.queue_end(topic.id, queue),
    };
    TopicInfo {
        id: topic.id,
        name: topic.name.clone(),
        kinds: topic.kinds.clone(),
        created: topic.created,
        queues: (0..topic.queues).map(QueueId::new).map(queue).collect(),
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

    /// The topic exists here afterwards, made on first use where the profile says so.
    pub(super) async fn resolve_topic(
        &self,
        name: &TopicName,
        deadline: Instant,
    ) -> Result<(), TopicError> {
        let exists = || self.group.read(|state| state.topic(name).is_some());
        if exists() {
            return Ok(());
        }
        // This replica may be behind; only the leader's word makes "does not exist" true.
        tokio::time::timeout_at(deadline, self.catch_up()).await.map_err(|_| Unavailable {
            reason: "no leader answered before the request's deadline".into(),
            outcome_unknown: false,
        })??;
        if exists() {
            return Ok(());
        }
        if !self.options.create_on_use {
            return Err(NoTopic { topic: name.clone() }.into());
        }
        let topic = NewTopic {
            name: name.clone(),
            queues: self.options.queues_on_use,
            kinds: vec![MessageKind::Normal],
        };
        match self.propose_topic(&topic, deadline).await {
            // Somebody made it otherwise in the meantime: it exists, which is what was asked.
            Ok(_) | Err(TopicError::Differs { .. }) => {}
            Err(error) => return Err(error),
        }
        if !exists() {
            self.catch_up().await?;
        }
        Ok(())
    }

    async fn propose_topic(
        &self,
        topic: &NewTopic,
        deadline: Instant,
    ) -> Result<TopicId, TopicError> {
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
        let create = CreateTopic { name: topic.name.clone(), queues: topic.queues, kinds };
        let reply = self.group.propose(Command::CreateTopic(create), deadline).await;
        match reply.map_err(|error| unavailable(&error))? {
            Reply::TopicCreated { topic, .. } => Ok(topic),
            Reply::Refused(Refusal::TopicDiffers { exists, asked }) => {
                Err(TopicError::Differs { topic: topic.name.clone(), exists, asked })
            }
            Reply::Refused(Refusal::Limit { what, limit }) => Err(LimitError {
                what: "number of topics",
                value: what,
                allowed: format!("at most {limit}"),
            }
            .into()),
            other => Err(unexpected(&other).into()),
        }
    }
}
