//! What an operator asks about dead letters, and about how a group's messages fail.

use tonic::Status;

use crate::base::{Millis, QueueOffset, UtcMillis};
use crate::broker::{
    Backoff, Broker, Curve, DeadLetterInfo, GroupChange, GroupInfo, LetterCursor, LetterFilter,
    LetterPage, Redriven, RedrivenLetter,
};
use crate::wire::raftmq as v1;
use crate::wire::raftmq::redriven_letter::Outcome;

use super::admin::{broker_groups, group_name, page, topic_name};
use super::status::group_status;

/// What one page may carry in bodies, about.
const PAGE_BYTES_MAX: usize = 32 << 20;

pub(super) async fn list(
    broker: &Broker,
    request: v1::ListDeadLettersRequest,
) -> Result<v1::ListDeadLettersResponse, Status> {
    let group = group_name(&request.group)?;
    let (filter, after) = (filter(request.filter)?, cursor(request.after.as_deref())?);
    let most = (page(request.limit), request.bodies.then_some(PAGE_BYTES_MAX));
    let found = broker.dead_letters(&group, &filter, after.as_ref(), most).await;
    let found = found.map_err(|error| group_status(&error))?;
    let letters = found.letters.into_iter().map(|info| letter(info, request.bodies)).collect();
    Ok(v1::ListDeadLettersResponse { letters, more: found.more })
}

pub(super) async fn redrive(
    broker: &Broker,
    request: v1::RedriveDeadLettersRequest,
) -> Result<v1::RedriveDeadLettersResponse, Status> {
    let group = group_name(&request.group)?;
    let (filter, after) = (filter(request.filter)?, cursor(request.after.as_deref())?);
    let most = (page(request.limit), None);
    let found = broker.dead_letters(&group, &filter, after.as_ref(), most).await;
    let LetterPage { letters, more } = found.map_err(|error| group_status(&error))?;
    let redriven = broker.redrive(&group, letters, request.dry_run).await;
    let redriven = redriven.map_err(|error| group_status(&error))?;
    let letters = redriven.into_iter().map(outcome).collect();
    Ok(v1::RedriveDeadLettersResponse { letters, more })
}

pub(super) async fn update_group(
    broker: &Broker,
    request: v1::UpdateGroupRequest,
) -> Result<GroupInfo, Status> {
    let name = group_name(&request.name)?;
    let told = !request.backoff.is_empty() || request.curve.is_some();
    let change = GroupChange {
        attempts_max: request.attempts_max,
        backoff: told.then(|| backoff(request.backoff, request.curve)).transpose()?,
        dead_keep: request.dead_keep_millis.map(Millis::new),
    };
    broker.update_group(&name, &change).await.map_err(|error| group_status(&error))
}

/// A list or a curve.
pub(super) fn backoff(
    listed: Vec<u64>,
    curve: Option<v1::BackoffCurve>,
) -> Result<Backoff, Status> {
    let Some(v1::BackoffCurve { initial, max, growth }) = curve else {
        let listed: Vec<Millis> = listed.into_iter().map(Millis::new).collect();
        return Ok(listed.into());
    };
    if !listed.is_empty() {
        return Err(Status::invalid_argument("the back-off is a list or a curve, not both"));
    }
    let (initial, max) = (Millis::new(initial), Millis::new(max));
    Ok(Backoff::Exponential(Curve { initial, max, growth }))
}

/// The list, or the curve, that a group has.
pub(super) fn told(backoff: Backoff) -> (Vec<u64>, Option<v1::BackoffCurve>) {
    match backoff {
        Backoff::Listed(times) => (times.into_iter().map(Millis::get).collect(), None),
        Backoff::Exponential(Curve { initial, max, growth }) => {
            let (initial, max) = (initial.get(), max.get());
            (Vec::new(), Some(v1::BackoffCurve { initial, max, growth }))
        }
    }
}

fn filter(filter: Option<v1::DeadLetterFilter>) -> Result<LetterFilter, Status> {
    let filter = filter.unwrap_or_default();
    let topic = (!filter.topic.is_empty()).then(|| topic_name(&filter.topic)).transpose()?;
    Ok(LetterFilter {
        topic,
        from: filter.from.map(UtcMillis::new),
        until: filter.until.map(UtcMillis::new),
        offsets: filter.offsets.into_iter().map(QueueOffset::new).collect(),
        message_ids: filter.message_ids,
        broker_groups: broker_groups(&filter.broker_groups)?,
    })
}

fn cursor(after: Option<&str>) -> Result<Option<LetterCursor>, Status> {
    let parsed = after.map(LetterCursor::parse).transpose();
    parsed.map_err(|error| Status::invalid_argument(error.to_string()))
}

fn letter(info: DeadLetterInfo, bodies: bool) -> v1::DeadLetter {
    let DeadLetterInfo { at, facts, message } = info;
    let properties = if bodies { message.properties } else { Vec::new() };
    v1::DeadLetter {
        at: at.to_string(),
        broker_group: at.broker_group.to_string(),
        offset: at.offset.get(),
        message_id: message.message_id,
        topic: facts.topic.to_string(),
        queue: facts.queue.get(),
        origin_offset: facts.offset.get(),
        attempts: facts.attempts,
        reason: facts.reason.name().to_owned(),
        died: facts.died.get(),
        tag: message.tag,
        keys: message.keys,
        message_group: message.message_group,
        properties: properties.into_iter().collect(),
        body: message.body,
    }
}

fn outcome(redriven: RedrivenLetter) -> v1::RedrivenLetter {
    let outcome = match redriven.outcome {
        None => Outcome::Unspecified,
        Some(Redriven::Done) => Outcome::Redriven,
        Some(Redriven::TargetGone) => Outcome::TargetGone,
        Some(Redriven::NotFound) => Outcome::NotFound,
        Some(Redriven::Full) => Outcome::Full,
    };
    v1::RedrivenLetter { letter: Some(letter(redriven.letter, false)), outcome: outcome.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_is_a_list_or_a_curve() {
        let curve = v1::BackoffCurve { initial: 1000, max: 600_000, growth: 2000 };
        let read = backoff(Vec::new(), Some(curve)).unwrap();
        assert_eq!(told(read), (Vec::new(), Some(curve)));
        assert_eq!(told(backoff(vec![1, 2], None).unwrap()), (vec![1, 2], None));
        assert_eq!(backoff(vec![1], Some(curve)).unwrap_err().code(), tonic::Code::InvalidArgument);
    }

    #[test]
    fn odd_places_are_refused() {
        assert!(cursor(None).unwrap().is_none());
        assert_eq!(cursor(Some("a:1")).unwrap().unwrap().offset, QueueOffset::new(1));
        assert_eq!(cursor(Some("a")).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
