//! The append path: seal, encode, one write for each segment touched, publish, queue for the sync.

use std::sync::Arc;

use bytes::BytesMut;

use crate::base::{LogPosition, Mutant};
use crate::commit_log::error::AppendError;
use crate::commit_log::queue::{Appended, Task};
use crate::commit_log::sealed::Sealed;
use crate::commit_log::segment::{Before, Segment};
use crate::commit_log::segments::{Active, State};
use crate::commit_log::shared::Shared;
use crate::commit_log::stats::add;
use crate::commit_log::{Completion, FRAME_BODY_MAX, Frame};
use crate::env::Clock;

/// A buffer that grew beyond this is given back after the call.
const BUFFER_KEPT: usize = 8 << 20;

const PAGE: u64 = 4096;
/// Each time that so much was added, the upkeep looks whether zeros are needed ahead.
const UPKEEP_STEP: u64 = 1 << 20;

/// Frames that go into one segment by one write.
struct Part {
    segment: Arc<Segment>,
    /// Where the first one starts in the segment.
    offset: u64,
    /// The same in the buffer, and where the last one ends there.
    from: usize,
    to: usize,
    offsets: Vec<u32>,
}

impl Part {
    fn new(segment: Arc<Segment>, offset: u64, from: usize) -> Self {
        Self { segment, offset, from, to: from, offsets: Vec::new() }
    }

    /// Bytes of the segment that are taken with this part.
    fn len(&self) -> u64 {
        self.offset + (self.to - self.from) as u64
    }
}

/// Checks that the frames continue the log and gives stamps and checksums to new ones (rule R2).
fn seal(frames: &mut [Frame], mut before: Before, clock: &dyn Clock) -> Result<(), AppendError> {
    for frame in frames {
        let index = frame.index;
        if let Some(expected) = before.next.filter(|expected| *expected != index) {
            return Err(AppendError::Index { expected, found: index });
        }
        if frame.term < before.term {
            let (previous, found) = (before.term, frame.term);
            return Err(AppendError::Term { index, previous, found });
        }
        if frame.body.len() > FRAME_BODY_MAX {
            return Err(AppendError::Length { index, len: frame.body.len() });
        }
        let stamp = match frame.seal {
            Some(seal) if seal.stamp < before.stamp => {
                let (previous, found) = (before.stamp, seal.stamp);
                return Err(AppendError::Stamp { index, previous, found });
            }
            Some(seal) => seal.stamp,
            None => {
                let stamp = if Mutant::StampBeforeIndex.is_on() {
                    clock.wall()
                } else {
                    clock.wall().max(before.stamp)
                };
                frame.close(stamp);
                stamp
            }
        };
        before = Before { next: Some(index.next()), term: frame.term, stamp };
    }
    Ok(())
}

/// Fills the last page with zeros where the file has it already. Its pages were written past the
/// page cache, and one of which a part is written would be read from the disk before.
fn pad(parts: &[Part], buffer: &mut BytesMut) {
    let Some(last) = parts.last() else { return };
    let end = last.len().next_multiple_of(PAGE);
    if end <= last.segment.reserved {
        let more = usize::try_from(end - last.len()).expect("less than a page");
        buffer.resize(buffer.len() + more, 0);
    }
}

impl Shared {
    pub(super) fn append(
        &self,
        mut frames: Vec<Frame>,
        done: Completion,
    ) -> Result<(), AppendError> {
        let mut writer = self.writer.lock();
        self.running()?;
        let Some(last) = frames.len().checked_sub(1) else {
            self.queue.push(Task::Barrier { done });
            return Ok(());
        };
        seal(&mut frames, self.state.read().before(), &*self.env.clock)?;
        let buffer = &mut writer.buffer;
        buffer.clear();
        let parts = self.place(&frames, buffer)?;
        add(&self.counters.bytes, buffer.len() as u64);
        pad(&parts, buffer);
        let ends = parts.iter().skip(1).map(|part| part.from).chain([buffer.len()]);
        for (part, end) in parts.iter().zip(ends.collect::<Vec<_>>()) {
            let written = part.segment.file.write_at(part.offset, &buffer[part.from..end]);
            written.map_err(|error| self.stop("a write to the log", &error))?;
        }
        add(&self.counters.appends, 1);
        add(&self.counters.frames, frames.len() as u64);
        if buffer.capacity() > BUFFER_KEPT {
            *buffer = BytesMut::new();
        }
        let segments: Vec<_> = parts.iter().map(|part| Arc::clone(&part.segment)).collect();
        // The first file of a log has its name since the log was opened.
        let named = parts.len() > 1 || parts[0].offset == 0;
        let steps = |part: &Part| part.offset / UPKEEP_STEP < part.len() / UPKEEP_STEP;
        if parts.iter().any(steps) {
            self.ask_upkeep();
        }
        self.publish(&frames, parts);
        let through = (frames[last].index, frames[last].term);
        self.queue.push(Task::Append(Appended { through, segments, named, done }));
        Ok(())
    }

    /// Encodes the frames and decides which segments take them.
    fn place(&self, frames: &[Frame], buffer: &mut BytesMut) -> Result<Vec<Part>, AppendError> {
        let first = frames[0].index;
        let (mut segment, len) = {
            let state = self.state.read();
            (Arc::clone(&state.active.segment), state.active.len)
        };
        if len == 0 && segment.first != first {
            segment = Arc::new(segment.restarted(first));
        }
        let mut parts = vec![Part::new(segment, len, 0)];
        for frame in frames {
            let part = parts.last_mut().expect("there is at least one part");
            let len = part.len();
            let size = frame.encoded_len() as u64;
            // A frame larger than a segment gets one of its own.
            if len > 0 && len + size > self.options.segment_bytes {
                let base = part.segment.base.plus(len);
                let created = self.new_segment(base, frame.index);
                let created = created.map_err(|error| self.stop("starting a segment", &error))?;
                parts.push(Part::new(Arc::new(created), 0, buffer.len()));
            }
            let part = parts.last_mut().expect("there is at least one part");
            let offset = u32::try_from(part.len()).expect("segments are below 4 GiB");
            part.offsets.push(offset);
            frame.encode(buffer);
            part.to = buffer.len();
        }
        parts.retain(|part| !part.offsets.is_empty());
        Ok(parts)
    }

    /// Makes the frames readable.
    fn publish(&self, frames: &[Frame], parts: Vec<Part>) {
        let state = &mut *self.state.write();
        let mut rest = frames;
        for part in parts {
            if part.segment.base != state.active.segment.base {
                self.seal_active(state, Arc::clone(&part.segment));
            }
            let active = &mut state.active;
            assert_eq!(active.len, part.offset, "a write starts where the one before ended");
            active.len = part.len();
            active.segment = part.segment;
            for offset in &part.offsets {
                active.table.push(*offset);
            }
            let (here, later) = rest.split_at(part.offsets.len());
            rest = later;
            for frame in here {
                state.note_term(frame.index, frame.term);
            }
            // Sealing the segment needs the stamp of its own last frame.
            if let Some(frame) = here.last() {
                state.last = Some((frame.index, frame.term));
                state.last_stamp = frame.seal.map(|seal| seal.stamp).unwrap_or_default();
            }
        }
        assert!(rest.is_empty(), "every frame has its place");
    }

    /// The active segment takes no more; `next` starts where it ends.
    fn seal_active(&self, state: &mut State, next: Arc<Segment>) {
        let end: LogPosition = state.active.end();
        assert_eq!(next.base, end, "positions are dense");
        let summary = state.summary_of_active(false);
        let full = std::mem::replace(&mut state.active, Active::empty(next));
        let sealed = Sealed::fresh(&self.dir, full.segment, summary, full.table);
        state.sealed.push_back(Arc::new(sealed));
    }
}
