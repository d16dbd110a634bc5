//! One run: the cluster, its clients, the faults, and what came of it.
//!
//! Phases: workload and faults; heal, all of it or in some runs only a random quorum's part;
//! converge; drain; power off and on again; check.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use raftmq::base::Millis;
use raftmq::command::Retention;
use tokio::task::JoinHandle;

use super::clients::hard::Hard;
use super::clients::{Clients, Workload};
use super::disk::NodeDisk;
use super::faults::Faults;
use super::net::{HostId, Link, Micros, Net};
use super::node::{Node, Settings};
use super::plan::{Class, Planned, plan};
use super::random::{Random, split};
use super::trace::Trace;
use super::watch::Watch;
use super::world::{STARTED, World};
use super::{ambient, panics, verdict};
use crate::checkers::books::Books;
use crate::checkers::queue::Drain;
use crate::checkers::{Findings, Violation, queue, replicas};

const SECOND: Micros = 1_000_000;
/// A whole group must have found its leader and the same entry within this after the healing.
const CONVERGE: Micros = 30 * SECOND;
/// Consumers must have taken everything within this.
const DRAIN: Micros = 120 * SECOND;
/// A node that ended with an excuse is started again after this at the latest.
const START_AGAIN: Micros = 2 * SECOND;

/// What a run is made of, beside its seed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) without: BTreeSet<Class>,
    /// Single faults that are left out, by number.
    pub(crate) skip: BTreeSet<usize>,
}

/// What came of a run.
pub(crate) struct Report {
    pub(crate) findings: Findings,
    pub(crate) planned: Vec<Planned>,
    pub(crate) happened: BTreeMap<Class, u64>,
    pub(crate) trace: (u64, u32),
    pub(crate) simulated: Micros,
}

/// One node with its program's fate.
pub(super) struct Seat {
    pub(super) node: Node,
    program: Option<JoinHandle<String>>,
    pub(super) life: u64,
    /// When it is to be started, while it does not run.
    starts: Option<Micros>,
    /// It may end by itself, and is then started at this time.
    excused: Option<Micros>,
    /// Bits of its files have flipped: it may end whenever it finds that out.
    pub(super) rotten: bool,
    /// It lost its disk, and stays away.
    wiped: bool,
}

pub(super) struct Cluster {
    pub(super) world: World,
    pub(super) nodes: Vec<Seat>,
    pub(super) trace: Trace,
    seed: u64,
    pub(super) violations: Vec<Violation>,
    /// What nodes that ended had said to be on their disks.
    pub(super) last_words: Vec<(HostId, Option<u64>)>,
    /// Nodes that have just lost their disks.
    pub(super) wiped: Vec<HostId>,
    pub(super) restarts: u64,
}

impl Cluster {
    pub(super) fn is_up(&self, node: HostId) -> bool {
        self.nodes[node].program.is_some()
    }

    /// Who serves as the leader, of the newest term if there are several.
    pub(super) fn leader(&self) -> Option<HostId> {
        let terms = self.nodes.iter().enumerate().filter_map(|(at, seat)| {
            let replica = seat.node.replica.lock().clone()?;
            let leadership = *replica.leadership().borrow();
            leadership.serving.then_some((leadership.term, at))
        });
        terms.max().map(|(_, at)| at)
    }

    fn start(&mut self, node: HostId) {
        let seat = &mut self.nodes[node];
        seat.life += 1;
        seat.starts = None;
        seat.excused = None;
        let seed = split(self.seed, &format!("life {} of node {node}", seat.life));
        self.trace.note(format_args!("node {node} starts, life {}", seat.life));
        seat.program = Some(self.world.start(node, seat.node.clone().run(seed)));
    }

    fn end(&mut self, node: HostId, starts: Micros) {
        let seat = &mut self.nodes[node];
        let replica = seat.node.replica.lock().take();
        // What it said last may be why another one committed.
        let flushed = replica.and_then(|replica| replica.log().bounds().flushed);
        self.last_words.push((node, flushed.map(raftmq::base::LogIndex::get)));
        seat.program = None;
        seat.node.disk.forget_lent();
        seat.starts = Some(starts);
        self.restarts += 1;
        self.world.end(node);
    }

    /// The power goes.
    pub(super) fn crash(&mut self, node: HostId, starts: Micros) {
        self.trace.note(format_args!("node {node} loses power"));
        self.world.net.power_off(node);
        let seat = &self.nodes[node];
        let cut = split(self.seed, &format!("cut of life {} of node {node}", seat.life));
        seat.node.disk.sim.power_cut(cut);
        self.end(node, starts);
    }

    pub(super) fn kill(&mut self, node: HostId, starts: Micros) {
        self.trace.note(format_args!("node {node} is killed"));
        self.world.net.kill(node);
        self.nodes[node].node.disk.sim.kill();
        self.end(node, starts);
    }

    /// Somebody leads: the group has come into being, and a node without data is one that lost it.
    pub(super) fn has_group(&self) -> bool {
        self.leader().is_some()
    }

    /// Flips one bit.
    pub(super) fn rot(&mut self, node: HostId, lot: u64) {
        let disk = &self.nodes[node].node.disk.sim;
        let files: Vec<_> =
            disk.files().into_iter().filter(|(path, len)| rots(path, *len)).collect();
        let random = Random::new(lot, "rot");
        if files.is_empty() {
            return;
        }
        let (path, len) = random.pick(&files);
        let (at, bit) = (random.index(*len), u8::try_from(random.between(0, 8)).unwrap_or(0));
        self.trace.note(format_args!("node {node}: bit {bit} of {} at {at} flips", path.display()));
        disk.flip_bit(path, at, bit);
        self.nodes[node].rotten = true;
    }

    /// The disk is gone, and another one in its place.
    pub(super) fn wipe(&mut self, node: HostId) {
        let now = self.world.now();
        self.crash(node, now + SECOND / 2);
        self.nodes[node].node.disk.sim.wipe();
        self.nodes[node].wiped = true;
        self.wiped.push(node);
    }

    /// What the node's disk does next may end it.
    pub(super) fn excuse(&mut self, node: HostId, starts: Micros) {
        self.nodes[node].excused = Some(starts);
    }

    /// Takes note of programs that ended, and starts those that are due.
    fn tend(&mut self) {
        let now = self.world.now();
        for node in 0..self.nodes.len() {
            let seat = &self.nodes[node];
            if seat.node.disk.sim.is_stopped() && seat.program.is_some() {
                let starts = seat.excused.unwrap_or(now + START_AGAIN);
                self.crash(node, starts.max(now));
            } else if seat.program.as_ref().is_some_and(JoinHandle::is_finished) {
                self.ended(node, now);
            }
            if self.nodes[node].starts.is_some_and(|starts| starts <= now) {
                self.start(node);
            }
        }
    }

    fn ended(&mut self, node: HostId, now: Micros) {
        let seat = &mut self.nodes[node];
        let Some(program) = seat.program.take() else { return };
        let reason = futures::FutureExt::now_or_never(program);
        let reason = match reason {
            Some(Ok(reason)) => reason,
            Some(Err(error)) => format!("a panic: {error}"),
            None => "nothing".to_owned(),
        };
        self.trace.note(format_args!("node {node} ended: {reason}"));
        let wiped = seat.wiped;
        if seat.excused.is_none() && !seat.rotten && !wiped {
            let what = format!("node {node} at {} ms: {reason}", now / 1000);
            self.violations.push(Violation { check: "ended-by-itself", what });
        }
        let starts = seat.excused.unwrap_or(now + START_AGAIN).max(now + SECOND / 2);
        let starts = if wiped { Micros::MAX } else { starts };
        self.world.net.kill(node);
        self.nodes[node].node.disk.sim.kill();
        self.end(node, starts);
    }
}

/// Files that rot matters for, and whose loss the product promises to survive.
fn rots(path: &Path, len: usize) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    len > 0 && name != "identity" && !name.ends_with(".tmp")
}

/// A run under way.
pub(super) struct Run {
    pub(super) cluster: Cluster,
    pub(super) clients: Clients,
    pub(super) faults: Faults,
    pub(super) watch: Watch,
    /// Nodes that take part after the healing.
    core: Vec<HostId>,
    /// What retention took.
    pub(super) gone: queue::Gone,
    /// What became of every message; `None` before a replica was asked.
    pub(super) books: Option<Books>,
}

impl Run {
    fn step(&mut self) {
        let Self { cluster, clients, faults, watch, .. } = self;
        cluster.world.step();
        let now = cluster.world.now();
        clients.set_time(now);
        cluster.tend();
        faults.step(cluster, now);
        watch.look(cluster);
    }

    fn pass(&mut self, length: Micros) {
        let until = self.cluster.world.now() + length;
        while self.cluster.world.now() < until {
            self.step();
        }
    }

    /// Lets time pass until something holds, at most for `length`.
    fn pass_until(&mut self, length: Micros, holds: impl Fn(&Self) -> bool) -> bool {
        let until = self.cluster.world.now() + length;
        while self.cluster.world.now() < until {
            for _ in 0..25 {
                self.step();
            }
            if holds(self) {
                return true;
            }
        }
        false
    }

    /// Ends all faults. Without `everybody`, only a quorum is healthy from here on.
    fn heal(&mut self, random: &Random, everybody: bool) {
        let Self { cluster, faults, core, .. } = self;
        faults.heal(cluster);
        let nodes = cluster.nodes.len();
        let lost = (0..nodes).find(|node| cluster.nodes[*node].wiped);
        // A node with rot needs the others to mend it, so nobody else may be away for good.
        let rotten = cluster.nodes.iter().any(|seat| seat.rotten);
        *core = if everybody || rotten || lost.is_some() {
            (0..nodes).filter(|node| Some(*node) != lost).collect()
        } else {
            random.some(nodes / 2 + 1, nodes)
        };
        core.sort_unstable();
        cluster.trace.note(format_args!("healed: {core:?}"));
        for node in 0..nodes {
            let disk = &cluster.nodes[node].node.disk.sim;
            disk.set_capacity(None);
            if core.contains(&node) {
                disk.heal();
                if !cluster.is_up(node) {
                    cluster.nodes[node].starts = Some(cluster.world.now());
                }
            } else {
                if cluster.is_up(node) {
                    cluster.crash(node, Micros::MAX);
                }
                cluster.nodes[node].starts = None;
            }
        }
    }

    /// All of the core have applied the same entry, one of them leads, and nothing is under way.
    fn has_converged(&self) -> bool {
        let mut applied = BTreeSet::new();
        for node in &self.core {
            let Some(replica) = self.cluster.nodes[*node].node.replica.lock().clone() else {
                return false;
            };
            let status = replica.status();
            if status.applied != status.last || status.applied != status.committed {
                return false;
            }
            applied.insert(status.applied);
        }
        applied.len() == 1
            && self.cluster.leader().is_some_and(|leader| self.core.contains(&leader))
    }

    /// No group has anything left, as the leader sees it.
    fn is_drained(&self) -> bool {
        let Some(leader) = self.cluster.leader() else { return false };
        let replica = self.cluster.nodes[leader].node.replica.lock().clone();
        let workload = self.clients.workload();
        replica.is_some_and(|replica| super::watch::left(&replica, workload) == 0)
    }

    /// How far the log's time lies ahead of the world's. While the clocks of a majority are wrong, so
    /// are stamps; they never go back, and what is hidden comes again only when the clocks, which are
    /// right by now, have reached them (seed 247213127868602: 162 s).
    fn log_is_ahead(&self) -> Micros {
        let Some(leader) = self.cluster.leader() else { return 0 };
        let replica = self.cluster.nodes[leader].node.replica.lock().clone();
        let stamp = replica.map_or(0, |replica| replica.read(|state| state.stamp().get()));
        (stamp.saturating_sub(STARTED) * 1000).saturating_sub(self.cluster.world.now())
    }

    fn converge(&mut self, findings: &mut Findings, after: &str) -> bool {
        if self.pass_until(CONVERGE, Self::has_converged) {
            return true;
        }
        let statuses = self.core.iter().map(|node| {
            let replica = self.cluster.nodes[*node].node.replica.lock().clone();
            replica.map(|replica| replica.status())
        });
        let statuses: Vec<_> = statuses.collect();
        let what = format!("{after}: within {} s: {statuses:?}", CONVERGE / SECOND);
        findings.violated("converge", what);
        false
    }

    /// What the replicas hold, and whether they agree.
    fn compare(&mut self, drained: bool) -> Findings {
        let workload = self.clients.workload();
        let content =
            |node: &HostId| super::watch::content(&self.cluster.nodes[*node].node, *node, workload);
        let looks: Vec<_> = self.core.iter().filter_map(content).collect();
        let replica = self.core.first().map(|node| self.cluster.nodes[*node].node.replica.lock());
        if let Some(replica) = replica.and_then(|replica| replica.clone()) {
            self.books = Some(self.watch.reader.books(&replica, workload));
        }
        if let Some(first) = looks.first() {
            self.gone.starts = first.queues.iter().map(|(at, (start, _))| (*at, *start)).collect();
            self.gone.expired = first.expired.clone();
        }
        replicas::check(&self.clients.history(), &looks, drained)
    }
}

/// Runs one seed. Call it on a thread of its own, in a process of its own.
pub(crate) fn run(seed: u64, choice: &Choice, trace: Option<&Path>) -> std::io::Result<Report> {
    ambient::seed(split(seed, "ambient"));
    let trace = Trace::new(trace)?;
    let shape = Random::new(seed, "shape");
    let nodes = *shape.pick(&[3, 3, 3, 5]);
    let early = shape.percent(25);
    let faulty = shape.between(8, 16) * SECOND;
    let begins = if early { SECOND / 5 } else { 3 * SECOND };
    let mut planned = plan(seed, nodes, (begins, begins + faulty), &choice.without);
    planned.retain(|planned| !choice.skip.contains(&planned.number));
    let retention = retention(&Random::new(seed, "retention"));
    if retention.time != Millis::ZERO || retention.bytes != 0 {
        // What has left the log of all others cannot be put back from them: a replica with rot in
        // such a place waits for ever.
        planned.retain(|planned| planned.class != Class::Rot);
    }
    let run = set_up(seed, (nodes, retention), &shape, &planned, &trace);
    let everybody = !shape.percent(25);
    let (findings, happened, simulated) = tell(run, (seed, begins + faulty, everybody), &planned);
    Ok(Report { findings, planned, happened, trace: trace.sum(), simulated })
}

fn set_up(
    seed: u64,
    (nodes, retention): (usize, Retention),
    shape: &Random,
    planned: &[Planned],
    trace: &Trace,
) -> Run {
    let workload = Workload {
        topics: u32::try_from(shape.between(1, 3)).unwrap_or(1),
        queues: u32::try_from(shape.between(1, 5)).unwrap_or(1),
        groups: 2,
        producers: 3,
        ordered_producers: 2,
        transactors: 2,
        consumers_per_group: 2,
        send_pause_millis: *shape.pick(&[20, 60, 200]),
        body_max: *shape.pick(&[40, 400, 2_000]),
        invisible_millis: *shape.pick(&[500, 2_000, 5_000]),
        delayers: 2,
        tagged: shape.percent(50),
        hard: hard(&Random::new(seed, "hard")),
    };
    let settings = Settings {
        nodes,
        segment_bytes: *shape.pick(&[4 << 10, 16 << 10, 64 << 10]),
        spare: shape.percent(60),
        checkpoint_bytes: *shape.pick(&[8 << 10, 32 << 10, 128 << 10]),
        retention,
        upkeep_millis: *shape.pick(&[20, 200, 3_000]),
    };
    trace.note(format_args!("seed {seed}, {settings:?}, {workload:?}"));
    let base = Link { cut: false, least: super::world::STEP, most: 4_000, loss: 0 };
    let net = Net::new(nodes + 1, base, Random::new(seed, "network"), trace.clone());
    let world = World::new(nodes + 1, net.clone(), trace.clone());
    let seat = |host| Seat {
        node: Node {
            host,
            disk: Arc::new(NodeDisk::new(host, seed, trace.clone())),
            clock: world.clock(host),
            net: net.clone(),
            settings: settings.clone(),
            replica: Arc::new(Mutex::new(None)),
        },
        program: None,
        life: 0,
        starts: Some(0),
        excused: None,
        rotten: false,
        wiped: false,
    };
    let seats = (0..nodes).map(seat).collect();
    let clients = Clients::new((net, nodes), nodes, seed, workload, trace.clone());
    let mut cluster = Cluster {
        world,
        nodes: seats,
        trace: trace.clone(),
        seed,
        violations: Vec::new(),
        last_words: Vec::new(),
        wiped: Vec::new(),
        restarts: 0,
    };
    drop(cluster.world.start(nodes, clients.clone().run()));
    let faults = Faults::new(planned.to_vec(), base);
    Run {
        cluster,
        watch: Watch::new(nodes, clients.workload()),
        clients,
        faults,
        core: (0..nodes).collect(),
        gone: queue::Gone::default(),
        books: None,
    }
}

/// Whether there is a group some of whose messages always fail.
fn hard(random: &Random) -> Option<Hard> {
    random.percent(40).then(|| Hard {
        attempts_max: u32::try_from(random.between(1, 5)).unwrap_or(3),
        latest: random.percent(35),
        operated: random.percent(60),
        batch: random.percent(50),
    })
}

/// Small enough that the log's front moves in most runs; a third keep everything.
fn retention(shape: &Random) -> Retention {
    let (time, bytes) = match shape.between(0, 3) {
        0 => (Millis::ZERO, 0),
        1 => (Millis::new(shape.between(1_000, 8_000)), 0),
        _ => (Millis::ZERO, shape.between(40 << 10, 250 << 10)),
    };
    let stride = *shape.pick(&[2 << 10, 8 << 10, 32 << 10]);
    Retention { stride, time, bytes, moved_max: shape.between(20 << 10, 200 << 10) }
}

/// The phases.
fn tell(
    mut run: Run,
    (seed, faulty, everybody): (u64, Micros, bool),
    planned: &[Planned],
) -> (Findings, BTreeMap<Class, u64>, Micros) {
    let random = Random::new(seed, "healing");
    let mut findings = Findings::default();
    run.pass(faulty);
    run.heal(&random, everybody);
    run.clients.set_nodes(&run.core);
    run.pass(3 * SECOND);
    run.clients.be_quiet();
    let converged = run.converge(&mut findings, "after the faults");
    run.clients.drain();
    let drained = converged && run.pass_until(DRAIN + run.log_is_ahead(), Run::is_drained);
    if !drained && converged {
        findings.unknown.push("the drain did not come to its end".to_owned());
    }
    let drain = if drained { Drain::Complete } else { Drain::Cut };
    if run.converge(&mut findings, "after the drain") {
        findings.merge(run.compare(drained));
        if random.percent(60) {
            let now = run.cluster.world.now();
            for node in run.core.clone() {
                run.cluster.crash(node, now + SECOND / 2);
            }
            if run.converge(&mut findings, "after a power cut of all") {
                findings.merge(run.compare(drained));
            }
        }
    }
    let simulated = run.cluster.world.now();
    let history = run.clients.history();
    let disturbed = planned
        .iter()
        .any(|planned| matches!(planned.class, Class::Skew | Class::Rate | Class::Pause));
    findings.merge(verdict::check(&run, &history, planned, (drain, disturbed)));
    findings.violations.extend(run.watch.raft.violations.iter().cloned());
    findings.violations.append(&mut run.cluster.violations);
    for seat in &run.cluster.nodes {
        for what in seat.node.disk.take_overwritten() {
            findings.violated("lent-overwritten", what);
        }
    }
    for panic in panics::seen() {
        findings.violated("panic", panic);
    }
    verdict::cover(&history, &run, planned, &mut findings);
    (findings, run.faults.happened, simulated)
}
