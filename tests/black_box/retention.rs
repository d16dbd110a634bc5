//! Old messages leave while new ones come: disk use, least offsets, what is lost and what is not.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{Client, Draft, Producer, Received, SimpleConsumer, Take};
use serde_json::Value;

use crate::common::cluster::{Cluster, PATIENCE, Plan};
use crate::common::{http, until};

/// The form of the test: small in the test command, or as the environment says.
struct Form {
    segment: String,
    keep: Duration,
    load: Duration,
    bytes_per_second: usize,
}

impl Form {
    fn of_environment() -> Self {
        let number = |name: &str, default: u64| {
            std::env::var(name).map_or(default, |text| text.parse().expect(name))
        };
        Self {
            segment: std::env::var("RAFTMQ_FORM_SEGMENT").unwrap_or_else(|_| "8MiB".to_owned()),
            keep: Duration::from_secs(number("RAFTMQ_FORM_KEEP_SECONDS", 60)),
            load: Duration::from_secs(number("RAFTMQ_FORM_LOAD_SECONDS", 95)),
            bytes_per_second: usize::try_from(number("RAFTMQ_FORM_RATE", 1 << 20)).unwrap(),
        }
    }
}

const BATCH: usize = 8;
const TICK: Duration = Duration::from_millis(100);
const TOPIC: &str = "flow";

fn take(group: &str, max: u32, invisible: Duration) -> Take {
    Take {
        topic: TopicName::new(TOPIC).unwrap(),
        group: GroupName::new(group).unwrap(),
        filter: "*".to_owned(),
        max,
        invisible,
        wait: Duration::from_secs(2),
    }
}

async fn consumer(client: &Client, group: &str, max: u32, invisible: Duration) -> SimpleConsumer {
    SimpleConsumer::new(client.clone(), take(group, max, invisible)).await.unwrap()
}

/// Bytes that the files below a folder really take.
fn used(folder: &Path) -> u64 {
    let mut total = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                total += metadata.blocks() * 512;
            }
        }
    }
    total
}

/// Least offsets and ends of the topic's queues, as `topic describe` tells them.
fn queues(cluster: &Cluster) -> Vec<(u64, u64)> {
    let value = cluster.tool(cluster.node(1).grpc, &["topic", "describe", TOPIC]).unwrap();
    let queues = value["parts"][0]["queues"].as_array().unwrap().clone();
    let number = |queue: &Value, key: &str| queue[key].as_u64().unwrap();
    queues.iter().map(|queue| (number(queue, "start"), number(queue, "end"))).collect()
}

fn expired(cluster: &Cluster, group: &str) -> u64 {
    let value = cluster.tool(cluster.node(1).grpc, &["group", "describe", group]).unwrap();
    value["parts"][0]["topics"][0]["expired"].as_u64().unwrap()
}

/// Sends at a steady rate and looks at the disk meanwhile; answers the samples of node 1 taken once
/// messages have begun to leave.
async fn load(cluster: &Cluster, form: &Form) -> (u64, Vec<u64>) {
    let endpoint = cluster.leader().grpc.to_string();
    let producer = Producer::connect(&endpoint, 4).await.unwrap();
    let per_tick = form.bytes_per_second / 10;
    let body = Bytes::from(vec![7; per_tick / BATCH]);
    let draft = Draft::new(TopicName::new(TOPIC).unwrap(), body);
    let drafts = vec![draft; BATCH];
    let folder = cluster.data().join("node-1/data");
    let (start, mut sent, mut samples) = (Instant::now(), 0, Vec::new());
    let settled = form.keep + Duration::from_secs(10).max(form.keep / 10);
    let mut next_sample = settled;
    let mut interval = tokio::time::interval(TICK);
    while start.elapsed() < form.load {
        interval.tick().await;
        producer.send(&drafts).await.unwrap();
        sent += BATCH as u64;
        if start.elapsed() >= next_sample {
            samples.push(used(&folder));
            next_sample += form.load.saturating_sub(settled) / 12;
        }
    }
    (sent, samples)
}

#[tokio::test]
async fn old_messages_leave_and_those_under_way_stay() {
    let form = Form::of_environment();
    let environment = vec![
        ("RAFTMQ_LOG__SEGMENT_BYTES", form.segment.clone()),
        ("RAFTMQ_LOG__CHECKPOINT_BYTES", form.segment.clone()),
        ("RAFTMQ_RETENTION__TIME", format!("{}s", form.keep.as_secs())),
    ];
    let cluster = Cluster::start(Plan { environment, ..Plan::of(3) });
    let client = Client::connect(&cluster.node(2).grpc.to_string()).await.unwrap();

    // Three groups take from the first messages. One holds two of them: the first becomes visible
    // shortly before its record's time is over, the second only behind it.
    let first = send_first(&cluster).await;
    let holder = consumer(&client, "holder", 2, Duration::from_secs(15)).await;
    let held = receive(&holder, 2).await;
    for (message, share) in held.iter().zip([0.9, 1.2]) {
        holder.change_invisible(message, form.keep.mul_f64(share)).await.unwrap();
    }
    let late = consumer(&client, "late", 1, Duration::from_secs(15)).await;
    let taken = receive(&late, 1).await;
    late.ack(&taken).await.unwrap();

    let (sent, samples) = load(&cluster, &form).await;
    let (least, most) = (samples.iter().min().unwrap(), samples.iter().max().unwrap());
    let mib = |bytes: u64| bytes >> 20;
    let all: Vec<u64> = samples.iter().map(|bytes| mib(*bytes)).collect();
    println!("retention: node 1 used {all:?} MiB while {sent} messages came");

    // Flat: what comes and goes is whole segments, of which one is filled, one is a spare, and one is
    // on its way out; and the states at marks, which grow until the memory of sent ids is full.
    let segment: u64 = form.segment.trim_end_matches("MiB").parse::<u64>().unwrap() << 20;
    assert!(samples.len() >= 5, "too few samples to say anything: {samples:?}");
    assert!(most - least <= 4 * segment, "{all:?} MiB is not flat");
    let kept = form.keep.as_secs() * form.bytes_per_second as u64;
    assert!(*most < 2 * kept + 8 * segment, "{} MiB for {} kept", mib(*most), mib(kept));

    // Least offsets are the state's, so equal hashes mean that they are equal everywhere.
    let replicas = cluster.wait_equal(PATIENCE);
    let floors = replicas.iter().map(|replica| {
        until("the metrics show the floor", PATIENCE, || {
            let floor = http::metric(cluster.node(replica.node).http, "raftmq_log_floor_index")?;
            let start = http::metric(cluster.node(replica.node).http, "raftmq_log_first_index")?;
            // A segment leaves once all of it is old, and the front moves once a second.
            if floor > 0 && start > 0 && start <= floor + 1 {
                Ok(floor)
            } else {
                Err(format!("{floor} {start}"))
            }
        })
    });
    println!("retention: floors {:?}", floors.collect::<Vec<_>>());
    let starts = queues(&cluster);
    println!("retention: queues (start, end) {starts:?}");
    assert!(starts.iter().all(|(start, end)| *start > 0 && start < end), "{starts:?}");

    a_late_group_goes_on_at_the_least_offset(&cluster, &late, &starts).await;
    both_are_still_delivered(&holder, &first).await;
    cluster.wait_equal(PATIENCE);
}

/// Two messages that no other is like.
async fn send_first(cluster: &Cluster) -> BTreeSet<Bytes> {
    let producer = Producer::connect(&cluster.leader().grpc.to_string(), 1).await.unwrap();
    let mut bodies = BTreeSet::new();
    for n in 0..2 {
        let body = Bytes::from(format!("held {n}"));
        bodies.insert(body.clone());
        let topic = TopicName::new(TOPIC).unwrap();
        let draft = Draft::new(topic, body);
        producer.send(&[draft]).await.unwrap();
    }
    bodies
}

/// Receives until so many are there.
async fn receive(consumer: &SimpleConsumer, count: usize) -> Vec<Received> {
    let deadline = Instant::now() + PATIENCE;
    let mut messages = Vec::new();
    while messages.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} came", messages.len());
        let left = u32::try_from(count - messages.len()).unwrap();
        messages.extend(consumer.receive_up_to(left, Duration::from_secs(2)).await.unwrap());
    }
    messages
}

/// Though their records have left, and for the second time.
async fn both_are_still_delivered(holder: &SimpleConsumer, first: &BTreeSet<Bytes>) {
    let deadline = Instant::now() + PATIENCE;
    let mut found = BTreeSet::new();
    while found.len() < first.len() {
        assert!(Instant::now() < deadline, "only {found:?} came again");
        let messages = holder.receive_up_to(32, Duration::from_secs(2)).await.unwrap();
        for message in messages.iter().filter(|message| first.contains(&message.body)) {
            assert_eq!(message.attempt, 2, "{:?}", message.body);
            assert!(found.insert(message.body.clone()), "{:?} came twice", message.body);
        }
        holder.ack(&messages).await.unwrap();
    }
}

async fn a_late_group_goes_on_at_the_least_offset(
    cluster: &Cluster,
    late: &SimpleConsumer,
    starts: &[(u64, u64)],
) {
    let before: u64 = starts.iter().map(|(start, _)| start).sum();
    let messages = receive(late, starts.len() * 2).await;
    for message in &messages {
        let (start, _) = starts[usize::try_from(message.queue).unwrap()];
        assert!(
            u64::try_from(message.offset).unwrap() >= start,
            "{} is below {start}",
            message.offset
        );
    }
    late.ack(&messages).await.unwrap();
    // All but the one that it took at the beginning.
    let lost = expired(cluster, "late");
    println!("retention: the late group lost {lost} of {before} that have left");
    assert!(lost >= before - 1, "{lost} are counted, but {before} left and it had one");
}
