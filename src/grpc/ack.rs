//! AckMessage, ChangeInvisibleDuration, and giving a message up.

use crate::base::Millis;
use crate::broker::{AckRequest, Broker, HoldError, HoldRequest};
use crate::wire::rocketmq as v2;

use super::limits;
use super::metadata::Caller;
use super::status::{Refused, common, ok};

/// How long a message that its consumer gave up stays hidden where it may not become a dead letter:
/// its group took it from its own dead letters, or there is no room for more.
const GIVEN_UP: Millis = Millis::from_secs(60);

pub(super) async fn ack(
    broker: &Broker,
    caller: Caller,
    request: v2::AckMessageRequest,
) -> Result<v2::AckMessageResponse, Refused> {
    let topic = limits::topic(request.topic.as_ref())?;
    let group = limits::group(request.group.as_ref())?;
    limits::acks(request.entries.len())?;
    let handles = request.entries.iter().map(|entry| entry.receipt_handle.clone()).collect();
    let deadline = caller.answer_by();
    let outcomes = broker.ack(AckRequest { topic, group, handles, deadline }).await;
    assert_eq!(outcomes.len(), request.entries.len(), "one outcome for each handle");
    let statuses = outcomes
        .into_iter()
        .map(|outcome| outcome.map_or_else(|error| Refused::from(error).status(), |()| ok()));
    Ok(ack_response(request.entries, statuses))
}

fn ack_response(
    entries: Vec<v2::AckMessageEntry>,
    statuses: impl Iterator<Item = v2::Status>,
) -> v2::AckMessageResponse {
    let entries: Vec<_> = entries
        .into_iter()
        .zip(statuses)
        .map(|(entry, status)| v2::AckMessageResultEntry {
            message_id: entry.message_id,
            receipt_handle: entry.receipt_handle,
            status: Some(status),
        })
        .collect();
    let status = common(entries.iter().filter_map(|entry| entry.status.as_ref()));
    v2::AckMessageResponse { status: Some(status), entries }
}

/// Whatever happens, a handle comes back: clients overwrite theirs with it.
pub(super) async fn change_invisible_duration(
    broker: &Broker,
    caller: Caller,
    request: v2::ChangeInvisibleDurationRequest,
) -> Result<v2::ChangeInvisibleDurationResponse, Refused> {
    let (status, receipt_handle) = match hold(broker, &caller, &request).await {
        Ok(handle) => (ok(), handle),
        Err(refused) => (refused.status(), request.receipt_handle),
    };
    Ok(v2::ChangeInvisibleDurationResponse { status: Some(status), receipt_handle })
}

async fn hold(
    broker: &Broker,
    caller: &Caller,
    request: &v2::ChangeInvisibleDurationRequest,
) -> Result<String, Refused> {
    let hold = HoldRequest {
        topic: limits::topic(request.topic.as_ref())?,
        group: limits::group(request.group.as_ref())?,
        handle: request.receipt_handle.clone(),
        invisible: limits::invisible_on_change(request.invisible_duration.as_ref())?,
        deadline: caller.answer_by(),
    };
    Ok(broker.hold(hold).await?)
}

/// The message becomes a dead letter, or its message group stands still as the group's rule says.
/// Clients repeat everything but OK for ever, so a delivery that is over is OK.
pub(super) async fn forward_to_dead_letters(
    broker: &Broker,
    caller: Caller,
    request: v2::ForwardMessageToDeadLetterQueueRequest,
) -> Result<v2::ForwardMessageToDeadLetterQueueResponse, Refused> {
    let hold = HoldRequest {
        topic: limits::topic(request.topic.as_ref())?,
        group: limits::group(request.group.as_ref())?,
        handle: request.receipt_handle,
        invisible: GIVEN_UP,
        deadline: caller.answer_by(),
    };
    match broker.give_up(hold).await {
        Ok(()) | Err(HoldError::BadHandle(_)) => {
            Ok(v2::ForwardMessageToDeadLetterQueueResponse { status: Some(ok()) })
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rocketmq::Code;

    #[test]
    fn acknowledgements_are_answered_one_by_one_and_in_order() {
        let entry = |id: &str| v2::AckMessageEntry {
            message_id: id.into(),
            receipt_handle: format!("handle-{id}"),
            lite_topic: None,
        };
        let stale = || Refused::new(Code::InvalidReceiptHandle, "stale").status();
        let response = ack_response(vec![entry("a"), entry("b")], [ok(), stale()].into_iter());
        assert_eq!(response.status.unwrap().code, i32::from(Code::MultipleResults));
        assert_eq!(response.entries[1].message_id, "b");
        assert_eq!(response.entries[1].receipt_handle, "handle-b");
        assert_eq!(response.entries[1].status, Some(stale()));

        let response = ack_response(vec![entry("a")], [stale()].into_iter());
        assert_eq!(response.status, Some(stale()), "one entry never has multiple results");
    }
}
