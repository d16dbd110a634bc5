//! One file of the log, and the places of the frames in it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::commit_log::frame::Header;
use crate::commit_log::{Damage, FRAME_HEADER, Frame, FrameError};
use crate::env::File;

/// Ends the name of a segment file; before it stand the 20 digits of its base.
pub(super) const LOG_SUFFIX: &str = ".log";
pub(super) const INDEX_SUFFIX: &str = ".idx";
const DIGITS: usize = 20;

/// Where the segment that starts at `base` lies.
pub(super) fn path_of(dir: &Path, base: LogPosition, suffix: &str) -> PathBuf {
    dir.join(format!("{:0DIGITS$}{suffix}", base.get()))
}

/// The base that a file name states, if it is a segment file's.
pub(super) fn base_of(name: &str, suffix: &str) -> Option<LogPosition> {
    let digits = name.strip_suffix(suffix)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse().ok().map(LogPosition::new) } else { None }
}

/// A segment file that is open.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) base: LogPosition,
    /// The index of the first frame that it holds or will hold.
    pub(super) first: LogIndex,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn File>,
    /// Frames from here on were written by this run of the program.
    pub(super) written_from: LogIndex,
    /// The file's length when it was opened: what lies behind the last frame up to here may be
    /// written over with zeros.
    pub(super) reserved: u64,
    /// One bit for each frame whose checksum was found good since the program started.
    checked: Mutex<Vec<u64>>,
}

impl Segment {
    pub(super) fn new(
        base: LogPosition,
        first: LogIndex,
        path: PathBuf,
        file: Arc<dyn File>,
        written_from: LogIndex,
    ) -> Self {
        let reserved = file.len().unwrap_or_default();
        Self { base, first, path, file, written_from, reserved, checked: Mutex::default() }
    }

    /// The same file with another first index; only for a segment without frames.
    pub(super) fn restarted(&self, first: LogIndex) -> Self {
        Self::new(self.base, first, self.path.clone(), Arc::clone(&self.file), first)
    }

    pub(super) fn needs_check(&self, index: LogIndex) -> bool {
        if index >= self.written_from {
            return false;
        }
        let (word, bit) = self.bit(index);
        self.checked.lock().get(word).is_none_or(|bits| bits >> bit & 1 == 0)
    }

    pub(super) fn set_checked(&self, index: LogIndex) {
        if index >= self.written_from {
            return;
        }
        let (word, bit) = self.bit(index);
        let mut checked = self.checked.lock();
        if checked.len() <= word {
            checked.resize(word + 1, 0);
        }
        checked[word] |= 1 << bit;
    }

    fn bit(&self, index: LogIndex) -> (usize, u32) {
        let number = index.since(self.first);
        let word = usize::try_from(number / 64).expect("frames of a segment fit into memory");
        (word, u32::try_from(number % 64).expect("a remainder of 64 is small"))
    }

    pub(super) fn damage(&self, index: LogIndex, offset: u64, reason: FrameError) -> Damage {
        let position = self.base.plus(offset);
        Damage { segment: self.path.clone(), index, position, reason }
    }

    /// Reads `count` frames that lie in `len` bytes from `offset`, in one piece, and checks those
    /// that need it.
    pub(super) fn frames(&self, run: Run) -> Result<Vec<Frame>, RunError> {
        self.read_run(run, |index| self.needs_check(index))
    }

    /// The same, and checks all of them.
    pub(super) fn read_checked(&self, run: Run) -> Result<Vec<Frame>, RunError> {
        self.read_run(run, |_| true)
    }

    fn read_run(
        &self,
        run: Run,
        needs_check: impl Fn(LogIndex) -> bool,
    ) -> Result<Vec<Frame>, RunError> {
        let bytes = self.bytes(run.offset, run.len, run.first)?;
        let mut frames = Vec::with_capacity(run.count);
        let (mut at, mut index) = (0, run.first);
        while frames.len() < run.count {
            let offset = run.offset + at as u64;
            let damaged = |reason| RunError::Rot(self.damage(index, offset, reason));
            let rest = bytes.slice(at..);
            let read = if needs_check(index) { Frame::decode(&rest) } else { Frame::known(&rest) };
            let (mut frame, len) = read.map_err(damaged)?;
            if frame.index != index {
                let found = frame.index;
                return Err(damaged(FrameError::Index { expected: index, found }));
            }
            frame.position = self.base.plus(offset);
            self.set_checked(index);
            frames.push(frame);
            at += len;
            index = index.next();
        }
        if at != run.len {
            let reason = FrameError::Short { need: at, have: run.len };
            return Err(RunError::Rot(self.damage(index, run.offset, reason)));
        }
        Ok(frames)
    }

    /// Bytes that must be there; `index` names the entry if they are not.
    pub(super) fn bytes(
        &self,
        offset: u64,
        len: usize,
        index: LogIndex,
    ) -> Result<Bytes, RunError> {
        self.file.read_at(offset, len).map_err(|source| {
            if source.kind() == std::io::ErrorKind::UnexpectedEof {
                let expected = offset + len as u64;
                let len = self.file.len().unwrap_or_default();
                RunError::Rot(self.damage(index, offset, FrameError::Missing { len, expected }))
            } else {
                RunError::Io { path: self.path.clone(), source }
            }
        })
    }
}

/// Frames that follow each other in one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) first: LogIndex,
    pub(super) count: usize,
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// Why frames that should be there cannot be had.
#[derive(Debug)]
pub(super) enum RunError {
    Rot(Damage),
    Io { path: PathBuf, source: std::io::Error },
}

/// What the frame before the first one of a scan was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    /// `None`: any index may come.
    pub(super) next: Option<LogIndex>,
    pub(super) term: Term,
    pub(super) stamp: UtcMillis,
}

/// The frames found from the front of a file.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) table: Table,
    pub(super) first: Option<LogIndex>,
    /// Where a term begins.
    pub(super) terms: Vec<(LogIndex, Term)>,
    pub(super) before: Before,
    /// Bytes of good frames.
    pub(super) len: u64,
    /// What ended the scan; `None` when all bytes up to the limit are good frames.
    pub(super) stopped: Option<FrameError>,
}

/// Reads frames until one is bad or `bytes` ends. A frame is good only if index and term follow
/// the ones before, so that stale bytes of an earlier use of the file end the scan.
pub(super) fn scan(bytes: &[u8], before: Before) -> Scan {
    let mut scan = Scan { before, ..Scan::default() };
    let mut at = 0;
    while at < bytes.len() {
        match follows(&bytes[at..], &scan.before) {
            Ok(header) => {
                scan.table.push(u32::try_from(at).expect("segments are below 4 GiB"));
                scan.first.get_or_insert(header.index);
                if scan.terms.last().is_none_or(|(_, term)| *term != header.term) {
                    scan.terms.push((header.index, header.term));
                }
                scan.before = Before {
                    next: Some(header.index.next()),
                    term: header.term,
                    stamp: header.stamp,
                };
                at += header.frame_len();
            }
            Err(reason) => {
                scan.stopped = Some(reason);
                break;
            }
        }
    }
    scan.len = at as u64;
    scan
}

fn follows(bytes: &[u8], before: &Before) -> Result<Header, FrameError> {
    let header = Header::check(bytes)?;
    match before.next {
        Some(expected) if header.index != expected => {
            Err(FrameError::Index { expected, found: header.index })
        }
        _ if header.term < before.term => {
            Err(FrameError::Term { previous: before.term, found: header.term })
        }
        _ if header.stamp < before.stamp => {
            Err(FrameError::Stamp { previous: before.stamp, found: header.stamp })
        }
        _ => Ok(header),
    }
}

/// Where the frames of a segment start.
#[derive(Clone, Debug)]
pub(super) enum Table {
    Memory(Vec<u32>),
    /// The part of an index file that holds the offsets.
    Lent(Bytes),
}

impl Default for Table {
    fn default() -> Self {
        Self::Memory(Vec::new())
    }
}

const OFFSET_LEN: usize = 4;

impl Table {
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Memory(offsets) => offsets.len(),
            Self::Lent(bytes) => bytes.len() / OFFSET_LEN,
        }
    }

    pub(super) fn offset(&self, number: usize) -> Option<u64> {
        match self {
            Self::Memory(offsets) => offsets.get(number).copied().map(u64::from),
            Self::Lent(bytes) => {
                let from = number.checked_mul(OFFSET_LEN)?;
                let field = bytes.get(from..from + OFFSET_LEN)?;
                Some(u64::from(u32::from_be_bytes([field[0], field[1], field[2], field[3]])))
            }
        }
    }

    pub(super) fn push(&mut self, offset: u32) {
        match self {
            Self::Memory(offsets) => offsets.push(offset),
            Self::Lent(_) => panic!("an index file on the disk takes no more frames"),
        }
    }

    /// The first `count` offsets.
    pub(super) fn front(&self, count: usize) -> Self {
        let offset = |number| {
            let offset = self.offset(number).expect("the front of a table is not longer than it");
            u32::try_from(offset).expect("segments are below 4 GiB")
        };
        Self::Memory((0..count).map(offset).collect())
    }

    /// The frame that byte `offset` of the segment lies in; `len` is where the last one ends.
    pub(super) fn place(&self, offset: u64, len: u64) -> Option<Place> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.offset(middle)? <= offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let number = low.checked_sub(1)?;
        let end = self.offset(low).unwrap_or(len);
        let start = self.offset(number)?;
        (start <= offset && offset < end).then_some(Place { number, start, end })
    }

    /// From frame `number`, as many frames below `stop` as fit into `max` bytes, at least one.
    /// `len` is where the last frame ends. The answer is offset, count and bytes.
    pub(super) fn run(
        &self,
        range: Range<usize>,
        max: usize,
        len: u64,
    ) -> Option<(u64, usize, usize)> {
        let start = self.offset(range.start)?;
        let end_of = |frame: usize| self.offset(frame + 1).unwrap_or(len);
        let stop = range.end.min(self.count());
        let (mut next, mut end) = (range.start + 1, end_of(range.start));
        while next < stop && end_of(next).checked_sub(start)? <= max as u64 {
            end = end_of(next);
            next += 1;
        }
        let bytes = usize::try_from(end.checked_sub(start)?).ok()?;
        (bytes >= FRAME_HEADER).then_some((start, next - range.start, bytes))
    }
}

/// One frame's place in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) number: usize,
    pub(super) start: u64,
    pub(super) end: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_carry_the_position() {
        let path = path_of(Path::new("/log"), LogPosition::new(1234), LOG_SUFFIX);
        assert_eq!(path, Path::new("/log/00000000000000001234.log"));
        assert_eq!(base_of("00000000000000001234.log", LOG_SUFFIX), Some(LogPosition::new(1234)));
        assert_eq!(base_of("1234.log", LOG_SUFFIX), None);
        assert_eq!(base_of("+0000000000000001234.log", LOG_SUFFIX), None);
        assert_eq!(base_of("00000000000000001234.idx", LOG_SUFFIX), None);
    }

    #[test]
    fn both_kinds_of_table_find_the_same_frames() {
        let offsets = [0_u32, 100, 150, 900];
        let bytes: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_be_bytes()).collect();
        for table in [Table::Memory(offsets.to_vec()), Table::Lent(bytes.into())] {
            assert_eq!(table.count(), 4);
            let first = Place { number: 0, start: 0, end: 100 };
            assert_eq!(table.place(0, 1_000), Some(first));
            assert_eq!(table.place(99, 1_000), Some(first));
            assert_eq!(table.place(100, 1_000), Some(Place { number: 1, start: 100, end: 150 }));
            assert_eq!(table.place(999, 1_000), Some(Place { number: 3, start: 900, end: 1_000 }));
            assert_eq!(table.place(1_000, 1_000), None);
            assert_eq!(table.run(0..4, 150, 1_000), Some((0, 2, 150)));
            assert_eq!(table.run(0..4, 1, 1_000), Some((0, 1, 100)), "at least one");
            assert_eq!(table.run(1..2, 9_000, 1_000), Some((100, 1, 50)));
            assert_eq!(table.run(1..9, 9_000, 1_000), Some((100, 3, 900)));
            assert_eq!(table.offset(4), None);
            assert_eq!(table.front(2).count(), 2);
        }
    }
}
