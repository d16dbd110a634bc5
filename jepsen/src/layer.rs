//! What the layer between a queue and its consumers costs: the same messages received and
//! acknowledged through consumer groups, and read by offset; and what the leader spends on bodies.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::bench::Measured;
use crate::cluster::{Cluster, Scratch, program};
use crate::fill::fill;
use crate::{Failure, Outcome, bodies, say};

const TOPIC: &str = "layer";
/// As many as the bench has consumers, so that as many read by offset.
const QUEUES: &str = "16";
const MESSAGES: u64 = 1_000_000;
/// Bytes of a body.
const SIZE: &str = "100";
/// Messages that one receive, or one pull, asks for.
const BATCHES: [&str; 3] = ["1", "16", "32"];
const SECONDS: &str = "10";
/// Metrics are a second old at most.
const SETTLE: Duration = Duration::from_secs(2);
const LAST_INDEX: &str = "raftmq_log_last_index";
const LOG_BYTES: &str = "raftmq_log_bytes_total";

/// One way of reading, and what it wrote.
struct Run {
    measured: Measured,
    entries_per_thousand: f64,
    bytes_per_thousand: f64,
}

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let cluster = Cluster::start(&program, &scratch.0.join("cluster"), false)?;
    let _: serde_json::Value = cluster.ask(&["topic", "create", TOPIC, "--queues", QUEUES])?;
    let held = fill(&cluster, (TOPIC, SIZE), MESSAGES, false)?;
    say(cluster.agree()?);
    say(
        "| batch | with acks, msg/s | by offset, msg/s | ratio | entries per 1000 | bytes per 1000 \
         | again |\n|---|---|---|---|---|---|---|",
    );
    let (mut figures, mut good) = (Vec::new(), true);
    for batch in BATCHES {
        let group = run(&cluster, batch, &[])?;
        let pull = run(&cluster, batch, &["--pull"])?;
        let (with, without) =
            (group.measured.messages_per_second, pull.measured.messages_per_second);
        let (ratio, again) = (with / without, group.measured.repeated);
        let (entries, bytes) = (group.entries_per_thousand, group.bytes_per_thousand);
        say(format_args!(
            "| {batch} | {with:.0} | {without:.0} | {ratio:.2} | {entries:.1} | {bytes:.0} | {again} |"
        ));
        figures.push(format!(
            "{batch} at a time: {with:.0}/s with acks, {without:.0}/s by offset ({ratio:.2}), \
             {entries:.1} entries and {bytes:.0} bytes of log per 1000 messages, {again} again"
        ));
        // Reading by offset writes nothing but what runs beside it.
        good &= again == 0 && pull.entries_per_thousand < 1.0;
    }
    say(cluster.agree()?);
    let figures = figures.join("; ");
    let bodies = bodies::compare(&cluster)?;
    let figures =
        format!("{held} messages of {SIZE} bytes in {QUEUES} queues; {figures}; {bodies}");
    Ok(Outcome { good, figures })
}

/// By a new group, from the first message on.
fn run(cluster: &Cluster, batch: &str, more: &[&str]) -> Result<Run, Failure> {
    let before = log(cluster)?;
    let words = ["bench", "consume", "--topic", TOPIC, "--prefill", "0", "--size", SIZE];
    let words = [&words[..], &["--receive", batch, "--seconds", SECONDS], more].concat();
    let measured: Measured = cluster.ask(&words)?;
    let after = log(cluster)?;
    let per_thousand = |from: f64, to: f64| (to - from) * 1000.0 / measured.messages as f64;
    Ok(Run {
        entries_per_thousand: per_thousand(before.0, after.0),
        bytes_per_thousand: per_thousand(before.1, after.1),
        measured,
    })
}

/// Entries and bytes of the leader's log.
fn log(cluster: &Cluster) -> Result<(f64, f64), Failure> {
    std::thread::sleep(SETTLE);
    let leader = cluster.leader()?;
    let text = metrics(&leader.http).map_err(Failure::io(format!("metrics of {}", leader.http)))?;
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        let missing = || std::io::Error::other("it is not told");
        value.ok_or_else(missing).map_err(Failure::io(name))
    };
    Ok((value(LAST_INDEX)?, value(LOG_BYTES)?))
}

fn metrics(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
