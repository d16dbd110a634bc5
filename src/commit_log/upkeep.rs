//! Work beside the append path: index files of sealed segments, zeros ahead of the log's end where
//! no spare was ready, and the spare. A log whose upkeep never runs stays right; it recovers slower
//! and its new segments grow as they are filled.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::commit_log::index_file;
use crate::commit_log::sealed::Sealed;
use crate::commit_log::segment::Table;
use crate::commit_log::shared::Shared;
use crate::commit_log::spare::Filling;

/// Between two pieces of zeros ahead of the log's end, 1 MiB each: at most 20 MB/s.
const PAUSE_AHEAD: Duration = Duration::from_millis(50);
/// Between two pieces of a spare, 256 KiB each: at most 130 MB/s, so that filling takes a small part
/// of the disk's time. It takes next to no processor time.
const PAUSE: Duration = Duration::from_millis(2);
/// A segment that was no spare, as the first one of a log, has zeros so far ahead of its end: a
/// sync of a file that grows waits for the file system's journal, and all replicas of a machine
/// wait for the same one.
const AHEAD: u64 = 16 << 20;
/// Zeros of one piece of it; appends wait meanwhile.
const AHEAD_STEP: u64 = 1 << 20;
/// When there is nothing to do, or no room for a spare, look again so often.
const IDLE: Duration = Duration::from_secs(1);

/// Does the work; ends after all handles of the log are gone.
#[derive(Debug)]
pub struct Upkeep {
    pub(super) shared: Arc<Shared>,
}

impl Upkeep {
    /// For a thread: blocks until the log is closed or stopped.
    pub fn run(self) {
        while !self.ended() {
            if let Some(pause) = self.work() {
                std::thread::sleep(pause);
                continue;
            }
            let mut due = self.shared.upkeep_due.lock();
            if !*due {
                self.shared.upkeep_bell.wait_for(&mut due, IDLE);
            }
            *due = false;
        }
    }

    /// For a simulator or a test: one piece of work; false when there is none now.
    pub fn step(&self) -> bool {
        self.work().is_some()
    }

    /// Does one piece of work and tells how long to rest; `None` when there is none now.
    fn work(&self) -> Option<Duration> {
        if self.ended() {
            return None;
        }
        match self.shared.upkeep_once() {
            Ok(worked) => worked,
            // A full disk delays spare and index files; appends will say so if it stays full.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => None,
            Err(error) => {
                self.shared.stop("the upkeep of segments", &error);
                None
            }
        }
    }

    fn ended(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire) || self.shared.stopped.get().is_some()
    }
}

impl Shared {
    fn upkeep_once(&self) -> io::Result<Option<Duration>> {
        if self.write_index_file()? {
            return Ok(Some(PAUSE));
        }
        if !self.options.spare {
            return Ok(None);
        }
        if self.fill_spare()? {
            return Ok(Some(PAUSE));
        }
        Ok((self.is_busy() || self.fill_ahead()?).then_some(PAUSE_AHEAD))
    }

    /// Whether the log has grown by a piece since the last look. Then many entries share each sync,
    /// and zeros that go through the page cache would take more than they give.
    fn is_busy(&self) -> bool {
        let end = self.state.read().active.end();
        let before = std::mem::replace(&mut *self.upkeep_seen.lock(), end);
        end.get().saturating_sub(before.get()) >= AHEAD_STEP
    }

    /// Writes the next zeros behind the log's end; false when there are enough.
    fn fill_ahead(&self) -> io::Result<bool> {
        let _writer = self.writer.lock();
        let (segment, end) = {
            let state = self.state.read();
            (Arc::clone(&state.active.segment), state.active.len)
        };
        let whole = self.options.segment_bytes;
        let (len, wanted) = (segment.file.len()?, whole.min(end + AHEAD));
        if len >= wanted {
            return Ok(false);
        }
        segment.file.allocate(whole.min(len + AHEAD_STEP))?;
        Ok(true)
    }

    /// Writes a piece of the next spare. The spare's lock is not held meanwhile: a roll must not
    /// wait for zeros.
    fn fill_spare(&self) -> io::Result<bool> {
        let mut slot = self.filling.lock();
        let filled = self.state.read().active.len;
        let whole = self.options.segment_bytes;
        // Not for a log that hardly grows, nor at once while one is being begun.
        let early = whole > AHEAD && filled < whole / 2;
        if early || self.spare.lock().is_some() {
            return Ok(false);
        }
        let (disk, dir) = (&*self.env.disk, &self.dir);
        let mut filling = match slot.take() {
            Some(filling) => filling,
            None => Filling::start(disk, dir)?,
        };
        if filling.fill(self.options.segment_bytes)? {
            filling.finish(&mut self.spare.lock(), disk, dir)?;
        } else {
            *slot = Some(filling);
        }
        Ok(true)
    }

    /// Writes one index file of a segment that is sealed and durable.
    fn write_index_file(&self) -> io::Result<bool> {
        let _names = self.names.lock();
        let Some((sealed, table)) = self.next_unwritten() else { return Ok(false) };
        index_file::save(&*self.env.disk, &sealed.index_path, &sealed.summary, &table)?;
        sealed.written();
        Ok(true)
    }

    fn next_unwritten(&self) -> Option<(Arc<Sealed>, Arc<Table>)> {
        let state = self.state.read();
        let durable = |sealed: &&Arc<Sealed>| Some(sealed.last()) <= state.flushed;
        state
            .sealed
            .iter()
            .filter(durable)
            .find_map(|sealed| Some((Arc::clone(sealed), sealed.unwritten()?)))
    }
}
