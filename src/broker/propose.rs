//! Proposal errors in the words of this room.

use crate::broker::error::{DiskFull, Overloaded, SendError, Unavailable};
use crate::command::Reply;
use crate::raft::ProposeError;

/// Definite refusals and unknown outcomes stay apart (rule R20).
pub(super) fn unavailable(error: &ProposeError) -> Unavailable {
    let outcome_unknown = match error {
        ProposeError::NotSent { .. }
        | ProposeError::Busy { .. }
        | ProposeError::DiskFull { .. } => false,
        ProposeError::Unknown { .. } | ProposeError::Ended { .. } => true,
    };
    Unavailable { reason: error.to_string(), outcome_unknown }
}

/// The same for a send, which clients repeat after a pause when the broker is overloaded.
pub(super) fn send_error(error: &ProposeError) -> SendError {
    match error {
        ProposeError::Busy { node, under_way, retry_after } => {
            let what = format!("node {node} has {under_way} of requests under way");
            Overloaded { what, retry_after: *retry_after }.into()
        }
        ProposeError::DiskFull { .. } => DiskFull { reason: error.to_string() }.into(),
        _ => unavailable(error).into(),
    }
}

/// A reply of another kind than the command's: two versions of the software disagree.
pub(super) fn unexpected(reply: &Reply) -> Unavailable {
    Unavailable {
        reason: format!("the log answered with {reply:?}, which does not fit the request"),
        outcome_unknown: true,
    }
}
