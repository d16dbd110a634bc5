//! Any message survives its record; no bytes make decoding panic.

use std::net::{Ipv4Addr, SocketAddrV4};

use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::base::{TopicName, UtcMillis};

/// Anything but the two characters that separate properties.
fn text() -> impl Strategy<Value = String> {
    "[^\u{1}\u{2}]{0,12}"
}

fn message() -> impl Strategy<Value = Message> {
    let names = ("[a-z]{1,127}", text(), prop::option::of(text()), prop::option::of(text()));
    let lists = (
        vec(prop_oneof![text(), "[ a]{0,3}"], 0..4),
        btree_map(text(), text(), 0..6),
        vec(any::<u8>(), 0..100),
    );
    let rest = (any::<u64>(), prop_oneof![text(), Just("10.0.0.1:5".to_owned())], 1u8..=5);
    let late = (any::<Option<u64>>(), prop::option::of(0..=PRIORITY_MAX));
    (names, lists, rest, any::<bool>(), prop::option::of(text()), late).prop_map(
        |(
            (topic, message_id, tag, message_group),
            (keys, properties, body),
            (born, born_host, kind),
            gzip,
            trace_context,
            (deliver_at, priority),
        )| Message {
            topic: TopicName::new(&topic).unwrap(),
            body: body.into(),
            encoding: if gzip { BodyEncoding::Gzip } else { BodyEncoding::Identity },
            message_id,
            kind: MessageKind::from_byte(kind).unwrap(),
            tag,
            keys,
            properties: properties.into_iter().collect(),
            message_group,
            born: UtcMillis::new(born),
            born_host,
            trace_context,
            deliver_at: deliver_at.map(UtcMillis::new),
            priority,
        },
    )
}

fn encode(message: &Message) -> Bytes {
    encode_record(message, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8081)).unwrap()
}

proptest! {
    #[test]
    fn messages_survive_their_records(message in message()) {
        let record = encode(&message);
        prop_assert_eq!(decode_record(&record).unwrap().message, message);
    }

    #[test]
    fn truncated_records_are_refused(message in message(), cut in any::<prop::sample::Index>()) {
        let record = encode(&message);
        prop_assert!(decode_record(&record.slice(..cut.index(record.len()))).is_err());
    }

    /// With the size made right again, so that the fields behind it are reached.
    #[test]
    fn damaged_records_never_panic(
        message in message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in 0usize..40,
    ) {
        let mut bytes = encode(&message).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(bytes.len() - cut);
        let size = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&size.to_be_bytes());
        let _ = decode_record(&bytes.into());
    }

    #[test]
    fn garbage_never_panics(tail in vec(any::<u8>(), 0..300)) {
        let size = u32::try_from(tail.len() + 8).unwrap();
        let head = [size.to_be_bytes(), 0xDAA3_20A7u32.to_be_bytes()].concat();
        let _ = decode_record(&[head, tail].concat().into());
    }
}
