//! Scans of message groups in order.

use super::*;
use crate::command::{Ack, DeliveryOutcome, Handle, Order};

const A: u64 = 100;
const B: u64 = 200;

/// One queue, and a group that takes message groups so, of which members with these filters live.
fn ordered(order: Order, live: &[&str]) -> Bench {
    let rule = OrderRule { order, ..OrderRule::default() };
    Bench::with_rule(1, live, (rule, vec![MessageKind::Fifo]))
}

/// One slow message group with as many gaps as a queue may have: what would be one more is not
/// offered again and again, and comes when there is room.
#[test]
fn what_the_bounds_of_a_queue_refuse_is_not_offered() {
    let mut bench = ordered(Order::Single, &["*"]);
    let gaps = PENDING_PER_QUEUE_MAX;
    for _ in 0..gaps.div_ceil(5000) + 1 {
        bench.publish_items_in(&[A, B].repeat(5000));
    }
    let first = bench.find("*", 1);
    assert_eq!(offsets(&first), [0]);
    let slow = hand_out(&mut bench, &first);
    // The others are done.
    let done = (0..=gaps as u64)
        .map(|at| Skip { from: QueueOffset::new(2 * at + 1), to: QueueOffset::new(2 * at + 2) });
    let queue = QueueId::new(0);
    let takes = vec![Take { queue, skips: done.collect(), grants: Vec::new() }];
    bench.check_out("c", &Found { takes, ..Found::default() }, Millis::ZERO);
    let pair = (GROUP, TOPIC);
    let next = bench.machine.state().view(GROUP, TOPIC, queue).next;
    assert_eq!(next.get(), 2 * (gaps as u64) + 2, "the first is no gap");
    assert!(!bench.machine.state().fits(pair, queue, next.next()));
    let found = bench.find_all("*", 8);
    assert_eq!((found.grants, found.more), (0, false), "the next of B is behind one of A");
    assert!(!bench.peek("*"), "nor is it waited for in vain");
    assert!(bench.desk.capped.contains(&queue));
    ack(&mut bench, slow[0]);
    let found = bench.find("*", 8);
    assert_eq!((offsets(&found), found.more), (vec![2], true));
    hand_out(&mut bench, &found);
    assert_eq!(offsets(&bench.find("*", 8)), [next.get() + 1], "a gap less, and B has room");
    assert!(bench.desk.capped.is_empty());
}

/// Hands out what was found; answers the handles.
fn hand_out(bench: &mut Bench, found: &Found) -> Vec<Handle> {
    let id = bench.next_checkout;
    let granted = bench.check_out("c", found, Millis::from_secs(10));
    bench.next_checkout += u64::from(granted > 0);
    let grants = found.takes.iter().flat_map(|take| &take.grants);
    let handle = |grant: &Grant| Handle {
        group: GROUP,
        topic: TOPIC,
        queue: QueueId::new(0),
        offset: grant.offset,
        checkout: crate::base::CheckoutId::new(id),
        attempt: 1,
    };
    assert_eq!(granted, found.grants, "apply gives what was offered");
    grants.map(handle).collect()
}

fn ack(bench: &mut Bench, handle: Handle) {
    let reply = bench.apply(Command::Deliveries(vec![Delivery::Ack(Ack { handle })]));
    assert_eq!(reply, Reply::Deliveries(vec![DeliveryOutcome::Done]));
}

#[test]
fn a_busy_line_is_passed_by_and_comes_when_it_is_free() {
    let mut bench = ordered(Order::Single, &["*"]);
    for line in [A, A, B, A, B] {
        bench.publish_line(line, "t");
    }
    let first = bench.find("*", 8);
    assert_eq!(offsets(&first), [0, 2], "the first of each");
    assert_eq!(bench.find("*", 8).grants, 0, "while they are offered, nothing else of theirs is");
    let handles = hand_out(&mut bench, &first);
    assert_eq!(bench.find("*", 8).grants, 0);
    ack(&mut bench, handles[1]);
    let second = bench.find("*", 8);
    assert_eq!(offsets(&second), [4], "B is free, A is not");
    // It comes to nothing, and is there again.
    bench.desk.settle(&reserved(&second));
    assert_eq!(offsets(&bench.find("*", 8)), [4]);
    ack(&mut bench, handles[0]);
    assert!(bench.peek("*") && bench.peek("*"), "looking takes nothing");
    assert_eq!(offsets(&bench.find("*", 8)), [1]);
}

/// A poll at a node that does not lead looks first, and takes then.
#[test]
fn looking_at_a_new_line_leaves_it_to_be_found() {
    for order in [Order::Single, Order::Batch] {
        let mut bench = ordered(order, &["*"]);
        for line in [A, B] {
            bench.publish_line(line, "t");
        }
        assert!(bench.peek("*") && bench.peek("*"));
        let found = bench.find("*", 8);
        assert_eq!(offsets(&found), [0, 1]);
        hand_out(&mut bench, &found);
        assert!(!bench.peek("*"));
    }
}

#[test]
fn a_batch_takes_a_line_in_order_and_again_from_its_first() {
    let mut bench = ordered(Order::Batch, &["*"]);
    for line in [A, B, A, A] {
        bench.publish_line(line, "t");
    }
    let found = bench.find("*", 3);
    assert_eq!(offsets(&found), [0, 1, 2]);
    hand_out(&mut bench, &found);
    assert_eq!(bench.find("*", 8).grants, 0, "the last of A waits for those before it");
    bench.expire();
    let again = bench.find_all("*", 8);
    assert_eq!(offsets(&again), [0, 2, 1], "the rest of A comes with its first");
    assert_eq!(bench.check_out("c", &again, Millis::from_secs(10)), 3);
}

/// The offset that is offered is the line's first that is open, whatever became of offers before.
#[test]
fn an_offer_that_fails_lets_nothing_overtake() {
    let mut bench = ordered(Order::Single, &["*"]);
    for line in [A, A, A] {
        bench.publish_line(line, "t");
    }
    let first = bench.find("*", 1);
    assert_eq!(offsets(&first), [0]);
    // Others look meanwhile, and note what is behind it.
    assert_eq!(bench.find("*", 8).grants, 0);
    bench.desk.settle(&reserved(&first));
    let second = bench.find("*", 8);
    assert_eq!(offsets(&second), [0]);
    let handles = hand_out(&mut bench, &second);
    ack(&mut bench, handles[0]);
    assert_eq!(offsets(&bench.find("*", 8)), [1]);
}

#[test]
fn what_another_member_wants_holds_up_its_line() {
    let mut bench = ordered(Order::Single, &["a", "b"]);
    bench.publish_line(A, "b");
    bench.publish_line(A, "a");
    bench.publish_line(B, "x");
    bench.publish_line(B, "a");
    // Nobody wants the first of B.
    assert_eq!(offsets(&bench.find("a", 8)), [3]);
    let found = bench.find("b", 8);
    assert_eq!(offsets(&found), [0]);
    let handles = hand_out(&mut bench, &found);
    assert_eq!(bench.find("a", 8).grants, 0, "it is out");
    ack(&mut bench, handles[0]);
    assert_eq!(offsets(&bench.find("a", 8)), [1]);
}

/// A deployment that asks for other tags must not leave message groups behind that nobody gets.
#[test]
fn a_failed_message_that_nobody_wants_any_more_frees_its_line() {
    for order in [Order::Single, Order::Batch] {
        let mut bench = ordered(order, &["a", "b"]);
        for tag in ["a", "a", "b"] {
            bench.publish_line(A, tag);
        }
        bench.publish_line(B, "a");
        let found = bench.find("a", 8);
        hand_out(&mut bench, &found);
        bench.expire();
        assert_eq!(bench.find_all("b", 8).grants, 0, "the first of A is for others");
        assert_eq!(bench.desk.overdue_skips(Duration::from_secs(100)), None, "who live");
        let expression = "a".to_owned();
        let gone = Subscribe { group: GROUP, topic: TOPIC, expression };
        bench.apply(Command::Unsubscribe(gone));
        assert_eq!(bench.find_all("b", 8).grants, 0, "the log has to say that nobody wants it");
        assert_eq!(bench.desk.overdue_skips(Duration::from_secs(200)), None);
        let (_, takes) = bench.desk.overdue_skips(Duration::from_secs(200) + SKIP_AGE).unwrap();
        bench.check_out("nobody", &Found { takes, ..Found::default() }, Millis::ZERO);
        assert!(!bench.machine.state().is_locked((GROUP, TOPIC), A));
        assert_eq!(offsets(&bench.find_all("b", 8)), [2], "{order:?}");
    }
}

/// A slow message group with a long backlog: it is looked at once, not by every receive.
#[test]
fn a_long_backlog_of_a_busy_line_is_looked_at_once() {
    let mut bench = ordered(Order::Single, &["*"]);
    for _ in 0..2 * SCAN_MAX {
        bench.publish_line(A, "t");
    }
    bench.publish_line(B, "t");
    let end = 2 * SCAN_MAX as u64;
    let found = bench.find_all("*", 1);
    assert_eq!(offsets(&found), [0]);
    let handles = hand_out(&mut bench, &found);
    let found = bench.find_all("*", 1);
    assert_eq!(offsets(&found), [end], "the other one is found behind it");
    hand_out(&mut bench, &found);
    bench.publish_line(B, "t");
    let found = bench.find("*", 1);
    assert_eq!((found.grants, found.more), (0, false), "one look is enough now");
    ack(&mut bench, handles[0]);
    let found = bench.find("*", 1);
    assert_eq!(offsets(&found), [1]);
}

/// The same without order, where no line is held up: it is not to wait for ever.
#[test]
fn a_failed_message_that_nobody_wants_any_more_is_skipped() {
    let mut bench = Bench::new(1, &["a", "b"]);
    bench.publish(0, "a", 2);
    bench.publish(0, "b", 1);
    let found = bench.find("a", 8);
    assert_eq!(offsets(&found), [0, 1]);
    hand_out(&mut bench, &found);
    bench.expire();
    assert_eq!(offsets(&bench.find_all("b", 8)), [2]);
    assert_eq!(bench.desk.overdue_skips(Duration::from_secs(100)), None, "others want them");
    let expression = "a".to_owned();
    let gone = Subscribe { group: GROUP, topic: TOPIC, expression };
    bench.apply(Command::Unsubscribe(gone));
    bench.find_all("b", 8);
    assert_eq!(bench.desk.overdue_skips(Duration::from_secs(200)), None);
    let (_, takes) = bench.desk.overdue_skips(Duration::from_secs(200) + SKIP_AGE).unwrap();
    bench.check_out("nobody", &Found { takes, ..Found::default() }, Millis::ZERO);
    let ready = bench.machine.state().view(GROUP, TOPIC, QueueId::new(0)).ready;
    assert!(ready.is_empty(), "{ready:?}");
}
