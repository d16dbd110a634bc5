//! The speed table: every figure next to the disk's own, and the goals as ratios of one run.

use std::path::Path;

use crate::bench::Measured;
use crate::cluster::{Cluster, Scratch, json, program};
use crate::{Failure, Outcome, say};

/// A ratio and what it has to be.
struct Goal {
    name: &'static str,
    is: f64,
    wanted: f64,
    at_most: bool,
}

impl Goal {
    fn at_least(name: &'static str, is: f64, wanted: f64) -> Self {
        Self { name, is, wanted, at_most: false }
    }

    fn at_most(name: &'static str, is: f64, wanted: f64) -> Self {
        Self { name, is, wanted, at_most: true }
    }

    fn is_met(&self) -> bool {
        if self.at_most { self.is <= self.wanted } else { self.is >= self.wanted }
    }

    fn line(&self) -> String {
        let bound = if self.at_most { "at most" } else { "at least" };
        let met = if self.is_met() { "met" } else { "NOT MET" };
        format!("| {} | {bound} {} | {:.2} | {met} |", self.name, self.wanted, self.is)
    }
}

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let mut rows: Vec<Measured> = Vec::new();
    say(Measured::HEAD);
    let mut measured = |measured: Measured| {
        say(measured.row());
        rows.push(measured);
    };
    let data = scratch.0.to_string_lossy().into_owned();
    for in_flight in ["1", "16", "256"] {
        let words = ["bench", "raft", "--in-flight", in_flight, "--data", &data];
        measured(json(&program, &words)?);
    }
    for row in over_grpc(&program, &scratch.0, &data)? {
        measured(row);
    }
    let mut goals = goals(&rows);
    let (more, of_kinds) = kinds(&program, &scratch.0, &data)?;
    for row in more {
        say(row.row());
        rows.push(row);
    }
    goals.extend(of_kinds);
    say("\n| goal | wanted | is | |\n|---|---|---|---|");
    for goal in &goals {
        say(goal.line());
    }
    say(format_args!(
        "\ndurability {}; three nodes and the load on one machine",
        rows[0].durability
    ));
    let rate = |row: &Measured| {
        let Measured { bench, in_flight, batch, messages_per_second, .. } = row;
        format!("{bench} {in_flight}x{batch}: {messages_per_second:.0}/s")
    };
    let mut figures: Vec<String> = rows.iter().map(rate).collect();
    figures.push(format!("fdatasync {:.0}/s", rows[0].fdatasync_per_second));
    for goal in goals.iter().filter(|goal| !goal.is_met()) {
        figures.push(format!("NOT MET {}: {:.2} of {}", goal.name, goal.is, goal.wanted));
    }
    Ok(Outcome { good: goals.iter().all(Goal::is_met), figures: figures.join("; ") })
}

/// What is sent beside normal messages: the topic's type, the goal, and how many times as long a send
/// of it may take.
const KINDS: [(&str, &str, &str, f64); 3] = [
    ("ordered", "fifo", "an ordered send / a normal one", 1.3),
    ("delayed", "delay", "a delayed send / a normal one", 1.3),
    ("transactional", "transaction", "a transactional send / a normal one", 2.2),
];
/// Each kind and a normal message by turns, so that no one has the disk at its best.
const TURNS: usize = 3;

/// Sends of each kind, each between two normal ones.
fn kinds(
    program: &Path,
    scratch: &Path,
    data: &str,
) -> Result<(Vec<Measured>, Vec<Goal>), Failure> {
    let cluster = Cluster::start(program, &scratch.join("kinds"), false)?;
    for (kind, takes, ..) in KINDS {
        let _: serde_json::Value =
            cluster.ask(&["topic", "create", &format!("bench-{kind}"), "--type", takes])?;
    }
    let (mut rows, mut goals) = (Vec::new(), Vec::new());
    for (kind, _, name, most) in KINDS {
        let topic = format!("bench-{kind}");
        let normal = ["bench", "produce", "--topic", "bench-normal", "--data", data];
        let other = ["bench", "produce", "--topic", &topic, "--kind", kind, "--data", data];
        let mut rates = [0.0, 0.0];
        for _ in 0..TURNS {
            for (words, rate) in [&normal[..], &other[..]].into_iter().zip(&mut rates) {
                let measured: Measured = cluster.ask(words)?;
                *rate += measured.messages_per_second;
                rows.push(measured);
            }
        }
        goals.push(Goal::at_most(name, rates[0] / rates[1], most));
    }
    say(cluster.agree()?);
    Ok((rows, goals))
}

fn over_grpc(program: &Path, scratch: &Path, data: &str) -> Result<Vec<Measured>, Failure> {
    let cluster = Cluster::start(program, &scratch.join("cluster"), false)?;
    let commands: [&[&str]; 4] = [
        &["produce"],
        &["produce", "--batch", "16", "--topic", "bench-batches"],
        &["consume", "--topic", "bench-consume"],
        &["e2e", "--in-flight", "16"],
    ];
    let run = |words: &&[&str]| {
        let words = [&["bench"], *words, &["--data", data]].concat();
        cluster.ask(&words)
    };
    let rows = commands.iter().map(run).collect();
    say(cluster.agree()?);
    rows
}

/// In the order in which the rows were measured.
fn goals(rows: &[Measured]) -> Vec<Goal> {
    let [one, sixteen, many, produce, batches, consume, ..] = rows else { return Vec::new() };
    let to_disk = |row: &Measured| row.messages_per_second / row.fdatasync_per_second;
    let to_floor = |row: &Measured| row.messages_per_second / many.messages_per_second;
    let p50 = one.p50_us as f64 / one.fdatasync_p50_us as f64;
    vec![
        Goal::at_least("raft, 256 in flight / fdatasync rate", to_disk(many), 10.0),
        Goal::at_least("raft, 16 in flight / fdatasync rate", to_disk(sixteen), 2.5),
        Goal::at_most("raft, 1 in flight, p50 / fdatasync p50", p50, 5.0),
        Goal::at_least("produce / raft, 256 in flight", to_floor(produce), 0.2),
        Goal::at_least("produce, 16 a request / raft", to_floor(batches), 0.6),
        Goal::at_least(
            "consume / produce",
            consume.messages_per_second / produce.messages_per_second,
            1.0,
        ),
    ]
}
