//! Requests that no honest client makes: missing ids, bad names, bad handles, bad durations.

use bytes::{Buf, BufMut};
use prost_types::Duration as ProtoDuration;
use raftmq::wire::rocketmq as v2;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;
use tonic::{Code as GrpcCode, Request, Response, Status};
use v2::{Code, telemetry_command::Command};

use crate::common::cluster::{Cluster, Plan};
use crate::common::raw::{Answer, Raw, answer, message, receive, resource, seconds};
use crate::limits::check;

const BAD_TOPICS: [&str; 9] =
    ["", "  ", "a b", "a.b", "ü", "a\u{0}", "TBW102", "SELF_TEST_TOPIC", "rmq_sys_x"];
const BAD_GROUPS: [&str; 6] = ["", " ", "a b", "a/b", "ü", "CID_RMQ_SYS_x"];

async fn one_node() -> (Cluster, Raw) {
    let cluster = Cluster::start(Plan { shares: true, ..Plan::of(1) });
    let raw = Raw::connect(cluster.nodes()[0].grpc).await;
    (cluster, raw)
}

fn ack(topic: &str, group: &str, handles: &[&str]) -> v2::AckMessageRequest {
    let entry = |handle: &&str| v2::AckMessageEntry {
        message_id: "some".to_owned(),
        receipt_handle: (*handle).to_owned(),
        lite_topic: None,
    };
    v2::AckMessageRequest {
        topic: resource(topic),
        group: resource(group),
        entries: handles.iter().map(entry).collect(),
    }
}

fn change(
    (topic, group): (&str, &str),
    handle: &str,
    duration: Option<ProtoDuration>,
) -> v2::ChangeInvisibleDurationRequest {
    v2::ChangeInvisibleDurationRequest {
        topic: resource(topic),
        group: resource(group),
        receipt_handle: handle.to_owned(),
        invisible_duration: duration,
        message_id: "some".to_owned(),
        lite_topic: None,
        suspend: None,
    }
}

fn route(topic: &str) -> v2::QueryRouteRequest {
    v2::QueryRouteRequest { topic: resource(topic), endpoints: None }
}

fn assignment(topic: &str, group: &str) -> v2::QueryAssignmentRequest {
    v2::QueryAssignmentRequest { topic: resource(topic), group: resource(group), endpoints: None }
}

fn heartbeat(group: &str, client_type: i32) -> v2::HeartbeatRequest {
    v2::HeartbeatRequest { group: resource(group), client_type }
}

async fn received(raw: &mut Raw, request: v2::ReceiveMessageRequest) -> Answer {
    raw.receive(request).await.unwrap().0
}

#[tokio::test]
async fn every_rpc_wants_a_client_id() {
    let (_cluster, raw) = one_node().await;
    for id in [None, Some(""), Some("  ")] {
        let mut raw = raw.named(id);
        let simple = v2::ClientType::SimpleConsumer.into();
        let gone = v2::NotifyClientTerminationRequest { group: resource("g") };
        let answers = [
            ("QueryRoute", answer(raw.query_route(route("t")).await.unwrap().status)),
            (
                "QueryAssignment",
                answer(raw.query_assignment(assignment("t", "g")).await.unwrap().status),
            ),
            ("Heartbeat", answer(raw.heartbeat(heartbeat("g", simple)).await.unwrap().status)),
            ("SendMessage", raw.send(vec![message("t", "m", "x")]).await),
            ("ReceiveMessage", received(&mut raw, receive("t", "g")).await),
            ("AckMessage", answer(raw.ack_message(ack("t", "g", &["h"])).await.unwrap().status)),
            (
                "ChangeInvisibleDuration",
                answer(
                    raw.change_invisible_duration(change(("t", "g"), "h", seconds(10)))
                        .await
                        .unwrap()
                        .status,
                ),
            ),
            (
                "NotifyClientTermination",
                answer(raw.notify_client_termination(gone).await.unwrap().status),
            ),
        ];
        for (rpc, answer) in answers {
            check(&format!("{rpc} of client {id:?}"), &answer, Code::ClientIdRequired, &[]);
        }
        let first = raw.telemetry(vec![settings(None)]).await.unwrap().unwrap();
        check("Telemetry", &answer(first.status), Code::ClientIdRequired, &[]);
        assert_eq!(first.command, None, "a status and nothing else");
    }
}

#[tokio::test]
async fn names_are_checked_wherever_they_come_in() {
    let (_cluster, mut raw) = one_node().await;
    let long = "t".repeat(128);
    for topic in BAD_TOPICS.iter().copied().chain([long.as_str()]) {
        let answers = [
            ("QueryRoute", answer(raw.query_route(route(topic)).await.unwrap().status)),
            (
                "QueryAssignment",
                answer(raw.query_assignment(assignment(topic, "g")).await.unwrap().status),
            ),
            ("SendMessage", raw.send(vec![message(topic, "m", "x")]).await),
            ("ReceiveMessage", received(&mut raw, receive(topic, "g")).await),
            ("AckMessage", answer(raw.ack_message(ack(topic, "g", &["h"])).await.unwrap().status)),
        ];
        let named: &[&str] = if topic == long { &["127", "128"] } else { &[] };
        for (rpc, answer) in answers {
            check(&format!("{rpc} with topic {topic:?}"), &answer, Code::IllegalTopic, named);
        }
    }
    let answer_of_missing = raw.query_route(v2::QueryRouteRequest::default()).await.unwrap().status;
    check("no topic at all", &answer(answer_of_missing), Code::IllegalTopic, &[]);

    let long = "g".repeat(121);
    for group in BAD_GROUPS.iter().copied().chain([long.as_str()]) {
        let consumer = v2::ClientType::SimpleConsumer.into();
        let answers = [
            (
                "QueryAssignment",
                answer(raw.query_assignment(assignment("t", group)).await.unwrap().status),
            ),
            ("ReceiveMessage", received(&mut raw, receive("t", group)).await),
            ("AckMessage", answer(raw.ack_message(ack("t", group, &["h"])).await.unwrap().status)),
            ("Heartbeat", answer(raw.heartbeat(heartbeat(group, consumer)).await.unwrap().status)),
        ];
        let named: &[&str] = if group == long { &["120", "121"] } else { &[] };
        for (rpc, answer) in answers {
            let what = format!("{rpc} with group {group:?}");
            check(&what, &answer, Code::IllegalConsumerGroup, named);
        }
    }

    // The longest names that are allowed are allowed.
    let (topic, group) = ("t".repeat(127), "g".repeat(120));
    check("a topic of 127", &raw.send(vec![message(&topic, "m", "x")]).await, Code::Ok, &[]);
    check("a group of 120", &received(&mut raw, receive(&topic, &group)).await, Code::Ok, &[]);
}

#[tokio::test]
async fn receives_check_times_filters_and_sizes() {
    let (_cluster, mut raw) = one_node().await;
    check("send", &raw.send(vec![message("t", "m", "x")]).await, Code::Ok, &[]);
    const HOUR: i64 = 3600;

    let odd = Some(ProtoDuration { seconds: i64::MAX, nanos: i32::MAX });
    for invisible in [None, seconds(-1), seconds(0), seconds(9), seconds(12 * HOUR + 1), odd] {
        let request =
            v2::ReceiveMessageRequest { invisible_duration: invisible, ..receive("t", "g") };
        let answer = received(&mut raw, request).await;
        check(&format!("invisible for {invisible:?}"), &answer, Code::IllegalInvisibleTime, &[]);
    }
    let request = v2::ReceiveMessageRequest { invisible_duration: seconds(9), ..receive("t", "g") };
    let (_, text) = received(&mut raw, request).await;
    assert!(text.contains('9') && text.contains("10"), "limit and value are named: {text}");

    for polling in [seconds(-1), Some(ProtoDuration { seconds: i64::MIN, nanos: -1 })] {
        let request =
            v2::ReceiveMessageRequest { long_polling_timeout: polling, ..receive("t", "g") };
        let answer = received(&mut raw, request).await;
        check(&format!("polling for {polling:?}"), &answer, Code::IllegalPollingTime, &[]);
    }

    let filter = |r#type: i32, expression: &str| v2::ReceiveMessageRequest {
        filter_expression: Some(v2::FilterExpression { r#type, expression: expression.to_owned() }),
        ..receive("t", "g")
    };
    let sql = v2::FilterType::Sql.into();
    let tag = v2::FilterType::Tag.into();
    for (r#type, expression) in [(sql, ""), (99, "*"), (-1, "*"), (tag, "a || | b")] {
        let answer = received(&mut raw, filter(r#type, expression)).await;
        let what = format!("filter {type} {expression:?}");
        check(&what, &answer, Code::IllegalFilterExpression, &[]);
    }
    for batch_size in [0, -5, i32::MIN] {
        let request = v2::ReceiveMessageRequest { batch_size, ..receive("t", "g") };
        let (code, text) = received(&mut raw, request).await;
        assert_ne!(code, i32::from(Code::Ok), "a batch of {batch_size}: {text}");
    }

    // After all of that the message is still there, and a batch too large is cut, not refused.
    let request = v2::ReceiveMessageRequest { batch_size: i32::MAX, ..receive("t", "g") };
    let (answer, messages) = raw.receive(request).await.unwrap();
    check("a batch of everything", &answer, Code::Ok, &[]);
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].system_properties.as_ref().unwrap().delivery_attempt, Some(1));
}

#[tokio::test]
async fn handles_that_name_no_delivery_are_refused() {
    let (_cluster, mut raw) = one_node().await;
    check("send", &raw.send(vec![message("t", "m", "x")]).await, Code::Ok, &[]);
    let (_, messages) = raw.receive(receive("t", "g")).await.unwrap();
    let good = messages[0].system_properties.as_ref().unwrap().receipt_handle.clone().unwrap();
    let flipped: String =
        good.chars().rev().enumerate().map(|(n, c)| if n == 3 { other(c) } else { c }).collect();
    let flipped: String = flipped.chars().rev().collect();
    let long = "A".repeat(100_000);
    let bad = ["", "x", "ü", "0 1 2 3 4 5 6 7 8", &good[1..], &flipped, &long];

    for handle in bad {
        let response = raw.ack_message(ack("t", "g", &[handle])).await.unwrap();
        let what = format!("ack of {:?}", &handle.chars().take(60).collect::<String>());
        check(&what, &answer(response.status), Code::InvalidReceiptHandle, &[]);
        assert_eq!(response.entries.len(), 1, "{what}");
        assert_eq!(response.entries[0].receipt_handle, handle, "{what}: the handle is echoed");

        let response =
            raw.change_invisible_duration(change(("t", "g"), handle, seconds(30))).await.unwrap();
        check(&what, &answer(response.status), Code::InvalidReceiptHandle, &[]);
        assert_eq!(response.receipt_handle, handle, "{what}: the handle is echoed");
    }
    let none = raw.ack_message(ack("t", "g", &[])).await.unwrap();
    assert_ne!(answer(none.status).0, i32::from(Code::Ok), "an ack of nothing");
    for duration in [seconds(-1), seconds(12 * 3600 + 1)] {
        let response =
            raw.change_invisible_duration(change(("t", "g"), &good, duration)).await.unwrap();
        let answer = answer(response.status);
        check(&format!("hidden for {duration:?}"), &answer, Code::IllegalInvisibleTime, &[]);
        assert_eq!(response.receipt_handle, good, "the handle is echoed");
    }

    // One bad handle does not harm the good one beside it; acknowledging twice is no error.
    let response = raw.ack_message(ack("t", "g", &["x", &good])).await.unwrap();
    check("one of two", &answer(response.status), Code::MultipleResults, &[]);
    let codes: Vec<_> =
        response.entries.iter().map(|entry| entry.status.as_ref().unwrap().code).collect();
    assert_eq!(codes, [i32::from(Code::InvalidReceiptHandle), i32::from(Code::Ok)]);
    let again = raw.ack_message(ack("t", "g", &[&good])).await.unwrap();
    check("the same ack again", &answer(again.status), Code::Ok, &[]);
}

fn bad_client_properties() -> Vec<(&'static str, Vec<(String, String)>)> {
    let one = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
    let many = |count: usize, value: &str| -> Vec<(String, String)> {
        (0..count).map(|n| (format!("k{n}"), value.to_owned())).collect()
    };
    vec![
        ("33 client properties", many(33, "v")),
        ("a key of 65", one(&"k".repeat(65), "v")),
        ("a key that starts with a digit", one("1k", "v")),
        ("a key with a space", one("a b", "v")),
        ("a reserved key", one("rocketmq.x", "v")),
        ("a value of 257", one("k", &"v".repeat(257))),
        ("more than 4 KiB", many(20, &"v".repeat(250))),
    ]
}

fn other(c: char) -> char {
    if c == '0' { '1' } else { '0' }
}

fn settings(pub_sub: Option<v2::settings::PubSub>) -> v2::TelemetryCommand {
    let settings = v2::Settings { pub_sub, ..Default::default() };
    v2::TelemetryCommand { status: None, command: Some(Command::Settings(settings)) }
}

#[tokio::test]
async fn telemetry_and_heartbeats_check_what_they_are_told() {
    let (_cluster, mut raw) = one_node().await;
    let publishing = |topic: &str| {
        let topics = vec![resource(topic).unwrap()];
        settings(Some(v2::settings::PubSub::Publishing(v2::Publishing {
            topics,
            ..Default::default()
        })))
    };
    let subscription = |group: &str| {
        settings(Some(v2::settings::PubSub::Subscription(v2::Subscription {
            group: resource(group),
            ..Default::default()
        })))
    };
    for bad in [settings(None), publishing("a b"), subscription("a b")] {
        let status = raw.telemetry(vec![bad.clone()]).await.unwrap_err();
        assert_eq!(status.code(), GrpcCode::InvalidArgument, "{bad:?}: {status:?}");
    }
    let good = raw.telemetry(vec![publishing("t")]).await.unwrap().unwrap();
    check("good settings", &answer(good.status), Code::Ok, &[]);

    for (what, properties) in bad_client_properties() {
        let settings = v2::Settings {
            client_properties: properties.into_iter().collect(),
            pub_sub: Some(v2::settings::PubSub::Publishing(v2::Publishing::default())),
            ..Default::default()
        };
        let command =
            v2::TelemetryCommand { status: None, command: Some(Command::Settings(settings)) };
        let told = raw.telemetry(vec![command]).await.unwrap().unwrap();
        check(what, &answer(told.status), Code::InvalidClientProperties, &[]);
    }

    for kind in [0, 4, 99, -1] {
        let response = raw.heartbeat(heartbeat("g", kind)).await.unwrap();
        let what = format!("client type {kind}");
        check(&what, &answer(response.status), Code::UnrecognizedClientType, &[]);
    }
    let push = v2::ClientType::PushConsumer.into();
    let response = raw.heartbeat(heartbeat("g", push)).await.unwrap();
    check("a heartbeat", &answer(response.status), Code::Ok, &[]);
}

/// Takes and gives the bytes of a gRPC message as they are.
#[derive(Clone, Copy, Debug, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

#[tokio::test]
async fn bytes_that_are_no_message_of_ours_are_a_grpc_error() {
    let (cluster, mut raw) = one_node().await;
    let endpoint = Endpoint::from_shared(format!("http://{}", cluster.nodes()[0].grpc)).unwrap();
    let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
    let call = async |rpc: &str, bytes: Vec<u8>| {
        let path = format!("/apache.rocketmq.v2.MessagingService/{rpc}").parse().unwrap();
        let mut request = Request::new(bytes);
        request.metadata_mut().insert("x-mq-client-id", "plain@1@0@test".parse().unwrap());
        grpc.ready().await.unwrap();
        grpc.unary(request, path, Plain).await.map(Response::into_inner)
    };
    let mut call = call;

    // A field of length 2^28 that is not there; a group end without a group; a text not in UTF-8.
    let bad: [&[u8]; 3] =
        [&[0x0a, 0x80, 0x80, 0x80, 0x80, 0x01], &[0x0c], &[0x0a, 3, 0x12, 1, 0xff]];
    for bytes in bad {
        let status = call("QueryRoute", bytes.to_vec()).await.unwrap_err();
        assert_ne!(status.code(), GrpcCode::Unknown, "{bytes:?}: {status:?}");
    }
    let status = call("SendMessage", vec![0; 200 << 20]).await.unwrap_err();
    println!("a request of 200 MiB: {:?} {}", status.code(), status.message());
    assert!(
        matches!(status.code(), GrpcCode::OutOfRange | GrpcCode::ResourceExhausted),
        "{status:?}"
    );
    let status = call("NoSuchRpc", vec![]).await.unwrap_err();
    assert_eq!(status.code(), GrpcCode::Unimplemented);
    for rpc in ["PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "RecallMessage"] {
        // Without their fields they are refused: clients understand both forms.
        match call(rpc, vec![]).await {
            Ok(bytes) => assert!(!bytes.is_empty(), "{rpc}: an answer carries a status"),
            Err(status) => assert_eq!(status.code(), GrpcCode::Unimplemented, "{rpc}: {status:?}"),
        }
    }
    check("an honest request", &raw.send(vec![message("t", "m", "x")]).await, Code::Ok, &[]);
}
