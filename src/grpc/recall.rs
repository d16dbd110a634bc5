//! RecallMessage, and what administration asks for delayed messages.

use tonic::Status;

use crate::base::UtcMillis;
use crate::broker::{Broker, DelayedMessage, TimerAnswer, TimerChange, TimerOutcome, TimerRequest};
use crate::wire::raftmq as v1;
use crate::wire::rocketmq::{self as v2, Code};

use super::limits;
use super::metadata::Caller;
use super::status::{Refused, ok};

pub(super) async fn recall(
    broker: &Broker,
    caller: Caller,
    request: v2::RecallMessageRequest,
) -> Result<v2::RecallMessageResponse, Refused> {
    let topic = limits::topic(request.topic.as_ref())?;
    let deadline = caller.answer_by();
    let which = DelayedMessage::Handle(request.recall_handle);
    let request = TimerRequest { topic, which, change: TimerChange::Recall, deadline };
    let TimerAnswer { message_id, outcome } = broker.change_timer(request).await?;
    match outcome {
        TimerOutcome::Recalled | TimerOutcome::Rescheduled => {
            Ok(v2::RecallMessageResponse { status: Some(ok()), message_id })
        }
        TimerOutcome::AlreadyFired => Err(Refused::new(
            Code::PreconditionFailed,
            format_args!("ALREADY_FIRED: message {message_id} is visible, it is too late"),
        )),
        TimerOutcome::NotFound => Err(Refused::new(
            Code::MessageNotFound,
            format_args!(
                "NOT_FOUND: message {message_id} is not delayed, nor among the last that were"
            ),
        )),
    }
}

/// A message is named by its recall handle or by its id.
pub(super) fn which(named: Option<v1::delayed_message::Name>) -> Result<DelayedMessage, Status> {
    match named {
        Some(v1::delayed_message::Name::RecallHandle(handle)) => Ok(DelayedMessage::Handle(handle)),
        Some(v1::delayed_message::Name::MessageId(id)) => Ok(DelayedMessage::Id(id)),
        None => Err(Status::invalid_argument(
            "the message has no name; give its message id or its recall handle",
        )),
    }
}

pub(super) fn deliver_at(millis: u64) -> TimerChange {
    TimerChange::DeliverAt(UtcMillis::new(millis))
}

pub(super) fn answer(answer: TimerAnswer) -> v1::DelayedAnswer {
    use v1::delayed_answer::Outcome;
    let outcome = match answer.outcome {
        TimerOutcome::Recalled => Outcome::Recalled,
        TimerOutcome::Rescheduled => Outcome::Rescheduled,
        TimerOutcome::AlreadyFired => Outcome::AlreadyFired,
        TimerOutcome::NotFound => Outcome::NotFound,
    };
    v1::DelayedAnswer { outcome: outcome.into(), message_id: answer.message_id }
}
