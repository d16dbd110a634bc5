//! Consumer groups: make, list, describe, delete.

use tokio::time::Instant;

use crate::base::{DELAY_LEVELS, GroupId, GroupName, Millis, TopicName};
use crate::broker::Replica;
use crate::broker::api::{GroupInstance, GroupPart, GroupTopic, NewGroup};
use crate::broker::error::{GroupError, LimitError, NoGroup};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::replica::Inner;
use crate::broker::topics::PAGE_MAX;
use crate::command::{
    Backoff, Begin, Command, CreateGroup, GROWTH_MAX, OrderRule, Refusal, Reply, StartAt,
};
use crate::machine::{Conflict, Group, InstanceView, Lag, State};

/// Deliveries of a message before it counts as exhausted: RocketMQ's 16 retries and the first one.
pub(super) const ATTEMPTS_DEFAULT: u32 = 17;
const ATTEMPTS_MAX: u32 = 1000;

/// What another broker group makes the group with: it begins there from the same time on.
fn begin_of(state: &State, group: GroupId) -> Begin {
    let start = state.group_start(group).map_or(StartAt::Earliest, StartAt::Time);
    Begin { start, paused: state.is_paused(group) }
}

/// A group as it comes into being when nothing is said of it.
pub(super) fn default_group(name: &GroupName) -> NewGroup {
    NewGroup {
        name: name.clone(),
        attempts_max: ATTEMPTS_DEFAULT,
        backoff: DELAY_LEVELS.to_vec().into(),
        rule: OrderRule::default(),
        broker_groups: Vec::new(),
        dead_keep: None,
        begin: Begin::default(),
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
                dead_keep: group.dead_keep,
                begin: begin_of(state, group.id),
            })
        })
    }

    /// Makes a group; one that exists keeps its settings.
    pub(super) async fn create_group(
        &self,
        group: &NewGroup,
        deadline: Instant,
    ) -> Result<(), GroupError> {
        check_attempts(group.attempts_max)?;
        check_backoff(&group.backoff)?;
        let now = self.group.wall();
        if let StartAt::Time(time) = group.begin.start
            && time > now
        {
            return Err(LimitError {
                what: "time from which the group wants messages",
                value: time.to_string(),
                allowed: format!("no later than now, {now}; latest stands for that"),
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
        self.group.read(|state| {
            let group = state.group(name)?;
            let instances = instances(state, group);
            Some(GroupPart { instances, ..self.part_of_group(state, group) })
        })
    }

    fn part_of_group(&self, state: &State, group: &Group) -> GroupPart {
        let topics = state
            .topics_of(group.id)
            .filter_map(|topic| {
                let lag = state.lag(group.id, topic);
                let epoch = state.epoch(group.id, topic);
                let filters = state.subscriptions(group.id, topic).1.to_vec();
                let Conflict { since: differ_since, count: conflicts } =
                    state.conflict(group.id, topic);
                let topic = state.topic_by_id(topic)?.name.clone();
                let Lag { ready, in_flight, expired, dead, stopped, dead_letters } = lag;
                Some(GroupTopic {
                    topic,
                    ready,
                    in_flight,
                    expired,
                    dead,
                    stopped,
                    dead_letters,
                    epoch,
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
            dead_keep: group.dead_keep,
            instances: Vec::new(),
            start: state.group_start(group.id),
            paused: state.is_paused(group.id),
        }
    }
}

pub(super) fn check_attempts(attempts_max: u32) -> Result<(), LimitError> {
    if (1..=ATTEMPTS_MAX).contains(&attempts_max) {
        return Ok(());
    }
    let allowed = format!("1 to {ATTEMPTS_MAX}");
    Err(LimitError { what: "number of attempts", value: attempts_max.to_string(), allowed })
}

pub(super) fn check_backoff(backoff: &Backoff) -> Result<(), LimitError> {
    let Backoff::Exponential(curve) = backoff else { return Ok(()) };
    let grows = (1000..=GROWTH_MAX).contains(&curve.growth);
    if grows && curve.initial > Millis::ZERO && curve.initial <= curve.max {
        return Ok(());
    }
    let most = GROWTH_MAX / 1000;
    Err(LimitError {
        what: "back-off",
        value: backoff.to_string(),
        allowed: format!("a first time above 0 and not beyond the largest, times 1 to {most} each"),
    })
}

fn instances(state: &State, group: &Group) -> Vec<GroupInstance> {
    let instance = |view: InstanceView| {
        let InstanceView { instance, until, behind, lost, .. } = view;
        let topic = state.topic_by_id(view.topic)?.name.clone();
        Some(GroupInstance { topic, instance, behind, lease_until: until, lost })
    };
    state.instances(group.id, PAGE_MAX).into_iter().filter_map(instance).collect()
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
        let NewGroup { name, attempts_max, backoff, rule, dead_keep, begin, .. } = group.clone();
        let create = CreateGroup { name, attempts_max, backoff, rule, dead_keep, begin };
        let reply = self.group.propose(Command::CreateGroup(create), deadline).await;
        match reply.map_err(|error| unavailable(&error))? {
            Reply::GroupCreated { .. } => Ok(()),
            Reply::Refused(Refusal::Limit { what, limit }) => {
                let allowed = limit.to_string();
                Err(LimitError { what: "a consumer group", value: what, allowed }.into())
            }
            other => Err(unexpected(&other).into()),
        }
    }
}
