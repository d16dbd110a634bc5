//! The only door to the world: disks, clocks and randomness.
//!
//! What it is: traits that every other room uses, with two makers: [`os`] is real, [`sim`] is
//! seeded and can lose what was not synced.
//! Promises: after `sync_data` returned `Ok` the bytes written before it survive a power cut, and
//! after `sync_dir` the names do.
//! Never: a retry of a failed sync, a thread of its own, or a setting.

pub mod os;
pub mod sim;

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::base::UtcMillis;

/// How a file is opened, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// An existing file, read only; reads come from a map where the disk has maps.
    Read,
    /// A file made if absent; `write_at` goes to the kernel, reads come from a map.
    Log,
    /// A file made if absent whose small scattered writes may go through a map. Only for derived
    /// files: a failing disk under a writable map is a signal, not an error (rule R17), so the
    /// file must be fully allocated first.
    Derived,
}

/// A place for files. Paths are whole paths; parents must exist.
pub trait Disk: Send + Sync + Debug {
    /// Makes a directory and its missing parents; their names are durable at return.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Opens a file; `Open::Read` of a missing file is `NotFound`.
    fn open(&self, path: &Path, open: Open) -> io::Result<Arc<dyn File>>;

    /// The whole content of a small file.
    fn read(&self, path: &Path) -> io::Result<Bytes>;

    /// Names (not paths) of the entries of a directory, sorted. `NotFound` when it is missing.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    fn exists(&self, path: &Path) -> bool;

    /// How long the next sync of a log takes where time is simulated; a real disk takes it itself.
    fn sync_takes(&self) -> Duration {
        Duration::ZERO
    }

    /// Writes a whole small file so that after a crash either the old or the new content is there:
    /// a temporary neighbour, synced, renamed, and the directory synced.
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.replace_by_parts(path, &[content])
    }

    /// The same for a file whose content lies in several places, and may be large.
    fn replace_by_parts(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        if self.exists(&temporary) {
            self.remove(&temporary)?;
        }
        let file = self.open(&temporary, Open::Log)?;
        let (mut at, mut synced) = (0, 0);
        for part in parts {
            file.write_at(at, part)?;
            at += part.len() as u64;
            if at - synced >= REPLACE_STEP {
                file.sync_data()?;
                synced = at;
            }
        }
        file.sync_data()?;
        drop(file);
        self.rename(&temporary, path)?;
        let Some(parent) = path.parent() else { return Ok(()) };
        self.sync_dir(parent)
    }
}

/// What replaces a file is synced so often, so that no sync of another waits behind all of it.
const REPLACE_STEP: u64 = 8 << 20;

/// One open file. All methods take positions, so that one handle serves many tasks.
pub trait File: Send + Sync + Debug {
    /// Writes all of `bytes` at `offset`, growing the file when needed. Not durable by itself.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes zeros, past the page cache where the disk can. `offset` and `len` are whole pages of
    /// 4 KiB, and nothing else is written meanwhile.
    fn write_zeros(&self, offset: u64, len: usize) -> io::Result<()> {
        self.write_at(offset, &vec![0; len])
    }

    /// Exactly `len` bytes from `offset`; `UnexpectedEof` beyond the end. Where the disk has maps,
    /// the bytes are lent from the map without a copy and stay valid while they are held, even
    /// after the file was removed.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes>;

    /// Makes all bytes written so far durable. After an error nothing is known about them.
    fn sync_data(&self) -> io::Result<()>;

    /// Gives the file `len` bytes, the new ones zero and really allocated on the disk.
    fn allocate(&self, len: u64) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;

    /// Whether bytes lent by `read_at` may still be held. Only a file that is not lent out may be
    /// written over (rule R14); when in doubt the answer is yes.
    fn lent(&self) -> bool;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// What time it is. `wall` may jump; `monotonic` counts from an arbitrary start and never goes
/// back, suspended time included.
pub trait Clock: Send + Sync + Debug {
    fn wall(&self) -> UtcMillis;
    fn monotonic(&self) -> Duration;
}

/// Randomness.
pub trait Entropy: Send + Sync + Debug {
    fn fill(&self, bytes: &mut [u8]);

    fn u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_be_bytes(bytes)
    }
}

/// Everything a node needs from the world.
#[derive(Clone, Debug)]
pub struct Env {
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}
