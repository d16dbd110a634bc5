//! The commit log as openraft's log storage.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures::Stream;
use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::base::{Durability, LogIndex, LogPosition, Term, UtcMillis};
use crate::commit_log::CommitLog;
use crate::raft::ending::Ending;
use crate::raft::types::{
    Entry, EntryId, RaftVoteOf, Types, entry_id, from_raft_vote, index_of, term_of, to_raft_vote,
};

/// Bytes of log that one append request to a follower carries, unless one entry alone has more.
/// 1 MiB keeps a stream busy (openraft.md, section 3) and bounds what is in memory per follower.
const APPEND_BYTES: usize = 1 << 20;
/// Bytes of log read at once when entries are applied.
const APPLY_BYTES: usize = 1 << 20;

/// Where the log goes on after a state that came from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) index: LogIndex,
    pub(crate) term: Term,
    pub(crate) end: LogPosition,
    pub(crate) stamp: UtcMillis,
}

/// Hands an [`Installed`] from the state machine to the log, which is told to purge up to it.
pub(crate) type InstalledCell = Arc<Mutex<Option<Installed>>>;

/// Reads and writes the log for openraft. Cheap to clone; all clones are one log.
#[derive(Clone)]
pub(crate) struct LogStore {
    log: CommitLog,
    /// What makes an append complete for openraft.
    durability: Durability,
    installed: InstalledCell,
    ending: Ending,
}

impl LogStore {
    pub(crate) fn new(log: CommitLog, installed: InstalledCell, ending: Ending) -> Self {
        Self { log, durability: Durability::default(), installed, ending }
    }

    /// The same log, in a broker group that was created with this durability.
    pub(crate) fn of(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Returns when everything appended before is on the disk.
    pub(crate) async fn synced(&self) -> io::Result<()> {
        let (done, durable) = oneshot::channel();
        let completion = Box::new(move |result| {
            // Nobody waits any more when the replica is stopping.
            let _ = done.send(result);
        });
        self.log.append(Vec::new(), completion).map_err(|error| self.ending.because(&error))?;
        let result = durable.await.unwrap_or_else(|_| Err(io::Error::other("the flusher ended")));
        result.map_err(|error| self.ending.because(&format_args!("syncing the log: {error}")))
    }

    /// The last entry that a crash cannot take: it is on the disk, or in a state that is.
    pub(crate) fn durable(&self) -> Option<LogIndex> {
        let bounds = self.log.bounds();
        bounds.flushed.max(bounds.purged.map(|(index, _)| index))
    }

    pub(crate) fn ending(&self) -> &Ending {
        &self.ending
    }

    /// Entries from `from` up to `to`, stopping early once `max_bytes` are together; at least one
    /// if there is one.
    fn read(&self, from: LogIndex, to: LogIndex, max_bytes: usize) -> io::Result<Vec<Entry>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let frames =
            self.log.read(from, to, max_bytes).map_err(|error| self.ending.because(&error))?;
        let entry = |frame| Entry::from_frame(frame).map_err(|error| self.ending.because(&error));
        let entries = frames.into_iter().map(entry).collect::<io::Result<Vec<Entry>>>()?;
        if let Some(first) = entries.first() {
            assert!(first.frame().index >= from, "the log answered from before {from}");
        }
        Ok(entries)
    }

    /// What of a range is in the log at all.
    fn present(&self, range: &impl RangeBounds<u64>) -> (LogIndex, LogIndex) {
        let bounds = self.log.bounds();
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(to) => *to,
            Bound::Unbounded => u64::MAX,
        };
        let Some(first) = bounds.first else { return (LogIndex::ZERO, LogIndex::ZERO) };
        let end = bounds.last.map_or(first, |(last, _)| last.next());
        (LogIndex::new(from).max(first), LogIndex::new(to).min(end))
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let (mut from, to) = self.present(&range);
        let mut entries = Vec::new();
        while from < to {
            let more = self.read(from, to, APPLY_BYTES)?;
            let Some(last) = more.last() else { break };
            from = last.frame().index.next();
            entries.extend(more);
        }
        Ok(entries)
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVoteOf>, io::Error> {
        Ok(self.log.vote().map(to_raft_vote))
    }

    /// Reads while the entries are used: a long range is never in memory as a whole.
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = self.present(&range);
        let store = self.clone();
        let state = (from, Vec::new().into_iter());
        futures::stream::try_unfold(state, move |(mut from, mut batch)| {
            let store = store.clone();
            async move {
                if batch.len() == 0 && from < to {
                    let more: Vec<Entry> = store.read(from, to, APPLY_BYTES)?;
                    batch = more.into_iter();
                }
                let Some(entry) = batch.next() else { return Ok(None) };
                from = entry.frame().index.next();
                Ok(Some((entry, (from, batch))))
            }
        })
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        let (from, to) = self.present(&(start..end));
        self.read(from, to, APPEND_BYTES)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let bounds = self.log.bounds();
        let id = |(index, term)| entry_id(index, term);
        let last_purged_log_id = bounds.purged.map(id);
        let last_log_id = bounds.last.map(id).max(last_purged_log_id);
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    /// Goes through the flusher's queue, since the completion of a vote tells openraft that
    /// everything appended before it is durable too.
    async fn save_vote(&mut self, vote: &RaftVoteOf) -> Result<(), io::Error> {
        let (done, durable) = oneshot::channel();
        let completion = Box::new(move |result| {
            // Nobody waits any more when openraft is shutting down.
            let _ = done.send(result);
        });
        self.log.save_vote(from_raft_vote(vote), completion);
        let result = durable.await.unwrap_or_else(|_| Err(io::Error::other("the flusher ended")));
        result.map_err(|error| self.ending.because(&format_args!("saving a vote: {error}")))
    }

    async fn save_committed(&mut self, committed: Option<EntryId>) -> Result<(), io::Error> {
        let Some(id) = committed else { return Ok(()) };
        let saved = self.log.save_committed(index_of(&id), term_of(&id));
        saved.map_err(|error| self.ending.because(&format_args!("noting the commit: {error}")))
    }

    async fn read_committed(&mut self) -> Result<Option<EntryId>, io::Error> {
        Ok(self.log.committed().map(|(index, term)| entry_id(index, term)))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let frames = entries.into_iter().map(Entry::into_frame).collect();
        let ending = self.ending.clone();
        if self.durability == Durability::MajorityMemory {
            // The system has it once it is written. It is synced all the same, and a vote still
            // waits for that; if it fails the replica ends as ever.
            let completion = Box::new(move |result: io::Result<()>| {
                if let Err(error) = result {
                    ending.note(&format!("syncing the log: {error}"));
                }
            });
            let written = self.log.append(frames, completion);
            written.map_err(|error| self.ending.because(&error))?;
            callback.io_completed(Ok(()));
            return Ok(());
        }
        let completion = Box::new(move |result: io::Result<()>| {
            let result =
                result.map_err(|error| ending.because(&format_args!("syncing the log: {error}")));
            callback.io_completed(result);
        });
        self.log.append(frames, completion).map_err(|error| self.ending.because(&error))
    }

    async fn truncate_after(&mut self, last: Option<EntryId>) -> Result<(), io::Error> {
        let kept = last.map(|id| index_of(&id));
        let end = self.log.bounds().last;
        if kept >= end.map(|(index, _)| index) {
            return Ok(());
        }
        self.log.truncate_after(kept).map_err(|error| self.ending.because(&error))
    }

    async fn purge(&mut self, id: EntryId) -> Result<(), io::Error> {
        let (index, term) = (index_of(&id), term_of(&id));
        let bounds = self.log.bounds();
        let done = match bounds.last {
            Some((last, _)) if index <= last => self.log.purge_to(index, term),
            _ => {
                let installed = self.installed.lock().filter(|state| state.index == index);
                let (end, stamp) = installed
                    .map_or((bounds.end, bounds.last_stamp), |state| (state.end, state.stamp));
                self.log.restart_at(index, term, end, stamp)
            }
        };
        done.map_err(|error| self.ending.because(&error))
    }
}
