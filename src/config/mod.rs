//! What an operator may decide, read once and checked once.
//!
//! What it is: a TOML file, overlaid by environment variables, overlaid by flags ([`Sources`]),
//! turned into a checked [`Config`]. The later source wins: flag, then environment, then file,
//! then the default of the profile.
//! Promises: a `Config` that exists is consistent; each broken relation is an error of its own
//! that shows both values; a key that nothing reads is refused.
//! Never: a setting that changes what an applied entry means (rule R3), or a re-read while running.
//! Start reading at [`Config`], then `raw` for the keys and `check` for the relations.

mod address;
mod check;
mod error;
mod example;
mod raw;
mod sources;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::base::{BrokerGroupName, ByteSize, Durability, Millis, NodeId};

pub use address::{HostPort, HostPortError};
pub use error::{ConfigError, OverlayError, RelationError};
pub use example::EXAMPLE;
pub use sources::{Overlay, Sources};

/// Everything that one node is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub node: NodeId,
    /// The node's own directory, locked while it runs. Relative paths start at the working
    /// directory of the process.
    pub data: PathBuf,
    pub profile: Profile,
    pub listen: Listen,
    pub advertise: Advertise,
    /// What the client port serves TLS with. Without it the dev profile makes its own certificate,
    /// and production serves plaintext only.
    pub tls: Option<TlsFiles>,
    /// Who founds the cluster, or where a node that comes later finds the others; this node among
    /// them, sorted by node. Afterwards the log knows the members.
    pub members: Vec<Member>,
    /// The broker groups of the cluster, all with the same members; sorted, never empty.
    pub broker_groups: Vec<BrokerGroupName>,
    /// Peer ports of name servers that run alone; this node registers with all of them.
    pub name_servers: Vec<HostPort>,
    pub log: LogSettings,
    pub retention: RetentionSettings,
    pub raft: RaftSettings,
    /// What a broker group that is created now acknowledges with, and one that is there must. Those
    /// that are left out are created with the default, and may have any.
    pub durability: BTreeMap<BrokerGroupName, Durability>,
    /// Topics and groups come into being when a client first names them.
    pub create_on_use: bool,
    /// How far ahead a message may be delayed.
    pub delay_max: Millis,
    pub transactions: TransactionSettings,
    /// Admin calls are answered to any peer, not to loopback peers only.
    pub admin_from_anywhere: bool,
    pub index: IndexSettings,
}

/// Everything that a name server which runs alone is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameServerConfig {
    pub listen: Listen,
    /// Without it plaintext only.
    pub tls: Option<TlsFiles>,
}

/// A set of defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Topics and groups on first use, small segments.
    Dev,
    /// Nothing comes into being by a typing error; segments of 1 GiB.
    Production,
}

impl Profile {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Production => "production",
        }
    }
}

/// Where the node binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub peer: SocketAddr,
    /// Open connections at once, for each of the three ports.
    pub connections_max: u32,
}

/// What the node tells others about where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertise {
    pub grpc: HostPort,
    pub peer: HostPort,
}

/// Two PEM files, read once at start. Relative paths start at the working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The node's certificate first, then those that lead to its root.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
    pub peer: HostPort,
    pub grpc: HostPort,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub segment: ByteSize,
    /// Log bytes between two checkpoints of the machine; bounds the replay at start.
    pub checkpoint: ByteSize,
    /// Sealed bytes that the scrub reads in a second.
    pub scrub_per_second: ByteSize,
    /// New messages are refused while a majority has less than this left for its log.
    pub reserve: ByteSize,
}

/// What a broker group keeps while this node leads it; see [`crate::command::Retention`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionSettings {
    /// 0 for ever.
    pub time: Millis,
    /// 0 without a limit.
    pub bytes: ByteSize,
    pub stride: ByteSize,
    pub under_way: ByteSize,
}

/// How producers are asked about messages that nobody has decided. Logged with each message that
/// this node takes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionSettings {
    /// Time to the first check where the message does not say it.
    pub first_check: Millis,
    pub check_interval: Millis,
    pub checks_max: u32,
}

/// How messages are found again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSettings {
    /// Log bytes that are read in a second while the index is far behind.
    pub bytes_per_second: ByteSize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftSettings {
    pub heartbeat: Millis,
    pub election_min: Millis,
    pub election_max: Millis,
    /// Requests that may be under way at this node; more are refused.
    pub under_way: ByteSize,
}
