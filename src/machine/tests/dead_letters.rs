//! Dead letters: what becomes one, what is known of it, how it comes back, and when it leaves.

use bytes::Bytes;

use super::bench::{Bench, names};
use crate::base::{
    ClientId, GroupId, GroupName, Millis, QueueId, QueueOffset, TopicId, TopicName, UtcMillis,
};
use crate::command::{
    Ack, Begin, Checkout, Command, CreateGroup, CreateTopic, DeathReason, Delivery,
    DeliveryOutcome, GiveUp, Grant, Handle, Hold, Order, OrderRule, Publish, Redrive, Redriven,
    Refusal, Release, Relocation, Reply, Retention, Return, Take, Trim, UpdateGroup,
};
use crate::machine::{DeadLetter, Effect, HandleState, Lag, REDRIVE_MAX, Standing};
use crate::message::MessageKind;

const PAIR: (GroupId, TopicId) = (names::GROUP, names::TOPIC);
const QUEUE: QueueId = QueueId::new(0);
const A: u64 = 100;
const B: u64 = 200;

fn group(bench: &mut Bench, name: &str, attempts_max: u32, order: Order) -> GroupId {
    let create = CreateGroup {
        name: GroupName::new(name).unwrap(),
        attempts_max,
        backoff: vec![Millis::from_secs(1)].into(),
        rule: OrderRule { order, ..OrderRule::default() },
        dead_keep: None,
        begin: Begin::default(),
    };
    match bench.reply(Command::CreateGroup(create)) {
        Reply::GroupCreated { group, existed: false } => group,
        other => panic!("{other:?}"),
    }
}

/// A topic of one queue, and a group that tries so often.
fn bench(attempts_max: u32) -> Bench {
    let mut bench = Bench::new();
    bench.apply(names::topic("orders", 1));
    assert_eq!(group(&mut bench, "billing", attempts_max, Order::Off), names::GROUP);
    bench
}

fn ordered(attempts_max: u32) -> Bench {
    let mut bench = Bench::new();
    let (name, kinds) = (TopicName::new("orders").unwrap(), vec![MessageKind::Fifo]);
    bench.apply(Command::CreateTopic(CreateTopic { name, queues: 1, kinds, keep: None }));
    assert_eq!(group(&mut bench, "billing", attempts_max, Order::Batch), names::GROUP);
    bench
}

/// Messages of these message groups, one after the other.
fn publish(bench: &mut Bench, lines: &[u64]) {
    let item = |line: &u64| {
        let mut item = names::item(0, 0);
        item.group_hash = *line;
        item
    };
    let items = lines.iter().map(item).collect();
    bench.apply(Command::Publish(Publish { topic: names::TOPIC, dedup: false, items }));
}

/// A checkout of these offsets of the first queue of a topic, whether they exist or not.
fn take_of(bench: &mut Bench, pair: (GroupId, TopicId), offsets: &[u64]) -> Vec<Handle> {
    let state = bench.machine.state();
    let grant = |offset: &u64| {
        let offset = QueueOffset::new(*offset);
        let units = state.units(pair.1, QUEUE, offset, 1).unwrap_or_default();
        Grant { offset, unit: units.first().copied().unwrap_or(names::NO_UNIT) }
    };
    let grants = offsets.iter().map(grant).collect();
    let takes = vec![Take { queue: QUEUE, skips: Vec::new(), grants }];
    let checkout = Checkout { group: pair.0, topic: pair.1, takes, ..bench.checkout("a", &[]) };
    let handle = |granted| Handle { topic: pair.1, ..names::handle_of(pair.0, granted) };
    bench.check_out(checkout).granted.iter().map(handle).collect()
}

fn at(handles: &[Handle]) -> Vec<(u64, u32)> {
    handles.iter().map(|handle| (handle.offset.get(), handle.attempt)).collect()
}

fn hold(bench: &mut Bench, handle: Handle, millis: u64) -> DeliveryOutcome {
    bench.deliver(Delivery::Hold(Hold { handle, invisible: Millis::new(millis) }))
}

fn ack(bench: &mut Bench, handle: Handle) -> DeliveryOutcome {
    bench.deliver(Delivery::Ack(Ack { handle }))
}

fn give_up(bench: &mut Bench, handle: Handle) -> DeliveryOutcome {
    bench.deliver(Delivery::GiveUp(GiveUp { handle, otherwise: Millis::from_secs(60) }))
}

fn letters(bench: &Bench, group: GroupId) -> Vec<(u64, DeadLetter)> {
    let letters = bench.machine.state().dead_letters(group, None);
    letters.map(|(at, letter)| (at.get(), letter.clone())).collect()
}

/// Where each came from, and why it died.
fn deaths(bench: &Bench) -> Vec<(u64, u32, DeathReason)> {
    let told =
        |(_, letter): (u64, DeadLetter)| (letter.offset.get(), letter.attempts, letter.reason);
    letters(bench, names::GROUP).into_iter().map(told).collect()
}

fn standing(bench: &Bench, offset: u64) -> Standing {
    bench.machine.state().standing(PAIR, QUEUE, QueueOffset::new(offset))
}

fn topic_of(bench: &Bench, group: GroupId) -> TopicId {
    bench.machine.state().dead_letters_topic(group).unwrap()
}

fn redrive(bench: &mut Bench, offsets: &[u64]) -> Vec<Redriven> {
    let topic = topic_of(bench, names::GROUP);
    let letters = offsets.iter().copied().map(QueueOffset::new).collect();
    let command = Redrive { group: names::GROUP, topic, letters };
    match bench.reply(Command::Redrive(command)) {
        Reply::Redriven(redriven) => redriven,
        other => panic!("{other:?}"),
    }
}

fn ready(bench: &Bench) -> Vec<u64> {
    let view = bench.machine.state().view(names::GROUP, names::TOPIC, QUEUE);
    view.ready.iter().map(|one| one.offset.get()).collect()
}

#[test]
fn a_message_gets_its_attempts_and_is_a_dead_letter_then() {
    let mut bench = bench(3);
    publish(&mut bench, &[0, 0, 0]);
    for attempt in 1..=2 {
        let handles = bench.take("a", &[1]);
        assert_eq!(at(&handles), [(1, attempt)]);
        hold(&mut bench, handles[0], 0);
        assert_eq!(letters(&bench, names::GROUP), []);
    }
    let last = bench.take("a", &[1])[0];
    let nack = Delivery::Hold(Hold { handle: last, invisible: Millis::ZERO });
    let effects = bench.effects(Command::Deliveries(vec![nack.clone()]));
    let topic = topic_of(&bench, names::GROUP);
    let (group, origin) = PAIR;
    let arrived = Effect::Arrived { topic, queue: QUEUE, count: 1 };
    assert_eq!(effects, [Effect::Dead { group, topic: origin, count: 1 }, arrived]);
    // All that is known of it.
    let unit = bench.unit(0, 1);
    let letter = DeadLetter {
        group,
        origin,
        origin_name: TopicName::new("orders").unwrap(),
        queue: QUEUE,
        offset: QueueOffset::new(1),
        unit,
        attempts: 3,
        checkout: last.checkout,
        reason: DeathReason::Returned,
        died: UtcMillis::new(bench.stamp),
    };
    assert_eq!(letters(&bench, group), [(0, letter)]);
    let state = bench.machine.state();
    let of_letter = state.units(topic, QUEUE, QueueOffset::ZERO, 1).unwrap()[0];
    assert_eq!((of_letter.position, of_letter.visible.get()), (unit.position, bench.stamp));
    assert_eq!(state.topic_by_id(topic).unwrap().name.as_str(), "%DLQ%billing");
    // It comes no more; saying it again is harmless, and it is not acknowledged.
    assert_eq!(bench.take("a", &[1]), []);
    assert_eq!(bench.deliver(nack), DeliveryOutcome::Done);
    assert_eq!(ack(&mut bench, last), DeliveryOutcome::Stale);
    assert_eq!(give_up(&mut bench, last), DeliveryOutcome::Done);
    assert_eq!(hold(&mut bench, last, 5), DeliveryOutcome::Stale);
    let lag = bench.machine.state().lag(group, origin);
    assert_eq!(lag, Lag { ready: 2, dead: 1, dead_letters: 1, ..Lag::default() });
    let stands = [0, 1, 2].map(|offset| standing(&bench, offset));
    assert_eq!(stands, [Standing::NotHandedOut, Standing::Dead, Standing::NotHandedOut]);
    // The rest flows.
    let handles = bench.take("a", &[0, 2]);
    assert_eq!(at(&handles), [(0, 1), (2, 1)]);
    assert_eq!(ack(&mut bench, handles[0]), DeliveryOutcome::Done);
    assert_eq!(standing(&bench, 0), Standing::Done);
    assert_eq!(standing(&bench, 2), Standing::InFlight);
}

#[test]
fn each_end_of_a_last_attempt_says_why() {
    let mut bench = bench(1);
    publish(&mut bench, &[0; 7]);
    let handles = bench.take("a", &[0, 1, 2, 3]);
    let others = bench.take("b", &[4, 5]);
    let release = |consumer: &str, millis| {
        let (group, consumer) = (names::GROUP, ClientId::new(consumer).unwrap());
        Delivery::Release(Release { group, consumer, invisible: Millis::new(millis) })
    };
    assert_eq!(give_up(&mut bench, handles[3]), DeliveryOutcome::Done);
    // It wants it back later, and that is after its last attempt.
    hold(&mut bench, handles[2], 12_000);
    hold(&mut bench, handles[1], 0);
    bench.deliver(release("b", 1_000));
    // An acknowledgement that was on its way still counts.
    assert_eq!(ack(&mut bench, others[1]), DeliveryOutcome::Done);
    bench.stamp += 20_000;
    bench.tick();
    let (given, returned) = (DeathReason::GivenUp, DeathReason::Returned);
    let (left, silent) = (DeathReason::ConsumerLeft, DeathReason::NotAcknowledged);
    let all = [(3, 1, given), (1, 1, returned), (4, 1, left), (0, 1, silent), (2, 1, returned)];
    assert_eq!(deaths(&bench), all);
    bench.take("c", &[6]);
    bench.deliver(release("c", 0));
    assert_eq!(deaths(&bench)[5], (6, 1, left));
}

#[test]
fn what_never_reached_its_consumer_kills_nothing() {
    let mut bench = bench(1);
    publish(&mut bench, &[0, 0]);
    let handles = bench.take("a", &[0, 1]);
    for (handle, millis) in handles.into_iter().zip([0, 1_000]) {
        let back = Return { handles: vec![handle], invisible: Millis::new(millis) };
        bench.deliver(Delivery::Return(back));
    }
    bench.stamp += 1_000;
    bench.tick();
    assert_eq!((ready(&bench), deaths(&bench).len()), (vec![0, 1], 0));
    assert_eq!(at(&bench.take("a", &[0, 1])), [(0, 1), (1, 1)]);
}

#[test]
fn in_order_the_rest_flows_and_a_dead_letter_comes_back_in_its_place() {
    let mut bench = ordered(1);
    publish(&mut bench, &[A, A, A, A, B]);
    let handles = bench.take("a", &[0]);
    hold(&mut bench, handles[0], 0);
    assert_eq!(deaths(&bench), [(0, 1, DeathReason::Returned)]);
    let handles = bench.take("a", &[1, 2, 4]);
    assert_eq!(at(&handles), [(1, 1), (2, 1), (4, 1)]);
    // Its message group is with a consumer: it waits, and nothing of the group comes before it.
    assert_eq!(redrive(&mut bench, &[0]), [Redriven::Done]);
    assert_eq!(redrive(&mut bench, &[0]), [Redriven::NotFound]);
    assert_eq!(standing(&bench, 0), Standing::Ready);
    assert!(ready(&bench).is_empty(), "it is not offered yet");
    assert_eq!(bench.take("b", &[0, 3]), []);
    let hashes = bench.hashes();
    bench.checkpoint();
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
    assert!(ready(&bench).is_empty());
    ack(&mut bench, handles[0]);
    assert!(ready(&bench).is_empty());
    let acked = Command::Deliveries(vec![Delivery::Ack(Ack { handle: handles[1] })]);
    let (group, topic) = PAIR;
    assert_eq!(bench.effects(acked), [Effect::Ready { group, topic, count: 1 }]);
    assert_eq!(ready(&bench), [0]);
    assert_eq!(bench.take("b", &[3]), []);
    let again = bench.take("b", &[0, 3]);
    assert_eq!(at(&again), [(0, 1), (3, 1)], "with no attempts, and before what was never out");
}

#[test]
fn a_failure_behind_a_letter_that_came_back_is_not_counted() {
    let mut bench = ordered(2);
    publish(&mut bench, &[A, A]);
    let handles = bench.take("a", &[0]);
    give_up(&mut bench, handles[0]);
    let handles = bench.take("a", &[1]);
    redrive(&mut bench, &[0]);
    hold(&mut bench, handles[0], 0);
    assert_eq!(ready(&bench), [0]);
    assert_eq!(at(&bench.take("a", &[0, 1])), [(0, 1), (1, 1)]);
}

#[test]
fn redrive_of_a_thousand_tells_which_have_nowhere_to_go() {
    let mut bench = bench(1);
    bench.apply(names::topic("gone", 1));
    let gone = bench.machine.state().topic(&TopicName::new("gone").unwrap()).unwrap().id;
    publish(&mut bench, &vec![0; REDRIVE_MAX]);
    let items = (0..3).map(|_| names::item(0, 0)).collect();
    bench.apply(Command::Publish(Publish { topic: gone, dedup: false, items }));
    let all: Vec<u64> = (0..REDRIVE_MAX as u64 - 3).collect();
    let mut handles = take_of(&mut bench, PAIR, &all);
    handles.splice(500..500, take_of(&mut bench, (names::GROUP, gone), &[0, 1, 2]));
    for handle in handles {
        give_up(&mut bench, handle);
    }
    bench.apply(Command::DeleteTopic { topic: gone });
    // Another one of its name is another topic.
    bench.apply(names::topic("gone", 1));
    let all: Vec<u64> = (0..REDRIVE_MAX as u64).collect();
    let outcomes = redrive(&mut bench, &all);
    let lost: Vec<usize> = (0..REDRIVE_MAX).filter(|at| outcomes[*at] != Redriven::Done).collect();
    assert_eq!(lost, [500, 501, 502]);
    assert!(lost.iter().all(|at| outcomes[*at] == Redriven::TargetGone));
    let left = letters(&bench, names::GROUP);
    assert!(left.iter().map(|(at, _)| *at).eq(500..503));
    assert!(left.iter().all(|(_, letter)| letter.origin_name.as_str() == "gone"));
    // Everything else comes again, in its old order.
    let lag = bench.machine.state().lag(names::GROUP, names::TOPIC);
    assert_eq!((lag.ready, lag.dead_letters), (REDRIVE_MAX as u64, 0));
    assert_eq!(at(&take_of(&mut bench, PAIR, &[0, 500, 996])), [(0, 1), (500, 1), (996, 1)]);
    let too_many = vec![QueueOffset::ZERO; REDRIVE_MAX + 1];
    let (group, topic) = (names::GROUP, topic_of(&bench, names::GROUP));
    let refused = bench.reply(Command::Redrive(Redrive { group, topic, letters: too_many }));
    assert!(matches!(refused, Reply::Refused(Refusal::Limit { limit: 1000, .. })));
    let group = GroupId::new(9);
    let refused = bench.reply(Command::Redrive(Redrive { group, topic, letters: Vec::new() }));
    assert_eq!(refused, Reply::Refused(Refusal::NoGroup { group }));
}

fn retained(bench: &mut Bench, moved_max: u64) {
    let time = Millis::from_secs(60);
    bench.apply(Command::Retain(Retention { stride: 1000, time, bytes: 0, moved_max }));
}

/// Publishes until there is another mark.
fn until_mark(bench: &mut Bench) -> crate::base::LogIndex {
    let before = bench.machine.state().marks().count();
    while bench.machine.state().marks().count() == before {
        bench.stamp += 10;
        publish(bench, &[0]);
    }
    bench.machine.state().marks().last().unwrap().index
}

/// Moves the front to a mark; answers how many records were written again.
fn purge(bench: &mut Bench, mark: crate::base::LogIndex) -> usize {
    assert_eq!(bench.reply(Command::PurgeIntent { mark }), Reply::Done);
    let needed: Vec<_> = bench.machine.state().to_relocate().collect();
    for (original, _) in &needed {
        let (original, record) = (*original, Bytes::from_static(b"a record"));
        bench.apply(Command::Relocate(vec![Relocation { original, record, record_at: 0 }]));
    }
    assert_eq!(bench.reply(Command::PurgeTo { mark }), Reply::Done);
    needed.len()
}

#[test]
fn a_dead_letter_outlives_the_front_and_comes_back_from_beyond_it() {
    let mut bench = bench(1);
    retained(&mut bench, 1 << 20);
    publish(&mut bench, &[0, 0, 0]);
    let handles = bench.take("a", &[0, 1]);
    let first = until_mark(&mut bench);
    // Its record lies before the mark, its unit behind it.
    give_up(&mut bench, handles[0]);
    give_up(&mut bench, handles[1]);
    assert_eq!(purge(&mut bench, first), 2);
    let state = bench.machine.state();
    assert!(state.queue_start(names::TOPIC, QUEUE).get() > 1, "its queue starts behind it");
    let topic = topic_of(&bench, names::GROUP);
    let unit = state.units(topic, QUEUE, QueueOffset::ZERO, 1).unwrap()[0];
    let front = state.floor().unwrap().end;
    assert!(unit.position < front && state.locate(unit).position >= front);
    let hashes = bench.hashes();
    bench.checkpoint();
    bench.restart();
    assert_eq!(bench.hashes(), hashes);
    // It is handed out again, though its queue starts behind it, and then it is gone.
    assert_eq!(redrive(&mut bench, &[0]), [Redriven::Done]);
    let handles = bench.take("a", &[0]);
    assert_eq!(at(&handles), [(0, 1)]);
    assert_eq!(ack(&mut bench, handles[0]), DeliveryOutcome::Done);
    // With its time over the other one leaves: the message is done with.
    assert_eq!(standing(&bench, 1), Standing::Dead);
    let second = until_mark(&mut bench);
    until_mark(&mut bench);
    assert_eq!(purge(&mut bench, second), 0);
    assert_eq!((letters(&bench, names::GROUP).len(), standing(&bench, 1)), (0, Standing::Done));
    assert_eq!(bench.machine.state().queue_start(topic, QUEUE).get(), 2);
    assert_eq!(bench.machine.state().moved_bytes(), 0);
    assert_eq!(redrive(&mut bench, &[1]), [Redriven::NotFound]);
}

#[test]
fn dead_letters_may_leave_sooner_than_the_log() {
    let mut bench = bench(1);
    retained(&mut bench, 1 << 20);
    let update = |keep: u64| {
        let (group, dead_keep) = (names::GROUP, Some(Millis::new(keep)));
        let (attempts_max, backoff) = (None, None);
        Command::UpdateGroup(UpdateGroup { group, attempts_max, backoff, dead_keep })
    };
    assert!(matches!(bench.reply(update(60_001)), Reply::Refused(Refusal::Limit { .. })));
    publish(&mut bench, &[0]);
    let handles = bench.take("a", &[0]);
    give_up(&mut bench, handles[0]);
    let topic = topic_of(&bench, names::GROUP);
    assert_eq!(bench.machine.state().kept_topics().count(), 0);
    assert_eq!(bench.reply(update(5_000)), Reply::Done);
    let kept: Vec<_> = bench.machine.state().kept_topics().map(|it| (it.id, it.keep)).collect();
    assert_eq!(kept, [(topic, Some(Millis::new(5_000)))]);
    let mark = until_mark(&mut bench);
    assert_eq!(bench.reply(Command::Trim(Trim { topic, mark })), Reply::Done);
    assert_eq!((letters(&bench, names::GROUP).len(), standing(&bench, 0)), (0, Standing::Done));
    assert_eq!(bench.reply(update(0)), Reply::Done);
    assert_eq!(bench.machine.state().kept_topics().count(), 0);
}

#[test]
fn other_attempts_hold_from_the_next_failure_on() {
    let mut bench = bench(1);
    publish(&mut bench, &[0]);
    let handles = bench.take("a", &[0]);
    let update =
        UpdateGroup { group: names::GROUP, attempts_max: Some(2), backoff: None, dead_keep: None };
    assert_eq!(bench.reply(Command::UpdateGroup(update.clone())), Reply::Done);
    hold(&mut bench, handles[0], 0);
    assert_eq!(deaths(&bench), []);
    bench.checkpoint();
    bench.restart();
    let handles = bench.take("a", &[0]);
    hold(&mut bench, handles[0], 0);
    assert_eq!(deaths(&bench), [(0, 2, DeathReason::Returned)]);
    let group = GroupId::new(9);
    let refused = bench.reply(Command::UpdateGroup(UpdateGroup { group, ..update }));
    assert_eq!(refused, Reply::Refused(Refusal::NoGroup { group }));
}

#[test]
fn what_is_kept_beyond_the_front_is_bounded() {
    let mut bench = bench(1);
    // Each record has eight bytes.
    retained(&mut bench, 20);
    publish(&mut bench, &[0; 4]);
    let handles = bench.take("a", &[0, 1, 2]);
    until_mark(&mut bench);
    for handle in &handles {
        give_up(&mut bench, *handle);
    }
    assert_eq!(deaths(&bench).len(), 2, "for a third one there is no room");
    assert!(live(&bench, &handles[2]), "it stays hidden for a while");
    bench.stamp += 60_000;
    bench.tick();
    assert_eq!((ready(&bench), deaths(&bench).len()), (vec![2], 2));
    // It is redelivered beyond its attempts, and dies when there is room again.
    redrive(&mut bench, &[0]);
    let handles = bench.take("a", &[2]);
    assert_eq!(at(&handles), [(2, 2)]);
    let topic = topic_of(&bench, names::GROUP);
    bench.apply(Command::DeleteTopic { topic });
    hold(&mut bench, handles[0], 0);
    assert_eq!(deaths(&bench), [(2, 2, DeathReason::Returned)]);
}

fn live(bench: &Bench, handle: &Handle) -> bool {
    bench.machine.state().handle_state(handle) == HandleState::Live
}

#[test]
fn dead_letters_are_a_topic_that_groups_consume() {
    let mut bench = bench(1);
    let other = group(&mut bench, "repair", 2, Order::Off);
    publish(&mut bench, &[0, 0]);
    for handle in bench.take("a", &[0, 1]) {
        hold(&mut bench, handle, 0);
    }
    let letters_topic = topic_of(&bench, names::GROUP);
    let handles = take_of(&mut bench, (other, letters_topic), &[0, 1]);
    assert_eq!(at(&handles), [(0, 1), (1, 1)]);
    assert_eq!(ack(&mut bench, handles[0]), DeliveryOutcome::Done);
    hold(&mut bench, handles[1], 0);
    let handles = take_of(&mut bench, (other, letters_topic), &[1]);
    hold(&mut bench, handles[0], 0);
    // It goes to the dead letters of the group that failed now.
    let dead = letters(&bench, other);
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].1.origin, dead[0].1.offset.get()), (letters_topic, 1));
    assert_eq!(dead[0].1.origin_name.as_str(), "%DLQ%billing");
    assert_eq!(letters(&bench, names::GROUP).len(), 2, "they are read, not redriven");

    // A group that takes its own dead letters gets them again and again, and no loop begins.
    let pair = (names::GROUP, letters_topic);
    for attempt in 1..=3 {
        let handles = take_of(&mut bench, pair, &[0]);
        assert_eq!(at(&handles), [(0, attempt)]);
        hold(&mut bench, handles[0], 0);
    }
    let handles = take_of(&mut bench, pair, &[0]);
    assert_eq!(give_up(&mut bench, handles[0]), DeliveryOutcome::Done);
    assert!(live(&bench, &handles[0]), "hidden for a minute");
    assert_eq!(letters(&bench, names::GROUP).len(), 2);
}

#[test]
fn the_topic_belongs_to_its_group() {
    let mut bench = bench(1);
    let create = |name: &str| {
        let name = TopicName::new(name).unwrap();
        let kinds = vec![MessageKind::Fifo];
        Command::CreateTopic(CreateTopic { name, queues: 7, kinds, keep: None })
    };
    let nobody = Refusal::NoOwner { name: "%DLQ%nobody".to_owned() };
    assert_eq!(bench.reply(create("%DLQ%nobody")), Reply::Refused(nobody));
    let topic = match bench.reply(create("%DLQ%billing")) {
        Reply::TopicCreated { topic, existed: false } => topic,
        other => panic!("{other:?}"),
    };
    assert_eq!(bench.reply(create("%DLQ%billing")), Reply::TopicCreated { topic, existed: true });
    let made = bench.machine.state().topic_by_id(topic).unwrap();
    assert_eq!((made.queues, made.kinds.as_slice()), (1, &[MessageKind::Normal][..]));
    assert!(matches!(
        bench.reply(Command::GrowTopic { topic, queues: 2 }),
        Reply::Refused(Refusal::Limit { limit: 1, .. })
    ));
    let items = vec![names::item(0, 0)];
    let sent = bench.reply(Command::Publish(Publish { topic, dedup: false, items }));
    assert_eq!(sent, Reply::Refused(Refusal::DeadLettersOnly { topic }));

    publish(&mut bench, &[0, 0]);
    let handles = bench.take("a", &[0]);
    hold(&mut bench, handles[0], 0);
    assert_eq!((topic_of(&bench, names::GROUP), deaths(&bench).len()), (topic, 1));
    // Without its dead letters a message is done with.
    bench.apply(Command::DeleteTopic { topic });
    assert_eq!((deaths(&bench).len(), standing(&bench, 0)), (0, Standing::Done));
    let handles = bench.take("a", &[1]);
    hold(&mut bench, handles[0], 0);
    let second = topic_of(&bench, names::GROUP);
    assert_ne!(second, topic);
    let effects = bench.effects(Command::DeleteGroup { group: names::GROUP });
    let gone = [Effect::TopicGone { topic: second }, Effect::GroupGone { group: names::GROUP }];
    assert_eq!(effects, gone);
    assert_eq!(bench.machine.state().dead_letters_count(), 0);
    let again = group(&mut bench, "billing", 1, Order::Off);
    assert_eq!(bench.machine.state().dead_letters_topic(again), None);
    let handles = take_of(&mut bench, (again, names::TOPIC), &[0]);
    hold(&mut bench, handles[0], 0);
    assert_eq!(letters(&bench, again).len(), 1);
}

#[test]
fn dead_letters_outlive_restarts_and_travel_to_peers() {
    let mut bench = bench(1);
    retained(&mut bench, 1 << 20);
    publish(&mut bench, &[0; 5]);
    let handles = bench.take("a", &[0, 1, 2]);
    until_mark(&mut bench);
    for handle in handles {
        give_up(&mut bench, handle);
    }
    redrive(&mut bench, &[1]);
    let (hashes, before) = (bench.hashes(), letters(&bench, names::GROUP));
    bench.checkpoint();
    bench.restart();
    assert_eq!((bench.hashes(), letters(&bench, names::GROUP)), (hashes, before.clone()));
    let snapshot = bench.machine.freeze().unwrap().snapshot();
    let mut peer = Bench::new();
    peer.machine.install(&snapshot).unwrap();
    assert_eq!(letters(&peer, names::GROUP), before);
    assert_eq!(peer.machine.state().hash(), hashes.0);
    assert_eq!(redrive(&mut bench, &[0, 1, 2, 3]).len(), 4);
}
