//! A node's disk: the simulated one, watched, and slow when it is told to be.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use raftmq::env::sim::SimDisk;
use raftmq::env::{Disk, File, Open};

use super::random::Random;
use super::trace::Trace;

/// What is written into the trace for each change of a disk.
#[derive(Debug)]
pub(crate) struct NodeDisk {
    pub(crate) sim: SimDisk,
    node: usize,
    trace: Trace,
    random: Random,
    /// The longest that a sync of the log takes, in microseconds.
    slow: AtomicU64,
}

/// A sync of a healthy disk takes at most so long.
const SYNC_MICROS: u64 = 4_000;

impl NodeDisk {
    pub(crate) fn new(node: usize, seed: u64, trace: Trace) -> Self {
        let random = Random::new(seed, &format!("disk {node}"));
        Self { sim: SimDisk::new(), node, trace, random, slow: AtomicU64::new(SYNC_MICROS) }
    }

    /// Syncs take up to so long from now on; `None` is the usual time.
    pub(crate) fn set_slow(&self, micros: Option<u64>) {
        self.slow.store(micros.unwrap_or(SYNC_MICROS), Ordering::Relaxed);
    }

    fn note<T>(&self, what: &str, path: &Path, result: io::Result<T>) -> io::Result<T> {
        let (node, path) = (self.node, path.display());
        match &result {
            Ok(_) => self.trace.note(format_args!("disk {node} {what} {path}")),
            Err(error) => self.trace.note(format_args!("disk {node} {what} {path}: {error}")),
        }
        result
    }
}

/// A disk as its node's environment holds it.
#[derive(Clone, Debug)]
pub(crate) struct Watched(pub(crate) Arc<NodeDisk>);

impl Disk for Watched {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.sim.create_dir_all(path)
    }

    fn open(&self, path: &Path, open: Open) -> io::Result<Arc<dyn File>> {
        let file = self.0.note("open", path, self.0.sim.open(path, open))?;
        Ok(Arc::new(WatchedFile { disk: self.0.clone(), path: path.into(), file }))
    }

    fn read(&self, path: &Path) -> io::Result<Bytes> {
        self.0.sim.read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.0.sim.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.note("rename", to, self.0.sim.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.note("remove", path, self.0.sim.remove(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.note("sync_dir", path, self.0.sim.sync_dir(path))
    }

    fn exists(&self, path: &Path) -> bool {
        self.0.sim.exists(path)
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        self.0.sim.free(path)
    }

    fn sync_takes(&self) -> Duration {
        let most = self.0.slow.load(Ordering::Relaxed);
        Duration::from_micros(self.0.random.between(most / 8, most + 1))
    }
}

#[derive(Debug)]
struct WatchedFile {
    disk: Arc<NodeDisk>,
    path: Box<Path>,
    file: Arc<dyn File>,
}

impl File for WatchedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let result = self.file.write_at(offset, bytes);
        let (node, path, len) = (self.disk.node, self.path.display(), bytes.len());
        let (good, sum) = (result.is_ok(), crc32c::crc32c(bytes));
        let trace = &self.disk.trace;
        trace.note(format_args!("disk {node} write {path} {offset}+{len} {sum:08x} {good}"));
        result
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.file.read_at(offset, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.note("sync", &self.path, self.file.sync_data())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.disk.note("allocate", &self.path, self.file.allocate(len))
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn lent(&self) -> bool {
        self.file.lent()
    }
}
