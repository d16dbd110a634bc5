//! Why a node cannot be configured so. One variant for each relation, with both of its values.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::base::{BrokerGroupName, ByteSize, Millis, NameError, NodeId};

use super::address::HostPort;

/// Why [`super::Sources::load`] gave no `Config`.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the configuration file {} is not understood: {source}", path.display())]
    File { path: PathBuf, source: Box<toml::de::Error> },
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    #[error(transparent)]
    Relation(#[from] RelationError),
}

/// An environment variable or a flag that names no setting, or not with this value.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    #[error("{origin} names no setting; write SECTION and KEY, as in {example}")]
    Name { origin: String, example: &'static str },
    #[error("{origin} sets {section}.{key} to {value:?}: {why}")]
    Value { origin: String, section: String, key: String, value: String, why: String },
}

/// Settings that do not go together, or that are missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelationError {
    #[error("node.id is missing; give each node its own number from 1")]
    NoNodeId,
    #[error("node.id is 0; ids count from 1")]
    NodeIdZero,
    #[error("node.data is missing; name a directory of this node's own")]
    NoData,
    #[error(
        "node.id is {node}, but [[members]] lists only {members}; add this node or correct the id"
    )]
    NotAMember { node: NodeId, members: String },
    #[error("[[members]] lists node {node} twice, at {first} and at {second}")]
    MemberTwice { node: NodeId, first: HostPort, second: HostPort },
    #[error("[[members]] gives nodes {first} and {second} the same {what} address {address}")]
    AddressTwice { what: &'static str, address: HostPort, first: NodeId, second: NodeId },
    #[error("broker.groups has {count} names; allowed is 1 to {max}")]
    BrokerGroups { count: usize, max: usize },
    #[error("[{section}] is for brokers; a name server reads [listen] and [tls] only")]
    NotForNameServers { section: &'static str },
    #[error(
        "broker.durability has {entry:?}: {why}; write majority-fsync or majority-memory for all \
         broker groups, or NAME=MODE for one"
    )]
    Durability { entry: String, why: String },
    #[error("broker.name_servers has {address:?}: {why}")]
    NameServer { address: String, why: String },
    #[error("broker.groups: {0}")]
    BrokerGroup(NameError),
    #[error("broker.groups names {first} and {second}, which have the same number; rename one")]
    BrokerGroupTwice { first: BrokerGroupName, second: BrokerGroupName },
    #[error("[[members]] lists {count} nodes; at most {max} vote")]
    TooManyMembers { count: usize, max: usize },
    #[error(
        "advertise.{what} is {advertise}, but this node's entry in [[members]] says {member}; they must be equal"
    )]
    AdvertiseDiffers { what: &'static str, advertise: HostPort, member: HostPort },
    #[error(
        "advertise.{what} is missing, and listen.{what} {listen} is no address that others can call; set advertise.{what}"
    )]
    NoAdvertise { what: &'static str, listen: SocketAddr },
    #[error(
        "listen.{first} {address} and listen.{second} {other} want the same port; give each its own"
    )]
    SamePort { first: &'static str, second: &'static str, address: SocketAddr, other: SocketAddr },
    #[error("tls.{set} is {}, and tls.{not} is missing; set both, or none", path.display())]
    HalfTls { set: &'static str, path: PathBuf, not: &'static str },
    #[error("listen.connections_max is {value}; allowed is {min} to {max}")]
    Connections { value: u32, min: u32, max: u32 },
    #[error("log.{what} is {value}; allowed is {min} to {max}")]
    Size { what: &'static str, value: ByteSize, min: ByteSize, max: ByteSize },
    #[error(
        "retention.bytes is {bytes}, but two segments of log.segment_bytes {segment} take more; only \
         whole segments leave, so keep more or make segments smaller"
    )]
    RetentionBelowSegments { bytes: ByteSize, segment: ByteSize },
    #[error(
        "log.checkpoint_bytes {checkpoint} is less than a quarter of log.segment_bytes {segment}; a checkpoint that often costs more than the replay it saves"
    )]
    CheckpointBelowSegment { checkpoint: ByteSize, segment: ByteSize },
    #[error("broker.delay_max is {value}; allowed is {min} to {max}")]
    Delay { value: Millis, min: Millis, max: Millis },
    #[error("raft.heartbeat_ms is {value}; allowed is {min} to {max}")]
    Heartbeat { value: u64, min: u64, max: u64 },
    #[error(
        "raft.election_min_ms {election_min} is less than twice raft.heartbeat_ms {heartbeat}; one late heartbeat would start an election"
    )]
    ElectionBeforeHeartbeat { election_min: u64, heartbeat: u64 },
    #[error(
        "raft.election_max_ms {election_max} is not above raft.election_min_ms {election_min}; without a spread nodes stand for election together"
    )]
    ElectionSpread { election_min: u64, election_max: u64 },
    #[error("raft.under_way_bytes is {value}; allowed is {min} to {max}")]
    UnderWay { value: ByteSize, min: ByteSize, max: ByteSize },
    #[error("transactions.{what} is {value}; allowed is {min} to {max}")]
    Transactions { what: &'static str, value: u64, min: u64, max: u64 },
    #[error("index.{what} is {value}; allowed is {min} to {max}")]
    Index { what: &'static str, value: ByteSize, min: ByteSize, max: ByteSize },
    #[error("raft.election_max_ms is {value}; allowed is up to {max}")]
    ElectionTooLong { value: u64, max: u64 },
}
