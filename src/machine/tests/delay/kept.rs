//! What the log keeps for delayed messages, and for how long.

use bytes::Bytes;

use super::*;
use crate::base::LogIndex;
use crate::command::{Ack, Delivery, DeliveryOutcome, Relocation, Unit};
use crate::machine::{Ahead, Mark};

const RECORD: Bytes = Bytes::from_static(b"a record");

pub(super) fn retention() -> Retention {
    Retention { stride: 1000, time: Millis::from_secs(60), bytes: 0, moved_max: 20 }
}

pub(super) fn until_mark(bench: &mut Bench) -> Mark {
    let before = bench.machine.state().marks().count();
    while bench.machine.state().marks().count() == before {
        bench.stamp += 10;
        bench.publish(1, 1);
    }
    bench.machine.state().marks().last().unwrap().clone()
}

fn purge(bench: &mut Bench, mark: LogIndex) -> Reply {
    bench.apply(Command::PurgeIntent { mark });
    bench.reply(Command::PurgeTo { mark })
}

/// Writes again whatever the intended front threatens.
fn relocate_all(bench: &mut Bench) -> Vec<LogPosition> {
    let needed: Vec<_> = bench.machine.state().to_relocate().map(|(first, _)| first).collect();
    let relocation =
        |original: &LogPosition| Relocation { original: *original, record: RECORD, record_at: 0 };
    let relocations = needed.iter().map(relocation).collect();
    assert_eq!(bench.reply(Command::Relocate(relocations)), Reply::Done);
    needed
}

fn lies(bench: &Bench, original: LogPosition) -> LogPosition {
    bench.machine.state().locate(Unit { position: original, ..names::NO_UNIT }).position
}

/// Delayed by far more than retention keeps: the record moves along with the front, and what fires
/// is a new message that stays for as long as one (rules R5 and R9).
#[test]
fn a_delayed_message_outlives_its_record() {
    let mut bench = Bench::with_topic(2);
    assert_eq!(bench.reply(Command::Retain(retention())), Reply::Done);
    let due = bench.stamp + 100_000;
    let one = later(&mut bench, due, 1);
    let two = later(&mut bench, due + 1, 2);
    let mark = until_mark(&mut bench).index;
    let refused = Refusal::UnderWay { mark, count: 2 };
    assert_eq!(purge(&mut bench, mark), Reply::Refused(refused));
    assert_eq!(relocate_all(&mut bench), [one, two]);
    assert_eq!(bench.machine.state().delayed_bytes(), 16);
    assert_eq!(bench.reply(Command::PurgeTo { mark }), Reply::Done);
    let copy = lies(&bench, one);
    assert!(copy > two);
    // A restart, and a replica that gets the state, know where it lies.
    let hashes = bench.hashes();
    assert!(bench.checkpoint());
    bench.restart();
    assert_eq!((bench.hashes(), lies(&bench, one)), (hashes, copy));

    bench.stamp = due;
    let before = until_mark(&mut bench);
    assert_eq!(fired(&mut bench, 10), 2);
    assert_eq!(visible(&bench), [one, two]);
    assert_eq!(lies(&bench, one), copy, "a fired message is read where its record lies");
    // The front comes up to a mark before the firing: the units stay, so the records have to.
    assert_eq!(
        purge(&mut bench, before.index),
        Reply::Refused(Refusal::UnderWay { mark: before.index, count: 2 })
    );
    // One is handed out: its record is needed twice and moves once.
    let handle = bench.take("a", &[0])[0];
    assert_eq!(relocate_all(&mut bench), [one, two]);
    assert_eq!(bench.reply(Command::PurgeTo { mark: before.index }), Reply::Done);
    assert_eq!(visible(&bench), [one, two]);
    // A mark behind the firing: the units go, and what is handed out keeps its record by itself.
    let after = until_mark(&mut bench).index;
    bench.apply(Command::PurgeIntent { mark: after });
    assert_eq!(visible(&bench), []);
    assert_eq!(bench.machine.state().delayed_bytes(), 0);
    assert_eq!(relocate_all(&mut bench), [one]);
    assert_eq!(bench.reply(Command::PurgeTo { mark: after }), Reply::Done);
    assert_eq!(bench.deliver(Delivery::Ack(Ack { handle })), DeliveryOutcome::Done);
    assert_eq!(bench.machine.state().moved_bytes(), 0);
}

#[test]
fn a_message_that_fires_within_its_stride_leaves_no_row() {
    let mut bench = Bench::with_topic(2);
    bench.apply(Command::Retain(retention()));
    until_mark(&mut bench);
    let due = bench.stamp + 1;
    later(&mut bench, due, 1);
    bench.stamp = due;
    assert_eq!(fired(&mut bench, 10), 1);
    let mark = until_mark(&mut bench).index;
    assert_eq!(purge(&mut bench, mark), Reply::Done);
    assert_eq!(visible(&bench), []);
}

/// What the leader wrote again in time leaves no row either: the unit points at the copy.
#[test]
fn a_message_that_was_brought_forward_leaves_no_row() {
    let mut bench = Bench::with_topic(2);
    bench.apply(Command::Retain(Retention { moved_max: 1 << 20, ..retention() }));
    let due = bench.stamp + 100_000;
    let [one, two, far] = [1_u64, 2, 3].map(|id| later(&mut bench, due + (id << 20), id.into()));
    until_mark(&mut bench);
    bench.stamp = due + (2 << 20) - 2_000;
    let until = UtcMillis::new(bench.stamp + 5_000);
    let mut ahead = Ahead::default();
    let look = |bench: &Bench, ahead: &mut Ahead, most| {
        let (found, all) = bench.machine.state().delayed_ahead(ahead, until, most);
        (found.into_iter().map(|(original, _)| original).collect::<Vec<_>>(), all)
    };
    // One is overdue, but for that any time is right; the last is far away.
    bench.apply(Command::Tick { limit: 0 });
    assert_eq!(look(&bench, &mut ahead, 1), (vec![one], false));
    assert_eq!(look(&bench, &mut ahead, 1), (vec![two], true));
    assert_eq!(look(&bench, &mut ahead, 1), (vec![], true));
    until_mark(&mut bench);
    assert_eq!(look(&bench, &mut ahead, 100), (vec![one, two], true), "for nothing, so again");
    let again = |original| Relocation { original, record: RECORD, record_at: 0 };
    bench.apply(Command::Relocate(vec![again(two)]));
    let copy = lies(&bench, two);
    assert_eq!(bench.machine.state().delayed_bytes(), 8);
    assert_eq!(look(&bench, &mut Ahead::default(), 100), (vec![one], true));
    bench.checkpoint();
    bench.restart();
    bench.stamp += 3_000;
    assert_eq!(fired(&mut bench, 10), 2);
    assert_eq!(visible(&bench), [one, copy], "one was not brought forward");
    assert_eq!(bench.machine.state().delayed_bytes(), 0);
    for place in [None, Some(two)] {
        assert_eq!(recall(&mut bench, 2, place), TimerOutcome::AlreadyFired);
    }
    // A copy that comes too late changes nothing, and the message is one like any other.
    bench.apply(Command::Relocate(vec![again(two)]));
    assert_eq!(lies(&bench, copy), copy);
    let handle = bench.take("a", &[1])[0];
    let mark = until_mark(&mut bench).index;
    bench.apply(Command::PurgeIntent { mark });
    assert_eq!(relocate_all(&mut bench), [copy, far], "what is handed out, and what is pending");
    assert_eq!(bench.reply(Command::PurgeTo { mark }), Reply::Done);
    assert_eq!(visible(&bench), []);
    assert_eq!(bench.deliver(Delivery::Ack(Ack { handle })), DeliveryOutcome::Done);
    assert_eq!(bench.machine.state().needed_bytes(), 8, "the one that is far away");
}

#[test]
fn a_recalled_message_needs_no_record() {
    let mut bench = Bench::with_topic(2);
    bench.apply(Command::Retain(retention()));
    let due = bench.stamp + 100_000;
    later(&mut bench, due, 1);
    let mark = until_mark(&mut bench).index;
    bench.apply(Command::PurgeIntent { mark });
    assert_eq!(relocate_all(&mut bench).len(), 1);
    assert_eq!(recall(&mut bench, 1, None), TimerOutcome::Recalled);
    assert_eq!(bench.machine.state().delayed_bytes(), 0);
    assert_eq!(bench.reply(Command::PurgeTo { mark }), Reply::Done);
}

/// Rule R10: whatever is delayed is written again one day, so all of it is bounded, with a refusal
/// of its own.
#[test]
fn too_much_delayed_refuses_new_delayed_messages_only() {
    let mut bench = Bench::with_topic(2);
    bench.apply(Command::Retain(retention()));
    let due = bench.stamp + 1_000_000;
    for id in 1..=2 {
        later(&mut bench, due, id);
    }
    let more = |ids: &[u128]| {
        let items = ids.iter().map(|id| item(due, 0, *id)).collect();
        Command::Schedule(Schedule { topic: names::TOPIC, dedup: true, items })
    };
    let full = |bytes| Reply::Refused(Refusal::DelayedFull { bytes, limit: 20 });
    assert_eq!(bench.reply(more(&[3])), full(24));
    assert_eq!(bench.reply(more(&[3, 4])), full(32));
    assert!(matches!(bench.publish(0, 1), Reply::Published(_)));
    // It is the same whether they were written again.
    let mark = until_mark(&mut bench).index;
    bench.apply(Command::PurgeIntent { mark });
    relocate_all(&mut bench);
    assert_eq!(bench.reply(more(&[3])), full(24));
    assert_eq!(recall(&mut bench, 1, None), TimerOutcome::Recalled);
    bench.checkpoint();
    bench.restart();
    assert_eq!(bench.reply(more(&[3, 4])), full(24));
    assert!(matches!(bench.reply(more(&[3])), Reply::Scheduled(_)));
}

/// Rule R19: what was taken is answered as such, also when nothing more is. What is visible at once
/// takes no room.
#[test]
fn a_repeated_message_is_not_refused_for_want_of_room() {
    let mut bench = Bench::with_topic(2);
    bench.apply(Command::Retain(retention()));
    let due = bench.stamp + 1_000_000;
    let first = schedule(&mut bench, vec![item(due, 0, 1), item(due, 0, 2)]);
    let again = schedule(&mut bench, vec![item(due, 0, 1), item(due, 0, 2), item(0, 0, 3)]);
    assert_eq!(again[0], Scheduled { repeated: true, ..first[0] });
    assert_eq!(again[1], Scheduled { repeated: true, ..first[1] });
    assert!(!again[2].repeated);
    let items = vec![item(due, 0, 1), item(due, 0, 9)];
    let more = Schedule { topic: names::TOPIC, dedup: true, items };
    let full = Refusal::DelayedFull { bytes: 24, limit: 20 };
    assert_eq!(bench.reply(Command::Schedule(more)), Reply::Refused(full));
}

/// What is visible stays for its retention; the quota is for what is to come.
#[test]
fn what_fired_late_takes_no_room_of_what_is_to_come() {
    let mut bench = Bench::with_topic(2);
    bench.apply(Command::Retain(retention()));
    let due = bench.stamp + 100_000;
    schedule(&mut bench, vec![item(due, 0, 1), item(due, 0, 2)]);
    until_mark(&mut bench);
    bench.stamp = due;
    assert_eq!(fired(&mut bench, 10), 2);
    assert_eq!(bench.machine.state().needed_bytes(), 16, "both keep their rows");
    let due = bench.stamp + 100_000;
    let more = |bench: &mut Bench, id| {
        let items = vec![item(due, 0, id)];
        bench.reply(Command::Schedule(Schedule { topic: names::TOPIC, dedup: true, items }))
    };
    for id in [3, 4] {
        assert!(matches!(more(&mut bench, id), Reply::Scheduled(_)));
    }
    let full = Reply::Refused(Refusal::DelayedFull { bytes: 24, limit: 20 });
    assert_eq!(more(&mut bench, 5), full);
    bench.checkpoint();
    bench.restart();
    assert_eq!(more(&mut bench, 5), full);
}

/// Copies make marks, which would make them void without end.
#[test]
fn a_quarter_of_a_stride_is_brought_forward_between_two_marks() {
    const COUNT: u128 = 100;
    let mut bench = Bench::with_topic(2);
    bench.apply(Command::Retain(Retention { moved_max: 1 << 20, ..retention() }));
    let due = bench.stamp + 20_000;
    for id in 0..COUNT {
        later(&mut bench, due, id);
    }
    let mut ahead = Ahead::default();
    for _ in 0..3 {
        until_mark(&mut bench);
        let mut found = 0;
        loop {
            let state = bench.machine.state();
            let (more, all) = state.delayed_ahead(&mut ahead, UtcMillis::new(due), 50);
            found += more.len();
            if all {
                break;
            }
        }
        // Whole records, the last of which comes beyond the quarter.
        assert_eq!(found, 250_usize.div_ceil(RECORD.len()));
    }
}

/// What is due within a second of something that fired is in another place than the rest.
#[test]
fn what_is_open_is_brought_forward_too() {
    let mut bench = Bench::with_topic(2);
    bench.apply(Command::Retain(Retention { moved_max: 1 << 20, ..retention() }));
    let due = (bench.stamp + 20_000).next_multiple_of(1 << 10);
    let places = [0, 100, 200, 2_000].map(|after| later(&mut bench, due + after, after.into()));
    until_mark(&mut bench);
    bench.stamp = due;
    assert_eq!(fired(&mut bench, 1), 1);
    let mut ahead = Ahead::default();
    let mut look = |until: u64| {
        let state = bench.machine.state();
        let (found, all) = state.delayed_ahead(&mut ahead, UtcMillis::new(until), 1 << 20);
        assert!(all);
        found.into_iter().map(|(original, _)| original).collect::<Vec<_>>()
    };
    assert_eq!(look(due + 150), places[1..2]);
    assert_eq!(look(due + 5_000), places[2..]);
    assert_eq!(look(due + 5_000), []);
}
