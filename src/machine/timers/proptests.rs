//! Random delayed messages against a model that knows each of them, with the log's front moving,
//! restarts, power cuts, and replicas that begin with the state.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use crate::base::{LogPosition, Millis, QueueId, TopicId, UtcMillis};
use crate::command::{
    Command, Relocation, Reply, Retention, Schedule, ScheduleItem, Scheduled, TimerKey,
    TimerOutcome, Unit,
};
use crate::machine::Ahead;
use crate::machine::tests::{Bench, names};
use crate::message::{MessageIdHash, MessageKind};

#[derive(Clone, Debug)]
enum Step {
    /// Lengths of time from now, by which some have passed.
    Schedule {
        after: Vec<i64>,
    },
    /// One more message of an id that others have.
    Repeat {
        id: u128,
        after: i64,
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
    /// The leader brings forward what is due soon.
    Forward {
        within: u64,
    },
    /// The topic goes, and one of the same name is made.
    DeleteTopic,
    Checkpoint,
    Restart,
    PowerCut {
        seed: u64,
    },
    /// Another replica takes the state over, and applies from then on what this one does.
    Replace,
}

fn step() -> impl Strategy<Value = Step> {
    // Within a fine bucket, some buckets away, and beyond a coarse one.
    let after = || prop_oneof![-50..50_i64, 0..5_000_i64, 900_000..3_500_000_i64];
    let pick = 0..40_usize;
    prop_oneof![
        6 => prop::collection::vec(after(), 1..5).prop_map(|after| Step::Schedule { after }),
        3 => (1..4_u128, after()).prop_map(|(id, after)| Step::Repeat { id, after }),
        4 => (pick.clone(), any::<bool>())
            .prop_map(|(pick, by_place)| Step::Recall { pick, by_place }),
        2 => (pick, after()).prop_map(|(pick, after)| Step::Reschedule { pick, after }),
        5 => (0..6_u32).prop_map(|limit| Step::Tick { limit }),
        4 => prop_oneof![0..60_u64, 0..3_000_u64, 0..2_000_000_u64]
            .prop_map(|millis| Step::Wait { millis }),
        2 => (1..20_usize).prop_map(|count| Step::Publish { count }),
        2 => Just(Step::Purge),
        2 => (0..1_000_000_u64).prop_map(|within| Step::Forward { within }),
        1 => Just(Step::DeleteTopic),
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

/// What the model knows of a message.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: u128,
    state: State,
    /// Where its record lies, while it is pending.
    now: LogPosition,
}

struct Run {
    bench: Bench,
    /// A replica that began with the state.
    late: Option<Bench>,
    topic: TopicId,
    /// By place, of the topic that there is.
    messages: BTreeMap<LogPosition, Known>,
    /// How messages ended, in this order: when, where their records lay first, whether they fired.
    ends: Vec<(u64, LogPosition, bool)>,
    /// What queue 0 was ever given: where the records lay then.
    shown: Vec<LogPosition>,
    next: u128,
}

/// The first topic grows the log; this is the one with delayed messages.
fn create() -> Command {
    names::topic("later", 1)
}

impl Run {
    fn new() -> Self {
        let mut bench = Bench::with_topic(2);
        let moved_max = 1 << 40;
        let time = Millis::from_secs(60);
        bench.apply(Command::Retain(Retention { stride: 700, time, bytes: 0, moved_max }));
        bench.apply(create());
        let (messages, ends, shown) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { bench, late: None, topic: TopicId::new(2), messages, ends, shown, next: 1_000 }
    }

    fn key(&self, id: u128, position: Option<LogPosition>) -> TimerKey {
        TimerKey { topic: self.topic, id_hash: MessageIdHash::new(id), position }
    }

    fn end(&mut self, place: LogPosition, state: State) {
        self.messages.get_mut(&place).expect("it is known").state = state;
        self.ends.push((self.bench.stamp, place, state == State::Fired));
    }

    /// The oldest pending message of an id.
    fn pending(&self, id: u128) -> Option<LogPosition> {
        let pending = |known: &Known| known.id == id && matches!(known.state, State::Pending(_));
        self.messages.iter().find(|(_, known)| pending(known)).map(|(place, _)| *place)
    }

    /// How the latest message of an id ended, of which none is pending.
    fn ended(&self, id: u128) -> TimerOutcome {
        let last = |fired| {
            let of_id = |end: &&(u64, LogPosition, bool)| {
                end.2 == fired && self.messages.get(&end.1).is_some_and(|known| known.id == id)
            };
            self.ends.iter().rev().find(of_id).map(|end| (end.0, end.1))
        };
        if last(true) > last(false) { TimerOutcome::AlreadyFired } else { TimerOutcome::Recalled }
    }

    fn mark(&self) -> LogPosition {
        let state = self.bench.machine.state();
        let mark = state.marks().last().map(|mark| mark.end);
        mark.or_else(|| state.floor().map(|floor| floor.end)).unwrap_or_default()
    }

    fn at(&self, after: i64) -> u64 {
        self.bench.stamp.saturating_add_signed(after)
    }

    fn pick(&self, pick: usize) -> Option<(LogPosition, Known)> {
        let all = self.messages.iter().rev().map(|(place, known)| (*place, *known));
        all.take(40).nth(pick % self.messages.len().clamp(1, 40))
    }

    fn recall(&mut self, pick: usize, by_place: bool) {
        let Some((place, Known { id, state, .. })) = self.pick(pick) else { return };
        let (meant, expected) = if by_place {
            match state {
                State::Pending(_) => (Some(place), TimerOutcome::Recalled),
                State::Recalled => (None, TimerOutcome::Recalled),
                State::Fired => (None, TimerOutcome::AlreadyFired),
            }
        } else {
            let meant = self.pending(id);
            (meant, meant.map_or_else(|| self.ended(id), |_| TimerOutcome::Recalled))
        };
        let timer = self.key(id, by_place.then_some(place));
        assert_eq!(self.bench.reply(Command::Recall(timer)), Reply::Timer(expected));
        if let Some(meant) = meant {
            self.end(meant, State::Recalled);
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Schedule { after } => self.schedule(after),
            Step::Repeat { id, after } => {
                let dues = vec![(self.at(*after), *id)];
                self.take_in(&dues, false);
            }
            Step::Recall { pick, by_place } => self.recall(*pick, *by_place),
            Step::Reschedule { pick, after } => {
                let Some((place, Known { id, state, .. })) = self.pick(*pick) else { return };
                let due = self.at(*after);
                let timer = self.key(id, Some(place));
                let expected = match state {
                    State::Pending(_) => TimerOutcome::Rescheduled,
                    State::Recalled => TimerOutcome::Recalled,
                    State::Fired => TimerOutcome::AlreadyFired,
                };
                let asked = Command::Reschedule { timer, due: UtcMillis::new(due) };
                assert_eq!(self.bench.reply(asked), Reply::Timer(expected));
                if let State::Pending(_) = state {
                    self.messages.get_mut(&place).unwrap().state = State::Pending(due);
                }
            }
            Step::Tick { limit } => self.tick(*limit),
            Step::Wait { millis } => self.bench.stamp += millis,
            Step::Publish { count } => drop(self.bench.publish(1, *count)),
            Step::Purge => self.purge(),
            Step::Forward { within } => {
                let until = UtcMillis::new(self.bench.stamp + within);
                let state = self.bench.machine.state();
                let (found, all) = state.delayed_ahead(&mut Ahead::default(), until, usize::MAX);
                assert!(all);
                self.relocate(&found);
            }
            Step::DeleteTopic => {
                assert_eq!(
                    self.bench.reply(Command::DeleteTopic { topic: self.topic }),
                    Reply::Done
                );
                self.bench.apply(create());
                self.topic = TopicId::new(self.topic.get() + 1);
                self.messages.clear();
                self.ends.clear();
                self.shown.clear();
            }
            Step::Checkpoint => drop(self.bench.checkpoint()),
            Step::Restart => self.restart(None),
            Step::PowerCut { seed } => self.restart(Some(*seed)),
            Step::Replace => self.replace(),
        }
        self.compare();
        self.compare_late();
    }

    fn schedule(&mut self, after: &[i64]) {
        let dues: Vec<_> = after.iter().map(|after| self.at(*after)).zip(self.next..).collect();
        self.next += dues.len() as u128;
        self.take_in(&dues, true);
    }

    /// Messages by when they are due, and their ids.
    fn take_in(&mut self, dues: &[(u64, u128)], dedup: bool) {
        let item = |(due, id): &(u64, u128)| {
            let mut item = names::item(0, *id);
            item.kind = MessageKind::Delay;
            ScheduleItem { due: UtcMillis::new(*due), item }
        };
        let items = dues.iter().map(item).collect();
        let schedule = Schedule { topic: self.topic, dedup, items };
        let Reply::Scheduled(scheduled) = self.bench.reply(Command::Schedule(schedule)) else {
            panic!("the message is taken");
        };
        for ((due, id), Scheduled { position, repeated }) in dues.iter().zip(scheduled) {
            assert!(!repeated);
            let (id, now) = (*id, position);
            self.messages.insert(position, Known { id, state: State::Pending(*due), now });
            if *due <= self.bench.stamp {
                self.shown.push(position);
                self.end(position, State::Fired);
            }
        }
    }

    fn tick(&mut self, limit: u32) {
        let mut due: Vec<(u64, LogPosition)> = self
            .messages
            .iter()
            .filter_map(|(place, known)| match known.state {
                State::Pending(due) if due <= self.bench.stamp => Some((due, *place)),
                _ => None,
            })
            .collect();
        due.sort_unstable();
        due.truncate(limit as usize);
        let fired = u32::try_from(due.len()).unwrap();
        let mark = self.mark();
        assert_eq!(self.bench.reply(Command::Tick { limit }), Reply::Ticked { fired });
        for (_, place) in due {
            let now = self.messages[&place].now;
            self.shown.push(if now < mark { place } else { now });
            self.end(place, State::Fired);
        }
    }

    fn relocate(&mut self, needed: &[(LogPosition, Unit)]) {
        let relocation = |(original, unit): &(LogPosition, Unit)| {
            assert_eq!(unit.size, 8, "the size of each record");
            let record = Bytes::from_static(b"a record");
            Relocation { original: *original, record, record_at: 0 }
        };
        let relocations = needed.iter().map(relocation).collect();
        self.bench.apply(Command::Relocate(relocations));
        let state = self.bench.machine.state();
        for (place, known) in &mut self.messages {
            if matches!(known.state, State::Pending(_)) {
                known.now = state.locate(Unit { position: *place, ..names::NO_UNIT }).position;
            }
        }
    }

    fn purge(&mut self) {
        let marks: Vec<_> = self.bench.machine.state().marks().map(|mark| mark.index).collect();
        let Some(mark) = marks.len().checked_sub(2).map(|at| marks[at]) else { return };
        self.bench.apply(Command::PurgeIntent { mark });
        let needed: Vec<_> = self.bench.machine.state().to_relocate().collect();
        self.relocate(&needed);
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

    fn replace(&mut self) {
        let snapshot = self.bench.machine.freeze_for_peers().unwrap().snapshot();
        let mut late = Bench::new();
        late.machine.install(&snapshot).unwrap();
        self.late = Some(late);
    }

    /// What began with the state and what came to it entry by entry are the same.
    fn compare_late(&mut self) {
        let Some(late) = &mut self.late else { return };
        late.log.clone_from(&self.bench.log);
        late.catch_up();
        assert_eq!(late.machine.state().hash(), self.bench.machine.state().hash());
        let (now, due) = (late.machine.state().delayed(), self.bench.machine.state().delayed());
        assert_eq!(now, due);
    }

    fn compare(&self) {
        let state = self.bench.machine.state();
        let queue = QueueId::new(0);
        let (start, end) =
            (state.queue_start(self.topic, queue), state.queue_end(self.topic, queue));
        assert_eq!(end.get(), self.shown.len() as u64, "each fires once");
        let units = state.units(self.topic, queue, start, usize::MAX).unwrap();
        let places: Vec<_> = units.iter().map(|unit| unit.position).collect();
        assert_eq!(places, self.shown[usize::try_from(start.get()).unwrap()..]);
        // Whatever is visible or pending has its record in the log.
        let floor = state.floor().map(|floor| floor.end).unwrap_or_default();
        let pending = self.messages.iter().filter_map(|(place, known)| match known.state {
            State::Pending(due) => Some((due, *place)),
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
        run.compare_late();
        prop_assert_eq!(run.bench.machine.state().delayed(), 0);
    }
}
