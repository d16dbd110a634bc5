//! When the machine's state goes to disk.
//!
//! A checkpoint may only be published once the log below it is durable *here*: a leader applies
//! what a majority has, and its own disk may lag. A checkpoint ahead of the log would make openraft
//! drop the whole log after a crash (openraft.md, T5).

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::task::JoinHandle;

use crate::base::Mutant;
use crate::machine::{Checkpoint, Machine};
use crate::raft::log_store::LogStore;

/// Writes a checkpoint when the machine wants one, one at a time.
pub(crate) struct Checkpoints {
    machine: Arc<RwLock<Machine>>,
    log: LogStore,
    threads: bool,
    writing: Option<JoinHandle<()>>,
}

impl Checkpoints {
    pub(crate) fn new(machine: Arc<RwLock<Machine>>, log: LogStore, threads: bool) -> Self {
        Self { machine, log, threads, writing: None }
    }

    /// Called between two batches.
    pub(crate) fn consider(&mut self) {
        let busy = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        if busy || !self.machine.read().checkpoint_due() {
            return;
        }
        let checkpoint = self.machine.write().freeze();
        let (log, threads) = (self.log.clone(), self.threads);
        self.writing = Some(tokio::spawn(async move {
            match publish(&log, checkpoint, threads).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    tracing::warn!(%error, "no room for a checkpoint; the last one stays");
                }
                Err(error) => log.ending().note(&format!("writing a checkpoint: {error}")),
            }
        }));
    }
}

/// Waits for the log, then writes. Nothing is written before the first entry.
pub(crate) async fn publish(
    log: &LogStore,
    checkpoint: Option<Checkpoint>,
    threads: bool,
) -> io::Result<()> {
    let Some(checkpoint) = checkpoint else { return Ok(()) };
    if !Mutant::CheckpointAhead.is_on() {
        log.synced().await?;
        assert!(log.durable() >= Some(checkpoint.index()), "what is applied was appended before");
    }
    if threads {
        let written = tokio::task::spawn_blocking(move || checkpoint.publish());
        written.await.map_err(io::Error::other)??;
    } else {
        checkpoint.publish()?;
    }
    Ok(())
}
