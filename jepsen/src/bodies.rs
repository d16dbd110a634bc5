//! What bodies cost the leader that another node was asked for: they go from the leader to that node
//! and from there to the client, though that node has them in its own log.

use crate::bench::Measured;
use crate::cluster::{Cluster, Node};
use crate::fill::fill;
use crate::{Failure, say};

/// Bytes of a body, and how many are sent.
const SIZES: [(&str, u64); 2] = [("100", 400_000), ("16384", 40_000)];
const SECONDS: &str = "10";
/// Linux counts CPU time in these for programs, whatever its own clock.
const TICKS_PER_SECOND: f64 = 100.0;

/// In words, for each size.
pub(crate) fn compare(cluster: &Cluster) -> Result<String, Failure> {
    let leader = cluster.leader()?;
    let mut others = cluster.nodes()?.into_iter().filter(|node| node.node != leader.node);
    let other = others.next_back().ok_or(Failure::Late { what: "a second node", seconds: 0 })?;
    let mut figures = Vec::new();
    for (size, wanted) in SIZES {
        let topic = format!("bodies-{size}");
        let held = fill(cluster, (&topic, size), wanted, false)?;
        let at_leader = consume(cluster, (&leader, &leader), (&topic, size))?;
        let at_other = consume(cluster, (&leader, &other), (&topic, size))?;
        let line = format!(
            "{held} bodies of {size} bytes: the leader takes {at_leader:.1} us of a core each when it \
             is asked itself, {at_other:.1} us when another node is"
        );
        say(&line);
        figures.push(line);
    }
    Ok(figures.join("; "))
}

/// Microseconds of the leader's CPU time for each message that a new group receives and acknowledges
/// at one node.
fn consume(
    cluster: &Cluster,
    (leader, asked): (&Node, &Node),
    (topic, size): (&str, &str),
) -> Result<f64, Failure> {
    let before = cpu_ticks(leader)?;
    let words = ["bench", "consume", "--stay", "--topic", topic, "--prefill", "0"];
    let words = [&words[..], &["--size", size, "--seconds", SECONDS]].concat();
    let measured: Measured = cluster.ask_at(&asked.grpc, &words)?;
    let used = (cpu_ticks(leader)? - before) as f64 / TICKS_PER_SECOND;
    Ok(used * 1e6 / measured.messages as f64)
}

/// User and system time, fields 14 and 15 of proc(5); the name before them may have spaces.
fn cpu_ticks(node: &Node) -> Result<u64, Failure> {
    let path = format!("/proc/{}/stat", node.pid);
    let stat = std::fs::read_to_string(&path).map_err(Failure::io(path))?;
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    Ok(fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum())
}
