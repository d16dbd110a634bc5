//! From the first start to the last stop.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::signal::unix::{SignalKind, signal};

use crate::base::NodeId;
use crate::config::HostPort;
use crate::node::certificate;

use super::super::failure::Failure;
use super::super::output::{Output, Table};
use super::child::{self, Running};
use super::plan::{self, Planned};
use super::{ClusterFile, NodeLine, UpError, probe};

/// Pause between two questions whether a node is ready.
const PROBE_PAUSE: Duration = Duration::from_millis(50);
/// How often it is told what is being waited for.
const NOTE_EVERY: Duration = Duration::from_secs(5);
/// A node that lived shorter than this is started again after [`RESTART_PAUSE`], not at once.
const LIFE_MIN: Duration = Duration::from_secs(1);
const RESTART_PAUSE: Duration = Duration::from_millis(500);

struct Supervisor<'a> {
    data: &'a Path,
    restart: bool,
    output: &'a Output,
    /// Nodes of this machine.
    count: usize,
    running: BTreeMap<NodeId, Running>,
    /// Nodes that wait for their next start.
    paused: Vec<(Instant, Planned)>,
    /// What the file says: also of nodes that stay dead.
    lines: BTreeMap<NodeId, NodeLine>,
}

/// Starts all, waits until all are ready, and stays until it is told to end.
pub(super) async fn supervise(
    data: &Path,
    nodes: Vec<Planned>,
    restart: bool,
    output: &Output,
) -> Result<(), Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Signals)?;
    let mut told_to_end = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let mut supervisor = Supervisor {
        data,
        restart,
        output,
        count: nodes.len(),
        running: BTreeMap::new(),
        paused: Vec::new(),
        lines: BTreeMap::new(),
    };
    let lived = tokio::select! {
        lived = supervisor.live(nodes) => lived,
        () = told_to_end() => Ok(()),
    };
    supervisor.stop(told_to_end).await;
    // Its process ids mean nothing from now on.
    let _ = std::fs::remove_file(data.join(CLUSTER_FILE));
    Ok(lived?)
}

const CLUSTER_FILE: &str = "cluster.json";

impl Supervisor<'_> {
    /// Ends only by an error: the normal end comes from outside.
    async fn live(&mut self, nodes: Vec<Planned>) -> Result<(), UpError> {
        for planned in nodes {
            self.start(planned)?;
        }
        self.write_file()?;
        self.wait_ready().await?;
        self.tell_ready();
        loop {
            let due = self.paused.iter().map(|(due, _)| *due).min();
            tokio::select! {
                (node, ended) = first_end(&mut self.running) => self.ended(node, &ended)?,
                () = until(due) => self.start_due()?,
            }
        }
    }

    fn start(&mut self, planned: Planned) -> Result<(), UpError> {
        let running = Running::start(planned, self.count, None)?;
        let planned = &running.planned;
        let at = |port| HostPort::loopback(port).to_string();
        let line = NodeLine {
            node: planned.node.get(),
            pid: running.pid,
            grpc: at(planned.ports.grpc),
            http: at(planned.ports.http),
            peer: at(planned.ports.peer),
            log: planned.log_path(),
        };
        self.lines.insert(planned.node, line);
        self.running.insert(planned.node, running);
        Ok(())
    }

    fn start_due(&mut self) -> Result<(), UpError> {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.paused).into_iter().partition(|(due, _)| *due <= now);
        self.paused = later;
        for (_, planned) in due {
            self.start(planned)?;
        }
        self.write_file()
    }

    fn ended(&mut self, node: NodeId, ended: &std::io::Result<ExitStatus>) -> Result<(), UpError> {
        let running = self.running.remove(&node).expect("only a running node can end");
        let how = child::how(ended);
        let log = running.planned.log_path();
        if self.restart {
            let short = running.started.elapsed() < LIFE_MIN;
            let pause = if short { RESTART_PAUSE } else { Duration::ZERO };
            self.output.note(format_args!("node {node} ended {how}; it is started again"));
            self.paused.push((Instant::now() + pause, running.planned));
            return Ok(());
        }
        self.output.note(format_args!("node {node} ended {how}; its log is {}", log.display()));
        if self.running.is_empty() {
            return Err(UpError::AllEnded { node, how, log });
        }
        Ok(())
    }

    /// All nodes at once, so that nobody holds an election that the next stop makes void.
    async fn stop(&mut self, told_again: impl AsyncFnOnce()) {
        let pids: Vec<u32> = self.running.values().map(|running| running.pid).collect();
        let running = std::mem::take(&mut self.running);
        let mut stops: FuturesUnordered<_> = running.into_values().map(Running::stop).collect();
        let output = self.output;
        let all = async {
            while let Some((planned, ended)) = stops.next().await {
                if !ended.as_ref().is_ok_and(ExitStatus::success) {
                    let how = child::how(&ended);
                    let log = planned.log_path();
                    let node = planned.node;
                    output.note(format_args!("node {node} stopped {how}; see {}", log.display()));
                }
            }
        };
        let hurried = tokio::select! {
            () = all => false,
            () = told_again() => true,
        };
        if hurried {
            output.note(format_args!("told twice: killing processes {pids:?}"));
            // They were started to end with this process, and it ends now.
        }
    }

    fn write_file(&self) -> Result<(), UpError> {
        let text = serde_json::to_vec_pretty(&self.file()).expect("text keys only");
        plan::replace(&self.data.join(CLUSTER_FILE), &text)
    }

    fn file(&self) -> ClusterFile {
        ClusterFile { nodes: self.lines.values().cloned().collect() }
    }

    async fn wait_ready(&mut self) -> Result<(), UpError> {
        let ports: Vec<(NodeId, u16)> = self
            .running
            .values()
            .map(|node| (node.planned.node, node.planned.ports.http))
            .collect();
        let output = self.output;
        let ready = all_ready(&ports, output);
        tokio::pin!(ready);
        loop {
            tokio::select! {
                () = &mut ready => return Ok(()),
                (node, ended) = first_end(&mut self.running) => self.ended_early(node, &ended)?,
            }
        }
    }

    /// Who was killed may come back; who gave up by itself would do so again.
    fn ended_early(
        &mut self,
        node: NodeId,
        ended: &std::io::Result<ExitStatus>,
    ) -> Result<(), UpError> {
        let running = self.running.remove(&node).expect("only a running node can end");
        let killed = ended.as_ref().is_ok_and(|status| status.signal().is_some());
        if self.restart && killed {
            self.start(running.planned)?;
            return self.write_file();
        }
        let log = running.planned.log_path();
        let last_words = child::last_words(&log).unwrap_or_default();
        Err(UpError::EndedEarly { node, how: child::how(ended), log, last_words })
    }

    fn tell_ready(&self) {
        let file = self.file();
        self.output.show(&file, table);
        if self.output.is_json() {
            return;
        }
        let first = &file.nodes[0].grpc;
        let endpoint = match first.as_str() {
            "127.0.0.1:8081" => String::new(),
            other => format!(" --endpoint {other}"),
        };
        let data = self.data.display();
        let certificate = certificate::own_files(self.data).certificate;
        let certificate = certificate.display();
        self.output.line(format_args!(
            "\nReady. Data is in {data}; Ctrl-C stops. Clients may use TLS on the same ports; the\n\
             certificate to trust is {certificate}. In another terminal:\n\
             \x20 raftmq message send --topic hello --body world{endpoint}\n\
             \x20 raftmq message receive --topic hello --group readers --ack{endpoint}\n\
             \x20 raftmq cluster status{endpoint}"
        ));
    }
}

async fn all_ready(ports: &[(NodeId, u16)], output: &Output) {
    let mut noted = Instant::now();
    for (node, port) in ports {
        while let Err(missing) = probe::ready(*port).await {
            if noted.elapsed() > NOTE_EVERY {
                output.note(format_args!("waiting for node {node}: {missing}"));
                noted = Instant::now();
            }
            tokio::time::sleep(PROBE_PAUSE).await;
        }
    }
}

/// The next node that ends. Cancel safe: a child keeps its status until it was asked for.
async fn first_end(
    running: &mut BTreeMap<NodeId, Running>,
) -> (NodeId, std::io::Result<ExitStatus>) {
    let mut ends: FuturesUnordered<_> =
        running.iter_mut().map(|(node, running)| async { (*node, running.wait().await) }).collect();
    match ends.next().await {
        Some(end) => end,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn table(file: &ClusterFile) -> Table {
    let row = |line: &NodeLine| {
        [
            line.node.to_string(),
            line.pid.to_string(),
            line.grpc.clone(),
            line.http.clone(),
            line.peer.clone(),
            line.log.display().to_string(),
        ]
    };
    Table::new(["NODE", "PID", "GRPC", "HTTP", "PEER", "LOG"], file.nodes.iter().map(row))
}
