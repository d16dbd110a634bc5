//! What the handles of one log, its flusher and its upkeep share, and the order of their locks:
//! `writer`, then `turn`, then `names`, then `state`; `spare` and the queue are taken last.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::base::{LogIndex, LogPosition, Mutant};
use crate::commit_log::error::Stopped;
use crate::commit_log::flushed_mark::MarkFile;
use crate::commit_log::queue::Queue;
use crate::commit_log::repair;
use crate::commit_log::segment::{self, LOG_SUFFIX, Segment};
use crate::commit_log::segments::State;
use crate::commit_log::spare::{Filling, Spare};
use crate::commit_log::stats::{Counters, add};
use crate::commit_log::{Damage, Options};
use crate::env::{Env, Open};

pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    /// Held by whoever changes the log's end.
    pub(super) writer: Mutex<Writer>,
    /// Held while the queue is worked off.
    pub(super) turn: Mutex<Turn>,
    /// Held while files of sealed segments are made or removed.
    pub(super) names: Mutex<()>,
    pub(super) state: RwLock<State>,
    pub(super) committed: Mutex<MarkFile>,
    pub(super) queue: Queue,
    /// The ready spare, and its name in the directory.
    pub(super) spare: Mutex<Option<Spare>>,
    /// The one being filled, by the upkeep only.
    pub(super) filling: Mutex<Option<Filling>>,
    pub(super) stopped: OnceLock<Stopped>,
    pub(super) damage: OnceLock<Damage>,
    pub(super) counters: Counters,
    /// Where the scrub goes on.
    pub(super) scrub: Mutex<LogPosition>,
    /// Where the log ended when the upkeep last looked.
    pub(super) upkeep_seen: Mutex<LogPosition>,
    pub(super) upkeep_due: Mutex<bool>,
    pub(super) upkeep_bell: Condvar,
    pub(super) closed: AtomicBool,
}

/// The writer's own buffer, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) buffer: BytesMut,
}

/// What only the one who works off the queue touches.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) flushed: MarkFile,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitLog").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Shared {
    /// Stops the log for ever; only the first reason is kept.
    pub(super) fn stop(&self, what: &'static str, error: &io::Error) -> Stopped {
        let stopped = Stopped { what, kind: error.kind(), reason: error.to_string() };
        self.stopped.get_or_init(|| stopped).clone()
    }

    pub(super) fn running(&self) -> Result<(), Stopped> {
        self.stopped.get().map_or(Ok(()), |stopped| Err(stopped.clone()))
    }

    /// Keeps the first damage found.
    pub(super) fn note_damage(&self, damage: &Damage) {
        self.damage.get_or_init(|| {
            if let Err(error) = repair::note_damage(&*self.env.disk, &self.dir) {
                // Whoever meets the damage next notes it then.
                tracing::warn!(%error, "the damage cannot be noted for the next start");
            }
            damage.clone()
        });
    }

    /// A file for frames from `base` on: the spare if one is ready, else one that grows. Never
    /// waits for zeros to be written.
    pub(super) fn new_segment(&self, base: LogPosition, first: LogIndex) -> io::Result<Segment> {
        let path = segment::path_of(&self.dir, base, LOG_SUFFIX);
        assert!(!self.env.disk.exists(&path), "{} exists already", path.display());
        add(&self.counters.rolls, 1);
        let taken = {
            let mut ready = self.spare.lock();
            if let Some(spare) = &*ready {
                self.env.disk.rename(&spare.path, &path)?;
            }
            ready.take()
        };
        let file = match taken {
            Some(spare) => spare.file,
            None => {
                add(&self.counters.rolls_without_spare, 1);
                self.env.disk.open(&path, Open::Log)?
            }
        };
        self.ask_upkeep();
        Ok(Segment::new(base, first, path, file, first))
    }

    /// Tells the upkeep that there is something to do.
    pub(super) fn ask_upkeep(&self) {
        *self.upkeep_due.lock() = true;
        self.upkeep_bell.notify_all();
    }

    /// Waits until the queue is worked off and keeps it so: while the guards live nothing is
    /// appended and nobody works on the queue.
    pub(super) fn quiesce(&self) -> (MutexGuard<'_, Writer>, MutexGuard<'_, Turn>) {
        loop {
            while self.flush() {}
            let writer = self.writer.lock();
            if let Some(turn) = self.turn.try_lock()
                && self.queue.is_empty()
            {
                return (writer, turn);
            }
            drop(writer);
            std::thread::yield_now();
        }
    }

    /// Removes a sealed segment's files, or keeps its log file as the spare (rule R14): only if it
    /// was filled to its end, is of the right size, and nobody can hold bytes of it.
    pub(super) fn discard(&self, segment: Arc<Segment>, recycle: bool) -> io::Result<()> {
        let disk = &*self.env.disk;
        let index = segment::path_of(&self.dir, segment.base, segment::INDEX_SUFFIX);
        if disk.exists(&index) {
            disk.remove(&index)?;
        }
        let segment = match Arc::try_unwrap(segment) {
            Ok(segment) => segment,
            Err(shared) => return disk.remove(&shared.path),
        };
        let whole = segment.file.len()? == self.options.segment_bytes;
        let lent = segment.file.lent() && !Mutant::LentRecycled.is_on();
        if !(recycle && whole && self.options.spare) || lent {
            return disk.remove(&segment.path);
        }
        match Spare::keep(&mut self.spare.lock(), disk, &self.dir, segment)? {
            Some(path) => disk.remove(&path),
            None => Ok(()),
        }
    }
}
