//! What was dropped from the front, and what an emptied log goes on from.

use std::io;
use std::path::Path;

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::commit_log::small_file::{self, Fields, SmallFileError};
use crate::env::Disk;

const NAME: &str = "purged";
const RESTART_NAME: &str = "restart";
const MAGIC: [u8; 4] = *b"RMQP";
const RESTART_MAGIC: [u8; 4] = *b"RMQR";
const PAYLOAD: usize = 32;

/// The last entry that is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Purged {
    pub(super) index: LogIndex,
    pub(super) term: Term,
    /// Where that entry ended, so where the log starts.
    pub(super) end: LogPosition,
    /// Its stamp: later ones are not below it, even when nothing else is left.
    pub(super) stamp: UtcMillis,
}

impl Purged {
    fn payload(&self) -> [u8; PAYLOAD] {
        let mut payload = [0; PAYLOAD];
        payload[..8].copy_from_slice(&self.index.get().to_be_bytes());
        payload[8..16].copy_from_slice(&self.term.get().to_be_bytes());
        payload[16..24].copy_from_slice(&self.end.get().to_be_bytes());
        payload[24..].copy_from_slice(&self.stamp.get().to_be_bytes());
        payload
    }

    fn from_payload(payload: &[u8; PAYLOAD]) -> Self {
        let mut fields = Fields(payload);
        Self {
            index: LogIndex::new(fields.u64()),
            term: Term::new(fields.u64()),
            end: LogPosition::new(fields.u64()),
            stamp: UtcMillis::new(fields.u64()),
        }
    }

    /// Durable at return.
    pub(super) fn save(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        small_file::replace(disk, &dir.join(NAME), &small_file::encode(MAGIC, &self.payload()))
    }

    /// Before the disk can be full.
    pub(super) fn prepare(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        small_file::prepare(disk, &dir.join(NAME))
    }

    pub(super) fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, SmallFileError> {
        let payload = small_file::load(disk, &dir.join(NAME), MAGIC)?;
        Ok(payload.as_ref().map(Self::from_payload))
    }

    /// Durable at return: from here on the old log is void, whatever is left of it.
    pub(super) fn announce_restart(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        disk.replace(&dir.join(RESTART_NAME), &small_file::encode(RESTART_MAGIC, &self.payload()))
    }

    /// An announced restart that may not have been carried out whole.
    pub(super) fn announced(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, SmallFileError> {
        let payload = small_file::load(disk, &dir.join(RESTART_NAME), RESTART_MAGIC)?;
        Ok(payload.as_ref().map(Self::from_payload))
    }

    pub(super) fn restart_is_done(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        disk.remove(&dir.join(RESTART_NAME))?;
        disk.sync_dir(dir)
    }
}
