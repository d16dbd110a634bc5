//! What opening a replica's files checks, and why they cannot be opened.

use std::io;
use std::path::PathBuf;

use crate::base::{BrokerGroupId, Durability, LogIndex, NodeId};
use crate::commit_log::{self, CommitLog, Identity};
use crate::env::Env;
use crate::machine::{self, Machine};
use crate::raft::log_store::InstalledCell;
use crate::raft::options::{Options, OptionsError};
use crate::raft::refill;
use crate::raft::snapshot::SnapshotFile;
use crate::raft::state_machine::installed;
use crate::raft::types::index_of;

/// Why the files of a replica cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("{path}: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Identity(#[from] commit_log::IdentityError),
    #[error(
        "{path} belongs to node {found}, but this is node {node}; every node needs its own directory"
    )]
    OtherNode { path: PathBuf, found: NodeId, node: NodeId },
    #[error("{path} belongs to broker group {found}, but {group} is configured for it")]
    OtherGroup { path: PathBuf, found: BrokerGroupId, group: BrokerGroupId },
    #[error(
        "the configuration says durability {configured}, but the broker group in {path} was created \
         with {stored}, which cannot be changed; correct or remove broker.durability"
    )]
    OtherDurability { path: PathBuf, configured: Durability, stored: Durability },
    #[error(transparent)]
    Log(#[from] commit_log::OpenError),
    #[error("the log has entries, but the vote that came before them is lost")]
    VoteLost,
    #[error(transparent)]
    Machine(#[from] machine::OpenError),
    #[error(
        "the state is at entry {applied}, but the log ends at {last:?}: the log lost its end. Start \
         with an empty directory under a new node id and replace this node"
    )]
    StateAheadOfLog { applied: LogIndex, last: Option<LogIndex> },
    #[error(
        "the log begins behind entry {purged}, but no file here has the state at that entry or behind \
         it: the snapshot file and the states at marks are lost or damaged. Start with an empty \
         directory under a new node id and replace this node"
    )]
    FloorLost { purged: LogIndex },
    #[error("the state at the log's start cannot be used: {0}")]
    Floor(#[from] machine::InstallError),
    #[error("the flusher thread cannot be started: {0}")]
    Thread(io::Error),
}

impl OpenError {
    /// Whether [`crate::raft::refill`] can put back what is lost.
    pub fn is_mendable(&self) -> bool {
        match self {
            Self::VoteLost => true,
            Self::Log(error) => refill::is_mendable(error),
            _ => false,
        }
    }
}

/// A peer's state that this replica began with may be damaged while the snapshot is good: the same,
/// or a newer one.
pub(crate) fn open_machine(env: &Env, options: &Options) -> Result<Machine, OpenError> {
    let dir = options.dir.join("machine");
    let opened = match Machine::open(env, &dir, options.machine) {
        Err(error @ machine::OpenError::Floor { .. }) => {
            let path = options.dir.join("snapshot");
            let snapshots = SnapshotFile { disk: env.disk.clone(), path: path.clone() };
            let good = snapshots.load_if_good();
            let good = good.map_err(|source| OpenError::Directory { path, source })?;
            if good.is_none() {
                return Err(error.into());
            }
            tracing::error!(%error, "the snapshot takes its place");
            Machine::discard_floor(env, &dir)?;
            Machine::open(env, &dir, options.machine)
        }
        opened => opened,
    };
    let machine = opened?;
    for rejected in &machine.opened().rejected {
        let (file, reason) = (&rejected.file, &rejected.reason);
        tracing::error!(file, %reason, "passed by; what it held comes from the log again");
    }
    Ok(machine)
}

pub(crate) fn check_identity(
    identity: Option<Identity>,
    options: &Options,
) -> Result<(), OpenError> {
    let Some(identity) = identity else { return Ok(()) };
    let (node, found, path) = (options.node, identity.node, options.dir.clone());
    if found != node {
        return Err(OpenError::OtherNode { path, found, node });
    }
    if identity.group != options.group {
        let found = identity.group;
        return Err(OpenError::OtherGroup { path, found, group: options.group });
    }
    let stored = identity.durability;
    match options.durability {
        Some(configured) if configured != stored => {
            Err(OpenError::OtherDurability { path, configured, stored })
        }
        Some(_) | None => Ok(()),
    }
}

/// The log must reach as far as the state, or openraft would drop all of it (openraft.md, T5).
pub(crate) fn check_state(
    machine: &Machine,
    log: &CommitLog,
    snapshots: &SnapshotFile,
    cell: &InstalledCell,
) -> Result<(), OpenError> {
    let Some((applied, _)) = machine.state().applied() else { return Ok(()) };
    let last = log.bounds().last.map(|(index, _)| index);
    if last >= Some(applied) {
        return Ok(());
    }
    let unreadable = |source| OpenError::Directory { path: snapshots.path.clone(), source };
    let snapshot = snapshots.load_if_good().map_err(unreadable)?.map(|(contents, _)| contents);
    match snapshot.filter(|contents| index_of(&contents.last) == applied) {
        // A peer's state was installed, and the log was not told before the crash.
        Some(contents) => *cell.lock() = Some(installed(&contents)),
        None => return Err(OpenError::StateAheadOfLog { applied, last }),
    }
    Ok(())
}
