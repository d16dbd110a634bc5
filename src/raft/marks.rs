//! States exactly at marks, on disk: what the log is cut at, and what a replica that comes late is
//! given before the log from there on.
//!
//! ```text
//!   mark-<entry, 20 digits>    a snapshot file, see `snapshot`, and beside it
//! ```
//! Any of them will do: a replica that has none at the floor cuts its log at an older one. Like a
//! checkpoint, one is written only once the log up to it is on this disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::base::LogIndex;
use crate::env::Disk;
use crate::machine::Frozen;
use crate::raft::log_store::LogStore;
use crate::raft::snapshot::{Contents, SnapshotFile, file_parts};
use crate::raft::types::{StoredMembership, index_of};

const PREFIX: &str = "mark-";
/// Kept at most, spread over the log: about 16 to cut at, and the newest two (rule R11).
const KEPT: usize = 18;
/// Frozen states that wait to be written; with more a mark is left out.
const WAITING_MAX: usize = 2;

/// The files. Cheap to clone; all clones are one directory.
#[derive(Clone)]
pub(crate) struct MarkFiles {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Held while files are written or removed.
    gate: Arc<Mutex<()>>,
}

fn index_in(name: &str) -> Option<LogIndex> {
    name.strip_prefix(PREFIX)?.parse().ok().map(LogIndex::new)
}

impl MarkFiles {
    pub(crate) fn open(disk: Arc<dyn Disk>, dir: PathBuf) -> io::Result<Self> {
        let broken = |name: &&String| name.starts_with(PREFIX) && index_in(name).is_none();
        for name in disk.list(&dir)?.iter().filter(broken) {
            disk.remove(&dir.join(name))?;
        }
        Ok(Self { disk, dir, gate: Arc::default() })
    }

    fn path(&self, index: LogIndex) -> PathBuf {
        self.dir.join(format!("{PREFIX}{:020}", index.get()))
    }

    /// Oldest first.
    pub(crate) fn indexes(&self) -> io::Result<Vec<LogIndex>> {
        let names = self.disk.list(&self.dir)?;
        let mut indexes: Vec<_> = names.iter().filter_map(|name| index_in(name)).collect();
        indexes.sort_unstable();
        Ok(indexes)
    }

    /// `None` for one that is damaged, which is then gone: another mark will do.
    pub(crate) fn load(&self, index: LogIndex) -> io::Result<Option<(Contents, Bytes)>> {
        let path = self.path(index);
        let bytes = match self.disk.read(&path) {
            Ok(bytes) => bytes,
            // Thinned out since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match Contents::decode(&bytes) {
            Ok(contents) if index_of(&contents.last) == index => Ok(Some((contents, bytes))),
            Ok(contents) => {
                let found = index_of(&contents.last);
                tracing::warn!(file = %path.display(), %found, "a mark's file has another state");
                self.disk.remove(&path).map(|()| None)
            }
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "a mark's file is damaged");
                self.disk.remove(&path).map(|()| None)
            }
        }
    }

    fn write(&self, frozen: &Frozen, membership: &StoredMembership) -> io::Result<()> {
        let _gate = self.gate.lock();
        let path = self.path(frozen.index());
        if !self.disk.exists(&path) {
            let parts = file_parts(frozen, membership);
            let parts: Vec<&[u8]> = parts.iter().map(Bytes::as_ref).collect();
            self.disk.replace_by_parts(&path, &parts)?;
        }
        self.thin_out()
    }

    /// Of too many, the one that leaves the smallest gap goes; never the newest two.
    fn thin_out(&self) -> io::Result<()> {
        let mut indexes = self.indexes()?;
        while indexes.len() > KEPT {
            let inner = 1..indexes.len() - 2;
            let gap = |at: &usize| indexes[at + 1].since(indexes[at - 1]);
            let least = inner.min_by_key(gap).expect("more than three are kept");
            self.disk.remove(&self.path(indexes.remove(least)))?;
        }
        Ok(())
    }

    /// Makes the state at this mark the snapshot, unless a newer one has become it. The mark's own
    /// file stays as a second copy, but on a full disk, where it becomes the snapshot itself: purging
    /// is what makes room.
    pub(crate) fn adopt(
        &self,
        index: LogIndex,
        bytes: &[u8],
        snapshot: &SnapshotFile,
    ) -> io::Result<()> {
        let _gate = self.gate.lock();
        let newest = snapshot.load_if_good()?.map(|(contents, _)| index_of(&contents.last));
        if newest >= Some(index) {
            return Ok(());
        }
        match snapshot.store(bytes) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                self.disk.rename(&self.path(index), &snapshot.path)?;
                self.disk.sync_dir(&self.dir)
            }
            stored => stored,
        }
    }

    /// Those up to `index` are of no use any more.
    fn drop_to(&self, index: LogIndex) -> io::Result<()> {
        let _gate = self.gate.lock();
        for old in self.indexes()?.into_iter().filter(|old| *old <= index) {
            self.disk.remove(&self.path(old))?;
        }
        Ok(())
    }
}

/// The state machine's side: keeps states as they come, and finds the one to cut at.
pub(crate) struct Marks {
    files: MarkFiles,
    log: LogStore,
    threads: bool,
    waiting: Arc<AtomicUsize>,
    /// Where the log begins: the entry of the last snapshot.
    start: Option<LogIndex>,
    /// Told when a file is there.
    floor: Arc<watch::Sender<Option<LogIndex>>>,
}

impl Marks {
    pub(crate) fn new(
        files: MarkFiles,
        log: LogStore,
        threads: bool,
        start: Option<LogIndex>,
        floor: Arc<watch::Sender<Option<LogIndex>>>,
    ) -> Self {
        Self { files, log, threads, waiting: Arc::default(), start, floor }
    }

    /// Writes a state in the background, once the log up to it is on this disk.
    pub(crate) fn keep(&self, frozen: Frozen, membership: StoredMembership) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            tracing::debug!(index = %frozen.index(), "no time to keep this mark");
            return;
        }
        let (files, log, threads) = (self.files.clone(), self.log.clone(), self.threads);
        let (waiting, floor) = (self.waiting.clone(), self.floor.clone());
        tokio::spawn(async move {
            match write(&files, &log, frozen, membership, threads).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    tracing::warn!(%error, "no room for the state at a mark; another will do");
                }
                Err(error) => log.ending().note(&format!("keeping the state at a mark: {error}")),
            }
            waiting.fetch_sub(1, Ordering::AcqRel);
            // The floor may have waited for this one.
            floor.send_modify(|_| {});
        });
    }

    /// The newest state up to `floor` that is newer than the log's start.
    pub(crate) fn newest(&mut self, floor: LogIndex) -> Option<(Contents, Bytes)> {
        let found = self.find(floor);
        let found = found.map_err(|error| {
            self.log.ending().note(&format!("reading the states at marks: {error}"));
        });
        let (contents, bytes) = found.ok()??;
        self.began_at(index_of(&contents.last));
        Some((contents, bytes))
    }

    fn find(&self, floor: LogIndex) -> io::Result<Option<(Contents, Bytes)>> {
        let usable = |index: &LogIndex| *index <= floor && Some(*index) > self.start;
        for index in self.files.indexes()?.into_iter().rev().filter(usable) {
            if let Some(found) = self.files.load(index)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    pub(crate) fn files(&self) -> &MarkFiles {
        &self.files
    }

    /// The log begins behind this entry from now on.
    pub(crate) fn began_at(&mut self, index: LogIndex) {
        let before = self.start.replace(index);
        assert!(before <= Some(index), "a log's start moves on");
        if let Err(error) = before.map_or(Ok(()), |before| self.files.drop_to(before)) {
            self.log.ending().note(&format!("removing states at old marks: {error}"));
        }
    }
}

async fn write(
    files: &MarkFiles,
    log: &LogStore,
    frozen: Frozen,
    membership: StoredMembership,
    threads: bool,
) -> io::Result<()> {
    log.synced().await?;
    assert!(log.durable() >= Some(frozen.index()), "what is applied was appended before");
    let files = files.clone();
    let work = move || files.write(&frozen, &membership);
    if threads {
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    } else {
        work()
    }
}
