//! A lower bound of how far the log once was durable, or committed (rule R15).
//!
//! Written into the page cache after each sync, never waited for. Two slots in two pages take
//! turns, so that a torn write leaves the one before it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::base::{LogIndex, Term};
use crate::commit_log::small_file::{self, Fields};
use crate::env::{Disk, File, Open};

pub(super) const FLUSHED: &str = "flushed";
pub(super) const COMMITTED: &str = "committed";
const MAGIC: [u8; 4] = *b"RMQM";
const PAYLOAD: usize = 25;
const SLOT: u64 = 4096;
const SLOTS: u64 = 2;

/// An entry that the log once reached.
pub(super) type Mark = (LogIndex, Term);

/// A file with the newest mark. One writer at a time.
#[derive(Debug)]
pub(super) struct MarkFile {
    file: Arc<dyn File>,
    sequence: u64,
    mark: Option<Mark>,
}

fn slot(file: &dyn File, number: u64) -> io::Result<Option<(u64, Option<Mark>)>> {
    let len = 12 + PAYLOAD;
    let bytes = match file.read_at(number * SLOT, len) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(payload) = small_file::decode::<PAYLOAD>(MAGIC, &bytes) else { return Ok(None) };
    let mut fields = Fields(&payload);
    let sequence = fields.u64();
    let some = fields.u8() != 0;
    let mark = (LogIndex::new(fields.u64()), Term::new(fields.u64()));
    Ok(Some((sequence, some.then_some(mark))))
}

fn newest(file: &dyn File) -> io::Result<(u64, Option<Mark>)> {
    let mut best = (0, None);
    for number in 0..SLOTS {
        if let Some(found) = slot(file, number)?.filter(|found| found.0 > best.0) {
            best = found;
        }
    }
    Ok(best)
}

impl MarkFile {
    /// Opens the file, made when absent; a slot that is damaged counts as never written.
    pub(super) fn open(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let file = disk.open(path, Open::Log)?;
        file.allocate(SLOT * SLOTS)?;
        let (sequence, mark) = newest(&*file)?;
        Ok(Self { file, sequence, mark })
    }

    /// The mark of a log that is only looked at.
    pub(super) fn peek(disk: &dyn Disk, path: &Path) -> io::Result<Option<Mark>> {
        match disk.open(path, Open::Read) {
            Ok(file) => Ok(newest(&*file)?.1),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn get(&self) -> Option<Mark> {
        self.mark
    }

    /// Notes a mark without waiting for the disk.
    pub(super) fn set(&mut self, mark: Option<Mark>) -> io::Result<()> {
        let (index, term) = mark.unwrap_or_default();
        let sequence = self.sequence + 1;
        let mut payload = [0; PAYLOAD];
        payload[..8].copy_from_slice(&sequence.to_be_bytes());
        payload[8] = u8::from(mark.is_some());
        payload[9..17].copy_from_slice(&index.get().to_be_bytes());
        payload[17..].copy_from_slice(&term.get().to_be_bytes());
        let record = small_file::encode(MAGIC, &payload);
        self.file.write_at(sequence % SLOTS * SLOT, &record)?;
        self.sequence = sequence;
        self.mark = mark;
        Ok(())
    }

    /// Before the log gets shorter its mark is lowered, durably and in both slots: else a later
    /// torn write of one slot would bring back what the other one still says.
    pub(super) fn lower(&mut self, mark: Option<Mark>) -> io::Result<()> {
        for _ in 0..SLOTS {
            self.set(mark)?;
        }
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::sim::SimDisk;

    #[test]
    fn a_torn_mark_leaves_an_older_one_and_a_lowered_one_stays_low() {
        let mark = |index| Some((LogIndex::new(index), Term::new(1)));
        for seed in 0..200 {
            let disk = SimDisk::new();
            let dir = Path::new("/node");
            disk.create_dir_all(dir).unwrap();
            let path = dir.join(FLUSHED);
            let mut file = MarkFile::open(&disk, &path).unwrap();
            assert_eq!(file.get(), None);
            disk.sync_dir(dir).unwrap();
            file.lower(mark(100)).unwrap();
            for index in 101..110 {
                file.set(mark(index)).unwrap();
            }
            disk.power_cut(seed);
            let mut file = MarkFile::open(&disk, &path).unwrap();
            assert!(file.get() >= mark(100) && file.get() <= mark(109), "{:?}", file.get());
            file.lower(mark(50)).unwrap();
            file.set(mark(51)).unwrap();
            disk.power_cut(seed + 1);
            let file = MarkFile::open(&disk, &path).unwrap();
            assert!(file.get() == mark(50) || file.get() == mark(51), "{:?}", file.get());
            assert_eq!(MarkFile::peek(&disk, &path).unwrap(), file.get());
        }
    }
}
