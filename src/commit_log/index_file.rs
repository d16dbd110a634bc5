//! What is known of a sealed segment, so that recovery need not scan it. Big-endian:
//!
//! | at | field |
//! |---|---|
//! | 0 | magic `RMQX` |
//! | 4 | format version, 1 |
//! | 5 | 1 if the segment was cut: bytes behind its end are not its own |
//! | 6 | reserved (u16) |
//! | 8 | base position (u64) |
//! | 16 | index of the first frame (u64) |
//! | 24 | number of frames (u32) |
//! | 28 | number of terms (u32) |
//! | 32 | bytes of frames (u64) |
//! | 40 | stamp of the last frame (u64) |
//! | 48 | CRC32C of the offsets (u32) |
//! | 52 | for each term: first index, term (u64, u64) |
//! | … | CRC32C of all before (u32) |
//! | … | for each frame: its offset in the segment (u32) |
//!
//! The head is checked when the log is opened, the offsets when they are first used.

use std::io;
use std::path::Path;

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::commit_log::segment::Table;
use crate::env::{Disk, File, Open};

const MAGIC: [u8; 4] = *b"RMQX";
const VERSION: u8 = 1;
const FIXED: usize = 52;
const TERM: usize = 16;
const CHECKSUM: usize = 4;
const OFFSET: usize = 4;

/// What a sealed segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) base: LogPosition,
    pub(super) first: LogIndex,
    pub(super) count: u32,
    pub(super) len: u64,
    pub(super) cut: bool,
    pub(super) stamp: UtcMillis,
    pub(super) terms: Vec<(LogIndex, Term)>,
}

impl Summary {
    pub(super) fn next(&self) -> LogIndex {
        self.first.plus(u64::from(self.count))
    }

    pub(super) fn end(&self) -> LogPosition {
        self.base.plus(self.len)
    }

    pub(super) fn last_term(&self) -> Term {
        self.terms.last().map(|(_, term)| *term).unwrap_or_default()
    }

    fn head(&self, offsets_crc: u32) -> Vec<u8> {
        let terms = u32::try_from(self.terms.len()).expect("there are fewer terms than frames");
        let mut head = Vec::with_capacity(FIXED + self.terms.len() * TERM + CHECKSUM);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&[VERSION, u8::from(self.cut), 0, 0]);
        head.extend_from_slice(&self.base.get().to_be_bytes());
        head.extend_from_slice(&self.first.get().to_be_bytes());
        head.extend_from_slice(&self.count.to_be_bytes());
        head.extend_from_slice(&terms.to_be_bytes());
        head.extend_from_slice(&self.len.to_be_bytes());
        head.extend_from_slice(&self.stamp.get().to_be_bytes());
        head.extend_from_slice(&offsets_crc.to_be_bytes());
        for (index, term) in &self.terms {
            head.extend_from_slice(&index.get().to_be_bytes());
            head.extend_from_slice(&term.get().to_be_bytes());
        }
        let crc = crc32c::crc32c(&head);
        head.extend_from_slice(&crc.to_be_bytes());
        head
    }
}

/// Writes the index file of a segment; durable at return.
pub(super) fn save(
    disk: &dyn Disk,
    path: &Path,
    summary: &Summary,
    table: &Table,
) -> io::Result<()> {
    assert!(summary.count > 0, "a sealed segment holds frames");
    let count = summary.count as usize;
    assert!(count <= table.count(), "{count} frames, {} offsets", table.count());
    let mut offsets = Vec::with_capacity(count * OFFSET);
    for number in 0..count {
        let offset = table.offset(number).expect("the count was compared above");
        let offset = u32::try_from(offset).expect("segments are below 4 GiB");
        offsets.extend_from_slice(&offset.to_be_bytes());
    }
    let mut bytes = summary.head(crc32c::crc32c(&offsets));
    bytes.extend_from_slice(&offsets);
    disk.replace(path, &bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_be_bytes(*field))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|field| u64::from_be_bytes(*field))
}

fn head_len(terms: u32) -> usize {
    FIXED + terms as usize * TERM + CHECKSUM
}

/// The summary and the CRC of the offsets; `None` for bytes that are not a whole good head.
fn parse(fixed: &[u8], file: &dyn File) -> Option<(Summary, u32)> {
    if fixed.get(..4)? != MAGIC || fixed.get(4..5)? != [VERSION] {
        return None;
    }
    let terms = u32_at(fixed, 28)?;
    let count = u32_at(fixed, 24)?;
    if terms > count || count == 0 {
        return None;
    }
    let head = file.read_at(0, head_len(terms)).ok()?;
    let (content, crc) = head.split_at(head.len() - CHECKSUM);
    if crc32c::crc32c(content).to_be_bytes() != crc {
        return None;
    }
    let runs = (0..terms as usize).map(|number| {
        let at = FIXED + number * TERM;
        Some((LogIndex::new(u64_at(content, at)?), Term::new(u64_at(content, at + 8)?)))
    });
    let summary = Summary {
        base: LogPosition::new(u64_at(content, 8)?),
        first: LogIndex::new(u64_at(content, 16)?),
        count,
        len: u64_at(content, 32)?,
        cut: content[5] != 0,
        stamp: UtcMillis::new(u64_at(content, 40)?),
        terms: runs.collect::<Option<_>>()?,
    };
    Some((summary, u32_at(content, 48)?))
}

/// The head of an index file. `None` when there is no such file or it is not a good one.
pub(super) fn load(disk: &dyn Disk, path: &Path) -> io::Result<Option<Summary>> {
    let Some(file) = open(disk, path)? else { return Ok(None) };
    let Ok(fixed) = file.read_at(0, FIXED) else { return Ok(None) };
    Ok(parse(&fixed, &*file).map(|(summary, _)| summary))
}

/// The offsets, lent from the file. `None` when they cannot be trusted.
pub(super) fn table(disk: &dyn Disk, path: &Path) -> io::Result<Option<Table>> {
    let Some(file) = open(disk, path)? else { return Ok(None) };
    let Ok(fixed) = file.read_at(0, FIXED) else { return Ok(None) };
    let Some((summary, crc)) = parse(&fixed, &*file) else { return Ok(None) };
    let from = head_len(u32::try_from(summary.terms.len()).unwrap_or(u32::MAX)) as u64;
    let Ok(offsets) = file.read_at(from, summary.count as usize * OFFSET) else { return Ok(None) };
    Ok((crc32c::crc32c(&offsets) == crc).then_some(Table::Lent(offsets)))
}

fn open(disk: &dyn Disk, path: &Path) -> io::Result<Option<std::sync::Arc<dyn File>>> {
    match disk.open(path, Open::Read) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::sim::SimDisk;

    #[test]
    fn golden_bytes_and_every_flipped_bit_is_found() {
        let disk = SimDisk::new();
        let dir = Path::new("/log");
        disk.create_dir_all(dir).unwrap();
        let path = dir.join("x.idx");
        assert_eq!(load(&disk, &path).unwrap(), None);
        let summary = Summary {
            base: LogPosition::new(1_000),
            first: LogIndex::new(7),
            count: 3,
            len: 300,
            cut: true,
            stamp: UtcMillis::new(99),
            terms: vec![(LogIndex::new(7), Term::new(1)), (LogIndex::new(9), Term::new(4))],
        };
        save(&disk, &path, &summary, &Table::Memory(vec![0, 100, 200])).unwrap();
        let bytes = disk.read(&path).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "524d51580101000000000000000003e800000000000000070000000300000002\
             000000000000012c0000000000000063ae88aa1f000000000000000700000000\
             00000001000000000000000900000000000000041a2a0d0d0000000000000064\
             000000c8"
        );
        assert_eq!(load(&disk, &path).unwrap(), Some(summary));
        let offsets = table(&disk, &path).unwrap().unwrap();
        assert_eq!((offsets.count(), offsets.offset(2)), (3, Some(200)));
        for byte in 0..bytes.len() {
            disk.flip_bit(&path, byte, 2);
            assert!(table(&disk, &path).unwrap().is_none(), "byte {byte}");
            disk.flip_bit(&path, byte, 2);
        }
    }
}
