//! What a log finds on its disk when it is opened.
//!
//! Sealed segments are taken at their index file's word; segments without one are scanned. The
//! first bad frame ends the log if it lies behind all that was ever known to be durable (a torn
//! tail), and is rot if it lies before; then nothing is changed on the disk (rule R15).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::{LogIndex, LogPosition};
use crate::commit_log::cut::{carry_out_restart, remove_segment};
use crate::commit_log::error::OpenError;
use crate::commit_log::flushed_mark::{COMMITTED, FLUSHED, Mark, MarkFile};
use crate::commit_log::frame::FrameError;
use crate::commit_log::index_file::{self, Summary};
use crate::commit_log::purged::Purged;
use crate::commit_log::repair::Doubts;
use crate::commit_log::sealed::Sealed;
use crate::commit_log::segment::{
    Before, INDEX_SUFFIX, LOG_SUFFIX, Scan, Segment, base_of, path_of, scan,
};
use crate::commit_log::segments::{Active, State};
use crate::commit_log::small_file::SmallFileError;
use crate::commit_log::vote_file;
use crate::commit_log::{Damage, Vote};
use crate::env::{Disk, Open};

/// Zeros are looked for, and frames written again, in pieces of this many bytes.
const PIECE: u64 = 1 << 20;
const PIECE_LEN: usize = 1 << 20;
/// No written frame is known: nothing in the segment needs another check.
const NEVER: LogIndex = LogIndex::new(u64::MAX);

/// What was found, ready to be appended to.
pub(super) struct Recovered {
    pub(super) state: State,
    pub(super) flushed: MarkFile,
    pub(super) committed: MarkFile,
}

fn at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_path_buf();
    move |source| OpenError::Io { what, path, source }
}

/// Whether the vote's file cannot be read, or is not there: to be asked of a log with entries only.
pub fn vote_is_damaged(disk: &dyn Disk, dir: &Path) -> Result<bool, OpenError> {
    match vote_file::load(disk, dir) {
        Ok(vote) => Ok(vote.is_none()),
        Err(SmallFileError::Damaged { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Stores a vote that is safe in place of one that was lost; durable at return.
pub fn replace_vote(disk: &dyn Disk, dir: &Path, vote: Vote) -> io::Result<()> {
    vote_file::save(disk, dir, vote)
}

/// Whether the log's end is being put back from other members.
pub fn is_unfilled(disk: &dyn Disk, dir: &Path) -> bool {
    Doubts::of(disk, dir).refill
}

/// `filling` opens a log whose end is being put back, and no one else may.
pub(super) fn recover(disk: &dyn Disk, dir: &Path, filling: bool) -> Result<Recovered, OpenError> {
    let doubts = Doubts::of(disk, dir);
    if doubts.refill && !filling {
        return Err(OpenError::Unfilled);
    }
    if doubts.damaged && !filling {
        return Err(OpenError::Doubtful);
    }
    disk.create_dir_all(dir).map_err(at("making the log's directory", dir))?;
    let open_mark = |name| {
        let path = dir.join(name);
        MarkFile::open(disk, &path).map_err(at("opening a mark", &path))
    };
    let (mut flushed, committed) = (open_mark(FLUSHED)?, open_mark(COMMITTED)?);
    disk.sync_dir(dir).map_err(at("syncing the log's directory", dir))?;
    if let Some(purged) = Purged::announced(disk, dir)? {
        let lowered = flushed.lower(Some((purged.index, purged.term)));
        lowered.map_err(at("lowering the flushed mark", dir))?;
        carry_out_restart(disk, dir, purged).map_err(at("finishing a restart", dir))?;
    }
    tidy(disk, dir).map_err(at("tidying the log's directory", dir))?;
    let purged = Purged::load(disk, dir)?;
    let vote = vote_file::load(disk, dir).map_err(|error| match error {
        SmallFileError::Damaged { .. } => OpenError::Vote(error),
        SmallFileError::Io { .. } => error.into(),
    })?;
    vote_file::prepare(disk, dir).map_err(at("preparing the next vote", dir))?;
    Purged::prepare(disk, dir).map_err(at("preparing the next purge", dir))?;
    let mut walk = Walk::new(disk, dir, purged);
    let start = purged.map(|purged| (purged.index, purged.term));
    walk.floor = flushed.get().max(committed.get()).max(start);
    let files = walk.files()?;
    walk.sealed_and_scanned(&files)?;
    let active = walk.active()?;
    disk.sync_dir(dir).map_err(at("syncing the log's directory", dir))?;
    let last = walk.before.next.and_then(|next| next.get().checked_sub(1)).map(LogIndex::new);
    let last = last.filter(|last| purged.is_none_or(|purged| *last > purged.index));
    let last = last.map(|last| (last, walk.before.term));
    let reached = last.or_else(|| purged.map(|purged| (purged.index, purged.term)));
    flushed.set(reached).map_err(at("writing the flushed mark", dir))?;
    let state = State {
        sealed: walk.sealed,
        active,
        terms: walk.terms,
        purged,
        last,
        last_stamp: walk.before.stamp,
        flushed: reached.map(|(index, _)| index),
        vote,
        committed: committed.get().min(reached),
    };
    Ok(Recovered { state, flushed, committed })
}

/// Goes over the segment files in order.
struct Walk<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    /// The log reached this entry once, durably.
    floor: Option<Mark>,
    /// Where the next segment must start, and what its first frame follows.
    end: LogPosition,
    before: Before,
    sealed: VecDeque<Arc<Sealed>>,
    terms: BTreeMap<LogIndex, crate::base::Term>,
    /// The last segment, when it has no index file: it may take more frames.
    open: Option<(Segment, Scan)>,
}

impl<'a> Walk<'a> {
    fn new(disk: &'a dyn Disk, dir: &'a Path, purged: Option<Purged>) -> Self {
        let before = purged.map(|purged| Before {
            next: Some(purged.index.next()),
            term: purged.term,
            stamp: purged.stamp,
        });
        Self {
            disk,
            dir,
            floor: None,
            end: purged.map(|purged| purged.end).unwrap_or_default(),
            before: before.unwrap_or_default(),
            sealed: VecDeque::new(),
            terms: purged.map(|purged| (purged.index, purged.term)).into_iter().collect(),
            open: None,
        }
    }

    fn path(&self, base: LogPosition) -> PathBuf {
        path_of(self.dir, base, LOG_SUFFIX)
    }

    /// The bases of the segment files that are needed; those wholly before the start are removed.
    fn files(&mut self) -> Result<Vec<LogPosition>, OpenError> {
        let names = self.disk.list(self.dir).map_err(at("listing the log", self.dir))?;
        let mut bases: Vec<_> = names.iter().filter_map(|name| base_of(name, LOG_SUFFIX)).collect();
        bases.sort_unstable();
        let before = bases.partition_point(|base| *base <= self.end).saturating_sub(1);
        for base in bases.drain(..before) {
            let removed = remove_segment(self.disk, self.dir, base);
            removed.map_err(at("removing a purged segment", &self.path(base)))?;
        }
        let first = bases.first().copied().unwrap_or(self.end);
        if first > self.end {
            return Err(self.missing(self.end, first).into());
        }
        Ok(bases)
    }

    fn missing(&self, base: LogPosition, next: LogPosition) -> Damage {
        let reason = FrameError::Missing { len: 0, expected: next.since(base) };
        let index = self.before.next.unwrap_or_default();
        Damage { segment: self.path(base), index, position: base, reason }
    }

    fn sealed_and_scanned(&mut self, bases: &[LogPosition]) -> Result<(), OpenError> {
        for (number, base) in bases.iter().copied().enumerate() {
            if number == 0 && base < self.end {
                self.start_inside(base)?;
            }
            if base < self.end {
                return Err(self.missing(base, self.end).into());
            }
            if base > self.end {
                // Unsynced frames before this segment were lost, or synced ones rotted.
                self.refuse_rot(None)?;
                return self.drop_files(&bases[number..]);
            }
            let next = bases.get(number + 1).copied();
            if let Some(summary) = self.summary(base)? {
                self.take_sealed(summary)?;
                continue;
            }
            self.take_scanned(base, next)?;
        }
        self.refuse_rot(None)
    }

    /// The first segment starts before the log does: its first frame says its index itself.
    fn start_inside(&mut self, base: LogPosition) -> Result<(), OpenError> {
        let first = match self.summary(base)? {
            Some(summary) => Some(summary.first),
            None => {
                let file = self.open_file(base, Open::Read)?;
                let path = self.path(base);
                let len = file.len().map_err(at("measuring a segment", &path))?;
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let bytes = file.read_at(0, len).map_err(at("reading a segment", &path))?;
                scan(&bytes, Before::default()).first
            }
        };
        let Some(first) = first else {
            return Err(self.missing(base, self.end).into());
        };
        self.end = base;
        self.before = Before { next: Some(first), ..Before::default() };
        self.terms.clear();
        Ok(())
    }

    fn open_file(
        &self,
        base: LogPosition,
        open: Open,
    ) -> Result<Arc<dyn crate::env::File>, OpenError> {
        let path = self.path(base);
        self.disk.open(&path, open).map_err(at("opening a segment", &path))
    }

    /// The index file's word on a segment, if there is a good one.
    fn summary(&self, base: LogPosition) -> Result<Option<Summary>, OpenError> {
        let path = path_of(self.dir, base, INDEX_SUFFIX);
        let summary = index_file::load(self.disk, &path).map_err(at("reading an index", &path))?;
        Ok(summary.filter(|summary| summary.base == base))
    }

    fn take_sealed(&mut self, summary: Summary) -> Result<(), OpenError> {
        let file = self.open_file(summary.base, Open::Read)?;
        let path = self.path(summary.base);
        let len = file.len().map_err(at("measuring a segment", &path))?;
        let segment = Segment::new(summary.base, summary.first, path, file, NEVER);
        if let Some(expected) = self.before.next.filter(|next| *next != summary.first) {
            let reason = FrameError::Index { expected, found: summary.first };
            return Err(segment.damage(expected, 0, reason).into());
        }
        if len < summary.len {
            let reason = FrameError::Missing { len, expected: summary.len };
            return Err(segment.damage(summary.first, len, reason).into());
        }
        self.before =
            Before { next: Some(summary.next()), term: summary.last_term(), stamp: summary.stamp };
        self.end = summary.end();
        self.note_terms(&summary.terms);
        self.sealed.push_back(Arc::new(Sealed::stored(self.dir, Arc::new(segment), summary)));
        Ok(())
    }

    fn note_terms(&mut self, terms: &[(LogIndex, crate::base::Term)]) {
        for (index, term) in terms {
            let last = self.terms.last_key_value().map(|(_, term)| *term);
            if last != Some(*term) {
                self.terms.insert(*index, *term);
            }
        }
    }

    /// Scans a segment that has no index file. `next` is where the next file starts.
    fn take_scanned(
        &mut self,
        base: LogPosition,
        next: Option<LogPosition>,
    ) -> Result<(), OpenError> {
        let file = self.open_file(base, Open::Log)?;
        let path = self.path(base);
        let len = file.len().map_err(at("measuring a segment", &path))?;
        let limit = next.map_or(len, |next| next.since(base).min(len));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let bytes = file.read_at(0, limit).map_err(at("reading a segment", &path))?;
        let found = scan(&bytes, self.before);
        let first = found.first.or(self.before.next).unwrap_or_default();
        let segment = Segment::new(base, first, path, file, found.before.next.unwrap_or(first));
        self.before = found.before;
        self.end = base.plus(found.len);
        self.note_terms(&found.terms);
        self.write_again(&segment, &bytes, &found)
            .map_err(at("writing frames again", &segment.path))?;
        // The frames may have come from the page cache of a machine whose program died.
        segment.file.sync_data().map_err(at("syncing a segment", &segment.path))?;
        let rot = found.stopped.map(|reason| {
            let index = self.before.next.unwrap_or(first);
            segment.damage(index, found.len, reason)
        });
        self.refuse_rot_unless_more(rot, next)?;
        if next == Some(self.end) {
            let summary = summary_of(&segment, &found, false);
            let sealed = Sealed::fresh(self.dir, Arc::new(segment), summary, found.table);
            self.sealed.push_back(Arc::new(sealed));
        } else {
            self.open = Some((segment, found));
        }
        Ok(())
    }

    /// Writes the frames over themselves that no sync is known to have covered. After a sync that
    /// failed the kernel takes their pages for clean, so that the next one would pass them by.
    fn write_again(&self, segment: &Segment, bytes: &[u8], found: &Scan) -> io::Result<()> {
        let confirmed = self.floor.map_or(LogIndex::ZERO, |(floor, _)| floor.next());
        let first = found.first.unwrap_or_default();
        let number = confirmed.get().saturating_sub(first.get());
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(from) = found.table.offset(number) else { return Ok(()) };
        let frames = usize::try_from(from).ok().zip(usize::try_from(found.len).ok());
        let frames = frames.and_then(|(from, to)| bytes.get(from..to)).unwrap_or_default();
        let mut offset = from;
        for piece in frames.chunks(PIECE_LEN) {
            segment.file.write_at(offset, piece)?;
            offset += piece.len() as u64;
        }
        assert_eq!(offset, found.len, "all frames behind the confirmed ones are written");
        Ok(())
    }

    /// A segment whose frames all are good and that is followed by another proves nothing yet.
    fn refuse_rot_unless_more(
        &self,
        rot: Option<Damage>,
        next: Option<LogPosition>,
    ) -> Result<(), OpenError> {
        if next == Some(self.end) { Ok(()) } else { self.refuse_rot(rot) }
    }

    /// The log ends here. That is rot if it once reached further, durably.
    fn refuse_rot(&self, rot: Option<Damage>) -> Result<(), OpenError> {
        let Some((floor, _)) = self.floor else { return Ok(()) };
        if self.before.next.is_some_and(|next| next > floor) {
            return Ok(());
        }
        let damage = rot.unwrap_or_else(|| self.missing(self.end, self.end));
        Err(damage.into())
    }

    /// Removes segments behind a torn tail, last first.
    fn drop_files(&self, bases: &[LogPosition]) -> Result<(), OpenError> {
        for base in bases.iter().rev() {
            let removed = remove_segment(self.disk, self.dir, *base);
            removed.map_err(at("removing a torn segment", &self.path(*base)))?;
        }
        Ok(())
    }

    /// The segment that takes the next frame. Bytes behind the end that are not zero could look
    /// like frames later on: then the segment is cut here and a new file goes on.
    fn active(&mut self) -> Result<Active, OpenError> {
        let next = self.before.next.unwrap_or_default();
        let Some((segment, found)) = self.open.take() else { return self.new_active(next) };
        let path = segment.path.clone();
        let clean = is_zero_from(&segment, found.len).map_err(at("reading a segment", &path))?;
        if clean {
            return Ok(Active { segment: Arc::new(segment), table: found.table, len: found.len });
        }
        if found.table.count() == 0 {
            remove_segment(self.disk, self.dir, segment.base)
                .map_err(at("removing a torn segment", &path))?;
        } else {
            let summary = summary_of(&segment, &found, true);
            let sealed = Sealed::stored(self.dir, Arc::new(segment), summary);
            index_file::save(self.disk, &sealed.index_path, &sealed.summary, &found.table)
                .map_err(at("writing an index", &sealed.index_path))?;
            self.sealed.push_back(Arc::new(sealed));
        }
        self.new_active(next)
    }

    fn new_active(&self, next: LogIndex) -> Result<Active, OpenError> {
        let file = self.open_file(self.end, Open::Log)?;
        let segment = Segment::new(self.end, next, self.path(self.end), file, next);
        Ok(Active::empty(Arc::new(segment)))
    }
}

/// Removes what half-done work left. An index file without its segment must go before a new
/// segment takes that name.
fn tidy(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    for name in disk.list(dir)? {
        let orphan = base_of(&name, INDEX_SUFFIX)
            .is_some_and(|base| !disk.exists(&path_of(dir, base, LOG_SUFFIX)));
        if orphan || name.ends_with(".tmp") {
            disk.remove(&dir.join(&name))?;
        }
    }
    disk.sync_dir(dir)
}

fn summary_of(segment: &Segment, found: &Scan, cut: bool) -> Summary {
    Summary {
        base: segment.base,
        first: segment.first,
        count: u32::try_from(found.table.count()).expect("segments are below 4 GiB"),
        len: found.len,
        cut,
        stamp: found.before.stamp,
        terms: found.terms.clone(),
    }
}

fn is_zero_from(segment: &Segment, from: u64) -> io::Result<bool> {
    let len = segment.file.len()?;
    let mut at = from;
    while at < len {
        let piece = PIECE.min(len - at);
        let bytes = segment.file.read_at(at, usize::try_from(piece).unwrap_or_default())?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += piece;
    }
    Ok(true)
}

/// What a look at a stopped log starts from.
pub(super) struct Layout {
    /// The bases of the segment files, in order.
    pub(super) bases: Vec<LogPosition>,
    /// The log reached this entry once, durably.
    pub(super) floor: Option<Mark>,
}

pub(super) fn layout(disk: &dyn Disk, dir: &Path) -> Result<Layout, OpenError> {
    let purged = Purged::load(disk, dir)?.map(|purged| (purged.index, purged.term));
    let names = disk.list(dir).map_err(at("listing the log", dir))?;
    let mut bases: Vec<_> = names.iter().filter_map(|name| base_of(name, LOG_SUFFIX)).collect();
    bases.sort_unstable();
    let mark = |name| {
        let path = dir.join(name);
        MarkFile::peek(disk, &path).map_err(at("reading a mark", &path))
    };
    let floor = mark(FLUSHED)?.max(mark(COMMITTED)?).max(purged);
    Ok(Layout { bases, floor })
}
