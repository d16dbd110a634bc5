//! One table from what went wrong to what clients read.

use std::fmt;

use crate::base::NameError;
use crate::broker::{
    AckError, BadHandle, BadRecallHandle, BadTransactionId, DecidedOtherwise, DelayTooLong,
    DiskFull, EndError, GroupError, HalvesFull, HoldError, KindConflict, KindNotYet, LimitError,
    NoGroup, NoTopic, NoTransaction, NotWritable, OffsetError, Overloaded, ReceiveError,
    RouteError, SendError, TimerError, TopicError, Unavailable,
};
use crate::wire::rocketmq::{self as v2, Code};

/// Why a request, or an entry of one, is refused: a business error, told inside the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) code: Code,
    pub(super) text: String,
}

impl Refused {
    pub(super) fn new(code: Code, text: impl fmt::Display) -> Self {
        Self { code, text: text.to_string() }
    }

    /// For what the protocol has and this version does not.
    pub(super) fn not_yet(what: &str) -> Self {
        Self::new(Code::NotImplemented, format_args!("{what} is not supported by this version"))
    }

    pub(super) fn status(self) -> v2::Status {
        v2::Status { code: self.code.into(), message: self.text }
    }
}

pub(super) fn ok() -> v2::Status {
    v2::Status { code: Code::Ok.into(), message: "OK".to_owned() }
}

/// The status over entries: theirs if they share one, else [`Code::MultipleResults`]. Some clients
/// take that for a failure, so an answer with one entry never has it.
pub(super) fn common<'a>(mut entries: impl Iterator<Item = &'a v2::Status>) -> v2::Status {
    let Some(first) = entries.next() else {
        return ok();
    };
    if entries.all(|status| status.code == first.code) {
        return first.clone();
    }
    v2::Status {
        code: Code::MultipleResults.into(),
        message: "the entries differ; see the status of each".to_owned(),
    }
}

/// A response that carries a status.
pub(super) trait Answer {
    fn refused(status: v2::Status) -> Self;

    fn code(&self) -> Code;
}

macro_rules! answers {
    ($($response:ident),* $(,)?) => {
        $(impl Answer for v2::$response {
            fn refused(status: v2::Status) -> Self {
                let mut answer = Self::default();
                answer.status = Some(status);
                answer
            }

            fn code(&self) -> Code {
                self.status.as_ref().map_or(Code::Unspecified, |status| status.code())
            }
        })*
    };
}

answers!(
    QueryRouteResponse,
    HeartbeatResponse,
    SendMessageResponse,
    QueryAssignmentResponse,
    AckMessageResponse,
    ForwardMessageToDeadLetterQueueResponse,
    UpdateOffsetResponse,
    GetOffsetResponse,
    QueryOffsetResponse,
    EndTransactionResponse,
    NotifyClientTerminationResponse,
    ChangeInvisibleDurationResponse,
    RecallMessageResponse,
    SyncLiteSubscriptionResponse,
);

/// Which code a cause has, whatever was asked for.
macro_rules! causes {
    ($($cause:ident => $code:ident),* $(,)?) => {
        $(impl From<$cause> for Refused {
            fn from(error: $cause) -> Self {
                Self::new(Code::$code, error)
            }
        })*
    };
}

causes!(
    NoTopic => TopicNotFound,
    NoGroup => ConsumerGroupNotFound,
    KindConflict => MessagePropertyConflictWithType,
    KindNotYet => NotImplemented,
    NotWritable => Forbidden,
    LimitError => BadRequest,
    DelayTooLong => IllegalDeliveryTime,
    BadRecallHandle => BadRequest,
    Overloaded => TooManyRequests,
    DiskFull => MasterPersistenceTimeout,
    BadHandle => InvalidReceiptHandle,
    HalvesFull => TooManyRequests,
    BadTransactionId => InvalidTransactionId,
    NoTransaction => InvalidTransactionId,
    DecidedOtherwise => PreconditionFailed,
);

impl From<Unavailable> for Refused {
    /// Clients repeat either; only the second may have taken effect already.
    fn from(error: Unavailable) -> Self {
        let code = if error.outcome_unknown { Code::ProxyTimeout } else { Code::HaNotAvailable };
        Self::new(code, error)
    }
}

/// Which causes an operation has; the few whose code depends on it come first.
macro_rules! operations {
    ($($error:ident { $($special:pat => $code:ident,)* ; $($cause:ident),* })*) => {
        $(impl From<$error> for Refused {
            fn from(error: $error) -> Self {
                match error {
                    $($special => Self::new(Code::$code, error),)*
                    $($error::$cause(cause) => cause.into(),)*
                }
            }
        })*
    };
}

operations! {
    SendError {
        SendError::Limit(_) => PayloadTooLarge,
        ; NoTopic, KindConflict, KindNotYet, NotWritable, DelayTooLong, Overloaded, DiskFull,
          HalvesFull, Unavailable
    }
    ReceiveError {
        ReceiveError::Filter(_) => IllegalFilterExpression,
        ; NoTopic, NoGroup, Limit, Overloaded, Unavailable
    }
    TimerError { ; NoTopic, KindConflict, BadRecallHandle, DelayTooLong, Unavailable }
    AckError { ; BadHandle, Unavailable }
    HoldError { ; BadHandle, Unavailable }
    RouteError { ; NoTopic, Limit, Unavailable }
    EndError { ; BadTransactionId, NoTransaction, DecidedOtherwise, Unavailable }
    OffsetError {
        OffsetError::Illegal { .. } => IllegalOffset,
        ; NoTopic, NoGroup, Limit, Unavailable
    }
}

pub(super) fn bad_topic(error: NameError) -> Refused {
    Refused::new(Code::IllegalTopic, error)
}

pub(super) fn bad_group(error: NameError) -> Refused {
    Refused::new(Code::IllegalConsumerGroup, error)
}

/// Administration tells its failures as gRPC statuses.
pub(super) fn unavailable(error: &Unavailable) -> tonic::Status {
    if error.outcome_unknown {
        tonic::Status::deadline_exceeded(error.to_string())
    } else {
        tonic::Status::unavailable(error.to_string())
    }
}

pub(super) fn timer_status(error: &TimerError) -> tonic::Status {
    match error {
        TimerError::NoTopic(_) => tonic::Status::not_found(error.to_string()),
        TimerError::KindConflict(_)
        | TimerError::BadRecallHandle(_)
        | TimerError::DelayTooLong(_) => tonic::Status::invalid_argument(error.to_string()),
        TimerError::Unavailable(cause) => unavailable(cause),
    }
}

pub(super) fn topic_status(error: &TopicError) -> tonic::Status {
    match error {
        TopicError::NoTopic(_) => tonic::Status::not_found(error.to_string()),
        TopicError::Differs { .. } => tonic::Status::already_exists(error.to_string()),
        TopicError::Limit(_) | TopicError::NoBrokerGroup(_) => {
            tonic::Status::invalid_argument(error.to_string())
        }
        TopicError::Unavailable(cause) => unavailable(cause),
        // The code is the cause's, the text also says where.
        TopicError::At { source, .. } => {
            tonic::Status::new(topic_status(source).code(), error.to_string())
        }
    }
}

pub(super) fn end_status(error: &EndError) -> tonic::Status {
    match error {
        EndError::BadTransactionId(_) => tonic::Status::invalid_argument(error.to_string()),
        EndError::NoTransaction(_) => tonic::Status::not_found(error.to_string()),
        EndError::DecidedOtherwise(_) => tonic::Status::failed_precondition(error.to_string()),
        EndError::Unavailable(cause) => unavailable(cause),
    }
}

pub(super) fn group_status(error: &GroupError) -> tonic::Status {
    match error {
        GroupError::NoGroup(_) | GroupError::NoTopic(_) => {
            tonic::Status::not_found(error.to_string())
        }
        GroupError::Limit(_) | GroupError::NoBrokerGroup(_) => {
            tonic::Status::invalid_argument(error.to_string())
        }
        GroupError::Unavailable(cause) => unavailable(cause),
        GroupError::At { source, .. } => {
            tonic::Status::new(group_status(source).code(), error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{GroupName, Millis, TopicName};
    use crate::message::MessageKind;

    fn topic() -> TopicName {
        TopicName::new("t").unwrap()
    }

    fn unavailable(outcome_unknown: bool) -> Unavailable {
        Unavailable { reason: "no leader".into(), outcome_unknown }
    }

    #[test]
    fn each_cause_has_the_code_that_clients_expect() {
        let no_topic = NoTopic { topic: topic() };
        let no_group = NoGroup { group: GroupName::new("g").unwrap() };
        let conflict =
            KindConflict { topic: topic(), kind: MessageKind::Fifo, takes: vec!["normal"] };
        let not_yet = KindNotYet { kind: MessageKind::Delay };
        let limit = LimitError { what: "size", value: "5".into(), allowed: "at most 4".into() };
        let busy = Overloaded { what: "full".into(), retry_after: Millis::new(10) };
        let handle = BadHandle { why: "is stale" };
        let table: Vec<(Refused, i32)> = vec![
            (SendError::from(no_topic.clone()).into(), 40402),
            (SendError::from(conflict).into(), 40014),
            (SendError::from(not_yet).into(), 50100),
            (SendError::from(limit.clone()).into(), 41300),
            (SendError::from(busy.clone()).into(), 42900),
            (SendError::from(DiskFull { reason: "full".into() }).into(), 50401),
            (SendError::from(unavailable(false)).into(), 50002),
            (SendError::from(unavailable(true)).into(), 50400),
            (ReceiveError::from(no_topic.clone()).into(), 40402),
            (ReceiveError::from(no_group).into(), 40403),
            (ReceiveError::from(limit).into(), 40000),
            (ReceiveError::from(busy).into(), 42900),
            (AckError::from(handle.clone()).into(), 40013),
            (HoldError::from(handle).into(), 40013),
            (RouteError::from(no_topic).into(), 40402),
            (SendError::from(HalvesFull { reason: "full".into() }).into(), 42900),
            (EndError::from(BadTransactionId { why: "is malformed" }).into(), 40008),
            (EndError::from(NoTransaction { reason: "none".into() }).into(), 40008),
            (EndError::from(DecidedOtherwise { reason: "was".into() }).into(), 42800),
            (EndError::from(unavailable(false)).into(), 50002),
        ];
        for (refused, code) in table {
            assert_eq!(refused.code as i32, code, "{refused:?}");
            assert!(!refused.text.is_empty());
        }
    }

    #[test]
    fn entries_share_a_status_or_point_at_themselves() {
        let bad = Refused::new(Code::InvalidReceiptHandle, "stale").status();
        assert_eq!(common([].iter()), ok());
        assert_eq!(common([bad.clone()].iter()), bad);
        assert_eq!(common([ok(), ok()].iter()), ok());
        assert_eq!(common([ok(), bad].iter()).code, 30000);
    }

    #[test]
    fn administration_tells_unknown_outcomes_apart() {
        let code = |unknown| super::unavailable(&unavailable(unknown)).code();
        assert_eq!(code(false), tonic::Code::Unavailable);
        assert_eq!(code(true), tonic::Code::DeadlineExceeded);
    }
}
