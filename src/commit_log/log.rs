//! The handle on a log.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::commit_log::error::{AppendError, OpenError, PurgeError, ReadError, TruncateError};
use crate::commit_log::flusher::Flusher;
use crate::commit_log::purged::Purged;
use crate::commit_log::queue::{Queue, Task};
use crate::commit_log::recovery;
use crate::commit_log::scrub::ScrubProgress;
use crate::commit_log::segments::{Bounds, SegmentInfo};
use crate::commit_log::shared::{Shared, Turn, Writer};
use crate::commit_log::spare::Filling;
use crate::commit_log::stats::{Counters, LogStats};
use crate::commit_log::upkeep::Upkeep;
use crate::commit_log::{Completion, Damage, Frame, Vote};
use crate::env::Env;

/// Smallest segment, for tests.
pub const SEGMENT_BYTES_MIN: u64 = 512;
/// Places in a segment are 32-bit numbers, and one frame may reach behind the nominal size.
pub const SEGMENT_BYTES_MAX: u64 = 2 << 30;

/// Settings that do not change what the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a segment file, from 512 to 2 GiB. A larger frame gets a segment of its own.
    pub segment_bytes: u64,
    /// Whether the upkeep keeps a spare segment ready.
    pub spare: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 1 << 30, spare: true }
    }
}

/// A log. Clones are handles on the same one; flusher and upkeep end when the last is dropped.
///
/// One task appends, truncates and restarts; any number of others read.
#[derive(Clone, Debug)]
pub struct CommitLog(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl CommitLog {
    /// Recovers what `dir` holds; an empty or missing directory is an empty log. The flusher must
    /// be driven, on a thread or step by step, or nothing ever completes.
    pub fn open(env: Env, dir: &Path, options: Options) -> Result<(Self, Flusher), OpenError> {
        Self::open_as(env, dir, options, false)
    }

    /// Opens a log whose end is being put back: see [`crate::commit_log::Hole::cut`].
    pub fn open_unfilled(
        env: Env,
        dir: &Path,
        options: Options,
    ) -> Result<(Self, Flusher), OpenError> {
        Self::open_as(env, dir, options, true)
    }

    fn open_as(
        env: Env,
        dir: &Path,
        options: Options,
        filling: bool,
    ) -> Result<(Self, Flusher), OpenError> {
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes) {
            return Err(OpenError::SegmentBytes { bytes: options.segment_bytes });
        }
        let found = recovery::recover(&*env.disk, dir, filling)?;
        let filling = Filling::recover(&*env.disk, dir, options.spare).map_err(|source| {
            OpenError::Io { what: "taking over the spare segment", path: dir.to_path_buf(), source }
        })?;
        let shared = Arc::new(Shared {
            env,
            dir: dir.to_path_buf(),
            options,
            writer: Mutex::new(Writer::default()),
            turn: Mutex::new(Turn { flushed: found.flushed }),
            names: Mutex::new(()),
            state: RwLock::new(found.state),
            committed: Mutex::new(found.committed),
            queue: Queue::default(),
            spare: Mutex::new(None),
            filling: Mutex::new(filling),
            stopped: OnceLock::new(),
            damage: OnceLock::new(),
            counters: Counters::default(),
            scrub: Mutex::new(LogPosition::ZERO),
            upkeep_seen: Mutex::new(LogPosition::ZERO),
            upkeep_due: Mutex::new(true),
            upkeep_bell: Condvar::new(),
            closed: false.into(),
        });
        let flusher = Flusher { shared: Arc::clone(&shared) };
        Ok((Self(Arc::new(Handle { shared })), flusher))
    }

    /// Index files and spare segments are made by it; drive it beside the flusher.
    pub fn upkeep(&self) -> Upkeep {
        Upkeep { shared: Arc::clone(&self.0.shared) }
    }

    /// Adds frames that continue the log. New ones get the leader's stamp, the maximum of the
    /// clock and the last stamp, and their checksum. They are readable at return; `done` is
    /// called once they are durable, in order, or with the error that stopped the log. When this
    /// returns an error `done` is dropped.
    pub fn append(&self, frames: Vec<Frame>, done: Completion) -> Result<(), AppendError> {
        self.0.shared.append(frames, done)
    }

    /// Stores a vote after all that was appended before is durable.
    pub fn save_vote(&self, vote: Vote, done: Completion) {
        self.0.shared.queue.push(Task::Vote { vote, done });
    }

    /// Calls `done` after all that was asked for before is durable.
    pub fn barrier(&self, done: Completion) {
        self.0.shared.queue.push(Task::Barrier { done });
    }

    /// The last durable vote.
    pub fn vote(&self) -> Option<Vote> {
        self.0.shared.state.read().vote
    }

    /// Notes how far the group committed, without waiting for the disk. What is written is never
    /// above what is durable here, so that it is a lower bound for recovery (rule R15): a leader
    /// may learn of a commit before its own disk has the entry.
    pub fn save_committed(&self, index: LogIndex, term: Term) -> io::Result<()> {
        let shared = &self.0.shared;
        let mut file = shared.committed.lock();
        let bound = {
            let mut state = shared.state.write();
            state.committed = state.committed.max(Some((index, term)));
            let flushed = state.bounds().flushed.map(|flushed| flushed.min(index));
            flushed.and_then(|flushed| Some((flushed, state.term_of(flushed)?)))
        };
        let Some(bound) = bound.filter(|bound| file.get() < Some(*bound)) else { return Ok(()) };
        file.set(Some(bound)).map_err(|error| {
            let stopped = shared.stop("a write of the committed mark", &error);
            io::Error::from(&stopped)
        })
    }

    /// A lower bound of what is committed; never behind the last entry.
    pub fn committed(&self) -> Option<(LogIndex, Term)> {
        let state = self.0.shared.state.read();
        state.committed.min(state.reached())
    }

    /// Entries from `from` to before `to_exclusive`, contiguous, of `max_bytes` together or one
    /// if the first is larger; fewer or none where the log ends. Checked and not copied.
    pub fn read(
        &self,
        from: LogIndex,
        to_exclusive: LogIndex,
        max_bytes: usize,
    ) -> Result<Vec<Frame>, ReadError> {
        self.0.shared.read(from, to_exclusive, max_bytes)
    }

    /// `size` bytes from `position`, which must lie inside one frame's body. A frame that this
    /// run of the program did not write is checked whole when it is first read.
    pub fn read_record(&self, position: LogPosition, size: u32) -> Result<Bytes, ReadError> {
        self.0.shared.read_record(position, size)
    }

    /// The records at these places, for an entry that holds them again. Their frames are checked
    /// whoever wrote them: in an entry of its own, rot would be good on every replica.
    pub fn read_records_checked(
        &self,
        records: &[(LogPosition, u32)],
    ) -> Result<Vec<Bytes>, ReadError> {
        self.0.shared.read_records_checked(records)
    }

    /// Drops what lies behind `last_kept`; durable at return. Completions that wait are called
    /// first, so this must not be called from one. The segment is sealed at the cut and a new file
    /// goes on (rule R14).
    pub fn truncate_after(&self, last_kept: Option<LogIndex>) -> Result<(), TruncateError> {
        self.0.shared.truncate_after(last_kept)
    }

    /// Stops serving the entries up to `index` and drops the segments that hold no others.
    pub fn purge_to(&self, index: LogIndex, term: Term) -> Result<(), PurgeError> {
        self.0.shared.purge_to(index, term)
    }

    /// After a snapshot was installed: the log becomes empty and goes on after entry `index`,
    /// which ended at `position` and had `stamp`. Durable at return.
    pub fn restart_at(
        &self,
        index: LogIndex,
        term: Term,
        position: LogPosition,
        stamp: UtcMillis,
    ) -> Result<(), PurgeError> {
        self.0.shared.restart_at(Purged { index, term, end: position, stamp })
    }

    pub fn bounds(&self) -> Bounds {
        self.0.shared.state.read().bounds()
    }

    /// The term of an entry, or of the last purged one.
    pub fn term_of(&self, index: LogIndex) -> Option<Term> {
        self.0.shared.state.read().term_of(index)
    }

    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.0.shared.state.read().infos()
    }

    /// The first rot that a read or the scrub found.
    pub fn damage(&self) -> Option<Damage> {
        self.0.shared.damage.get().cloned()
    }

    /// Checks about `budget` bytes of sealed segments, one frame at least, and goes on where the
    /// last call ended. The caller decides how often.
    pub fn scrub(&self, budget: u64) -> Result<ScrubProgress, ReadError> {
        self.0.shared.scrub(budget)
    }

    /// Bytes on the disk that are set aside for what comes: the rest of the active segment, as far
    /// as its file is that long, and the ready spare.
    pub fn set_aside(&self) -> u64 {
        let shared = &self.0.shared;
        let (segment, len) = {
            let state = shared.state.read();
            (Arc::clone(&state.active.segment), state.active.len)
        };
        let ahead = segment.file.len().map_or(0, |whole| whole.saturating_sub(len));
        let spare = shared.spare.lock().as_ref().map_or(0, |spare| spare.file.len().unwrap_or(0));
        ahead + spare
    }

    pub fn stats(&self) -> LogStats {
        self.0.shared.counters.get()
    }
}
