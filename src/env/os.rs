//! The real world: files of the operating system, its clocks and its randomness.
//!
//! Reads are lent from read-only maps, so that a record goes from the page cache to a socket
//! without a copy. Appends go through `pwrite`: a store through a map dirties whole large folios,
//! and its failure would be a signal instead of an error.

use std::fs::{self, File as StdFile, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions, MmapRaw};
use parking_lot::RwLock;
use rustix::fs::OFlags;

use crate::base::UtcMillis;
use crate::env::{Clock, Disk, Entropy, Env, File, Open};

/// Growing files are mapped ahead of their end in steps of this, so that reads of a growing log
/// do not map it anew each time. Only address space is spent.
const MAP_STEP: u64 = 64 << 20;
/// Zeros are written in pieces of this many bytes.
const ZEROS: usize = 1 << 20;
/// What direct writes are aligned to.
const PAGE: usize = 4096;

/// The disk, clocks and randomness of this machine.
pub fn env() -> Env {
    Env { disk: Arc::new(OsDisk), clock: Arc::new(OsClock), entropy: Arc::new(OsEntropy) }
}

/// The file systems of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk;

/// Wall time, and boot time that counts suspension too.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsClock;

/// The kernel's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Disk for OsDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() || path.is_dir() {
            return Ok(());
        }
        let parent = path.parent();
        if let Some(parent) = parent {
            self.create_dir_all(parent)?;
        }
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            other => other?,
        }
        parent.map_or(Ok(()), |parent| self.sync_dir(parent))
    }

    fn open(&self, path: &Path, open: Open) -> io::Result<Arc<dyn File>> {
        let file = match open {
            Open::Read => StdFile::open(path)?,
            Open::Log | Open::Derived => {
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?
            }
        };
        let len = AtomicU64::new(file.metadata()?.len());
        Ok(Arc::new(OsFile {
            file,
            open,
            len,
            lending: RwLock::default(),
            stores: RwLock::default(),
        }))
    }

    fn read(&self, path: &Path) -> io::Result<Bytes> {
        fs::read(path).map(Bytes::from)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name().into_string().map_err(|name| {
                let text = format!("{} holds {name:?}, which is not UTF-8", path.display());
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            names.push(name);
        }
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        StdFile::open(path)?.sync_all()
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    /// What this user may fill: file systems keep some for root.
    fn free(&self, path: &Path) -> io::Result<u64> {
        let found = rustix::fs::statvfs(path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

#[derive(Debug)]
struct OsFile {
    file: StdFile,
    open: Open,
    /// The length as far as this handle knows: others only let a file grow.
    len: AtomicU64,
    lending: RwLock<Lending>,
    /// Where `Open::Derived` files are stored to.
    stores: RwLock<Option<MmapRaw>>,
}

/// The maps that bytes were lent from.
#[derive(Debug, Default)]
struct Lending {
    current: Option<Bytes>,
    all: Vec<Weak<Mmap>>,
}

struct Owner(Arc<Mmap>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn size(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
}

impl OsFile {
    /// A slice of the current map, if that map reaches so far.
    fn lend(&self, from: usize, to: usize) -> Option<Bytes> {
        let lending = self.lending.read();
        let map = lending.current.as_ref()?;
        (to <= map.len()).then(|| map.slice(from..to))
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        // The kernel keeps a map coherent with later writes and with growth of the file, so a
        // file that grows is mapped beyond its end; nobody touches pages behind `self.len`.
        let reach = match self.open {
            Open::Log => len.next_multiple_of(MAP_STEP).max(len),
            Open::Read | Open::Derived => len,
        };
        // SAFETY: the map is read-only and shared. Files of the data directory are never made
        // shorter while they are open, and lent bytes are never written over (rule R14), so the
        // bytes under a lent slice stay as they are.
        #[expect(unsafe_code, reason = "lending file content without a copy needs a map")]
        let map = unsafe { MmapOptions::new().len(size(reach)?).map(&self.file)? };
        let map = Arc::new(map);
        let mut lending = self.lending.write();
        lending.all.retain(|map| map.strong_count() > 0);
        lending.all.push(Arc::downgrade(&map));
        let bytes = Bytes::from_owner(Owner(map));
        lending.current = Some(bytes.clone());
        Ok(bytes)
    }

    /// The length, asked of the kernel again when `end` lies beyond what is known.
    fn known_len(&self, end: u64) -> io::Result<u64> {
        let known = self.len.load(Ordering::Acquire);
        if end <= known {
            return Ok(known);
        }
        let len = self.file.metadata()?.len();
        self.len.fetch_max(len, Ordering::AcqRel);
        Ok(len)
    }

    /// Stores through the writable map; false when the file does not reach so far yet.
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.len.load(Ordering::Acquire) {
            return Ok(false);
        }
        let (from, to) = (size(offset)?, size(end)?);
        if self.stores.read().as_ref().is_none_or(|map| map.len() < to) {
            let map = MmapRaw::map_raw(&self.file)?;
            assert!(map.len() >= to, "a derived file of {} bytes became shorter", map.len());
            *self.stores.write() = Some(map);
        }
        let map = self.stores.read();
        let Some(map) = map.as_ref() else { return Ok(false) };
        assert!(to <= map.len(), "a store of {to} bytes behind a map of {}", map.len());
        // SAFETY: the range lies inside the map (asserted), the map is alive under the lock, and
        // the source is a distinct slice. Callers never store over bytes that they lent.
        #[expect(unsafe_code, reason = "small scattered stores into derived files")]
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(from), bytes.len());
        }
        Ok(true)
    }
}

impl File for OsFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.open == Open::Derived && self.store(offset, bytes)? {
            return Ok(());
        }
        self.file.write_all_at(bytes, offset)?;
        self.len.fetch_max(offset + bytes.len() as u64, Ordering::AcqRel);
        Ok(())
    }

    /// Zeros that go through the page cache are copied into pages that nobody reads: on a loaded
    /// node that was the hottest spot of all.
    fn write_zeros(&self, offset: u64, len: usize) -> io::Result<()> {
        let zeros = vec![0; len + PAGE];
        let start = zeros.as_ptr().align_offset(PAGE);
        let zeros = &zeros[start..start + len];
        let direct = OFlags::DIRECT.bits().cast_signed();
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let written = OpenOptions::new()
            .write(true)
            .custom_flags(direct)
            .open(path)
            .and_then(|file| file.write_all_at(zeros, offset));
        // Not every file system can.
        if written.is_err() {
            self.file.write_all_at(zeros, offset)?;
        }
        self.len.fetch_max(offset + len as u64, Ordering::AcqRel);
        Ok(())
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let end = offset.saturating_add(len as u64);
        let known = self.known_len(end)?;
        if end > known {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (from, to) = (size(offset)?, size(end)?);
        if let Some(bytes) = self.lend(from, to) {
            return Ok(bytes);
        }
        Ok(self.map(known)?.slice(from..to))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let zeros = vec![0; ZEROS];
        let mut at = self.file.metadata()?.len();
        while at < len {
            let piece = size((len - at).min(ZEROS as u64))?;
            self.file.write_all_at(&zeros[..piece], at)?;
            at += piece as u64;
        }
        self.len.fetch_max(len, Ordering::AcqRel);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn lent(&self) -> bool {
        let mut lending = self.lending.write();
        lending.current = None;
        lending.all.retain(|map| map.strong_count() > 0);
        !lending.all.is_empty()
    }
}

impl Clock for OsClock {
    fn wall(&self) -> UtcMillis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UtcMillis::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn monotonic(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        Duration::new(seconds, nanos)
    }
}

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            match rustix::rand::getrandom(&mut bytes[filled..], flags) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the kernel gives no randomness: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lends_bytes_that_outlive_growth_and_removal() {
        // The log keeps serving a record to a slow reader after its segment was purged.
        let dir = tempfile::tempdir().unwrap();
        let nested = dir.path().join("a/b");
        OsDisk.create_dir_all(&nested).unwrap();
        let path = nested.join("file");
        let file = OsDisk.open(&path, Open::Log).unwrap();
        assert!(file.is_empty().unwrap());
        assert!(!file.lent());
        file.write_at(0, b"hello").unwrap();
        let early = file.read_at(0, 5).unwrap();
        assert!(file.lent());
        file.write_at(5, &vec![7; 100_000]).unwrap();
        file.sync_data().unwrap();
        assert_eq!(file.read_at(100_000, 5).unwrap(), [7; 5].as_slice());
        assert_eq!(
            file.read_at(100_001, 5).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof,
            "never a read behind the end, which would be a signal"
        );
        OsDisk.remove(&path).unwrap();
        OsDisk.sync_dir(&nested).unwrap();
        drop(file);
        assert_eq!(early, b"hello".as_slice());
        assert!(!OsDisk.exists(&path));
        assert!(OsDisk.list(&nested).unwrap().is_empty());
    }

    #[test]
    fn zeros_past_the_page_cache_are_seen_by_reads_and_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsDisk.open(&dir.path().join("file"), Open::Log).unwrap();
        file.write_at(0, &[7; 3 * PAGE]).unwrap();
        assert_eq!(file.read_at(PAGE as u64, 2).unwrap(), [7; 2].as_slice());
        file.write_zeros(PAGE as u64, 4 * PAGE).unwrap();
        assert_eq!(file.len().unwrap(), 5 * PAGE as u64);
        assert_eq!(file.read_at(0, PAGE).unwrap(), [7; PAGE].as_slice());
        assert_eq!(file.read_at(PAGE as u64, 4 * PAGE).unwrap(), [0; 4 * PAGE].as_slice());
        file.write_at(PAGE as u64 + 1, b"x").unwrap();
        assert_eq!(file.read_at(PAGE as u64, 3).unwrap(), b"\0x\0".as_slice());
    }

    #[test]
    fn knows_when_nothing_is_lent_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsDisk.open(&dir.path().join("file"), Open::Log).unwrap();
        file.write_at(0, b"hello").unwrap();
        let lent = file.read_at(1, 2).unwrap();
        assert!(file.lent());
        drop(lent);
        assert!(!file.lent());
        assert_eq!(file.read_at(1, 2).unwrap(), b"el".as_slice());
    }

    #[test]
    fn derived_files_store_through_a_map_and_are_read_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("units");
        let file = OsDisk.open(&path, Open::Derived).unwrap();
        file.write_at(0, b"grown").unwrap();
        file.allocate(10_000).unwrap();
        assert_eq!(file.len().unwrap(), 10_000);
        file.write_at(9_995, b"hello").unwrap();
        file.sync_data().unwrap();
        assert_eq!(file.read_at(9_995, 5).unwrap(), b"hello".as_slice());
        let other = OsDisk.open(&path, Open::Read).unwrap();
        assert_eq!(other.read_at(0, 5).unwrap(), b"grown".as_slice());
        assert_eq!(other.read_at(9_995, 5).unwrap(), b"hello".as_slice());
        assert_eq!(&OsDisk.read(&path).unwrap()[9_995..], b"hello");
        assert!(other.write_at(0, b"x").is_err());
    }

    #[test]
    fn replaces_a_small_file_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vote");
        OsDisk.replace(&path, b"a longer first content").unwrap();
        OsDisk.replace(&path, b"short").unwrap();
        assert_eq!(OsDisk.read(&path).unwrap(), b"short".as_slice());
        assert_eq!(OsDisk.list(dir.path()).unwrap(), ["vote"]);
    }

    #[test]
    fn clocks_run_and_randomness_differs() {
        let clock = OsClock;
        assert!(clock.wall() > UtcMillis::new(1_600_000_000_000));
        let first = clock.monotonic();
        assert!(clock.monotonic() >= first);
        assert_ne!(OsEntropy.u64(), OsEntropy.u64());
    }
}
