//! Looks for rot in what is at rest.

use std::sync::Arc;

use crate::base::LogPosition;
use crate::commit_log::error::ReadError;
use crate::commit_log::sealed::Sealed;
use crate::commit_log::segment::Run;
use crate::commit_log::shared::Shared;

/// How far a round over the sealed segments got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Bytes checked by this call.
    pub checked: u64,
    /// Bytes left of the round; 0 ends it, and the next call starts another.
    pub left: u64,
}

impl Shared {
    pub(super) fn scrub(&self, budget: u64) -> Result<ScrubProgress, ReadError> {
        let mut cursor = self.scrub.lock();
        let mut progress = ScrubProgress::default();
        loop {
            let Some((sealed, from)) = self.next_to_scrub(*cursor) else {
                *cursor = LogPosition::ZERO;
                progress.left = 0;
                return Ok(progress);
            };
            let left = budget.saturating_sub(progress.checked);
            if progress.checked > 0 && left == 0 {
                progress.left = self.left_to_scrub(from);
                return Ok(progress);
            }
            let end = self.scrub_some(&sealed, from, left)?;
            progress.checked += end.since(from);
            *cursor = end;
        }
    }

    /// The segment that holds `cursor`, or the next one, and where in it to go on. What was purged is
    /// of no interest: a part of the first segment, or all of it, when the log was purged to its very
    /// end and began another segment since.
    fn next_to_scrub(&self, cursor: LogPosition) -> Option<(Arc<Sealed>, LogPosition)> {
        let state = self.state.read();
        let cursor = cursor.max(state.start());
        let sealed = state.sealed.iter().find(|sealed| sealed.summary.end() > cursor)?;
        Some((Arc::clone(sealed), cursor.max(sealed.segment.base)))
    }

    fn left_to_scrub(&self, cursor: LogPosition) -> u64 {
        let state = self.state.read();
        let cursor = cursor.max(state.start());
        let left = |sealed: &Arc<Sealed>| {
            let end = sealed.summary.end();
            let from = cursor.max(sealed.segment.base);
            if end > from { end.since(from) } else { 0 }
        };
        state.sealed.iter().map(left).sum()
    }

    /// Checks frames of one segment from `from` on; tells where it stopped.
    fn scrub_some(
        &self,
        sealed: &Sealed,
        from: LogPosition,
        budget: u64,
    ) -> Result<LogPosition, ReadError> {
        let (segment, summary) = (&sealed.segment, &sealed.summary);
        let table = sealed.table(&*self.env.disk).map_err(|error| self.read_error(error))?;
        let place = table.place(from.since(segment.base), summary.len);
        let place = place.expect("the cursor lies inside the segment");
        let max = usize::try_from(budget).unwrap_or(usize::MAX);
        let run = table.run(place.number..table.count(), max, summary.len);
        let (offset, count, len) = run.ok_or_else(|| ReadError::Io {
            path: sealed.index_path.clone(),
            kind: std::io::ErrorKind::InvalidData,
            reason: "its offsets do not rise".to_owned(),
        })?;
        let first = segment.first.plus(place.number as u64);
        let run = Run { first, count, offset, len };
        segment.read_checked(run).map_err(|error| self.read_error(error))?;
        Ok(segment.base.plus(offset + len as u64))
    }
}
