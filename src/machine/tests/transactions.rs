//! Half messages: nobody sees one before its commit, and the first decision counts.

use bytes::Bytes;

use super::bench::{Bench, names};
use crate::base::{
    ClientId, GroupId, LogIndex, LogPosition, Millis, QueueId, QueueOffset, TopicId, UtcMillis,
};
use crate::command::{
    Ack, Checked, Command, Decided, Decider, Decision, Delivery, DeliveryOutcome, End, HalfItem,
    Prepare, Prepared, Refusal, Relocation, Reply, Retention, Transaction, Unit,
};
use crate::machine::{Effect, Half};
use crate::message::MessageKind;

const INTERVAL: u64 = 1_000;
const FIRST: u64 = 500;
const QUEUE: QueueId = QueueId::new(0);

pub(super) fn prepare(ids: &[u128]) -> Command {
    let half = |id: &u128| {
        let mut item = names::item(0, *id);
        item.kind = MessageKind::Transaction;
        HalfItem { item, first_check: Millis::new(FIRST) }
    };
    Command::Prepare(Prepare {
        topic: names::TOPIC,
        producer: ClientId::new("p").unwrap(),
        interval: Millis::new(INTERVAL),
        checks_max: 2,
        halves: ids.iter().map(half).collect(),
    })
}

pub(super) fn prepared(bench: &mut Bench, id: u128) -> Transaction {
    let Reply::Prepared(mut prepared) = bench.reply(prepare(&[id])) else { panic!("refused") };
    assert!(!prepared[0].repeated);
    Transaction { topic: names::TOPIC, at: prepared.remove(0).at }
}

pub(super) fn end(transaction: Transaction, decision: Decision) -> Command {
    Command::End(End { transaction, decision, by: Decider::Producer })
}

fn decided(bench: &mut Bench, transaction: Transaction, decision: Decision) -> Decided {
    match bench.reply(end(transaction, decision)) {
        Reply::Ended { decided, repeated: false } => decided,
        other => panic!("not decided anew: {other:?}"),
    }
}

fn queue_end(bench: &Bench) -> u64 {
    bench.machine.state().queue_end(names::TOPIC, QUEUE).get()
}

fn half(bench: &Bench, transaction: Transaction) -> Option<Half> {
    bench.machine.state().half(transaction).cloned()
}

fn check(bench: &mut Bench, transaction: Transaction, number: u32) -> u32 {
    match bench.reply(Command::Check(vec![Checked { transaction, number }])) {
        Reply::Checked { counted } => counted,
        other => panic!("not counted: {other:?}"),
    }
}

#[test]
fn a_commit_shows_the_message_at_the_end_of_its_queue() {
    let mut bench = Bench::with_topic(1);
    let first = prepared(&mut bench, 1);
    let second = prepared(&mut bench, 2);
    assert_eq!(queue_end(&bench), 0, "no queue shows a half message");
    bench.publish(0, 1);
    bench.stamp += 70;
    let applied = bench.apply(end(second, Decision::Commit));
    let place = Some((QUEUE, QueueOffset::new(1)));
    let stamp = UtcMillis::new(bench.stamp);
    let was = Decided { decision: Decision::Commit, by: Decider::Producer, stamp, place };
    assert_eq!(applied.reply, Reply::Ended { decided: was, repeated: false });
    assert_eq!(applied.effects, [Effect::Arrived { topic: names::TOPIC, queue: QUEUE, count: 1 }]);
    // The record stays where it is; what is new is when it became visible.
    let unit = bench.unit(0, 1);
    assert_eq!((unit.position, unit.visible), (second.at, stamp));
    assert_eq!((unit.tag_hash, unit.group_hash, unit.size), (11, 13, 8));
    decided(&mut bench, first, Decision::RollBack);
    assert_eq!(queue_end(&bench), 2);
    assert_eq!(bench.machine.state().halves_count(), 0);
}

#[test]
fn the_first_decision_counts_and_is_told() {
    let mut bench = Bench::with_topic(1);
    let (one, other) = (prepared(&mut bench, 1), prepared(&mut bench, 2));
    let rolled_back = decided(&mut bench, one, Decision::RollBack);
    let committed = decided(&mut bench, other, Decision::Commit);
    bench.stamp += 5_000;
    for (transaction, decided, against) in
        [(one, rolled_back, Decision::Commit), (other, committed, Decision::RollBack)]
    {
        let again = bench.reply(end(transaction, decided.decision));
        assert_eq!(again, Reply::Ended { decided, repeated: true });
        let refused = bench.reply(end(transaction, against));
        assert_eq!(refused, Reply::Refused(Refusal::Decided { decided }));
        let resumed = bench.reply(Command::Resume(transaction));
        assert_eq!(resumed, Reply::Refused(Refusal::Decided { decided }));
        assert_eq!(bench.machine.state().decided(transaction), Some(decided));
        assert_eq!(check(&mut bench, transaction, 1), 0);
    }
    assert_eq!(queue_end(&bench), 1);
    let text = Refusal::Decided { decided: rolled_back }.to_string();
    assert!(text.contains("rolled back by its producer"), "{text}");
}

#[test]
fn what_was_never_prepared_cannot_be_ended() {
    let mut bench = Bench::with_topic(1);
    let known = prepared(&mut bench, 1);
    let nowhere = Transaction { at: known.at.plus(1), ..known };
    let elsewhere = Transaction { topic: TopicId::new(2), ..known };
    for stranger in [nowhere, elsewhere] {
        let refusal = Refusal::NoTransaction { at: stranger.at };
        assert_eq!(bench.reply(end(stranger, Decision::Commit)), Reply::Refused(refusal.clone()));
        assert_eq!(bench.reply(Command::Resume(stranger)), Reply::Refused(refusal));
    }
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    let refusal = Refusal::NoTransaction { at: known.at };
    assert_eq!(bench.reply(end(known, Decision::Commit)), Reply::Refused(refusal));
    assert_eq!(bench.machine.state().next_check(), None, "it went with its topic");
    let refusal = Refusal::NoTopic { topic: names::TOPIC };
    assert_eq!(bench.reply(prepare(&[3])), Reply::Refused(refusal));
}

#[test]
fn a_repeated_half_message_is_the_transaction_that_it_was() {
    let mut bench = Bench::with_topic(1);
    let first = prepared(&mut bench, 1);
    let Reply::Prepared(again) = bench.reply(prepare(&[2, 1, 2])) else { panic!("refused") };
    assert_eq!(again[1], Prepared { at: first.at, repeated: true });
    assert_eq!(again[2], Prepared { at: again[0].at, repeated: true });
    assert_eq!(bench.machine.state().halves_count(), 2);
    decided(&mut bench, first, Decision::RollBack);
    // Also when it is over.
    let again = bench.reply(prepare(&[1]));
    assert_eq!(again, Reply::Prepared(vec![Prepared { at: first.at, repeated: true }]));
    assert_eq!(bench.machine.state().halves_count(), 1);
}

#[test]
fn only_checks_that_were_made_count_and_after_the_last_it_is_parked() {
    let mut bench = Bench::with_topic(1);
    let transaction = prepared(&mut bench, 1);
    let start = bench.stamp;
    let state = bench.machine.state();
    assert_eq!(state.next_check(), Some(UtcMillis::new(start + FIRST)));
    let before = UtcMillis::new(start + FIRST - 1);
    assert_eq!(state.topics_to_check(before, None).count(), 0);
    let due = UtcMillis::new(start + FIRST);
    assert_eq!(state.topics_to_check(due, None).collect::<Vec<_>>(), [names::TOPIC]);
    assert_eq!(state.topics_to_check(due, Some(names::TOPIC)).count(), 0);
    let behind = |after| state.checks_due(names::TOPIC, due, after).map(|(at, _)| at).next();
    assert_eq!(behind(None), Some(transaction.at));
    assert_eq!(behind(Some((before, transaction.at))), Some(transaction.at));
    assert_eq!(behind(Some((due, transaction.at))), None);

    bench.stamp += FIRST;
    assert_eq!(check(&mut bench, transaction, 2), 0, "the second before the first");
    assert_eq!(check(&mut bench, transaction, 1), 1);
    assert_eq!(check(&mut bench, transaction, 1), 0, "it counts once");
    let next = UtcMillis::new(bench.stamp + INTERVAL);
    assert_eq!(bench.machine.state().next_check(), Some(next));
    bench.stamp += INTERVAL;
    assert_eq!(check(&mut bench, transaction, 2), 1);
    let parked = half(&bench, transaction).unwrap();
    assert!(parked.is_parked());
    assert_eq!(bench.machine.state().next_check(), None);
    assert_eq!(check(&mut bench, transaction, 3), 0);

    bench.stamp += 100_000;
    assert_eq!(bench.reply(Command::Resume(transaction)), Reply::Done);
    let resumed = half(&bench, transaction).unwrap();
    assert_eq!((resumed.checks, resumed.is_parked()), (0, false));
    assert_eq!(bench.machine.state().next_check(), Some(UtcMillis::new(bench.stamp)));
    assert_eq!(check(&mut bench, transaction, 1), 1);
    assert_eq!(check(&mut bench, transaction, 2), 1);
    let end = End { transaction, decision: Decision::Commit, by: Decider::Operator };
    assert!(matches!(bench.reply(Command::End(end)), Reply::Ended { repeated: false, .. }));
    assert_eq!(queue_end(&bench), 1);
}

const STRIDE: u64 = 1000;

fn kept(moved_max: u64) -> Command {
    let time = Millis::from_secs(60);
    Command::Retain(Retention { stride: STRIDE, time, bytes: 0, moved_max })
}

/// Publishes until there is another mark; answers it and its end.
fn until_mark(bench: &mut Bench) -> (LogIndex, LogPosition) {
    let before = bench.machine.state().marks().count();
    while bench.machine.state().marks().count() == before {
        bench.stamp += 10;
        bench.publish(0, 1);
    }
    let mark = bench.machine.state().marks().next_back().unwrap();
    (mark.index, mark.end)
}

fn relocate_all(bench: &mut Bench) -> Vec<LogPosition> {
    let needed: Vec<(LogPosition, Unit)> = bench.machine.state().to_relocate().collect();
    for (original, unit) in &needed {
        assert_eq!(unit.size, 8);
        let record = Bytes::from_static(b"a record");
        let relocation = Relocation { original: *original, record, record_at: 0 };
        assert_eq!(bench.reply(Command::Relocate(vec![relocation])), Reply::Done);
    }
    needed.into_iter().map(|(original, _)| original).collect()
}

fn lies(bench: &Bench, original: LogPosition) -> LogPosition {
    bench.machine.state().locate(Unit { position: original, ..names::NO_UNIT }).position
}

/// However short the retention, its record is there when it is decided (rule R7), and from then on
/// for as long as that of a new message (rule R9).
#[test]
fn a_half_message_outlives_retention_and_its_unit_counts_from_the_commit() {
    let mut bench = Bench::with_topic(1);
    bench.apply(kept(1_000));
    let transaction = prepared(&mut bench, 1);
    let fleeting = prepared(&mut bench, 2);
    let (mark, front) = until_mark(&mut bench);
    bench.apply(Command::PurgeIntent { mark });
    let under_way = Refusal::UnderWay { mark, count: 2 };
    assert_eq!(bench.reply(Command::PurgeTo { mark }), Reply::Refused(under_way));
    assert_eq!(relocate_all(&mut bench), [transaction.at, fleeting.at]);
    assert_eq!(bench.reply(Command::PurgeTo { mark }), Reply::Done);
    assert!(lies(&bench, transaction.at) >= front);
    assert_eq!(bench.machine.state().moved_bytes(), 16);
    // Copies that no consumer keeps do not stop the handing out.
    bench.apply(kept(8));
    let newest = queue_end(&bench);
    decided(&mut bench, fleeting, Decision::RollBack);
    assert_eq!(bench.machine.state().moved_bytes(), 8, "nobody needs its record any more");

    let place = decided(&mut bench, transaction, Decision::Commit).place.unwrap();
    assert_eq!(place.1.get(), newest);
    let handles = bench.take("a", &[newest]);
    assert_eq!(handles.len(), 1);
    let ack = Delivery::Ack(Ack { handle: handles[0] });
    assert_eq!(bench.deliver(ack), DeliveryOutcome::Done);
    assert_eq!(bench.machine.state().moved_bytes(), 8, "other groups are to have it");
    let hashes = bench.hashes();
    assert!(bench.checkpoint());
    bench.restart();
    assert_eq!(bench.hashes(), hashes);

    // The mark behind the commit takes the unit along, and the copy with it.
    let (mark, front) = until_mark(&mut bench);
    assert!(lies(&bench, transaction.at) < front);
    bench.apply(Command::PurgeIntent { mark });
    assert!(bench.machine.state().queue_start(names::TOPIC, QUEUE) > place.1);
    assert_eq!(relocate_all(&mut bench), []);
    assert_eq!(bench.machine.state().moved_bytes(), 0);
    assert_eq!(bench.reply(Command::PurgeTo { mark }), Reply::Done);
}

/// Committed behind the mark, it is there for groups though the front has passed where its record
/// lay first.
#[test]
fn a_unit_of_a_later_stride_keeps_its_record() {
    let mut bench = Bench::with_topic(1);
    bench.apply(kept(1_000));
    let transaction = prepared(&mut bench, 1);
    let (mark, front) = until_mark(&mut bench);
    let place = decided(&mut bench, transaction, Decision::Commit).place.unwrap();
    let early = prepared(&mut bench, 2);
    decided(&mut bench, early, Decision::Commit);
    bench.apply(Command::PurgeIntent { mark });
    // The other one's record lies behind the mark, as its unit does.
    assert_eq!(relocate_all(&mut bench), [transaction.at]);
    assert_eq!(bench.reply(Command::PurgeTo { mark }), Reply::Done);
    assert!(lies(&bench, transaction.at) >= front);
    let state = bench.machine.state();
    assert!(state.queue_start(names::TOPIC, QUEUE) <= place.1);
    assert_eq!(state.lag(GroupId::new(1), names::TOPIC).ready, 2);
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    assert_eq!(bench.machine.state().moved_bytes(), 0);
}

#[test]
fn half_messages_have_a_quota_of_their_own() {
    let mut bench = Bench::with_topic(1);
    bench.apply(kept(20));
    let first = prepared(&mut bench, 1);
    prepared(&mut bench, 2);
    let full = Reply::Refused(Refusal::HalvesFull { bytes: 24, limit: 20 });
    assert_eq!(bench.reply(prepare(&[3])), full);
    // All or none, and what is known is not new.
    assert_eq!(bench.reply(prepare(&[1, 3])), full);
    assert!(matches!(bench.reply(prepare(&[1, 2])), Reply::Prepared(_)));
    decided(&mut bench, first, Decision::RollBack);
    prepared(&mut bench, 3);
    assert_eq!(bench.machine.state().halves_count(), 2);
}

#[test]
fn half_messages_are_listed_in_the_order_of_their_records() {
    let mut bench = Bench::with_topic(1);
    let all: Vec<_> = (1..5).map(|id| prepared(&mut bench, id).at).collect();
    let state = bench.machine.state();
    let listed: Vec<_> = state.halves_after(None).map(|(at, _)| at).collect();
    assert_eq!(listed, all);
    let rest: Vec<_> = state.halves_after(Some(all[1])).map(|(at, _)| at).collect();
    assert_eq!(rest, all[2..]);
}
