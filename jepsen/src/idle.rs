//! A thousand push consumers that have nothing to do: nothing is written, next to no CPU time is
//! used, and a message that comes at last is there at once.

use serde::Deserialize;

use crate::cluster::{Cluster, Scratch, program};
use crate::{Failure, Outcome, say};

const CONSUMERS: &str = "1000";
const IDLE_SECONDS: &str = "30";
const MESSAGES: &str = "1000";
/// Of one core, each node.
const CPU_PERCENT_MAX: f64 = 10.0;
const P99_US_MAX: u64 = 50_000;

#[derive(Debug, Deserialize)]
struct Idled {
    consumers: u32,
    topics: u32,
    connections: u32,
    entries_while_idle: u64,
    processes: Vec<Process>,
    failed_calls: u64,
    last_failure: Option<String>,
    messages: u32,
    lost: u32,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

#[derive(Debug, Deserialize)]
struct Process {
    cpu_percent: f64,
    anonymous_bytes: u64,
}

impl Idled {
    fn is_good(&self) -> bool {
        let calm = self.processes.iter().all(|process| process.cpu_percent < CPU_PERCENT_MAX);
        let silent = self.entries_while_idle == 0 && self.failed_calls == 0;
        calm && silent && self.lost == 0 && self.p99_us < P99_US_MAX
    }

    fn line(&self) -> String {
        let of = |process: &Process| {
            let mib = process.anonymous_bytes >> 20;
            format!("{:.1} % of a core and {mib} MiB", process.cpu_percent)
        };
        let nodes: Vec<String> = self.processes.iter().map(of).collect();
        let failure = self.last_failure.as_deref().unwrap_or("none");
        format!(
            "{} consumers on {} topics over {} connections: {} entries while idle; nodes use {}; \
             {} failed calls (last: {failure}); {} single messages, {} lost, p50 {} us, p99 {} us, \
             max {} us",
            self.consumers,
            self.topics,
            self.connections,
            self.entries_while_idle,
            nodes.join(", "),
            self.failed_calls,
            self.messages,
            self.lost,
            self.p50_us,
            self.p99_us,
            self.max_us,
        )
    }
}

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let cluster = Cluster::start(&program, &scratch.0.join("cluster"), false)?;
    let processes: Vec<String> = cluster.nodes()?.iter().map(|node| node.pid.to_string()).collect();
    let mut runs = Vec::new();
    // Each its own topic and group, and all of them members of one group on one topic.
    for topics in [CONSUMERS, "1"] {
        let mut words = vec!["bench", "consumers", "--count", CONSUMERS, "--topics", topics];
        words.extend(["--seconds", IDLE_SECONDS, "--messages", MESSAGES]);
        words.extend(processes.iter().flat_map(|pid| ["--process", pid]));
        let idled: Idled = cluster.ask(&words)?;
        say(idled.line());
        runs.push(idled);
    }
    say(cluster.agree()?);
    let figures: Vec<String> = runs.iter().map(Idled::line).collect();
    Ok(Outcome { good: runs.iter().all(Idled::is_good), figures: figures.join("; ") })
}
