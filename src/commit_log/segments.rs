//! Which segments there are and what lies where: all that appends publish and reads look up.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::commit_log::Vote;
use crate::commit_log::flushed_mark::Mark;
use crate::commit_log::index_file::Summary;
use crate::commit_log::purged::Purged;
use crate::commit_log::sealed::Sealed;
use crate::commit_log::segment::{Before, Segment, Table};

/// How far the log reaches. `last` falls back to `purged` when the log is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The last entry that is no longer served.
    pub purged: Option<(LogIndex, Term)>,
    /// The last entry, or `purged` when there is none.
    pub last: Option<(LogIndex, Term)>,
    /// The first entry that is served; `None` when the log is empty.
    pub first: Option<LogIndex>,
    /// Where the first served entry starts, or the next one will when the log is empty.
    pub start: LogPosition,
    /// Where the next entry will start.
    pub end: LogPosition,
    /// The last entry that is durable here; what was purged counts as durable.
    pub flushed: Option<LogIndex>,
    /// The stamp of `last`; later entries are not below it.
    pub last_stamp: UtcMillis,
}

/// One segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    pub base: LogPosition,
    /// First and last index, purged ones included; `None` when it holds no frame.
    pub first: Option<LogIndex>,
    pub last: Option<LogIndex>,
    /// Bytes of frames.
    pub bytes: u64,
    pub sealed: bool,
    pub path: PathBuf,
}

/// The segment that takes the next frame.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) segment: Arc<Segment>,
    pub(super) table: Table,
    pub(super) len: u64,
}

impl Active {
    pub(super) fn empty(segment: Arc<Segment>) -> Self {
        Self { segment, table: Table::default(), len: 0 }
    }

    pub(super) fn end(&self) -> LogPosition {
        self.segment.base.plus(self.len)
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) sealed: VecDeque<Arc<Sealed>>,
    pub(super) active: Active,
    /// Where each term begins; may reach below the first entry.
    pub(super) terms: BTreeMap<LogIndex, Term>,
    pub(super) purged: Option<Purged>,
    /// The last entry of the log, `None` when it is empty.
    pub(super) last: Option<(LogIndex, Term)>,
    pub(super) last_stamp: UtcMillis,
    pub(super) flushed: Option<LogIndex>,
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<Mark>,
}

impl State {
    /// The last entry, purged ones included.
    pub(super) fn reached(&self) -> Option<Mark> {
        self.last.or_else(|| self.purged.map(|purged| (purged.index, purged.term)))
    }

    /// What the next entry follows.
    pub(super) fn before(&self) -> Before {
        let reached = self.reached();
        Before {
            next: reached.map(|(index, _)| index.next()),
            term: reached.map(|(_, term)| term).unwrap_or_default(),
            stamp: self.last_stamp,
        }
    }

    /// The first entry that is served.
    pub(super) fn first(&self) -> Option<LogIndex> {
        self.last?;
        match self.purged {
            Some(purged) => Some(purged.index.next()),
            None => self
                .sealed
                .front()
                .map(|sealed| sealed.segment.first)
                .or(Some(self.active.segment.first)),
        }
    }

    pub(super) fn start(&self) -> LogPosition {
        match self.purged {
            Some(purged) => purged.end,
            None => {
                self.sealed.front().map_or(self.active.segment.base, |sealed| sealed.segment.base)
            }
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        let purged = self.purged.map(|purged| (purged.index, purged.term));
        let bounds = Bounds {
            purged,
            last: self.reached(),
            first: self.first(),
            start: self.start(),
            end: self.active.end(),
            flushed: self.flushed.max(purged.map(|(index, _)| index)),
            last_stamp: self.last_stamp,
        };
        assert!(
            bounds.start <= bounds.end,
            "the log starts at {} and ends at {}",
            bounds.start,
            bounds.end
        );
        bounds
    }

    pub(super) fn term_of(&self, index: LogIndex) -> Option<Term> {
        if let Some(purged) = self.purged.filter(|purged| index <= purged.index) {
            return (purged.index == index).then_some(purged.term);
        }
        let (last, _) = self.last?;
        if index > last || index < self.first()? {
            return None;
        }
        self.terms.range(..=index).next_back().map(|(_, term)| *term)
    }

    pub(super) fn note_term(&mut self, index: LogIndex, term: Term) {
        let last = self.terms.last_key_value().map(|(_, term)| *term);
        if last != Some(term) {
            assert!(last.is_none_or(|last| last < term), "terms rise: {last:?}, {term}");
            self.terms.insert(index, term);
        }
    }

    /// What an index file says of the active segment.
    pub(super) fn summary_of_active(&self, cut: bool) -> Summary {
        let (active, first) = (&self.active, self.active.segment.first);
        let count = u32::try_from(active.table.count()).expect("segments are below 4 GiB");
        Summary {
            base: active.segment.base,
            first,
            count,
            len: active.len,
            cut,
            stamp: self.last_stamp,
            terms: self.terms_between(first, first.plus(u64::from(count))),
        }
    }

    /// The terms of the entries from `first` to before `end`.
    pub(super) fn terms_between(&self, first: LogIndex, end: LogIndex) -> Vec<(LogIndex, Term)> {
        let start = self.terms.range(..=first).next_back().map(|(_, term)| (first, *term));
        let later = self.terms.range(first.next()..end.max(first.next()));
        start.into_iter().chain(later.map(|(index, term)| (*index, *term))).collect()
    }

    /// The sealed segment that holds `index`, if one does.
    pub(super) fn sealed_with_index(&self, index: LogIndex) -> Option<&Arc<Sealed>> {
        let after = self.sealed.partition_point(|sealed| sealed.segment.first <= index);
        let sealed = self.sealed.get(after.checked_sub(1)?)?;
        (index < sealed.summary.next()).then_some(sealed)
    }

    /// The sealed segment that holds the byte at `position`, if one does.
    pub(super) fn sealed_with_position(&self, position: LogPosition) -> Option<&Arc<Sealed>> {
        let after = self.sealed.partition_point(|sealed| sealed.segment.base <= position);
        let sealed = self.sealed.get(after.checked_sub(1)?)?;
        (position < sealed.summary.end()).then_some(sealed)
    }

    pub(super) fn infos(&self) -> Vec<SegmentInfo> {
        let sealed = self.sealed.iter().map(|sealed| SegmentInfo {
            base: sealed.segment.base,
            first: Some(sealed.segment.first),
            last: Some(sealed.last()),
            bytes: sealed.summary.len,
            sealed: true,
            path: sealed.segment.path.clone(),
        });
        let active = &self.active;
        let count = active.table.count() as u64;
        let active = SegmentInfo {
            base: active.segment.base,
            first: (count > 0).then_some(active.segment.first),
            last: count.checked_sub(1).map(|more| active.segment.first.plus(more)),
            bytes: active.len,
            sealed: false,
            path: active.segment.path.clone(),
        };
        sealed.chain([active]).collect()
    }
}
