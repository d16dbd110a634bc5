//! A small volume that fills up and is emptied again.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{Client, ClientError, Draft, Producer, SimpleConsumer, Take};

use crate::common::cluster::{Cluster, PATIENCE, Plan};
use crate::common::until;

/// Three nodes with segments of 8 MiB, and room for some messages.
const VOLUME_MIB: u32 = 512;
/// MASTER_PERSISTENCE_TIMEOUT: what a full disk is told with.
const DISK_FULL: i32 = 50401;

fn draft(n: usize) -> Draft {
    let mut body = n.to_string().into_bytes();
    body.resize(16 << 10, b'.');
    Draft::new(TopicName::new("filling").unwrap(), body)
}

/// Writes until nothing fits any more.
fn fill(file: &Path) -> u64 {
    let mut filler = File::create(file).unwrap();
    let mut written = 0;
    for piece in [1 << 20, 4096, 1] {
        let zeros = vec![1; piece];
        loop {
            match filler.write(&zeros) {
                Ok(count) => written += count as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("filling the volume: {error}"),
            }
        }
    }
    written
}

fn code(error: &ClientError) -> Option<i32> {
    match error {
        ClientError::Refused { code, .. } => Some(*code),
        _ => None,
    }
}

async fn consumer(endpoint: &str) -> SimpleConsumer {
    let take = Take {
        topic: TopicName::new("filling").unwrap(),
        group: GroupName::new("readers").unwrap(),
        filter: "*".to_owned(),
        max: 32,
        invisible: Duration::from_secs(30),
        wait: Duration::from_secs(2),
    };
    SimpleConsumer::new(Client::connect(endpoint).await.unwrap(), take).await.unwrap()
}

fn number(body: &Bytes) -> usize {
    let text = String::from_utf8_lossy(body);
    text.trim_end_matches('.').parse().unwrap()
}

#[tokio::test]
async fn a_full_volume_refuses_sends_alone_and_takes_them_again() {
    let environment = vec![
        ("RAFTMQ_LOG__SEGMENT_BYTES", "8MiB".to_owned()),
        ("RAFTMQ_LOG__CHECKPOINT_BYTES", "2MiB".to_owned()),
    ];
    let plan = Plan { environment, volume_mib: Some(VOLUME_MIB), ..Plan::of(3) };
    let cluster = Cluster::start(plan);
    let before = cluster.nodes();
    let leader = cluster.leader();
    let endpoint = leader.grpc.to_string();
    let producer = Producer::connect(&endpoint, 1).await.unwrap();
    let mut sent = Vec::new();
    for n in 0..500 {
        producer.send(&[draft(n)]).await.unwrap();
        sent.push(n);
    }
    // The load goes on while the volume fills up.
    let filler = cluster.data().join("filler");
    let filling = std::thread::spawn({
        let filler = filler.clone();
        move || fill(&filler)
    });
    let since = Instant::now();
    let refused = loop {
        assert!(since.elapsed() < PATIENCE, "no send was refused");
        let n = sent.len();
        match producer.send(&[draft(n)]).await {
            Ok(_) => sent.push(n),
            Err(error) => break error,
        }
    };
    println!("disk full: {} sent, then: {refused}", sent.len());
    assert_eq!(code(&refused), Some(DISK_FULL), "{refused}");
    let written = filling.join().unwrap();
    println!("disk full: {} MiB filled the volume to its end", written >> 20);

    // Nothing is free at all, and still everything else works.
    let mut seen = Vec::new();
    let reader = consumer(&endpoint).await;
    for _ in 0..5 {
        let messages = reader.receive().await.unwrap();
        assert!(!messages.is_empty(), "receiving goes on");
        reader.ack(&messages).await.unwrap();
        seen.extend(messages.iter().map(|message| number(&message.body)));
        let again = producer.send(&[draft(usize::MAX)]).await.unwrap_err();
        assert_eq!(code(&again), Some(DISK_FULL), "{again}");
    }

    fs::remove_file(&filler).unwrap();
    let emptied = Instant::now();
    loop {
        assert!(emptied.elapsed() < Duration::from_secs(10), "sends do not go on within 10 s");
        let n = sent.len();
        if producer.send(&[draft(n)]).await.is_ok() {
            sent.push(n);
            break;
        }
    }
    println!("disk full: sends went on {:?} after the volume was emptied", emptied.elapsed());

    // Nothing is lost, and nothing was started again.
    let expected = sent.len();
    let deadline = Instant::now() + Duration::from_secs(60);
    while seen.len() < expected {
        assert!(Instant::now() < deadline, "{} of {expected} came", seen.len());
        let messages = reader.receive().await.unwrap();
        reader.ack(&messages).await.unwrap();
        seen.extend(messages.iter().map(|message| number(&message.body)));
    }
    seen.sort_unstable();
    assert_eq!(seen, sent);
    until("the nodes are the same processes", PATIENCE, || {
        let now = cluster.try_nodes()?;
        if now == before { Ok(()) } else { Err(format!("{now:?}")) }
    });
    cluster.wait_equal(PATIENCE);
}
