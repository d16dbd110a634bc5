//! A look at a stopped log that changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::base::LogPosition;
use crate::commit_log::error::OpenError;
use crate::commit_log::flushed_mark::Mark;
use crate::commit_log::index_file::{self, Summary};
use crate::commit_log::recovery::{self, Layout};
use crate::commit_log::segment::{INDEX_SUFFIX, LOG_SUFFIX, path_of};
use crate::commit_log::{Damage, Frame, FrameError};
use crate::env::{Disk, Open};

/// One frame, where it lies, and in which file. The frame's position is set.
#[derive(Clone, Debug)]
pub struct Inspected {
    pub frame: Frame,
    pub segment: PathBuf,
    /// Where the frame starts in that file.
    pub offset: u64,
}

/// The frames of a log in order. The first bad one is given as an error and ends the walk; behind
/// the last segment's end that is what every log looks like, and not given.
#[derive(Debug)]
pub struct Inspect {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    bases: Vec<LogPosition>,
    floor: Option<Mark>,
    number: usize,
    open: Option<OpenFile>,
    expected: Option<crate::base::LogIndex>,
    done: bool,
}

#[derive(Debug)]
struct OpenFile {
    base: LogPosition,
    bytes: Bytes,
    at: usize,
    /// Whether more frames must be there.
    strict: bool,
}

/// Opens the log in `dir` for looking only. The log must not be running.
pub fn inspect(disk: Arc<dyn Disk>, dir: &Path) -> Result<Inspect, OpenError> {
    let Layout { bases, floor } = recovery::layout(&*disk, dir)?;
    Ok(Inspect {
        disk,
        dir: dir.to_path_buf(),
        bases,
        floor,
        number: 0,
        open: None,
        expected: None,
        done: false,
    })
}

impl Inspect {
    /// The bytes of the next segment that belong to the log.
    fn load(&self, base: LogPosition) -> Result<OpenFile, OpenError> {
        let path = path_of(&self.dir, base, LOG_SUFFIX);
        let io = |source| OpenError::Io { what: "reading a segment", path: path.clone(), source };
        let index = path_of(&self.dir, base, INDEX_SUFFIX);
        let summary: Option<Summary> = index_file::load(&*self.disk, &index).map_err(io)?;
        let next = self.bases.get(self.number + 1).map(|next| next.since(base));
        let file = self.disk.open(&path, Open::Read).map_err(io)?;
        let len = file.len().map_err(io)?;
        let strict = summary.map(|summary| summary.len).or(next);
        let limit = usize::try_from(strict.unwrap_or(len).min(len)).unwrap_or(usize::MAX);
        let bytes = file.read_at(0, limit).map_err(io)?;
        Ok(OpenFile { base, bytes, at: 0, strict: strict.is_some() })
    }

    fn step(&mut self) -> Result<Option<Inspected>, OpenError> {
        loop {
            let Some(open) = &mut self.open else {
                let Some(base) = self.bases.get(self.number).copied() else { return Ok(None) };
                self.open = Some(self.load(base)?);
                continue;
            };
            if open.at == open.bytes.len() {
                self.open = None;
                self.number += 1;
                continue;
            }
            let reached = self.expected.unwrap_or_default();
            let rest = open.bytes.slice(open.at..);
            let segment = path_of(&self.dir, open.base, LOG_SUFFIX);
            let offset = open.at as u64;
            let position = open.base.plus(offset);
            let result = Frame::decode(&rest).and_then(|(frame, len)| match self.expected {
                Some(expected) if expected != frame.index => {
                    Err(FrameError::Index { expected, found: frame.index })
                }
                _ => Ok((frame, len)),
            });
            return match result {
                Ok((mut frame, len)) => {
                    frame.position = position;
                    open.at += len;
                    self.expected = Some(frame.index.next());
                    Ok(Some(Inspected { frame, segment, offset }))
                }
                // Behind what was durable lies a torn tail, or nothing.
                Err(_) if !open.strict && self.floor.is_none_or(|floor| reached > floor.0) => {
                    Ok(None)
                }
                Err(reason) => Err(Damage { segment, index: reached, position, reason }.into()),
            };
        }
    }
}

impl Iterator for Inspect {
    type Item = Result<Inspected, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.step().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}
