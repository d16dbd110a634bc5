//! Stories about the whole log.

mod append;
mod cut;
mod damage;
mod os;
mod power;
mod spare;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::base::{LogIndex, NodeId, Term};
use crate::commit_log::{
    CommitLog, Completion, Flusher, Frame, FrameKind, OpenError, Options, Vote,
};
use crate::env::sim::Sim;

pub(super) const DIR: &str = "/node/log";

/// A log on a simulated disk, worked by hand.
pub(super) struct Rig {
    pub(super) sim: Sim,
    pub(super) log: CommitLog,
    pub(super) flusher: Flusher,
    pub(super) options: Options,
    /// What completed, in order.
    pub(super) done: Done,
}

/// Completions as they came: the tag of each, and whether it was good.
#[derive(Clone, Debug, Default)]
pub(super) struct Done(Arc<Mutex<Vec<(u64, bool)>>>);

impl Done {
    pub(super) fn completion(&self, tag: u64) -> Completion {
        let done = self.clone();
        Box::new(move |result: io::Result<()>| done.0.lock().push((tag, result.is_ok())))
    }

    pub(super) fn all(&self) -> Vec<(u64, bool)> {
        self.0.lock().clone()
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

pub(super) fn index(value: u64) -> LogIndex {
    LogIndex::new(value)
}

pub(super) fn term(value: u64) -> Term {
    Term::new(value)
}

pub(super) fn vote(term: u64) -> Vote {
    Vote { term: Term::new(term), node: NodeId::new(1), committed: false }
}

/// A body that tells its index and term, of a length that varies.
pub(super) fn body(index: u64, term: u64) -> Bytes {
    let mut bytes = format!("entry {index} of term {term} ").into_bytes();
    bytes.resize(bytes.len() + usize::try_from(index * 7 % 90).unwrap(), b'.');
    bytes.into()
}

pub(super) fn frame(at: u64, in_term: u64) -> Frame {
    Frame::unsealed(index(at), term(in_term), FrameKind::Command, body(at, in_term))
}

pub(super) fn open(sim: &Sim, options: Options) -> Result<(CommitLog, Flusher), OpenError> {
    CommitLog::open(sim.env(), Path::new(DIR), options)
}

impl Rig {
    pub(super) fn new(segment_bytes: u64) -> Self {
        Self::on(Sim::new(1), Options { segment_bytes, spare: false })
    }

    pub(super) fn on(sim: Sim, options: Options) -> Self {
        let (log, flusher) = open(&sim, options).unwrap();
        Self { sim, log, flusher, options, done: Done::default() }
    }

    /// Ends the program, not the machine, and starts it again.
    pub(super) fn reopen(self) -> Self {
        let Self { sim, options, .. } = self;
        sim.disk.kill();
        Self::on(sim, options)
    }

    /// Power goes and comes back.
    pub(super) fn power_cut(self, seed: u64) -> Self {
        let Self { sim, options, .. } = self;
        sim.disk.power_cut(seed);
        Self::on(sim, options)
    }

    pub(super) fn append(&self, from: u64, to: u64, in_term: u64) {
        let frames = (from..to).map(|at| frame(at, in_term)).collect();
        self.log.append(frames, self.done.completion(to - 1)).unwrap();
    }

    /// Appends one by one and makes them durable.
    pub(super) fn fill(&self, from: u64, to: u64, in_term: u64) {
        for at in from..to {
            self.append(at, at + 1, in_term);
        }
        self.flush();
    }

    pub(super) fn flush(&self) {
        while self.flusher.step() {}
    }

    pub(super) fn upkeep(&self) {
        let upkeep = self.log.upkeep();
        while upkeep.step() {}
    }

    pub(super) fn read_all(&self) -> Vec<Frame> {
        let bounds = self.log.bounds();
        let Some(first) = bounds.first else { return Vec::new() };
        let last = bounds.last.unwrap().0;
        let mut frames: Vec<Frame> = Vec::new();
        while frames.last().is_none_or(|frame| frame.index < last) {
            let from = frames.last().map_or(first, |frame| frame.index.next());
            frames.extend(self.log.read(from, last.next(), 1_000).unwrap());
        }
        frames
    }

    /// Index and term of all entries, each with the body that belongs to it, densely placed.
    pub(super) fn entries(&self) -> Vec<(u64, u64)> {
        let mut at = self.log.bounds().start;
        let mut entries = Vec::new();
        for frame in self.read_all() {
            let (index, term) = (frame.index.get(), frame.term.get());
            assert_eq!(frame.body, body(index, term));
            assert_eq!(frame.position, at, "positions are dense");
            assert_eq!(self.log.term_of(frame.index), Some(frame.term));
            at = at.plus(frame.encoded_len() as u64);
            entries.push((index, term));
        }
        assert_eq!(at, self.log.bounds().end);
        entries
    }

    pub(super) fn path(&self, segment: usize) -> PathBuf {
        self.log.segments()[segment].path.clone()
    }
}

/// Entries from `from` to before `to` of one term.
pub(super) fn run(from: u64, to: u64, in_term: u64) -> Vec<(u64, u64)> {
    (from..to).map(|at| (at, in_term)).collect()
}
