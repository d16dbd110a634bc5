//! Random transactions against a model that knows all of them, with restarts and power cuts.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use crate::base::{ClientId, LogPosition, Millis, QueueId, QueueOffset, UtcMillis};
use crate::command::{
    Checked, Command, Decided, Decider, Decision, End, HalfItem, Prepare, Prepared, Refusal,
    Relocation, Reply, Retention, Transaction,
};
use crate::machine::tests::{Bench, names};
use crate::message::MessageKind;

const CHECKS_MAX: u32 = 3;
const INTERVAL: u64 = 100;
const FIRST: u64 = 50;
const LIMIT: u64 = 100;

#[derive(Clone, Debug)]
enum Step {
    Prepare { id: u8 },
    End { id: u8, commit: bool },
    Check { id: u8, ahead: u32 },
    Resume { id: u8 },
    Publish,
    Wait { millis: u64 },
    Purge,
    Restart { checkpoint: bool, cut: Option<u64> },
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..24_u8;
    prop_oneof![
        6 => id.clone().prop_map(|id| Step::Prepare { id }),
        6 => (id.clone(), any::<bool>()).prop_map(|(id, commit)| Step::End { id, commit }),
        5 => (id.clone(), 0..3_u32).prop_map(|(id, ahead)| Step::Check { id, ahead }),
        1 => id.prop_map(|id| Step::Resume { id }),
        3 => Just(Step::Publish),
        2 => (1..200_u64).prop_map(|millis| Step::Wait { millis }),
        2 => Just(Step::Purge),
        1 => (any::<bool>(), prop::option::of(any::<u64>()))
            .prop_map(|(checkpoint, cut)| Step::Restart { checkpoint, cut }),
    ]
}

/// One transaction as the model knows it.
#[derive(Clone, Copy, Debug)]
enum Known {
    Half { checks: u32, due: u64 },
    Over(Decided),
}

struct Run {
    bench: Bench,
    known: BTreeMap<LogPosition, Known>,
    /// Which transaction each id is, once it was sent.
    sent: BTreeMap<u8, LogPosition>,
    end: u64,
}

impl Run {
    fn new() -> Self {
        let mut bench = Bench::with_topic(1);
        let time = Millis::from_secs(3600);
        let retention = Retention { stride: 700, time, bytes: 0, moved_max: LIMIT };
        bench.apply(Command::Retain(retention));
        Self { bench, known: BTreeMap::new(), sent: BTreeMap::new(), end: 0 }
    }

    fn halves(&self) -> usize {
        self.known.values().filter(|known| matches!(known, Known::Half { .. })).count()
    }

    fn at(&self, id: u8) -> Transaction {
        let at = self.sent.get(&id).copied().unwrap_or(LogPosition::new(7));
        Transaction { topic: names::TOPIC, at }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Prepare { id } => self.prepare(id),
            Step::End { id, commit } => {
                self.end(id, if commit { Decision::Commit } else { Decision::RollBack });
            }
            Step::Check { id, ahead } => self.check(id, ahead),
            Step::Resume { id } => self.resume(id),
            Step::Publish => {
                self.bench.publish(0, 1);
                self.end += 1;
            }
            Step::Wait { millis } => self.bench.stamp += millis,
            Step::Purge => self.purge(),
            Step::Restart { checkpoint, cut } => self.restart(checkpoint, cut),
        }
        self.compare();
    }

    fn prepare(&mut self, id: u8) {
        let mut item = names::item(0, u128::from(id));
        item.kind = MessageKind::Transaction;
        let half = HalfItem { item, first_check: Millis::new(FIRST) };
        let command = Command::Prepare(Prepare {
            topic: names::TOPIC,
            producer: ClientId::new("p").unwrap(),
            interval: Millis::new(INTERVAL),
            checks_max: CHECKS_MAX,
            halves: vec![half],
        });
        let reply = self.bench.reply(command);
        let bytes = 8 * (self.halves() as u64 + 1);
        match (self.sent.get(&id), reply) {
            (Some(at), reply) => {
                assert_eq!(reply, Reply::Prepared(vec![Prepared { at: *at, repeated: true }]));
            }
            (None, Reply::Refused(refusal)) => {
                assert_eq!(refusal, Refusal::HalvesFull { bytes, limit: LIMIT });
                assert!(bytes > LIMIT);
            }
            (None, Reply::Prepared(prepared)) => {
                assert!(bytes <= LIMIT && !prepared[0].repeated);
                self.sent.insert(id, prepared[0].at);
                let half = Known::Half { checks: 0, due: self.bench.stamp + FIRST };
                assert!(self.known.insert(prepared[0].at, half).is_none());
            }
            (None, other) => panic!("{other:?}"),
        }
    }

    fn end(&mut self, id: u8, decision: Decision) {
        let (transaction, by) = (self.at(id), Decider::Check);
        let reply = self.bench.reply(Command::End(End { transaction, decision, by }));
        let expected = match self.known.get(&transaction.at).copied() {
            None => Reply::Refused(Refusal::NoTransaction { at: transaction.at }),
            Some(Known::Over(decided)) if decided.decision == decision => {
                Reply::Ended { decided, repeated: true }
            }
            Some(Known::Over(decided)) => Reply::Refused(Refusal::Decided { decided }),
            Some(Known::Half { .. }) => {
                let stamp = UtcMillis::new(self.bench.stamp);
                let place = (decision == Decision::Commit).then(|| {
                    self.end += 1;
                    (QueueId::new(0), QueueOffset::new(self.end - 1))
                });
                let decided = Decided { decision, by, stamp, place };
                self.known.insert(transaction.at, Known::Over(decided));
                Reply::Ended { decided, repeated: false }
            }
        };
        assert_eq!(reply, expected);
    }

    fn check(&mut self, id: u8, ahead: u32) {
        let transaction = self.at(id);
        let now = self.bench.stamp;
        let (mut number, mut counted) = (ahead, 0);
        if let Some(Known::Half { checks, due }) = self.known.get_mut(&transaction.at) {
            number = *checks + ahead;
            if ahead == 1 && *checks < CHECKS_MAX {
                *checks = number;
                *due = now + INTERVAL;
                counted = 1;
            }
        }
        let reply = self.bench.reply(Command::Check(vec![Checked { transaction, number }]));
        assert_eq!(reply, Reply::Checked { counted });
    }

    fn resume(&mut self, id: u8) {
        let transaction = self.at(id);
        let now = self.bench.stamp;
        let reply = self.bench.reply(Command::Resume(transaction));
        let expected = match self.known.get_mut(&transaction.at) {
            None => Reply::Refused(Refusal::NoTransaction { at: transaction.at }),
            Some(Known::Over(decided)) => Reply::Refused(Refusal::Decided { decided: *decided }),
            Some(Known::Half { checks, due }) => {
                (*checks, *due) = (0, now);
                Reply::Done
            }
        };
        assert_eq!(reply, expected);
    }

    /// The front goes to the newest mark but one, as a leader moves it.
    fn purge(&mut self) {
        let state = self.bench.machine.state();
        let Some(mark) = state.marks().rev().nth(1).map(|mark| mark.index) else { return };
        self.bench.apply(Command::PurgeIntent { mark });
        let needed: Vec<_> = self.bench.machine.state().to_relocate().collect();
        for (original, unit) in needed {
            assert_eq!(unit.size, 8);
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

    /// Every half message is there with its checks, every record that a half message or a visible
    /// unit needs lies within the log, and the queue has what was committed.
    fn compare(&self) {
        let state = self.bench.machine.state();
        assert_eq!(state.queue_end(names::TOPIC, QueueId::new(0)).get(), self.end);
        assert_eq!(state.halves_count(), self.halves());
        let front = state.floor().map(|floor| floor.end).unwrap_or_default();
        let mut next = None;
        for (at, known) in &self.known {
            let transaction = Transaction { topic: names::TOPIC, at: *at };
            match (known, state.half(transaction)) {
                (Known::Half { checks, due }, Some(half)) => {
                    assert_eq!((half.checks, half.due.get()), (*checks, *due));
                    assert!(state.locate(half.unit).position >= front, "its record is gone");
                    if !half.is_parked() {
                        next = next.into_iter().chain([half.due]).min();
                    }
                }
                (Known::Over(decided), None) => {
                    assert_eq!(state.decided(transaction), Some(*decided));
                    let start = state.queue_start(names::TOPIC, QueueId::new(0));
                    if let Some((queue, offset)) = decided.place.filter(|place| place.1 >= start) {
                        let unit = state.units(names::TOPIC, queue, offset, 1).unwrap()[0];
                        assert_eq!((unit.position, unit.visible), (*at, decided.stamp));
                        assert!(state.locate(unit).position >= front, "its record is gone");
                    }
                }
                (known, half) => panic!("{known:?} is {half:?}"),
            }
        }
        assert_eq!(state.next_check(), next);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_transaction_is_half_or_over(steps in prop::collection::vec(step(), 1..120)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        run.restart(false, Some(0));
    }
}
