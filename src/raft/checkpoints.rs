//! When the machine's state goes to disk.
//!
//! A checkpoint may only be published once the log below it is durable *here*: a leader applies
//! what a majority has, and its own disk may lag. A checkpoint ahead of the log would make openraft
//! drop the whole log after a crash (openraft.md, T5).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::task::JoinHandle;

use crate::base::{LogIndex, LogPosition};
use crate::commit_log::CommitLog;
use crate::machine::{Checkpoint, Machine};
use crate::raft::ending::Ending;

/// How often the flushed index is looked at while a checkpoint waits for it; syncs take about as
/// long.
const FLUSH_POLL: Duration = Duration::from_millis(5);

/// Writes a checkpoint when enough log came since the last one, one at a time.
pub(crate) struct Checkpoints {
    machine: Arc<RwLock<Machine>>,
    log: CommitLog,
    ending: Ending,
    every: u64,
    last: LogPosition,
    writing: Option<JoinHandle<()>>,
}

impl Checkpoints {
    pub(crate) fn new(
        machine: Arc<RwLock<Machine>>,
        log: CommitLog,
        ending: Ending,
        every: u64,
        last: LogPosition,
    ) -> Self {
        assert!(every > 0, "a checkpoint for every byte is no setting");
        Self { machine, log, ending, every, last, writing: None }
    }

    /// Called between two batches; `end` is the log position behind the last applied entry.
    pub(crate) fn consider(&mut self, end: LogPosition) {
        let busy = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        if busy || end.get().saturating_sub(self.last.get()) < self.every {
            return;
        }
        self.last = end;
        let checkpoint = self.machine.read().freeze();
        let (machine, log, ending) = (self.machine.clone(), self.log.clone(), self.ending.clone());
        self.writing = Some(tokio::spawn(async move {
            if let Err(error) = publish(machine, &log, checkpoint).await {
                ending.note(&format!("writing a checkpoint: {error}"));
            }
        }));
    }
}

/// Waits for the log, then writes.
pub(crate) async fn publish(
    machine: Arc<RwLock<Machine>>,
    log: &CommitLog,
    checkpoint: Checkpoint,
) -> io::Result<()> {
    while !flushed(log, checkpoint.index()) {
        tokio::time::sleep(FLUSH_POLL).await;
    }
    let written = tokio::task::spawn_blocking(move || {
        let write = machine.read().checkpoint_writer();
        write.write(&checkpoint)
    });
    written.await.map_err(io::Error::other)??;
    Ok(())
}

fn flushed(log: &CommitLog, index: Option<LogIndex>) -> bool {
    index <= log.bounds().flushed
}
