//! Where groups stand: starts, resets under live consumers and through the death of a leader, pauses;
//! and reading by offset, at any node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{
    Client, ClientError, Draft, GroupReset, PullConsumer, PushConsumer, Pushed, Received, ResetTo,
    SimpleConsumer, Take,
};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::broker_groups::{held, spread_leaders};
use crate::common::cluster::{Cluster, PATIENCE, Plan, kill, wait_drained};

const HALF: usize = 300;
const CONSUMERS: usize = 4;

fn topic() -> TopicName {
    TopicName::new("orders").unwrap()
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn take(name: &str, wait: Duration) -> Take {
    let invisible = Duration::from_secs(10);
    let filter = "*".to_owned();
    Take { topic: topic(), group: group(name), filter, max: 32, invisible, wait }
}

fn text(message: &Received) -> String {
    String::from_utf8(message.body.to_vec()).unwrap()
}

fn texts(messages: &[Received]) -> Vec<String> {
    let mut texts: Vec<String> = messages.iter().map(text).collect();
    texts.sort();
    texts
}

/// Sends these numbers as texts, each until it is known that it was taken.
async fn send(endpoint: &str, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let draft = Draft::new(topic(), format!("{number:04}"));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let sent = match Client::connect(endpoint).await {
                Ok(client) => client.send(std::slice::from_ref(&draft)).await.map(drop),
                Err(error) => Err(error),
            };
            match sent {
                Ok(()) => break,
                Err(error) => assert!(Instant::now() < deadline, "not sent: {error}"),
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// By message: how often it came, and when it became visible.
type Seen = Arc<Mutex<BTreeMap<String, (usize, u64)>>>;

async fn consume(endpoint: String, seen: Seen) {
    loop {
        let consumer = PushConsumer::connect(&endpoint, take("readers", Duration::from_secs(5)));
        let Ok(consumer) = consumer.await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let note = |pushed| match pushed {
            Pushed::Message(message) => {
                let mut seen = seen.lock();
                seen.entry(text(&message)).or_insert((0, message.stored)).0 += 1;
            }
            Pushed::Failed(error) => println!("a consumer goes on: {error}"),
        };
        consumer.run(note).await;
    }
}

async fn wait_for(seen: &Seen, what: &str, is: impl Fn(&BTreeMap<String, (usize, u64)>) -> bool) {
    let waited = timeout(Duration::from_secs(90), async {
        while !is(&seen.lock()) {
            sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: {} were seen", seen.lock().len());
}

async fn reset(endpoint: &str, to: ResetTo) -> Result<(), ClientError> {
    let (group, topic) = (group("readers"), topic());
    let reset = GroupReset {
        group: &group,
        topic: &topic,
        to,
        queue: None,
        broker_groups: &[],
        dry_run: false,
    };
    Client::connect(endpoint).await?.reset_group(&reset).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_to_a_time_brings_back_what_came_since_though_the_leader_dies() {
    let cluster = Cluster::start(Plan::of(3));
    let first = cluster.leader();
    let tool = |words: &[&str]| cluster.tool(first.grpc, words).unwrap();
    tool(&["topic", "create", "orders", "--queues", "4"]);
    tool(&["group", "create", "readers"]);
    let survivors: Vec<String> = cluster
        .nodes()
        .iter()
        .filter(|node| node.node != first.node)
        .map(|node| node.grpc.to_string())
        .collect();
    let seen = Seen::default();
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|at| tokio::spawn(consume(survivors[at % 2].clone(), seen.clone())))
        .collect();
    send(&survivors[0], 0..HALF).await;
    sleep(Duration::from_millis(50)).await;
    send(&survivors[0], HALF..2 * HALF).await;
    wait_for(&seen, "all of both halves", |seen| seen.len() == 2 * HALF).await;
    let endpoint = survivors[0].parse().unwrap();
    wait_drained(&cluster, endpoint, "readers");

    let before = seen.lock().clone();
    let late = |text: &str| text.parse::<usize>().unwrap() >= HALF;
    let time = before.iter().filter(|(text, _)| late(text)).map(|(_, seen)| seen.1).min().unwrap();
    let dry = cluster
        .tool(
            endpoint,
            &[
                "group",
                "reset",
                "readers",
                "--topic",
                "orders",
                "--to",
                &format!("@{time}"),
                "--dry-run",
            ],
        )
        .unwrap();
    let queues = dry[0]["queues"].as_array().unwrap();
    let again: u64 = queues.iter().map(|queue| queue["again"].as_u64().unwrap()).sum();
    assert_eq!((again, &dry[0]["epoch"]), (HALF as u64, &0.into()), "{dry}");

    kill(first.pid, Signal::KILL);
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = reset(&survivors[0], ResetTo::Time(time)).await {
        assert!(Instant::now() < deadline, "not reset: {error}");
        println!("the reset is repeated: {error}");
    }
    wait_for(&seen, "the second half again", |seen| {
        seen.iter().all(|(text, (count, _))| !late(text) || *count > before[text].0)
    })
    .await;
    send(&survivors[1], 2 * HALF..2 * HALF + 50).await;
    wait_for(&seen, "what came after", |seen| seen.len() == 2 * HALF + 50).await;
    wait_drained(&cluster, endpoint, "readers");
    for (text, (count, _)) in seen.lock().iter().filter(|(text, _)| !late(text)) {
        assert_eq!(*count, before[text].0, "{text} lies before the time of the reset");
    }
    let described = cluster.tool(endpoint, &["group", "describe", "readers"]).unwrap();
    let epoch = described["parts"][0]["topics"][0]["epoch"].as_u64().unwrap();
    println!("reset {epoch} times");
    assert!(epoch >= 1, "{described}");
    consumers.iter().for_each(tokio::task::JoinHandle::abort);
}

fn code_of<T: std::fmt::Debug>(outcome: Result<T, ClientError>) -> i32 {
    match outcome {
        Err(ClientError::Refused { code, .. }) => code,
        other => panic!("not refused: {other:?}"),
    }
}

async fn consumer(endpoint: &str, name: &str, wait: Duration) -> SimpleConsumer {
    let client = Client::connect(endpoint).await.unwrap();
    SimpleConsumer::new(client, take(name, wait)).await.unwrap()
}

async fn puller(endpoint: &str, name: &str, filter: &str) -> PullConsumer {
    let client = Client::connect(endpoint).await.unwrap();
    PullConsumer::new(client, group(name), topic(), filter)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_are_read_by_offset_at_any_node() {
    let cluster = Cluster::start(Plan::of(3));
    let leader = cluster.leader().grpc;
    let tool = |words: &[&str]| cluster.tool(leader, words).unwrap();
    tool(&["topic", "create", "orders", "--queues", "1"]);
    tool(&["group", "create", "pullers"]);
    let endpoint = leader.to_string();
    let client = Client::connect(&endpoint).await.unwrap();
    for number in 0..20 {
        let tag = Some(if number % 2 == 0 { "even" } else { "odd" }.to_owned());
        let draft = Draft { tag, ..Draft::new(topic(), format!("{number:04}")) };
        client.send(&[draft]).await.unwrap();
    }
    for node in cluster.nodes() {
        let mut reader = puller(&node.grpc.to_string(), "pullers", "*").await;
        assert_eq!(reader.queues().await.unwrap(), [0]);
        assert_eq!(reader.committed(0).await.unwrap(), None);
        reader.assign(&[0]).await.unwrap();
        let mut all = Vec::new();
        while all.len() < 20 {
            let some = reader.poll(7, Duration::from_secs(5)).await.unwrap();
            assert!(!some.is_empty(), "at node {}", node.node);
            all.extend(some);
        }
        assert!(all.iter().map(|message| message.offset).eq(0..20));
        assert!(all.iter().enumerate().all(|(at, message)| text(message) == format!("{at:04}")));
        assert!(all.iter().all(|message| message.handle.is_empty()));
        // Behind the end there is nothing, and beyond it is no offset.
        let none = reader.pull(0, 20, 8, Duration::ZERO).await.unwrap();
        assert_eq!((none.messages.len(), none.next, none.out_of_range), (0, 20, false));
        let beyond = reader.pull(0, 21, 8, Duration::ZERO).await.unwrap();
        assert_eq!((beyond.next, beyond.out_of_range), (20, true));
        assert_eq!(code_of(reader.pull(1, 0, 8, Duration::ZERO).await), 40_000);
        let times = [all[3].stored, all[19].stored + 1];
        assert!(reader.find(0, ResetTo::Time(times[0])).await.unwrap() <= 3);
        assert_eq!(reader.find(0, ResetTo::Time(times[1])).await.unwrap(), 20);
        let odd = puller(&node.grpc.to_string(), "pullers", "odd").await;
        let odd = odd.pull(0, 4, 3, Duration::ZERO).await.unwrap();
        assert_eq!((texts(&odd.messages).join(" "), odd.next), ("0005 0007 0009".to_owned(), 10));
    }
    // A poll that waits hears of a message, at whatever node.
    for node in cluster.nodes() {
        let reader = puller(&node.grpc.to_string(), "pullers", "*").await;
        let end = reader.find(0, ResetTo::Latest).await.unwrap();
        let waiting =
            tokio::spawn(async move { reader.pull(0, end, 8, Duration::from_secs(15)).await });
        sleep(Duration::from_millis(200)).await;
        let sent = Instant::now();
        send(&endpoint, std::iter::once(100)).await;
        let pulled = waiting.await.unwrap().unwrap();
        assert_eq!((pulled.messages.len(), pulled.next), (1, end + 1));
        assert!(sent.elapsed() < Duration::from_secs(5), "{:?}", sent.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_offset_is_what_the_group_has_done() {
    let cluster = Cluster::start(Plan::of(3));
    let leader = cluster.leader().grpc;
    let tool = |words: &[&str]| cluster.tool(leader, words).unwrap();
    tool(&["topic", "create", "orders", "--queues", "1"]);
    tool(&["group", "create", "pullers"]);
    send(&leader.to_string(), 0..10).await;
    let endpoint = cluster.a_follower().grpc.to_string();
    let reader = puller(&endpoint, "pullers", "*").await;
    reader.commit_at(0, 4).await.unwrap();
    assert_eq!(reader.committed(0).await.unwrap(), Some(4));
    let consumer = consumer(&endpoint, "pullers", Duration::from_secs(5)).await;
    let rest = consumer.receive().await.unwrap();
    assert_eq!(texts(&rest), ["0004", "0005", "0006", "0007", "0008", "0009"]);
    consumer.ack(&rest[..1]).await.unwrap();
    // Committing on brings nothing back; handles of what it ends are of something that is done.
    reader.commit_at(0, 8).await.unwrap();
    consumer.ack(&rest[1..2]).await.unwrap();
    assert_eq!(code_of(reader.commit_at(0, 11).await), 40_019);
    // Committing back does, and what was received before is nobody's any more.
    reader.commit_at(0, 2).await.unwrap();
    assert_eq!(code_of(consumer.ack(&rest[5..]).await), 40_013);
    let again = consumer.receive().await.unwrap();
    assert_eq!(again.len(), 8, "{:?}", texts(&again));
    consumer.ack(&again).await.unwrap();
    wait_drained(&cluster, leader, "pullers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_begins_where_it_was_made_to() {
    let cluster = Cluster::start(Plan::of(3));
    let leader = cluster.leader().grpc;
    let tool = |words: &[&str]| cluster.tool(leader, words).unwrap();
    tool(&["topic", "create", "orders", "--queues", "3"]);
    let endpoint = leader.to_string();
    send(&endpoint, 0..10).await;
    sleep(Duration::from_millis(20)).await;
    tool(&["group", "create", "latest", "--start", "latest"]);
    let made = tool(&["group", "describe", "latest"])["parts"][0]["start"].as_u64().unwrap();
    sleep(Duration::from_millis(20)).await;
    send(&endpoint, 10..15).await;
    tool(&["group", "create", "timed", "--start", &format!("@{made}")]);
    tool(&["group", "create", "earliest"]);
    send(&endpoint, 15..20).await;
    for (name, first) in [("latest", 10), ("timed", 10), ("earliest", 0)] {
        let consumer = consumer(&endpoint, name, Duration::from_secs(2)).await;
        let mut all = Vec::new();
        loop {
            let some = consumer.receive().await.unwrap();
            if some.is_empty() {
                break;
            }
            // The first delivery of each fails.
            for message in &some {
                if message.attempt == 1 {
                    consumer.change_invisible(message, Duration::ZERO).await.unwrap();
                } else {
                    consumer.ack(std::slice::from_ref(message)).await.unwrap();
                    all.push(message.clone());
                }
            }
        }
        let expected: Vec<String> = (first..20).map(|number| format!("{number:04}")).collect();
        assert_eq!(texts(&all), expected, "{name}");
    }
    let future = cluster.tool(leader, &["group", "create", "later", "--start", "@99999999999999"]);
    assert!(future.unwrap_err().contains("no later than now"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_group_gets_nothing_until_it_is_resumed() {
    let cluster = Cluster::start(Plan { broker_groups: 2, ..Plan::of(3) });
    spread_leaders(&cluster);
    let at = cluster.nodes()[0].grpc;
    let tool = |words: &[&str]| cluster.tool(at, words).unwrap();
    tool(&["topic", "create", "orders", "--queues", "2"]);
    tool(&["group", "create", "readers", "--broker-groups", "group-0"]);
    let nodes: Vec<String> = cluster.nodes().iter().map(|node| node.grpc.to_string()).collect();
    send(&nodes[0], 0..5).await;
    let consumer = consumer(&nodes[1], "readers", Duration::from_secs(2)).await;
    let before = consumer.receive().await.unwrap();
    assert!(!before.is_empty());
    let paused = tool(&["group", "pause", "readers"]);
    assert!(paused["parts"].as_array().unwrap().iter().all(|part| part["paused"] == true));
    for node in &nodes {
        send(node, 5..15).await;
    }
    assert!(consumer.receive().await.unwrap().is_empty(), "it is paused");
    consumer.ack(&before).await.unwrap();
    // Also where a group comes to be while it is paused.
    tool(&["group", "create", "late", "--broker-groups", "group-0"]);
    tool(&["group", "pause", "late"]);
    let late = self::consumer(&nodes[0], "late", Duration::from_secs(1)).await;
    assert!(late.receive().await.unwrap().is_empty(), "it is paused");
    let described = tool(&["group", "describe", "late"]);
    let parts = described["parts"].as_array().unwrap();
    assert!(parts.len() == 2 && parts.iter().all(|part| part["paused"] == true), "{described}");
    let waiting = {
        let node = nodes[2].clone();
        tokio::spawn(async move {
            let consumer = self::consumer(&node, "readers", Duration::from_secs(15)).await;
            consumer.receive().await
        })
    };
    sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "a poll of a paused group waits");
    let resumed = Instant::now();
    tool(&["group", "resume", "readers"]);
    let first = waiting.await.unwrap().unwrap();
    assert!(!first.is_empty() && resumed.elapsed() < Duration::from_secs(5));
    let mut count = before.len() + first.len();
    let (last, group) = (Client::connect(&nodes[2]).await.unwrap(), group("readers"));
    last.ack(&topic(), &group, &first).await.unwrap();
    while count < 35 {
        let some = consumer.receive().await.unwrap();
        assert!(!some.is_empty(), "{count} came");
        consumer.ack(&some).await.unwrap();
        count += some.len();
    }
    wait_drained(&cluster, at, "readers");

    // Readers number the queues of the second broker group from 1024 on.
    let reader = puller(&nodes[0], "readers", "*").await;
    assert_eq!(reader.queues().await.unwrap(), [0, 1, 1024, 1025]);
    let mut read = BTreeMap::new();
    for queue in reader.queues().await.unwrap() {
        let pulled = reader.pull(queue, 0, 32, Duration::ZERO).await.unwrap();
        *read.entry(format!("group-{}", queue / 1024)).or_insert(0) += pulled.messages.len() as u64;
    }
    assert_eq!(read.into_iter().collect::<Vec<_>>(), held(&cluster, at, "orders"));
}
