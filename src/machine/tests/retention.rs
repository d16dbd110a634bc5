//! The front of the log: what leaves, what stays, and what every replica says of it.

use bytes::Bytes;

use super::bench::{Bench, names};
use crate::base::{GroupId, LogIndex, LogPosition, Millis, QueueId, QueueOffset, TopicId};
use crate::command::{
    Ack, Command, CreateTopic, Delivery, DeliveryOutcome, Hold, Refusal, Relocation, Reply,
    Retention, Trim, Unit,
};
use crate::machine::{Effect, Mark};

const STRIDE: u64 = 1000;
const QUEUE: QueueId = QueueId::new(0);

fn retention() -> Retention {
    Retention { stride: STRIDE, time: Millis::from_secs(60), bytes: 0, moved_max: 20 }
}

/// A topic of two queues and marks every 1000 bytes.
fn bench() -> Bench {
    let mut bench = Bench::with_topic(2);
    bench.apply(names::group("auditing"));
    assert_eq!(bench.reply(Command::Retain(retention())), Reply::Done);
    bench
}

fn marks(bench: &Bench) -> Vec<Mark> {
    bench.machine.state().marks().cloned().collect()
}

/// Publishes to queue 0 until there is another mark; answers it.
fn until_mark(bench: &mut Bench) -> Mark {
    let before = marks(bench).len();
    while marks(bench).len() == before {
        bench.stamp += 10;
        bench.publish(0, 1);
    }
    marks(bench).pop().unwrap()
}

fn start(bench: &Bench, queue: u32) -> u64 {
    bench.machine.state().queue_start(names::TOPIC, QueueId::new(queue)).get()
}

fn intend(bench: &mut Bench, mark: &Mark) -> Vec<Effect> {
    bench.effects(Command::PurgeIntent { mark: mark.index })
}

fn purge(bench: &mut Bench, mark: &Mark) -> Reply {
    bench.reply(Command::PurgeTo { mark: mark.index })
}

#[test]
fn a_mark_is_the_first_entry_that_ends_in_a_later_stride() {
    let mut bench = bench();
    for _ in 0..5 {
        until_mark(&mut bench);
    }
    let marks = marks(&bench);
    for mark in &marks {
        let at = usize::try_from(mark.index.get()).unwrap();
        let (entry, before) = (&bench.log[at], bench.log[at - 1].end);
        assert_eq!((mark.end, mark.stamp), (entry.end, entry.stamp));
        assert!(before.get() / STRIDE < entry.end.get() / STRIDE);
    }
    let strides: Vec<u64> = marks.iter().map(|mark| mark.end.get() / STRIDE).collect();
    assert_eq!(strides, [1, 2, 3, 4, 5]);
    // One large entry crosses several strides and is one mark.
    let wide = Command::Relocate(vec![Relocation {
        original: LogPosition::ZERO,
        record: Bytes::from(vec![0; 3 * usize::try_from(STRIDE).unwrap()]),
        record_at: 0,
    }]);
    bench.apply(wide);
    assert_eq!(bench.machine.state().marks().count(), 6);
    assert!(bench.machine.state().at_mark());
}

#[test]
fn nothing_is_marked_before_retention_is_told() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 100);
    assert_eq!(bench.machine.state().marks().count(), 0);
    let refused = Refusal::NoMark { mark: LogIndex::new(2) };
    let intent = Command::PurgeIntent { mark: LogIndex::new(2) };
    assert_eq!(bench.reply(intent), Reply::Refused(refused));
    let no_stride = Command::Retain(Retention { stride: 0, ..retention() });
    assert!(matches!(bench.reply(no_stride), Reply::Refused(Refusal::Limit { limit: 1, .. })));
}

#[test]
fn least_offsets_move_and_what_groups_lose_is_counted() {
    let mut bench = bench();
    bench.publish(1, 3);
    bench.publish(0, 1);
    bench.take("a", &[0]);
    let first = until_mark(&mut bench);
    let handles = bench.take("a", &[2]);
    bench.publish(1, 2);
    let ends =
        [0, 1].map(|queue| bench.machine.state().queue_end(names::TOPIC, QueueId::new(queue)));
    until_mark(&mut bench);
    assert_eq!(handles.len(), 1);
    // The one mark back: what came behind it stays.
    let effects = intend(&mut bench, &first);
    let state = bench.machine.state();
    assert_eq!(start(&bench, 0), ends[0].get());
    assert_eq!(start(&bench, 1), 3);
    // Group 1 had two of queue 0 in its hands, and took nothing of queue 1: it lost the rest.
    let lost = ends[0].get() - 2 + 3;
    let (group, topic) = (names::GROUP, names::TOPIC);
    assert_eq!(effects, [Effect::Expired { group, topic, count: lost }]);
    assert_eq!(state.expired(group, topic), lost);
    assert_eq!(state.lag(group, topic).expired, lost);
    assert_eq!(state.view(group, topic, QUEUE).next.get(), ends[0].get());
    // A group that never took anything begins at the least offsets and has lost nothing.
    let other = GroupId::new(2);
    assert_eq!(state.view(other, topic, QUEUE).next.get(), ends[0].get());
    assert_eq!(state.expired(other, topic), 0);
    let end = state.queue_end(topic, QUEUE).get();
    assert_eq!(state.lag(other, topic).ready, end - ends[0].get() + 2);
    // Repeating it changes nothing.
    let hash = bench.machine.state().hash();
    assert_eq!(intend(&mut bench, &first), []);
    bench.log.pop();
    assert_ne!(hash, bench.machine.state().hash(), "an entry was applied");
    assert_eq!(bench.machine.state().expired(group, topic), lost);
}

#[test]
fn nothing_below_the_intent_is_handed_out_anew() {
    let mut bench = bench();
    let mark = until_mark(&mut bench);
    let late = bench.checkout("a", &[0, 1]);
    intend(&mut bench, &mark);
    // Computed before the intent, applied behind it.
    assert_eq!(bench.check_out(late).granted, []);
    until_mark(&mut bench);
    let start = start(&bench, 0);
    assert_eq!(bench.take("a", &[start]).len(), 1);
}

/// Records of messages under way are written again before the front passes them, and stay the same
/// messages: an ack by the old handle is good, and a redelivery reads the copy.
#[test]
fn what_is_under_way_outlives_its_record() {
    let mut bench = bench();
    bench.publish(0, 1);
    let handle = bench.take("a", &[0])[0];
    let original = bench.unit(0, 0);
    let mark = until_mark(&mut bench);
    intend(&mut bench, &mark);
    let refused = Refusal::UnderWay { mark: mark.index, count: 1 };
    assert_eq!(purge(&mut bench, &mark), Reply::Refused(refused));
    let needed: Vec<_> = bench.machine.state().to_relocate().collect();
    assert_eq!(needed, [(original.position, original)]);

    relocate(&mut bench, original.position);
    let now = bench.machine.state().locate(original);
    let entry = bench.log.last().unwrap();
    let at = usize::try_from(now.position.since(entry.position)).unwrap();
    assert_eq!(&entry.command[at..at + 8], b"a record");
    assert_eq!(bench.machine.state().moved_bytes(), 8);
    assert_eq!(purge(&mut bench, &mark), Reply::Done);
    assert_eq!(bench.machine.state().floor().unwrap().index, mark.index);
    // Its time runs out, and it is handed out again with the identity that it always had.
    bench.stamp += 10_000;
    bench.tick();
    let again = bench.checkout("b", &[0]);
    let granted = bench.check_out(again).granted;
    assert_eq!((granted[0].unit, granted[0].attempt), (original, 2));
    assert_eq!(bench.deliver(Delivery::Ack(Ack { handle })), DeliveryOutcome::Stale);
    let handle = names::handle(&granted[0]);
    assert_eq!(bench.deliver(Delivery::Ack(Ack { handle })), DeliveryOutcome::Done);
    assert_eq!(bench.machine.state().moved_bytes(), 0, "the copy is of no use any more");
    // Writing it again now is passed by.
    relocate(&mut bench, original.position);
    assert_eq!(bench.machine.state().moved_bytes(), 0);
}

/// Where the record lies now that first lay there.
fn lies(bench: &Bench, original: LogPosition) -> LogPosition {
    bench.machine.state().locate(Unit { position: original, ..names::NO_UNIT }).position
}

fn relocate(bench: &mut Bench, original: LogPosition) {
    let record = Bytes::from_static(b"a record");
    let relocation = Relocation { original, record, record_at: 0 };
    assert_eq!(bench.reply(Command::Relocate(vec![relocation])), Reply::Done);
}

#[test]
fn a_copy_is_written_again_when_the_front_reaches_it() {
    let mut bench = bench();
    bench.publish(0, 1);
    let handle = bench.take("a", &[0])[0];
    let original = bench.unit(0, 0).position;
    let mut positions = vec![original];
    for _ in 0..3 {
        let hold = Hold { handle, invisible: Millis::from_secs(1000) };
        assert_eq!(bench.deliver(Delivery::Hold(hold)), DeliveryOutcome::Done);
        let mark = until_mark(&mut bench);
        intend(&mut bench, &mark);
        let needed: Vec<_> = bench.machine.state().to_relocate().collect();
        assert_eq!(needed[0].0, original, "by its first place");
        assert_eq!(Some(&needed[0].1.position), positions.last());
        relocate(&mut bench, original);
        positions.push(lies(&bench, original));
        let now = bench.machine.state().to_relocate().count();
        assert_eq!(now, 0);
        assert_eq!(purge(&mut bench, &mark), Reply::Done);
    }
    assert!(positions.is_sorted());
    // A restart, and a replica that gets the state, know where it lies.
    let hashes = bench.hashes();
    assert!(bench.checkpoint());
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
    assert_eq!(Some(&lies(&bench, original)), positions.last());
}

/// A message that became visible again lately is as good as a new one; one that has been visible
/// for as long as a new one may be leaves (rule R9).
#[test]
fn retention_counts_from_when_a_message_became_visible() {
    let mut bench = bench();
    bench.publish(0, 2);
    bench.take("a", &[0]);
    let late = bench.take("a", &[1])[0];
    bench.stamp += 10_000;
    let hold = Hold { handle: late, invisible: Millis::from_secs(1) };
    bench.deliver(Delivery::Hold(hold));
    bench.tick();
    let mark = until_mark(&mut bench);
    assert_eq!(bench.machine.state().view(names::GROUP, names::TOPIC, QUEUE).ready.len(), 1);
    // Behind the mark, but well before the front moves: the second one is visible again.
    bench.stamp += 1_000;
    bench.tick();
    let lost_before = bench.machine.state().expired(names::GROUP, names::TOPIC);
    assert_eq!(lost_before, 0);
    intend(&mut bench, &mark);
    let view = bench.machine.state().view(names::GROUP, names::TOPIC, QUEUE);
    let ready: Vec<u64> = view.ready.iter().map(|ready| ready.offset.get()).collect();
    assert_eq!(ready, [1], "the first was visible since before the mark");
    let needed = bench.machine.state().to_relocate().count();
    assert_eq!(needed, 1);
}

#[test]
fn too_much_under_way_stops_new_hand_outs_only() {
    let mut bench = bench();
    bench.publish(0, 4);
    let handles = bench.take("a", &[0, 1, 2]);
    let mark = until_mark(&mut bench);
    intend(&mut bench, &mark);
    let needed: Vec<_> = bench.machine.state().to_relocate().collect();
    for (original, _) in &needed {
        relocate(&mut bench, *original);
    }
    assert_eq!(bench.machine.state().moved_bytes(), 24, "more than 20 are allowed");
    let start = start(&bench, 0);
    until_mark(&mut bench);
    let fresh = bench.checkout("a", &[start]);
    let full = Refusal::MovedFull { bytes: 24, limit: 20 };
    let refused = bench.deliver(Delivery::Checkout(fresh.clone()));
    assert_eq!(refused, DeliveryOutcome::Refused(full));
    // What was handed out before goes on.
    bench.stamp += 10_000;
    bench.tick();
    let again = bench.checkout("b", &[0]);
    let granted = bench.check_out(again).granted;
    assert_eq!(granted.len(), 1);
    let handle = names::handle(&granted[0]);
    assert_eq!(bench.deliver(Delivery::Ack(Ack { handle })), DeliveryOutcome::Done);
    assert_eq!(bench.check_out(fresh).granted.len(), 1);
    assert_eq!(handles.len(), 3);
}

#[test]
fn a_topic_may_be_kept_shorter_than_the_log_and_not_longer() {
    let mut bench = bench();
    let create = |name: &str, keep: u64| {
        let Command::CreateTopic(topic) = names::topic(name, 1) else { unreachable!() };
        Command::CreateTopic(CreateTopic { keep: Some(Millis::from_secs(keep)), ..topic })
    };
    let topic = TopicId::new(2);
    let created = Reply::TopicCreated { topic, existed: false };
    assert_eq!(bench.reply(create("short", 10)), created);
    let limit = |reply| matches!(reply, Reply::Refused(Refusal::Limit { limit: 60_000, .. }));
    assert!(limit(bench.reply(create("long", 61))));
    assert!(limit(bench.reply(create("none", 0))));
    let differs = bench.reply(create("short", 11));
    assert!(matches!(differs, Reply::Refused(Refusal::TopicDiffers { .. })), "{differs:?}");

    let items = (0..3).map(|_| names::item(0, 0)).collect();
    bench.apply(Command::Publish(crate::command::Publish { topic, dedup: false, items }));
    let mark = until_mark(&mut bench);
    assert_eq!(bench.reply(Command::Trim(Trim { topic, mark: mark.index })), Reply::Done);
    let state = bench.machine.state();
    assert_eq!(state.queue_start(topic, QUEUE), QueueOffset::new(3));
    assert_eq!(start(&bench, 0), 0, "other topics stay");
    assert!(state.floor().is_none() && state.purge_intent().is_none());
    assert_eq!(state.kept_topics().count(), 1);
}

#[test]
fn a_deleted_topic_leaves_no_trace_in_marks() {
    let mut bench = bench();
    bench.publish(1, 3);
    let mark = until_mark(&mut bench);
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    bench.apply(names::topic("orders", 1));
    assert_eq!(intend(&mut bench, &mark), []);
    assert_eq!(purge(&mut bench, &mark), Reply::Done);
    bench.checkpoint();
    let hashes = bench.hashes();
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
}

/// Extents of units that left are used again, and the chain of those that stay is still known.
#[test]
fn units_below_the_start_give_their_room_back() {
    let mut bench = bench();
    bench.publish(0, 1000);
    let first = until_mark(&mut bench);
    intend(&mut bench, &first);
    assert_eq!(purge(&mut bench, &first), Reply::Done);
    let hashes = bench.hashes();
    assert!(bench.checkpoint());
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
    let files = |bench: &Bench| {
        let names = bench.sim.env().disk.list(&super::bench::dir()).unwrap();
        names.iter().filter(|name| name.starts_with("units-")).count()
    };
    let before = files(&bench);
    // The next thousand fit into the room of the first.
    bench.checkpoint();
    bench.publish(0, 900);
    assert_eq!(files(&bench), before);
    bench.machine.state().units_hash().unwrap();
    let below = bench.machine.state().units(names::TOPIC, QUEUE, QueueOffset::new(10), 1);
    assert!(below.is_err());
}

/// A replica that begins with the state at a mark comes to the same state as the others, though it
/// has none of the units and records before it.
#[test]
fn a_replica_that_begins_at_a_mark_becomes_equal() {
    let mut bench = bench();
    bench.publish(0, 50);
    bench.publish(1, 20);
    bench.take("a", &[3]);
    let mark = until_mark(&mut bench);
    assert!(bench.machine.state().at_mark());
    let snapshot = bench.machine.freeze_for_peers().unwrap().snapshot();
    until_mark(&mut bench);
    bench.take("b", &[60, 61]);
    intend(&mut bench, &mark);
    let needed: Vec<_> = bench.machine.state().to_relocate().map(|(first, _)| first).collect();
    assert_eq!(needed.len(), 1);
    relocate(&mut bench, needed[0]);
    assert_eq!(purge(&mut bench, &mark), Reply::Done);
    until_mark(&mut bench);

    let mut late = Bench::new();
    late.machine.install(&snapshot).unwrap();
    late.log = bench.log.clone();
    late.catch_up();
    assert_eq!(late.hashes(), bench.hashes());
}
