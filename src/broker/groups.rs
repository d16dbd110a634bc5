//! Consumer groups: make, list, describe, delete.

use tokio::time::Instant;

use crate::base::{DELAY_LEVELS, GroupName, TopicName};
use crate::broker::Replica;
use crate::broker::api::{GroupPart, GroupTopic, NewGroup};
use crate::broker::error::{GroupError, LimitError, NoGroup};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::replica::Inner;
use crate::broker::topics::PAGE_MAX;
use crate::command::{Command, CreateGroup, OrderRule, Refusal, Reply};
use crate::machine::{Conflict, Group, Lag, State};

/// Deliveries of a message before it counts as exhausted: RocketMQ's 16 retries and the first one.
pub(super) const ATTEMPTS_DEFAULT: u32 = 17;
const ATTEMPTS_MAX: u32 = 1000;

/// A group as it comes into being when nothing is said of it.
pub(super) fn default_group(name: &GroupName) -> NewGroup {
    NewGroup {
        name: name.clone(),
        attempts_max: ATTEMPTS_DEFAULT,
        backoff: DELAY_LEVELS.to_vec(),
        rule: OrderRule::default(),
        broker_groups: Vec::new(),
    }
}

impl Replica {
    /// `None` for a group that does not exist here.
    pub(super) fn group_settings(&self, group: &GroupName) -> Option<NewGroup> {
        self.group.read(|state| {
            state.group(group).map(|group| NewGroup {
                name: group.name.clone(),
                attempts_max: group.attempts_max,
                backoff: group.backoff.clone(),
                rule: group.rule,
                broker_groups: Vec::new(),
            })
        })
    }

    /// Makes a group; one that exists keeps its settings.
    pub(super) async fn create_group(
        &self,
        group: &NewGroup,
        deadline: Instant,
    ) -> Result<(), GroupError> {
        if group.attempts_max == 0 || group.attempts_max > ATTEMPTS_MAX {
            return Err(LimitError {
                what: "number of attempts",
                value: group.attempts_max.to_string(),
                allowed: format!("1 to {ATTEMPTS_MAX}"),
            }
            .into());
        }
        self.propose_group(group, deadline).await
    }

    /// Makes the group, which another broker group has with these settings.
    pub(super) async fn ensure_group(
        &self,
        group: &GroupName,
        settings: NewGroup,
    ) -> Result<(), GroupError> {
        assert_eq!(*group, settings.name, "settings of another group");
        self.propose_group(&settings, self.default_deadline()).await?;
        Ok(self.catch_up().await?)
    }

    pub(super) async fn delete_group(&self, name: &GroupName) -> Result<(), GroupError> {
        let group = self
            .group
            .read(|state| state.group(name).map(|group| group.id))
            .ok_or_else(|| NoGroup { group: name.clone() })?;
        let reply = self.group.propose(Command::DeleteGroup { group }, self.default_deadline());
        match reply.await.map_err(|error| unavailable(&error))? {
            Reply::Done => Ok(()),
            Reply::Refused(Refusal::NoGroup { .. }) => Err(NoGroup { group: name.clone() }.into()),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Message groups of a topic go on that stood still after a last attempt; nothing where one of
    /// the two does not exist.
    pub(super) async fn resume_group(
        &self,
        name: &GroupName,
        topic: &TopicName,
    ) -> Result<(), GroupError> {
        let ids = self.group.read(|state| Some((state.group(name)?.id, state.topic(topic)?.id)));
        let Some((group, topic)) = ids else { return Ok(()) };
        let resume = Command::ResumeLines { group, topic };
        let reply = self.group.propose(resume, self.default_deadline()).await;
        match reply.map_err(|error| unavailable(&error))? {
            // Gone in the meantime, and everything that stood still with it.
            Reply::Done | Reply::Refused(_) => Ok(()),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Groups by name, from the one behind `after`, at most `limit`, and never more than 1000.
    pub(super) fn groups(
        &self,
        after: Option<&GroupName>,
        limit: usize,
    ) -> Vec<(GroupName, GroupPart)> {
        self.group.read(|state| {
            let page = state.groups_after(after).take(limit.min(PAGE_MAX));
            page.map(|group| (group.name.clone(), self.part_of_group(state, group))).collect()
        })
    }

    pub(super) fn group_part(&self, name: &GroupName) -> Option<GroupPart> {
        self.group.read(|state| state.group(name).map(|group| self.part_of_group(state, group)))
    }

    fn part_of_group(&self, state: &State, group: &Group) -> GroupPart {
        let topics = state
            .topics_of(group.id)
            .filter_map(|topic| {
                let lag = state.lag(group.id, topic);
                let filters = state.subscriptions(group.id, topic).1.to_vec();
                let Conflict { since: differ_since, count: conflicts } =
                    state.conflict(group.id, topic);
                let topic = state.topic_by_id(topic)?.name.clone();
                let Lag { ready, in_flight, expired, dead, stopped } = lag;
                Some(GroupTopic {
                    topic,
                    ready,
                    in_flight,
                    expired,
                    dead,
                    stopped,
                    filters,
                    differ_since,
                    conflicts,
                })
            })
            .collect();
        GroupPart {
            broker_group: self.name.clone(),
            id: group.id,
            attempts_max: group.attempts_max,
            backoff: group.backoff.clone(),
            rule: group.rule,
            created: group.created,
            topics,
        }
    }
}

impl Inner {
    /// The group exists here afterwards, made on first use where the profile says so.
    pub(super) async fn resolve_group(
        &self,
        name: &GroupName,
        deadline: Instant,
    ) -> Result<(), GroupError> {
        if self.knows_group(name) {
            return Ok(());
        }
        self.catch_up().await?;
        if self.knows_group(name) {
            return Ok(());
        }
        if !self.options.create_on_use {
            return Err(NoGroup { group: name.clone() }.into());
        }
        self.propose_group(&default_group(name), deadline).await?;
        if !self.knows_group(name) {
            self.catch_up().await?;
        }
        Ok(())
    }

    async fn propose_group(&self, group: &NewGroup, deadline: Instant) -> Result<(), GroupError> {
        let NewGroup { name, attempts_max, backoff, rule, .. } = group.clone();
        let create = CreateGroup { name, attempts_max, backoff, rule };
        let reply = self.group.propose(Command::CreateGroup(create), deadline).await;
        match reply.map_err(|error| unavailable(&error))? {
            Reply::GroupCreated { .. } => Ok(()),
            Reply::Refused(Refusal::Limit { what, limit }) => Err(LimitError {
                what: "number of consumer groups",
                value: what,
                allowed: format!("at most {limit}"),
            }
            .into()),
            other => Err(unexpected(&other).into()),
        }
    }
}
