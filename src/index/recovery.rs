//! What a start takes over of the files that it finds.

use std::io;
use std::path::Path;

use super::run::{FINISHED, Run, RunError};
use crate::base::{LogIndex, LogPosition, Term};
use crate::env::Disk;

/// The log that is indexed, as far as its files have to fit it.
pub struct LogSpan<'a> {
    /// The first entry that the log has, or will have.
    pub first: LogIndex,
    /// Where its frame starts.
    pub start: LogPosition,
    /// Where the log ends here.
    pub end: LogPosition,
    /// The term of an entry that the log has.
    pub term_of: &'a dyn Fn(LogIndex) -> Option<Term>,
}

/// Opens the files that follow each other from before the log's start on, and removes all others:
/// what was left unfinished, what a merged file has, what is damaged and whatever comes behind that,
/// and what this log does not say.
pub(super) fn recover(
    disk: &dyn Disk,
    dir: &Path,
    log: &LogSpan<'_>,
) -> Result<Vec<Run>, RunError> {
    let io = |source| RunError::Io { path: dir.to_owned(), source };
    disk.create_dir_all(dir).map_err(io)?;
    let mut found = Vec::new();
    let mut useless = Vec::new();
    for name in disk.list(dir).map_err(io)? {
        let path = dir.join(name);
        if path.extension().is_none_or(|extension| extension != FINISHED) {
            useless.push(path);
            continue;
        }
        match Run::open(disk, path.clone()) {
            Ok(run) => found.push(run),
            Err(RunError::Damaged { .. }) => useless.push(path),
            Err(error) => return Err(error),
        }
    }
    // Of two that begin together the longer one has what the other has.
    found.sort_by_key(|run| (run.span.from, std::cmp::Reverse(run.span.until.position)));
    let mut kept: Vec<Run> = Vec::new();
    for run in found {
        let due = kept.last().map(|last| last.span.until.position);
        let follows = match due {
            // What lies before the log's start is of no use; what begins behind it leaves a gap.
            None => run.span.from <= log.start && run.span.until.position > log.start,
            Some(due) => run.span.from == due,
        };
        if follows { kept.push(run) } else { useless.push(run.path) }
    }
    while let Some(last) = kept.pop_if(|last| !says(log, last)) {
        useless.push(last.path);
    }
    // The newest first, so that what a power cut leaves has no gap.
    for path in useless.iter().rev() {
        remove(disk, path)?;
    }
    Ok(kept)
}

/// Whether the log still has what the file was made of: an entry of the same term at its end.
fn says(log: &LogSpan<'_>, run: &Run) -> bool {
    let until = run.span.until;
    let last = until.next.get().checked_sub(1).map(LogIndex::new);
    until.position <= log.end && last.and_then(log.term_of) == Some(until.term)
}

fn remove(disk: &dyn Disk, path: &Path) -> Result<(), RunError> {
    match disk.remove(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RunError::Io { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
