//! Instances that see everything: where they begin, what moves them, and when they are forgotten.

use super::bench::{Bench, names};
use crate::base::{ClientId, GroupId, LogIndex, Millis, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{Begin, Command, Leave, Placed, Position, Refusal, Reply, Retention};
use crate::machine::LEASE_MAX;

const LEASE: Millis = Millis::from_secs(10);

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

/// Asks what is known of an instance.
fn joining(instance: &str, attempt: u64) -> Position {
    Position {
        group: names::GROUP,
        topic: names::TOPIC,
        instance: client(instance),
        lease: LEASE,
        begin: Begin::Latest,
        attempt,
        incarnation: None,
        seek: false,
        positions: Vec::new(),
    }
}

fn place(bench: &mut Bench, position: Position) -> Placed {
    match bench.reply(Command::Position(position)) {
        Reply::Placed(placed) => placed,
        other => panic!("not placed: {other:?}"),
    }
}

fn moving(instance: &str, incarnation: LogIndex, positions: &[(u32, u64)]) -> Position {
    let one = |(queue, offset): &(u32, u64)| (QueueId::new(*queue), QueueOffset::new(*offset));
    Position {
        incarnation: Some(incarnation),
        positions: positions.iter().map(one).collect(),
        ..joining(instance, 0)
    }
}

fn offsets(placed: &Placed) -> Vec<u64> {
    let queues = placed.positions.iter().map(|(queue, _)| queue.get());
    assert!(queues.eq(0..u32::try_from(placed.positions.len()).unwrap()), "one for each queue");
    placed.positions.iter().map(|(_, offset)| offset.get()).collect()
}

#[test]
fn an_instance_begins_at_the_end_or_where_it_asks() {
    let mut bench = Bench::with_topic(2);
    bench.publish(0, 3);
    bench.publish(1, 1);
    let new = place(&mut bench, joining("a", 1));
    assert_eq!((new.known, offsets(&new)), (false, vec![3, 1]));
    assert_eq!(new.until, UtcMillis::new(bench.stamp).plus(LEASE));
    let early = Position { begin: Begin::Earliest, ..joining("b", 2) };
    let early = place(&mut bench, early);
    assert_eq!((early.known, offsets(&early)), (false, vec![0, 0]));
    assert_ne!(new.incarnation, early.incarnation);
    let behind = |bench: &Bench| {
        let all = bench.machine.state().instances(names::GROUP, 10);
        all.into_iter().map(|one| (one.instance.to_string(), one.behind)).collect::<Vec<_>>()
    };
    assert_eq!(behind(&bench), [("a".into(), 0), ("b".into(), 4)]);
    bench.publish(0, 2);
    assert_eq!(behind(&bench), [("a".into(), 2), ("b".into(), 6)]);
    assert_eq!(bench.machine.state().instances(names::GROUP, 1).len(), 1);
}

#[test]
fn asking_twice_is_no_return_and_coming_back_is_one() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 3);
    let new = place(&mut bench, joining("a", 1));
    bench.publish(0, 2);
    // The answer was lost, and the request came again: it is still new.
    assert_eq!(place(&mut bench, joining("a", 1)), new);
    let back = place(&mut bench, joining("a", 2));
    assert_eq!((back.known, offsets(&back)), (true, vec![3]));
    assert_eq!(back.incarnation, new.incarnation);
}

#[test]
fn positions_move_forward_within_their_queues_unless_they_are_sought() {
    let mut bench = Bench::with_topic(2);
    let new = place(&mut bench, joining("a", 1)).incarnation;
    bench.publish(0, 5);
    bench.publish(1, 5);
    let moved = place(&mut bench, moving("a", new, &[(0, 4)]));
    assert_eq!((moved.known, offsets(&moved)), (true, vec![4, 0]));
    // An older commit that comes late, and one beyond what is there.
    assert_eq!(offsets(&place(&mut bench, moving("a", new, &[(0, 2), (1, 9)]))), [4, 5]);
    let sought = Position { seek: true, ..moving("a", new, &[(0, 1)]) };
    assert_eq!(offsets(&place(&mut bench, sought)), [1, 5]);
    let nowhere = bench.reply(Command::Position(moving("a", new, &[(2, 0)])));
    assert_eq!(nowhere, Reply::Refused(Refusal::NoQueue { queue: QueueId::new(2), queues: 2 }));
}

#[test]
fn only_a_tick_ends_a_lease_and_what_comes_later_begins_anew() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 3);
    let first = place(&mut bench, joining("a", 1)).incarnation;
    place(&mut bench, moving("a", first, &[(0, 3)]));
    bench.publish(0, 2);
    assert_eq!(bench.machine.state().next_due(), Some(UtcMillis::new(bench.stamp).plus(LEASE)));
    // Its time has passed, but no tick came before it did.
    bench.stamp += LEASE.get() + 1;
    assert!(place(&mut bench, moving("a", first, &[(0, 4)])).known);
    bench.stamp += LEASE.get() - 1;
    assert_eq!(bench.reply(Command::Tick { limit: 9 }), Reply::Ticked { fired: 0 });
    bench.stamp += 1;
    assert_eq!(bench.reply(Command::Tick { limit: 9 }), Reply::Ticked { fired: 1 });
    assert_eq!(bench.machine.state().next_due(), None);
    // What it says of the time before does not move it any more.
    let anew = place(&mut bench, moving("a", first, &[(0, 4)]));
    assert_eq!((anew.known, offsets(&anew)), (false, vec![5]));
    assert_ne!(anew.incarnation, first);
    bench.publish(0, 1);
    let again = place(&mut bench, moving("a", first, &[(0, 6)]));
    assert_eq!((again.known, offsets(&again)), (false, vec![5]));
}

#[test]
fn a_tick_ends_the_oldest_leases_first_and_no_more_than_its_limit() {
    let mut bench = Bench::with_topic(1);
    for (attempt, name) in ["c", "a", "b"].into_iter().enumerate() {
        place(&mut bench, joining(name, attempt as u64));
        bench.stamp += 1;
    }
    bench.stamp += LEASE.get();
    let left = |bench: &Bench| {
        let all = bench.machine.state().instances(names::GROUP, 10);
        all.into_iter().map(|one| one.instance.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(bench.reply(Command::Tick { limit: 1 }), Reply::Ticked { fired: 1 });
    assert_eq!(left(&bench), ["a", "b"]);
    assert_eq!(bench.reply(Command::Tick { limit: 1 }), Reply::Ticked { fired: 1 });
    assert_eq!(left(&bench), ["b"]);
}

#[test]
fn who_leaves_is_forgotten_at_once_but_not_who_came_after() {
    let mut bench = Bench::with_topic(1);
    let first = place(&mut bench, joining("a", 1)).incarnation;
    let leave = |incarnation| {
        let (group, topic) = (names::GROUP, names::TOPIC);
        Command::Leave(Leave { group, topic, instance: client("a"), incarnation })
    };
    assert_eq!(bench.reply(leave(first)), Reply::Done);
    bench.publish(0, 2);
    let second = place(&mut bench, joining("a", 2));
    assert_eq!((second.known, offsets(&second)), (false, vec![2]));
    // The first one's goodbye comes again.
    assert_eq!(bench.reply(leave(first)), Reply::Done);
    assert!(place(&mut bench, joining("a", 3)).known);
    assert_eq!(bench.reply(leave(second.incarnation)), Reply::Done);
    assert_eq!(bench.machine.state().next_due(), None);
}

#[test]
fn queues_that_come_later_begin_at_their_first_message() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 2);
    let new = place(&mut bench, joining("a", 1)).incarnation;
    bench.apply(Command::GrowTopic { topic: names::TOPIC, queues: 3 });
    bench.publish(2, 4);
    assert_eq!(offsets(&place(&mut bench, moving("a", new, &[]))), [2, 0, 0]);
    assert_eq!(offsets(&place(&mut bench, moving("a", new, &[(2, 3)]))), [2, 0, 3]);
    assert_eq!(bench.machine.state().instances(names::GROUP, 1)[0].behind, 1);
}

#[test]
fn what_retention_takes_is_lost_and_counted() {
    let mut bench = Bench::with_topic(2);
    let time = Millis::from_secs(60);
    bench.apply(Command::Retain(Retention { stride: 1000, time, bytes: 0, moved_max: 20 }));
    let slow = place(&mut bench, joining("slow", 1)).incarnation;
    let fast = place(&mut bench, joining("fast", 2)).incarnation;
    while bench.machine.state().marks().count() == 0 {
        bench.publish(0, 1);
    }
    let end = bench.machine.state().queue_end(names::TOPIC, QueueId::new(0)).get();
    let mark = bench.machine.state().marks().next().unwrap().index;
    place(&mut bench, moving("slow", slow, &[(0, 1)]));
    place(&mut bench, moving("fast", fast, &[(0, end)]));
    bench.apply(Command::PurgeIntent { mark });
    let slow = place(&mut bench, moving("slow", slow, &[(0, 2)]));
    assert_eq!((offsets(&slow), slow.lost), (vec![end, 0], end - 1));
    let fast = place(&mut bench, moving("fast", fast, &[]));
    assert_eq!((offsets(&fast), fast.lost), (vec![end, 0], 0));
}

#[test]
fn an_instance_goes_with_its_topic_and_with_its_group() {
    let mut bench = Bench::with_topic(1);
    bench.apply(names::topic("other", 1));
    bench.apply(names::group("audit"));
    let (topic, group) = (TopicId::new(2), GroupId::new(2));
    place(&mut bench, joining("a", 1));
    place(&mut bench, Position { topic, ..joining("a", 2) });
    place(&mut bench, Position { group, ..joining("a", 3) });
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    let topics: Vec<_> = bench.machine.state().instances(names::GROUP, 9);
    assert_eq!(topics.iter().map(|one| one.topic).collect::<Vec<_>>(), [topic]);
    assert!(bench.machine.state().instances(group, 9).is_empty());
    bench.apply(Command::DeleteGroup { group: names::GROUP });
    assert_eq!(bench.machine.state().next_due(), None);
    let gone = bench.reply(Command::Position(joining("a", 4)));
    assert_eq!(gone, Reply::Refused(Refusal::NoGroup { group: names::GROUP }));
}

#[test]
fn a_lease_has_a_length() {
    let mut bench = Bench::with_topic(1);
    for lease in [Millis::ZERO, Millis::new(LEASE_MAX.get() + 1)] {
        let reply = bench.reply(Command::Position(Position { lease, ..joining("a", 1) }));
        assert!(matches!(reply, Reply::Refused(Refusal::Limit { .. })), "{reply:?}");
    }
    place(&mut bench, Position { lease: LEASE_MAX, ..joining("a", 1) });
}

#[test]
fn positions_survive_a_checkpoint_and_a_peers_state() {
    let mut bench = Bench::with_topic(2);
    let new = place(&mut bench, joining("a", 1)).incarnation;
    bench.publish(0, 5);
    place(&mut bench, moving("a", new, &[(0, 2)]));
    bench.checkpoint();
    let hashes = bench.hashes();
    bench.reopen();
    assert_eq!(bench.hashes(), hashes);
    let back = place(&mut bench, joining("a", 2));
    assert_eq!((back.known, offsets(&back)), (true, vec![2, 0]));
    let snapshot = bench.machine.freeze_for_peers().unwrap().snapshot();
    let mut follower = Bench::new();
    follower.machine.install(&snapshot).unwrap();
    assert_eq!(follower.machine.state().hash(), bench.machine.state().hash());
    assert_eq!(follower.machine.state().instances(names::GROUP, 9).len(), 1);
}
