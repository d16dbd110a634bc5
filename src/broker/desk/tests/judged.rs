//! Filters for which the record has to be read, and verdicts that are forgotten.

use super::*;
use crate::command::Order;

const A: &str = "sql:TAGS = 'a'";
const B: &str = "sql:TAGS = 'b'";

fn queue() -> QueueId {
    QueueId::new(0)
}

fn ready(bench: &Bench) -> u64 {
    bench.machine.state().lag(GROUP, TOPIC).ready
}

/// Logs what is overdue, as the rounds of a leader do, until nothing is.
fn log_skips(bench: &mut Bench, now: Duration) {
    for now in [now, now + SKIP_AGE] {
        while let Some((_, takes)) = bench.desk.overdue_skips(now) {
            bench.check_out("nobody", &Found { takes, ..Found::default() }, Millis::ZERO);
        }
    }
}

#[test]
fn one_message_is_found_behind_ten_thousand_that_nobody_wants() {
    let mut bench = Bench::new(1, &[A]);
    for _ in 0..10 {
        bench.publish(0, "x", 1000);
    }
    bench.publish(0, "a", 1);
    let (mut hunt, mut judged) = (Hunt::default(), 0);
    let found = loop {
        let found = bench.look((A, 8), &mut hunt, true);
        if found.grants > 0 {
            break found;
        }
        assert!(found.more && !found.ask.is_empty() && found.ask.len() <= 256);
        judged += found.ask.len();
        bench.judge(&found);
    };
    assert_eq!((offsets(&found), judged), (vec![10_000], 10_001), "each record is read once");
    assert_eq!(bench.check_out("c", &found, Millis::from_secs(10)), 1);
    assert_eq!(ready(&bench), 0, "the skip went with it");
}

#[test]
fn what_no_filter_matches_stops_being_a_backlog() {
    let mut bench = Bench::new(2, &[A]);
    bench.publish(0, "x", 700);
    bench.publish(1, "y", 300);
    let found = bench.find_all(A, 8);
    assert_eq!((found.grants, found.more, ready(&bench)), (0, false, 1000));
    log_skips(&mut bench, Duration::from_secs(100));
    assert_eq!(ready(&bench), 0);
}

#[test]
fn each_message_goes_to_a_member_that_wants_it_by_tag_or_by_sql() {
    let mut bench = Bench::new(1, &["b", A]);
    for tag in ["x", "b", "a", "x", "b", "a"] {
        bench.publish(0, tag, 1);
    }
    assert_eq!(bench.take("b", 8), [1, 4], "what SQL may want is passed by, not skipped");
    assert_eq!(bench.take(A, 8), [2, 5]);
    log_skips(&mut bench, Duration::from_secs(100));
    assert_eq!(ready(&bench), 0);
    // Handed out and given back, each still goes to its own.
    bench.expire();
    assert_eq!(bench.take(A, 8), [2, 5]);
    assert_eq!(bench.take("b", 8), [1, 4]);
}

#[test]
fn what_only_a_member_wanted_that_is_gone_is_skipped() {
    let mut bench = Bench::new(1, &["b", A]);
    bench.publish(0, "a", 3);
    bench.publish(0, "b", 1);
    assert_eq!(bench.take(A, 1), [0]);
    bench.expire();
    let expression = A.to_owned();
    bench.apply(Command::Unsubscribe(Subscribe { group: GROUP, topic: TOPIC, expression }));
    assert_eq!(bench.take("b", 8), [3]);
    log_skips(&mut bench, Duration::from_secs(100));
    assert_eq!(ready(&bench), 0, "what it had once as well");
}

/// Verdicts that are forgotten at once cost reading again, and no receive runs in a circle.
#[test]
fn a_receive_comes_to_its_end_though_all_but_the_last_verdicts_are_forgotten() {
    let mut bench = Bench::new(1, &[A, B]);
    bench.publish(0, "a", 1);
    bench.publish(0, "b", 3000);
    bench.publish(0, "a", 1);
    // The first match is offered to another receive, so that nothing behind it counts as looked at.
    let first = bench.find_all(A, 1);
    assert_eq!(offsets(&first), [0]);
    let (mut hunt, mut steps) = (Hunt::default(), 0);
    let second = loop {
        let found = bench.look((A, 8), &mut hunt, true);
        if found.grants > 0 || !found.more {
            break found;
        }
        bench.desk.verdicts.clear();
        bench.judge(&found);
        steps += 1;
        assert!(steps < 20, "the receive runs in a circle");
    };
    assert_eq!(offsets(&second), [3001]);
}

/// The hunt passes offers of others by; the next one must not take them for looked at.
#[test]
fn an_offer_that_is_given_up_is_found_again_before_what_was_judged_meanwhile() {
    let mut bench = Bench::new(1, &[A, B]);
    bench.publish(0, "a", 1);
    let offer = bench.find_all(A, 1);
    bench.publish(0, "b", 300);
    assert!(!bench.peek(A), "it is offered");
    bench.desk.settle(&reserved(&offer));
    assert_eq!(bench.take(A, 1), [0]);
}

#[test]
fn redeliveries_are_judged_again_after_a_change_of_leaders() {
    let mut bench = Bench::new(1, &[A, B]);
    for _ in 0..300 {
        bench.publish(0, "b", 1);
        bench.publish(0, "a", 1);
    }
    let mut taken = 0;
    while taken < 600 {
        taken += bench.take(A, 32).len() + bench.take(B, 32).len();
    }
    bench.desk = Desk::default();
    bench.expire();
    let mut hunt = Hunt::default();
    let mut again = Vec::new();
    while again.len() < 300 {
        let found = bench.look((A, 32), &mut hunt, true);
        assert!(found.grants > 0 || found.more, "{} of 300", again.len());
        bench.desk.verdicts.clear();
        bench.judge(&found);
        again.extend(offsets(&found));
        // A verdict that is forgotten while its message is offered is read again behind it.
        if found.grants > 0 {
            hunt = Hunt::default();
        }
    }
    again.sort_unstable();
    assert_eq!(again, (0..300).map(|at| 2 * at + 1).collect::<Vec<_>>());
}

#[test]
fn a_message_whose_record_is_gone_is_nobodys() {
    let mut bench = Bench::new(1, &[A]);
    bench.publish(0, "a", 2);
    bench.tags.remove(&(queue(), QueueOffset::ZERO));
    assert_eq!(bench.take(A, 8), [1]);
    assert_eq!(ready(&bench), 0);
}

/// "Aa" and "BB" have the same hash, and nobody wants the other one.
#[test]
fn look_alikes_that_nobody_wants_are_skipped() {
    let mut bench = Bench::new(1, &["Aa"]);
    bench.publish(0, "BB", 2);
    let found = bench.find("Aa", 2);
    assert_eq!(offsets(&found), [0, 1]);
    bench.tell_look_alikes(&found);
    bench.desk.settle(&reserved(&found));
    assert_eq!(bench.find_all("Aa", 2).grants, 0);
    log_skips(&mut bench, Duration::from_secs(100));
    assert_eq!(ready(&bench), 0);
}

#[test]
fn more_unwanted_runs_than_are_remembered_are_skipped_in_the_end() {
    let mut bench = Bench::new(1, &[A, "b"]);
    for _ in 0..RUNS_MAX + 300 {
        bench.publish(0, "b", 1);
        bench.publish(0, "x", 1);
    }
    let wanted = (RUNS_MAX + 300) as u64;
    assert_eq!(bench.find_all(A, 8).grants, 0);
    assert_eq!(bench.desk.unwanted[&queue()].len(), RUNS_MAX);
    log_skips(&mut bench, Duration::from_secs(100));
    assert_eq!(ready(&bench), wanted + 300);
    assert_eq!(bench.find_all(A, 8).grants, 0);
    log_skips(&mut bench, Duration::from_secs(200));
    assert_eq!(ready(&bench), wanted);
    // A skip that did not get into the log is found again.
    bench.publish(0, "x", 1);
    assert_eq!(bench.find_all(A, 8).grants, 0);
    let now = Duration::from_secs(300);
    assert_eq!(bench.desk.overdue_skips(now), None);
    let (_, lost) = bench.desk.overdue_skips(now + SKIP_AGE).unwrap();
    bench.desk.note_not_skipped(&lost);
    assert_eq!(bench.find_all(A, 8).grants, 0);
    log_skips(&mut bench, Duration::from_secs(400));
    assert_eq!(ready(&bench), wanted);
}

#[test]
fn a_line_waits_for_the_member_that_wants_its_first_message() {
    let rule = OrderRule { order: Order::Single, ..OrderRule::default() };
    let mut bench = Bench::with_rule(1, &[A, B], (rule, vec![MessageKind::Fifo]));
    for (line, tag) in [(7, "a"), (7, "b"), (8, "x"), (8, "b")] {
        bench.publish_line(line, tag);
    }
    let found = bench.find_all(B, 8);
    assert_eq!(offsets(&found), [3], "x is nobody's, and a is another's");
    assert_eq!(bench.check_out("c", &found, Millis::from_secs(10)), 1);
    assert_eq!(bench.find_all(B, 8).grants, 0);
    let found = bench.find_all(A, 8);
    assert_eq!(offsets(&found), [0]);
    let granted = bench.granted("d", &found, Millis::from_secs(10));
    let handle = crate::command::Handle {
        group: GROUP,
        topic: TOPIC,
        queue: queue(),
        offset: granted[0].offset,
        checkout: granted[0].checkout,
        attempt: 1,
    };
    bench.apply(Command::Deliveries(vec![Delivery::Ack(crate::command::Ack { handle })]));
    assert_eq!(offsets(&bench.find_all(B, 8)), [1]);
}

#[test]
fn priorities_go_first_with_sql_as_well() {
    let rule = (OrderRule::default(), vec![MessageKind::Priority]);
    let mut bench = Bench::with_rule(2, &[A], rule);
    bench.publish(0, "a", 1);
    bench.publish(1, "x", 600);
    bench.publish(1, "a", 1);
    let queues = |found: &Found| found.takes.iter().map(|one| one.queue.get()).collect::<Vec<_>>();
    let found = bench.find_all(A, 1);
    assert_eq!((queues(&found), offsets(&found)), (vec![1], vec![600]));
    assert_eq!(queues(&bench.find_all(A, 1)), [0]);
}
