//! Random delayed messages against a model that knows each of them, with the log's front moving,
//! restarts, power cuts, and replicas that begin with the state.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use crate::base::{LogPosition, Millis, QueueId, UtcMillis};
use crate::command::{
    Command, Relocation, Reply, Retention, Schedule, ScheduleItem, Scheduled, TimerKey,
    TimerOutcome, Unit,
};
use crate::machine::tests::{Bench, names};
use crate::message::{MessageIdHash, MessageKind};

#[derive(Clone, Debug)]
enum Step {
    /// Lengths of time from now, by which some have passed.
    Schedule {
        after: Vec<i64>,
    },
    Recall {
        pick: usize,
        by_place: bool,
    },
    Reschedule {
        pick: usize,
        after: i64,
    },
    Tick {
        limit: u32,
    },
    Wait {
        millis: u64,
    },
    /// Messages that are visible at once, so that the log grows.
    Publish {
        count: usize,
    },
    /// The front moves to the newest mark but one.
    Purge,
    Checkpoint,
    Restart,
    PowerCut {
        seed: u64,
    },
    /// Another replica takes the state over and goes on with it.
    Replace,
}

fn step() -> impl Strategy<Value = Step> {
    // Within a fine bucket, some buckets away, and beyond a coarse one.
    let after = || prop_oneof![-50..50_i64, 0..5_000_i64, 900_000..3_500_000_i64];
    let pick = 0..40_usize;
    prop_oneof![
        6 => prop::collection::vec(after(), 1..5).prop_map(|after| Step::Schedule { after }),
        3 => (pick.clone(), any::<bool>())
            .prop_map(|(pick, by_place)| Step::Recall { pick, by_place }),
        2 => (pick, after()).prop_map(|(pick, after)| Step::Reschedule { pick, after }),
        5 => (0..6_u32).prop_map(|limit| Step::Tick { limit }),
        4 => prop_oneof![0..60_u64, 0..3_000_u64, 0..2_000_000_u64]
            .prop_map(|millis| Step::Wait { millis }),
        2 => (1..20_usize).prop_map(|count| Step::Publish { count }),
        2 => Just(Step::Purge),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
        1 => any::<u64>().prop_map(|seed| Step::PowerCut { seed }),
        1 => Just(Step::Replace),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending(u64),
    Fired,
    Recalled,
}

struct Run {
    bench: Bench,
    /// By place: the message's number, and what became of it.
    messages: BTreeMap<LogPosition, (u128, State)>,
    /// What queue 0 was ever given.
    shown: Vec<LogPosition>,
    next: u128,
}

fn key(id: u128, position: Option<LogPosition>) -> TimerKey {
    TimerKey { topic: names::TOPIC, id_hash: MessageIdHash::new(id), position }
}

impl Run {
    fn new() -> Self {
        let mut bench = Bench::with_topic(2);
        let moved_max = 1 << 40;
        let time = Millis::from_secs(60);
        bench.apply(Command::Retain(Retention { stride: 700, time, bytes: 0, moved_max }));
        Self { bench, messages: BTreeMap::new(), shown: Vec::new(), next: 1 }
    }

    fn at(&self, after: i64) -> u64 {
        self.bench.stamp.saturating_add_signed(after)
    }

    fn pick(&self, pick: usize) -> Option<(LogPosition, u128, State)> {
        let all = self.messages.iter().rev().map(|(place, (id, state))| (*place, *id, *state));
        all.take(40).nth(pick % self.messages.len().clamp(1, 40))
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Schedule { after } => self.schedule(after),
            Step::Recall { pick, by_place } => {
                let Some((place, id, state)) = self.pick(*pick) else { return };
                let timer = key(id, by_place.then_some(place));
                let expected = match state {
                    State::Pending(_) | State::Recalled => TimerOutcome::Recalled,
                    State::Fired => TimerOutcome::AlreadyFired,
                };
                assert_eq!(self.bench.reply(Command::Recall(timer)), Reply::Timer(expected));
                if let State::Pending(_) = state {
                    self.messages.insert(place, (id, State::Recalled));
                }
            }
            Step::Reschedule { pick, after } => {
                let Some((place, id, state)) = self.pick(*pick) else { return };
                let due = self.at(*after);
                let timer = key(id, Some(place));
                let expected = match state {
                    State::Pending(_) => TimerOutcome::Rescheduled,
                    State::Recalled => TimerOutcome::Recalled,
                    State::Fired => TimerOutcome::AlreadyFired,
                };
                let asked = Command::Reschedule { timer, due: UtcMillis::new(due) };
                assert_eq!(self.bench.reply(asked), Reply::Timer(expected));
                if let State::Pending(_) = state {
                    self.messages.insert(place, (id, State::Pending(due)));
                }
            }
            Step::Tick { limit } => self.tick(*limit),
            Step::Wait { millis } => self.bench.stamp += millis,
            Step::Publish { count } => drop(self.bench.publish(1, *count)),
            Step::Purge => self.purge(),
            Step::Checkpoint => drop(self.bench.checkpoint()),
            Step::Restart => self.restart(None),
            Step::PowerCut { seed } => self.restart(Some(*seed)),
            Step::Replace => self.replace(),
        }
        self.compare();
    }

    fn schedule(&mut self, after: &[i64]) {
        let first = self.next;
        let item = |(due, id): (u64, u128)| {
            let mut item = names::item(0, id);
            item.kind = MessageKind::Delay;
            ScheduleItem { due: UtcMillis::new(due), item }
        };
        let dues: Vec<u64> = after.iter().map(|after| self.at(*after)).collect();
        let items = dues.iter().copied().zip(first..).map(item).collect();
        self.next += dues.len() as u128;
        let schedule = Schedule { topic: names::TOPIC, dedup: true, items };
        let Reply::Scheduled(scheduled) = self.bench.reply(Command::Schedule(schedule)) else {
            panic!("the message is taken");
        };
        for ((due, Scheduled { position, repeated }), id) in dues.iter().zip(scheduled).zip(first..)
        {
            assert!(!repeated);
            let state = if *due <= self.bench.stamp {
                self.shown.push(position);
                State::Fired
            } else {
                State::Pending(*due)
            };
            self.messages.insert(position, (id, state));
        }
    }

    fn tick(&mut self, limit: u32) {
        let mut due: Vec<(u64, LogPosition)> = self
            .messages
            .iter()
            .filter_map(|(place, (_, state))| match state {
                State::Pending(due) if *due <= self.bench.stamp => Some((*due, *place)),
                _ => None,
            })
            .collect();
        due.sort_unstable();
        due.truncate(limit as usize);
        let fired = u32::try_from(due.len()).unwrap();
        assert_eq!(self.bench.reply(Command::Tick { limit }), Reply::Ticked { fired });
        for (_, place) in due {
            self.shown.push(place);
            self.messages.get_mut(&place).unwrap().1 = State::Fired;
        }
    }

    fn purge(&mut self) {
        let marks: Vec<_> = self.bench.machine.state().marks().map(|mark| mark.index).collect();
        let Some(mark) = marks.len().checked_sub(2).map(|at| marks[at]) else { return };
        self.bench.apply(Command::PurgeIntent { mark });
        let needed: Vec<_> = self.bench.machine.state().to_relocate().collect();
        let relocation = |(original, unit): &(LogPosition, Unit)| {
            assert_eq!(unit.size, 8, "the size of each record");
            let record = Bytes::from_static(b"a record");
            Relocation { original: *original, record, record_at: 0 }
        };
        let relocations = needed.iter().map(relocation).collect();
        self.bench.apply(Command::Relocate(relocations));
        assert_eq!(self.bench.reply(Command::PurgeTo { mark }), Reply::Done);
    }

    fn restart(&mut self, cut: Option<u64>) {
        let hashes = self.bench.hashes();
        match cut {
            Some(seed) => self.bench.sim.disk.power_cut(seed),
            None => self.bench.sim.disk.kill(),
        }
        self.bench.restart();
        assert_eq!(self.bench.hashes(), hashes);
    }

    /// A replica that takes the state over has the same.
    fn replace(&mut self) {
        let snapshot = self.bench.machine.freeze_for_peers().unwrap().snapshot();
        let mut late = Bench::new();
        late.machine.install(&snapshot).unwrap();
        assert_eq!(late.machine.state().hash(), self.bench.machine.state().hash());
    }

    fn compare(&self) {
        let state = self.bench.machine.state();
        let queue = QueueId::new(0);
        let (start, end) =
            (state.queue_start(names::TOPIC, queue), state.queue_end(names::TOPIC, queue));
        assert_eq!(end.get(), self.shown.len() as u64, "each fires once");
        let units = state.units(names::TOPIC, queue, start, usize::MAX).unwrap();
        let places: Vec<_> = units.iter().map(|unit| unit.position).collect();
        assert_eq!(places, self.shown[usize::try_from(start.get()).unwrap()..]);
        // Whatever is visible or pending has its record in the log.
        let floor = state.floor().map(|floor| floor.end).unwrap_or_default();
        let pending = self.messages.iter().filter_map(|(place, (_, state))| match state {
            State::Pending(due) => Some((*due, *place)),
            _ => None,
        });
        let pending: Vec<_> = pending.collect();
        assert_eq!(state.delayed(), pending.len());
        let needed = pending.iter().map(|(_, place)| *place).chain(places);
        for place in needed {
            let unit = Unit { position: place, ..names::NO_UNIT };
            assert!(state.locate(unit).position >= floor, "{place} lies before the log");
        }
        let first = pending.iter().map(|(due, _)| UtcMillis::new(*due)).min();
        let next = state.next_due();
        assert!(first.is_none() || next.is_some_and(|next| Some(next) <= first), "{next:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_delays_match_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        // In the end everything fires, in order.
        run.bench.stamp += 10_000_000;
        for _ in 0..steps.len() * 5 {
            run.tick(3);
        }
        run.compare();
        prop_assert_eq!(run.bench.machine.state().delayed(), 0);
    }
}
