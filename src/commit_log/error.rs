//! Why an operation on the log failed. Except for reads of what is not there, the node ends.

use std::io;
use std::path::PathBuf;

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::commit_log::segment::RunError;
use crate::commit_log::small_file::SmallFileError;
use crate::commit_log::{Damage, FRAME_BODY_MAX};

/// The log stopped for ever: a write or a sync failed, and what the disk holds is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log stopped after {what} failed: {reason}; restart the node so that it reads its disk again"
)]
pub struct Stopped {
    pub what: &'static str,
    pub kind: io::ErrorKind,
    pub reason: String,
}

impl From<&Stopped> for io::Error {
    fn from(stopped: &Stopped) -> Self {
        Self::new(stopped.kind, stopped.clone())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Rot(#[from] Damage),
    #[error(transparent)]
    SmallFile(#[from] SmallFileError),
    #[error("the vote cannot be trusted: {0}")]
    Vote(SmallFileError),
    #[error("damage was found while the log ran; it is looked at as a whole before it runs again")]
    Doubtful,
    #[error("the log's end is still being put back from other members")]
    Unfilled,
    #[error("{what} failed at {path}: {source}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the segment size is {bytes} bytes; it must be from {min} to {max}",
        min = crate::commit_log::SEGMENT_BYTES_MIN,
        max = crate::commit_log::SEGMENT_BYTES_MAX
    )]
    SegmentBytes { bytes: u64 },
}

impl From<RunError> for OpenError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Rot(damage) => Self::Rot(damage),
            RunError::Io { path, source } => Self::Io { what: "reading a segment", path, source },
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("entry {found} was appended where {expected} is due")]
    Index { expected: LogIndex, found: LogIndex },
    #[error("entry {index} has term {found} after term {previous}")]
    Term { index: LogIndex, previous: Term, found: Term },
    #[error("entry {index} has stamp {found} after stamp {previous}")]
    Stamp { index: LogIndex, previous: UtcMillis, found: UtcMillis },
    #[error("entry {index} has {len} bytes; at most {FRAME_BODY_MAX} are possible")]
    Length { index: LogIndex, len: usize },
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    #[error("entry {index} was purged; the log starts at {first:?}")]
    Purged { index: LogIndex, first: Option<LogIndex> },
    #[error("position {position} was purged; the log starts at {start}")]
    PurgedPosition { position: LogPosition, start: LogPosition },
    #[error("entry {index} is not there; the log ends with {last:?}")]
    Missing { index: LogIndex, last: Option<LogIndex> },
    #[error("{size} bytes at position {position} are not inside one frame's body")]
    NotInFrame { position: LogPosition, size: u32 },
    #[error(transparent)]
    Rot(#[from] Damage),
    #[error("reading {path} failed: {reason}")]
    Io { path: PathBuf, kind: io::ErrorKind, reason: String },
}

impl From<RunError> for ReadError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Rot(damage) => Self::Rot(damage),
            RunError::Io { path, source } => {
                Self::Io { path, kind: source.kind(), reason: source.to_string() }
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TruncateError {
    #[error("entry {kept:?} was to be the last one kept, but {purged} was purged already")]
    Purged { kept: Option<LogIndex>, purged: LogIndex },
    #[error("entry {kept:?} was to be the last one kept, but {committed} is committed")]
    Committed { kept: Option<LogIndex>, committed: LogIndex },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

#[derive(Debug, thiserror::Error)]
pub enum PurgeError {
    #[error("entry {index} was to be purged, but the log ends with {last:?}; use restart_at")]
    Missing { index: LogIndex, last: Option<LogIndex> },
    #[error("entry {index} of term {asked} was to be purged, but its term is {found}")]
    Term { index: LogIndex, asked: Term, found: Term },
    #[error("the log was to go on after {index}, but {purged} was purged already")]
    Backwards { index: LogIndex, purged: LogIndex },
    #[error("the log was to go on after {index}, but {committed} is committed")]
    Committed { index: LogIndex, committed: LogIndex },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
