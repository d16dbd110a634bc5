//! Where this replica's log begins: which state stands for what is gone, and when more may go.

use std::sync::Arc;

use crate::base::LogIndex;
use crate::commit_log::CommitLog;
use crate::machine::Machine;
use crate::raft::group::Shared;
use crate::raft::marks::MarkFiles;
use crate::raft::opening::OpenError;
use crate::raft::snapshot::{Contents, SnapshotFile};
use crate::raft::types::index_of;

/// Makes sure that a log without its front has a state to begin with: the snapshot's, or one at a
/// mark where that file is lost. The machine takes it over if its own checkpoints do not reach it.
/// Answers the entry that the snapshot stands for.
pub(crate) fn restore(
    machine: &mut Machine,
    log: &CommitLog,
    snapshots: &SnapshotFile,
    marks: &MarkFiles,
) -> Result<Option<LogIndex>, OpenError> {
    let unreadable = |source| OpenError::Directory { path: snapshots.path.clone(), source };
    let loaded = snapshots.load_if_good().map_err(unreadable)?;
    let purged = log.bounds().purged.map(|(index, _)| index);
    let index = |contents: &Contents| index_of(&contents.last);
    let contents = match (loaded, purged) {
        (Some((contents, _)), None) => Some(contents),
        (Some((contents, _)), Some(purged)) if index(&contents) >= purged => Some(contents),
        (None, None) => None,
        (_, Some(purged)) => {
            let floor = machine.state().floor().map(|floor| floor.index);
            let found = at_or_behind(purged, floor, marks).map_err(unreadable)?;
            let (contents, bytes) = found.ok_or(OpenError::FloorLost { purged })?;
            tracing::warn!(at = %index(&contents), "the snapshot is lost; a mark takes its place");
            snapshots.store(&bytes).map_err(unreadable)?;
            Some(contents)
        }
    };
    let Some(contents) = contents else { return Ok(None) };
    let applied = machine.state().applied().map(|(index, _)| index);
    if applied < purged {
        tracing::warn!(?applied, at = %index(&contents), "beginning with the state of the log's start");
        machine.install(&contents.state)?;
    }
    Ok(Some(index(&contents)))
}

/// The oldest good state that reaches `purged`: the log from there on is all here. None beyond the
/// floor: whoever began with it would lack what is still readable.
fn at_or_behind(
    purged: LogIndex,
    floor: Option<LogIndex>,
    marks: &MarkFiles,
) -> std::io::Result<Option<(Contents, bytes::Bytes)>> {
    let usable = |index: &LogIndex| *index == purged || (*index > purged && floor >= Some(*index));
    for index in marks.indexes()?.into_iter().filter(usable) {
        if let Some(found) = marks.load(index)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Asks openraft for a snapshot whenever the floor has moved, or a mark up to it was written; the
/// state machine answers with a mark, up to which the log is then cut.
pub(crate) async fn watch(shared: Arc<Shared>) {
    let Some(running) = shared.running() else { return };
    let mut floor = shared.watched.floor.subscribe();
    loop {
        if floor.borrow_and_update().is_some()
            && let Err(fatal) = running.raft.trigger().snapshot().await
        {
            tracing::debug!(%fatal, "raft ended");
            return;
        }
        if floor.changed().await.is_err() {
            return;
        }
    }
}
