//! Several files become one, so that a question asks few.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::Options;
use super::entry::{ENTRY_BYTES, Entry};
use super::run::{self, Run, RunError, Span};
use crate::base::LogPosition;
use crate::env::Disk;

/// Files that follow each other, have been merged equally often, and are not too much for one file.
/// Those that were merged least go first: they are the smallest.
pub(super) fn choose(runs: &[Arc<Run>], options: &Options) -> Option<Range<usize>> {
    let fits = |window: &[Arc<Run>]| {
        let level = window[0].span.level;
        let entries: u64 = window.iter().map(|run| run.entries).sum();
        window.iter().all(|run| run.span.level == level)
            && level < u8::MAX
            && entries <= options.entries_max
    };
    let windows = runs.windows(options.merged).enumerate();
    let fitting = windows.filter(|(_, window)| fits(window));
    let (at, _) = fitting.min_by_key(|(_, window)| window[0].span.level)?;
    Some(at..at + options.merged)
}

/// One file with the entries of all of these, which follow each other.
pub(super) fn merge(place: (&dyn Disk, &Path), runs: &[Arc<Run>]) -> Result<Run, RunError> {
    let (first, last) = (&runs[0].span, &runs[runs.len() - 1].span);
    let span = Span { from: first.from, until: last.until, level: first.level + 1 };
    let entries = runs.iter().map(|run| run.entries).sum();
    run::write(place, span, entries, Merged::new(runs)?)
}

/// The entries of one file in their order.
struct Cursor<'a> {
    run: &'a Run,
    next_bucket: usize,
    entries: VecDeque<Entry>,
}

impl Cursor<'_> {
    fn pop(&mut self) -> Result<Option<Entry>, RunError> {
        while self.entries.is_empty() && self.next_bucket < self.run.buckets() {
            let bytes = self.run.bucket(self.next_bucket)?;
            self.next_bucket += 1;
            for entry in bytes.chunks_exact(ENTRY_BYTES) {
                self.entries.push_back(self.run.entry(entry)?);
            }
        }
        Ok(self.entries.pop_front())
    }
}

struct Merged<'a> {
    cursors: Vec<Cursor<'a>>,
    /// The next entry of each file, by its place in the order, with the file's number.
    heads: BinaryHeap<Reverse<(u64, LogPosition, usize)>>,
    /// The entries that `heads` stand for.
    waiting: Vec<Option<Entry>>,
}

impl<'a> Merged<'a> {
    fn new(runs: &'a [Arc<Run>]) -> Result<Self, RunError> {
        let cursor = |run: &'a Arc<Run>| Cursor { run, next_bucket: 0, entries: VecDeque::new() };
        let mut merged = Self {
            cursors: runs.iter().map(cursor).collect(),
            heads: BinaryHeap::new(),
            waiting: vec![None; runs.len()],
        };
        (0..runs.len()).try_for_each(|number| merged.refill(number))?;
        Ok(merged)
    }

    fn refill(&mut self, number: usize) -> Result<(), RunError> {
        self.waiting[number] = self.cursors[number].pop()?;
        if let Some(entry) = &self.waiting[number] {
            let (hash, position) = entry.order();
            self.heads.push(Reverse((hash, position, number)));
        }
        Ok(())
    }
}

impl Iterator for Merged<'_> {
    type Item = Result<Entry, RunError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((.., number)) = self.heads.pop()?;
        let entry = self.waiting[number].take().expect("a head stands for an entry");
        Some(self.refill(number).map(|()| entry))
    }
}
