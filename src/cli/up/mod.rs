//! `raftmq up`: a ready broker on this machine, as one or more child processes.
//!
//! Each node is `raftmq serve` with a file that `up` writes; nothing here is known to a node but
//! by that file. `up` starts them, waits until all are ready, tells so, and stops them when it is
//! told to end. A node that ends by itself stays away unless `--restart` is given.

mod child;
mod measured;
mod plan;
mod probe;
mod supervise;

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use clap::Args;
use rustix::fs::FlockOperation;

use crate::base::{Durability, NodeId};
use crate::node::certificate::{self, CertificateError};

use super::failure::Failure;
use super::here;
use super::output::Output;

pub(super) use measured::measure;
use plan::{NODES_MAX, Planned};

/// Topics and consumer groups come into being when they are first named. Ctrl-C stops all nodes;
/// the data stays, and the same command goes on with it.
#[derive(Debug, Args)]
pub(super) struct Up {
    /// How many nodes; 3 survive the loss of 1. By default what is in the data directory, or else
    /// 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=NODES_MAX))]
    nodes: Option<u64>,
    /// How many broker groups, each with a log and a leader of its own and a replica on every node.
    /// By default what is in the data directory, or else 1; more can be added later.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    broker_groups: Option<u16>,
    /// What an OK stands for in broker groups that are created now: majority-fsync or
    /// majority-memory. By default what is in the data directory, or else majority-fsync.
    #[arg(long, value_name = "MODE")]
    durability: Option<Durability>,
    /// Where configurations, data and logs of the nodes go.
    #[arg(long, value_name = "DIR", default_value = "raftmq-data")]
    data: PathBuf,
    /// Node i, from 0, takes P+10i for gRPC, P+10i+1 for HTTP, P+10i+2 for the other nodes. By
    /// default these are 8081, 5557 and 8082, each plus 10i. May differ from the start before: nodes
    /// tell each other where they are.
    #[arg(long, value_name = "P")]
    base_port: Option<u16>,
    /// Start a node again when it ends by itself or is killed.
    #[arg(long)]
    restart: bool,
}

/// Why `up` ended otherwise than by being told to.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpError {
    #[error("--nodes is {count}; allowed is 1 to {max}")]
    Nodes { count: u64, max: u64 },
    #[error("{} holds a cluster of {there} nodes, and --nodes is {asked}; use that number, or another --data", data.display())]
    OtherCount { data: PathBuf, there: u64, asked: u64 },
    #[error(
        "{} names the broker groups {there}, and --broker-groups is {asked}; a broker group cannot be taken away, so use at least their number",
        path.display()
    )]
    FewerGroups { path: PathBuf, there: String, asked: u16 },
    #[error("--base-port is 0; allowed is 1 to 65533")]
    BasePortZero,
    #[error(
        "from port {base} on there is no room for node {place}, counted from 0; the last port is 65535"
    )]
    PortsBeyondEnd { base: u16, place: u16 },
    #[error("another raftmq up runs in {}; stop it, or use another --data", data.display())]
    Runs { data: PathBuf },
    #[error("node {node} cannot have port {port}: {source}; stop who has it, or use --base-port")]
    PortTaken { node: NodeId, port: u16, source: io::Error },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the configuration {} is not understood: {source}", path.display())]
    Config { path: PathBuf, source: Box<toml::de::Error> },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("node {node} cannot be started: {source}")]
    Start { node: NodeId, source: io::Error },
    #[error("node {node} ended {how} before it was ready; its log {} ends with: {last_words}", log.display())]
    EndedEarly { node: NodeId, how: String, log: PathBuf, last_words: String },
    #[error("no node led and left figures within {limit:?}")]
    NoFigures { limit: std::time::Duration },
    #[error("no node runs any more; the last one, node {node}, ended {how}, its log is {}", log.display())]
    AllEnded { node: NodeId, how: String, log: PathBuf },
}

impl UpError {
    fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}

impl Up {
    pub(super) fn run(self, output: &Output) -> Result<(), Failure> {
        std::fs::create_dir_all(&self.data).map_err(|source| UpError::file(&self.data, source))?;
        let data = std::path::absolute(&self.data);
        let data = data.map_err(|source| UpError::file(&self.data, source))?;
        let up = Self { data, ..self };
        let _lock = lock(&up.data)?;
        let there = plan::existing(&up.data);
        let nodes = up.plan(there)?;
        check_ports(&nodes)?;
        prepare(&up.data, &nodes, up.broker_groups, up.durability)?;
        here(supervise::supervise(&up.data, nodes, up.restart, output))
    }

    /// The nodes to start, where so many are `there` already.
    fn plan(&self, there: u64) -> Result<Vec<Planned>, UpError> {
        let count = self.nodes.unwrap_or_else(|| there.max(1));
        if there != 0 && there != count {
            let data = self.data.clone();
            return Err(UpError::OtherCount { data, there, asked: count });
        }
        plan::plan(&self.data, count, self.base_port)
    }
}

/// Writes what nodes read at their start.
fn prepare(
    data: &Path,
    nodes: &[Planned],
    broker_groups: Option<u16>,
    durability: Option<Durability>,
) -> Result<(), UpError> {
    certificate::keep_own(data, &Ipv4Addr::LOCALHOST.to_string())?;
    plan::write_configs(nodes, broker_groups, durability)
}

/// Held as long as the file is open, and given back by the kernel however the process ends.
fn lock(data: &Path) -> Result<File, UpError> {
    let path = data.join("up.lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|source| UpError::file(&path, source))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(UpError::Runs { data: data.to_owned() }),
        Err(error) => Err(UpError::file(&path, error.into())),
    }
}

/// A port that is taken is told here by name, and not by a node's log.
fn check_ports(nodes: &[Planned]) -> Result<(), UpError> {
    for planned in nodes {
        for port in [planned.ports.grpc, planned.ports.http, planned.ports.peer] {
            let node = planned.node;
            TcpListener::bind(("127.0.0.1", port)).map_err(|source| UpError::PortTaken {
                node,
                port,
                source,
            })?;
        }
    }
    Ok(())
}

/// What `DIR/cluster.json` holds, and what `--output json` prints.
#[derive(Debug, serde::Serialize)]
struct ClusterFile {
    nodes: Vec<NodeLine>,
}

#[derive(Clone, Debug, serde::Serialize)]
struct NodeLine {
    node: u64,
    pid: u32,
    grpc: String,
    http: String,
    peer: String,
    log: PathBuf,
}
