//! One file: entries in the order of their hashes, and a directory of buckets. The layout,
//! big-endian:
//!
//! | at | field |
//! |---|---|
//! | 0 | magic `RMQI` |
//! | 4 | format version, 1 |
//! | 5 | how many first bits of a hash name its bucket |
//! | 6 | how often its entries were merged |
//! | 7 | reserved, 0 |
//! | 8 | the log position from which the file is complete (u64) |
//! | 16 | the log position before which it is complete (u64) |
//! | 24 | the index of the log entry at that position (u64) |
//! | 32 | term and stamp of the log entry before it (2 × u64) |
//! | 48 | entries (u64) |
//! | 56 | CRC32C of the directory (u32) |
//! | 60 | CRC32C of the header before this (u32) |
//! | 64 | for each bucket the number of its first entry, and the CRC32C of its entries (2 × u32) |
//! | behind | entries of 41 bytes |
//!
//! Hashes are evenly spread, so that a bucket has about 32 entries, and a question reads two places
//! of a file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};

use super::Reached;
use super::entry::{ENTRY_BYTES, Entry};
use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::env::{Disk, File, Open};

const MAGIC: [u8; 4] = *b"RMQI";
const VERSION: u8 = 1;
const HEADER: usize = 64;
const HEADER_CRC_AT: usize = 60;
const BUCKET_BYTES: usize = 8;
/// Entries of a bucket, on average.
const BUCKET_ENTRIES: u64 = 32;
const BITS_MAX: u8 = 24;
/// Bytes that are handed to the disk at once …
const WRITE_STEP: usize = 1 << 20;
/// … and synced at once, so that no sync of another waits behind all of them.
const SYNC_STEP: u64 = 8 << 20;

pub(super) const FINISHED: &str = "index";
pub(super) const UNFINISHED: &str = "tmp";

/// Why a file is none that can be used.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("{} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{} cannot be read: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// What a file covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: LogPosition,
    pub(super) until: Reached,
    /// How often its entries were merged.
    pub(super) level: u8,
}

/// A whole file, open for reading.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) path: PathBuf,
    pub(super) span: Span,
    pub(super) entries: u64,
    bits: u8,
    file: Arc<dyn File>,
}

/// Names sort by where files begin.
pub(super) fn name_of(from: LogPosition, until: LogPosition) -> String {
    format!("{:020}-{:020}.{FINISHED}", from.get(), until.get())
}

fn bits_for(entries: u64) -> u8 {
    let buckets = entries.div_ceil(BUCKET_ENTRIES).max(1).next_power_of_two();
    u8::try_from(buckets.trailing_zeros()).unwrap_or(BITS_MAX).min(BITS_MAX)
}

fn bucket_of(bits: u8, hash: u64) -> usize {
    let shifted = hash.checked_shr(64 - u32::from(bits)).unwrap_or(0);
    usize::try_from(shifted).expect("24 bits fit a number of this machine")
}

impl Run {
    /// Opens a file and checks its header and its directory. Entries are checked when they are read.
    pub(super) fn open(disk: &dyn Disk, path: PathBuf) -> Result<Self, RunError> {
        let io = |source| RunError::Io { path: path.clone(), source };
        let damaged = |why: String| RunError::Damaged { path: path.clone(), why };
        let file = disk.open(&path, Open::Read).map_err(io)?;
        let len = file.len().map_err(io)?;
        if len < HEADER as u64 {
            return Err(damaged(format!("it has {len} bytes; its header alone has {HEADER}")));
        }
        let header = Header::decode(&file.read_at(0, HEADER).map_err(io)?).map_err(damaged)?;
        let directory = BUCKET_BYTES << header.bits;
        let expected = header.entries.checked_mul(ENTRY_BYTES as u64);
        let expected = expected.and_then(|bytes| bytes.checked_add((HEADER + directory) as u64));
        if expected != Some(len) {
            let entries = header.entries;
            return Err(damaged(format!(
                "it has {len} bytes, which {entries} entries do not give"
            )));
        }
        let bytes = file.read_at(HEADER as u64, directory).map_err(io)?;
        let crc = crc32c::crc32c(&bytes);
        if crc != header.directory_crc {
            let stored = header.directory_crc;
            return Err(damaged(format!(
                "the directory's checksum is {stored:#010x} and its bytes give {crc:#010x}"
            )));
        }
        Ok(Self { span: header.span, entries: header.entries, bits: header.bits, path, file })
    }

    pub(super) fn bytes(&self) -> u64 {
        (HEADER + (BUCKET_BYTES << self.bits)) as u64 + self.entries * ENTRY_BYTES as u64
    }

    pub(super) fn buckets(&self) -> usize {
        1 << self.bits
    }

    /// The entries of this hash, in the order of their places in the log.
    pub(super) fn find(&self, hash: u64) -> Result<Vec<Entry>, RunError> {
        let bytes = self.bucket(bucket_of(self.bits, hash))?;
        let wanted = hash.to_be_bytes();
        let mut found = Vec::new();
        for entry in bytes.chunks_exact(ENTRY_BYTES).filter(|entry| entry[..8] == wanted) {
            found.push(self.entry(entry)?);
        }
        Ok(found)
    }

    pub(super) fn entry(&self, bytes: &[u8]) -> Result<Entry, RunError> {
        Entry::read(bytes).ok_or_else(|| self.damaged("an entry is of an unknown kind".to_owned()))
    }

    /// The bytes of a bucket's entries, checked.
    pub(super) fn bucket(&self, number: usize) -> Result<Bytes, RunError> {
        let io = |source| RunError::Io { path: self.path.clone(), source };
        let last = number + 1 == self.buckets();
        let rows = if last { 1 } else { 2 };
        let at = (HEADER + number * BUCKET_BYTES) as u64;
        let mut row = self.file.read_at(at, rows * BUCKET_BYTES).map_err(io)?;
        let (start, crc) = (u64::from(row.get_u32()), row.get_u32());
        let end = if last { self.entries } else { u64::from(row.get_u32()) };
        if start > end || end > self.entries {
            let all = self.entries;
            return Err(self.damaged(format!("a bucket has entries {start} to {end} of {all}")));
        }
        let base = (HEADER + (BUCKET_BYTES << self.bits)) as u64;
        let len = usize::try_from((end - start) * ENTRY_BYTES as u64)
            .map_err(|_| self.damaged(format!("a bucket has entries {start} to {end}")))?;
        let bytes = self.file.read_at(base + start * ENTRY_BYTES as u64, len).map_err(io)?;
        let computed = crc32c::crc32c(&bytes);
        if computed != crc {
            return Err(self.damaged(format!(
                "the checksum of bucket {number} is {crc:#010x} and its bytes give {computed:#010x}"
            )));
        }
        Ok(bytes)
    }

    fn damaged(&self, why: String) -> RunError {
        RunError::Damaged { path: self.path.clone(), why }
    }
}

#[derive(Debug)]
struct Header {
    span: Span,
    bits: u8,
    entries: u64,
    directory_crc: u32,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let Span { from, until, level } = self.span;
        let mut out = Vec::with_capacity(HEADER);
        out.put_slice(&MAGIC);
        out.put_slice(&[VERSION, self.bits, level, 0]);
        out.put_u64(from.get());
        out.put_u64(until.position.get());
        out.put_u64(until.next.get());
        out.put_u64(until.term.get());
        out.put_u64(until.stamp.get());
        out.put_u64(self.entries);
        out.put_u32(self.directory_crc);
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        assert_eq!(out.len(), HEADER, "the header has its size");
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        assert_eq!(bytes.len(), HEADER, "so many were read");
        let (mut rest, mut stored) = bytes.split_at(HEADER_CRC_AT);
        if rest[..4] != MAGIC {
            return Err("its magic number is wrong".to_owned());
        }
        let (version, bits, level) = (rest[4], rest[5], rest[6]);
        if version != VERSION {
            return Err(format!("its format version is {version}; this program reads {VERSION}"));
        }
        let (stored, computed) = (stored.get_u32(), crc32c::crc32c(rest));
        if stored != computed {
            return Err(format!(
                "the header's checksum is {stored:#010x} and its bytes give {computed:#010x}"
            ));
        }
        if bits > BITS_MAX {
            return Err(format!("buckets are named by {bits} bits; {BITS_MAX} are possible"));
        }
        rest.advance(8);
        let from = LogPosition::new(rest.get_u64());
        let position = LogPosition::new(rest.get_u64());
        let next = LogIndex::new(rest.get_u64());
        let (term, stamp) = (Term::new(rest.get_u64()), UtcMillis::new(rest.get_u64()));
        let until = Reached { next, position, term, stamp };
        let (entries, directory_crc) = (rest.get_u64(), rest.get_u32());
        if from > position || entries > u64::from(u32::MAX) {
            return Err(format!("it claims {entries} entries from {from} to {position}"));
        }
        Ok(Self { span: Span { from, until, level }, bits, entries, directory_crc })
    }
}

/// Writes a file of at most so many entries, which come in their order; whole and durable at return.
pub(super) fn write(
    (disk, dir): (&dyn Disk, &Path),
    span: Span,
    at_most: u64,
    entries: impl Iterator<Item = Result<Entry, RunError>>,
) -> Result<Run, RunError> {
    let whole = dir.join(name_of(span.from, span.until.position));
    let unfinished = whole.with_extension(UNFINISHED);
    let io = |source| RunError::Io { path: unfinished.clone(), source };
    let write = || {
        if disk.exists(&unfinished) {
            disk.remove(&unfinished).map_err(io)?;
        }
        let file = disk.open(&unfinished, Open::Log).map_err(io)?;
        let mut writer = Writer::new(&*file, bits_for(at_most));
        for entry in entries {
            writer.push(&entry?).map_err(io)?;
        }
        writer.finish(span).map_err(io)
    };
    if let Err(error) = write() {
        // On a full disk a part of a file is in the way; what stays is removed by the next start.
        drop(disk.remove(&unfinished));
        return Err(error);
    }
    disk.rename(&unfinished, &whole).and_then(|()| disk.sync_dir(dir)).map_err(io)?;
    Run::open(disk, whole)
}

struct Writer<'a> {
    file: &'a dyn File,
    bits: u8,
    /// The first entry of each bucket up to the one that is being filled, and its checksum.
    buckets: Vec<(u32, u32)>,
    entries: u32,
    /// What was not handed to the disk yet.
    pending: Vec<u8>,
    at: u64,
    synced: u64,
}

impl<'a> Writer<'a> {
    fn new(file: &'a dyn File, bits: u8) -> Self {
        let at = (HEADER + (BUCKET_BYTES << bits)) as u64;
        let (buckets, pending) = (Vec::with_capacity(1 << bits), Vec::new());
        Self { file, bits, buckets, entries: 0, pending, at, synced: at }
    }

    fn push(&mut self, entry: &Entry) -> io::Result<()> {
        let bucket = bucket_of(self.bits, entry.hash);
        while self.buckets.len() <= bucket {
            self.buckets.push((self.entries, 0));
        }
        let from = self.pending.len();
        entry.write(&mut self.pending);
        let crc = &mut self.buckets[bucket].1;
        *crc = crc32c::crc32c_append(*crc, &self.pending[from..]);
        self.entries = self.entries.checked_add(1).ok_or(io::ErrorKind::FileTooLarge)?;
        if self.pending.len() >= WRITE_STEP { self.hand_over() } else { Ok(()) }
    }

    fn hand_over(&mut self) -> io::Result<()> {
        self.file.write_at(self.at, &self.pending)?;
        self.at += self.pending.len() as u64;
        self.pending.clear();
        if self.at - self.synced >= SYNC_STEP {
            self.file.sync_data()?;
            self.synced = self.at;
        }
        Ok(())
    }

    fn finish(mut self, span: Span) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.hand_over()?;
        }
        self.buckets.resize(1 << self.bits, (self.entries, 0));
        let mut directory = Vec::with_capacity(BUCKET_BYTES << self.bits);
        for (start, crc) in &self.buckets {
            directory.put_u32(*start);
            directory.put_u32(*crc);
        }
        let header = Header {
            span,
            bits: self.bits,
            entries: self.entries.into(),
            directory_crc: crc32c::crc32c(&directory),
        };
        self.file.write_at(HEADER as u64, &directory)?;
        self.file.write_at(0, &header.encode())?;
        self.file.sync_data()
    }
}
