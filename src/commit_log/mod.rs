//! The log on disk: frames in segments, appended by one writer, made durable by one flusher.
//!
//! What it is: [`CommitLog`], the Raft log of one broker group. It knows bytes, not messages.
//! Promises: positions are dense and depend on content only; completions run in order and only
//! after everything appended before them is on the disk; bytes lent to readers are never
//! overwritten; damage below the flushed index is reported as rot, never cut away.
//! Never: knows what a command is, retries a failed sync, creates a segment on the append path.
//! Start reading at `frame`, then `segment`, `segments`, `log`.

mod append;
mod cut;
mod damage;
mod error;
mod flushed_mark;
mod flusher;
mod frame;
mod identity;
mod index_file;
pub mod inspect;
mod log;
mod purged;
mod queue;
mod read;
mod recovery;
mod repair;
mod scrub;
mod sealed;
mod segment;
mod segments;
mod shared;
mod small_file;
mod spare;
mod stats;
mod upkeep;
mod vote_file;

#[cfg(test)]
mod proptests;
#[cfg(test)]
mod tests;

use std::io;

use bytes::Bytes;

use crate::base::{LogIndex, LogPosition, NodeId, Term, UtcMillis};

pub use damage::Damage;
pub use error::{AppendError, OpenError, PurgeError, ReadError, Stopped, TruncateError};
pub use flusher::Flusher;
pub use frame::{FRAME_BODY_MAX, FRAME_HEADER, FrameError};
pub use identity::{Identity, IdentityError};
pub use log::{CommitLog, Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
pub use recovery::{is_unfilled, replace_vote, vote_is_damaged};
pub use repair::{FillError, Hole, note_whole, survey};
pub use scrub::ScrubProgress;
pub use segments::{Bounds, SegmentInfo};
pub use small_file::SmallFileError;
pub use stats::{LogStats, SYNC_BUCKETS_MICROS};
pub use upkeep::Upkeep;

/// What a frame holds. Persisted, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    Blank = 1,
    Command = 2,
    Membership = 3,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub index: LogIndex,
    pub term: Term,
    pub kind: FrameKind,
    /// `None` until the leader's append sets stamp and checksum; never `None` once on disk.
    pub seal: Option<Seal>,
    pub body: Bytes,
    /// Where the frame starts. Set by append and by reads.
    pub position: LogPosition,
}

/// What the leader fixes when the frame gets its place; replicas carry it along unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    pub stamp: UtcMillis,
    pub crc: u32,
}

/// A Raft vote, in this room's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    pub term: Term,
    pub node: NodeId,
    pub committed: bool,
}

/// Called once, from the flusher, when what it stands for is durable or has failed.
pub type Completion = Box<dyn FnOnce(io::Result<()>) + Send>;
