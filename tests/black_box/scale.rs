//! Many topics and many idle consumers, in a small form; `prove topics` and `prove idle` of the
//! crate jepsen are the full ones. Nothing here is a speed.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::cluster::{Cluster, PATIENCE, Plan, RAFTMQ};
use crate::common::raw::{Raw, message};

const TOPICS: usize = 1000;
const PAGE: usize = 300;
const ANONYMOUS_MIB_MAX: u64 = 150;

/// Creates topics over one connection, their names from standard input.
fn create(endpoint: SocketAddr, names: &[String]) -> Value {
    let mut child = Command::new(RAFTMQ)
        .args(["topic", "create", "--from", "-", "--queues", "4", "--output", "json"])
        .args(["--endpoint", &endpoint.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(names.join("\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn names(page: &Value) -> Vec<String> {
    let name = |topic: &Value| topic["name"].as_str().unwrap().to_owned();
    page.as_array().unwrap().iter().map(name).collect()
}

/// All names, asked for page by page.
fn list(cluster: &Cluster, endpoint: SocketAddr) -> (Vec<String>, usize) {
    let limit = PAGE.to_string();
    let (mut found, mut pages) = (Vec::<String>::new(), 0);
    loop {
        let mut words = vec!["topic", "list", "--limit", &limit];
        if let Some(last) = found.last() {
            words.extend(["--after", last]);
        }
        let page = names(&cluster.tool(endpoint, &words).unwrap());
        assert!(page.len() <= PAGE);
        if page.is_empty() {
            return (found, pages);
        }
        pages += 1;
        found.extend(page);
    }
}

fn anonymous_mib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn a_thousand_topics_are_created_listed_and_found_again() {
    let mut cluster = Cluster::start(Plan::of(3));
    let expected: Vec<String> = (0..TOPICS).map(|number| format!("topic-{number:04}")).collect();
    // A follower passes each on to the leader.
    let follower = cluster.a_follower();
    let created = create(follower.grpc, &expected);
    assert_eq!(names(&created), expected, "answered in the order of the names");
    let mut queues = created.as_array().unwrap().iter().map(|topic| &topic["parts"][0]["queues"]);
    assert!(queues.all(|queues| queues.as_array().unwrap().len() == 4));
    // The same again changes nothing.
    assert_eq!(create(cluster.leader().grpc, &expected), created);

    let check = |cluster: &Cluster| {
        for node in cluster.nodes() {
            let (found, pages) = list(cluster, node.grpc);
            assert_eq!(found, expected, "node {}", node.node);
            assert_eq!(pages, TOPICS.div_ceil(PAGE));
            let whole = names(&cluster.tool(node.grpc, &["topic", "list"]).unwrap());
            assert_eq!(whole, expected, "a list without a limit is all pages");
            let mib = anonymous_mib(node.pid);
            assert!(mib < ANONYMOUS_MIB_MAX, "node {} has {mib} MiB", node.node);
            println!("node {}: {TOPICS} topics in {pages} pages, {mib} MiB", node.node);
        }
    };
    cluster.wait_equal(PATIENCE);
    check(&cluster);
    cluster.kill_all();
    cluster.up();
    let ready = cluster.wait_ready(PATIENCE);
    println!("ready {ready:?} after kill -9 of all nodes");
    cluster.wait_equal(PATIENCE);
    check(&cluster);
}

/// As official clients do it: many at once, and none of the topics is there yet.
#[tokio::test]
async fn a_send_to_each_of_many_new_topics_creates_it() {
    const NEW: usize = 300;
    let cluster = Cluster::start(Plan::of(3));
    cluster.wait_equal(PATIENCE);
    let raw = Raw::connect(cluster.a_follower().grpc).await;
    let sends = (0..NEW).map(|number| {
        let mut raw = raw.clone();
        async move {
            let topic = format!("new-{number:03}");
            raw.send(vec![message(&topic, &format!("id-{number}"), "x")]).await.0
        }
    });
    let codes: Vec<i32> = futures::future::join_all(sends).await;
    assert_eq!(codes, [20000; NEW]);
    let (found, _) = list(&cluster, cluster.leader().grpc);
    let expected: Vec<String> = (0..NEW).map(|number| format!("new-{number:03}")).collect();
    assert_eq!(found, expected);
    cluster.wait_equal(PATIENCE);
}

/// What the bench tells of a time in which nobody was elected, since each election writes an entry.
/// A machine that is busy with other things for half a second has one now and then.
fn idle_in_one_term(cluster: &Cluster, endpoint: SocketAddr, words: &[&str]) -> Value {
    const TRIES: usize = 5;
    let term = || cluster.wait_equal(PATIENCE)[0].term;
    let mut before = term();
    for _ in 0..TRIES {
        let told = cluster.tool(endpoint, words);
        let after = term();
        if before == after {
            return told.unwrap();
        }
        println!("again: the term was {before} and is {after}; {told:?}");
        before = after;
    }
    panic!("{TRIES} times somebody was elected meanwhile");
}

#[test]
fn a_hundred_idle_consumers_write_nothing_and_hear_at_once() {
    let cluster = Cluster::start(Plan::of(3));
    cluster.wait_equal(PATIENCE);
    let node = cluster.a_follower();
    for topics in ["100", "1"] {
        let words = ["bench", "consumers", "--count", "100", "--topics", topics];
        let more = ["--sharing", "10", "--seconds", "7", "--messages", "100"];
        let told = idle_in_one_term(&cluster, node.grpc, &[&words[..], &more[..]].concat());
        println!("{told}");
        assert_eq!(told["entries_while_idle"], 0, "{told}");
        assert_eq!(told["lost"], 0, "{told}");
        assert_eq!(told["failed_calls"], 0, "{told}");
        assert_eq!(told["connections"], 30, "{told}");
    }
    cluster.wait_equal(PATIENCE);
}
