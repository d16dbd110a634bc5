//! Topics and consumer groups in all broker groups: each has its own, and they should be alike.

use std::collections::BTreeMap;

use futures::future::join_all;
use tokio::time::Instant;

use crate::base::{GroupName, TopicName};
use crate::broker::api::{GroupInfo, GroupPart, NewGroup, NewTopic, TopicInfo, TopicPart};
use crate::broker::error::{GroupError, NoGroup, NoTopic, TopicError, Unavailable};
use crate::broker::groups::default_group;
use crate::broker::{Broker, Replica};

impl Broker {
    /// Makes a topic in each named broker group; making it again with the same settings changes
    /// nothing where it is, and makes it where it is missing.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<TopicInfo, TopicError> {
        let chosen = self.named(&topic.broker_groups)?;
        let deadline = self.default_deadline();
        let made = join_all(chosen.iter().map(|replica| replica.create_topic(&topic, deadline)));
        for (replica, outcome) in chosen.iter().zip(made.await) {
            outcome.map_err(|error| self.at(replica, error, TopicError::at))?;
        }
        self.topic(&topic.name).await
    }

    /// Its messages are gone with it; a topic of the same name made later starts empty.
    pub async fn delete_topic(&self, name: &TopicName) -> Result<(), TopicError> {
        self.catch_up().await?;
        let having: Vec<_> = self.0.replicas.iter().filter(|one| one.knows_topic(name)).collect();
        if having.is_empty() {
            return Err(NoTopic { topic: name.clone() }.into());
        }
        let deleted = join_all(having.iter().map(|replica| replica.delete_topic(name))).await;
        for (replica, outcome) in having.iter().zip(deleted) {
            outcome.map_err(|error| self.at(replica, error, TopicError::at))?;
        }
        Ok(())
    }

    /// More queues wherever the topic is.
    pub async fn grow_topic(&self, name: &TopicName, queues: u32) -> Result<TopicInfo, TopicError> {
        self.catch_up().await?;
        let having: Vec<_> = self.0.replicas.iter().filter(|one| one.knows_topic(name)).collect();
        if having.is_empty() {
            return Err(NoTopic { topic: name.clone() }.into());
        }
        let grown = join_all(having.iter().map(|replica| replica.grow_topic(name, queues))).await;
        for (replica, outcome) in having.iter().zip(grown) {
            outcome.map_err(|error| self.at(replica, error, TopicError::at))?;
        }
        self.topic(name).await
    }

    /// Message groups of a topic go on that stood still after a last attempt.
    pub async fn resume_group(
        &self,
        name: &GroupName,
        topic: &TopicName,
    ) -> Result<GroupInfo, GroupError> {
        self.catch_up().await?;
        let having = self.0.replicas.iter().filter(|replica| replica.knows_group(name));
        let having: Vec<_> = having.collect();
        let resumed = join_all(having.iter().map(|replica| replica.resume_group(name, topic)));
        for (replica, outcome) in having.iter().zip(resumed.await) {
            outcome.map_err(|error| self.at(replica, error, GroupError::at))?;
        }
        self.changed_group(name).await
    }

    /// A group after a change of it was taken: where that cannot be told, the change stands all the
    /// same.
    pub(super) async fn changed_group(&self, name: &GroupName) -> Result<GroupInfo, GroupError> {
        self.group_info(name).await.map_err(|error| match error {
            GroupError::Unavailable(error) => Unavailable { outcome_unknown: true, ..error }.into(),
            other => other,
        })
    }

    /// Topics by name, from the one behind `after`, at most `limit`, and never more than 1000.
    pub async fn topics(
        &self,
        after: Option<&TopicName>,
        limit: usize,
    ) -> Result<Vec<TopicInfo>, Unavailable> {
        self.catch_up().await?;
        let mut by_name: BTreeMap<TopicName, Vec<TopicPart>> = BTreeMap::new();
        for replica in &self.0.replicas {
            for (name, part) in replica.topics(after, limit) {
                by_name.entry(name).or_default().push(part);
            }
        }
        let info = |(name, parts)| self.topic_info(name, parts);
        Ok(by_name.into_iter().take(limit).map(info).collect())
    }

    pub async fn topic(&self, name: &TopicName) -> Result<TopicInfo, TopicError> {
        self.catch_up().await?;
        let parts: Vec<_> =
            self.0.replicas.iter().filter_map(|replica| replica.topic(name)).collect();
        if parts.is_empty() {
            return Err(NoTopic { topic: name.clone() }.into());
        }
        Ok(self.topic_info(name.clone(), parts))
    }

    /// What the group's settings tell its clients; defaults for a group that does not exist yet.
    pub fn group_settings(&self, group: &GroupName) -> NewGroup {
        let known = self.0.replicas.iter().find_map(|replica| replica.group_settings(group));
        known.unwrap_or_else(|| default_group(group))
    }

    /// Makes a group in each named broker group; making it again changes
    /// nothing where it is, and makes it where it is missing.
    pub async fn create_group(&self, group: NewGroup) -> Result<GroupInfo, GroupError> {
        let chosen = self.named(&group.broker_groups)?;
        let deadline = self.default_deadline();
        let made = join_all(chosen.iter().map(|replica| replica.create_group(&group, deadline)));
        for (replica, outcome) in chosen.iter().zip(made.await) {
            outcome.map_err(|error| self.at(replica, error, GroupError::at))?;
        }
        self.group_info(&group.name).await
    }

    /// Its progress is gone with it; a group of the same name made later starts at the beginning.
    pub async fn delete_group(&self, name: &GroupName) -> Result<(), GroupError> {
        self.catch_up().await?;
        let having: Vec<_> = self.0.replicas.iter().filter(|one| one.knows_group(name)).collect();
        if having.is_empty() {
            return Err(NoGroup { group: name.clone() }.into());
        }
        let deleted = join_all(having.iter().map(|replica| replica.delete_group(name))).await;
        for (replica, outcome) in having.iter().zip(deleted) {
            outcome.map_err(|error| self.at(replica, error, GroupError::at))?;
        }
        Ok(())
    }

    /// Groups by name, from the one behind `after`, at most `limit`, and never more than 1000.
    pub async fn groups(
        &self,
        after: Option<&GroupName>,
        limit: usize,
    ) -> Result<Vec<GroupInfo>, Unavailable> {
        self.catch_up().await?;
        let mut by_name: BTreeMap<GroupName, Vec<GroupPart>> = BTreeMap::new();
        for replica in &self.0.replicas {
            for (name, part) in replica.groups(after, limit) {
                by_name.entry(name).or_default().push(part);
            }
        }
        let info = |(name, parts)| self.group_of(name, parts);
        Ok(by_name.into_iter().take(limit).map(info).collect())
    }

    pub async fn group_info(&self, name: &GroupName) -> Result<GroupInfo, GroupError> {
        self.catch_up().await?;
        let parts: Vec<_> =
            self.0.replicas.iter().filter_map(|replica| replica.group_part(name)).collect();
        if parts.is_empty() {
            return Err(NoGroup { group: name.clone() }.into());
        }
        Ok(self.group_of(name.clone(), parts))
    }

    /// Afterwards this node's state of every broker group holds everything that was acknowledged
    /// before the call.
    pub(super) async fn catch_up(&self) -> Result<(), Unavailable> {
        let all = join_all(self.0.replicas.iter().map(|replica| replica.catch_up())).await;
        all.into_iter().collect()
    }

    /// The topic exists in some broker group afterwards, made in all of them on first use where the
    /// profile says so. A broker group that cannot be asked does not stand in the way of another.
    pub(super) async fn resolve_topic(
        &self,
        name: &TopicName,
        deadline: Instant,
    ) -> Result<(), TopicError> {
        if self.0.replicas.iter().any(|replica| replica.knows_topic(name)) {
            return Ok(());
        }
        let found =
            join_all(self.0.replicas.iter().map(|replica| replica.find_topic(name, deadline)));
        let found = found.await;
        if found.iter().any(|outcome| matches!(outcome, Ok(true))) {
            return Ok(());
        }
        if !self.0.options.create_on_use {
            // Only if all say so it does not exist.
            found.into_iter().collect::<Result<Vec<_>, _>>()?;
            return Err(NoTopic { topic: name.clone() }.into());
        }
        let made =
            join_all(self.0.replicas.iter().map(|replica| replica.resolve_topic(name, deadline)));
        one_of(made.await)
    }

    /// As [`Self::resolve_topic`], for a consumer group.
    pub(super) async fn resolve_group(
        &self,
        name: &GroupName,
        deadline: Instant,
    ) -> Result<(), GroupError> {
        if self.0.replicas.iter().any(|replica| replica.knows_group(name)) {
            return Ok(());
        }
        let found =
            join_all(self.0.replicas.iter().map(|replica| replica.resolve_group(name, deadline)));
        one_of(found.await)
    }

    /// Tells where an operation failed, if there are several places.
    pub(super) fn at<E>(
        &self,
        replica: &Replica,
        error: E,
        at: impl FnOnce(E, &Replica) -> E,
    ) -> E {
        if self.0.replicas.len() == 1 { error } else { at(error, replica) }
    }

    fn topic_info(&self, name: TopicName, parts: Vec<TopicPart>) -> TopicInfo {
        let text = |part: &TopicPart| {
            let kinds: Vec<_> = part.kinds.iter().map(|kind| kind.name()).collect();
            format!("{} queues of {}", part.queues.len(), kinds.join(", "))
        };
        let told = parts.iter().map(|part| (&part.broker_group, text(part)));
        let differences = self.differences(told.collect());
        TopicInfo { name, parts, differences }
    }

    fn group_of(&self, name: GroupName, parts: Vec<GroupPart>) -> GroupInfo {
        let text = |part: &GroupPart| {
            let (order, then) = (part.rule.order.name(), part.rule.exhausted.name());
            let attempts = format!("{} attempts, after {}", part.attempts_max, part.backoff);
            let keep = part.dead_keep.map(|keep| format!(", dead letters kept for {keep}"));
            let paused = if part.paused { ", paused" } else { "" };
            format!("{attempts}, then {then}, order {order}{}{paused}", keep.unwrap_or_default())
        };
        let told = parts.iter().map(|part| (&part.broker_group, text(part)));
        let differences = self.differences(told.collect());
        GroupInfo { name, parts, differences }
    }

    /// What is not as in the first broker group that has it.
    fn differences(&self, told: BTreeMap<&crate::base::BrokerGroupName, String>) -> Vec<String> {
        let Some((first, settings)) = told.first_key_value() else { return Vec::new() };
        let difference = |replica: &Replica| match told.get(&replica.name) {
            None => Some(format!("{} does not have it", replica.name)),
            Some(other) if other != settings => {
                Some(format!("{} has {other}, but {first} has {settings}", replica.name))
            }
            Some(_) => None,
        };
        self.0.replicas.iter().filter_map(difference).collect()
    }
}

/// Good if one is; else the first error.
fn one_of<E>(outcomes: Vec<Result<(), E>>) -> Result<(), E> {
    let mut errors = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(()) => return Ok(()),
            Err(error) => errors.push(error),
        }
    }
    errors.into_iter().next().map_or(Ok(()), Err)
}
