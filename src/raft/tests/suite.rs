//! openraft's storage suite over the real disk and over the simulated one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{OptionalSend, StorageError};
use parking_lot::RwLock;
use tempfile::TempDir;

use crate::base::{LogIndex, Term};
use crate::commit_log::{self, CommitLog, Frame, FrameKind, Seal};
use crate::env::sim::Sim;
use crate::env::{self, Env};
use crate::machine::{self, Effect, Machine};
use crate::raft::EffectSink;
use crate::raft::checkpoints::Checkpoints;
use crate::raft::ending::Ending;
use crate::raft::log_store::{InstalledCell, LogStore};
use crate::raft::marks::{MarkFiles, Marks};
use crate::raft::snapshot::{Snapshot, SnapshotBuilder, SnapshotFile};
use crate::raft::state_machine::{StateMachine, Watched};
use crate::raft::types::{Entry, EntryId, SnapshotMeta, StoredMembership, Types};

struct Deaf;

impl EffectSink for Deaf {
    fn applied(&self, _effects: Vec<Effect>) {}
}

/// The suite applies entries that were never in a log, and leaves some out. A replica never does
/// either, and its machine refuses both, so this gives the entries places and fills the gaps.
struct Placed(StateMachine);

impl Placed {
    fn place(&self, frames: Vec<Frame>) -> Vec<Frame> {
        let (mut next, mut term, mut end, mut stamp) = {
            let machine = self.0.machine.read();
            let state = machine.state();
            let (next, term) = state
                .applied()
                .map_or((LogIndex::ZERO, Term::ZERO), |(index, term)| (index.next(), term));
            (next, term, state.log_end(), state.stamp())
        };
        let mut placed = Vec::new();
        let mut put = |mut frame: Frame| {
            stamp = stamp.max(frame.seal.map_or(stamp, |seal| seal.stamp));
            frame.position = end;
            end = end.plus(frame.encoded_len() as u64);
            frame.seal = Some(Seal { stamp, crc: 0 });
            placed.push(frame);
        };
        for frame in frames {
            while next < frame.index {
                put(Frame::unsealed(next, term, FrameKind::Blank, Bytes::new()));
                next = next.next();
            }
            (next, term) = (frame.index.next(), frame.term);
            put(frame);
        }
        placed
    }
}

impl RaftStateMachine<Types> for Placed {
    type SnapshotData = Bytes;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<EntryId>, StoredMembership), io::Error> {
        self.0.applied_state().await
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let entries: Vec<_> = entries.collect().await;
        let frames = entries.into_iter().map(|item| item.map(|(entry, _)| entry.into_frame()));
        let frames = self.place(frames.collect::<io::Result<_>>()?);
        let entry = |frame| (Entry::from_frame(frame).unwrap(), None);
        self.0.apply(futures::stream::iter(frames.into_iter().map(entry).map(Ok))).await
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        self.0.try_create_snapshot_builder(force).await
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        self.0.get_snapshot_builder().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Bytes,
    ) -> Result<(), io::Error> {
        self.0.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        self.0.get_current_snapshot().await
    }
}

fn open(env: &Env, dir: &Path) -> (LogStore, Placed) {
    let segment_bytes = 1 << 20;
    let options = commit_log::Options { segment_bytes, ..commit_log::Options::default() };
    env.disk.create_dir_all(dir).unwrap();
    let (log, flusher) = CommitLog::open(env.clone(), &dir.join("log"), options).unwrap();
    thread::spawn(move || flusher.run());
    let machine = Machine::open(env, &dir.join("machine"), machine::Options::default()).unwrap();
    let watched = Watched::new(&machine);
    let machine = Arc::new(RwLock::new(machine));
    let ending = Ending::new();
    let installed = InstalledCell::default();
    let log_store = LogStore::new(log, installed.clone(), ending.clone());
    let marks = MarkFiles::open(env.disk.clone(), dir.to_owned()).unwrap();
    let state_machine = StateMachine {
        machine: machine.clone(),
        sink: Arc::new(Deaf),
        watched: watched.clone(),
        checkpoints: Checkpoints::new(machine, log_store.clone(), false),
        marks: Marks::new(marks, log_store.clone(), false, None, watched.floor),
        snapshots: SnapshotFile { disk: env.disk.clone(), path: dir.join("snapshot") },
        installed,
        ending,
    };
    (log_store, Placed(state_machine))
}

struct Real;

impl StoreBuilder<Types, LogStore, Placed, TempDir> for Real {
    async fn build(&self) -> Result<(TempDir, LogStore, Placed), StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let (log, machine) = open(&env::os::env(), dir.path());
        Ok((dir, log, machine))
    }
}

struct Simulated;

impl StoreBuilder<Types, LogStore, Placed, Sim> for Simulated {
    async fn build(&self) -> Result<(Sim, LogStore, Placed), StorageError<Types>> {
        let sim = Sim::new(7);
        let (log, machine) = open(&sim.env(), &PathBuf::from("/replica"));
        Ok((sim, log, machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_disk_passes_the_suite_of_openraft() {
    Suite::test_all(Real).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulated_disk_passes_the_suite_of_openraft() {
    Suite::test_all(Simulated).await.unwrap();
}
