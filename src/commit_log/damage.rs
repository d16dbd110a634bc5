//! Rot: bytes that were durable once and are wrong now. Nothing is cut because of it.

use std::path::PathBuf;

use crate::base::{LogIndex, LogPosition};
use crate::commit_log::FrameError;

/// One place of the log that can no longer be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log is damaged in {}: entry {index} at position {position}: {reason}; \
     start the node again: it puts this back from other members before it takes part",
    segment.display()
)]
pub struct Damage {
    pub segment: PathBuf,
    pub index: LogIndex,
    pub position: LogPosition,
    pub reason: FrameError,
}
