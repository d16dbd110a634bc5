//! How old entries leave the log: the rules, and the two steps by which its front moves.

use bytes::Bytes;

use crate::base::{LogIndex, LogPosition, Millis, TopicId};

/// What a broker group keeps. Logged, so that all replicas count marks alike (rule R6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Log bytes from one mark to the next, at least 1.
    pub stride: u64,
    /// How long a message stays at least; 0 for ever.
    pub time: Millis,
    /// Log bytes kept at most, to within a stride; 0 without a limit.
    pub bytes: u64,
    /// Bytes of messages under way that may be kept beyond the log's front (rule R10).
    pub moved_max: u64,
}

/// Messages that are still under way are written again behind the log's end, because the front is
/// about to pass their records (rule R5). Each is self-contained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Where the record lay first: its identity for ever.
    pub original: LogPosition,
    pub record: Bytes,
    /// Where the record starts, in bytes from the start of the command. Set by decoding; 0 before.
    pub record_at: u32,
}

/// Everything of a topic up to a mark is gone for its readers, though the log still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    pub topic: TopicId,
    pub mark: LogIndex,
}
