//! Long polls: who goes away leaves the line.

use std::time::Duration;

use raftmq::wire::rocketmq as v2;

use crate::common::cluster::{Cluster, PATIENCE, Plan};
use crate::common::raw::{Raw, receive};
use crate::common::{http, until};

/// Far longer than a client that is gone may stay in line.
const POLL: prost_types::Duration = prost_types::Duration { seconds: 20, nanos: 0 };
/// The metric is a second old at most.
const GONE_WITHIN: Duration = Duration::from_secs(8);

/// Polls that wait on any node.
fn waiting(cluster: &Cluster) -> Result<u64, String> {
    let count = |node: &crate::common::cluster::Node| -> Result<u64, String> {
        let (_, text) = http::get(node.http, "/metrics").map_err(|error| error.to_string())?;
        let line = text.lines().find_map(|line| line.strip_prefix("raftmq_receive_waiting "));
        line.and_then(|value| value.parse().ok()).ok_or_else(|| "no such metric".to_owned())
    };
    cluster.nodes().iter().map(count).sum()
}

#[test]
fn a_client_that_goes_away_leaves_the_line_on_every_node() {
    let cluster = Cluster::start(Plan::of(3));
    let at = cluster.nodes()[0].grpc;
    cluster.tool(at, &["topic", "create", "silent"]).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let leader = cluster.leader().node;
    for node in cluster.nodes() {
        let poll = runtime.spawn(async move {
            let mut raw = Raw::connect(node.grpc).await;
            let request = receive("silent", "absent");
            raw.receive(v2::ReceiveMessageRequest { long_polling_timeout: Some(POLL), ..request })
                .await
        });
        let waits = |wanted: u64| {
            waiting(&cluster)
                .and_then(|now| if now == wanted { Ok(()) } else { Err(now.to_string()) })
        };
        until("the poll waits", PATIENCE, || waits(1));
        // The connection ends with the task.
        poll.abort();
        until("nobody waits", GONE_WITHIN, || waits(0));
        println!("node {} (leader: {leader}): the poll is gone", node.node);
    }
}
