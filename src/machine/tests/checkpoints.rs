//! Restarts, crashes, damage, and a peer's state: always the same state in the end.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::bench::{Bench, OPTIONS, dir, names};
use crate::base::{LogIndex, QueueId, QueueOffset, Term};
use crate::command::{Ack, Command, Delivery, Subscribe};
use crate::env::os;
use crate::machine::{CheckpointError, InstallError, Machine};

/// Some of everything.
fn busy(bench: &mut Bench, rounds: u64) {
    for round in 0..rounds {
        bench.stamp += 700;
        for queue in 0..3 {
            let items = (0..9).map(|id| names::item(queue, u128::from(round * 9 + id))).collect();
            let dedup = queue == 0;
            let topic = names::TOPIC;
            let publish = crate::command::Publish { topic, dedup, items };
            bench.apply(Command::Publish(publish));
        }
        let mut checkout = bench.checkout("a", &[round * 4, round * 4 + 2]);
        checkout.attempt_id = Some(format!("try-{round}"));
        checkout.auto_renew = round % 2 == 0;
        let got = bench.check_out(checkout).granted;
        bench.deliver(Delivery::Ack(Ack { handle: names::handle(&got[0]) }));
        bench.tick();
        let expression = format!("tag-{}", round % 50);
        let (group, topic) = (names::GROUP, names::TOPIC);
        bench.apply(Command::Subscribe(Subscribe { group, topic, expression }));
    }
}

fn files(bench: &Bench, prefix: &str) -> BTreeSet<String> {
    let names = bench.sim.env().disk.list(&dir()).unwrap();
    names.into_iter().filter(|name| name.starts_with(prefix)).collect()
}

#[test]
fn a_restart_from_a_checkpoint_comes_to_the_same_state() {
    let mut bench = Bench::with_topic(3);
    bench.machine.set_membership((LogIndex::new(1), Term::new(1)), Bytes::from_static(b"us"));
    busy(&mut bench, 30);
    assert!(bench.checkpoint());
    assert!(!bench.checkpoint(), "once is enough");
    let hashes = bench.hashes();
    bench.restart();
    assert!(bench.machine.opened().from.is_some() && bench.machine.opened().rejected.is_empty());
    assert_eq!(bench.hashes(), hashes);
    // And goes on as if nothing had happened.
    let mut twin = Bench::with_topic(3);
    twin.machine.set_membership((LogIndex::new(1), Term::new(1)), Bytes::from_static(b"us"));
    busy(&mut twin, 30);
    let stamp = bench.stamp;
    busy(&mut bench, 20);
    twin.stamp = stamp;
    busy(&mut twin, 20);
    assert_eq!(bench.hashes(), twin.hashes());
    for _ in 0..3 {
        bench.apply(Command::Audit);
        bench.checkpoint();
    }
    assert_eq!(files(&bench, "checkpoint-").len(), 2, "the newest two are kept");
}

#[test]
fn power_cuts_at_any_point_lose_nothing_that_cannot_be_derived() {
    let mut whole = Bench::with_topic(3);
    busy(&mut whole, 60);
    let mut bench = Bench::new();
    bench.log = whole.log.clone();
    // Applies the same log with cuts in between: some right after a checkpoint, some long after,
    // some while one is being written.
    for cut in 0..25_u64 {
        let from = bench.machine.state().applied().map_or(0, |(index, _)| index.get() + 1);
        let some = usize::try_from(7 + cut * 5 % 31).unwrap();
        let entries = bench.log[usize::try_from(from).unwrap()..].to_vec();
        for entry in entries.iter().take(some) {
            bench.apply_entry(entry);
        }
        if cut % 3 == 0 {
            bench.checkpoint();
        }
        if cut % 3 == 1 {
            bench.sim.disk.stop_after(cut % 7);
            let stopped = bench.machine.freeze().unwrap().publish();
            drop(stopped);
        }
        bench.sim.disk.power_cut(cut);
        bench.reopen();
        assert!(bench.machine.opened().rejected.is_empty(), "{:?}", bench.machine.opened());
    }
    bench.catch_up();
    assert_eq!(bench.hashes(), whole.hashes());
}

#[test]
fn a_real_disk_does_the_same() {
    let mut bench = Bench::with_topic(3);
    busy(&mut bench, 40);
    let place = tempfile::tempdir().unwrap();
    let open = || Machine::open(&os::env(), &place.path().join("machine"), OPTIONS).unwrap();
    let hashes =
        |machine: &Machine| (machine.state().hash(), machine.state().units_hash().unwrap());
    let mut machine = open();
    let (first, rest) = bench.log.split_at(bench.log.len() / 2);
    first.iter().for_each(|entry| drop(machine.apply(entry).unwrap()));
    assert!(machine.freeze().unwrap().publish().unwrap());
    rest.iter().for_each(|entry| drop(machine.apply(entry).unwrap()));
    assert_eq!(hashes(&machine), bench.hashes());
    drop(machine);
    let mut machine = open();
    assert_eq!(machine.opened().from, Some(first.last().unwrap().index));
    rest.iter().for_each(|entry| drop(machine.apply(entry).unwrap()));
    assert_eq!(hashes(&machine), bench.hashes());
}

#[test]
fn everything_derived_may_be_deleted() {
    let mut bench = Bench::with_topic(3);
    busy(&mut bench, 40);
    bench.checkpoint();
    let hashes = bench.hashes();
    for name in files(&bench, "") {
        bench.sim.env().disk.remove(&dir().join(name)).unwrap();
    }
    bench.restart();
    assert_eq!(bench.machine.opened().from, None);
    assert_eq!(bench.hashes(), hashes);
}

#[test]
fn a_checkpoint_without_its_units_is_passed_by() {
    let mut bench = Bench::with_topic(3);
    busy(&mut bench, 40);
    bench.checkpoint();
    let hashes = bench.hashes();
    let units = files(&bench, "units-");
    bench.sim.env().disk.remove(&dir().join(units.first().unwrap())).unwrap();
    bench.restart();
    let rejected = &bench.machine.opened().rejected;
    assert!(
        matches!(rejected[..], [ref one] if matches!(one.reason, CheckpointError::Units { .. }))
    );
    assert_eq!(bench.hashes(), hashes);
    // It is gone for good: the files that are there now are not its own.
    bench.restart();
    assert!(bench.machine.opened().rejected.is_empty());
    assert!(files(&bench, "units-").is_disjoint(&units), "a new generation");
}

#[test]
fn a_damaged_checkpoint_falls_back_to_the_one_before() {
    let mut bench = Bench::with_topic(3);
    busy(&mut bench, 10);
    bench.checkpoint();
    let older = bench.machine.state().applied().unwrap().0;
    busy(&mut bench, 10);
    bench.checkpoint();
    let hashes = bench.hashes();
    let newest = files(&bench, "checkpoint-").pop_last().unwrap();
    bench.sim.disk.flip_bit(&dir().join(&newest), 200, 3);
    bench.restart();
    let opened = bench.machine.opened();
    assert_eq!((opened.from, opened.rejected.len()), (Some(older), 1));
    assert_eq!(opened.rejected[0].file, newest);
    assert!(matches!(opened.rejected[0].reason, CheckpointError::Checksum { .. }));
    assert_eq!(bench.hashes(), hashes);
    assert!(bench.checkpoint());
}

#[test]
fn a_damaged_unit_is_found() {
    let mut bench = Bench::with_topic(3);
    busy(&mut bench, 10);
    let units = files(&bench, "units-").pop_first().unwrap();
    bench.sim.disk.flip_bit(&dir().join(units), 5, 0);
    let error = bench.machine.state().units_hash().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

#[test]
fn extents_of_a_deleted_topic_come_back_once_no_checkpoint_names_them() {
    let mut bench = Bench::with_topic(3);
    busy(&mut bench, 40);
    bench.checkpoint();
    let full = files(&bench, "units-").len();
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    bench.apply(names::topic("next", 1));
    let next = crate::base::TopicId::new(2);
    let publish = || {
        Command::Publish(crate::command::Publish {
            topic: next,
            dedup: false,
            items: (0..128).map(|_| names::item(0, 0)).collect(),
        })
    };
    bench.apply(publish());
    assert!(files(&bench, "units-").len() >= full, "a restart could still need the old ones");
    // A checkpoint frozen before the deletion would not do; this one was frozen after.
    bench.checkpoint();
    let before = files(&bench, "units-").len();
    for _ in 0..6 {
        bench.apply(publish());
    }
    assert_eq!(files(&bench, "units-").len(), before, "the freed ones are used");
    let hashes = bench.hashes();
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
}

#[test]
fn a_peers_state_is_taken_over_by_one_switch() {
    let mut leader = Bench::with_topic(3);
    busy(&mut leader, 20);
    let checkpoint = leader.machine.freeze().unwrap();
    let snapshot = checkpoint.snapshot();

    // A follower with an old state of its own, and a checkpoint of it.
    let mut follower = Bench::with_topic(3);
    busy(&mut follower, 2);
    follower.checkpoint();
    follower.machine.install(&snapshot).unwrap();
    let state = follower.machine.state();
    assert_eq!(state.hash(), leader.machine.state().hash());
    assert_eq!(
        (state.log_end(), state.applied()),
        (checkpoint.log_end(), leader.machine.state().applied())
    );
    assert_eq!(files(&follower, "checkpoint-"), BTreeSet::new());
    assert!(matches!(follower.machine.install(&snapshot), Err(InstallError::Older { .. })));
    let damaged = snapshot.slice(..snapshot.len() - 1);
    assert!(matches!(follower.machine.install(&damaged), Err(InstallError::Snapshot(_))));

    // It goes on with the leader's entries; only the units before are not there.
    let queue = QueueId::new(0);
    let end = leader.machine.state().queue_end(names::TOPIC, queue);
    let first = QueueOffset::new(end.get() - 1);
    assert!(follower.machine.state().units(names::TOPIC, queue, first, 1).is_err());
    assert_eq!(follower.machine.state().units(names::TOPIC, queue, end, 1).unwrap(), []);
    busy(&mut leader, 20);
    follower.log = leader.log.clone();
    follower.catch_up();
    assert_eq!(follower.hashes(), leader.hashes());
    let read = |bench: &Bench| bench.machine.state().units(names::TOPIC, queue, end, 500).unwrap();
    assert_eq!(read(&follower), read(&leader));
    let below = follower.machine.state().units(names::TOPIC, queue, QueueOffset::ZERO, 1);
    assert_eq!(below.unwrap_err().kind(), std::io::ErrorKind::NotFound);

    // After that the floor is enough to start from, with or without a checkpoint.
    follower.checkpoint();
    follower.restart();
    assert_eq!(follower.hashes(), leader.hashes());
    for name in files(&follower, "").into_iter().filter(|name| name != "floor") {
        follower.sim.env().disk.remove(&dir().join(name)).unwrap();
    }
    follower.restart();
    assert_eq!(follower.machine.opened().from, Some(checkpoint.index()));
    assert_eq!(follower.hashes(), leader.hashes());
}

#[test]
fn a_checkpoint_under_way_is_void_once_a_peers_state_took_its_place() {
    let mut leader = Bench::with_topic(3);
    busy(&mut leader, 9);
    let snapshot = leader.machine.freeze().unwrap().snapshot();
    let mut follower = Bench::with_topic(3);
    let late = follower.machine.freeze().unwrap();
    follower.machine.install(&snapshot).unwrap();
    assert!(!late.publish().unwrap());
    // Power fails right after the switch: the peer's state is there.
    follower.sim.disk.power_cut(1);
    follower.log = leader.log.clone();
    follower.restart();
    assert_eq!(follower.hashes().0, leader.hashes().0);
}
