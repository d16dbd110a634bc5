//! Where consumer groups stand, as an operator asks for it.

use std::time::Duration;

use crate::base::GroupName;
use crate::wire::raftmq as v1;

use super::Client;
use super::admin::group;
use super::error::ClientError;
use super::values::{GroupInfo, GroupReset, QueueReset, ResetPart, ResetTo};

/// A reset goes on through a change of leaders.
const RESET_TIMEOUT: Duration = Duration::from_secs(15);

impl Client {
    /// Puts a group elsewhere in a topic, or tells what that would do. Repeating it is harmless: what
    /// was handed out in between comes again.
    pub async fn reset_group(&self, reset: &GroupReset<'_>) -> Result<Vec<ResetPart>, ClientError> {
        use v1::reset_group_request::To;
        let to = match reset.to {
            ResetTo::Earliest => To::Earliest(true),
            ResetTo::Latest => To::Latest(true),
            ResetTo::Time(time) => To::Time(time),
            ResetTo::Offset(offset) => To::Offset(offset),
        };
        let request = v1::ResetGroupRequest {
            name: reset.group.to_string(),
            topic: reset.topic.to_string(),
            to: Some(to),
            queue: reset.queue,
            broker_groups: reset.broker_groups.to_vec(),
            dry_run: reset.dry_run,
        };
        let answer = self.admin().reset_group(self.request(request, RESET_TIMEOUT)).await?;
        Ok(answer.into_inner().parts.into_iter().map(part).collect())
    }

    /// Hands nothing out to a group, or does so again.
    pub async fn pause_group(
        &self,
        name: &GroupName,
        paused: bool,
    ) -> Result<GroupInfo, ClientError> {
        let request = v1::PauseGroupRequest { name: name.to_string(), paused };
        let request = self.request(request, super::CALL_TIMEOUT);
        Ok(group(self.admin().pause_group(request).await?.into_inner()))
    }
}

fn part(part: v1::ResetPart) -> ResetPart {
    let queue = |reset: v1::QueueReset| QueueReset {
        queue: reset.queue,
        from: reset.from,
        to: reset.to,
        again: reset.again,
        passed_by: reset.passed_by,
    };
    ResetPart {
        broker_group: part.broker_group,
        epoch: part.epoch,
        queues: part.queues.into_iter().map(queue).collect(),
    }
}

/// Where a new group begins; `None` for the first message that there is. A group begins at no offset:
/// it has no topic yet.
pub(super) fn start(at: ResetTo) -> Option<v1::create_group_request::Start> {
    use v1::create_group_request::Start;
    match at {
        ResetTo::Latest => Some(Start::Latest(true)),
        ResetTo::Time(time) => Some(Start::StartTime(time)),
        ResetTo::Earliest | ResetTo::Offset(_) => None,
    }
}
