//! The leader is killed twenty times; what was acknowledged must be there, and the pause is timed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::cluster::{Cluster, Node, Scratch, kill, program};
use crate::{Failure, Outcome, say};

const KILLS: usize = 20;
/// Messages between two kills.
const BETWEEN: usize = 20;
const TOPIC: &str = "failover";
const GAP_MEDIAN_MAX: Duration = Duration::from_secs(2);
const GAP_MAX: Duration = Duration::from_secs(5);
/// A group that sends nothing for so long is dead.
const PATIENCE: Duration = Duration::from_secs(30);

/// A message as sending and receiving print it.
#[derive(Debug, Deserialize)]
struct Told {
    message_id: String,
}

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let cluster = Cluster::start(&program, &scratch.0.join("cluster"), true)?;
    let mut acknowledged = BTreeSet::new();
    let mut gaps = Vec::new();
    for round in 1..=KILLS {
        for _ in 0..BETWEEN {
            send(&cluster, &mut acknowledged, None)?;
        }
        let leader = cluster.leader()?;
        kill(&leader);
        let killed = Instant::now();
        send(&cluster, &mut acknowledged, Some(&leader))?;
        let gap = killed.elapsed();
        say(format_args!("kill {round}: node {}, next OK after {gap:.2?}", leader.node));
        gaps.push(gap);
        cluster.agree()?;
    }
    say(cluster.agree()?);
    let received = receive(&cluster)?;
    let once: BTreeSet<&String> = received.iter().map(|told| &told.message_id).collect();
    let lost = acknowledged.iter().filter(|id| !once.contains(id)).count();
    let again = received.len() - once.len();
    gaps.sort_unstable();
    let (median, longest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    let figures = format!(
        "{KILLS} kills of the leader; {} acknowledged, {lost} lost, {again} received again; gap \
         median {median:.2?}, longest {longest:.2?}",
        acknowledged.len()
    );
    let quick = median < GAP_MEDIAN_MAX && longest < GAP_MAX;
    Ok(Outcome { good: lost == 0 && again == 0 && quick, figures })
}

/// Sends until one is acknowledged, at each node in turn but `dead`.
fn send(
    cluster: &Cluster,
    acknowledged: &mut BTreeSet<String>,
    dead: Option<&Node>,
) -> Result<(), Failure> {
    let start = Instant::now();
    let mut last = Failure::Late { what: "an acknowledged send", seconds: PATIENCE.as_secs() };
    while start.elapsed() < PATIENCE {
        for node in cluster.nodes()? {
            if dead.is_some_and(|dead| dead.node == node.node) {
                continue;
            }
            let words = ["message", "send", "--topic", TOPIC, "--body", "x"];
            match cluster.ask_at::<Vec<Told>>(&node.grpc, &words) {
                Ok(sent) => {
                    acknowledged.extend(sent.into_iter().map(|told| told.message_id));
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

/// All that is there, each acknowledged.
fn receive(cluster: &Cluster) -> Result<Vec<Told>, Failure> {
    let mut all = Vec::new();
    loop {
        let words = ["message", "receive", "--topic", TOPIC, "--group", "auditors"];
        let more = ["--max", "100000", "--wait", "2s", "--ack"];
        let received: Vec<Told> = cluster.ask(&[&words[..], &more[..]].concat())?;
        if received.is_empty() {
            return Ok(all);
        }
        all.extend(received);
    }
}
