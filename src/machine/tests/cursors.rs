//! Where groups begin, resets, pauses, stored offsets.

use super::bench::{Bench, names};
use crate::base::{CheckoutId, GroupId, GroupName, Millis, QueueId, QueueOffset, UtcMillis};
use crate::command::{
    Ack, Begin, Checkout, Command, CreateGroup, Delivery, DeliveryOutcome, GiveUp, Handle, Hold,
    Order, OrderRule, Publish, Refusal, Release, Renew, Reply, Reset, Retention, Return, Start,
    StartAt, StoreOffset,
};
use crate::machine::{Effect, HandleState, QueueView, ResetPreview};

const QUEUE: QueueId = QueueId::new(0);
const PAIR: (GroupId, crate::base::TopicId) = (names::GROUP, names::TOPIC);

fn at(offset: u64) -> QueueOffset {
    QueueOffset::new(offset)
}

fn group(begin: Begin, order: Order) -> Command {
    Command::CreateGroup(CreateGroup {
        name: GroupName::new("billing").unwrap(),
        attempts_max: 3,
        backoff: vec![Millis::from_secs(1)].into(),
        rule: OrderRule { order, ..OrderRule::default() },
        dead_keep: None,
        begin,
    })
}

fn starting(start: StartAt) -> Begin {
    Begin { start, paused: false }
}

/// A topic with messages, then a group that begins elsewhere.
fn bench(queues: u32, start: StartAt) -> Bench {
    let mut bench = Bench::new();
    bench.apply(names::topic("orders", queues));
    bench.publish(0, 4);
    bench.stamp += 1_000;
    bench.apply(group(starting(start), Order::Off));
    bench
}

fn begin(bench: &mut Bench, offsets: &[u64]) -> Reply {
    let offsets = offsets.iter().map(|offset| at(*offset)).collect();
    bench.reply(Command::Start(Start { group: names::GROUP, topic: names::TOPIC, offsets }))
}

fn reset(bench: &mut Bench, places: &[(u32, u64)]) -> Reply {
    let offsets = places.iter().map(|(queue, to)| (QueueId::new(*queue), at(*to))).collect();
    bench.reply(Command::Reset(Reset { group: names::GROUP, topic: names::TOPIC, offsets }))
}

fn store(bench: &mut Bench, offset: u64) -> Reply {
    let (group, topic) = PAIR;
    let store = StoreOffset { group, topic, queue: QUEUE, offset: at(offset) };
    bench.reply(Command::StoreOffset(store))
}

fn stored(bench: &Bench) -> Option<u64> {
    bench.machine.state().stored_offset(PAIR, QUEUE).map(QueueOffset::get)
}

fn ack(bench: &mut Bench, handle: Handle) -> DeliveryOutcome {
    bench.deliver(Delivery::Ack(Ack { handle }))
}

fn view(bench: &Bench) -> QueueView {
    bench.machine.state().view(names::GROUP, names::TOPIC, QUEUE)
}

fn offsets(handles: &[Handle]) -> Vec<u64> {
    handles.iter().map(|handle| handle.offset.get()).collect()
}

/// Everything that a restart and a peer read is what it was.
fn survives(bench: &mut Bench) {
    let hashes = bench.hashes();
    bench.checkpoint();
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
}

#[test]
fn a_group_begins_where_it_was_decided_and_nothing_comes_before() {
    let mut bench = bench(2, StartAt::Latest);
    assert_eq!(bench.machine.state().group_start(names::GROUP), Some(UtcMillis::new(1_001_000)));
    assert!(!bench.machine.state().has_begun(names::GROUP, names::TOPIC));
    assert_eq!(bench.take("a", &[0, 1]), [], "nothing is decided yet");
    assert_eq!(reset(&mut bench, &[(0, 0)]), {
        let (group, topic) = PAIR;
        Reply::Refused(Refusal::NotBegun { group, topic })
    });
    // One offset beyond the end stands for the end; the second queue is empty.
    assert_eq!(begin(&mut bench, &[9, 9]), Reply::Done);
    assert!(bench.machine.state().has_begun(names::GROUP, names::TOPIC));
    assert_eq!(begin(&mut bench, &[0, 0]), Reply::Done);
    assert_eq!(view(&bench).next, at(4), "it is decided once");
    bench.publish(0, 2);
    assert_eq!(offsets(&bench.take("a", &[0, 3, 4, 5])), [4, 5]);
    assert_eq!(bench.machine.state().lag(names::GROUP, names::TOPIC).ready, 0);
    // A queue that comes later begins at its first message.
    bench.apply(Command::GrowTopic { topic: names::TOPIC, queues: 3 });
    bench.publish(2, 1);
    let unit = bench.unit(2, 0);
    let mut checkout = bench.checkout("a", &[]);
    checkout.takes[0].queue = QueueId::new(2);
    checkout.takes[0].grants = vec![crate::command::Grant { offset: at(0), unit }];
    assert_eq!(bench.check_out(checkout).granted.len(), 1);
    survives(&mut bench);
}

/// Wherever deliveries of a queue are made, they begin at the start that was decided.
#[test]
fn a_late_start_holds_through_retry_skip_expiry_and_reset() {
    for start in [StartAt::Latest, StartAt::Time(UtcMillis::new(1_000_500))] {
        let mut bench = bench(2, start);
        bench.publish(1, 3);
        begin(&mut bench, &[4, 3]);
        bench.publish(0, 4);
        bench.publish(1, 2);
        let handles = bench.take("a", &[4, 5]);
        // A first retry, in this queue and by a tick.
        let now = Hold { handle: handles[0], invisible: Millis::ZERO };
        assert_eq!(bench.deliver(Delivery::Hold(now)), DeliveryOutcome::Done);
        bench.stamp += 20_000;
        bench.tick();
        assert_eq!(bench.take("b", &[0, 4, 5]).len(), 2);
        // A skip in the queue of which nothing was taken.
        let mut skip = bench.checkout("a", &[]);
        skip.takes[0].queue = QueueId::new(1);
        skip.takes[0].skips = vec![names::skip(3, 4)];
        bench.check_out(skip);
        let other = bench.machine.state().view(names::GROUP, names::TOPIC, QueueId::new(1));
        assert_eq!((other.next, other.free.len()), (at(4), 0), "not one before its start");
        let lag = bench.machine.state().lag(names::GROUP, names::TOPIC);
        assert_eq!((lag.ready, lag.in_flight, lag.expired), (3, 2, 0));
        assert_eq!(reset(&mut bench, &[(1, 0)]), Reply::Reset { epoch: 1 });
        let lag = bench.machine.state().lag(names::GROUP, names::TOPIC);
        assert_eq!(lag.ready, 7, "the other queue stays as it was");
        survives(&mut bench);
    }
}

#[test]
fn what_left_before_a_start_is_not_lost_to_the_group() {
    let mut bench = bench(1, StartAt::Latest);
    let (stride, bytes, moved_max) = (1000, 0, 1 << 20);
    let retention = Retention { stride, time: Millis::from_secs(60), bytes, moved_max };
    bench.apply(Command::Retain(retention));
    begin(&mut bench, &[4]);
    bench.publish(0, 40);
    let mark = bench.machine.state().marks().next_back().cloned().unwrap();
    bench.apply(Command::PurgeIntent { mark: mark.index });
    let start = bench.machine.state().queue_start(names::TOPIC, QUEUE);
    assert_eq!(start, at(44));
    // 40 were to come, and not the 4 before.
    assert_eq!(bench.machine.state().expired(names::GROUP, names::TOPIC), 40);
    assert_eq!(reset(&mut bench, &[(0, 0)]), Reply::Reset { epoch: 1 });
    assert_eq!(view(&bench).next, at(44), "what is gone is gone");
    assert_eq!(bench.machine.state().expired(names::GROUP, names::TOPIC), 40);
}

#[test]
fn a_reset_replaces_whatever_a_group_has() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 12);
    // Done, free, in flight, held, waiting, ready.
    let mut checkout = bench.checkout("a", &[0, 1, 4, 5, 6, 7]);
    checkout.auto_renew = true;
    checkout.attempt_id = Some("try".into());
    let granted = bench.check_out(checkout.clone()).granted;
    let handles: Vec<Handle> = granted.iter().map(names::handle).collect();
    ack(&mut bench, handles[0]);
    bench.deliver(Delivery::Hold(Hold { handle: handles[2], invisible: Millis::new(5_000) }));
    let back = Return { handles: vec![handles[3]], invisible: Millis::new(5_000) };
    bench.deliver(Delivery::Return(back));
    bench.deliver(Delivery::Hold(Hold { handle: handles[4], invisible: Millis::ZERO }));
    let preview = |to| bench.machine.state().reset_preview(PAIR, QUEUE, at(to));
    let expected =
        |to, again, passed_by| ResetPreview { from: at(1), to: at(to), again, passed_by };
    assert_eq!(preview(0), expected(0, 6, 0));
    assert_eq!(preview(5), expected(5, 3, 4), "1 and 4 are under way, 2 and 3 free");
    assert_eq!(preview(99), expected(12, 0, 11));

    let in_flight = bench.machine.state().in_flight();
    assert_eq!(in_flight, 4);
    let effects = bench.effects(Command::Reset(Reset {
        group: names::GROUP,
        topic: names::TOPIC,
        offsets: vec![(QUEUE, at(3))],
    }));
    let (group, topic) = PAIR;
    assert_eq!(effects.last(), Some(&Effect::Ready { group, topic, count: 9 }));
    let QueueView { next, free, ready, in_flight, pending } = view(&bench);
    assert_eq!((next, free.len(), ready.len(), in_flight, pending), (at(3), 0, 0, 0, 0));
    assert_eq!((bench.machine.state().in_flight(), bench.machine.state().next_due()), (0, None));
    assert_eq!(bench.machine.state().renewals(UtcMillis::new(u64::MAX)), []);
    assert_eq!(bench.machine.state().epoch(group, topic), 1);
    // Every handle of before is stale, also of what was done, and of what counts as done now.
    for handle in &handles {
        assert_eq!(bench.machine.state().handle_state(handle), HandleState::Stale);
        assert_eq!(ack(&mut bench, *handle), DeliveryOutcome::Stale, "{handle:?}");
        let hold = Hold { handle: *handle, invisible: Millis::ZERO };
        assert_eq!(bench.deliver(Delivery::Hold(hold)), DeliveryOutcome::Stale);
        let given = GiveUp { handle: *handle, otherwise: Millis::ZERO };
        assert_eq!(bench.deliver(Delivery::GiveUp(given)), DeliveryOutcome::Stale);
    }
    let renew = Renew { checkouts: vec![CheckoutId::new(1)], invisible: Millis::new(1) };
    assert_eq!(bench.deliver(Delivery::Renew(renew)), DeliveryOutcome::Done);
    let consumer = checkout.consumer;
    let release = Release { group, consumer, invisible: Millis::ZERO };
    assert_eq!(bench.deliver(Delivery::Release(release)), DeliveryOutcome::Done);
    // An attempt of before is not served again, and attempts count from 1.
    assert_eq!(bench.machine.state().checkout_of_attempt(group, topic, "try"), None);
    let again = bench.take("b", &[0, 3, 4, 5]);
    assert_eq!(offsets(&again), [3, 4, 5]);
    assert!(again.iter().all(|handle| handle.attempt == 1));
    assert_eq!(ack(&mut bench, handles[2]), DeliveryOutcome::Stale, "of 4, which is with b now");
    assert_eq!(ack(&mut bench, again[1]), DeliveryOutcome::Done);
    assert_eq!(ack(&mut bench, again[1]), DeliveryOutcome::Done);
    assert_eq!(ack(&mut bench, handles[2]), DeliveryOutcome::Stale);
    survives(&mut bench);
    assert_eq!(ack(&mut bench, handles[2]), DeliveryOutcome::Stale, "a restart remembers it");
    // Repeating it puts the group there again.
    assert_eq!(reset(&mut bench, &[(0, 3)]), Reply::Reset { epoch: 2 });
    assert_eq!(offsets(&bench.take("b", &[3, 4])), [3, 4]);
}

#[test]
fn a_reset_names_queues_that_there_are() {
    let mut bench = Bench::with_topic(2);
    let (queue, queues) = (QueueId::new(2), 2);
    let refused = Reply::Refused(Refusal::NoQueue { queue, queues });
    assert_eq!(reset(&mut bench, &[(0, 0), (2, 0)]), refused);
    assert_eq!(bench.machine.state().epoch(names::GROUP, names::TOPIC), 0, "not even a part of it");
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    let gone = Reply::Refused(Refusal::NoTopic { topic: names::TOPIC });
    assert_eq!(reset(&mut bench, &[(0, 0)]), gone);
}

/// Rule R4: what a leader computed before a reset is not handed out after it, nor skipped.
#[test]
fn a_checkout_of_before_a_reset_gets_nothing() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 6);
    let mut before: Checkout = bench.checkout("a", &[4]);
    before.takes[0].skips = vec![names::skip(0, 4)];
    reset(&mut bench, &[(0, 0)]);
    let got = bench.check_out(before.clone());
    assert_eq!((got.checkout, got.granted.len()), (CheckoutId::new(0), 0));
    assert_eq!(view(&bench).next, at(0), "nothing was skipped");
    let now = Checkout { epoch: 1, ..before.clone() };
    assert_eq!(bench.check_out(now).granted.len(), 1);
    let early = Checkout { epoch: 2, ..before };
    assert_eq!(bench.check_out(early).granted.len(), 0);
}

#[test]
fn a_reset_frees_message_groups() {
    let mut bench = Bench::new();
    bench.apply(names::topic("orders", 1));
    bench.apply(group(Begin::default(), Order::Batch));
    let item = |line| {
        let mut item = names::item(0, 0);
        item.group_hash = line;
        item
    };
    let items = vec![item(7), item(7), item(8), item(7)];
    bench.apply(Command::Publish(Publish { topic: names::TOPIC, dedup: false, items }));
    let handles = bench.take("a", &[0, 1, 2, 3]);
    assert_eq!(handles.len(), 4);
    // The first one comes back and keeps those behind it.
    bench.deliver(Delivery::Hold(Hold { handle: handles[0], invisible: Millis::ZERO }));
    assert!(bench.machine.state().is_locked(PAIR, 7) && bench.machine.state().is_locked(PAIR, 8));
    let (_, before) = bench.machine.state().freed_since(PAIR, 0);
    reset(&mut bench, &[(0, 1)]);
    assert!(!bench.machine.state().is_locked(PAIR, 7) && !bench.machine.state().is_locked(PAIR, 8));
    let (freed, _) = bench.machine.state().freed_since(PAIR, before);
    let mut freed = freed.unwrap();
    freed.sort_unstable();
    assert_eq!(freed, [7, 8]);
    assert_eq!(bench.take("b", &[3]).len(), 1, "1 was not handed out, as far as apply knows");
    assert_eq!(bench.take("b", &[2]).len(), 1);
    survives(&mut bench);
}

#[test]
fn nothing_is_handed_out_to_a_paused_group_and_the_rest_goes_on() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 6);
    let handles = bench.take("a", &[0, 1, 2]);
    let pause = |paused| Command::Pause { group: names::GROUP, paused };
    assert_eq!(bench.effects(pause(true)), []);
    assert!(bench.machine.state().is_paused(names::GROUP));
    assert_eq!(bench.take("b", &[3, 4]), []);
    assert_eq!(ack(&mut bench, handles[0]), DeliveryOutcome::Done);
    let hold = Hold { handle: handles[1], invisible: Millis::new(50_000) };
    assert_eq!(bench.deliver(Delivery::Hold(hold)), DeliveryOutcome::Done);
    bench.stamp += 20_000;
    bench.tick();
    assert_eq!(view(&bench).ready.len(), 1, "deadlines end");
    assert_eq!(bench.take("b", &[2]), []);
    survives(&mut bench);
    assert_eq!(bench.effects(pause(true)), []);
    assert_eq!(bench.effects(pause(false)), [Effect::Resumed { group: names::GROUP }]);
    assert_eq!(bench.effects(pause(false)), [], "nobody waits for it any more");
    assert_eq!(offsets(&bench.take("b", &[2, 3])), [2, 3]);
    let group = GroupId::new(9);
    let refused = Reply::Refused(Refusal::NoGroup { group });
    assert_eq!(bench.reply(Command::Pause { group, paused: true }), refused);
}

#[test]
fn a_group_may_be_born_paused_and_forgets_it_with_its_end() {
    let mut bench = Bench::new();
    bench.apply(names::topic("orders", 1));
    let begin = Begin { start: StartAt::Latest, paused: true };
    bench.apply(group(begin, Order::Off));
    let state = bench.machine.state();
    assert!(state.is_paused(names::GROUP) && state.group_start(names::GROUP).is_some());
    // Making it again changes nothing.
    bench.apply(group(Begin::default(), Order::Off));
    assert!(bench.machine.state().is_paused(names::GROUP));
    bench.apply(Command::DeleteGroup { group: names::GROUP });
    bench.apply(group(Begin::default(), Order::Off));
    let again = GroupId::new(2);
    let state = bench.machine.state();
    assert!(!state.is_paused(again) && state.group_start(again).is_none());
    survives(&mut bench);
}

#[test]
fn a_stored_offset_ends_what_lies_before_it() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 10);
    let handles = bench.take("a", &[1, 5, 7]);
    assert_eq!(store(&mut bench, 6), Reply::Done);
    assert_eq!(stored(&bench), Some(6));
    let QueueView { next, free, pending, .. } = view(&bench);
    assert_eq!((next, free, pending), (at(8), vec![(at(6), at(7))], 1));
    assert_eq!(ack(&mut bench, handles[0]), DeliveryOutcome::Done, "it is done, and nothing else");
    assert_eq!(ack(&mut bench, handles[2]), DeliveryOutcome::Done);
    // Behind everything: the group goes on there. Beyond the end there is nothing to store.
    store(&mut bench, 99);
    assert_eq!((view(&bench).next, stored(&bench)), (at(10), Some(10)));
    assert_eq!(bench.machine.state().epoch(names::GROUP, names::TOPIC), 0);
    // Back from what was stored is a reset.
    assert_eq!(store(&mut bench, 4), Reply::Done);
    assert_eq!((view(&bench).next, stored(&bench)), (at(4), Some(4)));
    assert_eq!(bench.machine.state().epoch(names::GROUP, names::TOPIC), 1);
    assert_eq!(ack(&mut bench, handles[2]), DeliveryOutcome::Stale);
    // And a reset takes what was stored along.
    reset(&mut bench, &[(0, 2)]);
    assert_eq!(stored(&bench), Some(2));
    survives(&mut bench);
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    assert_eq!(stored(&bench), None);
    survives(&mut bench);
}

/// A reader that stores its offsets seldom, or begins to, does not undo what others are done with.
#[test]
fn a_first_or_a_late_stored_offset_brings_nothing_back() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 10);
    for handle in bench.take("a", &[0, 1, 2, 3, 4, 5, 6, 7]) {
        ack(&mut bench, handle);
    }
    store(&mut bench, 2);
    store(&mut bench, 5);
    assert_eq!((view(&bench).next, view(&bench).free.len()), (at(8), 0));
    assert_eq!(bench.take("a", &[0, 3, 6]), []);
    assert_eq!(bench.machine.state().epoch(names::GROUP, names::TOPIC), 0);
}

#[test]
fn an_offset_is_found_by_the_time_of_its_message() {
    let mut bench = Bench::with_topic(1);
    for _ in 0..5 {
        bench.stamp += 10;
        bench.publish(0, 2);
    }
    let find = |stamp| {
        let time = UtcMillis::new(stamp);
        bench.machine.state().offset_at(names::TOPIC, QUEUE, time).unwrap().get()
    };
    assert_eq!(find(0), 0);
    assert_eq!(find(1_000_010), 0);
    assert_eq!(find(1_000_011), 2);
    assert_eq!(find(1_000_030), 4);
    assert_eq!(find(1_000_050), 8);
    assert_eq!(find(1_000_051), 10, "behind the last one");
}
