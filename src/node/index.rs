//! Follows the applied log and notes where messages are, so that they can be found again.
//!
//! The log waits for nobody here: what was applied and synced is read again, in blocks, on a thread
//! for work that blocks. Nothing that goes wrong ends the node; answers say how far the index is.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{ByteSize, LogIndex, LogPosition};
use crate::command::Command;
use crate::commit_log::{Bounds, CommitLog, FrameKind, ReadError};
use crate::env::Env;
use crate::index::{Applied, Index, LogSpan, Options, RunError};
use crate::raft::Group;

/// Log that is read at once, unless one entry has more.
const BLOCK: u64 = 1 << 20;
/// How long a task that has nothing to do waits for the next entry.
const IDLE: Duration = Duration::from_secs(1);
/// Entries that come one by one are added many at a time: a question can wait for so long.
const GATHER: Duration = Duration::from_millis(10);
/// After something went wrong.
const REST: Duration = Duration::from_secs(5);

/// Opens the index of a replica. Without one the node serves all the same.
pub(super) fn open(env: &Env, dir: &std::path::Path, log: &CommitLog) -> Option<Index> {
    let bounds = log.bounds();
    let (first, start) = front(&bounds);
    let term_of = |index| log.term_of(index);
    let span = LogSpan { first, start, end: bounds.end, term_of: &term_of };
    let opened = Index::open(Arc::clone(&env.disk), dir, Options::default(), &span);
    let opened = opened.inspect_err(|error| {
        tracing::warn!(%error, "messages cannot be found by id or key on this node");
    });
    opened.ok()
}

/// The first entry that the log has, or will have, and where it starts.
fn front(bounds: &Bounds) -> (LogIndex, LogPosition) {
    let behind = bounds.purged.map_or(LogIndex::ZERO, |(index, _)| index.next());
    (bounds.first.unwrap_or(behind), bounds.start)
}

/// Adds what is applied. Runs until dropped.
pub(super) async fn follow(group: Group, index: Index, per_second: ByteSize) {
    // A tenth of a second's share, so that a slow reader is slow evenly.
    let block = BLOCK.min(per_second.get() / 10).max(1);
    loop {
        let (of, to) = (group.clone(), index.clone());
        let step = tokio::task::spawn_blocking(move || step(&of, &to, block)).await;
        match step.map_err(StepError::from).flatten() {
            Ok(Step::Nothing) => {
                group.wait_applied(index.reached().next, Instant::now() + IDLE).await;
                // What is applied may be synced here a little later.
                tokio::time::sleep(GATHER).await;
            }
            Ok(Step::Added { bytes, behind }) if behind > block => {
                tokio::time::sleep(share(bytes, per_second)).await;
            }
            Ok(Step::Added { .. }) => tokio::time::sleep(GATHER).await,
            Err(error) => {
                tracing::warn!(%error, "the index of messages does not go on for now");
                tokio::time::sleep(REST).await;
            }
        }
    }
}

/// Merges files. Runs until dropped.
pub(super) async fn merge(index: Index) {
    loop {
        let part = index.clone();
        let merged = tokio::task::spawn_blocking(move || part.merge()).await;
        match merged.map_err(StepError::from).and_then(|merged| Ok(merged?)) {
            Ok(true) => {}
            Ok(false) => tokio::time::sleep(IDLE).await,
            Err(error) => {
                tracing::warn!(%error, "files of the index of messages are not merged");
                tokio::time::sleep(REST).await;
            }
        }
    }
}

/// How long so many bytes may take.
fn share(bytes: u64, per_second: ByteSize) -> Duration {
    Duration::from_micros(bytes.saturating_mul(1_000_000) / per_second.get().max(1))
}

#[derive(Debug)]
enum Step {
    Nothing,
    Added {
        bytes: u64,
        /// Bytes that are left to read.
        behind: u64,
    },
}

#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Index(#[from] RunError),
    #[error(transparent)]
    Log(#[from] ReadError),
    #[error("its task broke off: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// One block.
fn step(group: &Group, index: &Index, block: u64) -> Result<Step, StepError> {
    let log = group.log();
    let bounds = log.bounds();
    let (first, start) = front(&bounds);
    if index.is_doubted() {
        tracing::warn!("the index of messages is damaged; it is made again");
    }
    if index.is_doubted() || index.reached().position < start {
        index.restart(first, start)?;
    }
    index.trim(start)?;
    // What this disk does not have yet may be lost, and be another entry then.
    let last = group.status().applied.min(bounds.flushed);
    let next = index.reached().next;
    let Some(last) = last.filter(|last| next <= *last) else { return Ok(Step::Nothing) };
    let block = usize::try_from(block).unwrap_or(usize::MAX);
    let frames = match log.read(next, last.next(), block) {
        Ok(frames) => frames,
        // The front has just passed: the next step begins there.
        Err(ReadError::Purged { .. }) => return Ok(Step::Added { bytes: 0, behind: 0 }),
        Err(error) => return Err(error.into()),
    };
    let from = index.reached().position;
    for frame in frames {
        let Some(seal) = frame.seal else { break };
        let applied = Applied {
            index: frame.index,
            term: frame.term,
            stamp: seal.stamp,
            body: frame.body_position(),
            end: frame.position.plus(frame.encoded_len() as u64),
        };
        let is_command = frame.kind == FrameKind::Command;
        let command = is_command.then(|| Command::decode(&frame.body).ok()).flatten();
        index.add(&applied, command.as_ref(), |name, stamp| {
            group.read(|state| {
                let topic = state.topic(name).filter(|topic| topic.created <= stamp);
                topic.map(|topic| topic.id)
            })
        });
        if index.is_full() {
            index.flush()?;
        }
    }
    let at = index.reached().position;
    Ok(Step::Added { bytes: at.since(from), behind: lag(group, index) })
}

/// Bytes of applied entries that the index does not have.
pub(super) fn lag(group: &Group, index: &Index) -> u64 {
    let (end, at) = (group.read(|state| state.log_end()), index.reached().position);
    if at < end { end.since(at) } else { 0 }
}
