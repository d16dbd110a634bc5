//! How a replica is set up.

use std::path::PathBuf;
use std::time::Duration;

use crate::base::{BrokerGroupId, ByteSize, Durability, Millis, NodeId};
use crate::raft::Net;
use crate::{commit_log, machine};

/// One replica of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
    /// Where other replicas reach it, `host:port`.
    pub peer: String,
    /// What it tells clients to call, `host:port`.
    pub grpc: String,
}

/// Election timing. A fail-over takes `election_max` plus a time between the two bounds
/// (openraft.md, T11): about a second with the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub heartbeat: Millis,
    pub election_min: Millis,
    pub election_max: Millis,
    /// A stream on which an answer is due for so long is given up. A follower that hangs would
    /// pin the leader's log otherwise (openraft.md, T6).
    pub idle: Millis,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Millis::new(100),
            election_min: Millis::new(300),
            election_max: Millis::new(600),
            idle: Millis::new(3_000),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub node: NodeId,
    pub group: BrokerGroupId,
    /// Holds the identity, the log and the machine's files; made if absent.
    pub dir: PathBuf,
    /// All replicas of the group at its first start, this one among them. The log has the last
    /// word on who they are; of a node that joins later, where to find the others.
    pub members: Vec<Member>,
    pub timing: Timing,
    pub log: commit_log::Options,
    pub machine: machine::Options,
    /// Commands that may be under way at this node, at most; more are refused at once. As a rule
    /// the bound is lower: what drains in a fraction of a second.
    pub admission: ByteSize,
    /// New messages are refused while a majority has less than this free or set aside for the log.
    pub reserve: ByteSize,
    /// What a new broker group is created with; one that is there must have it. `None` takes what
    /// there is, and creates with majority-fsync.
    pub durability: Option<Durability>,
    /// False in a simulation: then everything runs as tasks of one executor.
    pub threads: bool,
    /// How the other members are reached.
    pub net: Net,
}

/// Log between two checkpoints; a restart applies at most about this much again.
const CHECKPOINT: ByteSize = ByteSize::mib(256);

/// Why options cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("node {node} is not in the list of members; add it, with its peer address")]
    NotAMember { node: NodeId },
    #[error("node {node} is in the list of members twice; every replica needs an id of its own")]
    TwiceAMember { node: NodeId },
    #[error(
        "heartbeat {heartbeat}, election {election_min} to {election_max}: each must be below the \
         next, and the heartbeat at most half of the shortest election"
    )]
    Timing { heartbeat: Millis, election_min: Millis, election_max: Millis },
    #[error("{limit} of commands under way; allowed is {ADMISSION_MIN} to {ADMISSION_MAX}")]
    Admission { limit: ByteSize },
}

/// One command alone is always admitted, so that the bound may be below the largest.
pub const ADMISSION_MIN: ByteSize = ByteSize::kib(16);
pub const ADMISSION_MAX: ByteSize = ByteSize::gib(1);

/// A command may have so many bytes; a client's batch is at most 4 MiB (design.md, section 4), the
/// rest is for what goes around it.
pub(crate) const COMMAND_MAX: usize = (4 << 20) + (512 << 10);

impl Options {
    /// With the product's defaults for everything that is not a place or a name.
    pub fn new(node: NodeId, dir: PathBuf, members: Vec<Member>) -> Self {
        Self {
            node,
            group: BrokerGroupId::new(0),
            dir,
            members,
            timing: Timing::default(),
            log: commit_log::Options::default(),
            machine: machine::Options {
                checkpoint_bytes: CHECKPOINT.get(),
                ..machine::Options::default()
            },
            admission: ByteSize::mib(64),
            reserve: ByteSize::mib(64),
            durability: None,
            threads: true,
            net: Net::default(),
        }
    }

    pub fn check(&self) -> Result<(), OptionsError> {
        let count = |node| self.members.iter().filter(|member| member.node == node).count();
        if count(self.node) == 0 {
            return Err(OptionsError::NotAMember { node: self.node });
        }
        if let Some(twice) = self.members.iter().find(|member| count(member.node) > 1) {
            return Err(OptionsError::TwiceAMember { node: twice.node });
        }
        let Timing { heartbeat, election_min, election_max, .. } = self.timing;
        if heartbeat.get() * 2 > election_min.get() || election_min >= election_max {
            return Err(OptionsError::Timing { heartbeat, election_min, election_max });
        }
        if !(ADMISSION_MIN..=ADMISSION_MAX).contains(&self.admission) {
            return Err(OptionsError::Admission { limit: self.admission });
        }
        Ok(())
    }

    /// The one that founds a new group: the lowest id.
    pub(crate) fn founder(&self) -> NodeId {
        self.members.iter().map(|member| member.node).min().unwrap_or(self.node)
    }

    /// This node as it was configured.
    pub(crate) fn own(&self) -> &Member {
        let own = self.members.iter().find(|member| member.node == self.node);
        own.expect("checked: a node is among its members")
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.node != self.node)
    }
}

impl Timing {
    /// The settings that openraft.md, section 4, gives for the product.
    pub(crate) fn config(&self, group: BrokerGroupId, durability: Durability) -> openraft::Config {
        openraft::Config {
            cluster_name: format!("broker group {group}"),
            heartbeat_interval: self.heartbeat.get(),
            election_timeout_min: self.election_min.get(),
            election_timeout_max: self.election_max.get(),
            install_snapshot_timeout: 10_000,
            max_payload_entries: 300,
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: 0,
            purge_batch_size: 1,
            enable_pre_vote: Some(true),
            // Until the clocks are compared, see `vitals`.
            enable_elect: false,
            enable_leader_restore: Some(false),
            backoff: "100ms".to_owned(),
            // After a loss of power a log may be shorter than what it acknowledged (T10).
            allow_log_reversion: (durability == Durability::MajorityMemory).then_some(true),
            ..openraft::Config::default()
        }
    }

    pub(crate) fn idle(&self) -> Duration {
        self.idle.duration()
    }
}
