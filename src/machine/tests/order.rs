//! Message groups in order: who may have what of one, and what a failure of its first one brings.

use super::bench::{Bench, names};
use crate::base::{GroupId, GroupName, Millis, QueueId, QueueOffset, TopicName};
use crate::command::{
    Ack, Begin, Command, CreateGroup, CreateTopic, Delivery, DeliveryOutcome, Exhausted, GiveUp,
    Granted, Handle, Hold, Order, OrderRule, Publish, Refusal, Release, Reply, Retention, Return,
};
use crate::machine::{Effect, HandleState, Lag, QUEUES_MAX};
use crate::message::MessageKind;

const A: u64 = 100;
const B: u64 = 200;
const PAIR: (GroupId, crate::base::TopicId) = (names::GROUP, names::TOPIC);

fn with_rule(rule: OrderRule, attempts_max: u32) -> Bench {
    let mut bench = Bench::new();
    let (name, kinds) = (TopicName::new("orders").unwrap(), vec![MessageKind::Fifo]);
    bench.apply(Command::CreateTopic(CreateTopic { name, queues: 1, kinds, keep: None }));
    let (name, backoff) = (GroupName::new("billing").unwrap(), vec![Millis::from_secs(1)].into());
    let begin = Begin::default();
    let create = CreateGroup { name, attempts_max, backoff, rule, dead_keep: None, begin };
    bench.apply(Command::CreateGroup(create));
    bench
}

fn batches() -> Bench {
    with_rule(OrderRule { order: Order::Batch, ..OrderRule::default() }, 16)
}

/// Messages of these message groups, one after the other.
fn publish(bench: &mut Bench, lines: &[u64]) {
    let item = |line: &u64| {
        let mut item = names::item(0, 0);
        (item.group_hash, item.kind) = (*line, MessageKind::Fifo);
        item
    };
    let items = lines.iter().map(item).collect();
    bench.apply(Command::Publish(Publish { topic: names::TOPIC, dedup: false, items }));
}

fn take(bench: &mut Bench, offsets: &[u64]) -> Vec<Handle> {
    bench.take("a", offsets)
}

fn at(handles: &[Handle]) -> Vec<(u64, u32)> {
    handles.iter().map(|handle| (handle.offset.get(), handle.attempt)).collect()
}

fn ack(bench: &mut Bench, handle: Handle) -> DeliveryOutcome {
    bench.deliver(Delivery::Ack(Ack { handle }))
}

fn hold(bench: &mut Bench, handle: Handle, millis: u64) -> DeliveryOutcome {
    bench.deliver(Delivery::Hold(Hold { handle, invisible: Millis::new(millis) }))
}

fn live(bench: &Bench, handle: &Handle) -> bool {
    bench.machine.state().handle_state(handle) == HandleState::Live
}

fn ready(bench: &Bench) -> Vec<u64> {
    let view = bench.machine.state().view(names::GROUP, names::TOPIC, QueueId::new(0));
    view.ready.iter().map(|one| one.offset.get()).collect()
}

fn lag(bench: &Bench) -> Lag {
    bench.machine.state().lag(names::GROUP, names::TOPIC)
}

#[test]
fn a_busy_message_group_holds_back_itself_only() {
    let mut bench = batches();
    publish(&mut bench, &[A, B, A, B, A]);
    let first = take(&mut bench, &[0, 2]);
    assert_eq!(at(&first), [(0, 1), (2, 1)], "several of one group in one batch");
    // Nothing of A for another checkout, and everything of B.
    let second = bench.take("b", &[4, 1, 3]);
    assert_eq!(at(&second), [(1, 1), (3, 1)]);
    assert_eq!(ack(&mut bench, first[0]), DeliveryOutcome::Done);
    assert!(take(&mut bench, &[4]).is_empty(), "one is still out");
    let freed = bench.effects(Command::Deliveries(vec![Delivery::Ack(Ack { handle: first[1] })]));
    let told = Effect::Ready { group: names::GROUP, topic: names::TOPIC, count: 1 };
    assert_eq!(freed, [told], "whoever waits is told that the group is free");
    assert_eq!(bench.machine.state().freed_since(PAIR, 0), (Some(vec![A]), 1));
    assert_eq!(bench.machine.state().freed_since(PAIR, 1), (Some(vec![]), 1));
    assert_eq!(bench.machine.state().freed_since(PAIR, 9).0, None);
    assert_eq!(at(&bench.take("b", &[4])), [(4, 1)]);
}

#[test]
fn order_is_for_topics_that_have_it_and_groups_that_want_it() {
    // One at a time is what a group does that says nothing.
    let mut bench = with_rule(OrderRule::default(), 16);
    publish(&mut bench, &[A, A, 0, 0]);
    assert_eq!(at(&take(&mut bench, &[0, 1, 2, 3])), [(0, 1), (2, 1), (3, 1)]);
    let off = OrderRule { order: Order::Off, ..OrderRule::default() };
    let mut bench = with_rule(off, 16);
    publish(&mut bench, &[A, A]);
    assert_eq!(take(&mut bench, &[1]).len(), 1);
    assert_eq!(take(&mut bench, &[0]).len(), 1);
    // On a topic of normal messages, a message group is but a label.
    let mut bench = Bench::with_topic(1);
    publish(&mut bench, &[A, A]);
    assert_eq!(take(&mut bench, &[0, 1]).len(), 2);
    assert_eq!(bench.machine.state().order(names::GROUP, names::TOPIC), Order::Off);
}

#[test]
fn a_failed_first_one_takes_those_behind_it_along() {
    let mut bench = batches();
    publish(&mut bench, &[A, A, A, B]);
    let handles = take(&mut bench, &[0, 1, 2, 3]);
    assert_eq!(ack(&mut bench, handles[1]), DeliveryOutcome::Done, "acks come in any order");
    // Its consumer gives the first one back: the third is taken away in the same entry.
    assert_eq!(hold(&mut bench, handles[0], 0), DeliveryOutcome::Done);
    assert!(!live(&bench, &handles[2]) && live(&bench, &handles[3]));
    assert_eq!(ack(&mut bench, handles[2]), DeliveryOutcome::Stale);
    assert_eq!(ready(&bench), [0], "the first one alone is offered");
    assert!(bench.take("b", &[2]).is_empty());
    let again = bench.take("b", &[0, 2]);
    assert_eq!(at(&again), [(0, 2), (2, 1)], "only the failed attempt counts");
    assert_ne!(again[1].checkout, handles[2].checkout, "so the old handle stays stale");
    assert_eq!(ack(&mut bench, handles[2]), DeliveryOutcome::Stale);
    // The same by a deadline.
    bench.stamp += 10_000;
    bench.tick();
    assert_eq!(ready(&bench), [0, 3]);
    let followers = bench.machine.state().followers(PAIR, A, 9);
    assert_eq!(followers.iter().map(|(_, one)| one.offset.get()).collect::<Vec<_>>(), [2]);
    assert_eq!(at(&take(&mut bench, &[0, 2])), [(0, 3), (2, 1)]);
}

#[test]
fn a_lock_has_one_deadline() {
    let mut bench = batches();
    publish(&mut bench, &[A, A]);
    let handles = take(&mut bench, &[0, 1]);
    // Longer than before: both are kept.
    assert_eq!(hold(&mut bench, handles[0], 60_000), DeliveryOutcome::Done);
    bench.stamp += 59_999;
    bench.tick();
    assert!(live(&bench, &handles[0]) && live(&bench, &handles[1]));
    // Shorter: the consumer has failed, and the second one goes back at once.
    let handles = {
        ack(&mut bench, handles[0]);
        ack(&mut bench, handles[1]);
        publish(&mut bench, &[A, A]);
        take(&mut bench, &[2, 3])
    };
    assert_eq!(hold(&mut bench, handles[0], 5_000), DeliveryOutcome::Done);
    assert!(live(&bench, &handles[0]) && !live(&bench, &handles[1]));
    assert!(take(&mut bench, &[3]).is_empty(), "the first one is still out");
    bench.stamp += 5_000;
    bench.tick();
    assert_eq!(at(&take(&mut bench, &[2, 3])), [(2, 2), (3, 1)]);
}

#[test]
fn a_consumer_that_goes_leaves_everything_in_order() {
    let mut bench = batches();
    publish(&mut bench, &[A, A, A]);
    let handles = take(&mut bench, &[0, 1, 2]);
    let consumer = crate::base::ClientId::new("a").unwrap();
    let release = Release { group: names::GROUP, consumer, invisible: Millis::ZERO };
    bench.deliver(Delivery::Release(release));
    assert!(handles.iter().all(|handle| !live(&bench, handle)));
    assert_eq!(at(&take(&mut bench, &[0, 1, 2])), [(0, 2), (1, 1), (2, 1)]);
    // A reply that never arrived counts for nobody.
    let handles = {
        bench.stamp += 10_000;
        bench.tick();
        take(&mut bench, &[0, 1, 2])
    };
    let back = Return { handles, invisible: Millis::new(1_000) };
    bench.deliver(Delivery::Return(back));
    assert!(ready(&bench).is_empty());
    bench.stamp += 1_000;
    bench.tick();
    assert_eq!(at(&take(&mut bench, &[0, 1, 2])), [(0, 3), (1, 1), (2, 1)]);
}

#[test]
fn after_its_last_attempt_a_message_is_dead_and_the_next_one_comes() {
    let mut bench = with_rule(OrderRule { order: Order::Batch, ..OrderRule::default() }, 2);
    publish(&mut bench, &[A, A, A]);
    for attempt in 1..=2 {
        assert_eq!(at(&take(&mut bench, &[0, 1])), [(0, attempt), (1, 1)]);
        bench.stamp += 10_000;
        bench.tick();
    }
    assert_eq!(ready(&bench), [1]);
    assert_eq!((lag(&bench).dead, lag(&bench).stopped), (1, 0));
    let handles = take(&mut bench, &[0, 1, 2]);
    assert_eq!(at(&handles), [(1, 1), (2, 1)]);
    // A client that has tried often enough by itself says so, and goes on with the next one.
    let given = |handle| Delivery::GiveUp(GiveUp { handle, otherwise: Millis::from_secs(60) });
    assert_eq!(bench.deliver(given(handles[0])), DeliveryOutcome::Done);
    assert_eq!(bench.deliver(given(handles[0])), DeliveryOutcome::Done, "it may be repeated");
    assert_eq!(lag(&bench).dead, 2);
    assert!(live(&bench, &handles[1]));
    assert_eq!(ack(&mut bench, handles[1]), DeliveryOutcome::Done);
    assert_eq!(lag(&bench), Lag { dead: 2, dead_letters: 2, ..Lag::default() });
    // What is not in order is given up as well.
    publish(&mut bench, &[0]);
    let handles = take(&mut bench, &[3]);
    assert_eq!(bench.deliver(given(handles[0])), DeliveryOutcome::Done);
    assert_eq!(lag(&bench), Lag { dead: 3, dead_letters: 3, ..Lag::default() });
}

#[test]
fn a_message_group_may_stand_still_instead() {
    let rule = OrderRule { order: Order::Batch, exhausted: Exhausted::Stop };
    let mut bench = with_rule(rule, 1);
    publish(&mut bench, &[A, A, B]);
    take(&mut bench, &[0, 1, 2]);
    bench.stamp += 10_000;
    bench.tick();
    // B stands still as well, by its own only attempt.
    assert_eq!((lag(&bench).dead, lag(&bench).stopped), (0, 2));
    assert!(ready(&bench).is_empty() && take(&mut bench, &[0, 1, 2]).is_empty());
    let hashes = bench.hashes();
    bench.checkpoint();
    bench.restart();
    assert_eq!((bench.hashes(), lag(&bench).stopped), (hashes, 2));
    let (group, topic) = PAIR;
    assert_eq!(bench.reply(Command::ResumeLines { group, topic }), Reply::Done);
    assert_eq!((lag(&bench).stopped, ready(&bench)), (0, vec![0, 2]));
    let handles = take(&mut bench, &[0, 1]);
    assert_eq!(at(&handles), [(0, 1), (1, 1)]);
    // Given up, it stands still too.
    let given = GiveUp { handle: handles[0], otherwise: Millis::ZERO };
    assert_eq!(bench.deliver(Delivery::GiveUp(given)), DeliveryOutcome::Done);
    assert_eq!(lag(&bench).stopped, 1);
    assert!(!live(&bench, &handles[1]));
    let group = GroupId::new(9);
    let refused = Reply::Refused(Refusal::NoGroup { group });
    assert_eq!(bench.reply(Command::ResumeLines { group, topic }), refused);
}

#[test]
fn what_nobody_wants_any_more_is_skipped_also_where_it_was_handed_out() {
    let mut bench = batches();
    publish(&mut bench, &[A, A, A, B]);
    let handles = take(&mut bench, &[0, 1, 2, 3]);
    hold(&mut bench, handles[0], 0);
    assert_eq!(ready(&bench), [0], "those behind it wait, and B is with its consumer");
    let mut skip = bench.checkout("x", &[]);
    skip.takes[0].skips = vec![names::skip(0, 2), names::skip(3, 4)];
    let mut late = skip.clone();
    late.subscription_version += 1;
    bench.check_out(late);
    assert_eq!(ready(&bench), [0], "it was found under other subscriptions");
    let skip = Command::Deliveries(vec![Delivery::Checkout(skip)]);
    let (group, topic) = PAIR;
    assert_eq!(bench.effects(skip), [Effect::Ready { group, topic, count: 2 }]);
    assert_eq!(ready(&bench), [2]);
    assert!(live(&bench, &handles[3]), "what is with a consumer stays");
    let lag = lag(&bench);
    assert_eq!((lag.ready, lag.in_flight, lag.dead, lag.expired), (1, 1, 0, 0));
}

/// An abandoned message group must not keep its records for ever: what is kept for it counts against
/// the room of all consumers.
#[test]
fn what_stands_still_leaves_with_the_front_and_counts_as_expired() {
    let rule = OrderRule { order: Order::Batch, exhausted: Exhausted::Stop };
    let mut bench = with_rule(rule, 1);
    let time = Millis::from_secs(60);
    bench.apply(Command::Retain(Retention { stride: 1000, time, bytes: 0, moved_max: 20 }));
    publish(&mut bench, &[A, A]);
    take(&mut bench, &[0, 1]);
    bench.stamp += 10_000;
    bench.tick();
    assert_eq!((lag(&bench).stopped, lag(&bench).expired), (1, 0));
    let mark = loop {
        bench.stamp += 10;
        publish(&mut bench, &[B]);
        if let Some(mark) = bench.machine.state().marks().next() {
            break mark.index;
        }
    };
    assert_eq!(bench.reply(Command::PurgeIntent { mark }), Reply::Done);
    let state = bench.machine.state();
    assert_eq!(state.to_relocate().count(), 0, "nobody needs anything before the mark");
    assert!(!state.is_locked(PAIR, A), "the message group goes on");
    let start = state.queue_start(names::TOPIC, QueueId::new(0)).get();
    assert!(start > 2);
    assert_eq!((lag(&bench).stopped, lag(&bench).expired), (0, start));
}

#[test]
fn locks_outlive_a_restart_and_go_with_their_topic() {
    let mut bench = batches();
    publish(&mut bench, &[A, A, A]);
    let handles = take(&mut bench, &[0, 1]);
    hold(&mut bench, handles[0], 0);
    bench.checkpoint();
    let hashes = bench.hashes();
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
    assert_eq!(ready(&bench), [0]);
    assert!(take(&mut bench, &[2]).is_empty() && take(&mut bench, &[1]).is_empty());
    assert_eq!(at(&take(&mut bench, &[0, 1, 2])), [(0, 2), (1, 1), (2, 1)]);
    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    assert!(!bench.machine.state().is_locked(PAIR, A));
}

/// Rule R24: the queue of a message group follows from the number of queues that the topic was made
/// with, which never changes.
#[test]
fn a_message_group_keeps_its_queue_when_the_topic_grows() {
    let mut bench = Bench::with_topic(3);
    let home =
        |bench: &Bench, hash| bench.machine.state().topic_by_id(names::TOPIC).unwrap().home(hash);
    let before: Vec<QueueId> = (0..100).map(|hash| home(&bench, hash * 7919)).collect();
    let grow = |queues| Command::GrowTopic { topic: names::TOPIC, queues };
    let version = bench.machine.state().topics_version();
    assert_eq!(bench.reply(grow(8)), Reply::Done);
    assert_eq!(bench.reply(grow(8)), Reply::Done, "it may be repeated");
    assert_eq!(bench.machine.state().topics_version(), version + 1, "routes have changed");
    assert!(matches!(bench.reply(grow(7)), Reply::Refused(Refusal::Limit { limit: 8, .. })));
    let beyond = grow(QUEUES_MAX + 1);
    assert!(matches!(bench.reply(beyond), Reply::Refused(Refusal::Limit { .. })));
    let after: Vec<QueueId> = (0..100).map(|hash| home(&bench, hash * 7919)).collect();
    assert_eq!(before, after);
    assert!((0..3).all(|queue| after.contains(&QueueId::new(queue))), "all are used");
    // The new ones are queues like the others.
    bench.publish(7, 2);
    assert_eq!(bench.machine.state().queue_end(names::TOPIC, QueueId::new(7)), QueueOffset::new(2));
    let hashes = bench.hashes();
    bench.checkpoint();
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
    let after: Vec<QueueId> = (0..100).map(|hash| home(&bench, hash * 7919)).collect();
    assert_eq!(before, after);
}

#[test]
fn the_same_attempt_gets_the_same_batch() {
    let mut bench = batches();
    publish(&mut bench, &[A, A, A]);
    let mut checkout = bench.checkout("a", &[0, 1]);
    checkout.attempt_id = Some("try".into());
    let offsets =
        |granted: &[Granted]| granted.iter().map(|one| one.offset.get()).collect::<Vec<_>>();
    let first = bench.check_out(checkout.clone());
    let again = bench.check_out(checkout);
    assert_eq!(first, again);
    assert_eq!(offsets(&again.granted), [0, 1]);
}
