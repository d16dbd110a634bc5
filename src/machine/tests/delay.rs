//! Delayed messages: when they fire, how they are recalled, and that their records stay.

mod kept;

use self::kept::{retention, until_mark};
use super::bench::{Bench, names};
use crate::base::{LogPosition, Millis, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{
    Command, Published, Refusal, Reply, Retention, Schedule, ScheduleItem, Scheduled, TimerKey,
    TimerOutcome,
};
use crate::machine::Effect;
use crate::machine::timers::{Phase, Row, Timers};
use crate::message::{MessageIdHash, MessageKind};

const QUEUE: QueueId = QueueId::new(0);

fn item(due: u64, queue: u32, id: u128) -> ScheduleItem {
    let mut item = names::item(queue, id);
    item.kind = MessageKind::Delay;
    ScheduleItem { due: UtcMillis::new(due), item }
}

fn schedule(bench: &mut Bench, items: Vec<ScheduleItem>) -> Vec<Scheduled> {
    let schedule = Schedule { topic: names::TOPIC, dedup: true, items };
    match bench.reply(Command::Schedule(schedule)) {
        Reply::Scheduled(scheduled) => scheduled,
        other => panic!("scheduled, not {other:?}"),
    }
}

/// One message to queue 0; answers where its record lies.
fn later(bench: &mut Bench, due: u64, id: u128) -> LogPosition {
    schedule(bench, vec![item(due, 0, id)])[0].position
}

fn key(id: u128, position: Option<LogPosition>) -> TimerKey {
    TimerKey { topic: names::TOPIC, id_hash: MessageIdHash::new(id), position }
}

fn outcome(reply: Reply) -> TimerOutcome {
    match reply {
        Reply::Timer(outcome) => outcome,
        other => panic!("an outcome, not {other:?}"),
    }
}

fn recall(bench: &mut Bench, id: u128, position: Option<LogPosition>) -> TimerOutcome {
    outcome(bench.reply(Command::Recall(key(id, position))))
}

fn reschedule(bench: &mut Bench, id: u128, due: u64) -> TimerOutcome {
    let due = UtcMillis::new(due);
    outcome(bench.reply(Command::Reschedule { timer: key(id, None), due }))
}

fn fired(bench: &mut Bench, limit: u32) -> u32 {
    match bench.reply(Command::Tick { limit }) {
        Reply::Ticked { fired } => fired,
        other => panic!("ticked, not {other:?}"),
    }
}

/// What queue 0 shows, by where records lay first.
fn visible(bench: &Bench) -> Vec<LogPosition> {
    let state = bench.machine.state();
    let start = state.queue_start(names::TOPIC, QUEUE);
    let units = state.units(names::TOPIC, QUEUE, start, usize::MAX).unwrap();
    units.iter().map(|unit| unit.position).collect()
}

#[test]
fn messages_fire_in_order_and_never_early() {
    let mut bench = Bench::with_topic(2);
    let start = bench.stamp;
    let far = later(&mut bench, start + 90_000_000, 1);
    let second = later(&mut bench, start + 5_000, 2);
    let third = later(&mut bench, start + 5_000, 3);
    let first = later(&mut bench, start + 4_999, 4);
    assert_eq!(visible(&bench), []);
    assert_eq!(bench.machine.state().delayed(), 4);
    assert_eq!(bench.machine.state().next_due(), Some(UtcMillis::new(start + 4_999)));
    bench.stamp = start + 4_998;
    assert_eq!(bench.tick(), []);
    bench.stamp += 1;
    let arrived = Effect::Arrived { topic: names::TOPIC, queue: QUEUE, count: 1 };
    assert_eq!(bench.tick(), [arrived]);
    assert_eq!(visible(&bench), [first]);
    bench.stamp += 1;
    assert_eq!(fired(&mut bench, 1), 1, "at most the limit");
    assert_eq!(visible(&bench), [first, second]);
    assert_eq!(fired(&mut bench, 10), 1);
    assert_eq!(visible(&bench), [first, second, third]);
    let unit = bench.unit(0, 2);
    assert_eq!((unit.visible, unit.tag_hash), (UtcMillis::new(bench.stamp), 11));
    // Everything overdue fires after a day without anybody.
    bench.stamp = start + 200_000_000;
    let next = bench.machine.state().next_due().unwrap();
    assert!(next <= UtcMillis::new(start + 90_000_000), "not after its time");
    assert_eq!(fired(&mut bench, 10), 1);
    assert_eq!(visible(&bench), [first, second, third, far]);
    assert_eq!(fired(&mut bench, 10), 0);
    assert_eq!(bench.machine.state().next_due(), None);
}

#[test]
fn what_has_passed_is_visible_at_once() {
    let mut bench = Bench::with_topic(2);
    let now = bench.stamp;
    let items = vec![item(now, 0, 1), item(0, 1, 2), item(now + 1, 0, 3)];
    let schedule = Schedule { topic: names::TOPIC, dedup: true, items };
    let applied = bench.apply(Command::Schedule(schedule));
    let arrived =
        |queue| Effect::Arrived { topic: names::TOPIC, queue: QueueId::new(queue), count: 1 };
    assert_eq!(applied.effects, [arrived(0), arrived(1)]);
    assert_eq!(bench.machine.state().delayed(), 1);
    assert_eq!(recall(&mut bench, 2, None), TimerOutcome::AlreadyFired);
    // The end of time is a time like any other.
    later(&mut bench, u64::MAX, 4);
    assert_eq!(bench.machine.state().delayed(), 2);
    assert_eq!(recall(&mut bench, 4, None), TimerOutcome::Recalled);
}

#[test]
fn a_recall_is_exact() {
    let mut bench = Bench::with_topic(2);
    let due = bench.stamp + 1_000;
    let one = later(&mut bench, due, 1);
    let two = later(&mut bench, due, 2);
    assert_eq!(recall(&mut bench, 1, Some(one)), TimerOutcome::Recalled);
    assert_eq!(recall(&mut bench, 1, Some(one)), TimerOutcome::Recalled, "asked again");
    assert_eq!(recall(&mut bench, 1, None), TimerOutcome::Recalled);
    assert_eq!(recall(&mut bench, 2, Some(one)), TimerOutcome::NotFound, "another message's place");
    assert_eq!(recall(&mut bench, 9, None), TimerOutcome::NotFound);
    bench.stamp = due;
    // Its time has come, but no tick was applied: the log decides.
    let three = later(&mut bench, due + 1, 3);
    assert_eq!(fired(&mut bench, 10), 1);
    assert_eq!(visible(&bench), [two]);
    assert_eq!(recall(&mut bench, 2, Some(two)), TimerOutcome::AlreadyFired);
    assert_eq!(recall(&mut bench, 2, None), TimerOutcome::AlreadyFired);
    bench.stamp += 1;
    assert_eq!(recall(&mut bench, 3, Some(three)), TimerOutcome::Recalled);
    assert_eq!(fired(&mut bench, 10), 0);
    assert_eq!(visible(&bench), [two]);
    let gone = TimerKey { topic: TopicId::new(9), ..key(2, None) };
    let refused = Refusal::NoTopic { topic: TopicId::new(9) };
    assert_eq!(bench.reply(Command::Recall(gone)), Reply::Refused(refused));
}

#[test]
fn of_two_messages_of_one_id_the_oldest_is_recalled_first() {
    let mut bench = Bench::with_topic(1);
    let due = bench.stamp + 1_000;
    let schedule = |bench: &mut Bench| {
        let items = vec![item(due, 0, 5)];
        let schedule = Schedule { topic: names::TOPIC, dedup: false, items };
        bench.reply(Command::Schedule(schedule))
    };
    schedule(&mut bench);
    schedule(&mut bench);
    assert_eq!(recall(&mut bench, 5, None), TimerOutcome::Recalled);
    assert_eq!(bench.machine.state().delayed(), 1);
    assert_eq!(recall(&mut bench, 5, None), TimerOutcome::Recalled);
    assert_eq!(bench.machine.state().delayed(), 0);
}

#[test]
fn another_time_takes_the_place_of_the_first() {
    let mut bench = Bench::with_topic(2);
    let start = bench.stamp;
    let one = later(&mut bench, start + 1_000, 1);
    let two = later(&mut bench, start + 5_000_000, 2);
    assert_eq!(reschedule(&mut bench, 1, start + 3_000), TimerOutcome::Rescheduled);
    assert_eq!(reschedule(&mut bench, 2, start + 2_000), TimerOutcome::Rescheduled);
    bench.stamp = start + 1_500;
    assert_eq!(fired(&mut bench, 10), 0);
    bench.stamp = start + 2_500;
    assert_eq!(fired(&mut bench, 10), 1);
    // Back to its first time, which has passed, and to and fro: it fires once.
    for due in [start + 1_000, start + 3_000, start + 1_000, start + 1_000] {
        assert_eq!(reschedule(&mut bench, 1, due), TimerOutcome::Rescheduled);
    }
    assert_eq!(fired(&mut bench, 10), 1);
    assert_eq!(visible(&bench), [two, one]);
    bench.stamp = start + 9_000_000;
    assert_eq!(fired(&mut bench, 10), 0);
    assert_eq!(reschedule(&mut bench, 1, start + 9_999_999), TimerOutcome::AlreadyFired);
    assert_eq!(reschedule(&mut bench, 7, start), TimerOutcome::NotFound);
}

#[test]
fn a_repeated_message_gets_its_first_place() {
    let mut bench = Bench::with_topic(2);
    let due = bench.stamp + 1_000;
    let twice = schedule(&mut bench, vec![item(due, 0, 1), item(due, 0, 1)]);
    assert_eq!(twice[1], Scheduled { repeated: true, ..twice[0] });
    let again = schedule(&mut bench, vec![item(due + 5, 1, 1)]);
    assert_eq!(again, [Scheduled { repeated: true, ..twice[0] }]);
    assert_eq!(bench.machine.state().delayed(), 1);
    // Also when it has been recalled since (rule R19).
    assert_eq!(recall(&mut bench, 1, None), TimerOutcome::Recalled);
    assert_eq!(schedule(&mut bench, vec![item(due, 0, 1)])[0].position, twice[0].position);
    assert_eq!(bench.machine.state().delayed(), 0);
    // A normal message of the same id is another one.
    let publish = crate::command::Publish {
        topic: names::TOPIC,
        dedup: true,
        items: vec![names::item(0, 1)],
    };
    match bench.reply(Command::Publish(publish)) {
        Reply::Published(published) => {
            assert!(matches!(published[..], [Published { repeated: false, .. }]));
        }
        other => panic!("published, not {other:?}"),
    }
}

#[test]
fn all_messages_of_a_request_or_none() {
    let mut bench = Bench::with_topic(1);
    let due = bench.stamp + 1_000;
    let items = vec![item(due, 0, 1), item(due, 1, 2)];
    let schedule = Schedule { topic: names::TOPIC, dedup: true, items };
    let refusal = Refusal::NoQueue { queue: QueueId::new(1), queues: 1 };
    assert_eq!(bench.reply(Command::Schedule(schedule)), Reply::Refused(refusal));
    assert_eq!(bench.machine.state().delayed(), 0);
    assert_eq!(recall(&mut bench, 1, None), TimerOutcome::NotFound);
}

#[test]
fn a_deleted_topic_takes_its_delayed_messages_along() {
    let mut bench = Bench::with_topic(1);
    let due = bench.stamp + 1_000;
    later(&mut bench, due, 1);
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    bench.apply(names::topic("orders", 1));
    bench.stamp = due;
    assert_eq!(fired(&mut bench, 10), 0);
    assert_eq!(bench.machine.state().delayed(), 0);
}

#[test]
fn many_messages_over_many_hours_fire_each_at_its_time() {
    let mut bench = Bench::with_topic(1);
    let start = bench.stamp;
    let mut expected = Vec::new();
    // Spread over two days, several to a millisecond here and there, in no order.
    for round in 0..40_u64 {
        let dues: Vec<u64> = (0..25_u64)
            .map(|at| start + 1 + (round * 7_919 + at * at * 104_729) % 172_800_000)
            .chain([start + 5_000])
            .collect();
        let items = dues.iter().enumerate();
        let items = items.map(|(at, due)| item(*due, 0, u128::from(round) << 32 | at as u128));
        let scheduled = schedule(&mut bench, items.collect());
        expected.extend(dues.iter().zip(scheduled).map(|(due, one)| (*due, one.position)));
    }
    expected.sort_unstable();
    bench.checkpoint();
    bench.reopen();
    assert_eq!(bench.machine.state().delayed(), expected.len());
    let mut ticks = 0;
    while let Some(due) = bench.machine.state().next_due() {
        bench.stamp = bench.stamp.max(due.get());
        fired(&mut bench, 7);
        ticks += 1;
        let shown = visible(&bench);
        let due = expected.iter().filter(|(due, _)| *due <= bench.stamp).count();
        assert!(shown.len() <= due, "nothing is early");
    }
    let places: Vec<_> = expected.iter().map(|(_, position)| *position).collect();
    assert_eq!(visible(&bench), places);
    assert!(ticks < 2 * expected.len(), "{ticks} ticks for {} messages", expected.len());
}

#[test]
fn ends_are_remembered_for_a_while() {
    let mut bench = Bench::with_topic(1);
    let now = bench.stamp;
    for round in 0..20_u128 {
        let ids = (0..1_000).map(|at| round * 1_000 + at);
        let items = ids.map(|id| item(now, 0, id)).collect();
        schedule(&mut bench, items);
    }
    assert_eq!(recall(&mut bench, 0, None), TimerOutcome::AlreadyFired);
    bench.stamp += 601_000;
    schedule(&mut bench, vec![item(now, 0, 99_999)]);
    assert_eq!(recall(&mut bench, 0, None), TimerOutcome::NotFound, "too many, too long ago");
    assert_eq!(recall(&mut bench, 19_999, None), TimerOutcome::AlreadyFired);
    let hashes = bench.hashes();
    bench.checkpoint();
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
    assert_eq!(recall(&mut bench, 19_998, None), TimerOutcome::AlreadyFired);
    assert_eq!(bench.machine.state().queue_end(names::TOPIC, QUEUE), QueueOffset::new(20_001));
}

/// What is asked with a handle is answered as long as anything of the message is there, and a burst
/// of firing is no reason to forget what was recalled.
#[test]
fn a_burst_of_firing_pushes_no_answer_out() {
    let mut bench = Bench::with_topic(1);
    bench.apply(Command::Retain(Retention { moved_max: 1 << 30, ..retention() }));
    let due = bench.stamp + 100;
    let (visible, recalled) = (later(&mut bench, due, 1), later(&mut bench, due, 2));
    until_mark(&mut bench);
    bench.stamp = due;
    assert_eq!(fired(&mut bench, 1), 1);
    assert_eq!(recall(&mut bench, 2, None), TimerOutcome::Recalled);
    for round in 1..20_u128 {
        let items = (0..1_000).map(|at| item(0, 0, round * 1_000 + at)).collect();
        schedule(&mut bench, items);
        bench.stamp += 100_000;
    }
    assert_eq!(recall(&mut bench, 1, None), TimerOutcome::NotFound, "long ago, many since");
    assert_eq!(recall(&mut bench, 1, Some(visible)), TimerOutcome::AlreadyFired, "it has its row");
    assert_eq!(recall(&mut bench, 9, Some(visible)), TimerOutcome::NotFound, "another id");
    assert_eq!(recall(&mut bench, 2, Some(recalled)), TimerOutcome::Recalled);
    assert_eq!(recall(&mut bench, 2, None), TimerOutcome::Recalled);
}

/// What is kept of one topic goes with it, and nothing of others; neither does a front that moves
/// over the other's messages touch it.
#[test]
fn topics_share_chunks_and_nothing_else() {
    let mut bench = Bench::with_topic(1);
    bench.apply(names::topic("others", 1));
    bench.apply(Command::Retain(Retention { moved_max: 1 << 30, ..retention() }));
    let other = TopicId::new(2);
    let (start, due) = (bench.stamp, bench.stamp + 100_000);
    for id in 0..600_u128 {
        let soon = if id.is_multiple_of(5) { start + 1 } else { due };
        let topic = if id.is_multiple_of(3) { other } else { names::TOPIC };
        let schedule = Schedule { topic, dedup: false, items: vec![item(soon, 0, id)] };
        assert!(matches!(bench.reply(Command::Schedule(schedule)), Reply::Scheduled(_)));
    }
    bench.stamp += 1;
    assert_eq!(fired(&mut bench, 1_000), 120);
    assert_eq!(bench.machine.state().delayed(), 480);
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    assert_eq!(bench.machine.state().delayed(), 160);
    bench.stamp = due;
    assert_eq!(fired(&mut bench, 1_000), 160);
    assert_eq!(bench.machine.state().queue_end(other, QUEUE), QueueOffset::new(200));
}

/// A table in which these are in each other's way would take minutes.
#[test]
fn one_id_may_come_a_hundred_thousand_times() {
    let mut timers = Timers::new(1);
    let row = |at: u64| Row {
        original: LogPosition::new(at),
        now: LogPosition::new(at),
        phase: Phase::Pending { due: UtcMillis::new(1_000 + at / 10) },
        id: MessageIdHash::new(5),
        topic: names::TOPIC,
        size: 200,
        tag_hash: 0,
        queue: QUEUE,
    };
    let (count, stamp) = (100_000, UtcMillis::new(500));
    (0..count).for_each(|at| timers.add(row(at)));
    let key = |position| key(5, position);
    for _ in 0..count / 4 {
        assert_eq!(timers.recall(&key(None), stamp), TimerOutcome::Recalled);
    }
    for at in (count / 2..count / 4 * 3).rev() {
        let place = LogPosition::new(at);
        assert_eq!(timers.recall(&key(Some(place)), stamp), TimerOutcome::Recalled);
    }
    timers.check(LogPosition::ZERO).unwrap();
    let mut taken = Vec::new();
    while timers.pending() > 0 {
        let part = timers.take_due(UtcMillis::new(u64::MAX), 1_000);
        for (row, offset) in part.iter().zip(0..) {
            timers.fired(row, QueueOffset::new(offset), LogPosition::ZERO, stamp);
            taken.push(row.original.get());
        }
    }
    let left: Vec<u64> = (count / 4..count / 2).chain(count / 4 * 3..count).collect();
    assert_eq!(taken, left);
    for at in (0..count).step_by(7) {
        let recalled = at < count / 4 || (count / 2..count / 4 * 3).contains(&at);
        let place = LogPosition::new(at);
        let expected = if recalled { TimerOutcome::Recalled } else { TimerOutcome::AlreadyFired };
        assert_eq!(timers.recall(&key(Some(place)), stamp), expected);
    }
    timers.check(LogPosition::ZERO).unwrap();
}

#[test]
fn a_million_pending_messages_take_less_than_a_hundred_mebibytes() {
    // A sixteenth of them, which no table rounds up any better.
    let mut timers = Timers::new(1);
    for at in 0..1_u64 << 16 {
        let row = Row {
            original: LogPosition::new(at * 300),
            now: LogPosition::new(at * 300),
            phase: Phase::Pending { due: UtcMillis::new(at * 977) },
            id: MessageIdHash::new(u128::from(at)),
            topic: names::TOPIC,
            size: 200,
            tag_hash: 0,
            queue: QUEUE,
        };
        timers.add(row);
    }
    let bytes = timers.memory();
    let each = bytes / (1 << 16);
    assert!(each <= 100, "{each} bytes for a pending message");
}
