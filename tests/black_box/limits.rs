//! Every limit on what a client may send: the code, and a text that names the limit and the value.

use std::collections::HashMap;

use prost_types::Timestamp;
use raftmq::wire::rocketmq as v2;
use v2::{Code, MessageType, SystemProperties};

use crate::common::cluster::{Cluster, Plan};
use crate::common::raw::{Answer, Raw, message, now, receive, seconds};

const BODY_MAX: usize = 4 << 20;
const PROPERTIES_MAX: usize = 128;
const PROPERTY_BYTES_MAX: usize = 16384;
const TOPIC: &str = "limits";

/// Names that the broker keeps for itself, as `grpc-behaviour` lists them.
const RESERVED: [&str; 53] = [
    "TRACE_ON",
    "MSG_REGION",
    "KEYS",
    "TAGS",
    "WAIT",
    "DELAY",
    "RETRY_TOPIC",
    "REAL_TOPIC",
    "REAL_QID",
    "TRAN_MSG",
    "PGROUP",
    "MIN_OFFSET",
    "MAX_OFFSET",
    "BUYER_ID",
    "ORIGIN_MESSAGE_ID",
    "TRANSFER_FLAG",
    "CORRECTION_FLAG",
    "MQ2_FLAG",
    "RECONSUME_TIME",
    "UNIQ_KEY",
    "MAX_RECONSUME_TIMES",
    "CONSUME_START_TIME",
    "POP_CK",
    "POP_CK_OFFSET",
    "1ST_POP_TIME",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "DUP_INFO",
    "EXTEND_UNIQ_INFO",
    "INSTANCE_ID",
    "CORRELATION_ID",
    "REPLY_TO_CLIENT",
    "TTL",
    "ARRIVE_TIME",
    "PUSH_REPLY_TIME",
    "CLUSTER",
    "MSG_TYPE",
    "INNER_MULTI_QUEUE_OFFSET",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
    "TIMER_OUT_MS",
    "TIMER_DEL_UNIQKEY",
    "TIMER_DELAY_LEVEL",
    "__BORNHOST",
    "BORN_TIMESTAMP",
    "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID",
    "__CRC32#",
    "_SYS_MSG_PRIORITY_",
    "__LITE_TOPIC",
];

type Change = fn(&mut SystemProperties);

/// Checks an answer: its code, and that its text names all of these.
pub(crate) fn check(what: &str, (code, text): &Answer, wanted: Code, names: &[&str]) {
    assert_eq!(*code, i32::from(wanted), "{what}: {text}");
    if wanted != Code::Ok {
        for name in names {
            assert!(text.contains(name), "{what}: the text does not name {name:?}: {text}");
        }
    }
}

/// One message, changed; then the answer to sending it.
async fn send(raw: &mut Raw, change: impl FnOnce(&mut v2::Message)) -> Answer {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let id = format!("limit-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let mut message = message(TOPIC, &id, "body");
    change(&mut message);
    raw.send(vec![message]).await
}

async fn send_with(raw: &mut Raw, change: impl FnOnce(&mut SystemProperties)) -> Answer {
    send(raw, |message| change(message.system_properties.as_mut().unwrap())).await
}

async fn one_node() -> (Cluster, Raw) {
    let cluster = Cluster::start(Plan { shares: true, ..Plan::of(1) });
    let raw = Raw::connect(cluster.nodes()[0].grpc).await;
    (cluster, raw)
}

#[tokio::test]
async fn limits_of_a_message_hold_to_the_byte() {
    let (_cluster, mut raw) = one_node().await;

    let just = send(&mut raw, |m| m.body = vec![1; BODY_MAX].into()).await;
    check("a body of 4 MiB", &just, Code::Ok, &[]);
    let over = send(&mut raw, |m| m.body = vec![1; BODY_MAX + 1].into()).await;
    check("a larger body", &over, Code::MessageBodyTooLarge, &["4194304", "4194305"]);
    let far_over = send(&mut raw, |m| m.body = vec![1; 20 << 20].into()).await;
    check("a far larger body", &far_over, Code::MessageBodyTooLarge, &["4194304", "20971520"]);
    let empty = send(&mut raw, |m| m.body.clear()).await;
    check("no body", &empty, Code::MessageBodyEmpty, &[]);

    let many = |count: usize| -> HashMap<String, String> {
        (0..count).map(|n| (format!("p{n}"), "v".to_owned())).collect()
    };
    let just = send(&mut raw, |m| m.user_properties = many(PROPERTIES_MAX)).await;
    check("128 properties", &just, Code::Ok, &[]);
    let over = send(&mut raw, |m| m.user_properties = many(PROPERTIES_MAX + 1)).await;
    check("129 properties", &over, Code::MessagePropertiesTooLarge, &["128", "129"]);

    // Keys and values of properties, tag and keys count together.
    let bytes = |total: usize| {
        move |m: &mut v2::Message| {
            let properties = m.system_properties.as_mut().unwrap();
            properties.tag = Some("t".repeat(10));
            properties.keys = vec!["k".repeat(20)];
            m.user_properties = HashMap::from([("name".to_owned(), "v".repeat(total - 34))]);
        }
    };
    let just = send(&mut raw, bytes(PROPERTY_BYTES_MAX)).await;
    check("16384 bytes of properties", &just, Code::Ok, &[]);
    let over = send(&mut raw, bytes(PROPERTY_BYTES_MAX + 1)).await;
    check("16385 bytes", &over, Code::MessagePropertiesTooLarge, &["16384", "16385"]);
}

#[tokio::test]
async fn texts_of_a_message_follow_the_rules() {
    let (_cluster, mut raw) = one_node().await;
    let property = |key: &str, value: &str| {
        let pair = (key.to_owned(), value.to_owned());
        move |m: &mut v2::Message| m.user_properties = HashMap::from([pair])
    };
    for name in RESERVED {
        let answer = send(&mut raw, property(name, "v")).await;
        check(name, &answer, Code::IllegalMessagePropertyKey, &[name]);
    }
    for control in ["\u{0}", "a\u{1f}", "\u{7f}b", "\u{9f}"] {
        let answer = send(&mut raw, property(&format!("key{control}"), "v")).await;
        check("a control character in a key", &answer, Code::IllegalMessagePropertyKey, &[]);
        let answer = send(&mut raw, property("key", &format!("value{control}"))).await;
        check("a control character in a value", &answer, Code::IllegalMessagePropertyKey, &["key"]);
    }

    for tag in [" ", "\t", "a|b", "a\u{7f}"] {
        let answer = send_with(&mut raw, |p| p.tag = Some(tag.to_owned())).await;
        check(&format!("tag {tag:?}"), &answer, Code::IllegalMessageTag, &[]);
    }
    let answer = send_with(&mut raw, |p| p.tag = Some(String::new())).await;
    check("an empty tag", &answer, Code::Ok, &[]);

    for key in [" ", "a\u{1}"] {
        let answer = send_with(&mut raw, |p| p.keys = vec!["good".into(), key.into()]).await;
        check(&format!("key {key:?}"), &answer, Code::IllegalMessageKey, &[]);
    }
    let answer = send_with(&mut raw, |p| p.keys = vec![String::new()]).await;
    check("an empty key", &answer, Code::Ok, &[]);

    for group in [" ", "a\u{80}"] {
        let answer = send_with(&mut raw, |p| p.message_group = Some(group.to_owned())).await;
        check(&format!("message group {group:?}"), &answer, Code::IllegalMessageGroup, &[]);
    }
    let answer = send_with(&mut raw, |p| p.message_group = Some("é".repeat(32))).await;
    check("a message group of 64 bytes", &answer, Code::IllegalMessageGroup, &["64"]);
    let answer = send_with(&mut raw, |p| p.message_group = Some(String::new())).await;
    check("an empty message group", &answer, Code::Ok, &[]);

    for id in ["", " "] {
        let answer = send_with(&mut raw, |p| p.message_id = id.to_owned()).await;
        check(&format!("message id {id:?}"), &answer, Code::IllegalMessageId, &[]);
    }
    let answer = send(&mut raw, |m| m.system_properties = None).await;
    check("no system properties", &answer, Code::IllegalMessageId, &[]);
}

#[tokio::test]
async fn times_and_kinds_of_a_message_follow_the_rules() {
    let (_cluster, mut raw) = one_node().await;
    let far = Timestamp { seconds: now().seconds + 731 * 86400, nanos: 0 };
    let delay = |at: Timestamp| {
        move |p: &mut SystemProperties| {
            p.message_type = MessageType::Delay.into();
            p.delivery_timestamp = Some(at);
        }
    };
    for at in [far, Timestamp { seconds: i64::MAX, nanos: 0 }] {
        let answer = send_with(&mut raw, delay(at)).await;
        let limit = (730_u64 * 86_400_000).to_string();
        check("a delay of two years and a day", &answer, Code::IllegalDeliveryTime, &[&limit]);
    }
    let answer = send_with(&mut raw, delay(Timestamp { seconds: i64::MIN, nanos: -7 })).await;
    assert_ne!(answer.0, i32::from(Code::Ok), "a time before all times: {answer:?}");

    let answer = send_with(&mut raw, |p| {
        p.message_type = MessageType::Transaction.into();
        p.orphaned_transaction_recovery_duration = seconds(3601);
    })
    .await;
    check("a recovery after more than an hour", &answer, Code::BadRequest, &["3600", "3601"]);

    // A topic of normal messages takes no other kind.
    let kinds: [(&str, Change); 4] = [
        ("fifo", |p| {
            p.message_type = MessageType::Fifo.into();
            p.message_group = Some("g".to_owned());
        }),
        ("delay", |p| {
            p.message_type = MessageType::Delay.into();
            p.delivery_timestamp = Some(now());
        }),
        ("transaction", |p| p.message_type = MessageType::Transaction.into()),
        ("priority", |p| p.priority = Some(3)),
    ];
    for (kind, change) in kinds {
        let answer = send_with(&mut raw, change).await;
        check(kind, &answer, Code::MessagePropertyConflictWithType, &[kind]);
    }
    for (what, change) in [
        ("a lite topic", (|p| p.lite_topic = Some("lite".to_owned())) as Change),
        ("a negative priority", |p| p.priority = Some(-1)),
        ("an unknown kind", |p| p.message_type = 99),
        ("an unknown encoding", |p| p.body_encoding = 99),
    ] {
        let (code, text) = send_with(&mut raw, change).await;
        assert_ne!(code, i32::from(Code::Ok), "{what}: {text}");
        assert!(Code::try_from(code).is_ok() && code != 0, "{what}: {code} {text}");
    }
}

#[tokio::test]
async fn a_request_of_several_messages_is_whole_or_nothing() {
    let (_cluster, mut raw) = one_node().await;
    check("no message", &raw.send(vec![]).await, Code::MessageCorrupted, &[]);

    let answer = raw.send(vec![message("a", "1", "x"), message("b", "2", "x")]).await;
    check("two topics in one request", &answer, Code::MessageCorrupted, &["a", "b"]);

    let answer = raw.send(vec![message("whole", "3", "x"), message("whole", "4", "")]).await;
    check("one bad message of two", &answer, Code::MessageBodyEmpty, &[]);

    let many = |count: usize| (0..count).map(|n| message("whole", &format!("m{n}"), "x")).collect();
    check("ten messages", &raw.send(many(10)).await, Code::Ok, &[]);
    let response = raw
        .send_message(v2::SendMessageRequest { messages: many(20).split_off(10) })
        .await
        .unwrap();
    let ids: Vec<_> = response.entries.iter().map(|entry| entry.message_id.clone()).collect();
    assert_eq!(ids, (10..20).map(|n| format!("m{n}")).collect::<Vec<_>>(), "one to one, in order");

    // Nothing of the refused requests is there.
    let mut seen = Vec::new();
    while seen.len() < 20 {
        let (answer, messages) = raw.receive(receive("whole", "all")).await.unwrap();
        check("receive", &answer, Code::Ok, &[]);
        seen.extend(messages.into_iter().map(|m| m.system_properties.unwrap().message_id));
    }
    let (answer, messages) = raw.receive(receive("whole", "all")).await.unwrap();
    check("nothing more", &answer, Code::MessageNotFound, &[]);
    assert!(messages.is_empty());
    assert!(!seen.contains(&"3".to_owned()), "{seen:?}");
}
