//! Three nodes that live for one measurement from inside: `raftmq bench raft`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::node::{Figures, Load, REPORT};

use super::child::{self, Running};
use super::plan::{self, Planned};
use super::{UpError, check_ports, prepare};

const NODES: u64 = 3;
/// Ports that are tried; 30 are between the first and the last one of a cluster.
const BASES: std::ops::Range<u16> = 700..1000;
const STRIDE: u16 = 30;
const POLL: Duration = Duration::from_millis(50);
/// For the start, the election and the warm-up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that goes away with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn make(data: &Path) -> Result<Self, UpError> {
        let data = std::path::absolute(data).map_err(|source| UpError::file(data, source))?;
        let path = data.join(format!("raftmq-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|source| UpError::file(&path, source))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is shown by its name, and a second failure would hide the first.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts the nodes below `data`, waits for the leader's figures, and leaves nothing behind.
pub(in crate::cli) async fn measure(data: &Path, load: Load) -> Result<Figures, UpError> {
    let scratch = Scratch::make(data)?;
    let nodes = free(&scratch.0)?;
    prepare(&scratch.0, &nodes, None, None)?;
    let count = nodes.len();
    let start = |planned| Running::start(planned, count, Some(load));
    let running: Result<Vec<Running>, UpError> = nodes.into_iter().map(start).collect();
    let mut running = running?;
    let limit = PATIENCE + Duration::from_secs(load.seconds);
    let waited = tokio::time::timeout(limit, figures(&mut running)).await;
    for node in &running {
        node.signal(rustix::process::Signal::KILL);
    }
    for node in &mut running {
        // Killed on purpose, so how it ended says nothing.
        let _ = node.wait().await;
    }
    waited.unwrap_or(Err(UpError::NoFigures { limit }))
}

fn free(data: &Path) -> Result<Vec<Planned>, UpError> {
    let mut taken = None;
    for base in BASES {
        let nodes = plan::plan(data, NODES, Some(base * STRIDE))?;
        match check_ports(&nodes) {
            Ok(()) => return Ok(nodes),
            Err(error) => taken = Some(error),
        }
    }
    Err(taken.expect("there are bases to try"))
}

async fn figures(running: &mut [Running]) -> Result<Figures, UpError> {
    loop {
        for node in running.iter_mut() {
            let path = node.planned.data_path().join(REPORT);
            if let Ok(text) = std::fs::read(&path) {
                let figures = serde_json::from_slice(&text);
                return figures.map_err(|error| UpError::file(&path, error.into()));
            }
            let ended = tokio::time::timeout(Duration::from_millis(1), node.wait()).await;
            if let Ok(ended) = ended {
                let log = node.planned.log_path();
                let last_words = child::last_words(&log).unwrap_or_default();
                let (node, how) = (node.planned.node, child::how(&ended));
                return Err(UpError::EndedEarly { node, how, log, last_words });
            }
        }
        tokio::time::sleep(POLL).await;
    }
}
