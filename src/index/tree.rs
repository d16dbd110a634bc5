//! The index: its files, the newest part in memory, and how both are asked and grow.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::entry::{Applied, Entry, entries_of};
use super::recovery::{self, LogSpan};
use super::run::{self, Run, RunError, Span};
use super::{Options, Reached};
use crate::base::{LogIndex, LogPosition, Term, TopicId, TopicName, UtcMillis};
use crate::command::Command;
use crate::env::Disk;

/// The index of one replica's log. Clones are handles on the same one.
///
/// One task adds entries and tends the files; one may merge beside it; any number of others ask.
#[derive(Clone)]
pub struct Index(Arc<Shared>);

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("dir", &self.0.dir).finish_non_exhaustive()
    }
}

struct Shared {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: Options,
    parts: RwLock<Parts>,
    /// A file could not be trusted: everything is to be written anew.
    doubted: AtomicBool,
    /// Held while files are merged, or all dropped.
    merging: Mutex<()>,
}

/// All entries. Files follow each other without a gap, and the newest part follows the last file.
#[derive(Debug)]
struct Parts {
    runs: Vec<Arc<Run>>,
    recent: BTreeMap<(u64, LogPosition), Entry>,
    /// Where the newest part begins.
    recent_from: LogPosition,
    reached: Reached,
}

/// What a question found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// In the order of their places in the log.
    pub entries: Vec<Entry>,
    /// From where in the log on the answer is complete …
    pub from: LogPosition,
    /// … and up to where.
    pub until: Reached,
}

/// For whoever watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Entries, in files and in memory.
    pub entries: u64,
}

impl Index {
    /// Takes over what `dir` holds and fits the log; the rest is removed. Afterwards the owner adds
    /// what comes behind [`Self::reached`].
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: Options,
        log: &LogSpan<'_>,
    ) -> Result<Self, RunError> {
        assert!(options.entries_in_memory > 0 && options.log_in_memory > 0, "{options:?}");
        assert!(options.merged > 1 && u32::try_from(options.entries_max).is_ok(), "{options:?}");
        let runs = recovery::recover(&*disk, dir, log)?;
        let start = Reached { next: log.first, position: log.start, ..Reached::default() };
        let reached = runs.last().map_or(start, |run| run.span.until);
        let parts = Parts {
            runs: runs.into_iter().map(Arc::new).collect(),
            recent: BTreeMap::new(),
            recent_from: reached.position,
            reached,
        };
        Ok(Self(Arc::new(Shared {
            disk,
            dir: dir.to_owned(),
            options,
            parts: RwLock::new(parts),
            doubted: AtomicBool::new(false),
            merging: Mutex::new(()),
        })))
    }

    /// Up to where the log is indexed.
    pub fn reached(&self) -> Reached {
        self.0.parts.read().reached
    }

    pub fn stats(&self) -> Stats {
        let parts = self.0.parts.read();
        let filed: u64 = parts.runs.iter().map(|run| run.entries).sum();
        Stats {
            files: parts.runs.len(),
            bytes: parts.runs.iter().map(|run| run.bytes()).sum(),
            entries: filed + parts.recent.len() as u64,
        }
    }

    /// Adds the next entry of the log; `None` for one that is no command. `topic_of` is asked for
    /// the incarnation of a topic's name that was there at a stamp.
    pub fn add(
        &self,
        applied: &Applied,
        command: Option<&Command>,
        mut topic_of: impl FnMut(&TopicName, UtcMillis) -> Option<TopicId>,
    ) {
        let entries =
            command.map(|command| entries_of(applied, command, &mut topic_of)).unwrap_or_default();
        let mut parts = self.0.parts.write();
        let next = parts.reached.next;
        assert_eq!(applied.index, next, "entries are added in the order of the log");
        parts.recent.extend(entries.into_iter().map(|entry| (entry.order(), entry)));
        parts.reached = Reached {
            next: applied.index.next(),
            position: applied.end,
            term: applied.term,
            stamp: applied.stamp,
        };
    }

    /// Whether the newest part has become so large that it should be a file.
    pub fn is_full(&self) -> bool {
        let parts = self.0.parts.read();
        let options = &self.0.options;
        parts.recent.len() >= options.entries_in_memory
            || parts.reached.position.since(parts.recent_from) >= options.log_in_memory
    }

    /// Makes the newest part a file. Whoever adds calls this, and nobody else meanwhile.
    pub fn flush(&self) -> Result<(), RunError> {
        let shared = &*self.0;
        let (entries, span) = {
            let parts = shared.parts.read();
            let entries: Vec<Entry> = parts.recent.values().copied().collect();
            (entries, Span { from: parts.recent_from, until: parts.reached, level: 0 })
        };
        if span.from == span.until.position {
            return Ok(());
        }
        let (count, entries) = (entries.len() as u64, entries.into_iter().map(Ok));
        let run = run::write((&*shared.disk, &shared.dir), span, count, entries)?;
        let mut parts = shared.parts.write();
        assert_eq!(parts.reached, span.until, "nothing is added while the newest part is written");
        parts.runs.push(Arc::new(run));
        parts.recent.clear();
        parts.recent_from = span.until.position;
        Ok(())
    }

    /// Removes the files of what lies wholly before `front`, where the log begins.
    pub fn trim(&self, front: LogPosition) -> Result<(), RunError> {
        let gone: Vec<Arc<Run>> = {
            let mut parts = self.0.parts.write();
            let count =
                parts.runs.iter().take_while(|run| run.span.until.position <= front).count();
            parts.runs.drain(..count).collect()
        };
        gone.iter().try_for_each(|run| self.remove(run))
    }

    /// Begins anew with the entry `next`, whose frame starts at `position`.
    pub fn restart(&self, next: LogIndex, position: LogPosition) -> Result<(), RunError> {
        let shared = &*self.0;
        let _merging = shared.merging.lock();
        let gone: Vec<Arc<Run>> = {
            let mut parts = shared.parts.write();
            parts.recent.clear();
            parts.recent_from = position;
            parts.reached = Reached { next, position, term: Term::ZERO, stamp: UtcMillis::ZERO };
            parts.runs.drain(..).collect()
        };
        shared.doubted.store(false, Ordering::Release);
        // The newest first, so that what a power cut leaves has no gap.
        gone.iter().rev().try_for_each(|run| self.remove(run))
    }

    /// Whether a file was found damaged, so that the index has to begin anew.
    pub fn is_doubted(&self) -> bool {
        self.0.doubted.load(Ordering::Acquire)
    }

    /// The records of this hash. When a file is damaged, the owner is told as well.
    pub fn find(&self, hash: u64) -> Result<Found, RunError> {
        let (runs, recent, from, until) = {
            let parts = self.0.parts.read();
            let range = (hash, LogPosition::ZERO)..=(hash, LogPosition::new(u64::MAX));
            let recent: Vec<Entry> = parts.recent.range(range).map(|(_, entry)| *entry).collect();
            let from = parts.runs.first().map_or(parts.recent_from, |run| run.span.from);
            (parts.runs.clone(), recent, from, parts.reached)
        };
        let mut entries = Vec::new();
        for run in runs {
            let found = run.find(hash).inspect_err(|error| self.note_doubt(error))?;
            entries.extend(found);
        }
        entries.extend(recent);
        Ok(Found { entries, from, until })
    }

    /// Damage is noted; what cannot be read now may be read later.
    pub(super) fn note_doubt(&self, error: &RunError) {
        if matches!(error, RunError::Damaged { .. }) {
            self.0.doubted.store(true, Ordering::Release);
        }
    }

    fn remove(&self, run: &Run) -> Result<(), RunError> {
        let removed = self.0.disk.remove(&run.path);
        removed.map_err(|source| RunError::Io { path: run.path.clone(), source })
    }

    /// Merges files that are of one size and follow each other, if there are enough of them; false
    /// when there are not. Everything else goes on meanwhile.
    pub fn merge(&self) -> Result<bool, RunError> {
        let shared = &*self.0;
        let _merging = shared.merging.lock();
        let runs = shared.parts.read().runs.clone();
        let Some(chosen) = super::merge::choose(&runs, &shared.options) else { return Ok(false) };
        let old = &runs[chosen];
        let merged = super::merge::merge((&*shared.disk, &shared.dir), old);
        let merged = merged.inspect_err(|error| self.note_doubt(error))?;
        let replaced = {
            let mut parts = shared.parts.write();
            // The log's front may have taken the first of them away meanwhile.
            let at = parts.runs.windows(old.len()).position(|window| {
                window.iter().zip(old).all(|(one, other)| Arc::ptr_eq(one, other))
            });
            if let Some(at) = at {
                parts.runs.splice(at..at + old.len(), [Arc::new(merged)]);
                Ok(())
            } else {
                Err(merged)
            }
        };
        match replaced {
            // A power cut on the way leaves files inside the merged one, which the next start removes.
            Ok(()) => old.iter().try_for_each(|run| self.remove(run))?,
            Err(merged) => self.remove(&merged)?,
        }
        Ok(true)
    }
}
