use super::*;
use crate::message::MessageKind;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Bytes {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn store_host() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 8081)
}

fn message() -> Message {
    Message {
        topic: TopicName::new("TopicTest").unwrap(),
        body: Bytes::from_static(b"hello"),
        encoding: BodyEncoding::Gzip,
        message_id: "01".to_owned(),
        kind: MessageKind::Fifo,
        tag: Some("TagA".to_owned()),
        keys: vec!["k1".to_owned(), "k2".to_owned()],
        properties: vec![("a".to_owned(), "b".to_owned())],
        message_group: Some("g".to_owned()),
        born: UtcMillis::new(1_700_000_000_000),
        born_host: "10.0.0.1:5000".to_owned(),
        trace_context: Some("t".to_owned()),
        deliver_at: None,
        priority: None,
    }
}

fn round_trip(message: &Message) -> StoredMessage {
    let record = encode_record(message, store_host()).unwrap();
    let stored = decode_record(&record).unwrap();
    assert_eq!(&stored.message, message);
    stored
}

#[test]
fn a_record_keeps_its_bytes() {
    // Written by hand from the layout; records live in logs for ever.
    let properties = [
        ("UNIQ_KEY", "01"),
        ("KEYS", "k1 k2"),
        ("TAGS", "TagA"),
        ("__SHARDINGKEY", "g"),
        ("__KIND", "fifo"),
        ("__BORNHOST", "10.0.0.1:5000"),
        ("TRACE_CONTEXT", "t"),
        ("a", "b"),
    ]
    .map(|(name, value)| format!("{name}\u{1}{value}\u{2}"))
    .concat();
    assert_eq!(properties.len(), 0x6a);
    let expected = format!(
        "000000d3 daa320a7 3610a686 00000000 00000000 0000000000000000 0000000000000000 00000001 \
         0000018bcfe56800 0a000001 00001388 0000000000000000 0a000002 00001f91 00000000 \
         0000000000000000 00000005 68656c6c6f 09 546f70696354657374 006a {}",
        hex(properties.as_bytes()),
    );
    let record = encode_record(&message(), store_host()).unwrap();
    assert_eq!(hex(&record), expected.replace(' ', ""));
    let stored = round_trip(&message());
    assert_eq!(stored.store_host, store_host().into());
    assert_eq!(stored.store_timestamp, UtcMillis::ZERO);
    assert_eq!(decode_record(&record).unwrap().message.body, "hello");
}

#[test]
fn properties_are_found_without_the_rest() {
    for born_host in ["10.0.0.1:5000", "[2001:db8::1]:5000"] {
        for topic in ["TopicTest".to_owned(), "t".repeat(127)] {
            let topic = TopicName::new(&topic).unwrap();
            let message = Message { topic, born_host: born_host.to_owned(), ..message() };
            let record = encode_record(&message, store_host()).unwrap();
            let properties = record_properties(&record).unwrap();
            assert_eq!(properties.get("TAGS"), Some("TagA"));
            assert_eq!(properties.get("KEYS"), Some("k1 k2"));
            assert_eq!(properties.get("a"), Some("b"));
            assert_eq!(properties.get("A"), None);
            assert!(record_properties(&record.slice(..record.len() - 1)).is_err());
        }
    }
}

#[test]
fn a_record_of_the_java_broker_is_read() {
    // What RocketMQ's Java encoder wrote, here with the body's CRC and a UNIQ_KEY added: size,
    // CRC and the properties' length follow from that.
    let record = unhex(
        "00000087 daa320a7 3610a686 00000001 00000000 0000000000000003 00000000000004d2 00000000 \
         0000018bcfe56800 0a00000100001388 0000018bcfe56801 0a00000200002a9f 00000000 \
         0000000000000000 00000005 68656c6c6f 09 546f70696354657374 001e 4b455953016b3102 \
         54414753015461674102 554e49515f4b45590149 4402",
    );
    let stored = decode_record(&record).unwrap();
    assert_eq!(stored.queue, QueueId::new(1));
    assert_eq!(stored.offset, QueueOffset::new(3));
    assert_eq!(stored.position, LogPosition::new(1234));
    assert_eq!(stored.store_timestamp, UtcMillis::new(1_700_000_000_001));
    assert_eq!(stored.store_host, "10.0.0.2:10911".parse().unwrap());
    assert_eq!(stored.message.tag.as_deref(), Some("TagA"));
    assert_eq!(stored.message.keys, ["k1"]);
    assert_eq!(stored.message.message_id, "ID");
    assert_eq!(stored.message.kind, MessageKind::Normal);
    assert_eq!(stored.message.born_host, "10.0.0.1:5000");
    assert_eq!(stored.message.body, "hello");
}

#[test]
fn long_topics_and_v6_hosts_change_the_layout() {
    let topic = format!("%DLQ%{}", "g".repeat(120));
    round_trip(&Message { topic: TopicName::new(&topic[..125]).unwrap(), ..message() });
    let topic = format!("%DLQ%{}", "g".repeat(130));
    let long = Message {
        topic: TopicName::new(&topic).unwrap(),
        born_host: "[2001:db8::1]:10911".to_owned(),
        encoding: BodyEncoding::Identity,
        ..message()
    };
    let record = encode_record(&long, store_host()).unwrap();
    assert_eq!(hex(&record[4..8]), "daa320ab");
    assert_eq!(hex(&record[48..68]), "20010db800000000000000000000000100002a9f");
    assert_eq!(round_trip(&long).flag, SysFlag::BORN_HOST_V6);
}

#[test]
fn what_is_absent_and_what_is_empty_stay_apart() {
    let absent = Message {
        tag: None,
        keys: Vec::new(),
        properties: Vec::new(),
        message_group: None,
        trace_context: None,
        kind: MessageKind::Normal,
        ..message()
    };
    round_trip(&absent);
    let empty = |text: &str| Some(text.to_owned());
    round_trip(&Message {
        tag: empty(""),
        message_group: empty(""),
        trace_context: empty(""),
        born_host: String::new(),
        ..absent
    });
}

#[test]
fn keys_come_back_one_by_one() {
    let keys: [&[&str]; 7] =
        [&[], &[""], &["", ""], &["a b"], &["a b", "c"], &[" "], &["\u{e4} ", "", "x"]];
    for list in keys {
        let keys: Vec<String> = list.iter().map(|&key| key.to_owned()).collect();
        round_trip(&Message { keys, ..message() });
    }
}

#[test]
fn a_message_that_cannot_be_stored_is_refused() {
    let refusal = |message: Message| encode_record(&message, store_host()).unwrap_err();
    let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    assert_eq!(
        refusal(Message { properties: pair("UNIQ_KEY", "x"), ..message() }),
        PropertiesError::Reserved { name: "UNIQ_KEY".to_owned() }.into()
    );
    assert_eq!(
        refusal(Message { properties: pair("x", "a\u{2}UNIQ_KEY\u{1}y"), ..message() }),
        PropertiesError::Separator { name: "x".to_owned(), found: '\u{2}' }.into()
    );
    assert_eq!(
        refusal(Message { properties: pair("x", &"v".repeat(32_767)), ..message() }),
        PropertiesError::TooLarge { len: 32_767 + 0x6a - 1, max: 32_767 }.into()
    );
    let body = Bytes::from(vec![0; BODY_MAX + 1]);
    assert_eq!(
        refusal(Message { body, ..message() }),
        RecordError::BodyTooLarge { len: 4_194_305, max: 4_194_304 }
    );
}

#[test]
fn damage_is_named() {
    let record = encode_record(&message(), store_host()).unwrap();
    let damaged = |at: usize, byte: u8| {
        let mut bytes = record.to_vec();
        bytes[at] = byte;
        decode_record(&bytes.into()).unwrap_err()
    };
    assert_eq!(damaged(3, 0xd9), RecordError::Size { said: 0xd9, given: 0xd3 });
    assert_eq!(damaged(7, 0), RecordError::Magic { found: 0xdaa3_2000 });
    assert!(matches!(damaged(88, 0), RecordError::BodyCrc { stored: 0x3610_a686, .. }));
    assert_eq!(damaged(38, 1), RecordError::Codec { codec: 1 });
    assert_eq!(damaged(53, 1), RecordError::Port { host: "born", port: 0x0001_1388 });
    assert!(matches!(damaged(94, b' '), RecordError::Topic(NameError::Character { .. })));
    let too_short = decode_record(&record.slice(..2)).unwrap_err();
    assert_eq!(too_short, RecordError::Truncated { field: "size", needed: 4, left: 2 });
}
