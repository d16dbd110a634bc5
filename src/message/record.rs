//! The stored record: RocketMQ's commit log record, which its tools and clients can read.
//!
//! ```text
//!  0 size u32 | 4 magic u32 | 8 body crc u32 | 12 queue u32 | 16 flag u32 | 20 queue offset u64
//! 28 physical offset u64 | 36 sys flag u32 | 40 born u64 | 48 born host 4|16 + port u32
//!    stored u64 | store host 4|16 + port u32 | reconsume times u32 | prepared offset u64
//!    body len u32, body | topic len u8 (v1) or u16 (v2), topic | properties len u16, properties
//! ```
//!
//! Big-endian. In the log the queue, both offsets and the time of storing are 0: they are decided
//! when the entry is applied, and patched into a copy where a protocol sends the record itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::properties::{self, PropertiesError, StoredProperties};
use super::{BodyEncoding, Message, SysFlag, body_crc};
use crate::base::{LogPosition, NameError, QueueId, QueueOffset, TopicName, UtcMillis};

/// A topic length of one byte.
const MAGIC_V1: u32 = 0xDAA3_20A7;
/// A topic length of two bytes, for topics that Java's signed byte cannot count.
const MAGIC_V2: u32 = 0xDAA3_20AB;
const V1_TOPIC_MAX: usize = 127;

/// Bytes of a v1 record with IPv4 hosts beside body, topic and properties.
const FIXED: usize = 91;
/// Longest body, in bytes: that of RocketMQ's `maxMessageSize`.
const BODY_MAX: usize = 4 << 20;

/// What decoding a record gives: the message, and what the broker adds when it delivers one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    pub message: Message,
    /// 0 in the log, as the next three.
    pub queue: QueueId,
    pub offset: QueueOffset,
    pub position: LogPosition,
    pub store_timestamp: UtcMillis,
    /// The node that took the message in.
    pub store_host: SocketAddr,
    pub reconsume_times: u32,
    pub flag: SysFlag,
}

/// Why a message has no record, or bytes are none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("the body has {len} bytes; at most {max} are allowed")]
    BodyTooLarge { len: usize, max: usize },
    #[error("the record ends within its {field}: {needed} bytes are needed, {left} are left")]
    Truncated { field: &'static str, needed: usize, left: usize },
    #[error("the record says it has {said} bytes, but {given} are there")]
    Size { said: u32, given: usize },
    #[error("the record ends after {read} bytes, but says it has {said}")]
    Trailing { said: u32, read: usize },
    #[error("the record starts with magic {found:#010x}; known are 0xdaa320a7 and 0xdaa320ab")]
    Magic { found: u32 },
    #[error("the body has CRC-32 {computed:#010x}, but the record says {stored:#010x}: damaged")]
    BodyCrc { stored: u32, computed: u32 },
    #[error("the {host} host has port {port}; the largest is 65535")]
    Port { host: &'static str, port: u32 },
    #[error("the body is compressed with codec {codec}; known is gzip (0)")]
    Codec { codec: u32 },
    #[error("the topic is not UTF-8 after {valid} of {len} bytes")]
    TopicUtf8 { valid: usize, len: usize },
    #[error(transparent)]
    Topic(#[from] NameError),
    #[error(transparent)]
    Properties(#[from] PropertiesError),
}

/// The record of a message as the log keeps it. `store_host` is the address that this node tells
/// clients.
pub fn encode_record(message: &Message, store_host: SocketAddrV4) -> Result<Bytes, RecordError> {
    let len = message.body.len();
    if len > BODY_MAX {
        return Err(RecordError::BodyTooLarge { len, max: BODY_MAX });
    }
    let topic = message.topic.as_str().as_bytes();
    let born_host = parse_host(&message.born_host);
    let mut flag = SysFlag::of_encoding(message.encoding);
    if born_host.is_ipv6() {
        flag = flag.with(SysFlag::BORN_HOST_V6);
    }
    let v2 = topic.len() > V1_TOPIC_MAX;

    let mut out = BytesMut::with_capacity(FIXED + 512 + len + topic.len());
    out.put_u32(0); // size, known at the end
    out.put_u32(if v2 { MAGIC_V2 } else { MAGIC_V1 });
    out.put_u32(body_crc(&message.body));
    out.put_bytes(0, 4 + 4 + 8 + 8); // queue, flag, queue offset, physical offset
    out.put_u32(flag.bits());
    out.put_u64(message.born.get());
    put_host(&mut out, born_host);
    out.put_u64(0); // stored
    put_host(&mut out, store_host.into());
    out.put_bytes(0, 4 + 8); // reconsume times, prepared offset
    out.put_u32(u32::try_from(len).expect("checked against BODY_MAX"));
    out.put_slice(&message.body);
    let topic_len = u8::try_from(topic.len()).expect("checked names have at most 255 bytes");
    if v2 {
        out.put_u16(u16::from(topic_len));
    } else {
        out.put_u8(topic_len);
    }
    out.put_slice(topic);
    let properties_len_at = out.len();
    out.put_u16(0);
    let properties_len = properties::write(message, &mut out)?;
    out[properties_len_at..properties_len_at + 2].copy_from_slice(&properties_len.to_be_bytes());
    let size = u32::try_from(out.len()).expect("a body of 4 MiB and what stands beside it");
    out[..4].copy_from_slice(&size.to_be_bytes());
    Ok(out.freeze())
}

/// Reads exactly one record; the body is a slice of `bytes`, not a copy.
pub fn decode_record(bytes: &Bytes) -> Result<StoredMessage, RecordError> {
    let mut rest = Fields(bytes.clone());
    let said = rest.u32("size")?;
    if said as usize != bytes.len() {
        return Err(RecordError::Size { said, given: bytes.len() });
    }
    let magic = rest.u32("magic")?;
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return Err(RecordError::Magic { found: magic });
    }
    let stored = rest.u32("body CRC")?;
    let queue = QueueId::new(rest.u32("queue id")?);
    rest.u32("flag")?;
    let offset = QueueOffset::new(rest.u64("queue offset")?);
    let position = LogPosition::new(rest.u64("physical offset")?);
    let flag = SysFlag::new(rest.u32("system flag")?);
    let born = UtcMillis::new(rest.u64("born time")?);
    let born_address = rest.host("born", flag.contains(SysFlag::BORN_HOST_V6))?;
    let store_timestamp = UtcMillis::new(rest.u64("store time")?);
    let store_host = rest.host("store", flag.contains(SysFlag::STORE_HOST_V6))?;
    let reconsume_times = rest.u32("reconsume times")?;
    rest.u64("prepared offset")?;
    let body_len = rest.u32("body length")?;
    let body = rest.bytes("body", body_len as usize)?;
    let computed = body_crc(&body);
    if computed != stored {
        return Err(RecordError::BodyCrc { stored, computed });
    }
    let topic = rest.topic(magic)?;
    let properties_len = rest.u16("properties length")?;
    let properties = properties::read(&rest.bytes("properties", properties_len.into())?)?;
    if !rest.0.is_empty() {
        return Err(RecordError::Trailing { said, read: bytes.len() - rest.0.len() });
    }
    let message = Message {
        topic,
        body,
        encoding: encoding(flag)?,
        message_id: properties.message_id,
        kind: properties.kind,
        tag: properties.tag,
        keys: properties.keys,
        properties: properties.user,
        message_group: properties.message_group,
        born,
        born_host: properties.born_host.unwrap_or_else(|| born_address.to_string()),
        trace_context: properties.trace_context,
        deliver_at: properties.deliver_at,
        priority: properties.priority,
    };
    Ok(StoredMessage {
        message,
        queue,
        offset,
        position,
        store_timestamp,
        store_host,
        reconsume_times,
        flag,
    })
}

/// The properties of a record that the log keeps, without a look at its body: where it comes from
/// has been checked.
pub fn record_properties(bytes: &Bytes) -> Result<StoredProperties, RecordError> {
    let mut rest = Fields(bytes.clone());
    rest.u32("size")?;
    let magic = rest.u32("magic")?;
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return Err(RecordError::Magic { found: magic });
    }
    rest.bytes("head", 4 + 4 + 4 + 8 + 8)?;
    let flag = SysFlag::new(rest.u32("system flag")?);
    rest.u64("born time")?;
    rest.host("born", flag.contains(SysFlag::BORN_HOST_V6))?;
    rest.u64("store time")?;
    rest.host("store", flag.contains(SysFlag::STORE_HOST_V6))?;
    rest.bytes("reconsume times and prepared offset", 4 + 8)?;
    let body_len = rest.u32("body length")?;
    rest.bytes("body", body_len as usize)?;
    rest.topic(magic)?;
    let len = rest.u16("properties length")?;
    Ok(StoredProperties::new(rest.bytes("properties", len.into())?)?)
}

fn encoding(flag: SysFlag) -> Result<BodyEncoding, RecordError> {
    match (flag.contains(SysFlag::COMPRESSED), flag.codec()) {
        (false, _) => Ok(BodyEncoding::Identity),
        (true, 0) => Ok(BodyEncoding::Gzip),
        (true, codec) => Err(RecordError::Codec { codec }),
    }
}

/// Clients may call their host what they like; the text is kept among the properties, and an
/// address in it goes into the record's own field too.
fn parse_host(text: &str) -> SocketAddr {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let bare = || text.parse().map(|address: IpAddr| SocketAddr::new(address, 0));
    text.parse().or_else(|_| bare()).unwrap_or(nowhere)
}

fn put_host(out: &mut BytesMut, host: SocketAddr) {
    match host.ip() {
        IpAddr::V4(address) => out.put_slice(&address.octets()),
        IpAddr::V6(address) => out.put_slice(&address.octets()),
    }
    out.put_u32(host.port().into());
}

/// What is left of a record. Running out of it names the field.
struct Fields(Bytes);

impl Fields {
    fn bytes(&mut self, field: &'static str, needed: usize) -> Result<Bytes, RecordError> {
        let left = self.0.len();
        if needed > left {
            return Err(RecordError::Truncated { field, needed, left });
        }
        Ok(self.0.split_to(needed))
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, RecordError> {
        self.bytes(field, 2).map(|mut bytes| bytes.get_u16())
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, RecordError> {
        self.bytes(field, 4).map(|mut bytes| bytes.get_u32())
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, RecordError> {
        self.bytes(field, 8).map(|mut bytes| bytes.get_u64())
    }

    fn host(&mut self, host: &'static str, v6: bool) -> Result<SocketAddr, RecordError> {
        let address = if v6 {
            IpAddr::V6(Ipv6Addr::from_bits(self.bytes(host, 16)?.get_u128()))
        } else {
            IpAddr::V4(Ipv4Addr::from_bits(self.u32(host)?))
        };
        let port = self.u32(host)?;
        match u16::try_from(port) {
            Ok(port) => Ok(SocketAddr::new(address, port)),
            Err(_) => Err(RecordError::Port { host, port }),
        }
    }

    fn topic(&mut self, magic: u32) -> Result<TopicName, RecordError> {
        let len = match magic {
            MAGIC_V2 => self.u16("topic length")?,
            _ => u16::from(self.bytes("topic length", 1)?.get_u8()),
        };
        let topic = self.bytes("topic", len.into())?;
        match std::str::from_utf8(&topic) {
            Ok(topic) => Ok(TopicName::new(topic)?),
            Err(error) => {
                Err(RecordError::TopicUtf8 { valid: error.valid_up_to(), len: topic.len() })
            }
        }
    }
}

#[cfg(test)]
mod tests;
