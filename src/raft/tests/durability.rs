//! What each durability promises when the power goes: the difference that is documented, and
//! what both have in common.

use std::path::Path;
use std::pin::pin;

use bytes::Bytes;
use futures::FutureExt;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;

use crate::base::{Durability, LogIndex, NodeId, Term};
use crate::commit_log::{self, CommitLog, Flusher, Vote};
use crate::env::sim::Sim;
use crate::raft::ending::Ending;
use crate::raft::log_store::{InstalledCell, LogStore};
use crate::raft::types::{Entry, Payload, Types, entry_id, to_raft_vote};

const SEEDS: u64 = 60;

fn open(sim: &Sim, durability: Durability) -> (LogStore, CommitLog, Flusher) {
    let (env, dir) = (sim.env(), Path::new("/replica/log"));
    env.disk.create_dir_all(dir).unwrap();
    let options = commit_log::Options { segment_bytes: 64 << 10, ..Default::default() };
    let (log, flusher) = CommitLog::open(env, dir, options).unwrap();
    let store = LogStore::new(log.clone(), InstalledCell::default(), Ending::new());
    (store.of(durability), log, flusher)
}

/// Appends entries of a page each; whether openraft was told that they are safe before anything
/// was synced.
async fn append(store: &mut LogStore, indexes: std::ops::Range<u64>, term: u64) -> bool {
    let entry = |index| {
        let id = entry_id(LogIndex::new(index), Term::new(term));
        Entry::new(id, Payload::Command(Bytes::from(vec![7; 4096])))
    };
    let (told, tells) = Types::oneshot();
    let entries: Vec<Entry> = indexes.map(entry).collect();
    store.append(entries, IOFlushed::signal(told)).await.unwrap();
    tells.now_or_never().is_some_and(|told| told.unwrap().is_ok())
}

fn last(log: &CommitLog) -> u64 {
    log.bounds().last.map_or(0, |(index, _)| index.next().get())
}

/// How many of the ten last entries were acknowledged and are gone, over all seeds.
async fn lost_to_a_power_cut(durability: Durability) -> u64 {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let sim = Sim::new(seed);
        let (mut store, log, flusher) = open(&sim, durability);
        append(&mut store, 0..5, 1).await;
        let vote = Vote { term: Term::new(2), node: NodeId::new(3), committed: false };
        {
            let voted = to_raft_vote(vote);
            let mut saving = pin!(store.save_vote(&voted));
            assert!(saving.as_mut().now_or_never().is_none(), "a vote waits for the disk");
            assert!(flusher.step());
            saving.await.unwrap();
        }
        let acknowledged = append(&mut store, 5..15, 2).await;
        let synced = seed % 2 == 0;
        if synced {
            flusher.step();
        }
        drop((store, log, flusher));
        sim.disk.power_cut(seed);

        // It opens: what is missing was never said to be on the disk (rule R15).
        let (_, log, _flusher) = open(&sim, durability);
        assert_eq!(log.vote(), Some(vote), "seed {seed}: the vote is gone");
        let last = last(&log);
        assert!(last >= 5, "seed {seed}: what was there before the vote ends at {last}");
        if synced {
            assert_eq!(last, 15, "seed {seed}: synced entries are gone");
        }
        if acknowledged {
            lost += 15 - last;
        }
    }
    lost
}

#[tokio::test]
async fn a_power_cut_shows_what_an_ok_stands_for() {
    assert_eq!(lost_to_a_power_cut(Durability::MajorityFsync).await, 0);
    let lost = lost_to_a_power_cut(Durability::MajorityMemory).await;
    println!("majority-memory lost {lost} entries that it had acknowledged, majority-fsync none");
    assert!(lost > 0, "a mode that loses nothing needs no warning");
}
