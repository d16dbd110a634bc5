//! A node's disk: the simulated one, watched, and slow when it is told to be.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
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
    /// What somebody may hold of each file, which keeps it under a new name.
    lent: Mutex<BTreeMap<PathBuf, SharedLent>>,
    /// Bytes that were written over while somebody held them.
    overwritten: Mutex<Vec<String>>,
}

type SharedLent = Arc<Mutex<Vec<Lent>>>;

/// So many lent pieces of one file are remembered before those that came back are forgotten.
const LENT_MAX: usize = 256;
/// A sync of a healthy disk takes at most so long.
const SYNC_MICROS: u64 = 4_000;

impl NodeDisk {
    pub(crate) fn new(node: usize, seed: u64, trace: Trace) -> Self {
        let random = Random::new(seed, &format!("disk {node}"));
        let slow = AtomicU64::new(SYNC_MICROS);
        let (lent, overwritten) = (Mutex::default(), Mutex::default());
        Self { sim: SimDisk::new(), node, trace, random, slow, lent, overwritten }
    }

    /// Syncs take up to so long from now on; `None` is the usual time.
    pub(crate) fn set_slow(&self, micros: Option<u64>) {
        self.slow.store(micros.unwrap_or(SYNC_MICROS), Ordering::Relaxed);
    }

    pub(crate) fn take_overwritten(&self) -> Vec<String> {
        std::mem::take(&mut self.overwritten.lock())
    }

    /// The program is gone, and with it whatever it held.
    pub(crate) fn forget_lent(&self) {
        self.lent.lock().clear();
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
        let lent = self.0.lent.lock().entry(path.into()).or_default().clone();
        Ok(Arc::new(WatchedFile { disk: self.0.clone(), path: path.into(), file, lent }))
    }

    fn read(&self, path: &Path) -> io::Result<Bytes> {
        self.0.sim.read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.0.sim.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.note("rename", to, self.0.sim.rename(from, to))?;
        let mut lent = self.0.lent.lock();
        let moved = lent.remove(from).unwrap_or_default();
        lent.insert(to.into(), moved);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.note("remove", path, self.0.sim.remove(path))?;
        self.0.lent.lock().remove(path);
        Ok(())
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
    lent: SharedLent,
}

/// Bytes that somebody may hold.
#[derive(Debug)]
struct Lent {
    offset: u64,
    bytes: Weak<Bytes>,
}

/// Keeps what is lent alive.
struct Owner(Arc<Bytes>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl WatchedFile {
    /// Nobody may hold bytes that are about to become others (rule R14).
    fn check_lent(&self, offset: u64, bytes: &[u8]) {
        let mut lent = self.lent.lock();
        lent.retain(|lent| lent.bytes.strong_count() > 0);
        let end = offset + bytes.len() as u64;
        for held in lent.iter() {
            let Some(old) = held.bytes.upgrade() else { continue };
            let (from, to) = (held.offset.max(offset), (held.offset + old.len() as u64).min(end));
            if from >= to {
                continue;
            }
            let part = |of: &[u8], start: u64| {
                let at = |place: u64| usize::try_from(place - start).unwrap_or_default();
                of[at(from)..at(to)].to_vec()
            };
            if part(&old, held.offset) != part(bytes, offset) {
                let path = self.path.display();
                let what = format!("node {}: {path} at {from} to {to}", self.disk.node);
                self.disk.overwritten.lock().push(what);
            }
        }
    }
}

impl File for WatchedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_lent(offset, bytes);
        let result = self.file.write_at(offset, bytes);
        let (node, path, len) = (self.disk.node, self.path.display(), bytes.len());
        let (good, sum) = (result.is_ok(), crc32c::crc32c(bytes));
        let trace = &self.disk.trace;
        trace.note(format_args!("disk {node} write {path} {offset}+{len} {sum:08x} {good}"));
        result
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let bytes = Arc::new(self.file.read_at(offset, len)?);
        let mut lent = self.lent.lock();
        if lent.len() >= LENT_MAX {
            lent.retain(|lent| lent.bytes.strong_count() > 0);
        }
        lent.push(Lent { offset, bytes: Arc::downgrade(&bytes) });
        Ok(Bytes::from_owner(Owner(bytes)))
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
        self.lent.lock().iter().any(|lent| lent.bytes.strong_count() > 0)
    }
}
