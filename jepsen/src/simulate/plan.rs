//! What goes wrong in a run, and when: all of it decided by the seed before the run begins.

use std::collections::BTreeSet;
use std::fmt;

use clap::ValueEnum;

use super::net::{HostId, Micros};
use super::random::Random;

/// Kinds of faults that a run has or does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub(crate) enum Class {
    /// The power goes: what was not synced is lost, the last write torn.
    Crash,
    /// The program is killed; what it wrote stays.
    Kill,
    /// The program stands still for a while.
    Pause,
    /// Links between nodes are cut, both ways.
    Partition,
    /// Links between nodes are cut one way.
    OneWay,
    /// Clients do not reach a node, or do not hear its answers.
    Client,
    /// Links are slow.
    Delay,
    /// Segments are lost and sent again.
    Loss,
    /// A write or a sync fails.
    Eio,
    /// The disk is full for a while.
    Full,
    /// Syncs take long, and now and then the power goes before they are done.
    Slow,
    /// The wall clock is wrong.
    Skew,
    /// The clock is too fast or too slow.
    Rate,
    /// Bits of one node's files flip.
    Rot,
    /// One node loses its disk, and must not take part under its old id again.
    Wipe,
}

impl Class {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::OneWay => "one-way",
            Self::Client => "client",
            Self::Delay => "delay",
            Self::Loss => "loss",
            Self::Eio => "eio",
            Self::Full => "full",
            Self::Slow => "slow",
            Self::Skew => "skew",
            Self::Rate => "rate",
            Self::Rot => "rot",
            Self::Wipe => "wipe",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whom a fault meets; roles are looked up when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Node(HostId),
    Leader,
    Everybody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// After so many more changes of the disk; at once with none.
    Crash {
        target: Target,
        changes: Option<u64>,
    },
    Kill {
        target: Target,
    },
    Pause {
        target: Target,
    },
    Cut {
        shape: Shape,
    },
    Delay {
        most: Micros,
    },
    Loss {
        per_mille: u64,
    },
    Eio {
        target: Target,
        sync: bool,
        after: u64,
    },
    Full {
        target: Target,
        room: u64,
    },
    Slow {
        target: Target,
        most: Micros,
        /// The power goes when it is over.
        dies: bool,
    },
    Skew {
        target: Target,
        millis: i64,
    },
    Rate {
        target: Target,
        parts_per_million: i64,
    },
    /// `lot` chooses file and bit.
    Rot {
        node: HostId,
        lot: u64,
    },
    Wipe {
        node: HostId,
    },
}

/// Which links are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The leader from all others.
    LeaderAlone,
    /// Two parts that do not see each other.
    Halves(Vec<HostId>),
    /// Each node sees its two neighbours on a ring only.
    Ring(Vec<HostId>),
    /// Two parts, and one node that sees both.
    Bridge(HostId, Vec<HostId>),
    /// One does not reach the other, who reaches it.
    OneWay(HostId, HostId),
    /// The leader hears nobody, or nobody hears it.
    LeaderOneWay { hears: bool },
    /// Between the clients and one node.
    Clients { node: HostId, asks: bool, answers: bool },
}

/// One fault and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) number: usize,
    pub(crate) class: Class,
    pub(crate) from: Micros,
    pub(crate) until: Micros,
    pub(crate) fault: Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |at: Micros| (at / 1_000_000, at / 1000 % 1000);
        let ((from, from_millis), (until, until_millis)) =
            (seconds(self.from), seconds(self.until));
        let Self { number, fault, .. } = self;
        write!(f, "#{number} {from}.{from_millis:03} s to {until}.{until_millis:03} s {fault:?}")
    }
}

/// No fault begins so shortly before the healing, so that each meets somebody.
const LAST: Micros = 1_500_000;

/// The whole run's faults, in order of their beginning.
pub(crate) fn plan(
    seed: u64,
    nodes: usize,
    (from, until): (Micros, Micros),
    without: &BTreeSet<Class>,
) -> Vec<Planned> {
    let swarm = Random::new(seed, "swarm");
    let mut all = Vec::new();
    // Only one disk of a run is damaged or lost, which is what a majority survives.
    let victim = Random::new(seed, "victim").index(nodes);
    for class in Class::value_variants() {
        let on = swarm.percent(if *class == Class::Wipe { 12 } else { 50 });
        if !on || without.contains(class) {
            continue;
        }
        let random = Random::new(seed, class.name());
        let most = if *class == Class::Wipe { 2 } else { 5 };
        for _ in 0..random.between(1, most) {
            let begins = random.between(from, until - LAST);
            let lasts = match random.between(0, 3) {
                0 => random.between(20_000, 300_000),
                1 => random.between(300_000, 1_500_000),
                _ => random.between(1_500_000, 5_000_000),
            };
            let fault = fault(*class, &random, nodes, victim);
            let ends = (begins + lasts).min(until);
            all.push(Planned { number: 0, class: *class, from: begins, until: ends, fault });
        }
    }
    all.sort_by_key(|planned| planned.from);
    for (number, planned) in all.iter_mut().enumerate() {
        planned.number = number;
    }
    all
}

fn target(random: &Random, nodes: usize, everybody: u64) -> Target {
    match random.between(0, 100) {
        lot if lot < everybody => Target::Everybody,
        lot if lot < 55 => Target::Leader,
        _ => Target::Node(random.index(nodes)),
    }
}

fn signed(random: &Random, most: u64) -> i64 {
    let size = random.between(1, most + 1).cast_signed();
    if random.percent(50) { size } else { -size }
}

fn fault(class: Class, random: &Random, nodes: usize, victim: HostId) -> Fault {
    match class {
        Class::Crash => {
            let changes = random.percent(60).then(|| random.between(0, 60));
            Fault::Crash { target: target(random, nodes, 20), changes }
        }
        Class::Kill => Fault::Kill { target: target(random, nodes, 10) },
        Class::Pause => Fault::Pause { target: target(random, nodes, 5) },
        Class::Partition => Fault::Cut { shape: partition(random, nodes) },
        Class::OneWay => Fault::Cut { shape: one_way(random, nodes) },
        Class::Client => {
            let (asks, answers) = *random.pick(&[(true, true), (true, false), (false, true)]);
            Fault::Cut { shape: Shape::Clients { node: random.index(nodes), asks, answers } }
        }
        Class::Delay => Fault::Delay { most: random.between(5_000, 120_000) },
        Class::Loss => Fault::Loss { per_mille: random.between(5, 200) },
        Class::Eio => Fault::Eio {
            target: target(random, nodes, 5),
            sync: random.percent(60),
            after: random.between(0, 40),
        },
        Class::Full => Fault::Full {
            target: target(random, nodes, 10),
            room: random.between(0, *random.pick(&[30_000, 500_000])),
        },
        Class::Slow => Fault::Slow {
            target: target(random, nodes, 20),
            most: random.between(10_000, *random.pick(&[1_000_000, 8_000_000])),
            dies: random.percent(40),
        },
        Class::Skew => {
            let most = *random.pick(&[50, 1_000, 10_000, 600_000]);
            Fault::Skew { target: target(random, nodes, 0), millis: signed(random, most) }
        }
        Class::Rate => Fault::Rate {
            target: target(random, nodes, 0),
            parts_per_million: signed(random, 300_000),
        },
        Class::Rot => Fault::Rot { node: victim, lot: random.between(0, u64::MAX) },
        Class::Wipe => Fault::Wipe { node: victim },
    }
}

fn partition(random: &Random, nodes: usize) -> Shape {
    match random.between(0, 4) {
        0 => Shape::LeaderAlone,
        1 => {
            let size = random.index(nodes - 1) + 1;
            Shape::Halves(random.some(size, nodes))
        }
        2 if nodes > 3 => Shape::Ring(random.some(nodes, nodes)),
        _ => {
            let mut order = random.some(nodes, nodes);
            let bridge = order.pop().unwrap_or_default();
            order.truncate(order.len() / 2);
            Shape::Bridge(bridge, order)
        }
    }
}

fn one_way(random: &Random, nodes: usize) -> Shape {
    if random.percent(50) {
        return Shape::LeaderOneWay { hears: random.percent(50) };
    }
    let pair = random.some(2, nodes);
    Shape::OneWay(pair[0], pair[1])
}

impl Shape {
    /// The links that are cut, from and to, among `nodes` hosts and the clients' one behind them.
    pub(crate) fn links(&self, nodes: usize, leader: Option<HostId>) -> Vec<(HostId, HostId)> {
        let clients = nodes;
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        match self {
            Self::LeaderAlone => {
                let Some(leader) = leader else { return Vec::new() };
                pairs.filter(|(from, to)| *from == leader || *to == leader).collect()
            }
            Self::Halves(part) => {
                pairs.filter(|(from, to)| part.contains(from) != part.contains(to)).collect()
            }
            Self::Ring(order) => {
                let place = |node| order.iter().position(|other| *other == node).unwrap_or(0);
                let apart = |(from, to): &(HostId, HostId)| {
                    let distance = place(*from).abs_diff(place(*to));
                    distance != 1 && distance != nodes - 1
                };
                pairs.filter(apart).collect()
            }
            Self::Bridge(bridge, part) => pairs
                .filter(|(from, to)| from != bridge && to != bridge)
                .filter(|(from, to)| part.contains(from) != part.contains(to))
                .collect(),
            Self::OneWay(from, to) => vec![(*from, *to)],
            Self::LeaderOneWay { hears } => {
                let Some(leader) = leader else { return Vec::new() };
                let cut = |(from, to): &(HostId, HostId)| {
                    if *hears { *from == leader } else { *to == leader }
                };
                pairs.filter(cut).collect()
            }
            Self::Clients { node, asks, answers } => {
                let asked = asks.then_some((clients, *node));
                let answered = answers.then_some((*node, clients));
                asked.into_iter().chain(answered).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_its_seeds_and_a_class_less_changes_no_other() {
        let all = plan(5, 3, (0, 20_000_000), &BTreeSet::new());
        assert_eq!(all, plan(5, 3, (0, 20_000_000), &BTreeSet::new()));
        let first = all[0].class;
        let less = plan(5, 3, (0, 20_000_000), &BTreeSet::from([first]));
        let kept = |plan: &[Planned]| -> Vec<Fault> {
            plan.iter().filter(|p| p.class != first).map(|p| p.fault.clone()).collect()
        };
        assert_eq!(kept(&all), kept(&less));
        assert!(less.len() < all.len());
    }

    #[test]
    fn shapes_cut_what_they_say() {
        let ring = Shape::Ring(vec![0, 1, 2, 3, 4]);
        assert_eq!(ring.links(5, None).len(), 10, "each of five does not see two");
        assert_eq!(Shape::LeaderAlone.links(3, Some(1)).len(), 4);
        assert_eq!(Shape::LeaderOneWay { hears: true }.links(3, Some(1)), [(1, 0), (1, 2)]);
        assert_eq!(Shape::OneWay(0, 2).links(3, None), [(0, 2)]);
        assert_eq!(Shape::Halves(vec![0]).links(3, None).len(), 4);
        let bridge = Shape::Bridge(2, vec![0]);
        assert_eq!(bridge.links(3, None), [(0, 1), (1, 0)]);
        let clients = Shape::Clients { node: 1, asks: true, answers: false };
        assert_eq!(clients.links(3, None), [(3, 1)]);
    }
}
