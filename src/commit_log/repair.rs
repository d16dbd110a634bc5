//! What a damaged log needs from its peers, and how it is put back (rule R16).
//!
//! ```text
//!   damaged    rot was found while the log ran: look at everything before it runs again
//!   refill     the log's end is being fetched: what is there may end below what was once durable
//! ```
//! Frames before and behind a hole in the middle stay where they are; since positions are dense, what
//! is fetched has to fill the hole exactly. A lost end is cut, and the log goes on from there with
//! fetched frames; until it reaches as far as it was ever acknowledged the log is not opened.

use std::io;
use std::path::Path;

use bytes::BytesMut;

use crate::base::{LogIndex, LogPosition};
use crate::commit_log::error::OpenError;
use crate::commit_log::flushed_mark::{COMMITTED, FLUSHED, MarkFile};
use crate::commit_log::purged::Purged;
use crate::commit_log::segment::{Before, INDEX_SUFFIX, LOG_SUFFIX, base_of, path_of, scan};
use crate::commit_log::small_file;
use crate::commit_log::{Damage, Frame, FrameError, Seal};
use crate::env::{Disk, Open};

const DAMAGED: &str = "damaged";
const REFILL: &str = "refill";
const MAGIC: [u8; 4] = *b"RMQH";

/// Entries that are missing.
#[derive(Clone, Debug)]
pub struct Hole {
    pub from: LogIndex,
    /// The last one, or `None` for all that the log once had behind.
    pub through: Option<LogIndex>,
    /// What was found there.
    pub damage: Damage,
    base: LogPosition,
    /// Bytes of good frames before the hole in its segment, and where the segment ends.
    good: u64,
    end: u64,
    before: Before,
}

/// Why fetched frames do not fit.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    #[error("entry {found} was fetched where {expected} is due")]
    Index { expected: LogIndex, found: LogIndex },
    #[error("what was fetched does not follow the entry before it: {0}")]
    Follows(FrameError),
    #[error("{found} bytes were fetched for a hole of {expected}: peers have another log")]
    Length { expected: u64, found: u64 },
    #[error("an entry was fetched without its checksum")]
    Unsealed,
    #[error("writing what was fetched failed: {0}")]
    Io(#[from] io::Error),
}

/// Whether the log says of itself that it must be looked at, or filled, before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubts {
    pub(super) damaged: bool,
    pub(super) refill: bool,
}

impl Doubts {
    pub(super) fn of(disk: &dyn Disk, dir: &Path) -> Self {
        let exists = |name| disk.exists(&dir.join(name));
        Self { damaged: exists(DAMAGED), refill: exists(REFILL) }
    }
}

fn mark(disk: &dyn Disk, dir: &Path, name: &str) -> io::Result<()> {
    small_file::replace(disk, &dir.join(name), &small_file::encode(MAGIC, &[]))
}

fn unmark(disk: &dyn Disk, dir: &Path, name: &str) -> io::Result<()> {
    let path = dir.join(name);
    if disk.exists(&path) {
        disk.remove(&path)?;
        disk.sync_dir(dir)?;
    }
    Ok(())
}

/// Rot was found: the next start looks at everything. A log that cannot be written to is found out
/// again by the one who finds it next.
pub(super) fn note_damage(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    mark(disk, dir, DAMAGED)
}

/// The log is whole.
pub fn note_whole(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    unmark(disk, dir, DAMAGED)?;
    unmark(disk, dir, REFILL)
}

/// Checks every frame; `None` for a log that can be opened. Changes nothing.
pub fn survey(disk: &dyn Disk, dir: &Path) -> Result<Option<Hole>, OpenError> {
    let at = |what: &'static str, path: &Path| {
        let path = path.to_path_buf();
        move |source| OpenError::Io { what, path, source }
    };
    let purged = Purged::load(disk, dir)?;
    let peek = |name| MarkFile::peek(disk, &dir.join(name));
    let floor = peek(FLUSHED).and_then(|flushed| Ok(flushed.max(peek(COMMITTED)?)));
    let floor = floor.map_err(at("reading the marks", dir))?;
    let committed = peek(COMMITTED).map_err(at("reading the marks", dir))?;
    let names = disk.list(dir).map_err(at("listing the log", dir))?;
    let mut bases: Vec<_> = names.iter().filter_map(|name| base_of(name, LOG_SUFFIX)).collect();
    bases.sort_unstable();
    let start = purged.map(|purged| purged.end).unwrap_or_default();
    let follows = |purged: Purged| Before {
        next: Some(purged.index.next()),
        term: purged.term,
        stamp: purged.stamp,
    };
    let beginning = Before { next: Some(LogIndex::ZERO), ..Before::default() };
    let mut before = purged.map_or(beginning, follows);
    let first = bases.partition_point(|base| *base <= start).saturating_sub(1);
    if bases.get(first).is_none_or(|base| *base > start) {
        // The file that the log begins in is gone.
        let from = before.next.unwrap_or_default();
        if floor.is_none_or(|(floor, _)| floor < from) {
            return Ok(None);
        }
        let segment = path_of(dir, start, LOG_SUFFIX);
        let reason = FrameError::Missing { len: 0, expected: 1 };
        let damage = Damage { segment, index: from, position: start, reason };
        let (base, good, end) = (start, 0, 0);
        return Ok(Some(Hole { from, through: None, damage, base, good, end, before }));
    }
    for (number, base) in bases.iter().copied().enumerate().skip(first) {
        // What lies before the log's start in its first segment is of no interest.
        let skip = if base < start { start.since(base) } else { 0 };
        let path = path_of(dir, base, LOG_SUFFIX);
        let file = disk.open(&path, Open::Read).map_err(at("opening a segment", &path))?;
        let len = file.len().map_err(at("measuring a segment", &path))?;
        let next = bases.get(number + 1).copied();
        let end = next.map_or(len, |next| next.since(base));
        let readable = usize::try_from(end.min(len).saturating_sub(skip)).unwrap_or(usize::MAX);
        let bytes = file.read_at(skip, readable).map_err(at("reading a segment", &path))?;
        let found = scan(&bytes, before);
        let good = skip + found.len;
        before = found.before;
        if next.is_some() && good == end {
            continue;
        }
        let from = before.next.unwrap_or_default();
        if next.is_none() && floor.is_none_or(|(floor, _)| floor < from) {
            return Ok(None);
        }
        let expected = end;
        let reason = found.stopped.unwrap_or(FrameError::Missing { len, expected });
        let damage = Damage { segment: path, index: from, position: base.plus(good), reason };
        let through = next.and_then(|next| first_of(disk, dir, next));
        let through = through.and_then(|first| first.get().checked_sub(1)).map(LogIndex::new);
        // What is not known to be committed may differ from what others have: it is not filled, but
        // fetched again with all that follows.
        let is_agreed = |through: &LogIndex| committed.is_some_and(|(index, _)| index >= *through);
        let through = through.filter(|through| *through >= from).filter(is_agreed);
        return Ok(Some(Hole { from, through, damage, base, good, end, before }));
    }
    Ok(None)
}

/// The index of a segment's first frame, if that one is good.
fn first_of(disk: &dyn Disk, dir: &Path, base: LogPosition) -> Option<LogIndex> {
    let file = disk.open(&path_of(dir, base, LOG_SUFFIX), Open::Read).ok()?;
    let len = usize::try_from(file.len().ok()?).ok()?;
    let (frame, _) = Frame::decode(&file.read_at(0, len).ok()?).ok()?;
    Some(frame.index)
}

impl Hole {
    /// Puts the missing entries into the middle; durable at return.
    pub fn fill(&self, disk: &dyn Disk, dir: &Path, frames: &[Frame]) -> Result<(), FillError> {
        assert!(self.through.is_some(), "a lost end is cut, not filled");
        let mut bytes = BytesMut::new();
        let mut before = self.before;
        for frame in frames {
            before = follow(frame, before)?;
            frame.encode(&mut bytes);
        }
        let found = bytes.len() as u64;
        let expected = self.end - self.good;
        let last = before.next.and_then(|next| next.get().checked_sub(1)).map(LogIndex::new);
        if found != expected || last != self.through {
            return Err(FillError::Length { expected, found });
        }
        let path = path_of(dir, self.base, LOG_SUFFIX);
        let good = usize::try_from(self.good).expect("segments are below 4 GiB");
        let kept = disk.open(&path, Open::Read)?.read_at(0, good)?;
        self.forget_index(disk, dir)?;
        disk.replace_by_parts(&path, &[&kept, &bytes])?;
        Ok(())
    }

    /// Cuts the log before the hole. From here on it is being filled: it is opened only by who
    /// does that.
    pub fn cut(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        assert!(self.through.is_none(), "a hole in the middle is filled, not cut");
        mark(disk, dir, REFILL)?;
        let last = self.from.get().checked_sub(1).map(LogIndex::new);
        let last = last.map(|last| (last, self.before.term));
        MarkFile::open(disk, &dir.join(FLUSHED))?.lower(last)?;
        let mut committed = MarkFile::open(disk, &dir.join(COMMITTED))?;
        let lowered = committed.get().min(last);
        committed.lower(lowered)?;
        let names = disk.list(dir)?;
        let mut later: Vec<_> = names.iter().filter_map(|name| base_of(name, LOG_SUFFIX)).collect();
        later.retain(|base| *base > self.base);
        later.sort_unstable();
        for base in later.into_iter().rev() {
            crate::commit_log::cut::remove_segment(disk, dir, base)?;
        }
        let path = path_of(dir, self.base, LOG_SUFFIX);
        self.forget_index(disk, dir)?;
        if !disk.exists(&path) {
            return Ok(());
        }
        let good = usize::try_from(self.good).expect("segments are below 4 GiB");
        let kept = disk.open(&path, Open::Read)?.read_at(0, good)?;
        disk.replace(&path, &kept)
    }

    fn forget_index(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let index = path_of(dir, self.base, INDEX_SUFFIX);
        if disk.exists(&index) {
            disk.remove(&index)?;
            disk.sync_dir(dir)?;
        }
        Ok(())
    }
}

/// Whether a frame can stand behind what was before; its checksum was checked when it was read.
fn follow(frame: &Frame, before: Before) -> Result<Before, FillError> {
    let Frame { index, term, seal, .. } = frame;
    let Seal { stamp, .. } = seal.ok_or(FillError::Unsealed)?;
    if let Some(expected) = before.next.filter(|expected| expected != index) {
        return Err(FillError::Index { expected, found: *index });
    }
    if *term < before.term {
        let (previous, found) = (before.term, *term);
        return Err(FillError::Follows(FrameError::Term { previous, found }));
    }
    if stamp < before.stamp {
        let (previous, found) = (before.stamp, stamp);
        return Err(FillError::Follows(FrameError::Stamp { previous, found }));
    }
    Ok(Before { next: Some(index.next()), term: *term, stamp })
}
