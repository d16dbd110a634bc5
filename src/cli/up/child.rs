//! One node as a child process: started, watched, stopped.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::config::Overlay;
use crate::node::Load;

use super::UpError;
use super::plan::Planned;

/// How long a node may take to hand over and stop.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Sections that differ between the nodes of one machine, so one variable cannot set them.
const OWN_SECTIONS: [&str; 3] = ["node", "listen", "advertise"];
/// How much of a node's log is looked at for its last words.
const TAIL_BYTES: u64 = 4096;

/// How many worker threads tokio takes in a node.
const THREADS: &str = "TOKIO_WORKER_THREADS";

/// Nodes of one machine share its cores: with a thread for each core in each of them, many wake-ups
/// go to threads that find nothing to do. Two are the least, so that Raft and the clients'
/// connections do not wait for each other.
fn threads(nodes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / nodes.max(1)).max(2).min(cores)
}

/// A running node.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) planned: Planned,
    pub(super) pid: u32,
    pub(super) started: Instant,
    child: Child,
}

impl Running {
    /// With a load it measures itself when it leads.
    ///
    /// Must be called on the process's main thread: the kernel ends the child when the *thread*
    /// that started it ends.
    pub(super) fn start(
        planned: Planned,
        nodes: usize,
        load: Option<Load>,
    ) -> Result<Self, UpError> {
        let log_path = planned.log_path();
        let log = File::options().create(true).append(true).open(&log_path);
        let log = log.map_err(|source| UpError::file(&log_path, source))?;
        let error_log = log.try_clone().map_err(|source| UpError::file(&log_path, source))?;
        let start = |source| UpError::Start { node: planned.node, source };
        let mut command = Command::new(std::env::current_exe().map_err(start)?);
        command
            .arg("serve")
            .arg("--config")
            .arg(planned.config_path())
            .args(["--with-parent", &std::process::id().to_string()])
            .args(load.map(|load| format!("--load={load}")))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(error_log)
            // A group of its own, so that Ctrl-C in a terminal reaches `up` alone, which then
            // stops the nodes in its own way.
            .process_group(0);
        if std::env::var_os(THREADS).is_none() {
            command.env(THREADS, threads(nodes).to_string());
        }
        for (name, _) in std::env::vars() {
            if Overlay::from_variable(&name, "")
                .is_some_and(|overlay| OWN_SECTIONS.contains(&overlay.section.as_str()))
            {
                command.env_remove(name);
            }
        }
        let child = command.spawn().map_err(start)?;
        let pid = child.id().expect("a child that was not waited for has an id");
        Ok(Self { planned, pid, started: Instant::now(), child })
    }

    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Asks it to stop; after ten seconds it is killed.
    pub(super) async fn stop(mut self) -> (Planned, io::Result<ExitStatus>) {
        self.signal(Signal::TERM);
        let ended = match tokio::time::timeout(STOP_WITHIN, self.child.wait()).await {
            Ok(ended) => ended,
            Err(_) => {
                self.signal(Signal::KILL);
                self.child.wait().await
            }
        };
        (self.planned, ended)
    }

    /// To our own child only: as long as it was not waited for, its id is not given to another.
    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself, which is what is wanted.
            let _ = kill_process(pid, signal);
        }
    }
}

/// How a process ended, for people.
pub(super) fn how(ended: &io::Result<ExitStatus>) -> String {
    match ended {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("with exit code {code}"),
            (None, Some(signal)) => format!("by signal {signal}"),
            (None, None) => "in an unknown way".to_owned(),
        },
        Err(error) => format!("in an unknown way ({error})"),
    }
}

/// The last line that a node wrote, which says why it ended.
pub(super) fn last_words(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
}
