//! Instances that each see everything: while leaders die, when they come back, and when they come
//! back too late.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use raftmq::base::{ClientId, GroupName, TopicName};
use raftmq::client::{BroadcastConsumer, BroadcastTake, Client, Draft};
use rustix::process::Signal;
use tokio::time::sleep;

use crate::common::cluster::{Cluster, PATIENCE, Plan, kill};

const MESSAGES: usize = 600;
const LEASE: Duration = Duration::from_secs(600);
/// Long enough for what a test does in between, on a busy machine.
const SHORT: Duration = Duration::from_secs(10);

fn take(instance: &str, lease: Duration) -> BroadcastTake {
    BroadcastTake {
        topic: TopicName::new("news").unwrap(),
        group: GroupName::new("caches").unwrap(),
        instance: ClientId::new(instance).unwrap(),
        filter: "*".to_owned(),
        max: 32,
        wait: Duration::from_secs(2),
        lease,
        from_earliest: false,
        attempt: BroadcastTake::draw_attempt(),
    }
}

async fn join(endpoint: &str, take: BroadcastTake) -> BroadcastConsumer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let joined = match Client::connect(endpoint).await {
            Ok(client) => BroadcastConsumer::join(client, take.clone()).await,
            Err(error) => Err(error),
        };
        match joined {
            Ok(consumer) => return consumer,
            Err(error) => assert!(Instant::now() < deadline, "not joined: {error}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Sends these numbers, each until it is known that it was taken.
async fn send(endpoint: &str, numbers: std::ops::Range<usize>) {
    let deadline = Instant::now() + PATIENCE;
    for number in numbers {
        let draft = Draft::new(TopicName::new("news").unwrap(), number.to_string());
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

/// What one receive brought; an error is tried again, since it took nothing.
async fn receive(consumer: &mut BroadcastConsumer) -> Vec<usize> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match consumer.receive().await {
            Ok(polled) => {
                assert_eq!((polled.anew, polled.lost), (Vec::new(), 0));
                let number = |body: &[u8]| str::from_utf8(body).unwrap().parse().unwrap();
                return polled.messages.iter().map(|one| number(&one.body)).collect();
            }
            Err(error) => {
                assert!(Instant::now() < deadline, "not received: {error}");
                println!("received again: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Receives until `count` different ones have come; the number of those that came again.
async fn receive_all(consumer: &mut BroadcastConsumer, count: usize) -> (BTreeSet<usize>, usize) {
    let deadline = Instant::now() + PATIENCE * 3;
    let (mut seen, mut again) = (BTreeSet::new(), 0);
    while seen.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} came", seen.len());
        for number in receive(consumer).await {
            again += usize::from(!seen.insert(number));
        }
    }
    (seen, again)
}

/// What comes until nothing comes.
async fn rest(consumer: &mut BroadcastConsumer) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    loop {
        let numbers = receive(consumer).await;
        if numbers.is_empty() {
            return seen;
        }
        seen.extend(numbers);
    }
}

fn topic(cluster: &Cluster, queues: &str) {
    let leader = cluster.leader().grpc;
    cluster.tool(leader, &["topic", "create", "news", "--queues", queues]).unwrap();
    cluster.tool(leader, &["group", "create", "caches"]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_instance_sees_everything_while_a_leader_dies() {
    let cluster = Cluster::start(Plan::of(3));
    topic(&cluster, "4");
    let first = cluster.leader();
    let nodes = cluster.nodes();
    let survivors: Vec<String> = nodes
        .iter()
        .filter(|node| node.node != first.node)
        .map(|node| node.grpc.to_string())
        .collect();
    let mut instances = Vec::new();
    for at in 0..3 {
        let consumer = join(&survivors[at % 2], take(&format!("cache-{at}"), LEASE)).await;
        assert_eq!(consumer.began_anew().len(), 1);
        instances.push(tokio::spawn(async move {
            let mut consumer = consumer;
            let all = receive_all(&mut consumer, MESSAGES).await;
            consumer.commit().await.map(|anew| (all, anew))
        }));
    }
    send(&survivors[0], 0..MESSAGES / 2).await;
    kill(first.pid, Signal::KILL);
    send(&survivors[1], MESSAGES / 2..MESSAGES).await;
    for instance in instances {
        let ((seen, again), anew) = instance.await.unwrap().unwrap();
        assert_eq!(seen, (0..MESSAGES).collect());
        assert_eq!((again, anew), (0, Vec::new()), "no instance went away, so nothing comes again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_gets_what_it_missed_and_who_comes_too_late_begins_anew() {
    let cluster = Cluster::start(Plan::of(3));
    topic(&cluster, "2");
    let leader = cluster.leader();
    let endpoint = leader.grpc.to_string();
    let mut stays = join(&endpoint, take("stays", LEASE)).await;
    let mut late = join(&endpoint, take("late", SHORT)).await;
    let mut leaves = join(&endpoint, take("leaves", LEASE)).await;
    send(&endpoint, 0..20).await;
    // The one with the short lease first: it is silent from then on.
    for consumer in [&mut late, &mut stays, &mut leaves] {
        assert_eq!(rest(consumer).await, (0..20).collect());
        assert_eq!(consumer.commit().await.unwrap(), Vec::<String>::new());
    }
    // What is handed out and not told comes again.
    send(&endpoint, 20..30).await;
    assert!(!receive(&mut stays).await.is_empty());
    drop(stays);
    drop(late);
    leaves.leave().await.unwrap();
    send(&endpoint, 30..40).await;

    let described = cluster.tool(leader.grpc, &["group", "describe", "caches"]).unwrap();
    let instances = described["parts"][0]["instances"].as_array().unwrap();
    assert!(instances.iter().any(|one| one["instance"] == "stays" && one["behind"] == 20));
    assert!(instances.iter().all(|one| one["instance"] != "leaves"));

    // A new leader knows all of it.
    let nodes = cluster.nodes();
    kill(leader.pid, Signal::KILL);
    let other = nodes.iter().find(|node| node.node != leader.node).unwrap().grpc.to_string();
    let mut stays = join(&other, take("stays", LEASE)).await;
    assert_eq!(stays.began_anew(), Vec::<String>::new());
    assert_eq!(rest(&mut stays).await, (20..40).collect());
    sleep(SHORT).await;
    let mut late = join(&other, take("late", LEASE)).await;
    assert_eq!(late.began_anew().len(), 1, "it is told");
    let mut leaves = join(&other, take("leaves", LEASE)).await;
    assert_eq!(leaves.began_anew().len(), 1);
    assert!(rest(&mut late).await.is_empty() && rest(&mut leaves).await.is_empty());
    let early = BroadcastTake { from_earliest: true, ..take("early", LEASE) };
    let mut early = join(&other, early).await;
    assert_eq!(rest(&mut early).await, (0..40).collect());
    send(&other, 40..50).await;
    for consumer in [&mut stays, &mut late, &mut leaves, &mut early] {
        assert_eq!(receive_all(consumer, 10).await.0, (40..50).collect());
    }
}

/// One that is cut off for longer than its lease, and goes on without knowing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_silent_for_too_long_is_told_by_its_next_word() {
    let cluster = Cluster::start(Plan { broker_groups: 2, ..Plan::of(3) });
    topic(&cluster, "2");
    let endpoint = cluster.nodes()[0].grpc.to_string();
    let mut silent = join(&endpoint, take("silent", SHORT)).await;
    assert_eq!(silent.began_anew(), cluster.broker_groups());
    send(&endpoint, 0..30).await;
    sleep(SHORT * 3 / 2).await;
    let polled = silent.receive().await.unwrap();
    assert_eq!((polled.anew, polled.messages.len()), (cluster.broker_groups(), 0));
    send(&endpoint, 30..40).await;
    assert_eq!(receive_all(&mut silent, 10).await.0, (30..40).collect());
}
