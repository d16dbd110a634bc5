//! Nodes come and go under load; one that was away for long, or is new, catches up with a log whose
//! beginning is gone.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{Client, ClientError, Draft, Producer, SimpleConsumer, Take};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::by_hand::ByHand;
use crate::common::cluster::{Cluster, PATIENCE, Plan, Replica, check_ready, gone, kill, tool};
use crate::common::{http, until};

const TOPIC: &str = "flow";
const LOADERS: u64 = 4;
/// A message is sent again for so long.
const RETRY_FOR: Duration = Duration::from_secs(20);
/// Long enough for a node that disturbs to do so several times.
const QUIET: Duration = Duration::from_secs(5);
/// How long a command may take that waits for a node to catch up.
const CATCH_UP: Duration = Duration::from_secs(120);

fn draft(body: impl Into<Bytes>) -> Draft {
    let topic = TopicName::new(TOPIC).unwrap();
    Draft::new(topic, body)
}

/// Sends one message after the other, to any node, and again where it was refused.
#[derive(Default)]
struct Load {
    acknowledged: Mutex<BTreeSet<String>>,
    retries: AtomicUsize,
    longest_micros: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    async fn send(&self, loader: u64, endpoints: &[SocketAddr]) {
        let mut turn = usize::try_from(loader).unwrap();
        let mut client = None;
        let mut number = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let body = format!("{loader}-{number}");
            let start = Instant::now();
            while let Err(error) = attempt(&mut client, endpoints, &mut turn, &body).await {
                assert!(start.elapsed() < RETRY_FOR, "{body} is refused for good: {error}");
                self.retries.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let took = u64::try_from(start.elapsed().as_micros()).unwrap();
            self.longest_micros.fetch_max(took, Ordering::Relaxed);
            self.acknowledged.lock().unwrap().insert(body);
            number += 1;
        }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    fn wait_more(&self) {
        let enough = self.count() + 200;
        until("more is acknowledged", PATIENCE, || {
            let count = self.count();
            if count >= enough { Ok(()) } else { Err(format!("{count} of {enough}")) }
        });
    }
}

/// One send by the connection that is there; the next node is tried after a failure.
async fn attempt(
    client: &mut Option<Client>,
    endpoints: &[SocketAddr],
    turn: &mut usize,
    body: &str,
) -> Result<(), ClientError> {
    let known = match client.take() {
        Some(known) => known,
        None => {
            *turn += 1;
            Client::connect(&endpoints[*turn % endpoints.len()].to_string()).await?
        }
    };
    known.send(&[draft(body.to_owned())]).await?;
    *client = Some(known);
    Ok(())
}

/// Runs the load on threads of its own while `work` goes on.
fn under_load(endpoints: &[SocketAddr], work: impl FnOnce(&Load)) -> Load {
    let load = Load::default();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let loaders = (0..LOADERS).map(|loader| load.send(loader, endpoints));
            runtime.unwrap().block_on(futures::future::join_all(loaders));
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&load)));
        load.stop.store(true, Ordering::Relaxed);
        sending.join().unwrap();
        done.unwrap();
    });
    load
}

/// Everything that a new group gets.
fn read_all(
    endpoint: SocketAddr,
    group: &str,
    enough: impl Fn(&BTreeSet<Bytes>) -> bool,
) -> BTreeSet<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&endpoint.to_string()).await.unwrap();
        let take = Take {
            topic: TopicName::new(TOPIC).unwrap(),
            group: GroupName::new(group).unwrap(),
            filter: "*".to_owned(),
            max: 32,
            invisible: Duration::from_secs(60),
            wait: Duration::from_secs(2),
        };
        let consumer = SimpleConsumer::new(client, take).await.unwrap();
        let (mut got, mut last) = (BTreeSet::new(), Instant::now());
        while !enough(&got) && last.elapsed() < PATIENCE {
            let messages = consumer.receive().await.unwrap();
            if !messages.is_empty() {
                consumer.ack(&messages).await.unwrap();
                last = Instant::now();
            }
            got.extend(messages.into_iter().map(|message| message.body));
        }
        got
    })
}

/// A command of `raftmq cluster`, which must succeed; every broker group is done then.
fn change(endpoint: SocketAddr, words: &[&str]) -> Duration {
    let start = Instant::now();
    let at = endpoint.to_string();
    let all = ["cluster"].iter().chain(words).copied();
    let said = tool(all.chain(["--timeout", "120s", "--endpoint", &at, "--output", "json"]));
    let steps = said.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let done = |step: &Value| step["state"] == "done";
    assert!(steps.as_array().is_some_and(|steps| steps.iter().all(done)), "{steps}");
    start.elapsed()
}

fn leader(replicas: &[Replica]) -> Option<(u64, u64)> {
    let leader = replicas.iter().find(|replica| replica.role == "leader");
    leader.map(|replica| (replica.node, replica.term))
}

#[test]
fn a_fourth_node_comes_and_the_first_goes_under_load() {
    let cluster = Cluster::start(Plan { spare: 1, ..Plan::of(3) });
    let second = cluster.node(2).grpc;
    cluster.tool(second, &["topic", "create", TOPIC]).unwrap();
    let new = ByHand::new(&cluster, 4);
    new.wait_obstacle("cluster add-node --node 4");
    let endpoints: Vec<SocketAddr> =
        cluster.nodes().iter().map(|node| node.grpc).chain([new.grpc()]).collect();

    let load = under_load(&endpoints, |load| {
        load.wait_more();
        let (peer, grpc) = (new.node.peer.to_string(), new.grpc().to_string());
        let words = ["add-node", "--node", "4", "--peer", &peer, "--grpc", &grpc];
        let added = change(second, &words);
        until("the new node is ready", PATIENCE, || check_ready(&new.node));
        change(second, &words);
        load.wait_more();

        let removed = change(second, &["remove-node", "--node", "1"]);
        println!("membership: node 4 was added in {added:?}, node 1 removed in {removed:?}");
        let before = leader(&cluster.status_by(second).unwrap());
        // The removed node runs on: it says so, serves nobody, and disturbs nobody.
        let first = cluster.node(1);
        until("the removed node says so", PATIENCE, || {
            let (status, body) = http::get(first.http, "/readyz").map_err(|e| e.to_string())?;
            let told = status != 200 && body.contains("removed from the cluster");
            if told { Ok(()) } else { Err(format!("{status}: {body}")) }
        });
        until("the removed node takes no clients", PATIENCE, || {
            TcpStream::connect(first.grpc).map_or(Ok(()), |_| Err("it takes them"))
        });
        std::thread::sleep(QUIET);
        assert!(gone(first.pid).is_err(), "the removed node still runs");
        let after = leader(&cluster.status_by(second).unwrap());
        assert!(before.is_some() && before == after, "{before:?}, then {after:?}");
        load.wait_more();
    });

    let acknowledged = load.acknowledged.into_inner().unwrap();
    println!(
        "membership: {} acknowledged, {} retries, the longest send {} ms",
        acknowledged.len(),
        load.retries.load(Ordering::Relaxed),
        load.longest_micros.load(Ordering::Relaxed) / 1000
    );
    let replicas = cluster.wait_equal_by(second, &[2, 3, 4], PATIENCE);
    assert_eq!(replicas.len(), 3);
    let sent: BTreeSet<Bytes> = acknowledged.into_iter().map(Bytes::from).collect();
    let got = read_all(new.grpc(), "readers", |got| sent.is_subset(got));
    let lost: Vec<_> = sent.difference(&got).take(5).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}

/// Bytes of one message, and messages of one request.
const BODY: usize = 64 << 10;
const BATCH: usize = 16;

/// The small form of the test command, or what the environment says (`jepsen prove catch-up`).
struct Form {
    passed: usize,
    keep: String,
    segment: String,
    /// Whether a fixed load is compared with itself while a node catches up: a figure, not a test.
    measured: bool,
}

impl Form {
    fn of_environment() -> Self {
        let text =
            |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
        let mib: usize = text("RAFTMQ_FORM_PASSED_MIB", "300").parse().unwrap();
        Self {
            passed: mib << 20,
            keep: text("RAFTMQ_FORM_KEEP", "64MiB"),
            segment: text("RAFTMQ_FORM_SEGMENT", "8MiB"),
            measured: std::env::var("RAFTMQ_FORM_MEASURED").is_ok(),
        }
    }
}

/// Sends 1 KiB messages for so long, at a rate or as fast as they go; answers messages a second.
fn produce(endpoint: SocketAddr, rate: Option<u64>, seconds: u64) -> f64 {
    let (endpoint, seconds) = (endpoint.to_string(), seconds.to_string());
    let rate = rate.map(|rate| rate.to_string());
    let mut words = vec!["bench", "produce", "--endpoint", &endpoint, "--output", "json"];
    words.extend(["--seconds", &seconds]);
    words.extend(rate.iter().flat_map(|rate| ["--rate", rate.as_str()]));
    tool(words).unwrap()["messages_per_second"].as_f64().unwrap()
}

/// Runs `catching_up` beside a load of half of what goes, and tells how that load fared before and
/// meanwhile.
fn beside_a_fixed_load<T>(endpoint: SocketAddr, catching_up: impl FnOnce() -> T) -> T {
    const SECONDS: u64 = 10;
    let rate = produce(endpoint, None, SECONDS) / 2.0;
    assert!(rate > 1.0, "nothing goes");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    let rate = rate as u64;
    let before = produce(endpoint, Some(rate), SECONDS);
    std::thread::scope(|scope| {
        let meanwhile = scope.spawn(|| produce(endpoint, Some(rate), SECONDS));
        let done = catching_up();
        let meanwhile = meanwhile.join().unwrap();
        println!(
            "catch-up: a load of {rate}/s got {before:.0}/s before and {meanwhile:.0}/s meanwhile: \
             {:.0} %",
            meanwhile / before * 100.0
        );
        done
    })
}

/// Waits until a node has applied what others had when it came.
fn caught_up(cluster: &Cluster, endpoint: SocketAddr, node: u64) {
    let applied = || -> Result<(Option<u64>, Option<u64>), String> {
        let replicas = cluster.status_by(endpoint)?;
        let most = replicas.iter().filter_map(|replica| replica.applied).max();
        let own = replicas.iter().find(|replica| replica.node == node);
        Ok((most, own.and_then(|replica| replica.applied)))
    };
    let (wanted, _) = applied().unwrap();
    assert!(wanted.is_some());
    until("the node has caught up", CATCH_UP, || match applied()? {
        (_, own) if own >= wanted => Ok(()),
        other => Err(format!("{other:?} for {wanted:?}")),
    });
}

/// Lets so much pass that the log keeps only a part of it.
fn pump(endpoint: SocketAddr, passed: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let producer = Producer::connect(&endpoint.to_string(), 4).await.unwrap();
        let drafts = vec![draft(vec![7; BODY]); BATCH];
        let requests = passed / (BODY * BATCH);
        let sends = (0..requests).map(|_| async {
            let start = Instant::now();
            while let Err(error) = producer.send(&drafts).await {
                assert!(start.elapsed() < RETRY_FOR, "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        use futures::StreamExt;
        futures::stream::iter(sends).buffer_unordered(4).collect::<Vec<()>>().await;
    });
}

#[test]
fn a_node_that_was_away_and_one_that_is_new_catch_up_with_a_purged_log() {
    let form = Form::of_environment();
    let environment = vec![
        ("RAFTMQ_LOG__SEGMENT_BYTES", form.segment.clone()),
        ("RAFTMQ_LOG__CHECKPOINT_BYTES", form.segment.clone()),
        ("RAFTMQ_RETENTION__BYTES", form.keep.clone()),
    ];
    let cluster = Cluster::start(Plan { spare: 1, environment, ..Plan::of(3) });
    let nodes = cluster.nodes();
    let [first, second, third] = [&nodes[0], &nodes[1], &nodes[2]];
    cluster.tool(first.grpc, &["topic", "create", TOPIC, "--queues", "2"]).unwrap();
    let had = cluster.wait_equal(PATIENCE)[2].applied.unwrap();
    kill(third.pid, Signal::KILL);
    until("node 3 is gone", PATIENCE, || gone(third.pid));

    let start = Instant::now();
    pump(second.grpc, form.passed);
    let pumped = start.elapsed();
    for node in [first, second] {
        until("the log is cut beyond what node 3 has", PATIENCE, || {
            let begins = http::metric(node.http, "raftmq_log_first_index").unwrap();
            if begins > had { Ok(()) } else { Err(format!("it begins at {begins}, had is {had}")) }
        });
    }

    // With its old directory.
    let come_again = || {
        let start = Instant::now();
        let again = ByHand::again(&cluster, third.clone());
        caught_up(&cluster, second.grpc, 3);
        (again, start.elapsed())
    };
    let (again, old_directory) =
        if form.measured { beside_a_fixed_load(second.grpc, come_again) } else { come_again() };
    cluster.wait_equal_by(second.grpc, &[1, 2, 3], CATCH_UP);
    until("node 3 is ready", PATIENCE, || check_ready(&again.node));
    again.kill();

    // With an empty one it is told what to do, and a new node takes its place.
    fs::remove_dir_all(cluster.data().join("node-3/data")).unwrap();
    let mut wiped = ByHand::again(&cluster, third.clone());
    assert!(!wiped.wait_end().success());
    assert!(wiped.said().contains("replace-node --old 3"), "{}", wiped.said());
    let new = ByHand::new(&cluster, 4);
    new.wait_obstacle("add-node --node 4");
    let (peer, grpc) = (new.node.peer.to_string(), new.grpc().to_string());
    let words = ["replace-node", "--old", "3", "--new", "4", "--peer", &peer, "--grpc", &grpc];
    let replaced = if form.measured {
        beside_a_fixed_load(second.grpc, || change(first.grpc, &words))
    } else {
        change(first.grpc, &words)
    };
    cluster.wait_equal_by(second.grpc, &[1, 2, 4], CATCH_UP);
    println!(
        "catch-up: {} MiB passed in {pumped:.1?}, {} kept; caught up with the old directory in \
         {old_directory:.1?}, replaced by an empty one in {replaced:.1?}",
        form.passed >> 20,
        form.keep
    );

    // Node 1 dies; what is left serves everything that the log still has, and takes more.
    kill(first.pid, Signal::KILL);
    until("node 1 is gone", PATIENCE, || gone(first.pid));
    let described = until("the two that are left serve", PATIENCE, || {
        cluster.tool(new.grpc(), &["message", "send", "--topic", TOPIC, "--body", "last"])?;
        cluster.tool(new.grpc(), &["topic", "describe", TOPIC])
    });
    let queues = described["parts"][0]["queues"].as_array().unwrap();
    let number = |queue: &Value, key: &str| queue[key].as_u64().unwrap();
    let begins: u64 = queues.iter().map(|queue| number(queue, "start")).sum();
    assert!(begins > 0, "nothing has left: {described}");
    for (node, group) in [(second.grpc, "by-2"), (new.grpc(), "by-4")] {
        let last = Bytes::from_static(b"last");
        let got = read_all(node, group, |got| got.contains(&last) && got.len() >= 2);
        assert_eq!(got.len(), 2, "both kinds of messages are served behind {node}");
    }
}

#[test]
fn a_change_is_made_in_every_broker_group_and_also_to_its_leader() {
    let environment = vec![("RAFTMQ_BROKER__DURABILITY", "group-1=majority-memory".to_owned())];
    let plan = Plan { broker_groups: 2, spare: 1, environment, ..Plan::of(3) };
    let mut cluster = Cluster::start(plan);
    let second = cluster.node(2).grpc;
    let new = ByHand::new(&cluster, 4);
    let (peer, grpc) = (new.node.peer.to_string(), new.grpc().to_string());
    change(second, &["add-node", "--node", "4", "--peer", &peer, "--grpc", &grpc]);
    change(second, &["transfer-leader", "--to", "4", "--broker-group", "group-1"]);
    let status = cluster.tool(second, &["cluster", "status"]).unwrap();
    let durability = |group: usize| status[group]["durability"].as_str().unwrap().to_owned();
    assert_eq!([durability(0), durability(1)], ["majority-fsync", "majority-memory"]);
    let (_, metrics) = http::get(new.node.http, "/metrics").unwrap();
    let told = "raftmq_durability_mode{broker_group=\"group-1\",mode=\"majority-memory\"} 1";
    assert!(metrics.contains(told), "{metrics}");

    // It leads a broker group when it is taken out, and is asked itself.
    change(new.grpc(), &["remove-node", "--node", "4"]);
    new.wait_obstacle("removed from the cluster");
    for replicas in cluster.groups_by(second).unwrap() {
        let nodes: Vec<u64> = replicas.iter().map(|replica| replica.node).collect();
        assert_eq!(nodes, [1, 2, 3]);
        assert!(leader(&replicas).is_some_and(|(leader, _)| leader != 4), "{replicas:?}");
    }
    drop(new);

    // What cannot be is said, and changes nothing.
    let refused = cluster.tool(second, &["cluster", "transfer-leader", "--to", "9"]).unwrap_err();
    assert!(refused.contains("no voter"), "{refused}");

    // All nodes move to other ports, and find each other.
    assert!(cluster.stop().success());
    cluster.move_ports();
    cluster.up();
    cluster.wait_ready(PATIENCE);
    let moved = cluster.node(2).grpc;
    assert_ne!(moved, second);
    cluster.wait_equal(PATIENCE);
    // A node tells the others where it is now once it has joined.
    until("the status names the new address", PATIENCE, || {
        let status = cluster.tool(moved, &["cluster", "status"])?;
        let told = status[0]["nodes"][1]["grpc"].as_str().unwrap().to_owned();
        if told == moved.to_string() { Ok(()) } else { Err(told) }
    });
}
