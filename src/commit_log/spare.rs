//! The file that the next segment will be: ready before it is needed. Whoever touches the name
//! of the ready spare holds the lock on it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commit_log::segment::Segment;
use crate::env::{Disk, File, Open};

/// A file of full size whose bytes are zero or frames that were purged.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn File>,
}

/// A spare on its way.
#[derive(Debug)]
pub(super) struct Filling {
    path: PathBuf,
    file: Arc<dyn File>,
    filled: u64,
}

const READY_NAME: &str = "ready.spare";
const FILLING_NAME: &str = "filling.spare";
/// One piece; small, so that no sync of the log waits long behind it.
const ZEROS: usize = 256 << 10;
const PAGE: usize = 4096;
/// Filled bytes are synced so often.
const SYNC_STEP: u64 = 8 << 20;

impl Spare {
    /// Removes the ready spare.
    pub(super) fn forget(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let path = dir.join(READY_NAME);
        if disk.exists(&path) { disk.remove(&path) } else { Ok(()) }
    }

    /// Keeps a purged segment's file as the spare; gives its path back when there is one already.
    pub(super) fn keep(
        ready: &mut Option<Self>,
        disk: &dyn Disk,
        dir: &Path,
        segment: Segment,
    ) -> io::Result<Option<PathBuf>> {
        if ready.is_some() {
            return Ok(Some(segment.path));
        }
        let path = dir.join(READY_NAME);
        disk.rename(&segment.path, &path)?;
        // Opened again: the segment may have been open for reading only.
        drop(segment);
        let file = disk.open(&path, Open::Log)?;
        *ready = Some(Self { path, file });
        Ok(None)
    }
}

impl Filling {
    /// Takes over what an earlier run left. A spare that was ready is not trusted: its power may
    /// have gone after frames were written into it but before its new name was durable. So it
    /// counts as one to be filled, which leaves what is zero alone.
    pub(super) fn recover(disk: &dyn Disk, dir: &Path, wanted: bool) -> io::Result<Option<Self>> {
        let (ready, path) = (dir.join(READY_NAME), dir.join(FILLING_NAME));
        if disk.exists(&path) {
            disk.remove(&path)?;
        }
        if !disk.exists(&ready) {
            return Ok(None);
        }
        if !wanted {
            disk.remove(&ready)?;
            return Ok(None);
        }
        disk.rename(&ready, &path)?;
        let file = disk.open(&path, Open::Log)?;
        Ok(Some(Self { path, file, filled: 0 }))
    }

    pub(super) fn start(disk: &dyn Disk, dir: &Path) -> io::Result<Self> {
        let path = dir.join(FILLING_NAME);
        if disk.exists(&path) {
            disk.remove(&path)?;
        }
        let file = disk.open(&path, Open::Log)?;
        Ok(Self { path, file, filled: 0 })
    }

    /// Writes the next zeros; true when all `bytes` are there, durably.
    pub(super) fn fill(&mut self, bytes: u64) -> io::Result<bool> {
        assert!(self.filled < bytes, "a whole spare is not filled further");
        let piece = (bytes - self.filled).min(ZEROS as u64);
        let len = usize::try_from(piece).expect("a piece is at most ZEROS");
        if !self.is_zero(len)? {
            if len.is_multiple_of(PAGE) {
                self.file.write_zeros(self.filled, len)?;
            } else {
                self.file.write_at(self.filled, &vec![0; len])?;
            }
        }
        self.filled += piece;
        let whole = self.filled == bytes;
        if whole || self.filled.is_multiple_of(SYNC_STEP) {
            self.file.sync_data()?;
        }
        Ok(whole)
    }

    fn is_zero(&self, len: usize) -> io::Result<bool> {
        if self.filled + len as u64 > self.file.len()? {
            return Ok(false);
        }
        let bytes = self.file.read_at(self.filled, len)?;
        Ok(bytes.iter().all(|byte| *byte == 0))
    }

    /// Makes it the ready spare, unless a purged segment took that place meanwhile.
    pub(super) fn finish(
        self,
        ready: &mut Option<Spare>,
        disk: &dyn Disk,
        dir: &Path,
    ) -> io::Result<()> {
        if ready.is_some() {
            return disk.remove(&self.path);
        }
        let path = dir.join(READY_NAME);
        disk.rename(&self.path, &path)?;
        *ready = Some(Spare { path, file: self.file });
        Ok(())
    }
}
