//! Delayed messages: once and never early through leader kills, longer than retention, recalled
//! around their time, and what an operator and an official client do with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::StreamExt;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{Client, Delayed, Draft, Producer, SentMessage, SimpleConsumer, Take};
use raftmq::wire::rocketmq as v2;
use rustix::process::Signal;
use tokio::task::JoinHandle;

use super::broker_groups::held;
use crate::common::cluster::{Cluster, PATIENCE, Plan, check_ready, kill};
use crate::common::raw::{self, Raw};
use crate::common::{http, python, until};

/// The form of the tests: small in the test command, or as the environment says.
fn form(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

const BATCH: usize = 20;
/// What clocks of two processes on one machine may differ by, in milliseconds: they are one clock.
const CLOCK: u64 = 1;

fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn topic_name(topic: &str) -> TopicName {
    TopicName::new(topic).unwrap()
}

fn draft(topic: &str, text: String) -> Draft {
    let body = Bytes::from(text);
    Draft::new(topic_name(topic), body)
}

fn create(cluster: &Cluster, topic: &str, more: &[&str]) {
    let words = ["topic", "create", topic, "--queues", "4", "--type", "delay"];
    let words: Vec<&str> = words.iter().chain(more).copied().collect();
    cluster.tool(cluster.nodes()[0].grpc, &words).unwrap();
}

/// One delivery.
#[derive(Clone, Debug)]
struct Got {
    number: u64,
    queue: i32,
    offset: i64,
    /// When the broker made it visible.
    visible: u64,
    /// When it was here.
    at: u64,
}

/// Consumers that take and acknowledge whatever comes, through kills, until they are stopped.
struct Takers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<Got>>>,
}

impl Takers {
    fn start(cluster: &Cluster, topic: &str, group: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let endpoints = cluster.nodes().into_iter().map(|node| node.grpc.to_string());
        let tasks = endpoints.map(|endpoint| {
            let take = Take {
                topic: topic_name(topic),
                group: GroupName::new(group).unwrap(),
                filter: "*".to_owned(),
                max: 32,
                invisible: Duration::from_secs(30),
                wait: Duration::from_secs(1),
            };
            tokio::spawn(consume(endpoint, take, stop.clone()))
        });
        Self { stop: stop.clone(), tasks: tasks.collect() }
    }

    async fn finish(self) -> Vec<Got> {
        self.stop.store(true, Ordering::Relaxed);
        let all = futures::future::join_all(self.tasks).await;
        all.into_iter().flat_map(|got| got.unwrap()).collect()
    }
}

async fn consume(endpoint: String, take: Take, stop: Arc<AtomicBool>) -> Vec<Got> {
    let mut got = Vec::new();
    let mut consumer = None;
    while !stop.load(Ordering::Relaxed) {
        if consumer.is_none() {
            let client = Client::connect(&endpoint).await;
            consumer = match client {
                Ok(client) => SimpleConsumer::new(client, take.clone()).await.ok(),
                Err(_) => None,
            };
        }
        let Some(ready) = &consumer else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // A node that was killed answers nothing; it is asked again.
        let Ok(messages) = ready.receive_up_to(32, Duration::from_secs(1)).await else {
            consumer = None;
            continue;
        };
        let at = now();
        for message in &messages {
            let text = String::from_utf8(message.body.to_vec()).unwrap();
            got.push(Got {
                number: text.parse().unwrap(),
                queue: message.queue,
                offset: message.offset,
                visible: message.stored,
                at,
            });
        }
        if !messages.is_empty() && ready.ack(&messages).await.is_err() {
            consumer = None;
        }
    }
    got
}

/// Sends the numbers 0 to `count`, each due at its own time; answers what came of each.
async fn send(
    cluster: &Cluster,
    topic: &str,
    count: u64,
    due: impl Fn(u64) -> u64,
) -> Vec<SentMessage> {
    let endpoint = cluster.leader().grpc.to_string();
    let producer = Producer::connect(&endpoint, 64).await.unwrap();
    let numbers = futures::stream::iter(0..count);
    let sends = numbers.map(|number| {
        let (producer, at) = (&producer, due(number));
        let draft = draft(topic, number.to_string());
        async move { producer.send_at(&[draft], Some(at)).await.unwrap().remove(0) }
    });
    sends.buffered(64).collect().await
}

/// Each number at one place only, and none before its time; answers how late they were.
fn check_once_and_not_early(got: &[Got], due: impl Fn(u64) -> u64) -> Vec<u64> {
    let mut places: BTreeMap<u64, BTreeSet<(i32, i64)>> = BTreeMap::new();
    let mut late = Vec::new();
    for one in got {
        let due = due(one.number);
        assert!(one.at + CLOCK >= due, "{one:?} is early, it was due at {due}");
        assert!(one.visible >= due, "{one:?} was made visible early, it was due at {due}");
        if places.entry(one.number).or_default().insert((one.queue, one.offset)) {
            late.push(one.visible - due);
        }
    }
    let twice: Vec<_> = places.iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(twice.is_empty(), "visible at several places: {twice:?}");
    late.sort_unstable();
    late
}

async fn until_all(takers: &Takers, cluster: &Cluster, topic: &str, count: u64) {
    // Visible ones are counted where they lie; whether each came is checked at the end.
    until("all are visible", Duration::from_secs(60), || {
        let nodes = cluster.try_nodes()?;
        let live = nodes.iter().find(|node| check_ready(node).is_ok()).ok_or("no node is ready")?;
        let visible: u64 = held(cluster, live.grpc, topic).iter().map(|(_, count)| count).sum();
        if visible >= count { Ok(()) } else { Err(format!("{visible} of {count}")) }
    });
    assert!(!takers.tasks.is_empty());
}

fn wait_taken(cluster: &Cluster, group: &str) {
    crate::common::cluster::wait_drained(cluster, cluster.leader().grpc, group);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_comes_once_and_none_early_though_leaders_are_killed() {
    let count = form("RAFTMQ_FORM_DELAYED", 2_000);
    let spread = form("RAFTMQ_FORM_SPREAD_SECONDS", 20) * 1000;
    let kills = form("RAFTMQ_FORM_KILLS", 4);
    let cluster = Cluster::start(Plan { restart: true, ..Plan::of(3) });
    create(&cluster, "later", &[]);
    let begins = now() + 8_000;
    let due = move |number: u64| begins + number * 7_919 % count * spread / count;
    let sent = send(&cluster, "later", count, due).await;
    assert!(sent.iter().all(|one| one.recall_handle.is_some()));
    assert!(now() < begins, "sending took too long for this form");
    let takers = Takers::start(&cluster, "later", "takers");
    for kill_number in 1..=kills {
        let at = begins + kill_number * spread / (kills + 1);
        tokio::time::sleep(Duration::from_millis(at.saturating_sub(now()))).await;
        let leader = cluster.leader();
        kill(leader.pid, Signal::KILL);
        println!(
            "delayed: killed node {} {} ms after the first was due",
            leader.node,
            now() - begins
        );
    }
    tokio::task::block_in_place(|| {
        until("all nodes are back", PATIENCE, || {
            cluster.try_nodes()?.iter().try_for_each(check_ready)
        });
    });
    until_all(&takers, &cluster, "later", count).await;
    tokio::task::block_in_place(|| wait_taken(&cluster, "takers"));
    let got = takers.finish().await;
    let late = check_once_and_not_early(&got, due);
    assert_eq!(late.len() as u64, count, "each number came");
    let at = |share: usize| late[(late.len() - 1) * share / 100];
    println!(
        "delayed: {count} over {spread} ms with {kills} kills: each at one place, none early; late \
         by {} ms (median), {} ms (99 %), {} ms (most); {} deliveries",
        at(50),
        at(99),
        at(100),
        got.len()
    );
    cluster.wait_equal(PATIENCE);
}

/// A record that lies strides before its message is written again in time, so that the message costs
/// no memory once it is visible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_visible_message_takes_no_memory() {
    const COUNT: u64 = 50;
    let environment = vec![
        ("RAFTMQ_LOG__SEGMENT_BYTES", "8MiB".to_owned()),
        ("RAFTMQ_LOG__CHECKPOINT_BYTES", "8MiB".to_owned()),
        ("RAFTMQ_RETENTION__STRIDE_BYTES", "1MiB".to_owned()),
    ];
    let cluster = Cluster::start(Plan { environment, shares: true, ..Plan::of(1) });
    create(&cluster, "brought", &[]);
    // Far enough away for all that comes before.
    let begins = now() + 15_000;
    let due = move |number: u64| begins + number * 20;
    send(&cluster, "brought", COUNT, due).await;
    let nodes = cluster.nodes();
    let producer = Producer::connect(&nodes[0].grpc.to_string(), 8).await.unwrap();
    let filler = vec![draft("filler", "x".repeat(16 << 10)); BATCH];
    for _ in 0..10 {
        producer.send(&filler).await.unwrap();
    }
    let takers = Takers::start(&cluster, "brought", "takers");
    until_all(&takers, &cluster, "brought", COUNT).await;
    let number = |text: &str, name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let text = tokio::task::block_in_place(|| {
        until("nothing is delayed", PATIENCE, || {
            let (_, text) = http::get(nodes[0].http, "/metrics").map_err(|e| e.to_string())?;
            match number(&text, "raftmq_delayed_messages") {
                0 => Ok(text),
                left => Err(format!("{left} are")),
            }
        })
    });
    assert_eq!(number(&text, "raftmq_delayed_visible_messages"), 0, "all were brought forward");
    tokio::task::block_in_place(|| wait_taken(&cluster, "takers"));
    let late = check_once_and_not_early(&takers.finish().await, due);
    assert_eq!(late.len() as u64, COUNT, "each number came");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delay_longer_than_retention_is_delivered() {
    const COUNT: u64 = 50;
    let keep = form("RAFTMQ_FORM_KEEP_SECONDS", 5) * 1000;
    let delay = form("RAFTMQ_FORM_DELAY_SECONDS", 20) * 1000;
    let environment = vec![
        ("RAFTMQ_LOG__SEGMENT_BYTES", "8MiB".to_owned()),
        ("RAFTMQ_LOG__CHECKPOINT_BYTES", "8MiB".to_owned()),
        ("RAFTMQ_RETENTION__STRIDE_BYTES", "1MiB".to_owned()),
        ("RAFTMQ_RETENTION__TIME", format!("{keep}ms")),
    ];
    let cluster = Cluster::start(Plan { environment, shares: true, ..Plan::of(3) });
    create(&cluster, "kept", &[]);
    let begins = now() + delay;
    let due = move |number: u64| begins + number * 20;
    send(&cluster, "kept", COUNT, due).await;
    let behind = cluster.wait_equal(PATIENCE)[0].applied.unwrap();
    // Other messages push the log's front, before and after the time of firing.
    let endpoint = cluster.leader().grpc.to_string();
    let producer = Producer::connect(&endpoint, 8).await.unwrap();
    let filler = vec![draft("filler", "x".repeat(16 << 10)); BATCH];
    let push = async |until: u64| {
        let mut interval = tokio::time::interval(Duration::from_millis(100));
        while now() < until {
            interval.tick().await;
            producer.send(&filler).await.unwrap();
        }
    };
    push(begins + 2_000).await;
    let floor = http::metric(cluster.leader().http, "raftmq_log_floor_index").unwrap();
    assert!(floor > behind, "the front is at {floor}, the messages were taken in by {behind}");
    // Fired, and not yet as old as retention allows: they lie in the queue, with old records.
    push(begins + 2_000 + keep / 4).await;
    let takers = Takers::start(&cluster, "kept", "late");
    until_all(&takers, &cluster, "kept", COUNT).await;
    tokio::task::block_in_place(|| wait_taken(&cluster, "late"));
    let got = takers.finish().await;
    let late = check_once_and_not_early(&got, due);
    assert_eq!(late.len() as u64, COUNT, "each number came");
    println!(
        "delayed: retention {keep} ms, delay {delay} ms: all {COUNT} came, though the log's front \
         was at entry {floor} and they had been taken in by entry {behind}"
    );
    cluster.wait_equal(PATIENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recalls_raced_around_the_due_time_are_exact() {
    let count = form("RAFTMQ_FORM_RECALLS", 600);
    let spread = form("RAFTMQ_FORM_RECALL_SECONDS", 6) * 1000;
    let cluster = Cluster::start(Plan::of(3));
    create(&cluster, "raced", &[]);
    let begins = now() + 5_000;
    let due = move |number: u64| begins + number * spread / count;
    let sent = send(&cluster, "raced", count, due).await;
    let takers = Takers::start(&cluster, "raced", "racers");
    let clients = cluster.nodes().into_iter().map(|node| node.grpc.to_string());
    let clients = clients.map(|endpoint| async move { Client::connect(&endpoint).await.unwrap() });
    let clients: Vec<Client> = futures::future::join_all(clients).await;
    let recalls = futures::stream::iter(sent.iter().zip(0..)).map(|(sent, number)| {
        let client = clients[usize::try_from(number).unwrap() % clients.len()].clone();
        // From 30 ms before to 30 ms after.
        let at = due(number) + number * 7 % 61 - 30;
        let which = if number.is_multiple_of(2) {
            Delayed::Handle(sent.recall_handle.clone().unwrap())
        } else {
            Delayed::Id(sent.message_id.clone())
        };
        async move {
            tokio::time::sleep(Duration::from_millis(at.saturating_sub(now()))).await;
            let outcome = client.recall_delayed(&topic_name("raced"), which.clone()).await.unwrap();
            // Asked again, it is the same.
            let again = client.recall_delayed(&topic_name("raced"), which).await.unwrap();
            assert_eq!(outcome.outcome, again.outcome, "{number}");
            (number, outcome.outcome)
        }
    });
    let outcomes: BTreeMap<u64, &str> = recalls.buffered(256).collect().await;
    let of = |outcome: &str| -> BTreeSet<u64> {
        outcomes.iter().filter(|(_, found)| **found == outcome).map(|(number, _)| *number).collect()
    };
    let (recalled, fired) = (of("RECALLED"), of("ALREADY_FIRED"));
    println!("delayed: {} recalled, {} had fired, of {count}", recalled.len(), fired.len());
    assert_eq!((recalled.len() + fired.len()) as u64, count, "{outcomes:?}");
    assert!(!recalled.is_empty() && !fired.is_empty(), "the race was none");
    let left = fired.len() as u64;
    until_all(&takers, &cluster, "raced", left).await;
    tokio::task::block_in_place(|| wait_taken(&cluster, "racers"));
    let got = takers.finish().await;
    check_once_and_not_early(&got, due);
    let came: BTreeSet<u64> = got.iter().map(|one| one.number).collect();
    assert_eq!(came.intersection(&recalled).count(), 0, "recalled messages came");
    assert_eq!(came, fired, "what had fired came");
    cluster.wait_equal(PATIENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_recalls_and_reschedules_and_limits_are_told() {
    let environment = vec![("RAFTMQ_BROKER__DELAY_MAX", "1h".to_owned())];
    let cluster = Cluster::start(Plan { environment, ..Plan::of(1) });
    let at = cluster.nodes()[0].grpc;
    create(&cluster, "timed", &[]);
    let send = |words: &[&str]| {
        let all = ["message", "send", "--topic", "timed", "--body"];
        cluster.tool(at, &all.iter().chain(words).copied().collect::<Vec<_>>())
    };
    let refused = send(&["1", "--delay", "61m"]).unwrap_err();
    assert!(refused.contains("ILLEGAL_DELIVERY_TIME") && refused.contains("3600000"), "{refused}");
    let refused = send(&["1", "--delay-level", "18"]).unwrap_err();
    assert!(refused.contains("ILLEGAL_DELIVERY_TIME"), "{refused}");
    // Level 17 is an hour.
    let sent = send(&["1", "--delay-level", "17"]).unwrap();
    let text = |value: &serde_json::Value, key: &str| value[key].as_str().unwrap().to_owned();
    let (id, handle) = (text(&sent[0], "message_id"), text(&sent[0], "recall_handle"));
    let timer = |words: &[&str]| {
        let all = [&words[..1], &["--topic", "timed"], &words[1..]].concat();
        let all: Vec<&str> = ["message"].into_iter().chain(all).collect();
        cluster.tool(at, &all).map(|value| text(&value, "outcome"))
    };
    assert_eq!(timer(&["reschedule", "--id", &id, "--delay", "30m"]).unwrap(), "RESCHEDULED");
    assert!(timer(&["reschedule", "--id", &id, "--delay", "2h"]).is_err());
    assert_eq!(timer(&["recall", "--id", "nobody"]).unwrap(), "NOT_FOUND");
    assert!(timer(&["recall", "--handle", "0300"]).is_err());
    assert_eq!(timer(&["reschedule", "--handle", &handle]).unwrap(), "RESCHEDULED", "now");
    let takers = Takers::start(&cluster, "timed", "takers");
    until_all(&takers, &cluster, "timed", 1).await;
    assert_eq!(timer(&["recall", "--handle", &handle]).unwrap(), "ALREADY_FIRED");
    tokio::task::block_in_place(|| wait_taken(&cluster, "takers"));
    assert_eq!(takers.finish().await.len(), 1);
    // The protocol's own recall: a code for each outcome.
    let client = Client::connect(&at.to_string()).await.unwrap();
    let late = client.recall(&topic_name("timed"), &handle).await.unwrap_err();
    assert!(late.to_string().contains("ALREADY_FIRED"), "{late}");
    let bad = client.recall(&topic_name("timed"), "00").await.unwrap_err();
    assert!(bad.to_string().contains("BAD_REQUEST"), "{bad}");
    let sent = client.send_delayed(&[draft("timed", "2".into())], now() + 60_000).await.unwrap();
    let handle = sent[0].recall_handle.clone().unwrap();
    let id = client.recall(&topic_name("timed"), &handle).await.unwrap();
    assert_eq!(id, sent[0].message_id);
    // What has passed is delivered at once; a topic of another kind refuses.
    client.send_delayed(&[draft("timed", "3".into())], 1).await.unwrap();
    assert_eq!(held(&cluster, at, "timed")[0].1, 2);
    cluster.tool(at, &["topic", "create", "plain"]).unwrap();
    let refused = client.send_delayed(&[draft("plain", "4".into())], now() + 1_000).await;
    assert!(refused.unwrap_err().to_string().contains("CONFLICT"));
}

/// A broker group that only delayed messages go to, as a delay server is for QMQ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_group_can_be_given_to_delays_alone() {
    let cluster = Cluster::start(Plan { broker_groups: 2, shares: true, ..Plan::of(1) });
    let at = cluster.nodes()[0].grpc;
    create(&cluster, "delays", &["--broker-groups", "group-1"]);
    cluster.tool(at, &["topic", "create", "rest", "--broker-groups", "group-0"]).unwrap();
    let client = Client::connect(&at.to_string()).await.unwrap();
    let due = now() + 500;
    for number in 0..10 {
        client.send_delayed(&[draft("delays", number.to_string())], due).await.unwrap();
        client.send(&[draft("rest", number.to_string())]).await.unwrap();
    }
    let takers = Takers::start(&cluster, "delays", "takers");
    until_all(&takers, &cluster, "delays", 10).await;
    assert_eq!(held(&cluster, at, "delays"), [("group-1".to_owned(), 10)]);
    assert_eq!(held(&cluster, at, "rest"), [("group-0".to_owned(), 10)]);
    tokio::task::block_in_place(|| wait_taken(&cluster, "takers"));
    let late = check_once_and_not_early(&takers.finish().await, |_| due);
    assert_eq!(late.len(), 10);
}

/// A client that repeats a send through another broker group stores it twice. By its id all of it is
/// taken back, wherever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recall_by_id_asks_each_broker_group() {
    let cluster = Cluster::start(Plan { broker_groups: 2, shares: true, ..Plan::of(1) });
    let nodes = cluster.nodes();
    let node = &nodes[0];
    create(&cluster, "twice", &[]);
    let mut raw = Raw::connect(node.grpc).await;
    for body in ["1", "2"] {
        let mut message = raw::message("twice", "the-same", body);
        let system = message.system_properties.as_mut().unwrap();
        system.message_type = v2::MessageType::Delay.into();
        system.delivery_timestamp = Some((SystemTime::now() + Duration::from_secs(600)).into());
        assert_eq!(raw.send(vec![message]).await.0, i32::from(v2::Code::Ok));
    }
    let delayed = |expected: u64| {
        for group in ["group-0", "group-1"] {
            let name = format!("raftmq_delayed_messages{{broker_group=\"{group}\"");
            until("as many are delayed", PATIENCE, || match http::metric(node.http, &name)? {
                found if found == expected => Ok(()),
                found => Err(format!("{found} in {group}")),
            });
        }
    };
    tokio::task::block_in_place(|| delayed(1));
    let words = ["message", "recall", "--topic", "twice", "--id", "the-same"];
    assert_eq!(cluster.tool(node.grpc, &words).unwrap()["outcome"], "RECALLED");
    tokio::task::block_in_place(|| delayed(0));
}

/// Delay and recall with the official Python client, which has whole seconds only.
const PYTHON: &str = r#"
import sys, time
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

config = ClientConfiguration(sys.argv[1] if len(sys.argv) > 1 else "ENDPOINT", Credentials())
producer = Producer(config, ("py",))
producer.startup()
def send(body, seconds):
    message = Message()
    message.topic = "py"
    message.body = body
    message.delivery_timestamp = int(time.time()) + seconds
    return message.delivery_timestamp, producer.send(message)
due, kept = send(b"kept", 3)
_, gone = send(b"gone", 3)
assert gone.recall_handle, "the receipt has a recall handle"
assert producer.recall_message("py", gone.recall_handle) is not None
consumer = SimpleConsumer(config, "py-group", {"py": FilterExpression()})
consumer.startup()
got = []
while time.time() < due + 6:
    for message in consumer.receive(16, 15) or []:
        got.append((message.body, time.time()))
        consumer.ack(message)
assert [body for body, _ in got] == [b"kept"], got
assert got[0][1] >= due, (got, due)
try:
    producer.recall_message("py", kept.recall_handle)
    late = "recalled"
except Exception as error:
    late = str(error)
assert "ALREADY_FIRED" in late, late
producer.shutdown()
consumer.shutdown()
print("DONE", round(got[0][1] - due, 3))
"#;

#[test]
fn the_python_client_delays_and_recalls() {
    let cluster = Cluster::start(Plan::of(3));
    create(&cluster, "py", &[]);
    let at = cluster.a_follower().grpc.to_string();
    let file = cluster.folder().join("delayed.py");
    fs::write(&file, PYTHON.replace("ENDPOINT", &at)).unwrap();
    let start = Instant::now();
    let said = python::run(&file, cluster.folder());
    assert!(said.contains("DONE"), "{said}");
    println!("delayed: python {} in {:?}", said.trim(), start.elapsed());
}
