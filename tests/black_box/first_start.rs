//! The first minute: one command, three ready nodes, equal replicas, a clean stop.

use std::time::Duration;

use crate::common::cluster::{Cluster, PATIENCE, Plan, tool};
use crate::common::{http, python};

const READY_WITHIN: Duration = Duration::from_secs(15);

#[test]
fn the_first_command_leaves_three_equal_nodes_and_sigterm_ends_them() {
    let mut cluster = Cluster::start(Plan::of(3));
    let ready = cluster.first_ready;
    println!("three nodes ready after {ready:?}");
    assert!(ready < READY_WITHIN, "ready after {ready:?}");

    let replicas = cluster.wait_equal(PATIENCE);
    println!("replicas: {replicas:?}");

    // Every node serves its own health, its metrics, and the same view of the cluster.
    for node in cluster.nodes() {
        assert_eq!(http::get(node.http, "/healthz").unwrap().0, 200);
        let (status, metrics) = http::get(node.http, "/metrics").unwrap();
        assert_eq!(status, 200);
        assert!(metrics.contains("raftmq_"), "no metric of ours in {metrics:?}");
        assert_eq!(http::get(node.http, "/no-such-page").unwrap().0, 404);
        let seen = cluster.status_by(node.grpc).unwrap();
        assert_eq!(seen.iter().filter(|replica| replica.role == "leader").count(), 1, "{seen:?}");
    }

    let endpoint = cluster.leader().grpc.to_string();
    let with = |words: &[&str]| {
        tool(words.iter().copied().chain(["--endpoint", &endpoint, "--output", "json"]))
    };
    with(&["topic", "create", "orders", "--queues", "4", "--type", "normal"]).unwrap();
    with(&["topic", "describe", "orders"]).unwrap();
    assert!(with(&["topic", "list"]).unwrap().to_string().contains("orders"));
    with(&["topic", "delete", "orders"]).unwrap();
    with(&["topic", "describe", "orders"]).unwrap_err();

    let status = cluster.stop();
    assert!(status.success(), "raftmq up ended with {status}: {}", cluster.output());
}

/// The README's Python program, as it stands there but for the port.
#[test]
fn the_tour_of_the_readme_runs() {
    let readme = include_str!("../../README.md");
    let (_, after) = readme.split_once("```python\n").unwrap();
    let (program, _) = after.split_once("```").unwrap();
    let well_known = "127.0.0.1:8081";
    assert_eq!(program.matches(well_known).count(), 1, "the program names the endpoint once");

    let cluster = Cluster::start(Plan::of(3));
    let program = program.replace(well_known, &cluster.nodes()[1].grpc.to_string());
    let file = cluster.folder().join("tour.py");
    std::fs::write(&file, program).unwrap();
    let output = python::run(&file, cluster.folder());
    assert_eq!(output.matches("on disk at a majority").count(), 10, "{output}");
    let received: Vec<_> = output.lines().filter(|line| line.starts_with("received")).collect();
    assert_eq!(received.len(), 5, "{output}");
    assert!(received.iter().all(|line| line.contains("'town': 'Zürich'")), "{output}");
}
