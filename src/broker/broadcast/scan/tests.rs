//! Scans over a machine on a simulated disk.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::base::{GroupName, LogIndex, LogPosition, Millis, Term, TopicName, UtcMillis};
use crate::command::{Command, CreateTopic, Publish, PublishItem, Retention};
use crate::env::sim::Sim;
use crate::machine::{Entry, Machine, Options};
use crate::message::{MessageIdHash, MessageKind, tag_hash};

const TOPIC: TopicId = TopicId::new(1);

struct Bench {
    machine: Machine,
    next: u64,
    end: LogPosition,
}

impl Bench {
    fn new(queues: u32) -> Self {
        let env = Sim::new(3).env();
        env.disk.create_dir_all(Path::new("/node")).unwrap();
        let machine = Machine::open(&env, Path::new("/node/machine"), Options::default()).unwrap();
        let mut bench = Self { machine, next: 0, end: LogPosition::ZERO };
        let (name, kinds) = (TopicName::new("news").unwrap(), vec![MessageKind::Normal]);
        bench.apply(&Command::CreateTopic(CreateTopic { name, queues, kinds, keep: None }));
        bench
    }

    fn apply(&mut self, command: &Command) {
        let command = command.encode();
        let position = self.end.plus(40);
        self.end = position.plus(command.len() as u64);
        let (index, term) = (LogIndex::new(self.next), Term::new(1));
        self.next += 1;
        let stamp = UtcMillis::new(1_000_000);
        let entry = Entry { index, term, stamp, position, end: self.end, command };
        self.machine.apply(&entry).unwrap();
    }

    fn publish(&mut self, queue: u32, tag: &str, (count, bytes): (usize, usize)) {
        let item = PublishItem {
            queue: QueueId::new(queue),
            kind: MessageKind::Normal,
            id_hash: MessageIdHash::new(0),
            body_crc: 0,
            tag_hash: tag_hash(Some(tag)),
            group_hash: 0,
            record: Bytes::from(vec![0; bytes]),
            record_at: 0,
        };
        let items = vec![item; count];
        self.apply(&Command::Publish(Publish { topic: TOPIC, dedup: false, items }));
    }

    /// What one look finds: queue and offset of each, how many are lost, and whether there is more.
    fn look(&self, filter: &str, progress: &mut Scan) -> (Vec<(u32, u64)>, u64, bool) {
        let filter = Filter::tags(filter).unwrap();
        let found = scan(self.machine.state(), TOPIC, &filter, progress).unwrap().unwrap();
        let place = |(queue, offset, _): &(QueueId, QueueOffset, Unit)| (queue.get(), offset.get());
        (found.units.iter().map(place).collect(), found.lost, found.more)
    }
}

fn reading(positions: &[(u32, u64)], max: u32, turn: u32) -> Scan {
    let one = |(queue, offset): &(u32, u64)| (QueueId::new(*queue), QueueOffset::new(*offset));
    let wish = Wish {
        topic: TopicName::new("news").unwrap(),
        group: GroupName::new("caches").unwrap(),
        filter: String::new(),
        positions: positions.iter().map(one).collect(),
        max,
        poll: Duration::ZERO,
    };
    Scan::new(&wish, turn)
}

fn next(scan: &Scan) -> Vec<(u32, u64)> {
    scan.next().into_iter().map(|(queue, offset)| (queue.get(), offset.get())).collect()
}

#[test]
fn a_look_goes_on_from_the_positions_and_never_beyond_its_bounds() {
    let mut bench = Bench::new(3);
    bench.publish(0, "a", (3, 8));
    bench.publish(2, "a", (2, 8));
    let mut all = reading(&[(0, 1)], 9, 0);
    assert_eq!(bench.look("*", &mut all), (vec![(0, 1), (0, 2), (2, 0), (2, 1)], 0, false));
    assert_eq!(next(&all), [(0, 3), (1, 0), (2, 2)]);
    assert_eq!(bench.look("*", &mut all), (vec![], 0, false));
    // Each queue gets its turn to be the first.
    let mut few = reading(&[], 3, 2);
    assert_eq!(bench.look("*", &mut few), (vec![(2, 0), (2, 1), (0, 0)], 0, true));
    assert_eq!(next(&few), [(0, 1), (1, 0), (2, 2)]);
    // A position of a queue that there is not, and one behind the end of another.
    let mut odd = reading(&[(0, 9), (7, 1)], 9, 0);
    assert_eq!(bench.look("*", &mut odd).0, [(2, 0), (2, 1)]);
    assert_eq!(next(&odd), [(0, 3), (1, 0), (2, 2)]);
}

#[test]
fn what_the_filter_does_not_want_is_passed_by() {
    let mut bench = Bench::new(1);
    bench.publish(0, "a", (2, 8));
    bench.publish(0, "b", (2, 8));
    bench.publish(0, "a", (1, 8));
    let mut scan = reading(&[], 2, 0);
    assert_eq!(bench.look("b", &mut scan), (vec![(0, 2), (0, 3)], 0, false));
    assert_eq!(bench.look("b", &mut reading(&[(0, 4)], 2, 0)), (vec![], 0, false));
    // A long run of them ends a look, and the next one goes on.
    bench.publish(0, "a", (SCAN_MAX, 8));
    bench.publish(0, "b", (1, 8));
    let mut scan = reading(&[(0, 4)], 2, 0);
    assert_eq!(bench.look("b", &mut scan), (vec![], 0, true));
    let last = 5 + SCAN_MAX as u64;
    assert_eq!(bench.look("b", &mut scan), (vec![(0, last)], 0, false));
}

#[test]
fn an_answer_carries_so_many_bytes_but_at_least_one_message() {
    let mut bench = Bench::new(2);
    let large = BYTES_MAX / 2 - 1;
    bench.publish(0, "a", (2, large));
    bench.publish(1, "a", (2, large));
    let mut scan = reading(&[], 9, 0);
    assert_eq!(bench.look("*", &mut scan), (vec![(0, 0), (0, 1)], 0, true));
    assert_eq!(next(&scan), [(0, 2), (1, 0)]);
    bench.publish(0, "a", (1, BYTES_MAX + 1));
    let mut scan = reading(&[(0, 2), (1, 2)], 9, 0);
    assert_eq!(bench.look("*", &mut scan).0, [(0, 2)]);
}

#[test]
fn what_retention_took_is_lost_and_said() {
    let mut bench = Bench::new(1);
    let time = Millis::from_secs(60);
    bench.apply(&Command::Retain(Retention { stride: 1000, time, bytes: 0, moved_max: 20 }));
    while bench.machine.state().marks().count() == 0 {
        bench.publish(0, "a", (1, 100));
    }
    let end = bench.machine.state().queue_end(TOPIC, QueueId::new(0)).get();
    let mark = bench.machine.state().marks().next().unwrap().index;
    bench.apply(&Command::PurgeIntent { mark });
    bench.publish(0, "a", (1, 8));
    let mut scan = reading(&[(0, 2)], 9, 0);
    assert_eq!(bench.look("*", &mut scan), (vec![(0, end)], end - 2, false));
    assert_eq!(bench.look("*", &mut scan), (vec![], 0, false), "they are counted once");
}
