//! A segment that takes no more frames.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::base::LogIndex;
use crate::commit_log::index_file::{self, Summary};
use crate::commit_log::segment::{self, Before, INDEX_SUFFIX, RunError, Segment, Table};
use crate::env::Disk;

#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) segment: Arc<Segment>,
    pub(super) summary: Summary,
    pub(super) index_path: PathBuf,
    table: RwLock<Option<Arc<Table>>>,
}

impl Sealed {
    /// With the offsets still in memory: the index file is not written yet.
    pub(super) fn fresh(dir: &Path, segment: Arc<Segment>, summary: Summary, table: Table) -> Self {
        assert_eq!(table.count(), summary.count as usize, "one offset for each frame");
        Self::new(dir, segment, summary, Some(table))
    }

    /// With a good index file on the disk.
    pub(super) fn stored(dir: &Path, segment: Arc<Segment>, summary: Summary) -> Self {
        Self::new(dir, segment, summary, None)
    }

    fn new(dir: &Path, segment: Arc<Segment>, summary: Summary, table: Option<Table>) -> Self {
        assert_eq!(segment.base, summary.base, "an index file describes its own segment");
        assert_eq!(segment.first, summary.first, "an index file describes its own segment");
        assert!(summary.count > 0, "a segment without frames is not kept");
        let index_path = segment::path_of(dir, segment.base, INDEX_SUFFIX);
        Self { segment, summary, index_path, table: RwLock::new(table.map(Arc::new)) }
    }

    /// The last frame's index.
    pub(super) fn last(&self) -> LogIndex {
        self.summary.first.plus(u64::from(self.summary.count) - 1)
    }

    /// The offsets, read when first used. Where the index file went bad they are found anew
    /// from the frames.
    pub(super) fn table(&self, disk: &dyn Disk) -> Result<Arc<Table>, RunError> {
        if let Some(table) = &*self.table.read() {
            return Ok(Arc::clone(table));
        }
        let io = |source| RunError::Io { path: self.index_path.clone(), source };
        let stored = index_file::table(disk, &self.index_path).map_err(io)?;
        let good = stored.filter(|table| table.count() == self.summary.count as usize);
        let table = match good {
            Some(table) => table,
            None => self.rebuild()?,
        };
        let table = Arc::new(table);
        *self.table.write() = Some(Arc::clone(&table));
        Ok(table)
    }

    fn rebuild(&self) -> Result<Table, RunError> {
        let first = self.segment.first;
        let len = usize::try_from(self.summary.len).expect("segments are below 4 GiB");
        let bytes = self.segment.bytes(0, len, first)?;
        let scan = segment::scan(&bytes, Before { next: Some(first), ..Before::default() });
        if let Some(reason) = scan.stopped {
            let index = first.plus(scan.table.count() as u64);
            return Err(RunError::Rot(self.segment.damage(index, scan.len, reason)));
        }
        Ok(scan.table)
    }

    /// The offsets, if no index file holds them yet.
    pub(super) fn unwritten(&self) -> Option<Arc<Table>> {
        let table = self.table.read();
        let in_memory = |table: &&Arc<Table>| matches!(***table, Table::Memory(_));
        table.as_ref().filter(in_memory).map(Arc::clone)
    }

    /// Lets go of the offsets in memory once an index file holds them.
    pub(super) fn written(&self) {
        *self.table.write() = None;
    }
}
