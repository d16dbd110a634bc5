//! `raftmq up` as a child process, and what a test does to its nodes.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{http, until};

pub(crate) const RAFTMQ: &str = env!("CARGO_BIN_EXE_raftmq");

/// How long a healthy cluster may take to do anything a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The machine, which may have two cores, has two places. A cluster takes both, because tests measure
/// times, unless its test says that it measures none.
const PLACES: u8 = 2;
static TAKEN: Mutex<u8> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();

/// Places on the machine, free again when it is dropped.
struct Places(u8);

impl Places {
    fn take(count: u8) -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut u8| *taken + count > PLACES;
        let taken = LEFT.wait_while(taken, full);
        *taken.unwrap_or_else(PoisonError::into_inner) += count;
        Self(count)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        LEFT.notify_all();
    }
}

/// Ports of one node: gRPC, HTTP, peer; and the next node's lie ten further.
const PORTS_PER_NODE: u16 = 3;
const NODE_STRIDE: u16 = 10;

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: u16,
    /// Broker groups, each with a replica on every node.
    pub(crate) broker_groups: u16,
    /// Whether a node that ends is started again.
    pub(crate) restart: bool,
    /// Ports that are free for so many more nodes.
    pub(crate) spare: u16,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Data on a volume of its own of this size, which nobody but the cluster sees.
    pub(crate) volume_mib: Option<u32>,
    /// Whether another cluster may run beside it: of a test that compares no speeds, counts no
    /// elections and has no deadline but [`PATIENCE`].
    pub(crate) shares: bool,
}

impl Plan {
    pub(crate) fn of(nodes: u16) -> Self {
        Self {
            nodes,
            broker_groups: 1,
            restart: false,
            spare: 0,
            environment: Vec::new(),
            volume_mib: None,
            shares: false,
        }
    }
}

/// A running `raftmq up`. Everything it started ends with it.
pub(crate) struct Cluster {
    plan: Plan,
    base_port: u16,
    child: Option<Child>,
    /// How often `up` was started.
    starts: usize,
    folder: TempDir,
    /// From the start of `raftmq up` until all nodes were ready for the first time.
    pub(crate) first_ready: Duration,
    _places: Places,
}

/// One line of `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) node: u64,
    pub(crate) pid: i32,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// One node as `cluster status --output json` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) node: u64,
    pub(crate) role: String,
    pub(crate) voter: bool,
    pub(crate) term: u64,
    pub(crate) applied: Option<u64>,
    pub(crate) state_hash: Option<String>,
}

impl Cluster {
    /// Starts and waits until every node is ready.
    pub(crate) fn start(plan: Plan) -> Self {
        let places = Places::take(if plan.shares { 1 } else { PLACES });
        let base_port = free_ports(plan.nodes + plan.spare);
        let folder = tempfile::Builder::new().prefix("raftmq-").tempdir().unwrap();
        let (child, first_ready) = (None, Duration::ZERO);
        let mut cluster =
            Self { plan, base_port, child, starts: 0, folder, first_ready, _places: places };
        cluster.up();
        cluster.first_ready = cluster.wait_ready(PATIENCE);
        cluster
    }

    /// Runs `raftmq up` over the same data; `wait_ready` tells when it serves.
    pub(crate) fn up(&mut self) {
        assert!(self.child.is_none(), "the cluster is running");
        // The file of the last run names processes that are gone.
        let _ = fs::remove_file(self.data().join("cluster.json"));
        let output = File::options().create(true).append(true).open(self.output_path()).unwrap();
        let mut command = self.command();
        command
            .args(["up", "--nodes", &self.plan.nodes.to_string()])
            .args(["--broker-groups", &self.plan.broker_groups.to_string()])
            .args(["--base-port", &self.base_port.to_string()])
            .arg("--data")
            .arg(self.own_data())
            .args(self.plan.restart.then_some("--restart"))
            .envs(self.plan.environment.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        self.child = Some(command.spawn().unwrap());
        self.starts += 1;
    }

    /// What runs `raftmq` with the words that follow.
    fn command(&self) -> Command {
        let Some(size) = self.plan.volume_mib else { return Command::new(RAFTMQ) };
        let data = self.own_data();
        fs::create_dir_all(&data).unwrap();
        let mut command = Command::new("unshare");
        command.arg("--mount").args(["--propagation", "private"]);
        // Without the rights to mount, those of a user namespace do.
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        let script = format!(r#"mount -t tmpfs -o size={size}m tmpfs "$0" && exec "$@""#);
        command.args(["sh", "-c", &script]).arg(data).arg(RAFTMQ);
        command
    }

    /// As the nodes see it.
    fn own_data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// As others see it: a volume of its own is seen through its process.
    pub(crate) fn data(&self) -> PathBuf {
        let own = self.own_data();
        match (&self.child, self.plan.volume_mib) {
            (Some(child), Some(_)) => {
                let own = own.strip_prefix("/").unwrap();
                PathBuf::from(format!("/proc/{}/root", child.id())).join(own)
            }
            _ => own,
        }
    }

    /// For the next start.
    pub(crate) fn set_environment(&mut self, environment: Vec<(&'static str, String)>) {
        self.plan.environment = environment;
    }

    pub(crate) fn environment(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.plan.environment.iter().cloned()
    }

    /// The names that `up` gives.
    pub(crate) fn broker_groups(&self) -> Vec<String> {
        (0..self.plan.broker_groups).map(|number| format!("group-{number}")).collect()
    }

    /// A place for a node that `up` does not start.
    pub(crate) fn spare_node(&self, id: u64) -> Node {
        let place = u16::try_from(id - 1).unwrap();
        assert!(place < self.plan.nodes + self.plan.spare, "no port is kept for node {id}");
        let at =
            |port| SocketAddr::from(([127, 0, 0, 1], self.base_port + place * NODE_STRIDE + port));
        Node { node: id, pid: 0, grpc: at(0), http: at(1), peer: at(2) }
    }

    /// The next `up` takes other ports.
    pub(crate) fn move_ports(&mut self) {
        assert!(self.child.is_none(), "the cluster is running");
        self.base_port = free_ports(self.plan.nodes + self.plan.spare);
    }

    /// Where the output of `up` and of its nodes goes.
    pub(crate) fn output_path(&self) -> PathBuf {
        self.folder.path().join("output.log")
    }

    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.output_path()).unwrap_or_default()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The nodes as `cluster.json` names them now.
    pub(crate) fn try_nodes(&self) -> Result<Vec<Node>, String> {
        let path = self.data().join("cluster.json");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let value: Value = serde_json::from_str(&text).map_err(|e| format!("{e} in {text:?}"))?;
        let nodes = value["nodes"].as_array().ok_or_else(|| format!("no nodes in {text}"))?;
        nodes.iter().map(read_node).collect()
    }

    pub(crate) fn nodes(&self) -> Vec<Node> {
        until("cluster.json names the nodes", PATIENCE, || self.try_nodes())
    }

    pub(crate) fn node(&self, id: u64) -> Node {
        self.nodes().into_iter().find(|node| node.node == id).unwrap()
    }

    /// Waits until every node answers 200 on `/readyz`.
    pub(crate) fn wait_ready(&mut self, within: Duration) -> Duration {
        let start = Instant::now();
        let expected = usize::from(self.plan.nodes);
        until("all nodes are ready", within, || {
            if let Some(status) = self.ended() {
                return Err(format!("raftmq up ended with {status}; it said:\n{}", self.output()));
            }
            let nodes = self.try_nodes()?;
            if nodes.len() != expected {
                return Err(format!("{} of {expected} nodes in cluster.json", nodes.len()));
            }
            nodes.iter().try_for_each(check_ready)?;
            // `up` takes a node that ends before it has said so itself for a failed start.
            match self.output().matches("Ready. Data is in").count() {
                said if said >= self.starts => Ok(()),
                said => {
                    Err(format!("raftmq up said {said} of {} times that it is ready", self.starts))
                }
            }
        });
        start.elapsed()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().and_then(|child| child.try_wait().unwrap())
    }

    /// Runs the command-line tool against one node and reads its JSON.
    pub(crate) fn tool(&self, endpoint: SocketAddr, words: &[&str]) -> Result<Value, String> {
        tool(words.iter().copied().chain(["--endpoint", &endpoint.to_string(), "--output", "json"]))
    }

    /// The replicas as one live node sees them.
    pub(crate) fn try_status(&self) -> Result<Vec<Replica>, String> {
        let live = self.try_nodes()?.into_iter().find(|node| check_ready(node).is_ok());
        let live = live.ok_or("no node is ready")?;
        self.status_by(live.grpc)
    }

    /// The replicas of the first broker group.
    pub(crate) fn status_by(&self, endpoint: SocketAddr) -> Result<Vec<Replica>, String> {
        Ok(self.groups_by(endpoint)?.swap_remove(0))
    }

    /// The replicas of every broker group, by its name.
    pub(crate) fn groups_by(&self, endpoint: SocketAddr) -> Result<Vec<Vec<Replica>>, String> {
        let value = self.tool(endpoint, &["cluster", "status"])?;
        let groups = value.as_array().ok_or_else(|| format!("no broker groups in {value}"))?;
        assert_eq!(groups.len(), usize::from(self.plan.broker_groups), "{value}");
        let replicas = |group: &Value| {
            let nodes = group["nodes"].as_array().ok_or_else(|| format!("no nodes in {group}"))?;
            nodes.iter().map(read_replica).collect()
        };
        groups.iter().map(replicas).collect()
    }

    /// Waits until one replica leads and all others follow with its applied index and state hash.
    pub(crate) fn wait_equal(&self, within: Duration) -> Vec<Replica> {
        until("one leader, and all replicas equal", within, || {
            let replicas = self.try_status()?;
            let leaders = replicas.iter().filter(|replica| replica.role == "leader").count();
            let followers = replicas.iter().filter(|replica| replica.role == "follower").count();
            let first = &replicas[0];
            let equal = replicas.iter().all(|replica| {
                replica.applied.is_some()
                    && replica.state_hash.is_some()
                    && replica.applied == first.applied
                    && replica.state_hash == first.state_hash
            });
            let complete = replicas.len() == usize::from(self.plan.nodes);
            if complete && leaders == 1 && leaders + followers == replicas.len() && equal {
                Ok(replicas)
            } else {
                Err(format!("{replicas:?}"))
            }
        })
    }

    /// Waits until all replicas that this node sees are voters, and equal.
    pub(crate) fn wait_equal_by(
        &self,
        endpoint: SocketAddr,
        nodes: &[u64],
        within: Duration,
    ) -> Vec<Replica> {
        until(&format!("nodes {nodes:?} are equal"), within, || {
            let replicas = self.status_by(endpoint)?;
            let seen: Vec<u64> = replicas.iter().map(|replica| replica.node).collect();
            let first = &replicas[0];
            let level = |replica: &Replica| {
                replica.voter
                    && replica.state_hash.is_some()
                    && replica.state_hash == first.state_hash
            };
            if seen == nodes && replicas.iter().all(level) {
                Ok(replicas.clone())
            } else {
                Err(format!("{replicas:?}"))
            }
        })
    }

    /// The node that leads, asked of the cluster itself.
    pub(crate) fn leader(&self) -> Node {
        let id = until("a leader is known", PATIENCE, || {
            let replicas = self.try_status()?;
            let leader = replicas.iter().find(|replica| replica.role == "leader");
            leader.map(|replica| replica.node).ok_or_else(|| format!("{replicas:?}"))
        });
        self.node(id)
    }

    pub(crate) fn a_follower(&self) -> Node {
        let leader = self.leader();
        self.nodes().into_iter().find(|node| node.node != leader.node).unwrap()
    }

    /// kill -9 of all nodes, at once, and of `up`.
    pub(crate) fn kill_all(&mut self) {
        let mut child = self.child.take().unwrap();
        let nodes = self.nodes();
        for node in &nodes {
            kill(node.pid, Signal::KILL);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for node in nodes {
            until("a killed node is gone", PATIENCE, || gone(node.pid));
        }
    }

    /// SIGTERM to `up`, as an init system would; waits until all of it has ended.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let nodes = self.nodes();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let status = until("raftmq up ends on SIGTERM", PATIENCE, || {
            child.try_wait().unwrap().ok_or_else(|| "is running".to_owned())
        });
        for node in nodes {
            until("a stopped node is gone", PATIENCE, || gone(node.pid));
        }
        status
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_tail(&self.output_path());
            for node in 1..=self.plan.nodes {
                print_tail(&self.data().join(format!("node-{node}/log.txt")));
            }
        }
        let Some(mut child) = self.child.take() else { return };
        // Each node leads a process group of its own.
        for node in self.try_nodes().unwrap_or_default() {
            kill(node.pid, Signal::KILL);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The end of a log file, for a test that fails.
pub(crate) fn print_tail(file: &Path) {
    const LINES: usize = 30;
    let text = fs::read_to_string(file).unwrap_or_default();
    let skipped = text.lines().count().saturating_sub(LINES);
    println!("--- the end of {} ---", file.display());
    text.lines().skip(skipped).for_each(|line| println!("{line}"));
}

/// Sends a signal to a process that may be gone already.
pub(crate) fn kill(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// `Ok` once the process has ended. A zombie has ended once it is the last of its threads: until
/// then the others may still hold its ports.
pub(crate) fn gone(pid: i32) -> Result<(), String> {
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) if !stat.contains(") Z ") => Err(format!("process {pid} lives")),
        Ok(_) if threads() > 1 => Err(format!("threads of process {pid} live")),
        _ => Ok(()),
    }
}

/// Runs the command-line tool and reads its JSON.
pub(crate) fn tool<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Value, String> {
    let output = Command::new(RAFTMQ).args(words).stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {said}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).map_err(|e| format!("{e} in {text:?}"))
}

/// `Ok` when the node answers 200 on `/readyz`.
pub(crate) fn check_ready(node: &Node) -> Result<(), String> {
    match http::get(node.http, "/readyz") {
        Ok((200, _)) => Ok(()),
        Ok((status, body)) => Err(format!("node {} answers {status}: {body}", node.node)),
        Err(error) => Err(format!("node {}: {error}", node.node)),
    }
}

fn read_node(value: &Value) -> Result<Node, String> {
    let missing = || format!("incomplete node {value}");
    let address = |key: &str| value[key].as_str()?.parse().ok();
    Ok(Node {
        node: value["node"].as_u64().ok_or_else(missing)?,
        pid: value["pid"].as_i64().and_then(|pid| pid.try_into().ok()).ok_or_else(missing)?,
        grpc: address("grpc").ok_or_else(missing)?,
        http: address("http").ok_or_else(missing)?,
        peer: address("peer").ok_or_else(missing)?,
    })
}

fn read_replica(value: &Value) -> Result<Replica, String> {
    let missing = || format!("incomplete replica {value}");
    let hash = match &value["state_hash"] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    Ok(Replica {
        node: value["node"].as_u64().ok_or_else(missing)?,
        role: value["role"].as_str().ok_or_else(missing)?.to_owned(),
        voter: value["voter"].as_bool().ok_or_else(missing)?,
        term: value["term"].as_u64().ok_or_else(missing)?,
        applied: value["applied"].as_u64(),
        state_hash: hash,
    })
}

/// Waits until nothing of the group is to be handed out and nothing is in flight: from then on
/// nothing can come again.
pub(crate) fn wait_drained(cluster: &Cluster, endpoint: SocketAddr, group: &str) {
    wait_none(cluster, endpoint, group, &["ready", "in_flight"]);
}

/// Waits until all that the group was handed out is acknowledged. What nobody wants may be left: the
/// log is told of it some seconds later.
pub(crate) fn wait_acknowledged(cluster: &Cluster, endpoint: SocketAddr, group: &str) {
    wait_none(cluster, endpoint, group, &["in_flight"]);
}

/// Waits until the group has none of what these fields count, and something was seen of it.
fn wait_none(cluster: &Cluster, endpoint: SocketAddr, group: &str, fields: &[&str]) {
    until(&format!("group {group} has none {}", fields.join(" or ")), PATIENCE, || {
        let value = cluster.tool(endpoint, &["group", "describe", group])?;
        let parts = value["parts"].as_array().ok_or_else(|| format!("no parts in {value}"))?;
        let topics: Vec<_> =
            parts.iter().filter_map(|part| part["topics"].as_array()).flatten().collect();
        let none = |topic: &Value| fields.iter().all(|field| topic[*field].as_u64() == Some(0));
        if !topics.is_empty() && topics.into_iter().all(none) {
            Ok(())
        } else {
            Err(value.to_string())
        }
    });
}

/// A base port such that every port of every node is free now. Below the range from which the
/// kernel takes the ports of outgoing connections, so that it stays free.
pub(crate) fn free_ports(nodes: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 100).unwrap() * 100;
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    (0..100)
        .map(|_| 20_000 + (start + NEXT.fetch_add(50, Ordering::Relaxed)) % 10_000)
        .find(|base| {
            (0..nodes).all(|n| (0..PORTS_PER_NODE).all(|port| free(base + n * NODE_STRIDE + port)))
        })
        .unwrap()
}
