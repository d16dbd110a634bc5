//! The machine's directory.
//!
//! ```text
//!   checkpoint-<applied index, 20 digits>    the newest two
//!   floor                                    a peer's state that this replica began with
//!   units-<generation>-<number>              extents of queue units
//!   doubt                                    a unit was damaged: all that is derived goes
//! ```
//! Taking over a peer's state is one rename of `floor`: a checkpoint names the floor that it was
//! derived on, so all earlier ones are void from that moment (rule R12). Everything but the floor
//! can be derived again from the log.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::checkpoint::{Checkpoint, Sections};
use super::error::{CheckpointError, OpenError};
use super::extents::{Extents, generation_of};
use super::state::State;
use crate::base::LogIndex;
use crate::env::Disk;

const CHECKPOINT_PREFIX: &str = "checkpoint-";
const FLOOR: &str = "floor";
const DOUBT: &str = "doubt";
const TEMPORARY_SUFFIX: &str = ".tmp";
/// Checkpoints kept: the newest one, and one to fall back to.
const KEPT: usize = 2;

/// Where checkpoints go. Shared with the ones under way.
#[derive(Debug)]
pub(super) struct Store {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    gate: Mutex<Gate>,
}

/// One publication or installation at a time.
#[derive(Debug)]
struct Gate {
    floor: Option<LogIndex>,
    newest: Option<LogIndex>,
}

/// A checkpoint that could not be used, and why.
#[derive(Debug)]
pub struct Rejected {
    pub file: String,
    pub reason: CheckpointError,
}

/// How the machine came up.
#[derive(Debug, Default)]
pub struct Opened {
    /// The entry that the state began with; `None` when the whole log is to be applied.
    pub from: Option<LogIndex>,
    /// Checkpoints that were passed by. Each deserves a line in the node's log.
    pub rejected: Vec<Rejected>,
}

fn checkpoint_name(index: LogIndex) -> String {
    format!("{CHECKPOINT_PREFIX}{:020}", index.get())
}

fn checkpoint_index(name: &str) -> Option<LogIndex> {
    name.strip_prefix(CHECKPOINT_PREFIX)?.parse().ok().map(LogIndex::new)
}

/// Removes what the log can give again, last the note that said so.
pub(super) fn discard_derived(disk: &Arc<dyn Disk>, dir: &Path) -> io::Result<()> {
    for name in disk.list(dir)? {
        if checkpoint_index(&name).is_some() || generation_of(&name).is_some() {
            disk.remove(&dir.join(name))?;
        }
    }
    disk.sync_dir(dir)?;
    let doubt = dir.join(DOUBT);
    if disk.exists(&doubt) {
        disk.remove(&doubt)?;
    }
    disk.sync_dir(dir)
}

/// The next start derives everything from the log again.
pub(super) fn note_doubt(disk: &Arc<dyn Disk>, dir: &Path) -> io::Result<()> {
    disk.replace(&dir.join(DOUBT), b"")
}

/// Removes a peer's state that cannot be read. What was derived on it is void then.
pub(super) fn discard_floor(disk: &Arc<dyn Disk>, dir: &Path) -> io::Result<()> {
    note_doubt(disk, dir)?;
    let floor = dir.join(FLOOR);
    if disk.exists(&floor) {
        disk.remove(&floor)?;
    }
    disk.sync_dir(dir)
}

impl Store {
    /// For a note that the next start is to find.
    pub(super) fn note_doubt(&self) -> io::Result<()> {
        note_doubt(&self.disk, &self.dir)
    }

    /// Opens the directory with the newest state that can be used.
    pub(super) fn open(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        per_file: u32,
        seed: u64,
    ) -> Result<(Arc<Self>, State, Opened), OpenError> {
        let io = |source| OpenError::Io { dir: dir.to_owned(), source };
        disk.create_dir_all(dir).map_err(io)?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            disk.sync_dir(parent).map_err(io)?;
        }
        if disk.exists(&dir.join(DOUBT)) {
            discard_derived(disk, dir).map_err(io)?;
        }
        let floor = Floor::load(disk, dir)?;
        let names = disk.list(dir).map_err(io)?;
        let gate = Gate { floor: floor.as_ref().map(|floor| floor.index), newest: None };
        let store = Self { disk: disk.clone(), dir: dir.to_owned(), gate: Mutex::new(gate) };
        let (loaded, rejected) = store.load_newest(&names, seed);
        let generation = loaded.as_ref().map(|state| state.queues.extents().layout().generation);
        // What cannot be used has to be gone for good before its generation's numbers, or its
        // place among the newest two, can be taken again.
        store.sweep(&names, generation, &rejected).map_err(io)?;
        let state = match (loaded, floor) {
            (Some(state), _) => state,
            (None, Some(floor)) => floor.state(&store, per_file, seed)?,
            (None, None) => State::empty(store.new_extents(&names, per_file), seed),
        };
        let from = state.applied().map(|(index, _)| index);
        if generation.is_some() {
            store.gate.lock().newest = from;
        }
        Ok((Arc::new(store), state, Opened { from, rejected }))
    }

    fn load_newest(&self, names: &[String], seed: u64) -> (Option<State>, Vec<Rejected>) {
        let mut rejected = Vec::new();
        let mut indexes: Vec<_> = names.iter().filter_map(|name| checkpoint_index(name)).collect();
        indexes.sort_unstable();
        for index in indexes.into_iter().rev() {
            let file = checkpoint_name(index);
            match self.load(&file, index, seed) {
                Ok(state) => return (Some(state), rejected),
                Err(reason) => rejected.push(Rejected { file, reason }),
            }
        }
        (None, rejected)
    }

    fn load(&self, file: &str, index: LogIndex, seed: u64) -> Result<State, CheckpointError> {
        let sections = Sections::parse(&self.disk.read(&self.dir.join(file))?)?;
        let local = sections.local()?;
        let floor = self.gate.lock().floor;
        if local.floor != floor {
            return Err(CheckpointError::Floor { found: local.floor, floor });
        }
        let extents = Extents::open(self.disk.clone(), &self.dir, local.layout)?;
        let state = sections.state(extents, Some(local), seed)?;
        match state.applied() {
            Some((applied, _)) if applied == index => Ok(state),
            _ => Err(CheckpointError::Contradiction { what: "its name and its applied index" }),
        }
    }

    /// Removes what nothing refers to any more.
    fn sweep(
        &self,
        names: &[String],
        generation: Option<u64>,
        rejected: &[Rejected],
    ) -> io::Result<()> {
        let rubbish = |name: &&String| {
            let old = generation_of(name).is_some_and(|found| Some(found) != generation);
            let bad = rejected.iter().any(|rejected| rejected.file == **name);
            old || bad || name.ends_with(TEMPORARY_SUFFIX)
        };
        let mut removed = false;
        for name in names.iter().filter(rubbish) {
            self.disk.remove(&self.dir.join(name))?;
            removed = true;
        }
        if removed { self.disk.sync_dir(&self.dir) } else { Ok(()) }
    }

    /// A generation that no file here has belonged to.
    pub(super) fn new_extents(&self, names: &[String], per_file: u32) -> Extents {
        let last = names.iter().filter_map(|name| generation_of(name)).max();
        let generation = last.map_or(1, |last| last + 1);
        Extents::new(self.disk.clone(), &self.dir, generation, per_file)
    }

    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        self.disk.list(&self.dir)
    }

    pub(super) fn floor(&self) -> Option<LogIndex> {
        self.gate.lock().floor
    }

    pub(super) fn publish(&self, checkpoint: &Checkpoint) -> io::Result<bool> {
        let mut gate = self.gate.lock();
        let index = checkpoint.index();
        if checkpoint.floor != gate.floor || gate.newest.is_some_and(|newest| newest >= index) {
            return Ok(false);
        }
        checkpoint.sync_units()?;
        self.disk.sync_dir(&self.dir)?;
        let path = self.dir.join(checkpoint_name(index));
        let parts = checkpoint.file_parts();
        let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
        self.disk.replace_by_parts(&path, &parts)?;
        gate.newest = Some(index);
        self.prune()?;
        Ok(true)
    }

    fn prune(&self) -> io::Result<()> {
        let names = self.names()?;
        let mut indexes: Vec<_> = names.iter().filter_map(|name| checkpoint_index(name)).collect();
        indexes.sort_unstable();
        let keep = indexes.len().saturating_sub(KEPT);
        for index in &indexes[..keep] {
            self.disk.remove(&self.dir.join(checkpoint_name(*index)))?;
        }
        Ok(())
    }

    /// Makes a peer's state the one to begin with, by one rename; then what was derived on another
    /// one goes. `generation` is the one that the new state writes.
    pub(super) fn install(
        &self,
        index: LogIndex,
        snapshot: &Bytes,
        generation: u64,
    ) -> io::Result<()> {
        let mut gate = self.gate.lock();
        self.disk.replace(&self.dir.join(FLOOR), snapshot)?;
        *gate = Gate { floor: Some(index), newest: None };
        for name in self.names()? {
            let old = generation_of(&name).is_some_and(|found| found != generation);
            if old || checkpoint_index(&name).is_some() {
                self.disk.remove(&self.dir.join(name))?;
            }
        }
        self.disk.sync_dir(&self.dir)
    }
}

/// The state that a peer gave, as it lies on the disk.
struct Floor {
    path: PathBuf,
    index: LogIndex,
    sections: Sections,
}

impl Floor {
    fn load(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Option<Self>, OpenError> {
        let path = dir.join(FLOOR);
        if !disk.exists(&path) {
            return Ok(None);
        }
        let read = || {
            let sections = Sections::parse(&disk.read(&path)?)?;
            let applied = sections.head()?.applied;
            let what = "a state before the first entry";
            let (index, _) = applied.ok_or(CheckpointError::Contradiction { what })?;
            Ok((index, sections))
        };
        match read() {
            Ok((index, sections)) => Ok(Some(Self { path, index, sections })),
            Err(source) => Err(OpenError::Floor { file: path, source }),
        }
    }

    fn state(&self, store: &Store, per_file: u32, seed: u64) -> Result<State, OpenError> {
        let error = |source| OpenError::Floor { file: self.path.clone(), source };
        let names = store.names().map_err(|source| error(source.into()))?;
        let extents = store.new_extents(&names, per_file);
        self.sections.state(extents, None, seed).map_err(error)
    }
}
