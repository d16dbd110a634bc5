//! Handing out, acknowledging, expiring: who has what, and who may say so.

use super::bench::{Bench, names};
use crate::base::{CheckoutId, ClientId, Millis, QueueId, QueueOffset, UtcMillis};
use crate::command::{
    Ack, Command, Delivery, DeliveryOutcome, Granted, Handle, Hold, Refusal, Release, Renew, Reply,
    Return, Subscribe,
};
use crate::machine::{Effect, HandleState, PENDING_PER_QUEUE_MAX, QueueView};

const QUEUE: QueueId = QueueId::new(0);

fn ready(count: u32) -> Effect {
    Effect::Ready { group: names::GROUP, topic: names::TOPIC, count }
}

fn ack(handle: Handle) -> Delivery {
    Delivery::Ack(Ack { handle })
}

fn hold(handle: Handle, millis: u64) -> Delivery {
    Delivery::Hold(Hold { handle, invisible: Millis::new(millis) })
}

fn view(bench: &Bench) -> QueueView {
    bench.machine.state().view(names::GROUP, names::TOPIC, QUEUE)
}

fn ranges(view: &QueueView) -> Vec<(u64, u64)> {
    view.free.iter().map(|(from, to)| (from.get(), to.get())).collect()
}

fn ready_offsets(view: &QueueView) -> Vec<u64> {
    view.ready.iter().map(|message| message.offset.get()).collect()
}

fn offsets(granted: &[Granted]) -> Vec<u64> {
    granted.iter().map(|one| one.offset.get()).collect()
}

#[test]
fn a_checkout_gets_what_is_available_and_nothing_else() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 10);
    let first = bench.checkout("a", &[0, 3, 3, 12]);
    let got = bench.check_out(first);
    assert_eq!(got.checkout, CheckoutId::new(1));
    assert_eq!(offsets(&got.granted), [0, 3], "no repeat, nothing beyond the end");
    assert!(got.granted.iter().all(|one| one.attempt == 1 && one.checkout == got.checkout));
    assert_eq!(ranges(&view(&bench)), [(1, 3)]);
    // Another member gets what was passed by and what is new, never what is taken.
    assert_eq!(bench.take("b", &[0, 1, 3, 4]).len(), 2);
    assert_eq!((view(&bench).next.get(), view(&bench).in_flight), (5, 4));
    assert_eq!(ranges(&view(&bench)), [(2, 3)]);
    // Asking in vain stores nothing: neither a checkout nor its id.
    let vain = bench.checkout("a", &[0, 99]);
    let before = bench.machine.state().checkouts_of(names::GROUP, &vain.consumer);
    let got = bench.check_out(vain.clone());
    assert_eq!((got.checkout, got.granted.len()), (CheckoutId::new(0), 0));
    assert_eq!(bench.machine.state().checkouts_of(names::GROUP, &vain.consumer), before);
    let next = bench.checkout("a", &[2]);
    assert_eq!(bench.check_out(next).checkout, CheckoutId::new(3));
    let lag = bench.machine.state().lag(names::GROUP, names::TOPIC);
    assert_eq!((lag.ready, lag.in_flight), (5, 5));
}

#[test]
fn an_ack_ends_a_message_and_may_be_repeated() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 3);
    let handles = bench.take("a", &[0, 2]);
    let mut forged = handles[0];
    forged.attempt = 2;
    assert_eq!(bench.deliver(ack(forged)), DeliveryOutcome::Stale);
    assert_eq!(bench.machine.state().handle_state(&handles[0]), HandleState::Live);
    assert_eq!(bench.deliver(ack(handles[0])), DeliveryOutcome::Done);
    assert_eq!(bench.machine.state().handle_state(&handles[0]), HandleState::Stale);
    assert_eq!(bench.deliver(ack(handles[0])), DeliveryOutcome::Done);
    // What was never handed out, or does not exist, cannot be acknowledged.
    for offset in [1, 3] {
        let other = Handle { offset: QueueOffset::new(offset), ..handles[0] };
        assert_eq!(bench.deliver(ack(other)), DeliveryOutcome::Stale);
    }
    assert_eq!(bench.take("a", &[0]), []);
    assert_eq!(bench.deliver(ack(handles[1])), DeliveryOutcome::Done);
    assert_eq!(bench.machine.state().next_due(), None);

    bench.apply(Command::DeleteTopic { topic: names::TOPIC });
    let gone = DeliveryOutcome::Refused(Refusal::NoTopic { topic: names::TOPIC });
    assert_eq!(bench.deliver(ack(handles[1])), gone);
}

#[test]
fn deadlines_fire_in_order_and_only_by_a_tick() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 4);
    let first = bench.take("a", &[0, 1]);
    bench.stamp += 5_000;
    let second = bench.take("a", &[2, 3]);
    assert_eq!(bench.machine.state().next_due(), Some(UtcMillis::new(1_010_000)));
    bench.stamp = 1_009_999;
    assert_eq!(bench.tick(), []);
    // Past its deadline, but no tick was applied: the log decides, and the ack came first.
    bench.stamp = 1_020_000;
    assert_eq!(bench.deliver(ack(first[0])), DeliveryOutcome::Done);
    let applied = bench.apply(Command::Tick { limit: 2 });
    assert_eq!((applied.reply, applied.effects), (Reply::Ticked { fired: 2 }, vec![ready(2)]));
    assert_eq!(ready_offsets(&view(&bench)), [1, 2], "the earliest deadlines first");
    assert_eq!(bench.deliver(ack(first[1])), DeliveryOutcome::Stale);
    assert_eq!(bench.deliver(ack(second[1])), DeliveryOutcome::Done);
    // The next delivery is the second attempt, and has a handle of its own.
    let again = bench.take("b", &[1, 2]);
    assert_eq!(again.iter().map(|handle| handle.attempt).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(bench.deliver(ack(second[0])), DeliveryOutcome::Stale);
    assert_eq!(bench.deliver(ack(again[1])), DeliveryOutcome::Done);
}

#[test]
fn a_hold_moves_the_deadline_and_keeps_the_handle() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 2);
    let handles = bench.take("a", &[0, 1]);
    assert_eq!(bench.deliver(hold(handles[0], 60_000)), DeliveryOutcome::Done);
    bench.stamp += 10_000;
    assert_eq!(bench.tick(), [ready(1)]);
    assert_eq!(bench.machine.state().handle_state(&handles[0]), HandleState::Live);
    assert_eq!(bench.deliver(hold(handles[1], 60_000)), DeliveryOutcome::Stale);
    // Zero gives it back at once; saying so twice is harmless.
    let applied = bench.apply(Command::Deliveries(vec![hold(handles[0], 0), hold(handles[0], 0)]));
    let outcomes = vec![DeliveryOutcome::Done, DeliveryOutcome::Done];
    assert_eq!((applied.reply, applied.effects), (Reply::Deliveries(outcomes), vec![ready(1)]));
    assert_eq!(bench.deliver(ack(handles[0])), DeliveryOutcome::Stale);
    assert_eq!(ready_offsets(&view(&bench)), [0, 1]);
}

#[test]
fn renewing_goes_by_checkout_and_leaves_held_messages_alone() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 3);
    let mut checkout = bench.checkout("a", &[0, 1, 2]);
    checkout.auto_renew = true;
    let got = bench.check_out(checkout);
    let handles: Vec<_> = got.granted.iter().map(names::handle).collect();
    bench.deliver(hold(handles[1], 12_000));
    bench.deliver(ack(handles[2]));
    assert_eq!(bench.machine.state().renewals(UtcMillis::new(1_010_000)), []);
    let due = bench.machine.state().renewals(UtcMillis::new(1_010_001));
    assert_eq!((due.len(), due[0].checkout, due[0].group), (1, got.checkout, names::GROUP));

    bench.stamp += 5_000;
    let unknown = CheckoutId::new(99);
    let renew = Renew { checkouts: vec![unknown, got.checkout], invisible: Millis::new(60_000) };
    assert_eq!(bench.deliver(Delivery::Renew(renew)), DeliveryOutcome::Done);
    let info = bench.machine.state().checkout(got.checkout).unwrap();
    assert_eq!((info.until, info.items), (UtcMillis::new(1_065_000), 2));
    assert_eq!(info.first, UtcMillis::new(1_000_000));
    bench.stamp = 1_012_000;
    bench.tick();
    assert_eq!(ready_offsets(&view(&bench)), [1], "the consumer chose its time");
    // With its last message the checkout is over.
    bench.deliver(ack(handles[0]));
    assert_eq!(bench.machine.state().checkout(got.checkout), None);
    assert_eq!(bench.machine.state().renewals(UtcMillis::new(u64::MAX)), []);
}

#[test]
fn a_consumer_that_leaves_gives_everything_back() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 4);
    let handles = bench.take("a", &[0]);
    bench.take("a", &[1]);
    bench.take("b", &[2]);
    let consumer = ClientId::new("a").unwrap();
    let release = |millis| {
        Delivery::Release(Release {
            group: names::GROUP,
            consumer: ClientId::new("a").unwrap(),
            invisible: Millis::new(millis),
        })
    };
    bench.deliver(release(1_000));
    // An ack that was on its way still counts.
    assert_eq!(bench.deliver(ack(handles[0])), DeliveryOutcome::Done);
    bench.stamp += 1_000;
    bench.tick();
    assert_eq!(ready_offsets(&view(&bench)), [1]);
    assert_eq!(bench.machine.state().checkouts_of(names::GROUP, &consumer), []);
    let handles = bench.take("a", &[1]);
    assert_eq!(handles[0].attempt, 2);
    assert_eq!(bench.effects(Command::Deliveries(vec![release(0)])), [ready(1)]);
}

#[test]
fn a_returned_delivery_does_not_count() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 2);
    let handles = bench.take("a", &[0, 1]);
    let back = |handle, millis| {
        Delivery::Return(Return { handles: vec![handle], invisible: Millis::new(millis) })
    };
    bench.deliver(back(handles[0], 0));
    bench.deliver(back(handles[1], 1_000));
    assert_eq!(ready_offsets(&view(&bench)), [0]);
    // Nobody has the second one: its handle is over, and nobody else gets it yet.
    assert_eq!(bench.deliver(ack(handles[1])), DeliveryOutcome::Stale);
    assert_eq!(bench.take("b", &[1]), []);
    bench.stamp += 1_000;
    assert_eq!(bench.tick(), [ready(1)]);
    let again = bench.take("b", &[0, 1]);
    assert_eq!(again.iter().map(|handle| handle.attempt).collect::<Vec<_>>(), [1, 1]);
    assert_ne!(again[0].checkout, handles[0].checkout);
    // Late returns of the first delivery touch nothing.
    bench.deliver(back(handles[0], 0));
    assert_eq!(bench.machine.state().handle_state(&again[0]), HandleState::Live);
}

#[test]
fn the_same_attempt_is_served_the_same_messages() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 6);
    let mut checkout = bench.checkout("a", &[0, 1, 2]);
    checkout.attempt_id = Some("try-1".into());
    let first = bench.check_out(checkout);
    bench.deliver(ack(names::handle(&first.granted[1])));
    // The reply was lost. The repeat gets what is still open, and takes nothing new.
    let mut repeat = bench.checkout("a", &[3, 4]);
    repeat.attempt_id = Some("try-1".into());
    bench.stamp += 9_999;
    let known = bench.machine.state().checkout_of_attempt(names::GROUP, names::TOPIC, "try-1");
    let second = bench.check_out(repeat.clone());
    assert_eq!(known.as_ref(), Some(&second.granted));
    assert_eq!(second.checkout, first.checkout);
    assert_eq!(second.granted, [first.granted[0], first.granted[2]]);
    assert_eq!(view(&bench).next.get(), 3);
    // Once its time is over it is a new attempt, tick or not.
    bench.stamp += 1;
    let third = bench.check_out(repeat.clone());
    assert_eq!(offsets(&third.granted), [3, 4]);
    bench.tick();
    let fourth = bench.check_out(repeat);
    assert_eq!(fourth.checkout, third.checkout);
    // Another topic's or group's attempt of that name is another one.
    let other = bench.machine.state().checkout_of_attempt(
        crate::base::GroupId::new(2),
        names::TOPIC,
        "try-1",
    );
    assert_eq!(other, None);
}

#[test]
fn skips_count_only_for_the_subscriptions_they_were_computed_for() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 20);
    let mut checkout = bench.checkout("a", &[10]);
    checkout.takes[0].skips = vec![names::skip(0, 5), names::skip(7, 9), names::skip(15, 21)];
    bench.check_out(checkout);
    assert_eq!(ranges(&view(&bench)), [(5, 7), (9, 10)], "done, but for the one beyond the end");
    let expression = "x".to_owned();
    let (group, topic) = (names::GROUP, names::TOPIC);
    bench.apply(Command::Subscribe(Subscribe { group, topic, expression }));
    let mut late = bench.checkout("a", &[12]);
    late.takes[0].skips = vec![names::skip(5, 7)];
    bench.check_out(late.clone());
    assert_eq!(ranges(&view(&bench)), [(5, 7), (9, 10), (11, 12)], "its version is over");
    late.subscription_version = 1;
    late.takes[0].skips = vec![names::skip(4, 13)];
    bench.check_out(late);
    assert_eq!(ranges(&view(&bench)), []);
    // What is in flight is never skipped.
    assert_eq!((view(&bench).in_flight, view(&bench).next.get()), (2, 13));
}

#[test]
fn holes_are_bounded_and_redelivery_goes_on_at_the_cap() {
    let mut bench = Bench::with_topic(1);
    let cap = PENDING_PER_QUEUE_MAX as u64;
    for _ in 0..11 {
        bench.publish(0, 10_000);
    }
    let mut all = bench.checkout("a", &[]);
    let unit = bench.unit(0, 0);
    let offset = QueueOffset::new;
    all.takes[0].grants =
        (0..cap + 5).map(|at| crate::command::Grant { offset: offset(at), unit }).collect();
    let got = bench.check_out(all);
    assert_eq!(got.granted.len() as u64, cap, "one more would be too many");
    assert_eq!(bench.take("b", &[cap]), []);
    // What was handed out comes again, and each ack makes room for one more.
    bench.deliver(hold(names::handle(&got.granted[7]), 0));
    let again = bench.take("b", &[7, cap]);
    assert_eq!((again.len(), again[0].offset), (1, offset(7)));
    bench.deliver(ack(again[0]));
    assert_eq!(bench.take("b", &[cap, cap + 1]).len(), 1);
}

#[test]
fn gaps_are_bounded_without_locking_the_queue() {
    let mut bench = Bench::with_topic(1);
    let cap = PENDING_PER_QUEUE_MAX as u64;
    for _ in 0..21 {
        bench.publish(0, 10_000);
    }
    // Every second offset is skipped: as many gaps as may be.
    let mut sparse = bench.checkout("a", &[]);
    sparse.takes[0].skips = (0..cap + 10).map(|at| names::skip(2 * at + 1, 2 * at + 2)).collect();
    bench.check_out(sparse);
    assert_eq!(view(&bench).next.get(), 2 * cap);
    assert_eq!(bench.take("a", &[2 * cap + 1]), [], "one more gap would be too many");
    assert_eq!(bench.take("a", &[2 * cap]).len(), 1, "no gap, no objection");
    assert_eq!(bench.take("a", &[0, 2 * cap + 2]).len(), 2, "a gap less makes room for one");
}
