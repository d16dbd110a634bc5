//! The machine as openraft's state machine.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::base::{LogIndex, Term};
use crate::command::Reply;
use crate::commit_log::{Frame, FrameKind};
use crate::machine::{self, Effect, Machine};
use crate::raft::EffectSink;
use crate::raft::checkpoints::Checkpoints;
use crate::raft::ending::Ending;
use crate::raft::log_store::{Installed, InstalledCell};
use crate::raft::marks::Marks;
use crate::raft::snapshot::{Contents, Snapshot, SnapshotBuilder, SnapshotFile};
use crate::raft::types::{
    EntryId, SnapshotMeta, StoredMembership, Types, decode_membership, entry_id, index_of, term_of,
};

/// Entries applied under one lock and answered together; readers get in between.
const APPLY_BATCH: usize = 256;

/// How far this replica has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) index: Option<LogIndex>,
    /// Of the entry at `index`.
    pub(crate) term: Term,
}

/// What changes rarely and makes a leader ready to serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Milestone {
    /// Of the last applied entry.
    pub(crate) term: Term,
    pub(crate) founded: bool,
}

/// Where others see what was applied.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) progress: Arc<watch::Sender<Progress>>,
    pub(crate) milestone: Arc<watch::Sender<Milestone>>,
    /// Where the log of every replica may begin.
    pub(crate) floor: Arc<watch::Sender<Option<LogIndex>>>,
}

impl Watched {
    pub(crate) fn new(machine: &Machine) -> Self {
        let watched = Self {
            progress: Arc::new(watch::Sender::new(Progress::default())),
            milestone: Arc::new(watch::Sender::new(Milestone::default())),
            floor: Arc::new(watch::Sender::new(None)),
        };
        watched.update(machine);
        watched
    }

    fn update(&self, machine: &Machine) {
        let state = machine.state();
        let Some((index, term)) = state.applied() else { return };
        self.progress.send_replace(Progress { index: Some(index), term });
        let milestone = Milestone { term, founded: state.founded().is_some() };
        send_if_new(&self.milestone, milestone);
        send_if_new(&self.floor, state.floor().map(|floor| floor.index));
    }
}

fn send_if_new<T: PartialEq>(watched: &watch::Sender<T>, now: T) {
    watched.send_if_modified(|known| {
        let changed = *known != now;
        *known = now;
        changed
    });
}

/// Applies committed entries to the machine.
pub(crate) struct StateMachine {
    pub(crate) machine: Arc<RwLock<Machine>>,
    pub(crate) sink: Arc<dyn EffectSink>,
    pub(crate) watched: Watched,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) marks: Marks,
    pub(crate) snapshots: SnapshotFile,
    pub(crate) installed: InstalledCell,
    pub(crate) ending: Ending,
}

/// What a batch leaves to do once the machine is free again.
#[derive(Default)]
struct Batch {
    answers: Vec<(ApplyResponder<Types>, Reply)>,
    effects: Vec<Effect>,
}

impl StateMachine {
    /// Applies up to the first error; what was applied before it is answered all the same.
    fn apply_batch(
        &mut self,
        entries: Vec<Result<EntryResponder<Types>, io::Error>>,
    ) -> io::Result<()> {
        let mut batch = Batch::default();
        let shared = self.machine.clone();
        let mut machine = shared.write();
        let result = entries.into_iter().try_for_each(|item| {
            let (entry, responder) = item?;
            let (reply, effects) = self.apply_one(&mut machine, entry.into_frame())?;
            batch.effects.extend(effects);
            batch.answers.extend(responder.map(|responder| (responder, reply)));
            Ok(())
        });
        self.watched.update(&machine);
        drop(machine);
        for (responder, reply) in batch.answers {
            responder.send(reply);
        }
        self.sink.applied(batch.effects);
        result
    }

    fn apply_one(
        &mut self,
        machine: &mut Machine,
        frame: Frame,
    ) -> io::Result<(Reply, Vec<Effect>)> {
        let seal = frame.seal.ok_or_else(|| {
            self.ending.because(&format_args!("entry {} came without a seal", frame.index))
        })?;
        let position = frame.body_position();
        let end = frame.position.plus(frame.encoded_len() as u64);
        let command = match frame.kind {
            FrameKind::Command => frame.body.clone(),
            FrameKind::Blank | FrameKind::Membership => Bytes::new(),
        };
        let (index, term) = (frame.index, frame.term);
        let entry = machine::Entry { index, term, stamp: seal.stamp, position, end, command };
        let applied = machine.apply(&entry).map_err(|error| {
            self.ending.because(&format_args!("applying entry {index}: {error}"))
        })?;
        if frame.kind == FrameKind::Membership {
            machine.set_membership((index, term), frame.body);
        }
        if machine.state().at_mark() {
            self.keep_mark(machine)?;
        }
        Ok((applied.reply, applied.effects))
    }

    /// The state exactly at a mark, for peers that need the log from there on.
    fn keep_mark(&mut self, machine: &Machine) -> io::Result<()> {
        let frozen = machine.freeze_for_peers().expect("a mark is an applied entry");
        let membership = self.membership(machine)?;
        self.marks.keep(frozen, membership);
        Ok(())
    }

    fn membership(&self, machine: &Machine) -> io::Result<StoredMembership> {
        let Some((index, term, bytes)) = machine.state().membership() else {
            return Ok(StoredMembership::default());
        };
        let membership = decode_membership(bytes).map_err(|error| {
            self.ending.because(&format_args!("the membership of entry {index}: {error}"))
        })?;
        Ok(StoredMembership::new(Some(entry_id(index, term)), membership))
    }
}

impl RaftStateMachine<Types> for StateMachine {
    /// A whole snapshot file.
    type SnapshotData = Bytes;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<EntryId>, StoredMembership), io::Error> {
        let machine = self.machine.read();
        let applied = machine.state().applied().map(|(index, term)| entry_id(index, term));
        Ok((applied, self.membership(&machine)?))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut batches = entries.ready_chunks(APPLY_BATCH);
        while let Some(batch) = batches.next().await {
            self.apply_batch(batch)?;
            self.checkpoints.consider();
        }
        Ok(())
    }

    /// The newest kept mark that the log may be cut at. openraft insists (`force`) only where the
    /// log's front is gone and no state stands for it, which the start does not let happen.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        if force {
            return Some(self.get_snapshot_builder().await);
        }
        let floor = self.machine.read().state().floor()?.index;
        let (contents, bytes) = self.marks.newest(floor)?;
        let mark = Some(self.marks.files().clone());
        Some(SnapshotBuilder {
            file: self.snapshots.clone(),
            contents: Some((contents, bytes)),
            mark,
        })
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let machine = self.machine.read();
        let frozen = machine.freeze_for_peers();
        let contents =
            frozen.and_then(|frozen| Some(Contents::of(&frozen, self.membership(&machine).ok()?)));
        SnapshotBuilder { file: self.snapshots.clone(), contents, mark: None }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Bytes,
    ) -> Result<(), io::Error> {
        let contents = Contents::decode(&snapshot).map_err(|error| self.ending.because(&error))?;
        assert_eq!(contents.meta(), *meta, "a snapshot says itself what it stands for");
        let stored = self.snapshots.store(&snapshot);
        stored.map_err(|error| self.ending.because(&format_args!("storing a state: {error}")))?;
        let mut machine = self.machine.write();
        machine.install(&contents.state).map_err(|error| self.ending.because(&error))?;
        let last = machine.state().applied().map(|(index, term)| entry_id(index, term));
        assert_eq!(last, Some(contents.last), "the state stands for another entry");
        assert_eq!(machine.state().log_end(), contents.end, "the state ends elsewhere in the log");
        *self.installed.lock() = Some(installed(&contents));
        self.marks.began_at(index_of(&contents.last));
        self.watched.update(&machine);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let loaded = self.snapshots.load();
        let loaded = loaded.map_err(|error| self.ending.because(&error))?;
        Ok(loaded.map(|(contents, snapshot)| Snapshot { meta: contents.meta(), snapshot }))
    }
}

/// Where the log goes on behind a state.
pub(crate) fn installed(contents: &Contents) -> Installed {
    let (index, term) = (index_of(&contents.last), term_of(&contents.last));
    Installed { index, term, end: contents.end, stamp: contents.stamp }
}
