//! `raftmq up`, with a directory of its own, for as long as a proof takes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::{Failure, root};

const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// The release build of the program.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(Failure::io("the path of this program"))?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--bin", "raftmq"]).current_dir(root());
    let status = build.status().map_err(Failure::io("cargo build"))?;
    if !status.success() {
        let (what, output) = ("cargo build".to_owned(), String::new());
        return Err(Failure::Ended { what, status, output });
    }
    // Both are built into one directory, whose parent has one for each profile.
    let target = own.parent().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
    Ok(target.join("release").join("raftmq"))
}

/// A directory that goes away with its owner.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn make() -> Result<Self, Failure> {
        let path = root().join("target").join(format!("jepsen-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(Failure::io(path.display().to_string()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is shown by its name.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Nodes under a supervisor.
pub(crate) struct Cluster {
    nodes: u16,
    program: PathBuf,
    data: PathBuf,
    restart: bool,
    base_port: u16,
    up: Child,
}

/// How a cluster ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Told,
    Killed,
}

/// A line of `cluster.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) node: u64,
    pub(crate) pid: i32,
    pub(crate) grpc: String,
    pub(crate) http: String,
}

#[derive(Debug, Deserialize)]
struct ClusterFile {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GroupStatus {
    pub(crate) nodes: Vec<NodeStatus>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) node: u64,
    pub(crate) role: String,
    pub(crate) applied: Option<u64>,
    pub(crate) state_hash: Option<String>,
}

impl Cluster {
    /// Three nodes, ready when it returns.
    pub(crate) fn start(program: &Path, data: &Path, restart: bool) -> Result<Self, Failure> {
        Self::start_of(3, program, data, restart)
    }

    /// Ready when it returns.
    pub(crate) fn start_of(
        nodes: u16,
        program: &Path,
        data: &Path,
        restart: bool,
    ) -> Result<Self, Failure> {
        let base = (700..1000_u16).map(|place| place * 30).find(|base| {
            (0..3)
                .flat_map(|node| (0..3).map(move |port| base + 10 * node + port))
                .all(|port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok())
        });
        let base_port = base.unwrap_or(21_000);
        let up = Self::up(nodes, program, data, base_port, restart)?;
        let (program, data) = (program.to_owned(), data.to_owned());
        Ok(Self { nodes, program, data, restart, base_port, up })
    }

    /// Ends all of it, cleanly or with kill -9, and starts it again over the same data. Answers how
    /// long the start took until every node was ready.
    pub(crate) fn start_again(&mut self, how: End) -> Result<Duration, Failure> {
        // A clean end takes the file with their names away.
        let nodes = self.nodes()?;
        match how {
            End::Told => signal(i32::try_from(self.up.id()).unwrap_or(0), Signal::TERM),
            End::Killed => {
                // The supervisor first, so that it does not see its nodes go.
                signal(i32::try_from(self.up.id()).unwrap_or(0), Signal::KILL);
                nodes.iter().for_each(kill);
            }
        }
        self.up.wait().map_err(Failure::io("raftmq up"))?;
        for node in nodes {
            let waiting = Instant::now();
            while lives(node.pid) {
                if waiting.elapsed() > READY_WITHIN {
                    let seconds = READY_WITHIN.as_secs();
                    return Err(Failure::Late { what: "the end of a node", seconds });
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let start = Instant::now();
        let Self { nodes, program, data, base_port, restart, .. } = self;
        self.up = Self::up(*nodes, program, data, *base_port, *restart)?;
        Ok(start.elapsed())
    }

    /// Ready when it returns.
    fn up(
        nodes: u16,
        program: &Path,
        data: &Path,
        base: u16,
        restart: bool,
    ) -> Result<Child, Failure> {
        let (base, nodes) = (base.to_string(), nodes.to_string());
        let mut up = Command::new(program);
        up.args(["up", "--nodes", &nodes, "--base-port", &base, "--output", "json", "--data"]);
        up.arg(data).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if restart {
            up.arg("--restart");
        }
        let mut up = up.spawn().map_err(Failure::io("raftmq up"))?;
        // `up` says all of it at once, and only when all nodes are ready.
        let mut first = [0; 1];
        if let Some(said) = up.stdout.as_mut() {
            std::io::Read::read_exact(said, &mut first).map_err(Failure::io("raftmq up"))?;
        }
        Ok(up)
    }

    /// The program against the first node, with this on its standard input; what it printed.
    pub(crate) fn tell(&self, words: &[&str], input: &str) -> Result<Vec<u8>, Failure> {
        let nodes = self.nodes()?;
        let what = || format!("raftmq {}", words.join(" "));
        let mut child = Command::new(&self.program);
        child.args(words).args(["--endpoint", &nodes[0].grpc, "--output", "json"]);
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().map_err(Failure::io(what()))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).map_err(Failure::io(what()))?;
        }
        let output = child.wait_with_output().map_err(Failure::io(what()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Failure::Ended { what: what(), status: output.status, output: text });
        }
        Ok(output.stdout)
    }

    /// Resident memory of each node that no file backs, in MiB; the largest one.
    pub(crate) fn anonymous_mib(&self) -> Result<u64, Failure> {
        let mut largest = 0;
        for node in self.nodes()? {
            let path = format!("/proc/{}/status", node.pid);
            let text = std::fs::read_to_string(&path).map_err(Failure::io(path))?;
            let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
            let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
            largest = largest.max(kib.unwrap_or(u64::MAX));
        }
        Ok(largest.div_ceil(1024))
    }

    pub(crate) fn nodes(&self) -> Result<Vec<Node>, Failure> {
        let path = self.data.join("cluster.json");
        let text = std::fs::read(&path).map_err(Failure::io(path.display().to_string()))?;
        let file: Result<ClusterFile, _> = serde_json::from_slice(&text);
        let what = "cluster.json".to_owned();
        Ok(file.map_err(|source| Failure::Json { what, source })?.nodes)
    }

    /// Runs the program against the first node and reads its JSON.
    pub(crate) fn ask<T: for<'a> Deserialize<'a>>(&self, words: &[&str]) -> Result<T, Failure> {
        let nodes = self.nodes()?;
        self.ask_at(&nodes[0].grpc, words)
    }

    pub(crate) fn ask_at<T: for<'a> Deserialize<'a>>(
        &self,
        endpoint: &str,
        words: &[&str],
    ) -> Result<T, Failure> {
        let mut words = words.to_vec();
        words.extend(["--endpoint", endpoint]);
        json(&self.program, &words)
    }

    /// The one that leads, as soon as there is one that any node knows of.
    pub(crate) fn leader(&self) -> Result<Node, Failure> {
        let start = Instant::now();
        while start.elapsed() < READY_WITHIN {
            for node in self.nodes()? {
                let asked = self.ask_at::<Vec<GroupStatus>>(&node.grpc, &["cluster", "status"]);
                let Ok(groups) = asked else { continue };
                let leader = groups
                    .iter()
                    .flat_map(|group| &group.nodes)
                    .find(|status| status.role == "leader");
                let Some(leader) = leader else { continue };
                if let Some(node) = self.nodes()?.into_iter().find(|node| node.node == leader.node)
                {
                    return Ok(node);
                }
            }
            std::thread::sleep(POLL);
        }
        Err(Failure::Late { what: "an election", seconds: READY_WITHIN.as_secs() })
    }

    /// Returns when all three replicas stand at the same entry with the same state.
    pub(crate) fn agree(&self) -> Result<String, Failure> {
        let start = Instant::now();
        while start.elapsed() < READY_WITHIN {
            if let Ok(groups) = self.ask::<Vec<GroupStatus>>(&["cluster", "status"]) {
                let of = |status: &NodeStatus| Some((status.applied?, status.state_hash.clone()?));
                let states: Vec<_> = groups.iter().flat_map(|group| &group.nodes).map(of).collect();
                if let Some(Some((applied, hash))) = states.first()
                    && states.len() == 3
                    && states.iter().all(|state| *state == states[0])
                {
                    return Ok(format!("state {hash} at entry {applied} on all nodes"));
                }
            }
            std::thread::sleep(POLL);
        }
        Err(Failure::Late { what: "equal states", seconds: READY_WITHIN.as_secs() })
    }
}

/// One of our own: its id comes from the supervisor that this program started.
pub(crate) fn kill(node: &Node) {
    signal(node.pid, Signal::KILL);
}

/// One that has ended and that nobody has asked about yet does not live, once it is the last of its
/// threads: until then the others may still hold its ports.
fn lives(pid: i32) -> bool {
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z ") || threads() > 1)
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have ended already, which is what is wanted.
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        signal(i32::try_from(self.up.id()).unwrap_or(0), Signal::TERM);
        // However it ended, it is gone then.
        let _ = self.up.wait();
    }
}

/// Runs the program and reads what it prints.
pub(crate) fn json<T: for<'a> Deserialize<'a>>(
    program: &Path,
    words: &[&str],
) -> Result<T, Failure> {
    let what = || format!("raftmq {}", words.join(" "));
    let output = Command::new(program).args(words).args(["--output", "json"]).output();
    let output = output.map_err(Failure::io(what()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::Ended { what: what(), status: output.status, output: text });
    }
    serde_json::from_slice(&output.stdout).map_err(|source| Failure::Json { what: what(), source })
}
