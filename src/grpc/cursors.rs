//! Resets, as an operator asks for them.

use tonic::Status;

use crate::base::{QueueId, QueueOffset, UtcMillis};
use crate::broker::{Begin, Broker, QueueReset, ResetRequest, ResetStep, ResetTo, StartAt};
use crate::wire::raftmq as v1;

use super::admin::{broker_groups, group_name, topic_name};
use super::status::group_status;

pub(super) async fn reset(
    broker: &Broker,
    request: v1::ResetGroupRequest,
) -> Result<v1::ResetGroupResponse, Status> {
    let request = asked(&request)?;
    let steps = broker.reset_group(&request).await.map_err(|error| group_status(&error))?;
    Ok(v1::ResetGroupResponse { parts: steps.into_iter().map(part).collect() })
}

fn asked(request: &v1::ResetGroupRequest) -> Result<ResetRequest, Status> {
    use v1::reset_group_request::To;
    let to = match request.to {
        Some(To::Earliest(true)) => ResetTo::Earliest,
        Some(To::Latest(true)) => ResetTo::Latest,
        Some(To::Time(time)) => ResetTo::Time(UtcMillis::new(time)),
        Some(To::Offset(offset)) => ResetTo::Offset(QueueOffset::new(offset)),
        Some(To::Earliest(false) | To::Latest(false)) | None => {
            let text = "where to is missing: earliest, latest, a time or an offset";
            return Err(Status::invalid_argument(text));
        }
    };
    Ok(ResetRequest {
        group: group_name(&request.name)?,
        topic: topic_name(&request.topic)?,
        to,
        queue: request.queue.map(QueueId::new),
        broker_groups: broker_groups(&request.broker_groups)?,
        dry_run: request.dry_run,
    })
}

fn part(step: ResetStep) -> v1::ResetPart {
    let queue = |reset: QueueReset| v1::QueueReset {
        queue: reset.queue.get(),
        from: reset.from.get(),
        to: reset.to.get(),
        again: reset.again,
        passed_by: reset.passed_by,
    };
    v1::ResetPart {
        broker_group: step.broker_group.to_string(),
        epoch: step.epoch,
        queues: step.queues.into_iter().map(queue).collect(),
    }
}

/// What a new group is to begin with.
pub(super) fn begin(request: &v1::CreateGroupRequest) -> Begin {
    use v1::create_group_request::Start;
    let start = match request.start {
        Some(Start::Latest(true)) => StartAt::Latest,
        Some(Start::StartTime(time)) => StartAt::Time(UtcMillis::new(time)),
        Some(Start::Latest(false)) | None => StartAt::Earliest,
    };
    Begin { start, paused: request.paused }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_says_where_to() {
        use v1::reset_group_request::To;
        let ask = |to| {
            let (name, topic) = ("g".to_owned(), "t".to_owned());
            let request = v1::ResetGroupRequest { name, topic, to, ..Default::default() };
            asked(&request).map(|request| request.to).map_err(|status| status.code())
        };
        assert_eq!(ask(Some(To::Latest(true))).unwrap(), ResetTo::Latest);
        assert_eq!(ask(Some(To::Time(0))).unwrap(), ResetTo::Time(UtcMillis::ZERO));
        assert_eq!(ask(Some(To::Offset(7))).unwrap(), ResetTo::Offset(QueueOffset::new(7)));
        assert_eq!(ask(None).unwrap_err(), tonic::Code::InvalidArgument);
        assert_eq!(ask(Some(To::Earliest(false))).unwrap_err(), tonic::Code::InvalidArgument);
    }
}
