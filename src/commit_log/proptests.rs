//! Any order of operations, reopens and power cuts against a model of a few lines.

use proptest::prelude::*;

use crate::commit_log::Options;
use crate::commit_log::tests::{Rig, body, frame, index, term};
use crate::env::sim::Sim;

#[derive(Clone, Debug)]
enum Op {
    Append(u64),
    NextTerm,
    Flush,
    /// Keeps so many per thousand of what may be cut.
    Truncate(u64),
    Purge(u64),
    Upkeep,
    Reopen,
    PowerCut(u64),
    Read(u64, usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..15_u64).prop_map(Op::Append),
        1 => Just(Op::NextTerm),
        4 => Just(Op::Flush),
        1 => (0..1_000_u64).prop_map(Op::Truncate),
        1 => (0..1_000_u64).prop_map(Op::Purge),
        2 => Just(Op::Upkeep),
        1 => Just(Op::Reopen),
        1 => any::<u64>().prop_map(Op::PowerCut),
        2 => (0..1_000_u64, 0..3_000_usize).prop_map(|(at, max)| Op::Read(at, max)),
    ]
}

/// The log as it should be: all entries, and how many of them are durable.
#[derive(Default)]
struct Model {
    purged: u64,
    terms: Vec<u64>,
    durable: u64,
    term: u64,
}

impl Model {
    fn next(&self) -> u64 {
        self.purged + self.terms.len() as u64
    }

    fn term_of(&self, index: u64) -> u64 {
        self.terms[usize::try_from(index - self.purged).unwrap()]
    }

    fn entries(&self) -> Vec<(u64, u64)> {
        (self.purged..).zip(self.terms.iter().copied()).collect()
    }

    fn cut(&mut self, next: u64) {
        self.terms.truncate(usize::try_from(next - self.purged).unwrap());
        self.durable = self.durable.min(next);
    }

    /// After a power cut the log holds a front of what was appended, all durable ones included.
    fn after_power_cut(&mut self, rig: &Rig) {
        let found = rig.entries();
        let next = self.purged + found.len() as u64;
        assert!(next >= self.durable, "{} were durable, {next} are left", self.durable);
        assert!(self.entries().starts_with(&found));
        self.cut(next);
        self.durable = next;
    }
}

fn apply(rig: Rig, model: &mut Model, op: &Op) -> Rig {
    match op {
        Op::Append(count) => {
            let next = model.next();
            rig.append(next, next + count, model.term);
            model.terms.extend((0..*count).map(|_| model.term));
        }
        Op::NextTerm => model.term += 1,
        Op::Flush => {
            rig.flush();
            model.durable = model.next();
        }
        Op::Truncate(share) => {
            let (floor, next) = (model.purged, model.next());
            let kept = floor + (next - floor) * share / 1_000;
            rig.log.truncate_after(kept.checked_sub(1).map(index)).unwrap();
            model.durable = next;
            model.cut(kept);
            model.term += 1;
        }
        Op::Purge(share) => {
            let count = (model.durable.saturating_sub(model.purged)) * share / 1_000;
            if count > 0 {
                let last = model.purged + count - 1;
                rig.log.purge_to(index(last), term(model.term_of(last))).unwrap();
                model.terms.drain(..usize::try_from(count).unwrap());
                model.purged += count;
            }
        }
        Op::Upkeep => rig.upkeep(),
        Op::Reopen => {
            model.durable = model.next();
            return rig.reopen();
        }
        Op::PowerCut(seed) => {
            let rig = rig.power_cut(*seed);
            model.after_power_cut(&rig);
            return rig;
        }
        Op::Read(share, max) => {
            let count = model.terms.len() as u64;
            let from = model.purged + count * share / 1_000;
            let frames = rig.log.read(index(from), index(model.next()), *max).unwrap();
            assert_eq!(frames.is_empty(), from == model.next());
            for (frame, at) in frames.iter().zip(from..) {
                assert_eq!((frame.index, frame.term), (index(at), term(model.term_of(at))));
                assert_eq!(frame.body, body(at, model.term_of(at)));
            }
        }
    }
    rig
}

proptest! {
    #[test]
    fn behaves_as_its_model(
        ops in prop::collection::vec(op(), 1..60),
        segment_bytes in 512..3_000_u64,
        spare: bool,
    ) {
        let mut rig = Rig::on(Sim::new(1), Options { segment_bytes, spare });
        let mut model = Model { term: 1, ..Model::default() };
        for op in &ops {
            rig = apply(rig, &mut model, op);
            prop_assert_eq!(rig.entries(), model.entries());
            let bounds = rig.log.bounds();
            prop_assert_eq!(bounds.last.map_or(0, |(last, _)| last.get() + 1), model.next());
            prop_assert!(rig.log.damage().is_none());
        }
        // Whatever happened, the log goes on.
        let next = model.next();
        rig.log.append(vec![frame(next, model.term)], rig.done.completion(next)).unwrap();
        rig.flush();
        let rig = rig.power_cut(9);
        prop_assert_eq!(rig.entries().last().copied(), Some((next, model.term)));
    }
}
