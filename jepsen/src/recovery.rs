//! How soon one node is ready again after kill -9, with much log and many queues.

use std::time::Duration;

use crate::bench::Measured;
use crate::cluster::{Cluster, End, Scratch, program};
use crate::{Failure, Outcome, say};

const TOPICS: usize = 1_250;
const QUEUES: &str = "8";
const MIB: f64 = 1024.0 * 1024.0;
/// Bytes of bodies after which it is killed.
const STEPS_MIB: [f64; 2] = [8.0 * 1024.0, 16.0 * 1024.0];
const READY_WITHIN: Duration = Duration::from_secs(10);
/// "Not slower": what two starts of one log differ by.
const NOISE: Duration = Duration::from_secs(2);
const BATCH: &str = "16";
const SECONDS: &str = "10";

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let data = scratch.0.to_string_lossy().into_owned();
    let mut cluster = Cluster::start_of(1, &program, &scratch.0.join("cluster"), false)?;
    let names: Vec<String> = (0..TOPICS).map(|number| format!("topic-{number:05}")).collect();
    cluster.tell(&["topic", "create", "--from", "-", "--queues", QUEUES], &names.join("\n"))?;
    let mut written = 0.0;
    let mut starts = Vec::new();
    for step in STEPS_MIB {
        while written < step {
            let words =
                ["bench", "produce", "--batch", BATCH, "--seconds", SECONDS, "--data", &data];
            let run: Measured = cluster.ask(&words)?;
            written += run.mb_per_second * 1e6 / MIB * SECONDS.parse::<f64>().unwrap_or_default();
        }
        let ready = cluster.start_again(End::Killed)?;
        say(format_args!("{written:.0} MiB of bodies: ready {ready:.2?} after kill -9"));
        starts.push(ready);
    }
    let (first, second) = (starts[0], starts[1]);
    let figures = format!(
        "one node, {TOPICS} topics of {QUEUES} queues: ready {first:.2?} after kill -9 with 8 GiB of \
         bodies and more, {second:.2?} with 16 GiB"
    );
    let good = first < READY_WITHIN && second < READY_WITHIN && second < first + NOISE;
    Ok(Outcome { good, figures })
}
