//! The first minute: one command, three ready nodes, equal replicas, a clean stop.

use std::time::{Duration, Instant};

use crate::common::cluster::{Cluster, PATIENCE, Plan, tool};
use crate::common::{http, turn};

const READY_WITHIN: Duration = Duration::from_secs(15);

#[test]
fn the_first_command_leaves_three_equal_nodes_and_sigterm_ends_them() {
    let _turn = turn();
    let start = Instant::now();
    let mut cluster = Cluster::start(Plan::of(3));
    let ready = start.elapsed();
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
