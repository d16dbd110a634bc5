//! Deaths and redrives under a front that moves, with a small quota, restarts and power cuts: whatever
//! is a dead letter has its record, and every message is in one place.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use crate::base::{Millis, QueueId, QueueOffset};
use crate::command::{
    Ack, Command, Delivery, GiveUp, Handle, Hold, Redrive, Redriven, Relocation, Reply, Retention,
    UpdateGroup,
};
use crate::machine::tests::{Bench, names};
use crate::machine::{HandleState, Standing};

const QUEUE: QueueId = QueueId::new(0);
/// Room for a few records of eight bytes.
const LIMIT: u64 = 60;

#[derive(Clone, Debug)]
enum Step {
    Publish { count: usize },
    Take { from: usize, count: usize },
    Ack { pick: usize },
    Fail { pick: usize, give_up: bool },
    Redrive { pick: usize },
    Wait { millis: u64 },
    Purge,
    DropLetters,
    Restart { checkpoint: bool, cut: Option<u64> },
}

fn step() -> impl Strategy<Value = Step> {
    let pick = any::<usize>();
    prop_oneof![
        6 => (1..5_usize).prop_map(|count| Step::Publish { count }),
        8 => (0..4_usize, 1..5_usize).prop_map(|(from, count)| Step::Take { from, count }),
        3 => pick.prop_map(|pick| Step::Ack { pick }),
        8 => (pick, any::<bool>()).prop_map(|(pick, give_up)| Step::Fail { pick, give_up }),
        4 => pick.prop_map(|pick| Step::Redrive { pick }),
        2 => (1..15_000_u64).prop_map(|millis| Step::Wait { millis }),
        3 => Just(Step::Purge),
        1 => Just(Step::DropLetters),
        1 => (any::<bool>(), prop::option::of(any::<u64>()))
            .prop_map(|(checkpoint, cut)| Step::Restart { checkpoint, cut }),
    ]
}

struct Run {
    bench: Bench,
    handles: Vec<Handle>,
    end: u64,
}

impl Run {
    fn new() -> Self {
        let mut bench = Bench::with_topic(1);
        let time = Millis::from_secs(60);
        bench.apply(Command::Retain(Retention { stride: 700, time, bytes: 0, moved_max: LIMIT }));
        let update = UpdateGroup {
            group: names::GROUP,
            attempts_max: Some(2),
            backoff: None,
            dead_keep: None,
        };
        bench.apply(Command::UpdateGroup(update));
        Self { bench, handles: Vec::new(), end: 0 }
    }

    fn pick(&mut self, pick: usize) -> Option<Handle> {
        let state = self.bench.machine.state();
        self.handles.retain(|handle| state.handle_state(handle) == HandleState::Live);
        self.handles.get(pick % self.handles.len().max(1)).copied()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish { count } => {
                self.bench.publish(0, count);
                self.end += count as u64;
            }
            Step::Take { from, count } => self.take(from, count),
            Step::Ack { pick } => {
                let Some(handle) = self.pick(pick) else { return };
                self.bench.deliver(Delivery::Ack(Ack { handle }));
            }
            Step::Fail { pick, give_up } => {
                let Some(handle) = self.pick(pick) else { return };
                let otherwise = Millis::from_secs(1);
                self.bench.deliver(if give_up {
                    Delivery::GiveUp(GiveUp { handle, otherwise })
                } else {
                    Delivery::Hold(Hold { handle, invisible: Millis::ZERO })
                });
            }
            Step::Redrive { pick } => self.redrive(pick),
            Step::Wait { millis } => {
                self.bench.stamp += millis;
                self.bench.tick();
            }
            Step::Purge => self.purge(),
            Step::DropLetters => {
                let topic = self.bench.machine.state().dead_letters_topic(names::GROUP);
                let Some(topic) = topic else { return };
                self.bench.apply(Command::DeleteTopic { topic });
            }
            Step::Restart { checkpoint, cut } => self.restart(checkpoint, cut),
        }
        self.compare();
    }

    /// Some of what could be handed out.
    fn take(&mut self, from: usize, count: usize) {
        let state = self.bench.machine.state();
        let view = state.view(names::GROUP, names::TOPIC, QUEUE);
        let ready = view.ready.iter().map(|one| one.offset.get());
        let fresh = view.next.get()..self.end;
        let offsets: Vec<u64> = ready.chain(fresh).skip(from).take(count).collect();
        let checkout = self.bench.checkout("a", &offsets);
        let granted = match self.bench.deliver(Delivery::Checkout(checkout)) {
            crate::command::DeliveryOutcome::CheckedOut(checked_out) => checked_out.granted,
            // What is kept beyond the front is too much already.
            _ => return,
        };
        self.handles.extend(granted.iter().map(names::handle));
    }

    fn redrive(&mut self, pick: usize) {
        let state = self.bench.machine.state();
        let letters: Vec<_> = state.dead_letters(names::GROUP, None).collect();
        let Some((at, letter)) = letters.get(pick % letters.len().max(1)) else { return };
        let (at, offset) = (*at, letter.offset);
        let topic = state.dead_letters_topic(names::GROUP).unwrap();
        let redrive = Redrive { group: names::GROUP, topic, letters: vec![at, at] };
        let reply = self.bench.reply(Command::Redrive(redrive));
        let state = self.bench.machine.state();
        let standing = state.standing((names::GROUP, names::TOPIC), QUEUE, offset);
        match reply {
            Reply::Redriven(outcomes) if outcomes == [Redriven::Done, Redriven::NotFound] => {
                assert_eq!(standing, Standing::Ready);
            }
            Reply::Redriven(outcomes) => {
                assert_eq!(outcomes, [Redriven::Full, Redriven::Full]);
                assert_eq!(standing, Standing::Dead);
            }
            other => panic!("{other:?}"),
        }
    }

    /// The front goes to the newest mark but one, as a leader moves it.
    fn purge(&mut self) {
        let state = self.bench.machine.state();
        let Some(mark) = state.marks().rev().nth(1).map(|mark| mark.index) else { return };
        self.bench.apply(Command::PurgeIntent { mark });
        let needed: Vec<_> = self.bench.machine.state().to_relocate().collect();
        for (original, _) in needed {
            let record = Bytes::from_static(b"a record");
            let relocation = Relocation { original, record, record_at: 0 };
            self.bench.apply(Command::Relocate(vec![relocation]));
        }
        assert_eq!(self.bench.reply(Command::PurgeTo { mark }), Reply::Done);
    }

    fn restart(&mut self, checkpoint: bool, cut: Option<u64>) {
        let hashes = self.bench.hashes();
        if checkpoint {
            self.bench.checkpoint();
        }
        match cut {
            Some(seed) => self.bench.sim.disk.power_cut(seed),
            None => self.bench.sim.disk.kill(),
        }
        self.bench.restart();
        assert_eq!(self.bench.hashes(), hashes);
    }

    /// The bench has checked the state's tables against each other already.
    fn compare(&self) {
        let state = self.bench.machine.state();
        let front = state.floor().map(|floor| floor.end).unwrap_or_default();
        let pair = (names::GROUP, names::TOPIC);
        let mut dead = BTreeMap::new();
        for (at, letter) in state.dead_letters(names::GROUP, None) {
            assert!(state.locate(letter.unit).position >= front, "a record is gone");
            assert!(dead.insert(letter.offset, at).is_none(), "two letters of one message");
        }
        for offset in 0..self.end {
            let offset = QueueOffset::new(offset);
            let standing = state.standing(pair, QUEUE, offset);
            assert_eq!(standing == Standing::Dead, dead.contains_key(&offset), "{offset}");
        }
        // Units of the topic stay readable until the topic starts behind them.
        let Some(topic) = state.dead_letters_topic(names::GROUP) else { return };
        let (start, end) = (state.queue_start(topic, QUEUE), state.queue_end(topic, QUEUE));
        let count = usize::try_from(end.since(start)).unwrap();
        for unit in state.units(topic, QUEUE, start, count).unwrap_or_default() {
            assert!(state.locate(unit).position >= front, "the record of a unit is gone");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_dead_keeps_its_record(steps in prop::collection::vec(step(), 1..140)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        run.restart(false, Some(0));
    }
}
