//! Where groups stand, in all broker groups; and reading by offset, from one of them.

use futures::future::join_all;
use tokio::time::Instant;

use crate::base::{GroupName, Millis, QueueId, QueueOffset};
use crate::broker::api::GroupInfo;
use crate::broker::cursors::{ResetRequest, ResetStep};
use crate::broker::error::{GroupError, LimitError, NoGroup, NoTopic, OffsetError, ReceiveError};
use crate::broker::pull::{OffsetOf, PULL_QUEUES, PullRequest, Pulled, QueueRequest, batch};
use crate::broker::{Broker, Gone, Replica};

/// A reset goes on through a change of leaders.
const RESET_TIMEOUT: Millis = Millis::from_secs(8);

impl Broker {
    /// Puts a group elsewhere in a topic: what it has of these queues is replaced by "begins here", and
    /// every receipt handle of before is stale. Repeating it is harmless: what was handed out in
    /// between comes again.
    pub async fn reset_group(&self, request: &ResetRequest) -> Result<Vec<ResetStep>, GroupError> {
        let deadline = Instant::now() + RESET_TIMEOUT.duration();
        self.catch_up().await?;
        let chosen = self.named(&request.broker_groups)?;
        if !chosen.iter().any(|replica| replica.knows_topic(&request.topic)) {
            return Err(NoTopic { topic: request.topic.clone() }.into());
        }
        let mut plans = Vec::new();
        for replica in chosen {
            let plan = replica.plan_reset(request).await;
            let plan = plan.map_err(|error| self.at(replica, error, GroupError::at))?;
            plans.extend(plan.map(|plan| (replica, plan)));
        }
        if plans.is_empty() {
            return Err(NoGroup { group: request.group.clone() }.into());
        }
        if request.dry_run {
            return Ok(plans.into_iter().map(|(_, plan)| plan.step).collect());
        }
        let put = plans.into_iter().map(|(replica, plan)| async move {
            let done = replica.reset(plan, deadline).await.map_err(GroupError::from);
            done.map_err(|error| self.at(replica, error, GroupError::at))
        });
        join_all(put).await.into_iter().collect()
    }

    /// Nothing is handed out to a paused group; what it has goes on.
    pub async fn pause_group(
        &self,
        name: &GroupName,
        paused: bool,
    ) -> Result<GroupInfo, GroupError> {
        self.catch_up().await?;
        let told = self.0.replicas.iter().map(|replica| replica.pause_group(name, paused));
        for (replica, outcome) in self.0.replicas.iter().zip(join_all(told).await) {
            outcome.map_err(|error| self.at(replica, error, GroupError::at))?;
        }
        self.changed_group(name).await
    }

    /// Messages of one queue from an offset on. Waits until something that matches is there, the
    /// polling time is over, or the asker is gone.
    pub async fn pull(
        &self,
        mut request: PullRequest,
        gone: &Gone,
    ) -> Result<Pulled, ReceiveError> {
        let filter = request.filter.parse()?;
        request.batch = batch(request.batch)?;
        self.resolve_topic(&request.at.topic, self.default_deadline()).await?;
        let (replica, queue) = self.queue(&request.at)?;
        let line = self.fresh_id();
        replica.pull(&request, (queue, &line), &filter, gone).await
    }

    /// Which offset a queue begins at, ends at, or had at a time.
    pub async fn find_offset(
        &self,
        at: &QueueRequest,
        which: OffsetOf,
    ) -> Result<QueueOffset, OffsetError> {
        self.resolve_topic(&at.topic, self.default_deadline()).await?;
        let (replica, queue) = self.queue(at)?;
        replica.catch_up().await?;
        replica.find_offset(&at.topic, queue, which)
    }

    /// How far a group is in a queue, as its readers said; without their word, as its consumers are, or
    /// where it begins. `None` when it has not begun.
    pub async fn offset_of_group(
        &self,
        group: &GroupName,
        at: &QueueRequest,
    ) -> Result<Option<QueueOffset>, OffsetError> {
        self.resolve_topic(&at.topic, self.default_deadline()).await?;
        let (replica, queue) = self.queue(at)?;
        replica.catch_up().await?;
        if !replica.knows_topic(&at.topic) {
            return Err(NoTopic { topic: at.topic.clone() }.into());
        }
        replica.offset_of_group((group, &at.topic), queue)
    }

    /// A reader of the group has done everything before this offset.
    pub async fn store_offset(
        &self,
        group: &GroupName,
        at: &QueueRequest,
        offset: QueueOffset,
    ) -> Result<(), OffsetError> {
        let deadline = self.default_deadline();
        self.resolve_topic(&at.topic, deadline).await?;
        let (replica, queue) = self.queue(at)?;
        self.resolve_group(group, deadline).await?;
        if !replica.knows_group(group) {
            replica.ensure_group(group, self.group_settings(group)).await?;
        }
        replica.catch_up().await?;
        if !replica.knows_topic(&at.topic) {
            return Err(NoTopic { topic: at.topic.clone() }.into());
        }
        replica.store_offset((group, &at.topic), (queue, offset), deadline).await
    }

    /// The broker group and its own queue that a reader names.
    fn queue(&self, at: &QueueRequest) -> Result<(&Replica, QueueId), LimitError> {
        let (number, queue) = (at.queue / PULL_QUEUES, at.queue % PULL_QUEUES);
        let replica = usize::try_from(number).ok().and_then(|at| self.0.replicas.get(at));
        let replica = replica.ok_or_else(|| LimitError {
            what: "queue",
            value: at.queue.to_string(),
            allowed: format!(
                "those of {} broker groups, {PULL_QUEUES} numbers each",
                self.0.replicas.len()
            ),
        })?;
        Ok((replica, QueueId::new(queue)))
    }
}
