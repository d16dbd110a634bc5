//! Nodes whose clocks are wrong, and a cluster that was down while deadlines passed. The clocks of
//! single processes are set by libfaketime; the machine's is left alone.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{Client, Draft, Producer, Received, SimpleConsumer, Take};
use rustix::process::Signal;

use crate::common::cluster::{Cluster, Node, PATIENCE, Plan, gone, kill};
use crate::common::solo::Solo;
use crate::common::{http, until};

const TEN_MINUTES: i64 = 600;

/// A missing library is a failure: `.ci/run` installs it.
fn library() -> PathBuf {
    let known = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"];
    let paths = known.iter().map(|folder| PathBuf::from(folder).join("faketime/libfaketime.so.1"));
    paths
        .into_iter()
        .find(|path| path.exists())
        .expect("libfaketime is installed (Debian: libfaketime)")
}

/// Wall time is off by so many seconds; time that only goes on is not.
fn off_by(seconds: i64) -> Vec<(&'static str, String)> {
    vec![
        ("LD_PRELOAD", library().to_string_lossy().into_owned()),
        ("FAKETIME", format!("{seconds:+}s")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
    ]
}

fn now_millis() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn draft(text: &str) -> Draft {
    let topic = TopicName::new("timed").unwrap();
    let body = Bytes::from(text.to_owned());
    Draft::new(topic, body)
}

async fn consumer(endpoint: &str, invisible: Duration) -> SimpleConsumer {
    let take = Take {
        topic: TopicName::new("timed").unwrap(),
        group: GroupName::new("readers").unwrap(),
        filter: "*".to_owned(),
        max: 1,
        invisible,
        wait: Duration::from_secs(1),
    };
    SimpleConsumer::new(Client::connect(endpoint).await.unwrap(), take).await.unwrap()
}

async fn receive_one(consumer: &SimpleConsumer, within: Duration) -> Received {
    let deadline = Instant::now() + within;
    loop {
        if let Some(message) = consumer.receive().await.unwrap().pop() {
            return message;
        }
        assert!(Instant::now() < deadline, "no message came within {within:?}");
    }
}

/// A message sent now carries a stamp of now, not before the last one; one that is handed out comes
/// again after its time and not before.
async fn stamps_are_right(endpoint: &str, last: &mut u64) {
    let producer = Producer::connect(endpoint, 1).await.unwrap();
    let hidden = Duration::from_secs(11);
    let reader = consumer(endpoint, hidden).await;
    let before = now_millis();
    producer.send(&[draft("now")]).await.unwrap();
    let message = receive_one(&reader, PATIENCE).await;
    let taken = Instant::now();
    let skew = 1_000;
    assert!(message.stored >= *last, "stamps fell from {last} to {}", message.stored);
    let now = before.saturating_sub(skew)..=now_millis() + skew;
    assert!(now.contains(&message.stored), "{} is not in {now:?}", message.stored);
    *last = message.stored;
    let again = receive_one(&reader, PATIENCE).await;
    // The stamp of the hand-out lies before its answer by what a round trip takes.
    let early = hidden.checked_sub(taken.elapsed()).unwrap_or_default();
    assert!(early < Duration::from_millis(500), "it came again {early:?} early");
    assert_eq!((&again.body, again.attempt), (&message.body, 2));
    reader.ack(&[again]).await.unwrap();
}

#[tokio::test]
async fn a_node_with_a_wrong_clock_does_not_lead_and_stamps_stay_right() {
    let cluster = Cluster::start(Plan::of(3));
    let mut last = 0;
    let mut restarted: Vec<(u64, Solo)> = Vec::new();
    for seconds in [TEN_MINUTES, -TEN_MINUTES] {
        let victim = cluster.leader();
        let others: Vec<Node> =
            cluster.nodes().into_iter().filter(|node| node.node != victim.node).collect();
        let endpoint = others[0].grpc.to_string();
        stamps_are_right(&endpoint, &mut last).await;
        restarted.retain_mut(|(node, solo)| {
            let is_victim = *node == victim.node;
            if is_victim {
                solo.kill();
            }
            !is_victim
        });
        kill(victim.pid, Signal::KILL);
        until("the leader is gone", PATIENCE, || gone(victim.pid));
        let mut solo = Solo::start(&cluster, &victim, &format!("off{seconds}"), &off_by(seconds));
        solo.until_ready(PATIENCE);
        until("the metric shows the suspect clock", PATIENCE, || {
            let suspect = http::metric(victim.http, "raftmq_clock_suspect")?;
            if suspect == 1 { Ok(()) } else { Err(suspect.to_string()) }
        });
        until("the log says so", PATIENCE, || {
            let said = solo.said();
            if said.contains("the clock is far from the majority's") { Ok(()) } else { Err(said) }
        });
        let to = victim.node.to_string();
        let asked = cluster
            .tool(others[0].grpc, &["cluster", "transfer-leader", "--to", &to, "--timeout", "3s"]);
        println!("clocks: {seconds:+} s: node {to}, asked to lead: {asked:?}");
        assert!(asked.is_err(), "a node with a wrong clock was given the leadership");
        let roles = cluster.status_by(others[0].grpc).unwrap();
        let led = roles.iter().find(|replica| replica.role == "leader").map(|one| one.node);
        assert_ne!(led, Some(victim.node), "a node with a wrong clock leads: {roles:?}");
        stamps_are_right(&endpoint, &mut last).await;
        println!("clocks: {seconds:+} s: does not lead, last stamp {last}");
        solo.kill();
        let mut right = Solo::start(&cluster, &victim, "right", &[]);
        right.until_ready(PATIENCE);
        until("the metric shows a good clock", PATIENCE, || {
            let suspect = http::metric(victim.http, "raftmq_clock_suspect")?;
            if suspect == 0 { Ok(()) } else { Err(suspect.to_string()) }
        });
        restarted.push((victim.node, right));
    }
}

#[tokio::test]
async fn what_fell_due_while_the_cluster_was_down_comes_within_ten_seconds() {
    let mut cluster = Cluster::start(Plan::of(3));
    let endpoint = cluster.leader().grpc.to_string();
    let producer = Producer::connect(&endpoint, 1).await.unwrap();
    let reader = consumer(&endpoint, Duration::from_secs(300)).await;
    let mut bodies = Vec::new();
    for n in 0..50 {
        let text = format!("due {n}");
        producer.send(&[draft(&text)]).await.unwrap();
        bodies.push(receive_one(&reader, PATIENCE).await.body);
    }
    assert!(reader.receive().await.unwrap().is_empty(), "all are hidden for five minutes");
    cluster.stop();
    cluster.set_environment(off_by(TEN_MINUTES));
    let start = Instant::now();
    cluster.up();
    cluster.wait_ready(PATIENCE);
    let endpoint = cluster.leader().grpc.to_string();
    let reader = consumer(&endpoint, Duration::from_secs(300)).await;
    let mut again = Vec::new();
    while again.len() < bodies.len() {
        again.extend(reader.receive_up_to(32, Duration::from_secs(1)).await.unwrap());
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(10), "{} of 50 in {waited:?}", again.len());
    }
    let mut again: Vec<Bytes> = again.into_iter().map(|message| message.body).collect();
    again.sort();
    bodies.sort();
    assert_eq!(again, bodies);
    println!("clocks: all 50 overdue messages came {:?} after the start began", start.elapsed());
}
