//! Scans over a machine on a simulated disk.

mod judged;
mod lines;
mod proptests;

use std::path::Path;

use bytes::Bytes;

use super::*;
use crate::base::{ClientId, GroupName, LogIndex, LogPosition, Millis, Term, TopicName, UtcMillis};
use crate::command::{
    Begin, Checkout, Command, CreateGroup, CreateTopic, Delivery, Grant, Granted, OrderRule,
    Publish, PublishItem, Reply, Reset, Subscribe,
};
use crate::env::sim::Sim;
use crate::filter::Properties;
use crate::machine::{Entry, Machine, Options, VIEW_MAX};
use crate::message::{MessageIdHash, MessageKind, tag_hash};

const GROUP: GroupId = GroupId::new(1);
const TOPIC: TopicId = TopicId::new(1);

struct Bench {
    machine: Machine,
    next: u64,
    end: LogPosition,
    stamp: u64,
    desk: Desk,
    queues: u32,
    /// The tag of each message, as its record would say.
    tags: BTreeMap<(QueueId, QueueOffset), String>,
    /// The id that the next checkout gets.
    next_checkout: u64,
}

impl Bench {
    /// A topic and a group of which members with these filters live.
    fn new(queues: u32, live: &[&str]) -> Self {
        Self::with_rule(queues, live, (OrderRule::default(), vec![MessageKind::Normal]))
    }

    /// A topic whose queues are priorities.
    fn with_priorities(queues: u32) -> Self {
        Self::with_rule(queues, &["*"], (OrderRule::default(), vec![MessageKind::Priority]))
    }

    fn with_rule(queues: u32, live: &[&str], (rule, kinds): (OrderRule, Vec<MessageKind>)) -> Self {
        let env = Sim::new(3).env();
        env.disk.create_dir_all(Path::new("/node")).unwrap();
        let machine = Machine::open(&env, Path::new("/node/machine"), Options::default()).unwrap();
        let end = LogPosition::ZERO;
        let desk = Desk::default();
        let (next, stamp, next_checkout) = (0, 1_000_000, 1);
        let tags = BTreeMap::new();
        let mut bench = Self { machine, next, end, stamp, desk, queues, tags, next_checkout };
        let name = TopicName::new("orders").unwrap();
        bench.apply(Command::CreateTopic(CreateTopic { name, queues, kinds, keep: None }));
        let name = GroupName::new("billing").unwrap();
        let backoff = vec![Millis::from_secs(1)].into();
        let begin = Begin::default();
        let create = CreateGroup { name, attempts_max: 16, backoff, rule, dead_keep: None, begin };
        bench.apply(Command::CreateGroup(create));
        for expression in live {
            let expression = (*expression).to_owned();
            bench.apply(Command::Subscribe(Subscribe { group: GROUP, topic: TOPIC, expression }));
        }
        bench
    }

    fn apply(&mut self, command: Command) -> Reply {
        let command = command.encode();
        let position = self.end.plus(40);
        self.end = position.plus(command.len() as u64);
        let (index, term) = (LogIndex::new(self.next), Term::new(1));
        self.next += 1;
        let stamp = UtcMillis::new(self.stamp);
        let entry = Entry { index, term, stamp, position, end: self.end, command };
        self.machine.apply(&entry).unwrap().reply
    }

    fn publish(&mut self, queue: u32, tag: &str, count: usize) {
        self.publish_items(queue, (0, tag), count);
    }

    /// One message of a message group.
    fn publish_line(&mut self, line: u64, tag: &str) {
        self.publish_items(0, (line, tag), 1);
    }

    fn publish_items(&mut self, queue: u32, of: (u64, &str), count: usize) {
        let items = vec![item(queue, of); count];
        let end = self.machine.state().queue_end(TOPIC, QueueId::new(queue)).get();
        for offset in end..end + count as u64 {
            let place = (QueueId::new(queue), QueueOffset::new(offset));
            self.tags.insert(place, of.1.to_owned());
        }
        self.apply(Command::Publish(Publish { topic: TOPIC, dedup: false, items }));
    }

    /// One message of each of these message groups.
    fn publish_items_in(&mut self, lines: &[u64]) {
        let item = |line: &u64| item(0, (*line, "t"));
        let items = lines.iter().map(item).collect();
        self.apply(Command::Publish(Publish { topic: TOPIC, dedup: false, items }));
    }

    /// The first look of a receive.
    fn find(&mut self, filter_text: &str, batch: usize) -> Found {
        self.look((filter_text, batch), &mut Hunt::default(), true)
    }

    fn look(&mut self, (text, batch): (&str, usize), hunt: &mut Hunt, takes: bool) -> Found {
        let filter = Filter::parse_normal(text).unwrap();
        let (group, topic, queues) = (GROUP, TOPIC, self.queues);
        let wish = Wish { group, topic, queues, filter: &filter, filter_text: text, batch };
        let state = self.machine.state();
        let found = match takes {
            true => self.desk.find(state, &wish, hunt),
            false => self.desk.peek(state, &wish, hunt),
        };
        found.unwrap()
    }

    /// Whether a watch would see something.
    fn peek(&mut self, filter: &str) -> bool {
        self.hunt((filter, 1), false).grants > 0
    }

    /// What a receive sees that looks again for as long as there is more to see.
    fn find_all(&mut self, filter: &str, batch: usize) -> Found {
        self.hunt((filter, batch), true)
    }

    fn hunt(&mut self, wish: (&str, usize), takes: bool) -> Found {
        let mut hunt = Hunt::default();
        for _ in 0..100 {
            let found = self.look(wish, &mut hunt, takes);
            if found.grants > 0 || !found.more {
                return found;
            }
            self.judge(&found);
        }
        panic!("the scan comes to no end");
    }

    /// What a receive finds out about tags before it hands out.
    fn tell_look_alikes(&mut self, found: &Found) {
        let mut ask = Vec::new();
        for Take { queue, grants, .. } in &found.takes {
            let asked = |grant: &Grant| {
                let (offset, unit) = (grant.offset, grant.unit);
                Asked { queue: *queue, offset, unit }
            };
            ask.extend(grants.iter().map(asked));
        }
        let found =
            Found { ask, version: found.version, live: found.live.clone(), ..Found::default() };
        self.judge(&found);
    }

    /// What the records say that a look asked for.
    fn judge(&mut self, found: &Found) {
        let judge = |asked: &Asked| {
            let tag = self.tags.get(&(asked.queue, asked.offset)).map(|tag| Tagged(tag));
            Judged { asked: *asked, wants: found.live.wants(tag.as_ref()) }
        };
        let judged: Vec<Judged> = found.ask.iter().map(judge).collect();
        self.desk.note(found.version, &judged);
    }

    /// Applies what was found as a checkout of `consumer`; answers how many were granted.
    fn check_out(&mut self, consumer: &str, found: &Found, invisible: Millis) -> usize {
        self.granted(consumer, found, invisible).len()
    }

    fn granted(&mut self, consumer: &str, found: &Found, invisible: Millis) -> Vec<Granted> {
        let checkout = Checkout {
            group: GROUP,
            topic: TOPIC,
            consumer: ClientId::new(consumer).unwrap(),
            attempt_id: None,
            invisible,
            auto_renew: false,
            subscription_version: self.machine.state().subscriptions(GROUP, TOPIC).0,
            takes: found.takes.clone(),
            epoch: found.epoch,
        };
        let reply = self.apply(Command::Deliveries(vec![Delivery::Checkout(checkout)]));
        self.desk.settle(&reserved(found));
        let Reply::Deliveries(outcomes) = reply else { panic!("{reply:?}") };
        let crate::command::DeliveryOutcome::CheckedOut(out) = &outcomes[0] else {
            panic!("{outcomes:?}")
        };
        out.granted.clone()
    }

    fn take(&mut self, filter: &str, batch: usize) -> Vec<u64> {
        let found = self.find_all(filter, batch);
        assert_eq!(self.check_out("c", &found, Millis::from_secs(10)), found.grants);
        offsets(&found)
    }

    /// Everything that was handed out becomes visible again.
    fn expire(&mut self) {
        self.stamp += 60_000;
        self.apply(Command::Tick { limit: 100_000 });
    }
}

/// A record's properties, with a tag alone.
struct Tagged<'a>(&'a str);

impl Properties for Tagged<'_> {
    fn property(&self, name: &str) -> Option<&str> {
        (name == "TAGS").then_some(self.0)
    }
}

fn item(queue: u32, (line, tag): (u64, &str)) -> PublishItem {
    PublishItem {
        queue: QueueId::new(queue),
        kind: MessageKind::Normal,
        id_hash: MessageIdHash::new(0),
        body_crc: 0,
        tag_hash: tag_hash(Some(tag)),
        group_hash: line,
        record: Bytes::from_static(b"a record"),
        record_at: 0,
    }
}

fn reserved(found: &Found) -> Vec<(QueueId, Vec<QueueOffset>)> {
    let offsets = |take: &Take| take.grants.iter().map(|grant| grant.offset).collect();
    found.takes.iter().map(|take| (take.queue, offsets(take))).collect()
}

fn offsets(found: &Found) -> Vec<u64> {
    let grants = found.takes.iter().flat_map(|take| &take.grants);
    grants.map(|grant| grant.offset.get()).collect()
}

#[test]
fn two_receives_at_once_never_get_the_same_message() {
    let mut bench = Bench::new(1, &["*"]);
    bench.publish(0, "a", 5);
    let first = bench.find("*", 3);
    let second = bench.find("*", 3);
    assert_eq!((offsets(&first), first.more), (vec![0, 1, 2], true));
    assert_eq!((offsets(&second), second.more), (vec![3, 4], false));
    // The first one came to nothing: its messages are there again.
    bench.desk.settle(&reserved(&first));
    assert_eq!(offsets(&bench.find("*", 9)), [0, 1, 2]);
}

#[test]
fn every_queue_gets_its_turn() {
    let mut bench = Bench::new(3, &["*"]);
    for queue in 0..3 {
        bench.publish(queue, "a", 2);
    }
    let queues: Vec<u32> = (0..6).map(|_| bench.find("*", 1).takes[0].queue.get()).collect();
    assert_eq!(queues, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn the_most_urgent_queue_goes_first_redeliveries_among_its_own() {
    let mut bench = Bench::with_priorities(3);
    for queue in 0..3 {
        bench.publish(queue, "a", 2);
    }
    let place = |take: &Take| (take.queue.get(), take.grants.len());
    let places = |found: &Found| found.takes.iter().map(place).collect::<Vec<_>>();
    let found = bench.find("*", 3);
    assert_eq!(places(&found), [(2, 2), (1, 1)]);
    assert_eq!(bench.check_out("c", &found, Millis::from_secs(10)), 3);
    assert_eq!(places(&bench.find("*", 1)), [(1, 1)]);
    bench.desk = Desk::default();
    bench.expire();
    // The two that come again are the most urgent, and what came meanwhile stands behind them.
    bench.publish(2, "a", 1);
    let found = bench.find("*", 9);
    assert_eq!(places(&found), [(2, 3), (1, 2), (0, 2)]);
    assert_eq!(offsets(&found)[..3], [0, 1, 2]);
}

#[test]
fn what_nobody_wants_is_skipped_and_what_others_want_is_kept() {
    let mut bench = Bench::new(1, &["a", "b"]);
    for tag in ["x", "b", "x", "x", "a", "x"] {
        bench.publish(0, tag, 1);
    }
    let found = bench.find("a", 8);
    assert_eq!(offsets(&found), [4]);
    let skips: Vec<_> =
        found.takes[0].skips.iter().map(|skip| (skip.from.get(), skip.to.get())).collect();
    assert_eq!(skips, [(0, 1), (2, 4), (5, 6)]);
    assert_eq!(bench.check_out("c", &found, Millis::from_secs(10)), 1);
    let view = bench.machine.state().view(GROUP, TOPIC, QueueId::new(0));
    assert_eq!(view.next.get(), 6);
    assert_eq!(view.free, [(QueueOffset::new(1), QueueOffset::new(2))]);
    assert_eq!(bench.take("b", 8), [1]);
}

#[test]
fn skips_found_without_a_message_to_grant_are_logged_with_the_next_grant() {
    let mut bench = Bench::new(1, &["a", "b"]);
    for tag in ["x", "b", "x"] {
        bench.publish(0, tag, 1);
    }
    assert_eq!(bench.find("a", 8).grants, 0);
    bench.publish(0, "a", 1);
    let found = bench.find("a", 8);
    assert_eq!((offsets(&found), found.takes[0].skips.len()), (vec![3], 2));
}

/// A slow member with another filter must not starve the rest, however many messages wait for it.
#[test]
fn a_wanted_message_is_found_behind_any_number_of_others() {
    let mut bench = Bench::new(1, &["a", "b"]);
    for _ in 0..(2 * SCAN_MAX / 1000 + 1) {
        bench.publish(0, "b", 1000);
    }
    bench.publish(0, "a", 1);
    let wanted = bench.machine.state().queue_end(TOPIC, QueueId::new(0)).get() - 1;
    assert_eq!(bench.take("a", 8), [wanted]);
    // It lies behind a gap now, which is not looked at again.
    let found = bench.find("a", 8);
    assert_eq!((found.grants, found.more), (0, false));
    bench.publish(0, "a", 1);
    assert_eq!(offsets(&bench.find("a", 8)), [wanted + 1]);
    assert_eq!(bench.take("b", 2), [0, 1]);
}

#[test]
fn a_redelivery_is_found_behind_any_number_of_others() {
    let mut bench = Bench::new(1, &["a", "b"]);
    let others = 2 * VIEW_MAX;
    bench.publish(0, "b", others);
    bench.publish(0, "a", 1);
    assert_eq!(bench.take("b", others).len(), others);
    assert_eq!(bench.take("a", 1), [others as u64]);
    bench.expire();
    assert_eq!(offsets(&bench.find("a", 1)), [others as u64]);
}

#[test]
fn passed_by_messages_are_found_behind_any_number_of_gaps() {
    let mut bench = Bench::new(1, &["a", "b", "c"]);
    let gaps = VIEW_MAX + 10;
    for _ in 0..gaps {
        bench.publish(0, "b", 1);
        bench.publish(0, "c", 1);
    }
    bench.publish(0, "a", 1);
    bench.publish(0, "c", 1);
    assert_eq!(bench.take("c", 2 * gaps).len(), gaps + 1);
    assert_eq!(bench.take("a", 1), [2 * gaps as u64]);
}

/// "Aa" and "BB" have the same hash: only the record tells them apart.
#[test]
fn look_alikes_of_a_tag_are_passed_by_and_stay_for_whom_they_are() {
    let mut bench = Bench::new(1, &["Aa", "BB"]);
    bench.publish(0, "BB", 2);
    bench.publish(0, "Aa", 1);
    let found = bench.find("Aa", 2);
    assert_eq!(offsets(&found), [0, 1], "the hash alone does not tell");
    bench.tell_look_alikes(&found);
    bench.desk.settle(&reserved(&found));
    assert_eq!(bench.take("Aa", 2), [2]);
    assert_eq!(bench.take("BB", 2), [0, 1]);
}

#[test]
fn a_new_subscription_voids_what_nobody_wanted() {
    let mut bench = Bench::new(1, &["a"]);
    bench.publish(0, "b", 3);
    assert_eq!(bench.find("a", 8).grants, 0);
    let expression = "b".to_owned();
    bench.apply(Command::Subscribe(Subscribe { group: GROUP, topic: TOPIC, expression }));
    assert_eq!(bench.take("b", 8), [0, 1, 2]);
}

#[test]
fn what_nobody_wants_stops_being_a_backlog_though_nothing_is_handed_out() {
    let mut bench = Bench::new(2, &["a"]);
    bench.publish(0, "b", 3);
    assert_eq!(bench.find_all("a", 9).grants, 0);
    assert_eq!(bench.machine.state().lag(GROUP, TOPIC).ready, 3);
    let start = Duration::from_secs(100);
    assert_eq!(bench.desk.overdue_skips(start), None, "the runs are new to the rounds");
    assert_eq!(bench.desk.overdue_skips(start + SKIP_AGE - Duration::from_millis(1)), None);
    let (under, takes) = bench.desk.overdue_skips(start + SKIP_AGE).unwrap();
    assert_eq!(under.version, bench.machine.state().subscriptions(GROUP, TOPIC).0);
    let found = Found { takes, ..Found::default() };
    assert_eq!(bench.check_out("nobody", &found, Millis::ZERO), 0);
    assert_eq!(bench.machine.state().lag(GROUP, TOPIC).ready, 0);
    assert_eq!(bench.desk.overdue_skips(start + SKIP_AGE * 2), None, "they are logged once");
}

fn reset(bench: &mut Bench, to: u64) {
    let offsets = vec![(QueueId::new(0), QueueOffset::new(to))];
    bench.apply(Command::Reset(Reset { group: GROUP, topic: TOPIC, offsets }));
}

#[test]
fn a_reset_voids_what_was_looked_at_and_what_nobody_wanted() {
    let mut bench = Bench::new(1, &["a"]);
    bench.publish(0, "b", 3);
    bench.publish(0, "a", 3);
    assert_eq!(bench.take("a", 2), [3, 4]);
    assert_eq!(bench.take("a", 2), [5]);
    assert_eq!(bench.find_all("a", 8).grants, 0, "everything was looked at");
    reset(&mut bench, 0);
    assert_eq!(bench.take("a", 8), [3, 4, 5]);
    // Forward again: nothing before it is offered.
    reset(&mut bench, 5);
    assert_eq!(bench.take("a", 8), [5]);
}

#[test]
fn skips_of_before_a_reset_are_not_logged_after_it() {
    let mut bench = Bench::new(1, &["a"]);
    bench.publish(0, "b", 3);
    assert_eq!(bench.find_all("a", 9).grants, 0);
    let start = Duration::from_secs(100);
    assert_eq!(bench.desk.overdue_skips(start), None);
    reset(&mut bench, 1);
    // The desk has not looked since: what it says holds for the epoch that it saw.
    let (under, takes) = bench.desk.overdue_skips(start + SKIP_AGE).unwrap();
    assert_eq!((under.epoch, takes.len()), (0, 1));
    let found = Found { takes, epoch: under.epoch, ..Found::default() };
    assert_eq!(bench.check_out("c", &found, Millis::ZERO), 0);
    assert_eq!(bench.machine.state().lag(GROUP, TOPIC).ready, 2, "apply dropped them");
    assert_eq!(bench.find_all("a", 9).grants, 0);
    assert_eq!(bench.desk.overdue_skips(start + SKIP_AGE * 2), None, "new to the rounds");
    let (under, takes) = bench.desk.overdue_skips(start + SKIP_AGE * 3).unwrap();
    let found = Found { takes, epoch: under.epoch, ..Found::default() };
    bench.check_out("c", &found, Millis::ZERO);
    assert_eq!(bench.machine.state().lag(GROUP, TOPIC).ready, 0);
}

#[test]
fn an_offer_under_way_is_void_after_a_reset_and_then_free() {
    let mut bench = Bench::new(1, &["*"]);
    bench.publish(0, "t", 4);
    let under_way = bench.find("*", 2);
    assert_eq!(offsets(&under_way), [0, 1]);
    reset(&mut bench, 1);
    // What is offered elsewhere is passed by until that checkout is over.
    let now = bench.find("*", 8);
    assert_eq!(offsets(&now), [2, 3]);
    assert_eq!(bench.check_out("late", &under_way, Millis::from_secs(10)), 0);
    assert_eq!(bench.check_out("now", &now, Millis::from_secs(10)), 2);
    assert_eq!(bench.take("*", 8), [1]);
}

#[test]
fn lines_are_free_after_a_reset() {
    let rule = OrderRule { order: Order::Single, ..OrderRule::default() };
    let mut bench = Bench::with_rule(1, &["*"], (rule, vec![MessageKind::Fifo]));
    bench.publish_line(7, "t");
    bench.publish_line(7, "t");
    bench.publish_line(8, "t");
    assert_eq!(bench.take("*", 8), [0, 2]);
    assert_eq!(bench.find("*", 8).grants, 0, "one is behind the first of its line");
    reset(&mut bench, 1);
    assert_eq!(bench.take("*", 8), [1, 2]);
    reset(&mut bench, 0);
    assert_eq!(bench.take("*", 8), [0, 2]);
}
