//! kill -9: of the leader, again and again, and of everything at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use raftmq::wire::rocketmq as v2;
use rustix::process::Signal;

use crate::common::cluster::{Cluster, PATIENCE, Plan, check_ready, kill, wait_drained};
use crate::common::python::{Got, Script, Sent, acks, count, deliveries, sends};
use crate::common::raw::{Raw, receive};
use crate::common::until;

const KILLS: usize = 10;
const GAP_MEDIAN_MAX: Duration = Duration::from_secs(2);
const GAP_MAX: Duration = Duration::from_secs(5);
const READY_AGAIN_WITHIN: Duration = Duration::from_secs(5);
const WITHIN: Duration = Duration::from_secs(60);
/// Receipts between two kills, so that each one hits a cluster at work.
const LOAD_BETWEEN: usize = 200;

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Four producers of the official client, each with a message on its way nearly always.
fn start_load(cluster: &Cluster, topic: &str) -> Script {
    let at = cluster.nodes()[0].grpc.to_string();
    let words = [
        ["--endpoint", &at],
        ["--topic", topic],
        ["--producers", "4"],
        ["--pace-ms", "20"],
        ["--body-max", "200"],
    ];
    Script::start("produce", cluster.folder(), "load", words.as_flattened())
}

fn wait_receipts(load: &mut Script, more: usize) {
    let before = sends(load.lines()).iter().filter(|send| send.error.is_none()).count();
    load.wait("receipts come in", WITHIN, |lines| {
        sends(lines).iter().filter(|send| send.error.is_none()).count() >= before + more
    });
}

/// For each kill, the longest time from one OK to the next that ended between it and the next
/// kill: the load never rests, so that is the pause it made.
fn gaps_at(kills: &[f64], oks: &[f64]) -> Vec<f64> {
    let ends = kills.iter().skip(1).copied().chain([f64::INFINITY]);
    let gap = |(kill, end): (&f64, f64)| {
        let pairs = oks.windows(2).filter(|pair| pair[1] > *kill && pair[1] <= end);
        pairs.map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
    };
    kills.iter().zip(ends).map(gap).collect()
}

fn kill_leader_and_wait(cluster: &Cluster) -> f64 {
    let leader = cluster.leader();
    let at = now();
    kill(leader.pid, Signal::KILL);
    until("the killed node is back and all are ready", PATIENCE, || {
        let nodes = cluster.try_nodes()?;
        if nodes.iter().any(|node| node.pid == leader.pid) {
            return Err(format!("node {} is not back", leader.node));
        }
        nodes.iter().try_for_each(check_ready)
    });
    at
}

fn print_gaps(kills: &[f64], sent: &[Sent]) -> Vec<f64> {
    let ok_times = |keep: &dyn Fn(&Sent) -> bool| {
        let mut times: Vec<f64> =
            sent.iter().filter(|s| s.error.is_none() && keep(s)).map(|s| s.to).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let all = ok_times(&|_| true);
    let mut gaps = gaps_at(kills, &all);
    let shown: Vec<_> = gaps.iter().map(|gap| format!("{gap:.3}")).collect();
    println!("gaps without an OK at each kill, in seconds: {}", shown.join(" "));
    let producers: BTreeSet<u64> = sent.iter().map(|send| send.producer).collect();
    let worst = producers
        .iter()
        .flat_map(|producer| gaps_at(kills, &ok_times(&|send| send.producer == *producer)));
    println!("worst gap of a single producer: {:.3}", worst.fold(0.0, f64::max));
    gaps.sort_by(f64::total_cmp);
    println!("median {:.3}, longest {:.3}", gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    gaps
}

/// A message whose acknowledgement was answered OK must not come again: neither with a later
/// attempt, nor in an answer to a question asked after that OK.
fn check_no_acked_again(got: &[Got], acked: &BTreeMap<String, (u64, f64)>) {
    for delivery in got {
        if let Some((attempt, at)) = acked.get(&delivery.id) {
            let again = delivery.attempt > *attempt || delivery.asked > *at;
            assert!(!again, "acknowledged in attempt {attempt} at {at}, came again: {delivery:?}");
        }
    }
}

#[test]
fn a_leader_killed_ten_times_under_load_loses_nothing() {
    let cluster = Cluster::start(Plan { restart: true, ..Plan::of(3) });
    let at = cluster.nodes()[0].grpc;
    cluster.tool(at, &["topic", "create", "killed", "--queues", "4"]).unwrap();
    let mut load = start_load(&cluster, "killed");
    let at_text = at.to_string();
    let words = [
        ["--endpoint", &at_text],
        ["--topic", "killed"],
        ["--group", "survivors"],
        ["--mode", "simple"],
        ["--threads", "4"],
    ];
    let mut consumer =
        Script::start("consume", cluster.folder(), "survivors", words.as_flattened());
    consumer.wait("messages arrive", WITHIN, |lines| count(lines, "acked") > 0);

    let mut kills = Vec::new();
    for _ in 0..KILLS {
        wait_receipts(&mut load, LOAD_BETWEEN);
        kills.push(kill_leader_and_wait(&cluster));
    }
    wait_receipts(&mut load, LOAD_BETWEEN);
    let sent = sends(&load.finish());
    let errors: Vec<_> = sent.iter().filter(|send| send.error.is_some()).collect();
    println!("{} messages sent, {} errors", sent.len(), errors.len());
    let gaps = print_gaps(&kills, &sent);

    let wanted: BTreeSet<&String> =
        sent.iter().filter(|send| send.error.is_none()).map(|send| &send.id).collect();
    consumer.wait("every acknowledged message is received", WITHIN, |lines| {
        let got: BTreeSet<_> = deliveries(lines).into_iter().map(|got| got.id).collect();
        wanted.iter().all(|id| got.contains(*id))
    });
    wait_drained(&cluster, cluster.leader().grpc, "survivors");
    let lines = consumer.finish();
    let (got, acked) = (deliveries(&lines), acks(&lines));
    println!(
        "{} deliveries, {} acknowledged, {} acknowledgements and {} receives failed",
        got.len(),
        acked.len(),
        count(&lines, "ack_failed"),
        count(&lines, "receive_failed")
    );
    check_no_acked_again(&got, &acked);
    cluster.wait_equal(PATIENCE);
    assert!(errors.is_empty(), "the client let {} errors through: {:?}", errors.len(), errors[0]);
    assert!(gaps[gaps.len() / 2] < GAP_MEDIAN_MAX.as_secs_f64(), "the median gap is too long");
    assert!(gaps[gaps.len() - 1] < GAP_MAX.as_secs_f64(), "the longest gap is too long");
}

/// Where each message lies: id to (queue, offset). Asks in a group of its own until `enough`.
async fn places(
    raw: &mut Raw,
    (topic, group): (&str, &str),
    enough: impl Fn(&BTreeMap<String, (i32, i64)>) -> bool,
) -> BTreeMap<String, (i32, i64)> {
    let deadline = std::time::Instant::now() + WITHIN;
    let mut places = BTreeMap::new();
    while !enough(&places) {
        assert!(std::time::Instant::now() < deadline, "only {} messages came", places.len());
        let request = v2::ReceiveMessageRequest {
            // Nothing comes twice while this looks.
            invisible_duration: crate::common::raw::seconds(600),
            ..receive(topic, group)
        };
        let Ok((_, messages)) = raw.receive(request).await else { continue };
        for message in messages {
            let place = message.system_properties.unwrap();
            places.insert(place.message_id, (place.queue_id, place.queue_offset.unwrap()));
        }
    }
    places
}

#[tokio::test]
async fn all_nodes_killed_at_once_keep_every_message_in_its_place() {
    const TOPIC: &str = "everywhere";
    let mut cluster = Cluster::start(Plan::of(3));
    let at = cluster.nodes()[0].grpc;
    cluster.tool(at, &["topic", "create", TOPIC, "--queues", "4"]).unwrap();
    let mut load = start_load(&cluster, TOPIC);
    wait_receipts(&mut load, 300);
    // A receipt tells the offset but not the queue, so some are looked up while all is well.
    let mut raw = Raw::connect(at).await;
    let before = places(&mut raw, (TOPIC, "before"), |places| places.len() >= 200).await;
    wait_receipts(&mut load, 100);
    cluster.kill_all();
    // The producers may go on failing; what counts is what they were told before.
    let sent = sends(&load.finish());

    cluster.up();
    let ready = cluster.wait_ready(PATIENCE);
    println!("ready {ready:?} after all three were killed at once");
    assert!(ready < READY_AGAIN_WITHIN, "ready after {ready:?}");

    let acknowledged: Vec<_> = sent.iter().filter(|send| send.error.is_none()).collect();
    let mut raw = Raw::connect(at).await;
    let after = places(&mut raw, (TOPIC, "after"), |places| {
        acknowledged.iter().all(|send| places.contains_key(&send.id))
    })
    .await;
    for send in &acknowledged {
        let (_, offset) = after[&send.id];
        assert_eq!(Some(offset), send.offset, "{} has moved", send.id);
    }
    for (id, place) in &before {
        assert_eq!(after.get(id), Some(place), "{id} has moved");
    }
    let taken: BTreeSet<_> = after.values().collect();
    assert_eq!(taken.len(), after.len(), "no two messages share a place");
    println!("{} acknowledged messages are where they were", acknowledged.len());
    cluster.wait_equal(PATIENCE);
}
