//! Consumer groups: make, list, describe, delete.

use tokio::time::Instant;

use crate::base::{DELAY_LEVELS, GroupName};
use crate::broker::api::{GroupInfo, GroupTopic, NewGroup};
use crate::broker::error::{GroupError, LimitError, NoGroup, Unavailable};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::topics::PAGE_MAX;
use crate::broker::{Broker, Inner};
use crate::command::{Command, CreateGroup, Refusal, Reply};
use crate::machine::{Group, State};

/// Deliveries of a message before it counts as exhausted: RocketMQ's 16 retries and the first one.
pub(super) const ATTEMPTS_DEFAULT: u32 = 17;
const ATTEMPTS_MAX: u32 = 1000;

/// A group as it comes into being when nothing is said of it.
pub(super) fn default_group(name: &GroupName) -> NewGroup {
    NewGroup { name: name.clone(), attempts_max: ATTEMPTS_DEFAULT, backoff: DELAY_LEVELS.to_vec() }
}

impl Broker {
    /// What the group's settings tell its clients; defaults for a group that does not exist yet.
    pub fn group_settings(&self, group: &GroupName) -> NewGroup {
        let known = self.group.read(|state| {
            state.group(group).map(|group| NewGroup {
                name: group.name.clone(),
                attempts_max: group.attempts_max,
                backoff: group.backoff.clone(),
            })
        });
        known.unwrap_or_else(|| default_group(group))
    }

    /// Makes a group; making it again changes nothing.
    pub async fn create_group(&self, group: NewGroup) -> Result<GroupInfo, GroupError> {
        if group.attempts_max == 0 || group.attempts_max > ATTEMPTS_MAX {
            return Err(LimitError {
                what: "number of attempts",
                value: group.attempts_max.to_string(),
                allowed: format!("1 to {ATTEMPTS_MAX}"),
            }
            .into());
        }
        let name = group.name.clone();
        self.propose_group(group, self.default_deadline()).await?;
        self.group_info(&name).await
    }

    /// Its progress is gone with it; a group of the same name made later starts at the beginning.
    pub async fn delete_group(&self, name: &GroupName) -> Result<(), GroupError> {
        self.catch_up().await?;
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

    /// Groups by name, from the one behind `after`, at most `limit`, and never more than 1000.
    pub async fn groups(
        &self,
        after: Option<&GroupName>,
        limit: usize,
    ) -> Result<Vec<GroupInfo>, Unavailable> {
        self.catch_up().await?;
        Ok(self.group.read(|state| {
            let page = state.groups_after(after).take(limit.min(PAGE_MAX));
            page.map(|group| info(state, group)).collect()
        }))
    }

    pub async fn group_info(&self, name: &GroupName) -> Result<GroupInfo, GroupError> {
        self.catch_up().await?;
        self.group
            .read(|state| state.group(name).map(|group| info(state, group)))
            .ok_or_else(|| NoGroup { group: name.clone() }.into())
    }
}

fn info(state: &State, group: &Group) -> GroupInfo {
    let topics = state
        .topics_of(group.id)
        .filter_map(|topic| {
            let lag = state.lag(group.id, topic);
            let topic = state.topic_by_id(topic)?.name.clone();
            Some(GroupTopic { topic, ready: lag.ready, in_flight: lag.in_flight })
        })
        .collect();
    GroupInfo {
        id: group.id,
        name: group.name.clone(),
        attempts_max: group.attempts_max,
        backoff: group.backoff.clone(),
        created: group.created,
        topics,
    }
}

impl Inner {
    /// The group exists here afterwards, made on first use where the profile says so.
    pub(super) async fn resolve_group(
        &self,
        name: &GroupName,
        deadline: Instant,
    ) -> Result<(), GroupError> {
        let exists = || self.group.read(|state| state.group(name).is_some());
        if exists() {
            return Ok(());
        }
        self.catch_up().await?;
        if exists() {
            return Ok(());
        }
        if !self.options.create_on_use {
            return Err(NoGroup { group: name.clone() }.into());
        }
        self.propose_group(default_group(name), deadline).await?;
        if !exists() {
            self.catch_up().await?;
        }
        Ok(())
    }

    async fn propose_group(&self, group: NewGroup, deadline: Instant) -> Result<(), GroupError> {
        let NewGroup { name, attempts_max, backoff } = group;
        let create = CreateGroup { name, attempts_max, backoff };
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
