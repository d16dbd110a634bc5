//! Why a call gave no answer, or not the wished one.

use std::time::Duration;

use crate::wire::rocketmq::Code;

/// One error for all calls: what to do depends on who failed, not on the call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "no broker answers at {endpoint}: {}; start one with raftmq up, or name another with --endpoint",
        innermost(source)
    )]
    Unreachable { endpoint: String, source: tonic::transport::Error },
    /// A gRPC status, which for messages means that the call itself failed.
    #[error("the broker answered {}: {text}", grpc_name(*code))]
    Call { code: i32, text: String },
    /// A code of the protocol, in an answer that arrived.
    #[error("the broker refused with {name} ({code}): {text}")]
    Refused { code: i32, name: &'static str, text: String },
    #[error("the broker's answer lacks {what}")]
    Incomplete { what: &'static str },
}

impl ClientError {
    /// Whether the broker had too much to do, and did nothing of what was asked.
    pub fn is_overload(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == i32::from(Code::TooManyRequests))
    }

    /// Whether it named a delivery that is over: asking again is in vain.
    pub fn is_over(&self) -> bool {
        let code = i32::from(Code::InvalidReceiptHandle);
        matches!(self, Self::Refused { code: found, .. } if *found == code)
    }

    /// When the broker wants to be asked again, if it has told.
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Refused { text, .. } = self else { return None };
        let (_, told) = text.rsplit_once("try again in ")?;
        let digits = told.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = told.split_at(digits);
        let number: u64 = number.parse().ok()?;
        match unit.trim() {
            "ms" => Some(Duration::from_millis(number)),
            "s" => Some(Duration::from_secs(number)),
            _ => None,
        }
    }

    /// Whether it named something that does not exist.
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Call { code, .. } => *code == i32::from(tonic::Code::NotFound),
            Self::Refused { code, .. } => (40_400..40_500).contains(code),
            _ => false,
        }
    }
}

fn grpc_name(code: i32) -> &'static str {
    use tonic::Code;
    match Code::from_i32(code) {
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::Unavailable => "UNAVAILABLE",
        Code::Aborted => "ABORTED",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Cancelled => "CANCELLED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Internal => "INTERNAL",
        _ => "UNKNOWN",
    }
}

/// tonic's own text is "transport error"; the reason is at the end of the chain.
fn innermost(error: &tonic::transport::Error) -> String {
    let mut error: &dyn std::error::Error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
