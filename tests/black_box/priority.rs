//! Messages with a priority: the urgent go first, whoever sends and takes them, and whoever leads.

use std::collections::BTreeMap;
use std::time::Duration;

use raftmq::base::{GroupName, TopicName};
use raftmq::client::{Client, Draft, Received, SimpleConsumer, Take};
use rustix::process::Signal;

use crate::common::cluster::{Cluster, PATIENCE, Plan, kill};
use crate::common::driver::{Task, count, errors, received, sent};
use crate::common::official::Client as Official;
use crate::common::until;

const QUEUES: u32 = 4;
const TOPIC: &str = "alarms";
const WITHIN: Duration = Duration::from_secs(90);

fn create(cluster: &Cluster, topic: &str) {
    let (at, queues) = (cluster.node(1).grpc, QUEUES.to_string());
    let words = ["topic", "create", topic, "--queues", &queues, "--type", "priority"];
    cluster.tool(at, &words).unwrap();
}

fn draft(priority: u32, number: u32) -> Draft {
    let body = format!("{priority} {number}");
    Draft { priority: Some(priority), ..Draft::new(TopicName::new(TOPIC).unwrap(), body) }
}

fn take(max: u32) -> Take {
    let (topic, group) = (TopicName::new(TOPIC).unwrap(), GroupName::new("guards").unwrap());
    let (invisible, wait) = (Duration::from_secs(30), Duration::from_secs(5));
    Take { topic, group, filter: "*".to_owned(), max, invisible, wait }
}

fn bodies(messages: &[Received]) -> Vec<String> {
    messages.iter().map(|one| String::from_utf8(one.body.to_vec()).unwrap()).collect()
}

async fn receive(at: &str, most: u32) -> (SimpleConsumer, Vec<Received>) {
    let consumer = SimpleConsumer::new(Client::connect(at).await.unwrap(), take(most)).await;
    let consumer = consumer.unwrap();
    let got = consumer.receive().await.unwrap();
    (consumer, got)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_urgent_go_first_under_every_leader() {
    let cluster = Cluster::start(Plan { restart: true, ..Plan::of(3) });
    create(&cluster, TOPIC);
    let nodes = cluster.nodes();
    for number in 0..2 {
        // More than the queues can tell apart counts as the most urgent.
        for (turn, priority) in [1, 9, 0, 3, 2].into_iter().enumerate() {
            let client = Client::connect(&nodes[turn % 3].grpc.to_string()).await.unwrap();
            client.send(&[draft(priority, number)]).await.unwrap();
        }
    }
    let leader = cluster.leader();
    let at = cluster.a_follower().grpc.to_string();
    let (consumer, first) = receive(&at, 3).await;
    assert_eq!(bodies(&first), ["9 0", "3 0", "9 1"]);
    assert_eq!(first[0].priority, Some(9), "it is delivered with what it was sent with");
    consumer.ack(&first).await.unwrap();

    kill(leader.pid, Signal::KILL);
    until("the killed node is back", PATIENCE, || {
        let back = cluster.try_nodes()?.iter().all(|node| node.pid != leader.pid);
        if back { Ok(()) } else { Err(format!("node {} is not back", leader.node)) }
    });
    cluster.wait_equal(PATIENCE);
    let mut rest = Vec::new();
    while rest.len() < 7 {
        let (consumer, got) = receive(&at, 2).await;
        consumer.ack(&got).await.unwrap();
        rest.extend(bodies(&got));
    }
    assert_eq!(rest, ["3 1", "2 0", "2 1", "1 0", "1 1", "0 0", "0 1"]);
    cluster.wait_equal(PATIENCE);
}

#[test]
fn official_clients_know_priorities() {
    const LEVELS: u64 = 3;
    const EACH: u64 = 10;
    let cluster = Cluster::start(Plan::of(3));
    for client in [Official::Python, Official::Node] {
        client.install();
        let at = cluster.a_follower().grpc;
        let total = LEVELS * EACH;
        let label = format!("{client:?}");
        create(&cluster, &label);
        let task = Task { count: total, priorities: LEVELS, ..Task::of("send", at, &label) };
        let mut producer = task.start(client, cluster.folder(), &format!("{label}-producer"));
        producer.wait("all is sent", WITHIN, |lines| count(lines, "sent") as u64 == total);
        let lines = producer.cut();
        assert_eq!(errors(&lines, "send"), [""; 0]);
        let numbers: BTreeMap<String, u64> =
            sent(&lines).into_iter().map(|sent| (sent.id, sent.number)).collect();

        let task = Task { group: &label, ..Task::of("simple", at, &label) };
        let mut consumer = task.start(client, cluster.folder(), &format!("{label}-consumer"));
        consumer.wait("all is received", WITHIN, |lines| count(lines, "acked") as u64 >= total);
        let lines = consumer.cut();
        let came = received(&lines).into_iter().zip(lines.iter().filter(|line| is_received(line)));
        let came: Vec<(u64, u64)> = came
            .map(|(one, line)| {
                (line["priority"].as_u64().expect("it knows the priority"), numbers[&one.id])
            })
            .collect();
        let mut wanted: Vec<(u64, u64)> =
            (0..total).map(|number| (1 + number % LEVELS, number)).collect();
        wanted.sort_by_key(|(priority, number)| (LEVELS - priority, *number));
        assert_eq!(came, wanted, "{client:?}");
        println!("{client:?}: {total} messages of {LEVELS} priorities, the urgent first");
    }
}

fn is_received(line: &serde_json::Value) -> bool {
    line["event"] == "received"
}
