//! From what is written to what holds: every relation between settings, checked in one place.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::base::{BrokerGroupName, ByteSize, Durability, Millis, NodeId};
use crate::{commit_log, raft};

use super::address::{HostPort, HostPortError};
use super::error::RelationError;
use super::raw::{
    Raw, RawAdvertise, RawBroker, RawIndex, RawListen, RawLog, RawMember, RawProfile, RawRaft,
    RawRetention, RawTls, RawTransactions,
};
use super::{
    Advertise, Config, IndexSettings, Listen, LogSettings, Member, NameServerConfig, Profile,
    RaftSettings, RetentionSettings, TlsFiles, TransactionSettings,
};

/// Raft with more voters is slower and not safer.
const MEMBERS_MAX: usize = 9;
/// Twice the largest entry (4 MiB, `design.md` section 4), so that any entry fits with room.
const SEGMENT_MIN: ByteSize = ByteSize::mib(8);
const SEGMENT_MAX: ByteSize = ByteSize::new(commit_log::SEGMENT_BYTES_MAX);
const CHECKPOINT_MIN: ByteSize = ByteSize::mib(1);
const CHECKPOINT_MAX: ByteSize = ByteSize::gib(64);
/// What may be under way at a node, and some air.
const RESERVE_MIN: ByteSize = ByteSize::mib(64);
const RESERVE_MAX: ByteSize = ByteSize::gib(1024);
const SCRUB_MIN: ByteSize = ByteSize::mib(1);
const SCRUB_MAX: ByteSize = ByteSize::gib(4);
const INDEXED: ByteSize = ByteSize::mib(64);
const INDEXED_MIN: ByteSize = ByteSize::new(4 << 10);
const INDEXED_MAX: ByteSize = ByteSize::gib(4);
const CONNECTIONS_MIN: u32 = 16;
const CONNECTIONS_MAX: u32 = 1_000_000;
const UNDER_WAY_MIN: ByteSize = raft::ADMISSION_MIN;
const UNDER_WAY_MAX: ByteSize = raft::ADMISSION_MAX;
const HEARTBEAT_MIN: u64 = 10;
const HEARTBEAT_MAX: u64 = 10_000;
const ELECTION_MAX: u64 = 60_000;

/// As long as RocketMQ keeps its files by default.
const RETENTION_TIME: Millis = Millis::from_secs(72 * 60 * 60);
const STRIDE_MIN: ByteSize = ByteSize::mib(1);
const STRIDE_MAX: ByteSize = ByteSize::gib(4);
/// What messages under way may keep beyond the log's front where the log has no limit in bytes.
const UNDER_WAY_KEPT: ByteSize = ByteSize::gib(1);

/// As RocketMQ's broker has them by default.
const FIRST_CHECK: Millis = Millis::from_secs(6);
const CHECK_INTERVAL: Millis = Millis::from_secs(30);
const CHECKS: u32 = 15;
/// Milliseconds; a check that comes back within less would meet the answer of the one before.
const CHECK_INTERVAL_MIN: u64 = 100;
const CHECK_INTERVAL_MAX: u64 = 24 * 60 * 60 * 1000;
const CHECKS_MAX: u32 = 1000;

/// The broker group of a cluster that names none.
const BROKER_GROUP: &str = "group-0";
/// Each has its own log, flusher and connections; more of them than disks only cost.
const BROKER_GROUPS_MAX: usize = 16;

/// RocketMQ's proxy port for gRPC clients; HTTP as RocketMQ's exporters; the peer port is ours.
pub(super) const GRPC_PORT: u16 = 8081;
pub(super) const HTTP_PORT: u16 = 5557;
pub(super) const PEER_PORT: u16 = 8082;

impl TryFrom<Raw> for Config {
    type Error = RelationError;

    fn try_from(raw: Raw) -> Result<Self, RelationError> {
        let profile = match raw.node.profile {
            Some(RawProfile::Dev) => Profile::Dev,
            Some(RawProfile::Production) | None => Profile::Production,
        };
        let node = match raw.node.id {
            None => return Err(RelationError::NoNodeId),
            Some(0) => return Err(RelationError::NodeIdZero),
            Some(id) => NodeId::new(id),
        };
        let data = raw.node.data.filter(|data| !data.as_os_str().is_empty());
        let data = data.ok_or(RelationError::NoData)?;
        let members = listed_members(&raw.members)?;
        let own = own_member(node, &members)?;
        let listen = listen(&raw.listen)?;
        let broker_groups = broker_groups(raw.broker.groups)?;
        let advertise = advertise(raw.advertise, &listen, own)?;
        let members = if members.is_empty() {
            vec![Member { node, peer: advertise.peer.clone(), grpc: advertise.grpc.clone() }]
        } else {
            members
        };
        let log = log(&raw.log, profile)?;
        let retention = retention(&raw.retention, &log)?;
        Ok(Self {
            node,
            data,
            profile,
            listen,
            advertise,
            tls: tls(raw.tls)?,
            members,
            durability: durability(&raw.broker.durability.unwrap_or_default(), &broker_groups)?,
            broker_groups,
            name_servers: name_servers(&raw.broker.name_servers.unwrap_or_default())?,
            log,
            retention,
            raft: raft(&raw.raft)?,
            delay_max: delay_max(raw.broker.delay_max)?,
            create_on_use: raw.broker.create_on_use.unwrap_or(profile == Profile::Dev),
            transactions: transactions(&raw.transactions)?,
            admin_from_anywhere: raw.admin.from_anywhere.unwrap_or(false),
            index: index(&raw.index)?,
        })
    }
}

impl TryFrom<Raw> for NameServerConfig {
    type Error = RelationError;

    /// A setting of a section that a name server has no use for is refused, like any other that
    /// nothing reads.
    fn try_from(raw: Raw) -> Result<Self, RelationError> {
        let Raw {
            node,
            listen: ports,
            advertise,
            tls: files,
            members,
            log,
            retention,
            raft,
            broker,
            transactions,
            admin,
            index,
        } = raw;
        let used = [
            ("node", node.id.is_some() || node.data.is_some() || node.profile.is_some()),
            ("advertise", advertise.grpc.is_some() || advertise.peer.is_some()),
            ("members", !members.is_empty()),
            ("log", log != RawLog::default()),
            ("retention", retention != RawRetention::default()),
            ("raft", raft != RawRaft::default()),
            ("broker", broker != RawBroker::default()),
            ("transactions", transactions != RawTransactions::default()),
            ("admin", admin.from_anywhere.is_some()),
            ("index", index != RawIndex::default()),
        ];
        match used.into_iter().find(|(_, used)| *used) {
            Some((section, _)) => Err(RelationError::NotForNameServers { section }),
            None => Ok(Self { listen: listen(&ports)?, tls: tls(files)? }),
        }
    }
}

/// Two years, and the shortest delay there is.
const DELAY_MAX: Millis = Millis::from_secs(730 * 24 * 60 * 60);
const DELAY_MIN: Millis = Millis::new(1);

/// `MODE` is for all broker groups that are not named, `NAME=MODE` for one.
fn durability(
    entries: &[String],
    broker_groups: &[BrokerGroupName],
) -> Result<BTreeMap<BrokerGroupName, Durability>, RelationError> {
    let broken = |entry: &String, why: &dyn ToString| RelationError::Durability {
        entry: entry.clone(),
        why: why.to_string(),
    };
    let (mut rest, mut named) = (None, BTreeMap::new());
    for entry in entries {
        let (name, mode) = match entry.split_once('=') {
            Some((name, mode)) => (Some(name.trim()), mode.trim()),
            None => (None, entry.trim()),
        };
        let mode: Durability = mode.parse().map_err(|error| broken(entry, &error))?;
        let twice = match name {
            Some(name) => {
                let known = broker_groups.iter().find(|group| group.as_str() == name);
                let known =
                    known.ok_or_else(|| broken(entry, &"broker.groups has no such name"))?;
                named.insert(known.clone(), mode).is_some()
            }
            None => rest.replace(mode).is_some(),
        };
        if twice {
            return Err(broken(entry, &"it was said before"));
        }
    }
    if let Some(mode) = rest {
        for group in broker_groups {
            named.entry(group.clone()).or_insert(mode);
        }
    }
    Ok(named)
}

fn name_servers(addresses: &[String]) -> Result<Vec<HostPort>, RelationError> {
    let parse = |address: &String| {
        let broken = |why: HostPortError| RelationError::NameServer {
            address: address.clone(),
            why: why.to_string(),
        };
        address.parse().map_err(broken)
    };
    addresses.iter().map(parse).collect()
}

/// Also the names of directories, so that the shell and the disk see each group's own.
fn broker_groups(raw: Option<Vec<String>>) -> Result<Vec<BrokerGroupName>, RelationError> {
    let raw = raw.unwrap_or_else(|| vec![BROKER_GROUP.to_owned()]);
    let count = raw.len();
    if !(1..=BROKER_GROUPS_MAX).contains(&count) {
        return Err(RelationError::BrokerGroups { count, max: BROKER_GROUPS_MAX });
    }
    let named = raw.iter().map(|name| BrokerGroupName::new(name));
    let mut names = named.collect::<Result<Vec<_>, _>>().map_err(RelationError::BrokerGroup)?;
    names.sort();
    for (at, first) in names.iter().enumerate() {
        for second in &names[at + 1..] {
            if first.id() == second.id() {
                let (first, second) = (first.clone(), second.clone());
                return Err(RelationError::BrokerGroupTwice { first, second });
            }
        }
    }
    Ok(names)
}

fn listed_members(raw: &[RawMember]) -> Result<Vec<Member>, RelationError> {
    if raw.len() > MEMBERS_MAX {
        return Err(RelationError::TooManyMembers { count: raw.len(), max: MEMBERS_MAX });
    }
    let mut members: Vec<Member> = raw
        .iter()
        .map(|member| Member {
            node: NodeId::new(member.id),
            peer: member.peer.clone(),
            grpc: member.grpc.clone(),
        })
        .collect();
    members.sort_by_key(|member| member.node);
    if members.first().is_some_and(|member| member.node.get() == 0) {
        return Err(RelationError::NodeIdZero);
    }
    for (at, first) in members.iter().enumerate() {
        for second in &members[at + 1..] {
            if first.node == second.node {
                return Err(RelationError::MemberTwice {
                    node: first.node,
                    first: first.peer.clone(),
                    second: second.peer.clone(),
                });
            }
            differ("peer", (first.node, &first.peer), (second.node, &second.peer))?;
            differ("grpc", (first.node, &first.grpc), (second.node, &second.grpc))?;
        }
    }
    Ok(members)
}

fn differ(
    what: &'static str,
    (first, address): (NodeId, &HostPort),
    (second, other): (NodeId, &HostPort),
) -> Result<(), RelationError> {
    if address == other {
        return Err(RelationError::AddressTwice { what, address: address.clone(), first, second });
    }
    Ok(())
}

fn own_member(node: NodeId, members: &[Member]) -> Result<Option<&Member>, RelationError> {
    let own = members.iter().find(|member| member.node == node);
    if own.is_none() && !members.is_empty() {
        let list: Vec<String> = members.iter().map(|member| member.node.to_string()).collect();
        return Err(RelationError::NotAMember { node, members: list.join(", ") });
    }
    Ok(own)
}

fn listen(raw: &RawListen) -> Result<Listen, RelationError> {
    let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let listen = Listen {
        grpc: raw.grpc.unwrap_or_else(|| local(GRPC_PORT)),
        http: raw.http.unwrap_or_else(|| local(HTTP_PORT)),
        peer: raw.peer.unwrap_or_else(|| local(PEER_PORT)),
        connections_max: raw.connections_max.unwrap_or(4096),
    };
    let ports = [("grpc", listen.grpc), ("http", listen.http), ("peer", listen.peer)];
    for (at, (first, address)) in ports.into_iter().enumerate() {
        for (second, other) in ports.into_iter().skip(at + 1) {
            if clash(address, other) {
                return Err(RelationError::SamePort { first, second, address, other });
            }
        }
    }
    let value = listen.connections_max;
    if !(CONNECTIONS_MIN..=CONNECTIONS_MAX).contains(&value) {
        return Err(RelationError::Connections {
            value,
            min: CONNECTIONS_MIN,
            max: CONNECTIONS_MAX,
        });
    }
    Ok(listen)
}

/// Whether binding both would fail. Port 0 is another port each time.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let overlap =
        one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && overlap
}

fn advertise(
    raw: RawAdvertise,
    listen: &Listen,
    own: Option<&Member>,
) -> Result<Advertise, RelationError> {
    Ok(Advertise {
        grpc: advertised("grpc", raw.grpc, listen.grpc, own.map(|member| &member.grpc))?,
        peer: advertised("peer", raw.peer, listen.peer, own.map(|member| &member.peer))?,
    })
}

fn advertised(
    what: &'static str,
    set: Option<HostPort>,
    listen: SocketAddr,
    member: Option<&HostPort>,
) -> Result<HostPort, RelationError> {
    match (set, member) {
        (Some(advertise), Some(member)) if advertise != *member => {
            Err(RelationError::AdvertiseDiffers { what, advertise, member: member.clone() })
        }
        (Some(advertise), _) => Ok(advertise),
        (None, Some(member)) => Ok(member.clone()),
        (None, None) => {
            HostPort::of_bound(listen).ok_or(RelationError::NoAdvertise { what, listen })
        }
    }
}

fn tls(raw: RawTls) -> Result<Option<TlsFiles>, RelationError> {
    let named = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
    match (named(raw.certificate), named(raw.key)) {
        (Some(certificate), Some(key)) => Ok(Some(TlsFiles { certificate, key })),
        (Some(path), None) => Err(RelationError::HalfTls { set: "certificate", path, not: "key" }),
        (None, Some(path)) => Err(RelationError::HalfTls { set: "key", path, not: "certificate" }),
        (None, None) => Ok(None),
    }
}

fn log(raw: &RawLog, profile: Profile) -> Result<LogSettings, RelationError> {
    let segment = raw.segment_bytes.unwrap_or(match profile {
        Profile::Dev => ByteSize::mib(64),
        Profile::Production => ByteSize::gib(1),
    });
    let checkpoint = raw.checkpoint_bytes.unwrap_or(match profile {
        Profile::Dev => ByteSize::mib(64),
        Profile::Production => ByteSize::gib(1),
    });
    let scrub_per_second = raw.scrub_bytes_per_second.unwrap_or(ByteSize::mib(64));
    within("segment_bytes", segment, SEGMENT_MIN, SEGMENT_MAX)?;
    within("checkpoint_bytes", checkpoint, CHECKPOINT_MIN, CHECKPOINT_MAX)?;
    within("scrub_bytes_per_second", scrub_per_second, SCRUB_MIN, SCRUB_MAX)?;
    let usual = ByteSize::new(4 * segment.get() + RESERVE_MIN.get());
    let reserve = raw.reserve_bytes.unwrap_or(usual);
    within("reserve_bytes", reserve, RESERVE_MIN, RESERVE_MAX)?;
    if checkpoint.get() < segment.get() / 4 {
        return Err(RelationError::CheckpointBelowSegment { checkpoint, segment });
    }
    Ok(LogSettings { segment, checkpoint, scrub_per_second, reserve })
}

/// By default a mark lies every quarter of a segment, or every 16th of what is kept by bytes.
fn retention(raw: &RawRetention, log: &LogSettings) -> Result<RetentionSettings, RelationError> {
    let time = raw.time.unwrap_or(RETENTION_TIME);
    let bytes = raw.bytes.unwrap_or_default();
    let quarter = ByteSize::new(log.segment.get() / 4);
    let stride = match (raw.stride_bytes, bytes.get() / 16) {
        (Some(stride), _) => stride,
        (None, 0) => quarter,
        (None, part) => ByteSize::new(part).clamp(STRIDE_MIN, quarter.max(STRIDE_MIN)),
    };
    within("retention.stride_bytes", stride, STRIDE_MIN, STRIDE_MAX)?;
    let under_way = raw.under_way_bytes.unwrap_or_else(|| match bytes.get() / 4 {
        0 => UNDER_WAY_KEPT,
        part => ByteSize::new(part),
    });
    if bytes.get() > 0 && bytes.get() < 2 * log.segment.get() {
        return Err(RelationError::RetentionBelowSegments { bytes, segment: log.segment });
    }
    Ok(RetentionSettings { time, bytes, stride, under_way })
}

fn delay_max(set: Option<Millis>) -> Result<Millis, RelationError> {
    let value = set.unwrap_or(DELAY_MAX);
    if (DELAY_MIN..=DELAY_MAX).contains(&value) {
        return Ok(value);
    }
    Err(RelationError::Delay { value, min: DELAY_MIN, max: DELAY_MAX })
}

fn transactions(raw: &RawTransactions) -> Result<TransactionSettings, RelationError> {
    let within = |what, value, min, max| {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(RelationError::Transactions { what, value, min, max })
    };
    let first_check = raw.first_check.unwrap_or(FIRST_CHECK);
    let check_interval = raw.check_interval.unwrap_or(CHECK_INTERVAL);
    let checks_max = raw.checks_max.unwrap_or(CHECKS);
    within("first_check", first_check.get(), 0, CHECK_INTERVAL_MAX)?;
    within("check_interval", check_interval.get(), CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX)?;
    within("checks_max", checks_max.into(), 1, CHECKS_MAX.into())?;
    Ok(TransactionSettings { first_check, check_interval, checks_max })
}

fn index(raw: &RawIndex) -> Result<IndexSettings, RelationError> {
    let (min, max) = (INDEXED_MIN, INDEXED_MAX);
    let value = raw.bytes_per_second.unwrap_or(INDEXED);
    if (min..=max).contains(&value) {
        return Ok(IndexSettings { bytes_per_second: value });
    }
    Err(RelationError::Index { what: "bytes_per_second", value, min, max })
}

fn within(
    what: &'static str,
    value: ByteSize,
    min: ByteSize,
    max: ByteSize,
) -> Result<(), RelationError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(RelationError::Size { what, value, min, max })
}

fn raft(raw: &RawRaft) -> Result<RaftSettings, RelationError> {
    let heartbeat = raw.heartbeat_ms.unwrap_or(100);
    let election_min = raw.election_min_ms.unwrap_or(300);
    let election_max = raw.election_max_ms.unwrap_or(600);
    if !(HEARTBEAT_MIN..=HEARTBEAT_MAX).contains(&heartbeat) {
        let (min, max) = (HEARTBEAT_MIN, HEARTBEAT_MAX);
        return Err(RelationError::Heartbeat { value: heartbeat, min, max });
    }
    let under_way = raw.under_way_bytes.unwrap_or(ByteSize::mib(64));
    if !(UNDER_WAY_MIN..=UNDER_WAY_MAX).contains(&under_way) {
        let (value, min, max) = (under_way, UNDER_WAY_MIN, UNDER_WAY_MAX);
        return Err(RelationError::UnderWay { value, min, max });
    }
    if election_max > ELECTION_MAX {
        return Err(RelationError::ElectionTooLong { value: election_max, max: ELECTION_MAX });
    }
    if election_min < heartbeat * 2 {
        return Err(RelationError::ElectionBeforeHeartbeat { election_min, heartbeat });
    }
    if election_max <= election_min {
        return Err(RelationError::ElectionSpread { election_min, election_max });
    }
    Ok(RaftSettings {
        heartbeat: Millis::new(heartbeat),
        election_min: Millis::new(election_min),
        election_max: Millis::new(election_max),
        under_way,
    })
}

#[cfg(test)]
mod tests;
