//! Reads: frames by index, records by position. Nothing that fails its checksum gets out; a frame
//! that this process wrote, or has checked before, is not checked again, unless its bytes go into
//! the log once more.

use std::sync::Arc;

use bytes::Bytes;

use crate::base::{LogIndex, LogPosition};
use crate::commit_log::error::ReadError;
use crate::commit_log::segment::{Place, Run, RunError, Segment};
use crate::commit_log::segments::State;
use crate::commit_log::shared::Shared;
use crate::commit_log::{FRAME_HEADER, Frame};

impl Shared {
    /// Turns damage into an answer, and remembers it.
    pub(super) fn read_error(&self, error: RunError) -> ReadError {
        if let RunError::Rot(damage) = &error {
            self.note_damage(damage);
        }
        error.into()
    }

    pub(super) fn read(
        &self,
        from: LogIndex,
        to: LogIndex,
        max_bytes: usize,
    ) -> Result<Vec<Frame>, ReadError> {
        let mut frames: Vec<Frame> = Vec::new();
        let (mut at, mut bytes) = (from, 0);
        while at < to {
            let left = max_bytes.saturating_sub(bytes);
            let Some((segment, run)) = self.run(at, to, left)? else { break };
            if !frames.is_empty() && bytes + run.len > max_bytes {
                break;
            }
            frames.extend(segment.frames(run).map_err(|error| self.read_error(error))?);
            at = run.first.plus(run.count as u64);
            bytes += run.len;
        }
        Ok(frames)
    }

    /// Frames from `from` that lie in one segment; `None` behind the end.
    fn run(
        &self,
        from: LogIndex,
        to: LogIndex,
        max_bytes: usize,
    ) -> Result<Option<(Arc<Segment>, Run)>, ReadError> {
        let state = self.state.read();
        Self::check_index(&state, from)?;
        if state.last.is_none_or(|(last, _)| from > last) {
            return Ok(None);
        }
        let range_in = |first: LogIndex| {
            let number = |index: LogIndex| usize::try_from(index.since(first)).ok();
            let (start, end) = number(from).zip(number(to)).expect("counts fit into memory");
            start..end
        };
        let (segment, found) = if let Some(sealed) = state.sealed_with_index(from).cloned() {
            drop(state);
            let table = sealed.table(&*self.env.disk).map_err(|error| self.read_error(error))?;
            let run = table.run(range_in(sealed.segment.first), max_bytes, sealed.summary.len);
            (Arc::clone(&sealed.segment), run)
        } else {
            let active = &state.active;
            let run = active.table.run(range_in(active.segment.first), max_bytes, active.len);
            (Arc::clone(&active.segment), run)
        };
        let (offset, count, len) = found.ok_or(ReadError::Missing { index: from, last: None })?;
        Ok(Some((segment, Run { first: from, count, offset, len })))
    }

    fn check_index(state: &State, index: LogIndex) -> Result<(), ReadError> {
        let first = state.first();
        let below = match (first, state.purged) {
            (Some(first), _) => index < first,
            (None, Some(purged)) => index <= purged.index,
            (None, None) => false,
        };
        if below { Err(ReadError::Purged { index, first }) } else { Ok(()) }
    }

    pub(super) fn read_record(&self, position: LogPosition, size: u32) -> Result<Bytes, ReadError> {
        let (segment, place) = self.place_of(position)?;
        let offset = position.since(segment.base);
        let end = offset + u64::from(size);
        if offset < place.start + FRAME_HEADER as u64 || end > place.end {
            return Err(ReadError::NotInFrame { position, size });
        }
        let index = segment.first.plus(place.number as u64);
        let size = size as usize;
        if !segment.needs_check(index) {
            let bytes = segment.bytes(offset, size, index);
            return bytes.map_err(|error| self.read_error(error));
        }
        let frames =
            segment.frames(run_of(&segment, place)).map_err(|error| self.read_error(error))?;
        let frame = frames.first().expect("a run of one frame was read");
        Ok(record_in(frame, position, size))
    }

    pub(super) fn read_records_checked(
        &self,
        records: &[(LogPosition, u32)],
    ) -> Result<Vec<Bytes>, ReadError> {
        let mut read = Vec::with_capacity(records.len());
        // Records that follow each other often share a frame, and it may be large.
        let mut checked: Option<Frame> = None;
        for (position, size) in records.iter().copied() {
            let holds = |frame: &Frame| frame.position <= position && position < frame.end();
            let frame = match checked.take().filter(holds) {
                Some(frame) => frame,
                None => self.frame_checked(position)?,
            };
            let body = frame.body_position();
            let end = position.plus(u64::from(size));
            if position < body || end > frame.end() {
                return Err(ReadError::NotInFrame { position, size });
            }
            read.push(record_in(&frame, position, size as usize));
            checked = Some(frame);
        }
        Ok(read)
    }

    fn frame_checked(&self, position: LogPosition) -> Result<Frame, ReadError> {
        let (segment, place) = self.place_of(position)?;
        let read = segment.read_checked(run_of(&segment, place));
        let frame = read.map_err(|error| self.read_error(error))?.pop();
        Ok(frame.expect("a run of one frame was read"))
    }

    /// The frame that the byte at `position` lies in.
    fn place_of(&self, position: LogPosition) -> Result<(Arc<Segment>, Place), ReadError> {
        let outside = ReadError::NotInFrame { position, size: 0 };
        let state = self.state.read();
        let start = state.start();
        if position < start {
            return Err(ReadError::PurgedPosition { position, start });
        }
        if position >= state.active.end() {
            return Err(outside);
        }
        if let Some(sealed) = state.sealed_with_position(position).cloned() {
            drop(state);
            let table = sealed.table(&*self.env.disk).map_err(|error| self.read_error(error))?;
            let place = table.place(position.since(sealed.segment.base), sealed.summary.len);
            return Ok((Arc::clone(&sealed.segment), place.ok_or(outside)?));
        }
        let active = &state.active;
        let place = active.table.place(position.since(active.segment.base), active.len);
        Ok((Arc::clone(&active.segment), place.ok_or(outside)?))
    }
}

fn run_of(segment: &Segment, place: Place) -> Run {
    let len = usize::try_from(place.end - place.start).expect("frames fit into memory");
    Run { first: segment.first.plus(place.number as u64), count: 1, offset: place.start, len }
}

fn record_in(frame: &Frame, position: LogPosition, size: usize) -> Bytes {
    let start = usize::try_from(position.since(frame.body_position())).expect("inside a body");
    frame.body.slice(start..start + size)
}
