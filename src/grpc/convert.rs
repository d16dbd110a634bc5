//! Between the protocol's values and ours. Nothing here decides.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use md5::{Digest, Md5};

use crate::base::{Millis, TopicName, UtcMillis};
use crate::broker::{BrokerNode, DeathFacts, Delivered};
use crate::message::{BodyEncoding, Message, MessageKind};
use crate::wire::rocketmq::{self as v2, Code};

use super::status::Refused;

/// What a published message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Kind(MessageKind),
    /// A kind that this broker has no topics for, by the protocol's name.
    Foreign(&'static str),
}

/// The kind follows from what is set, in the order in which RocketMQ's proxy looks: clients do not
/// agree on when they set `message_type`.
pub(super) fn asked(system: Option<&v2::SystemProperties>) -> Asked {
    let Some(system) = system else {
        return Asked::Kind(MessageKind::Normal);
    };
    let set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if system.message_type == i32::from(v2::MessageType::Transaction) {
        Asked::Kind(MessageKind::Transaction)
    } else if system.delivery_timestamp.is_some() {
        Asked::Kind(MessageKind::Delay)
    } else if set(&system.message_group) {
        Asked::Kind(MessageKind::Fifo)
    } else if system.priority.is_some() {
        Asked::Kind(MessageKind::Priority)
    } else if set(&system.lite_topic) {
        Asked::Foreign("lite")
    } else {
        Asked::Kind(MessageKind::Normal)
    }
}

/// A published message whose limits were checked. Texts that are set but empty count as not set.
pub(super) fn message(
    message: v2::Message,
    topic: &TopicName,
    kind: MessageKind,
    peer: SocketAddr,
) -> Result<Message, Refused> {
    let system = message.system_properties.unwrap_or_default();
    let set = |text: Option<String>| text.filter(|text| !text.is_empty());
    let deliver_at = system.delivery_timestamp.as_ref().filter(|_| kind == MessageKind::Delay);
    let deliver_at = deliver_at.map(utc_millis);
    let priority = system.priority.filter(|_| kind == MessageKind::Priority);
    let priority =
        priority.map(|number| u32::try_from(number).expect("limits refuse negative ones"));
    let mut properties: Vec<_> = message.user_properties.into_iter().collect();
    properties.sort();
    Ok(Message {
        topic: topic.clone(),
        body: message.body,
        encoding: encoding(system.body_encoding)?,
        message_id: system.message_id,
        kind,
        tag: set(system.tag),
        keys: system.keys,
        properties,
        message_group: set(system.message_group),
        born: system.born_timestamp.as_ref().map_or_else(now, utc_millis),
        born_host: set(Some(system.born_host)).unwrap_or_else(|| peer.to_string()),
        trace_context: set(system.trace_context),
        deliver_at,
        priority,
    })
}

fn encoding(number: i32) -> Result<BodyEncoding, Refused> {
    match v2::Encoding::try_from(number) {
        Ok(v2::Encoding::Unspecified | v2::Encoding::Identity) => Ok(BodyEncoding::Identity),
        Ok(v2::Encoding::Gzip) => Ok(BodyEncoding::Gzip),
        Err(_) => Err(Refused::new(
            Code::BadRequest,
            format_args!("the body encoding is {number}; 1 (IDENTITY) and 2 (GZIP) are known"),
        )),
    }
}

/// A message on its way to a consumer that asked for `topic`.
pub(super) fn delivered(delivered: Delivered, topic: v2::Resource) -> v2::Message {
    let mut message = delivered.message;
    let dead_letter_queue = delivered.death.as_ref().map(|facts| v2::DeadLetterQueue {
        topic: facts.topic.to_string(),
        message_id: message.message_id.clone(),
    });
    if let Some(facts) = &delivered.death {
        let told = death_properties(facts, &message.message_id);
        message.properties.extend(told);
    }
    let encoding = match message.encoding {
        BodyEncoding::Identity => v2::Encoding::Identity,
        BodyEncoding::Gzip => v2::Encoding::Gzip,
    };
    let system = v2::SystemProperties {
        tag: message.tag,
        keys: message.keys,
        message_id: message.message_id,
        body_digest: Some(digest(&message.body)),
        body_encoding: encoding.into(),
        message_type: message_type(message.kind).into(),
        born_timestamp: Some(timestamp(message.born)),
        born_host: message.born_host,
        store_timestamp: Some(timestamp(delivered.stored)),
        store_host: delivered.store_host,
        receipt_handle: Some(delivered.handle),
        queue_id: i32::try_from(delivered.queue.get()).unwrap_or(i32::MAX),
        queue_offset: Some(signed(delivered.offset.get())),
        delivery_attempt: Some(i32::try_from(delivered.attempt).unwrap_or(i32::MAX)),
        message_group: message.message_group,
        trace_context: message.trace_context,
        delivery_timestamp: message.deliver_at.map(timestamp),
        priority: message.priority.map(|number| i32::try_from(number).unwrap_or(i32::MAX)),
        dead_letter_queue,
        ..v2::SystemProperties::default()
    };
    v2::Message {
        topic: Some(topic),
        user_properties: message.properties.into_iter().collect(),
        system_properties: Some(system),
        body: message.body,
    }
}

/// What is told of a dead letter, beside what its producer wrote. The first two names are RocketMQ's;
/// it has none for the others.
fn death_properties(facts: &DeathFacts, message_id: &str) -> [(String, String); 7] {
    [
        ("DLQ_ORIGIN_TOPIC", facts.topic.to_string()),
        ("DLQ_ORIGIN_MESSAGE_ID", message_id.to_owned()),
        ("RAFTMQ_DLQ_ORIGIN_QUEUE", facts.queue.to_string()),
        ("RAFTMQ_DLQ_ORIGIN_OFFSET", facts.offset.to_string()),
        ("RAFTMQ_DLQ_ATTEMPTS", facts.attempts.to_string()),
        ("RAFTMQ_DLQ_REASON", facts.reason.name().to_owned()),
        ("RAFTMQ_DLQ_TIME", facts.died.get().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}

/// MD5 in upper-case digits: push consumers silently drop a message whose digest has other case,
/// and clients disagree on how to write a CRC32.
fn digest(body: &[u8]) -> v2::Digest {
    let mut checksum = String::with_capacity(32);
    for byte in Md5::digest(body) {
        write!(checksum, "{byte:02X}").expect("a string takes any text");
    }
    v2::Digest { r#type: v2::DigestType::Md5.into(), checksum }
}

pub(super) const fn message_type(kind: MessageKind) -> v2::MessageType {
    match kind {
        MessageKind::Normal => v2::MessageType::Normal,
        MessageKind::Fifo => v2::MessageType::Fifo,
        MessageKind::Delay => v2::MessageType::Delay,
        MessageKind::Transaction => v2::MessageType::Transaction,
        MessageKind::Priority => v2::MessageType::Priority,
    }
}

/// What a topic takes, for clients. They fail on an empty list.
pub(super) fn accepted(kinds: &[MessageKind]) -> Vec<i32> {
    assert!(!kinds.is_empty(), "a topic takes at least one kind");
    kinds.iter().map(|kind| message_type(*kind).into()).collect()
}

/// What a peer says that a topic takes; numbers that stand for nothing are passed over.
pub(super) fn kinds(accepted: &[i32]) -> Vec<MessageKind> {
    MessageKind::ALL
        .into_iter()
        .filter(|kind| accepted.contains(&message_type(*kind).into()))
        .collect()
}

/// A node as clients see it: a broker of its own name with id 0 and exactly one address.
pub(super) fn broker(node: BrokerNode) -> v2::Broker {
    let scheme = match node.host.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => v2::AddressScheme::IPv4,
        Ok(IpAddr::V6(_)) => v2::AddressScheme::IPv6,
        Err(_) => v2::AddressScheme::DomainName,
    };
    let address = v2::Address { host: node.host, port: i32::from(node.port) };
    v2::Broker {
        name: node.name,
        id: 0,
        endpoints: Some(v2::Endpoints { scheme: scheme.into(), addresses: vec![address] }),
    }
}

/// `None` for what is negative, malformed, or longer than milliseconds can say.
pub(super) fn millis(duration: &prost_types::Duration) -> Option<Millis> {
    let nanos = u64::try_from(duration.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    let seconds = u64::try_from(duration.seconds).ok()?;
    Some(Millis::new(seconds.checked_mul(1000)?.checked_add(nanos / 1_000_000)?))
}

pub(super) fn duration(millis: Millis) -> prost_types::Duration {
    let nanos = i32::try_from(millis.get() % 1000 * 1_000_000).expect("below a second");
    prost_types::Duration { seconds: signed(millis.get() / 1000), nanos }
}

pub(super) fn timestamp(at: UtcMillis) -> prost_types::Timestamp {
    let nanos = i32::try_from(at.get() % 1000 * 1_000_000).expect("below a second");
    prost_types::Timestamp { seconds: signed(at.get() / 1000), nanos }
}

/// Instants before 1970 become 1970, and malformed fractions nothing.
fn utc_millis(at: &prost_types::Timestamp) -> UtcMillis {
    let seconds = u64::try_from(at.seconds).unwrap_or_default();
    let nanos = u64::try_from(at.nanos).unwrap_or_default().min(999_999_999);
    UtcMillis::new(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The node's own clock, for what clients are told; nothing replicated depends on it.
pub(super) fn now() -> UtcMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UtcMillis::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{NodeId, QueueId, QueueOffset};
    use bytes::Bytes;
    use std::collections::HashMap;

    fn peer() -> SocketAddr {
        "10.0.0.7:1234".parse().unwrap()
    }

    fn resource() -> v2::Resource {
        v2::Resource { resource_namespace: "ns".into(), name: "t".into() }
    }

    #[test]
    fn what_is_published_is_delivered() {
        let published = v2::Message {
            topic: Some(resource()),
            user_properties: HashMap::from([("b".into(), "2".into()), ("a".into(), "1".into())]),
            body: Bytes::from_static(b"abc"),
            system_properties: Some(v2::SystemProperties {
                tag: Some("red".into()),
                keys: vec!["k 1".into(), "k2".into()],
                message_id: "id".into(),
                body_encoding: v2::Encoding::Gzip.into(),
                born_timestamp: Some(prost_types::Timestamp { seconds: 7, nanos: 5_000_000 }),
                born_host: "host".into(),
                trace_context: Some("00-ab".into()),
                delivery_attempt: Some(99),
                priority: Some(7),
                ..Default::default()
            }),
        };
        let topic = TopicName::new("t").unwrap();
        let message = message(published.clone(), &topic, MessageKind::Priority, peer()).unwrap();
        assert_eq!(message.properties[0].0, "a", "properties are sorted");
        assert_eq!(message.born, UtcMillis::new(7005));
        let handed_out = Delivered {
            message,
            queue: QueueId::new(3),
            offset: QueueOffset::new(4),
            stored: UtcMillis::new(8001),
            store_host: "s".into(),
            attempt: 2,
            handle: "handle".into(),
            death: None,
        };
        let back = delivered(handed_out, resource());
        assert_eq!(back.topic, published.topic);
        assert_eq!(back.user_properties, published.user_properties);
        assert_eq!(back.body, published.body);
        let before = published.system_properties.unwrap();
        let after = back.system_properties.unwrap();
        assert_eq!(after.tag, before.tag);
        assert_eq!(after.keys, before.keys);
        assert_eq!(after.message_id, before.message_id);
        assert_eq!(after.body_encoding, before.body_encoding);
        assert_eq!(after.born_timestamp, before.born_timestamp);
        assert_eq!(after.born_host, before.born_host);
        assert_eq!(after.trace_context, before.trace_context);
        assert_eq!(after.message_group, None);
        assert_eq!(after.message_type, i32::from(v2::MessageType::Priority));
        assert_eq!(after.priority, before.priority);
        assert_eq!(after.delivery_attempt, Some(2), "what the producer said is not kept");
        assert_eq!((after.queue_id, after.queue_offset), (3, Some(4)));
        assert_eq!(after.receipt_handle.as_deref(), Some("handle"));
        // MD5 of "abc" as RFC 1321 lists it, in upper case.
        assert_eq!(after.body_digest.unwrap().checksum, "900150983CD24FB0D6963F7D28E17F72");
    }

    #[test]
    fn a_dead_letter_says_how_it_died() {
        let topic = TopicName::new("orders").unwrap();
        let bare = v2::Message { body: Bytes::from_static(b"x"), ..Default::default() };
        let mut message = message(bare, &topic, MessageKind::Normal, peer()).unwrap();
        message.message_id = "id".into();
        let death = Some(DeathFacts {
            topic,
            queue: QueueId::new(3),
            offset: QueueOffset::new(4),
            attempts: 16,
            reason: crate::broker::DeathReason::Returned,
            died: UtcMillis::new(9000),
        });
        let handed_out = Delivered {
            message,
            queue: QueueId::new(0),
            offset: QueueOffset::new(7),
            stored: UtcMillis::new(9000),
            store_host: "s".into(),
            attempt: 1,
            handle: "handle".into(),
            death,
        };
        let letters = v2::Resource { name: "%DLQ%g".into(), ..Default::default() };
        let told = delivered(handed_out, letters.clone());
        assert_eq!(told.topic, Some(letters), "it is a message of the topic that was asked");
        let dead = told.system_properties.unwrap().dead_letter_queue.unwrap();
        assert_eq!((dead.topic.as_str(), dead.message_id.as_str()), ("orders", "id"));
        for (name, value) in [
            ("DLQ_ORIGIN_TOPIC", "orders"),
            ("DLQ_ORIGIN_MESSAGE_ID", "id"),
            ("RAFTMQ_DLQ_ORIGIN_QUEUE", "3"),
            ("RAFTMQ_DLQ_ORIGIN_OFFSET", "4"),
            ("RAFTMQ_DLQ_ATTEMPTS", "16"),
            ("RAFTMQ_DLQ_REASON", "returned"),
            ("RAFTMQ_DLQ_TIME", "9000"),
        ] {
            assert_eq!(told.user_properties[name], value, "{name}");
        }
    }

    #[test]
    fn a_bare_message_gets_what_clients_need() {
        let bare = v2::Message { body: Bytes::from_static(b"x"), ..Default::default() };
        let topic = TopicName::new("t").unwrap();
        let bare = message(bare, &topic, MessageKind::Normal, peer()).unwrap();
        assert_eq!(bare.born_host, "10.0.0.7:1234");
        assert!(bare.born > UtcMillis::new(1_600_000_000_000));
        assert_eq!(bare.encoding, BodyEncoding::Identity);
        assert_eq!((bare.tag, bare.message_group, bare.trace_context), (None, None, None));
        assert_eq!(encoding(9).unwrap_err().code, Code::BadRequest);
    }

    #[test]
    fn the_kind_follows_from_what_is_set() {
        let kind = |change: fn(&mut v2::SystemProperties)| {
            let mut system = v2::SystemProperties::default();
            change(&mut system);
            asked(Some(&system))
        };
        assert_eq!(kind(|_| {}), Asked::Kind(MessageKind::Normal));
        assert_eq!(
            kind(|s| s.message_group = Some(String::new())),
            Asked::Kind(MessageKind::Normal)
        );
        assert_eq!(kind(|s| s.message_group = Some("g".into())), Asked::Kind(MessageKind::Fifo));
        assert_eq!(
            kind(|s| {
                s.message_group = Some("g".into());
                s.delivery_timestamp = Some(prost_types::Timestamp::default());
            }),
            Asked::Kind(MessageKind::Delay)
        );
        assert_eq!(
            kind(|s| {
                s.message_type = v2::MessageType::Transaction.into();
                s.delivery_timestamp = Some(prost_types::Timestamp::default());
            }),
            Asked::Kind(MessageKind::Transaction)
        );
        assert_eq!(kind(|s| s.priority = Some(0)), Asked::Kind(MessageKind::Priority));
        assert_eq!(kind(|s| s.lite_topic = Some("l".into())), Asked::Foreign("lite"));
        assert_eq!(
            kind(|s| s.message_type = v2::MessageType::Fifo.into()),
            Asked::Kind(MessageKind::Normal)
        );
    }

    #[test]
    fn the_scheme_says_what_the_host_is() {
        let scheme = |host: &str| {
            let node = BrokerNode {
                node: NodeId::new(1),
                name: "b".into(),
                host: host.into(),
                port: 8081,
            };
            let broker = broker(node);
            assert_eq!(broker.id, 0);
            let endpoints = broker.endpoints.unwrap();
            assert_eq!(endpoints.addresses.len(), 1);
            endpoints.scheme()
        };
        assert_eq!(scheme("127.0.0.1"), v2::AddressScheme::IPv4);
        assert_eq!(scheme("localhost"), v2::AddressScheme::DomainName);
        assert_eq!(scheme("::1"), v2::AddressScheme::IPv6);
    }

    #[test]
    fn hostile_times_do_not_overflow() {
        let duration = |seconds, nanos| millis(&prost_types::Duration { seconds, nanos });
        assert_eq!(duration(1, 500_000_000), Some(Millis::new(1500)));
        assert_eq!(duration(-1, 0), None);
        assert_eq!(duration(0, -1), None);
        assert_eq!(duration(0, 1_000_000_000), None);
        assert_eq!(duration(i64::MAX, 0), None);
        let at = |seconds, nanos| utc_millis(&prost_types::Timestamp { seconds, nanos });
        assert_eq!(at(-5, 0), UtcMillis::ZERO);
        assert_eq!(at(i64::MAX, i32::MAX), UtcMillis::new(u64::MAX));
        assert_eq!(at(1, -1), UtcMillis::new(1000));
        assert_eq!(timestamp(UtcMillis::new(1234)).nanos, 234_000_000);
        assert_eq!(super::duration(Millis::new(1234)).nanos, 234_000_000);
    }
}
