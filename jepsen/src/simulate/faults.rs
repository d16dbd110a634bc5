//! Makes faults happen, and ends them.

use std::collections::BTreeMap;

use super::net::{HostId, Link, Micros};
use super::plan::{Class, Fault, Planned, Target};
use super::run::Cluster;

/// Bytes that may be written before the nodes have told each other that room is short: of clients, of
/// records that are written again, and of states at marks.
const SUDDEN: u64 = 400 << 10;
/// A node whose disk died slowly is back after this.
const BACK: Micros = 500_000;
/// A fault that has found nobody for so long takes any node.
const PATIENCE: Micros = 500_000;

/// What is going on now.
pub(super) struct Faults {
    /// Not begun yet, the next one first.
    waiting: Vec<Planned>,
    /// Due, but there is nobody yet for them.
    due: Vec<Planned>,
    active: Vec<Active>,
    base: Link,
    /// How many of each kind began and had something to act on.
    pub(super) happened: BTreeMap<Class, u64>,
}

struct Active {
    planned: Planned,
    /// Whom it met.
    nodes: Vec<HostId>,
    links: Links,
}

impl Faults {
    pub(super) fn new(mut planned: Vec<Planned>, base: Link) -> Self {
        planned.reverse();
        Self {
            waiting: planned,
            due: Vec::new(),
            active: Vec::new(),
            base,
            happened: BTreeMap::new(),
        }
    }

    /// Begins and ends what is due.
    pub(super) fn step(&mut self, cluster: &mut Cluster, now: Micros) {
        let mut links_changed = false;
        let (over, active) = std::mem::take(&mut self.active)
            .into_iter()
            .partition(|active| active.planned.until <= now);
        self.active = active;
        for ended in over {
            links_changed = true;
            cluster.trace.note(format_args!("fault over {}", ended.planned));
            end(cluster, &ended);
        }
        while self.waiting.last().is_some_and(|next| next.from <= now) {
            self.due.extend(self.waiting.pop());
        }
        for mut planned in std::mem::take(&mut self.due) {
            let late = now > planned.from + PATIENCE;
            let (nodes, links) = meets(cluster, &planned.fault, late);
            if nodes.is_empty() && links.is_empty() {
                // Nobody leads, or nobody runs: it comes when there is somebody.
                self.due.push(planned);
                continue;
            }
            planned.until += now - planned.from;
            cluster.trace.note(format_args!("fault {planned} meets {nodes:?} {links:?}"));
            *self.happened.entry(planned.class).or_default() += 1;
            begin(cluster, &planned, &nodes);
            links_changed = true;
            self.active.push(Active { planned, nodes, links });
        }
        if links_changed {
            self.set_links(cluster);
        }
    }

    /// Ends all of them, and lets none begin any more.
    pub(super) fn heal(&mut self, cluster: &mut Cluster) {
        self.waiting.clear();
        self.due.clear();
        for ended in std::mem::take(&mut self.active) {
            end(cluster, &ended);
        }
        self.set_links(cluster);
    }

    fn set_links(&self, cluster: &Cluster) {
        let hosts = cluster.nodes.len() + 1;
        for from in 0..hosts {
            for to in 0..hosts {
                let mut link = self.base;
                for active in &self.active {
                    link.cut |= active.links.contains(&(from, to));
                    match active.planned.fault {
                        Fault::Delay { most } => link.most = link.most.max(most),
                        Fault::Loss { per_mille } => link.loss = link.loss.max(per_mille),
                        _ => {}
                    }
                }
                cluster.world.net.set_link(from, to, |known| *known = link);
            }
        }
    }
}

type Links = Vec<(HostId, HostId)>;

/// The nodes and links that a fault acts on now. One that is late takes whom it gets.
fn meets(cluster: &Cluster, fault: &Fault, late: bool) -> (Vec<HostId>, Links) {
    let any = (0..cluster.nodes.len()).find(|node| late && cluster.is_up(*node));
    let leader = cluster.leader().or(any);
    let target = match fault {
        Fault::Crash { target, .. }
        | Fault::Kill { target }
        | Fault::Pause { target }
        | Fault::Eio { target, .. }
        | Fault::Full { target, .. }
        | Fault::Slow { target, .. }
        | Fault::Skew { target, .. }
        | Fault::Rate { target, .. } => *target,
        Fault::Rot { node, .. } | Fault::Wipe { node } => {
            let there = cluster.is_up(*node) && cluster.has_group();
            return (there.then_some(*node).into_iter().collect(), Links::new());
        }
        Fault::Delay { .. } | Fault::Loss { .. } => Target::Everybody,
        Fault::Cut { shape } => {
            return (Vec::new(), shape.links(cluster.nodes.len(), leader));
        }
    };
    let all = 0..cluster.nodes.len();
    let nodes: Vec<HostId> = match target {
        Target::Node(node) if cluster.is_up(node) => vec![node],
        Target::Node(_) => any.into_iter().collect(),
        Target::Leader => leader.into_iter().collect(),
        Target::Everybody => all.collect(),
    };
    (nodes.into_iter().filter(|node| cluster.is_up(*node)).collect(), Links::new())
}

fn begin(cluster: &mut Cluster, planned: &Planned, nodes: &[HostId]) {
    for node in nodes {
        let disk = cluster.nodes[*node].node.disk.clone();
        match &planned.fault {
            Fault::Crash { changes: None, .. } => cluster.crash(*node, planned.until),
            Fault::Crash { changes: Some(changes), .. } => {
                disk.sim.stop_after(*changes);
                cluster.excuse(*node, planned.until);
            }
            Fault::Kill { .. } => cluster.kill(*node, planned.until),
            Fault::Pause { .. } => cluster.world.pause(*node, true),
            Fault::Eio { sync, after, .. } => {
                if *sync {
                    disk.sim.fail_sync_after(*after);
                } else {
                    disk.sim.fail_write_after(*after);
                }
                cluster.excuse(*node, planned.until);
            }
            Fault::Full { room, .. } => {
                disk.sim.set_capacity(Some(disk.sim.used() + room));
                let settings = &cluster.nodes[*node].node.settings;
                // So sudden a lack of room that nothing could be set aside before.
                if !settings.spare || *room < 2 * settings.segment_bytes + SUDDEN {
                    cluster.excuse(*node, planned.until);
                }
            }
            Fault::Slow { most, .. } => disk.set_slow(Some(*most)),
            Fault::Skew { millis, .. } => cluster.nodes[*node].node.clock.set_skew(*millis),
            Fault::Rate { parts_per_million, .. } => {
                cluster.world.set_rate(*node, *parts_per_million);
            }
            Fault::Rot { lot, .. } => cluster.rot(*node, *lot),
            Fault::Wipe { .. } => cluster.wipe(*node),
            Fault::Delay { .. } | Fault::Loss { .. } | Fault::Cut { .. } => {}
        }
    }
}

fn end(cluster: &mut Cluster, active: &Active) {
    for node in &active.nodes {
        let disk = &cluster.nodes[*node].node.disk;
        match active.planned.fault {
            Fault::Pause { .. } => cluster.world.pause(*node, false),
            Fault::Full { .. } => disk.sim.set_capacity(None),
            Fault::Slow { dies, .. } => {
                disk.set_slow(None);
                if dies && cluster.is_up(*node) {
                    cluster.crash(*node, active.planned.until + BACK);
                }
            }
            Fault::Skew { .. } => cluster.nodes[*node].node.clock.set_skew(0),
            Fault::Rate { .. } => cluster.world.set_rate(*node, 0),
            // The node comes back by itself, and countdowns end with the life they were set in.
            Fault::Crash { .. } | Fault::Kill { .. } | Fault::Eio { .. } => {}
            Fault::Rot { .. } | Fault::Wipe { .. } => {}
            Fault::Delay { .. } | Fault::Loss { .. } | Fault::Cut { .. } => {}
        }
    }
}
