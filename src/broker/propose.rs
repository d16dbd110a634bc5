//! Proposal errors in the words of this room.

use crate::broker::error::Unavailable;
use crate::command::Reply;
use crate::raft::ProposeError;

/// Definite refusals and unknown outcomes stay apart (rule R20).
pub(super) fn unavailable(error: &ProposeError) -> Unavailable {
    let outcome_unknown = match error {
        ProposeError::NotSent { .. } => false,
        ProposeError::Unknown { .. } | ProposeError::Ended { .. } => true,
    };
    Unavailable { reason: error.to_string(), outcome_unknown }
}

/// A reply of another kind than the command's: two versions of the software disagree.
pub(super) fn unexpected(reply: &Reply) -> Unavailable {
    Unavailable {
        reason: format!("the log answered with {reply:?}, which does not fit the request"),
        outcome_unknown: true,
    }
}
