//! A leader's steps over a machine on a simulated disk, with a log that the test makes up.

use std::path::Path;

use bytes::Bytes;

use super::*;
use crate::base::{QueueId, Term, TopicName};
use crate::command::{CreateTopic, PublishItem, Schedule, ScheduleItem};
use crate::env::sim::Sim;
use crate::machine::{Entry, Machine, Options};
use crate::message::{MessageIdHash, MessageKind};

const TOPIC: TopicId = TopicId::new(1);
const RECORD: Bytes = Bytes::from_static(&[7; 10_000]);
const KEPT: Retention =
    Retention { stride: 100_000, time: Millis::ZERO, bytes: 8_000_000, moved_max: 1 << 40 };

struct Bench {
    machine: Machine,
    next: u64,
    end: LogPosition,
    relocated: usize,
}

impl Bench {
    fn new() -> Self {
        let env = Sim::new(3).env();
        env.disk.create_dir_all(Path::new("/node")).unwrap();
        let machine = Machine::open(&env, Path::new("/node/machine"), Options::default()).unwrap();
        let mut bench = Self { machine, next: 0, end: LogPosition::ZERO, relocated: 0 };
        let (name, kinds) = (TopicName::new("later").unwrap(), vec![MessageKind::Delay]);
        bench.apply(Command::CreateTopic(CreateTopic { name, queues: 1, kinds, keep: None }));
        bench
    }

    fn apply(&mut self, command: Command) -> Reply {
        let command = command.encode();
        let position = self.end.plus(40);
        self.end = position.plus(command.len() as u64);
        let (index, term) = (LogIndex::new(self.next), Term::new(1));
        self.next += 1;
        let stamp = UtcMillis::new(1_000_000);
        let entry = Entry { index, term, stamp, position, end: self.end, command };
        self.machine.apply(&entry).unwrap().reply
    }

    /// Messages for much later, or for now.
    fn schedule(&mut self, count: usize, due: UtcMillis) {
        let item = PublishItem {
            queue: QueueId::new(0),
            kind: MessageKind::Delay,
            id_hash: MessageIdHash::new(0),
            body_crc: 0,
            tag_hash: 0,
            group_hash: 0,
            record: RECORD,
            record_at: 0,
        };
        for _ in 0..count {
            let items = vec![ScheduleItem { due, item: item.clone() }];
            let reply =
                self.apply(Command::Schedule(Schedule { topic: TOPIC, dedup: false, items }));
            assert!(matches!(reply, Reply::Scheduled(_)), "{reply:?}");
        }
    }

    /// What the leader does until nothing is left to do.
    fn keep(&mut self) {
        for _ in 0..200 {
            let state = self.machine.state();
            let command = match next(state, KEPT, RELOCATE_BYTES, state.stamp(), &Trimmed::new()) {
                Next::Nothing => return,
                Next::Propose(command) => command,
                Next::Relocate(needed) => {
                    self.relocated += needed.len();
                    let again = |(original, _): (LogPosition, Unit)| Relocation {
                        original,
                        record: RECORD,
                        record_at: 0,
                    };
                    Command::Relocate(needed.into_iter().map(again).collect())
                }
            };
            assert_eq!(self.apply(command), Reply::Done);
        }
        panic!("retention goes on for ever");
    }

    fn length(&self) -> u64 {
        let state = self.machine.state();
        state.log_end().since(state.floor().map(|floor| floor.end).unwrap_or_default())
    }
}

/// With more of them than the log may have bytes: each time that they are written again would be a
/// reason for the next.
#[test]
fn what_is_delayed_is_not_written_again_without_end() {
    let mut bench = Bench::new();
    bench.keep();
    bench.schedule(1_000, UtcMillis::new(u64::MAX));
    bench.keep();
    let needed = bench.machine.state().needed_bytes();
    assert!(needed >= KEPT.bytes);
    let allowed = bytes_allowed(KEPT.bytes, needed);
    for _ in 0..20 {
        // What leaves as soon as it may.
        bench.schedule(300, UtcMillis::ZERO);
        bench.keep();
        let most = allowed + 2 * KEPT.stride + RELOCATE_BYTES as u64;
        assert!(bench.length() <= most, "{} bytes of log", bench.length());
    }
    assert!(bench.machine.state().floor().is_some(), "the front moves on");
    assert_eq!(bench.machine.state().delayed(), 1_000);
    // For each byte that left, at most as many as there are for each byte that may leave.
    let most = 20 * 300 * needed / (KEPT.bytes / 4);
    assert!((bench.relocated as u64) < most, "{} records", bench.relocated);
}

/// The front is not to run away from who writes again what lies before it.
#[test]
fn an_intent_is_finished_before_the_next() {
    let mut bench = Bench::new();
    bench.keep();
    bench.schedule(300, UtcMillis::new(u64::MAX));
    bench.schedule(600, UtcMillis::ZERO);
    let state = bench.machine.state();
    let Next::Propose(intent @ Command::PurgeIntent { .. }) =
        next(state, KEPT, RELOCATE_BYTES, state.stamp(), &Trimmed::new())
    else {
        panic!("the log is too long");
    };
    bench.apply(intent);
    bench.schedule(100, UtcMillis::ZERO);
    let state = bench.machine.state();
    let next = next(state, KEPT, RELOCATE_BYTES, state.stamp(), &Trimmed::new());
    assert!(matches!(next, Next::Relocate(_)), "{next:?}");
}
