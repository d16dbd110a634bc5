//! Where queue units live: fixed extents in shared files.
//!
//! An extent is 128 units of 32 bytes, 4 KiB. A queue gets one when it needs one, so a hundred
//! thousand idle queues cost no file and no handle. Files are fully allocated when they are made,
//! because a full disk under a writable map is a signal and not an error (rule R17). Extent
//! numbers are this replica's own affair: they are stored, but outside the state hash.
//!
//! Files belong to a generation. A state that does not continue what lies on the disk (a peer's,
//! or an empty one) begins a new generation, so that nothing old can be taken for its own.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

use super::error::CheckpointError;
use crate::env::{Disk, File, Open};

/// Bytes of one unit on disk; see [`crate::command::Unit`].
pub(super) const UNIT_BYTES: usize = 32;
/// Units of one extent.
pub(super) const EXTENT_UNITS: u64 = 128;
const EXTENT_BYTES: u64 = EXTENT_UNITS * UNIT_BYTES as u64;
const PREFIX: &str = "units-";

const _: () = assert!(EXTENT_BYTES == 4096);

/// An extent of this generation.
pub(super) type ExtentNumber = u32;

/// What a checkpoint says of the files: enough to find every extent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) generation: u64,
    /// Extents of one file; fixed for a generation.
    pub(super) per_file: u32,
    /// Extents that were ever handed out: 0..high.
    pub(super) high: ExtentNumber,
}

/// Freezes and publications of checkpoints, counted; shared with the checkpoints under way.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    pub(super) frozen: AtomicU64,
    pub(super) published: AtomicU64,
}

/// One file of extents, and whether bytes were written since its last sync.
#[derive(Debug)]
pub(super) struct ExtentFile {
    file: Arc<dyn File>,
    dirty: AtomicBool,
}

impl ExtentFile {
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Makes everything written before this call durable. After an error the node ends.
    pub(super) fn sync(&self) -> io::Result<()> {
        if self.dirty.swap(false, Ordering::AcqRel) { self.file.sync_data() } else { Ok(()) }
    }
}

pub(super) struct Extents {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    layout: Layout,
    files: Vec<Arc<ExtentFile>>,
    free: BTreeSet<ExtentNumber>,
    /// Given back since some checkpoint that may still name them: (freezes until then, extent).
    resting: VecDeque<(u64, ExtentNumber)>,
    rounds: Arc<Rounds>,
}

impl fmt::Debug for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extents").field("layout", &self.layout).finish_non_exhaustive()
    }
}

/// The generation of a file name that this module gave, `None` for any other file.
pub(super) fn generation_of(name: &str) -> Option<u64> {
    let (generation, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u32>().ok()?;
    generation.parse().ok()
}

fn file_name(generation: u64, number: usize) -> String {
    format!("{PREFIX}{generation:08}-{number:08}")
}

impl Extents {
    /// A new generation without any extent.
    pub(super) fn new(disk: Arc<dyn Disk>, dir: &Path, generation: u64, per_file: u32) -> Self {
        assert!(per_file > 0, "a file without extents");
        Self {
            disk,
            dir: dir.to_owned(),
            layout: Layout { generation, per_file, high: 0 },
            files: Vec::new(),
            free: BTreeSet::new(),
            resting: VecDeque::new(),
            rounds: Arc::default(),
        }
    }

    /// Opens the files that a checkpoint counts on. All extents start free; the queues then claim
    /// theirs.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        layout: Layout,
    ) -> Result<Self, CheckpointError> {
        if layout.per_file == 0 {
            return Err(CheckpointError::Contradiction { what: "files without extents" });
        }
        let mut extents = Self::new(disk, dir, layout.generation, layout.per_file);
        extents.layout.high = layout.high;
        extents.free = (0..layout.high).collect();
        let count = layout.high.div_ceil(layout.per_file) as usize;
        for number in 0..count {
            let file = file_name(layout.generation, number);
            let path = dir.join(&file);
            if !extents.disk.exists(&path) {
                return Err(CheckpointError::Units { file, why: "is missing".to_owned() });
            }
            let opened = extents.disk.open(&path, Open::Derived)?;
            let (len, needed) = (opened.len()?, extents.file_bytes());
            if len < needed {
                let why = format!("has {len} bytes, not {needed}");
                return Err(CheckpointError::Units { file, why });
            }
            extents
                .files
                .push(Arc::new(ExtentFile { file: opened, dirty: AtomicBool::new(false) }));
        }
        Ok(extents)
    }

    /// Takes an extent that a checkpoint gives to a queue; false when it is not free.
    pub(super) fn claim(&mut self, extent: ExtentNumber) -> bool {
        self.free.remove(&extent)
    }

    /// An extent for a queue. What it holds is undefined until written.
    pub(super) fn allocate(&mut self) -> io::Result<ExtentNumber> {
        self.wake();
        if let Some(extent) = self.free.pop_first() {
            return Ok(extent);
        }
        let extent = self.layout.high;
        self.layout.high = extent.checked_add(1).expect("2^32 extents are 2^39 units");
        if extent as usize / self.layout.per_file as usize == self.files.len() {
            self.add_file()?;
        }
        Ok(extent)
    }

    /// Gives extents back. They rest until a checkpoint that no longer names them is published:
    /// a start from the one before must still find their units.
    pub(super) fn free(&mut self, extents: &[ExtentNumber]) {
        let round = self.rounds.frozen.load(Ordering::Acquire);
        self.resting.extend(extents.iter().map(|extent| (round, *extent)));
    }

    fn wake(&mut self) {
        let published = self.rounds.published.load(Ordering::Acquire);
        while let Some((_, extent)) = self.resting.pop_front_if(|(round, _)| *round < published) {
            let fresh = self.free.insert(extent);
            assert!(fresh, "extent {extent} was freed twice");
        }
    }

    fn add_file(&mut self) -> io::Result<()> {
        let path = self.dir.join(file_name(self.layout.generation, self.files.len()));
        let file = self.disk.open(&path, Open::Derived)?;
        file.allocate(self.file_bytes())?;
        // Dirty from birth: its length and its name have to be durable before a checkpoint
        // counts on it.
        self.files.push(Arc::new(ExtentFile { file, dirty: AtomicBool::new(true) }));
        Ok(())
    }

    fn file_bytes(&self) -> u64 {
        u64::from(self.layout.per_file) * EXTENT_BYTES
    }

    fn place(&self, extent: ExtentNumber, slot: u64) -> (&ExtentFile, u64) {
        assert!(extent < self.layout.high, "extent {extent} was never handed out");
        assert!(slot < EXTENT_UNITS, "slot {slot} lies outside an extent");
        let file = &self.files[(extent / self.layout.per_file) as usize];
        let in_file = u64::from(extent % self.layout.per_file);
        (file, in_file * EXTENT_BYTES + slot * UNIT_BYTES as u64)
    }

    /// Writes whole units from `slot` on; they must fit the extent.
    pub(super) fn write(&self, extent: ExtentNumber, slot: u64, units: &[u8]) -> io::Result<()> {
        assert!(units.len().is_multiple_of(UNIT_BYTES), "half a unit");
        assert!(slot * UNIT_BYTES as u64 + units.len() as u64 <= EXTENT_BYTES, "beyond the extent");
        let (file, at) = self.place(extent, slot);
        file.file.write_at(at, units)?;
        file.dirty.store(true, Ordering::Release);
        Ok(())
    }

    /// Reads `count` units from `slot` on. Never called by apply (rule R1).
    pub(super) fn read(&self, extent: ExtentNumber, slot: u64, count: usize) -> io::Result<Bytes> {
        let (file, at) = self.place(extent, slot);
        file.file.read_at(at, count * UNIT_BYTES)
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn rounds(&self) -> &Arc<Rounds> {
        &self.rounds
    }

    /// The files with unsynced bytes.
    pub(super) fn dirty_files(&self) -> Vec<Arc<ExtentFile>> {
        self.files.iter().filter(|file| file.is_dirty()).cloned().collect()
    }
}
