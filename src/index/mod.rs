//! Where messages are found again: by message id, and by the keys of a topic.
//!
//! What it is: [`Index`], hashes of ids and keys with the places of their records in the log, in
//! sorted files that never change and a newest part in memory. It is derived from applied entries,
//! which whoever owns it adds in their order.
//! Promises: an answer says up to where in the log it is complete; after a power cut the index ends
//! earlier and is right; files that are missing, damaged or of another version are written anew. A
//! key or an id costs 41 bytes on the disk, and a quarter of a byte for the way to it.
//! Never: proof. A hash leads to a record, which whoever asks compares. Nothing that is applied
//! reads the index, and nobody who writes to the log waits for it.
//! Start reading at `entry`, then `run`, `tree`.

mod entry;
mod merge;
mod recovery;
mod run;
mod tree;

#[cfg(test)]
mod tests;

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};

pub use entry::{Applied, ENTRY_BYTES, Entry, Taken, id_hash, key_hash};
pub use recovery::LogSpan;
pub use run::RunError;
pub use tree::{Found, Index, Stats};

/// Sizes, which change no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Entries that are kept in memory before they become a file, at least 1.
    pub entries_in_memory: usize,
    /// Log bytes that are read again at most when the program starts, at least 1.
    pub log_in_memory: u64,
    /// Files of one size that are merged into one, at least 2. A question asks every file.
    pub merged: usize,
    /// Entries of one file at most, below 2^32: a file goes when the last of them has left the log.
    pub entries_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            entries_in_memory: 128 << 10,
            log_in_memory: 64 << 20,
            merged: 8,
            entries_max: 16 << 20,
        }
    }
}

/// Up to where the log is indexed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The entry that comes next.
    pub next: LogIndex,
    /// Where its frame starts.
    pub position: LogPosition,
    /// Of the last entry that is indexed; 0 before the first.
    pub term: Term,
    pub stamp: UtcMillis,
}
