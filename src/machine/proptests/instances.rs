//! Random instances that see everything, against a model, with retention, restarts and power cuts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::base::{ClientId, LogIndex, Millis, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{
    Command, JoinAt, Leave, Placed, Position, Publish, Refusal, Reply, Retention,
};
use crate::machine::tests::{Bench, names};

#[derive(Clone, Debug)]
enum Step {
    Publish {
        queue: u32,
        count: usize,
    },
    Join {
        instance: u8,
        attempt: u8,
        earliest: bool,
        lease: u64,
    },
    Move {
        instance: u8,
        stale: bool,
        seek: bool,
        to: Vec<(u32, u64)>,
    },
    Leave {
        instance: u8,
        stale: bool,
    },
    Tick {
        limit: u32,
    },
    Wait {
        millis: u64,
    },
    Purge,
    Grow,
    /// The topic goes, and another one of its name comes.
    Replace,
    Restart {
        checkpoint: bool,
        cut: Option<u64>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let instance = 0..4_u8;
    let to = prop::collection::vec((0..4_u32, 0..40_u64), 0..3);
    prop_oneof![
        5 => (0..3_u32, 1..6_usize).prop_map(|(queue, count)| Step::Publish { queue, count }),
        5 => (instance.clone(), any::<u8>(), any::<bool>(), 1..300_u64).prop_map(
            |(instance, attempt, earliest, lease)| Step::Join { instance, attempt, earliest, lease }
        ),
        7 => (instance.clone(), prop::bool::weighted(0.2), prop::bool::weighted(0.2), to).prop_map(
            |(instance, stale, seek, to)| Step::Move { instance, stale, seek, to }
        ),
        2 => (instance, prop::bool::weighted(0.3))
            .prop_map(|(instance, stale)| Step::Leave { instance, stale }),
        4 => (0..3_u32).prop_map(|limit| Step::Tick { limit }),
        4 => (1..200_u64).prop_map(|millis| Step::Wait { millis }),
        2 => Just(Step::Purge),
        1 => Just(Step::Grow),
        1 => Just(Step::Replace),
        2 => (any::<bool>(), prop::option::of(any::<u64>()))
            .prop_map(|(checkpoint, cut)| Step::Restart { checkpoint, cut }),
    ]
}

#[derive(Clone, Debug)]
struct Known {
    incarnation: LogIndex,
    made_by: u64,
    until: u64,
    lost: u64,
    positions: BTreeMap<u32, u64>,
}

struct Run {
    bench: Bench,
    topic: TopicId,
    /// Start and end of each queue.
    queues: Vec<(u64, u64)>,
    known: BTreeMap<u8, Known>,
    /// The newest incarnation that an answer named, whether it still is or not.
    told: BTreeMap<u8, LogIndex>,
}

const LEASE: u64 = 150;
/// The attempt of what is no question.
const COMMIT: u64 = 1_000;
const FIRST: LogIndex = LogIndex::ZERO;

fn name(instance: u8) -> ClientId {
    ClientId::new(&format!("instance-{instance}")).unwrap()
}

impl Run {
    fn new() -> Self {
        let mut bench = Bench::with_topic(2);
        let time = Millis::from_secs(3600);
        bench.apply(Command::Retain(Retention { stride: 700, time, bytes: 0, moved_max: 1 << 20 }));
        let queues = vec![(0, 0); 2];
        let (known, told) = (BTreeMap::new(), BTreeMap::new());
        Self { bench, topic: names::TOPIC, queues, known, told }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish { queue, count } => self.publish(queue, count),
            Step::Join { instance, attempt, earliest, lease } => {
                self.join(instance, attempt, earliest, lease);
            }
            Step::Move { instance, stale, seek, ref to } => self.advance(instance, stale, seek, to),
            Step::Leave { instance, stale } => self.leave(instance, stale),
            Step::Tick { limit } => self.tick(limit),
            Step::Wait { millis } => self.bench.stamp += millis,
            Step::Purge => self.purge(),
            Step::Grow => {
                if self.queues.len() < 4 {
                    self.queues.push((0, 0));
                    let queues = u32::try_from(self.queues.len()).unwrap();
                    self.bench.apply(Command::GrowTopic { topic: self.topic, queues });
                }
            }
            Step::Replace => {
                self.bench.apply(Command::DeleteTopic { topic: self.topic });
                self.bench.apply(names::topic("orders", 2));
                self.topic = TopicId::new(self.topic.get() + 1);
                self.queues = vec![(0, 0); 2];
                self.known.clear();
            }
            Step::Restart { checkpoint, cut } => self.restart(checkpoint, cut),
        }
        self.compare();
    }

    fn publish(&mut self, queue: u32, count: usize) {
        let Some((_, end)) = self.queues.get_mut(queue as usize) else { return };
        *end += count as u64;
        let items = (0..count).map(|_| names::item(queue, 0)).collect();
        self.bench.apply(Command::Publish(Publish { topic: self.topic, dedup: false, items }));
    }

    fn asking(&self, instance: u8) -> Position {
        Position {
            group: names::GROUP,
            topic: self.topic,
            instance: name(instance),
            lease: Millis::new(LEASE),
            begin: JoinAt::Latest,
            attempt: COMMIT,
            incarnation: None,
            seek: false,
            positions: Vec::new(),
        }
    }

    /// Proposes it and compares the answer with what the model expects.
    fn place(&mut self, instance: u8, position: Position, expected_known: bool) {
        let lease = position.lease.get();
        let reply = self.bench.reply(Command::Position(position));
        let Reply::Placed(placed) = reply else { panic!("{reply:?}") };
        let known = self.known.get_mut(&instance).unwrap();
        known.until = self.bench.stamp + lease;
        if known.incarnation == FIRST {
            known.incarnation = LogIndex::new(self.bench.log.len() as u64 - 1);
        }
        self.told.insert(instance, known.incarnation);
        let positions = (0..).zip(&self.queues).map(|(queue, (start, _))| {
            let own = known.positions.get(&queue).copied().unwrap_or(*start);
            (QueueId::new(queue), QueueOffset::new(own))
        });
        let expected = Placed {
            incarnation: known.incarnation,
            known: expected_known,
            until: UtcMillis::new(known.until),
            lost: known.lost,
            positions: positions.collect(),
        };
        assert_eq!(placed, expected);
    }

    fn begin(&mut self, instance: u8, made_by: u64, earliest: bool) {
        let at = |(start, end): &(u64, u64)| if earliest { *start } else { *end };
        let positions = (0..).zip(self.queues.iter().map(at)).collect();
        let known = Known { incarnation: FIRST, made_by, until: 0, lost: 0, positions };
        self.known.insert(instance, known);
    }

    fn join(&mut self, instance: u8, attempt: u8, earliest: bool, lease: u64) {
        let expected = match self.known.get(&instance) {
            Some(known) => known.made_by != u64::from(attempt),
            None => {
                self.begin(instance, attempt.into(), earliest);
                false
            }
        };
        let position = Position {
            attempt: u64::from(attempt),
            begin: if earliest { JoinAt::Earliest } else { JoinAt::Latest },
            lease: Millis::new(lease),
            ..self.asking(instance)
        };
        self.place(instance, position, expected);
    }

    fn advance(&mut self, instance: u8, stale: bool, seek: bool, to: &[(u32, u64)]) {
        let told = self.told.get(&instance).copied().unwrap_or(LogIndex::new(1));
        let incarnation = if stale { LogIndex::new(1) } else { told };
        let one = |(queue, offset): &(u32, u64)| (QueueId::new(*queue), QueueOffset::new(*offset));
        let position = Position {
            incarnation: Some(incarnation),
            seek,
            positions: to.iter().map(one).collect(),
            ..self.asking(instance)
        };
        let queues = u32::try_from(self.queues.len()).unwrap();
        if let Some((queue, _)) = to.iter().find(|(queue, _)| *queue >= queues) {
            let refused = Refusal::NoQueue { queue: QueueId::new(*queue), queues };
            let reply = self.bench.reply(Command::Position(position));
            assert_eq!(reply, Reply::Refused(refused));
            return;
        }
        let live = self.known.get(&instance).is_some_and(|known| known.incarnation == incarnation);
        if !self.known.contains_key(&instance) {
            self.begin(instance, COMMIT, false);
        }
        if live {
            let known = self.known.get_mut(&instance).unwrap();
            for (queue, offset) in to {
                let (start, end) = self.queues[*queue as usize];
                let offset = (*offset).clamp(start, end);
                let own = known.positions.entry(*queue).or_insert(start);
                *own = if seek { offset } else { offset.max(*own) };
            }
        }
        self.place(instance, position, live);
    }

    fn leave(&mut self, instance: u8, stale: bool) {
        let told = self.told.get(&instance).copied().unwrap_or(LogIndex::new(1));
        let incarnation = if stale { LogIndex::new(1) } else { told };
        let leave =
            Leave { group: names::GROUP, topic: self.topic, instance: name(instance), incarnation };
        assert_eq!(self.bench.reply(Command::Leave(leave)), Reply::Done);
        self.known.retain(|known, one| *known != instance || one.incarnation != incarnation);
    }

    fn tick(&mut self, limit: u32) {
        let now = self.bench.stamp;
        let over = self.known.iter().filter(|(_, known)| known.until <= now);
        let mut over: Vec<(u64, u8)> = over.map(|(name, known)| (known.until, *name)).collect();
        over.sort_unstable();
        over.truncate(limit as usize);
        for (_, name) in &over {
            self.known.remove(name);
        }
        let fired = u32::try_from(over.len()).unwrap();
        assert_eq!(self.bench.reply(Command::Tick { limit }), Reply::Ticked { fired });
    }

    /// The front moves to the newest mark.
    fn purge(&mut self) {
        let Some(mark) = self.bench.machine.state().marks().last().cloned() else { return };
        self.bench.apply(Command::PurgeIntent { mark: mark.index });
        self.bench.apply(Command::PurgeTo { mark: mark.index });
        for (queue, (start, _)) in (0..).zip(&mut self.queues) {
            let state = self.bench.machine.state();
            let before = *start;
            *start = state.queue_start(self.topic, QueueId::new(queue)).get();
            for known in self.known.values_mut() {
                let at = known.positions.get(&queue).copied().unwrap_or(before);
                known.lost += start.saturating_sub(at);
                if let Some(own) = known.positions.get_mut(&queue) {
                    *own = (*own).max(*start);
                }
            }
        }
    }

    fn restart(&mut self, checkpoint: bool, cut: Option<u64>) {
        if checkpoint {
            self.bench.checkpoint();
        }
        let hashes = self.bench.hashes();
        match cut {
            Some(seed) => self.bench.sim.disk.power_cut(seed),
            None => self.bench.sim.disk.kill(),
        }
        self.bench.restart();
        assert_eq!(self.bench.hashes(), hashes);
    }

    fn compare(&self) {
        let state = self.bench.machine.state();
        let views = state.instances(names::GROUP, 100);
        assert_eq!(views.len(), self.known.len());
        for (view, (instance, known)) in views.iter().zip(&self.known) {
            let behind = (0..).zip(&self.queues).map(|(queue, (start, end))| {
                end - known.positions.get(&queue).copied().unwrap_or(*start)
            });
            assert_eq!((&view.instance, view.topic), (&name(*instance), self.topic));
            assert_eq!((view.until.get(), view.lost), (known.until, known.lost));
            assert_eq!(view.behind, behind.sum::<u64>());
        }
        let first = self.known.values().map(|known| known.until).min();
        assert_eq!(state.next_due().map(UtcMillis::get), first);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_instance_is_where_it_said_until_its_time_is_over(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        run.restart(true, Some(0));
    }
}
