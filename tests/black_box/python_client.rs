//! The official Python client, unmodified.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::common::cluster::{Cluster, PATIENCE, Plan, wait_drained};
use crate::common::python::{Content, Got, Script, acks, count, deliveries, sends};

const MESSAGES: usize = 1000;
const WITHIN: Duration = Duration::from_secs(60);

/// Runs `produce.py` to its end; every send must be OK. Message id to what was sent.
pub(super) fn produce(
    cluster: &Cluster,
    at: SocketAddr,
    topic: &str,
    count: usize,
) -> BTreeMap<String, Content> {
    let (at, count) = (at.to_string(), count.to_string());
    let words = ["--endpoint", &at, "--topic", topic, "--count", &count, "--producers", "4"];
    let label = format!("produce-{topic}-{}", at.replace(':', "-"));
    let mut script = Script::start("produce", cluster.folder(), &label, &words);
    script.wait("all is sent", WITHIN, |lines| lines.iter().any(|line| line["ended"] == true));
    let sent = sends(&script.finish());
    let errors: Vec<_> = sent.iter().filter(|send| send.error.is_some()).collect();
    assert!(errors.is_empty(), "{} sends failed, the first: {:?}", errors.len(), errors[0]);
    let by_id: BTreeMap<_, _> = sent.into_iter().map(|send| (send.id, send.content)).collect();
    assert_eq!(by_id.len().to_string(), count, "message ids are unique");
    by_id
}

pub(super) fn consumer(
    cluster: &Cluster,
    at: SocketAddr,
    mode: &str,
    topic: &str,
    group: &str,
) -> Script {
    let at = at.to_string();
    let words =
        ["--endpoint", &at, "--topic", topic, "--group", group, "--mode", mode, "--threads", "4"];
    Script::start("consume", cluster.folder(), &format!("{mode}-{group}"), &words)
}

pub(super) fn check_once_and_equal(got: &[Got], sent: &BTreeMap<String, Content>) {
    let mut seen = BTreeSet::new();
    for delivery in got {
        let id = &delivery.id;
        assert!(seen.insert(id), "{id} came twice");
        assert_eq!(delivery.attempt, 1, "{id} is a first delivery");
        assert!(!delivery.corrupted, "{id} is corrupted");
        let sent = sent.get(id).unwrap_or_else(|| panic!("{id} was never sent"));
        assert_eq!(&delivery.content, sent, "{id} differs from what was sent");
    }
    assert_eq!(seen.len(), sent.len(), "every message came");
}

#[test]
fn a_thousand_messages_arrive_once_and_equal_at_both_kinds_of_consumer() {
    let cluster = Cluster::start(Plan::of(3));
    let at = cluster.nodes()[0].grpc;
    cluster.tool(at, &["topic", "create", "thousand", "--queues", "4"]).unwrap();

    let mut push = consumer(&cluster, at, "push", "thousand", "pushed");
    push.wait("the push consumer starts", WITHIN, |lines| count(lines, "started") == 1);
    let sent = produce(&cluster, at, "thousand", MESSAGES);

    push.wait("push has all", WITHIN, |lines| count(lines, "got") >= MESSAGES);
    wait_drained(&cluster, at, "pushed");
    check_once_and_equal(&deliveries(&push.finish()), &sent);

    let mut simple = consumer(&cluster, at, "simple", "thousand", "polled");
    simple.wait("simple has acked all", WITHIN, |lines| count(lines, "acked") >= MESSAGES);
    wait_drained(&cluster, at, "polled");
    let lines = simple.finish();
    assert_eq!(acks(&lines).len(), MESSAGES);
    check_once_and_equal(&deliveries(&lines), &sent);
    cluster.wait_equal(PATIENCE);
    println!("{MESSAGES} messages: equal and once at a push and at a simple consumer");
}

#[test]
fn any_node_takes_any_client() {
    const EACH: usize = 30;
    let cluster = Cluster::start(Plan::of(3));
    let leader = cluster.leader();
    for node in cluster.nodes() {
        let name = format!("at-{}", node.node);
        let sent = produce(&cluster, node.grpc, &name, EACH);
        for mode in ["simple", "push"] {
            let group = format!("{name}-{mode}");
            let mut script = consumer(&cluster, node.grpc, mode, &name, &group);
            script.wait("all has come", WITHIN, |lines| count(lines, "got") >= EACH);
            wait_drained(&cluster, node.grpc, &group);
            check_once_and_equal(&deliveries(&script.finish()), &sent);
        }
        println!("node {} served producer and consumers, leader is {}", node.node, leader.node);
    }
}

#[test]
fn a_tag_filter_passes_what_it_names_and_nothing_else() {
    let cluster = Cluster::start(Plan::of(1));
    let at = cluster.nodes()[0].grpc;
    let sent = produce(&cluster, at, "tagged", 100);
    let wanted = |content: &Content| content.tag == "tag-1" || content.tag == "tag-3";
    let matching = sent.values().filter(|content| wanted(content)).count();

    let at_text = at.to_string();
    let words = [
        ["--endpoint", &at_text],
        ["--topic", "tagged"],
        ["--group", "some"],
        ["--mode", "simple"],
        ["--filter", "tag-1 || tag-3"],
    ];
    let mut script = Script::start("consume", cluster.folder(), "some", words.as_flattened());
    script.wait("all has come", WITHIN, |lines| count(lines, "acked") >= matching);
    // What does not match is passed over, so nothing is left to hand out.
    wait_drained(&cluster, at, "some");
    let got = deliveries(&script.finish());
    assert_eq!(got.len(), matching);
    assert!(got.iter().all(|delivery| wanted(&delivery.content)), "{got:?}");
}
