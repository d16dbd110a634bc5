//! The keys as they are written, all optional, none checked but for its type.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};

use crate::base::{ByteSize, Millis};

use super::address::HostPort;

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raw {
    pub(super) node: RawNode,
    pub(super) listen: RawListen,
    pub(super) advertise: RawAdvertise,
    pub(super) tls: RawTls,
    pub(super) members: Vec<RawMember>,
    pub(super) log: RawLog,
    pub(super) retention: RawRetention,
    pub(super) raft: RawRaft,
    pub(super) broker: RawBroker,
    pub(super) transactions: RawTransactions,
    pub(super) admin: RawAdmin,
    pub(super) index: RawIndex,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawNode {
    pub(super) id: Option<u64>,
    pub(super) data: Option<PathBuf>,
    pub(super) profile: Option<RawProfile>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawProfile {
    Dev,
    Production,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawListen {
    pub(super) grpc: Option<SocketAddr>,
    pub(super) http: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) connections_max: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawAdvertise {
    #[serde(deserialize_with = "host_port_option")]
    pub(super) grpc: Option<HostPort>,
    #[serde(deserialize_with = "host_port_option")]
    pub(super) peer: Option<HostPort>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTls {
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMember {
    pub(super) id: u64,
    #[serde(deserialize_with = "host_port")]
    pub(super) peer: HostPort,
    #[serde(deserialize_with = "host_port")]
    pub(super) grpc: HostPort,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLog {
    #[serde(deserialize_with = "size")]
    pub(super) segment_bytes: Option<ByteSize>,
    #[serde(deserialize_with = "size")]
    pub(super) checkpoint_bytes: Option<ByteSize>,
    #[serde(deserialize_with = "size")]
    pub(super) scrub_bytes_per_second: Option<ByteSize>,
    #[serde(deserialize_with = "size")]
    pub(super) reserve_bytes: Option<ByteSize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRetention {
    #[serde(deserialize_with = "time")]
    pub(super) time: Option<Millis>,
    #[serde(deserialize_with = "size")]
    pub(super) bytes: Option<ByteSize>,
    #[serde(deserialize_with = "size")]
    pub(super) stride_bytes: Option<ByteSize>,
    #[serde(deserialize_with = "size")]
    pub(super) under_way_bytes: Option<ByteSize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRaft {
    pub(super) heartbeat_ms: Option<u64>,
    pub(super) election_min_ms: Option<u64>,
    pub(super) election_max_ms: Option<u64>,
    #[serde(deserialize_with = "size")]
    pub(super) under_way_bytes: Option<ByteSize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawBroker {
    #[serde(deserialize_with = "names")]
    pub(super) groups: Option<Vec<String>>,
    #[serde(deserialize_with = "names")]
    pub(super) name_servers: Option<Vec<String>>,
    pub(super) create_on_use: Option<bool>,
    #[serde(deserialize_with = "time")]
    pub(super) delay_max: Option<Millis>,
    #[serde(deserialize_with = "names")]
    pub(super) durability: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTransactions {
    #[serde(deserialize_with = "time")]
    pub(super) first_check: Option<Millis>,
    #[serde(deserialize_with = "time")]
    pub(super) check_interval: Option<Millis>,
    pub(super) checks_max: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawAdmin {
    pub(super) from_anywhere: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawIndex {
    #[serde(deserialize_with = "size")]
    pub(super) bytes_per_second: Option<ByteSize>,
}

fn host_port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HostPort, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

fn host_port_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<HostPort>, D::Error> {
    host_port(deserializer).map(Some)
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    deserializer.deserialize_any(Size).map(Some)
}

fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    deserializer.deserialize_any(Names).map(Some)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Millis>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(D::Error::custom)
}

/// Names are a list, or one text with commas, which is what a variable or a flag can hold.
struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of names, or names separated by commas")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(text.split(',').map(|name| name.trim().to_owned()).collect())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = seq.next_element()? {
            names.push(name);
        }
        Ok(names)
    }
}

/// A size is `"64MiB"` or a plain number of bytes.
struct Size;

impl Visitor<'_> for Size {
    type Value = ByteSize;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a size such as \"64MiB\" or a number of bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<ByteSize, E> {
        let unexpected = Unexpected::Signed(bytes);
        u64::try_from(bytes).map(ByteSize::new).map_err(|_| E::invalid_value(unexpected, &self))
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<ByteSize, E> {
        Ok(ByteSize::new(bytes))
    }
}
