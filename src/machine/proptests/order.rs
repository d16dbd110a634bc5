//! Message groups under random deliveries, with proposals that come late: nothing of one is handed
//! out while an earlier message of it is neither done with nor in the same checkout.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::tests::{Bench, names};
use crate::base::{ClientId, GroupName, Millis, QueueId, QueueOffset, TopicName};
use crate::command::{
    Ack, Begin, Checkout, Command, CreateGroup, CreateTopic, Delivery, GiveUp, Grant, Handle, Hold,
    Order, OrderRule, Publish, Redrive, Redriven, Release, Reply, Reset, Return, Take,
};
use crate::machine::HandleState;
use crate::message::MessageKind;

const LINES: u64 = 3;

#[derive(Clone, Debug)]
enum Step {
    Publish {
        line: u64,
        count: usize,
    },
    /// A leader computes what these lines may have, so many messages of each.
    Propose {
        lines: Vec<(u64, usize)>,
        consumer: u8,
    },
    /// One of the proposals under way is applied.
    Apply {
        pick: usize,
    },
    Ack {
        pick: usize,
    },
    Hold {
        pick: usize,
        millis: u64,
    },
    GiveUp {
        pick: usize,
    },
    Return {
        pick: usize,
        millis: u64,
    },
    Release {
        consumer: u8,
        millis: u64,
    },
    Wait {
        millis: u64,
    },
    Tick {
        limit: u32,
    },
    /// Whatever of the last dead letters there is goes back.
    Redrive {
        pick: usize,
    },
    /// Proposals under way are void.
    Reset {
        to: u64,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let millis = prop_oneof![Just(0_u64), 1..2_000_u64];
    prop_oneof![
        3 => (1..=LINES, 1..4_usize).prop_map(|(line, count)| Step::Publish { line, count }),
        6 => (prop::collection::vec((1..=LINES, 1..4_usize), 1..4), 0..3_u8)
            .prop_map(|(lines, consumer)| Step::Propose { lines, consumer }),
        6 => any::<usize>().prop_map(|pick| Step::Apply { pick }),
        6 => any::<usize>().prop_map(|pick| Step::Ack { pick }),
        3 => (any::<usize>(), millis.clone()).prop_map(|(pick, millis)| Step::Hold { pick, millis }),
        1 => any::<usize>().prop_map(|pick| Step::GiveUp { pick }),
        1 => (any::<usize>(), millis.clone())
            .prop_map(|(pick, millis)| Step::Return { pick, millis }),
        1 => (0..3_u8, millis).prop_map(|(consumer, millis)| Step::Release { consumer, millis }),
        3 => (1..1_500_u64).prop_map(|millis| Step::Wait { millis }),
        4 => (1..6_u32).prop_map(|limit| Step::Tick { limit }),
        2 => any::<usize>().prop_map(|pick| Step::Redrive { pick }),
        1 => (0..24_u64).prop_map(|to| Step::Reset { to }),
        1 => Just(Step::Restart),
    ]
}

struct Run {
    bench: Bench,
    order: Order,
    /// By offset: the message's line.
    lines: Vec<u64>,
    done: BTreeSet<u64>,
    handles: Vec<Handle>,
    proposals: Vec<Checkout>,
}

impl Run {
    fn new(order: Order) -> Self {
        let mut bench = Bench::new();
        let (name, kinds) = (TopicName::new("orders").unwrap(), vec![MessageKind::Fifo]);
        bench.apply(Command::CreateTopic(CreateTopic { name, queues: 1, kinds, keep: None }));
        let rule = OrderRule { order, ..OrderRule::default() };
        bench.apply(Command::CreateGroup(CreateGroup {
            name: GroupName::new("billing").unwrap(),
            attempts_max: 2,
            backoff: Vec::new().into(),
            rule,
            dead_keep: None,
            begin: Begin::default(),
        }));
        let (lines, handles, proposals) = (Vec::new(), Vec::new(), Vec::new());
        Self { bench, order, lines, done: BTreeSet::new(), handles, proposals }
    }

    fn pick(&self, pick: usize) -> Option<Handle> {
        let count = self.handles.len().min(24);
        (count > 0).then(|| self.handles[self.handles.len() - 1 - pick % count])
    }

    fn is_live(&self, handle: &Handle) -> bool {
        self.bench.machine.state().handle_state(handle) == HandleState::Live
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish { line, count } => {
                let mut item = names::item(0, 0);
                item.group_hash = line;
                let items = vec![item; count];
                let publish = Publish { topic: names::TOPIC, dedup: false, items };
                self.bench.apply(Command::Publish(publish));
                self.lines.extend(std::iter::repeat_n(line, count));
            }
            Step::Propose { ref lines, consumer } => self.propose(lines, consumer),
            Step::Apply { pick } => {
                if !self.proposals.is_empty() {
                    let proposal = self.proposals.remove(pick % self.proposals.len());
                    self.apply(proposal);
                }
            }
            Step::Ack { pick } => {
                let Some(handle) = self.pick(pick) else { return };
                if self.is_live(&handle) {
                    self.done.insert(handle.offset.get());
                }
                self.bench.deliver(Delivery::Ack(Ack { handle }));
            }
            Step::Hold { pick, millis } => {
                let Some(handle) = self.pick(pick) else { return };
                let invisible = Millis::new(millis);
                self.bench.deliver(Delivery::Hold(Hold { handle, invisible }));
            }
            Step::GiveUp { pick } => {
                let Some(handle) = self.pick(pick) else { return };
                let otherwise = Millis::ZERO;
                self.bench.deliver(Delivery::GiveUp(GiveUp { handle, otherwise }));
            }
            Step::Return { pick, millis } => {
                let Some(handle) = self.pick(pick) else { return };
                let invisible = Millis::new(millis);
                self.bench.deliver(Delivery::Return(Return { handles: vec![handle], invisible }));
            }
            Step::Release { consumer, millis } => {
                let consumer = ClientId::new(&format!("c{consumer}")).unwrap();
                let (group, invisible) = (names::GROUP, Millis::new(millis));
                self.bench.deliver(Delivery::Release(Release { group, consumer, invisible }));
            }
            Step::Wait { millis } => self.bench.stamp += millis,
            Step::Tick { limit } => drop(self.bench.reply(Command::Tick { limit })),
            Step::Redrive { pick } => self.redrive(pick),
            Step::Reset { to } => {
                let to = to.min(self.lines.len() as u64);
                let offsets = vec![(QueueId::new(0), QueueOffset::new(to))];
                let (group, topic) = (names::GROUP, names::TOPIC);
                self.bench.apply(Command::Reset(Reset { group, topic, offsets }));
                self.done = (0..to).collect();
                assert!(self.handles.iter().all(|handle| !self.is_live(handle)));
            }
            Step::Restart => {
                let hashes = self.bench.hashes();
                self.bench.checkpoint();
                self.bench.restart();
                assert_eq!(self.bench.hashes(), hashes);
            }
        }
    }

    /// One dead letter goes back: it is not done with any more.
    fn redrive(&mut self, pick: usize) {
        let state = self.bench.machine.state();
        let letters: Vec<_> = state.dead_letters(names::GROUP, None).collect();
        let Some((at, letter)) = letters.get(pick % letters.len().max(1)) else { return };
        let topic = state.dead_letters_topic(names::GROUP).unwrap();
        self.done.remove(&letter.offset.get());
        let redrive = Redrive { group: names::GROUP, topic, letters: vec![*at] };
        let reply = self.bench.reply(Command::Redrive(redrive));
        assert_eq!(reply, Reply::Redriven(vec![Redriven::Done]));
    }

    /// What is not done with of each line, from its first message on: what a leader may offer that
    /// sees all of it.
    fn propose(&mut self, lines: &[(u64, usize)], consumer: u8) {
        let state = self.bench.machine.state();
        let pair = (names::GROUP, names::TOPIC);
        let view = state.view(names::GROUP, names::TOPIC, QueueId::new(0));
        let mut offsets = Vec::new();
        for (line, count) in lines {
            if let Some(first) = view.ready.iter().find(|one| one.unit.group_hash == *line) {
                offsets.push(first.offset.get());
                let behind = state.followers(pair, *line, count - 1);
                offsets.extend(behind.iter().map(|(_, one)| one.offset.get()));
            } else if !state.is_locked(pair, *line) {
                let open = (0..).zip(&self.lines).filter(|(offset, of)| {
                    *of == line && state.is_open(pair, QueueId::new(0), QueueOffset::new(*offset))
                });
                offsets.extend(open.map(|(offset, _)| offset).take(*count));
            }
        }
        let grant =
            |at: &u64| Grant { offset: QueueOffset::new(*at), unit: self.bench.unit(0, *at) };
        let mut checkout = self.bench.checkout(&format!("c{consumer}"), &[]);
        checkout.invisible = Millis::new(1_000);
        checkout.takes = vec![Take {
            queue: QueueId::new(0),
            skips: Vec::new(),
            grants: offsets.iter().map(grant).collect(),
        }];
        self.proposals.push(checkout);
    }

    fn apply(&mut self, proposal: Checkout) {
        // Messages that died are done with.
        let state = self.bench.machine.state();
        let granted = {
            let before: BTreeSet<u64> = self.open_or_pending(state);
            let all = 0..self.lines.len() as u64;
            self.done.extend(all.filter(|offset| !before.contains(offset)));
            let current = proposal.epoch == state.epoch(names::GROUP, names::TOPIC);
            let granted = self.bench.check_out(proposal).granted;
            assert!(current || granted.is_empty(), "computed before a reset");
            granted
        };
        let mut seen = BTreeSet::new();
        for one in &granted {
            let offset = one.offset.get();
            let line = self.lines[usize::try_from(offset).unwrap()];
            let earlier =
                (0..offset).filter(|at| self.lines[usize::try_from(*at).unwrap()] == line);
            for at in earlier {
                let ours = seen.contains(&at) && self.order == Order::Batch;
                assert!(ours || self.done.contains(&at), "{offset} came while {at} was not done");
            }
            assert!(!self.done.contains(&offset), "{offset} came again");
            seen.insert(offset);
        }
        self.handles.extend(granted.iter().map(names::handle));
    }

    fn open_or_pending(&self, state: &crate::machine::State) -> BTreeSet<u64> {
        let pair = (names::GROUP, names::TOPIC);
        let queue = QueueId::new(0);
        let all = (0..self.lines.len() as u64)
            .filter(|at| state.is_open(pair, queue, QueueOffset::new(*at)));
        let mut left: BTreeSet<u64> = all.collect();
        for line in 1..=LINES {
            left.extend(state.members(pair, line).iter().map(|(_, offset)| offset.get()));
        }
        left
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn nothing_overtakes_in_a_message_group(
        batch in any::<bool>(),
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let mut run = Run::new(if batch { Order::Batch } else { Order::Single });
        for step in &steps {
            run.step(step);
        }
    }
}
