//! Half messages, and what becomes of them.

use crate::base::{ClientId, LogPosition, Millis, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::PublishItem;

/// Names a half message: its topic, and where its record lay first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transaction {
    pub topic: TopicId,
    pub at: LogPosition,
}

/// Half messages of one request: stored, and shown by no queue until each is committed. A message
/// whose id was seen within the dedup window is the transaction that it was the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare {
    pub topic: TopicId,
    /// The client that is asked first when nobody has decided.
    pub producer: ClientId,
    /// Time from one check to the next.
    pub interval: Millis,
    /// Checks after which nobody is asked any more.
    pub checks_max: u32,
    pub halves: Vec<HalfItem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HalfItem {
    /// Its queue is the one that it comes to when it is committed.
    pub item: PublishItem,
    /// Time from this entry's stamp to the first check.
    pub first_check: Millis,
}

/// What a transaction comes to. Persisted, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Decision {
    Commit = 1,
    RollBack = 2,
}

/// Who decided. Persisted, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Decider {
    Producer = 1,
    /// A producer that was asked.
    Check = 2,
    Operator = 3,
}

/// Ends a transaction. The first one in the log counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub transaction: Transaction,
    pub decision: Decision,
    pub by: Decider,
}

/// A producer was asked: the question was written to a stream that lived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    pub transaction: Transaction,
    /// Which check it was, counted from 1: one that comes twice counts once.
    pub number: u32,
}

/// A transaction that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    pub decision: Decision,
    pub by: Decider,
    /// The stamp of the entry that decided.
    pub stamp: UtcMillis,
    /// Where the message came to; `None` when it was rolled back.
    pub place: Option<(QueueId, QueueOffset)>,
}

impl Decision {
    /// As a sentence has it: the transaction was ….
    pub const fn past(self) -> &'static str {
        match self {
            Self::Commit => "committed",
            Self::RollBack => "rolled back",
        }
    }
}

impl Decider {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Producer => "its producer",
            Self::Check => "a producer that was asked",
            Self::Operator => "an operator",
        }
    }
}
