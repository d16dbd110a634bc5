//! What makes the log shorter: truncation of the tail, purge of the front, and a restart after a
//! snapshot. All are durable when they return.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::commit_log::error::{PurgeError, TruncateError};
use crate::commit_log::flushed_mark::Mark;
use crate::commit_log::index_file::{self, Summary};
use crate::commit_log::purged::Purged;
use crate::commit_log::sealed::Sealed;
use crate::commit_log::segment::{self, LOG_SUFFIX, Segment, Table};
use crate::commit_log::segments::{Active, State};
use crate::commit_log::shared::{Shared, Turn};
use crate::commit_log::spare::Spare;
use crate::env::Disk;

/// Where a truncation cuts.
struct Cut {
    /// The last entry kept, its position's end, and its stamp.
    kept: Option<Mark>,
    end: LogPosition,
    stamp: UtcMillis,
    /// The segment that the cut goes through, with the part of its table that is kept.
    through: Option<(Arc<Segment>, Table)>,
}

impl Shared {
    pub(super) fn truncate_after(&self, kept: Option<LogIndex>) -> Result<(), TruncateError> {
        let (_writer, mut turn) = self.quiesce();
        self.running()?;
        let Some(cut) = self.find_cut(kept)? else { return Ok(()) };
        let _names = self.names.lock();
        self.cut(&mut turn, cut).map_err(|error| self.stop("a truncation", &error))?;
        Ok(())
    }

    /// `None` when nothing lies behind `kept`.
    fn find_cut(&self, kept: Option<LogIndex>) -> Result<Option<Cut>, TruncateError> {
        let (last, purged) = {
            let state = self.state.read();
            if let Some((committed, _)) = state.committed.filter(|mark| Some(mark.0) > kept) {
                return Err(TruncateError::Committed { kept, committed });
            }
            (state.last, state.purged)
        };
        if let Some(purged) = purged.filter(|purged| kept < Some(purged.index)) {
            return Err(TruncateError::Purged { kept, purged: purged.index });
        }
        let Some((last, _)) = last.filter(|(last, _)| Some(*last) > kept) else { return Ok(None) };
        // The entry behind the last kept one says where the cut is.
        let first = self.state.read().first().expect("a log with a last entry has a first one");
        let next = kept.map_or(first, LogIndex::next).max(first);
        assert!(next <= last, "something lies behind the cut");
        let frames = self.read(next, next.next(), 0)?;
        let position = frames.first().expect("an entry inside the log is there").position;
        let (kept, stamp) = if next == first {
            let purged = purged.map(|purged| ((purged.index, purged.term), purged.stamp));
            (purged.map(|(mark, _)| mark), purged.map(|(_, stamp)| stamp).unwrap_or_default())
        } else {
            let index = LogIndex::new(next.get() - 1);
            let frames = self.read(index, next, 0)?;
            let frame = frames.first().expect("an entry inside the log is there");
            let seal = frame.seal.expect("frames of the log are sealed");
            (Some((index, frame.term)), seal.stamp)
        };
        let through = self.cut_through(next, position)?;
        Ok(Some(Cut { kept, end: position, stamp, through }))
    }

    /// The segment that holds `next`, unless the cut lies exactly at its start.
    fn cut_through(
        &self,
        next: LogIndex,
        position: LogPosition,
    ) -> Result<Option<(Arc<Segment>, Table)>, TruncateError> {
        let state = self.state.read();
        let (segment, table) = match state.sealed_with_position(position).cloned() {
            Some(sealed) => {
                let table =
                    sealed.table(&*self.env.disk).map_err(|error| self.read_error(error))?;
                let count = usize::try_from(next.since(sealed.segment.first)).unwrap_or(usize::MAX);
                (Arc::clone(&sealed.segment), table.front(count))
            }
            None => {
                let active = &state.active;
                let count = usize::try_from(next.since(active.segment.first)).unwrap_or(usize::MAX);
                (Arc::clone(&active.segment), active.table.front(count))
            }
        };
        Ok((table.count() > 0).then_some((segment, table)))
    }

    /// The order matters: a cut between two steps leaves either the old end or the new one.
    fn cut(&self, turn: &mut Turn, mut cut: Cut) -> io::Result<()> {
        let disk = &*self.env.disk;
        turn.flushed.lower(cut.kept)?;
        let (behind, active) = {
            let state = self.state.read();
            let behind = state.sealed.iter().filter(|sealed| sealed.segment.base >= cut.end);
            let behind: Vec<_> = behind.map(|sealed| sealed.segment.base).collect();
            (behind, state.active.segment.base)
        };
        let active = (active >= cut.end).then_some(active);
        for base in behind.into_iter().chain(active).rev() {
            remove_segment(disk, &self.dir, base)?;
        }
        let sealed = match cut.through.take() {
            Some((segment, table)) => Some(self.seal_cut(segment, table, &cut)?),
            None => None,
        };
        let first = cut.kept.map(|(index, _)| index.next()).unwrap_or_default();
        let segment = Arc::new(self.new_segment(cut.end, first)?);
        disk.sync_dir(&self.dir)?;
        let state = &mut *self.state.write();
        state.shorten(&cut, sealed, Active::empty(segment));
        Ok(())
    }

    fn seal_cut(&self, segment: Arc<Segment>, table: Table, cut: &Cut) -> io::Result<Arc<Sealed>> {
        let count = u32::try_from(table.count()).expect("segments are below 4 GiB");
        let first = segment.first;
        let end = first.plus(u64::from(count));
        let summary = Summary {
            base: segment.base,
            first,
            count,
            len: cut.end.since(segment.base),
            cut: true,
            stamp: cut.stamp,
            terms: self.state.read().terms_between(first, end),
        };
        segment.file.sync_data()?;
        let sealed = Sealed::stored(&self.dir, segment, summary);
        index_file::save(&*self.env.disk, &sealed.index_path, &sealed.summary, &table)?;
        Ok(Arc::new(sealed))
    }

    pub(super) fn purge_to(&self, index: LogIndex, term: Term) -> Result<(), PurgeError> {
        let _names = self.names.lock();
        self.running()?;
        let Some(purged) = self.find_purged(index, term)? else { return Ok(()) };
        let saved = purged.save(&*self.env.disk, &self.dir);
        saved.map_err(|error| self.stop("a write of the purge mark", &error))?;
        let gone = self.state.write().drop_front(purged);
        for sealed in gone {
            // Taken apart first, so that only readers can still hold the segment.
            let cut = sealed.summary.cut;
            let segment = Arc::clone(&sealed.segment);
            drop(sealed);
            let removed = self.discard(segment, !cut);
            removed.map_err(|error| self.stop("a removal of a purged segment", &error))?;
        }
        let synced = self.env.disk.sync_dir(&self.dir);
        synced.map_err(|error| self.stop("a sync of the log's directory", &error))?;
        Ok(())
    }

    /// `None` when it was purged before.
    fn find_purged(&self, index: LogIndex, term: Term) -> Result<Option<Purged>, PurgeError> {
        let (first, last, start, stamp) = {
            let state = self.state.read();
            if state.purged.is_some_and(|purged| index <= purged.index) {
                return Ok(None);
            }
            (state.first(), state.last, state.start(), state.last_stamp)
        };
        let (Some(first), Some((last, _))) = (first, last) else {
            return Err(PurgeError::Missing { index, last: None });
        };
        if index > last {
            return Err(PurgeError::Missing { index, last: Some(last) });
        }
        if index < first {
            // The log began behind this entry: nothing of it is here.
            assert_eq!(index.next(), first, "only the entry right before the first one is known");
            return Ok(Some(Purged { index, term, end: start, stamp: UtcMillis::ZERO }));
        }
        let frames = self.read(index, index.next(), 0)?;
        let frame = frames.first().expect("an entry inside the log is there");
        if frame.term != term {
            return Err(PurgeError::Term { index, asked: term, found: frame.term });
        }
        let end = frame.position.plus(frame.encoded_len() as u64);
        let stamp = frame.seal.map_or(stamp, |seal| seal.stamp);
        Ok(Some(Purged { index, term, end, stamp }))
    }

    pub(super) fn restart_at(&self, purged: Purged) -> Result<(), PurgeError> {
        let (_writer, mut turn) = self.quiesce();
        self.running()?;
        let _names = self.names.lock();
        if let Some(old) = self.state.read().purged.filter(|old| purged.index < old.index) {
            return Err(PurgeError::Backwards { index: purged.index, purged: old.index });
        }
        let committed = self.state.read().committed;
        if let Some((committed, _)) = committed.filter(|(index, _)| *index > purged.index) {
            return Err(PurgeError::Committed { index: purged.index, committed });
        }
        let restarted = self.restart(&mut turn, purged);
        restarted.map_err(|error| self.stop("a restart after a snapshot", &error))?;
        Ok(())
    }

    fn restart(&self, turn: &mut Turn, purged: Purged) -> io::Result<()> {
        let disk = &*self.env.disk;
        purged.announce_restart(disk, &self.dir)?;
        turn.flushed.lower(Some((purged.index, purged.term)))?;
        {
            let mut spare = self.spare.lock();
            *spare = None;
            carry_out_restart(disk, &self.dir, purged)?;
        }
        let first = purged.index.next();
        let segment = Arc::new(self.new_segment(purged.end, first)?);
        disk.sync_dir(&self.dir)?;
        self.state.write().restart(purged, Active::empty(segment));
        Ok(())
    }
}

/// Removes all segments and makes `purged` what the log goes on from. May be done again.
pub(super) fn carry_out_restart(disk: &dyn Disk, dir: &Path, purged: Purged) -> io::Result<()> {
    for name in disk.list(dir)? {
        if let Some(base) = segment::base_of(&name, LOG_SUFFIX) {
            remove_segment(disk, dir, base)?;
        }
    }
    // A spare may hold frames that the log once purged, with indexes that come again now.
    Spare::forget(disk, dir)?;
    disk.sync_dir(dir)?;
    purged.save(disk, dir)?;
    Purged::restart_is_done(disk, dir)
}

/// Removes a segment, durably. The index file goes last: without it a segment that was cut would
/// be scanned past its end, into what a truncation dropped.
pub(super) fn remove_segment(disk: &dyn Disk, dir: &Path, base: LogPosition) -> io::Result<()> {
    disk.remove(&segment::path_of(dir, base, LOG_SUFFIX))?;
    disk.sync_dir(dir)?;
    let index = segment::path_of(dir, base, segment::INDEX_SUFFIX);
    if disk.exists(&index) {
        disk.remove(&index)?;
        disk.sync_dir(dir)?;
    }
    Ok(())
}

impl State {
    fn shorten(&mut self, cut: &Cut, sealed: Option<Arc<Sealed>>, active: Active) {
        let kept = sealed.as_ref().map_or(cut.end, |sealed| sealed.segment.base);
        self.sealed.retain(|sealed| sealed.segment.base < kept);
        self.sealed.extend(sealed);
        let first = cut.kept.map(|(index, _)| index.next()).unwrap_or_default();
        self.terms.split_off(&first);
        let purged = self.purged.map(|purged| purged.index);
        self.last = cut.kept.filter(|(index, _)| Some(*index) > purged);
        self.last_stamp = cut.stamp;
        self.flushed = cut.kept.map(|(index, _)| index);
        self.active = active;
        let last = self.sealed.back().map(|sealed| sealed.summary.end());
        assert!(last.is_none_or(|end| end == cut.end), "the log ends at the cut");
    }

    /// Moves the front; gives the segments that lie wholly before it.
    fn drop_front(&mut self, purged: Purged) -> Vec<Arc<Sealed>> {
        assert!(purged.end <= self.active.end(), "nothing behind the end is purged");
        let count = self.sealed.partition_point(|sealed| sealed.summary.end() <= purged.end);
        let gone = self.sealed.drain(..count).collect();
        self.purged = Some(purged);
        if self.last.is_none_or(|(last, _)| last <= purged.index) {
            self.last = None;
        }
        let needed = self.terms.range(..=purged.index).next_back().map(|(index, _)| *index);
        if let Some(needed) = needed {
            self.terms = self.terms.split_off(&needed);
        }
        gone
    }

    fn restart(&mut self, purged: Purged, active: Active) {
        self.sealed.clear();
        self.terms.clear();
        self.terms.insert(purged.index, purged.term);
        self.purged = Some(purged);
        self.last = None;
        self.last_stamp = purged.stamp;
        self.flushed = Some(purged.index);
        self.active = active;
    }
}
