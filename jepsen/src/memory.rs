//! What a node takes of memory for itself: idle, and after ten gibibytes were written.

use crate::bench::Measured;
use crate::cluster::{Cluster, Scratch, program};
use crate::{Failure, Outcome, say};

const IDLE_MIB_MAX: u64 = 50;
const WRITTEN_MIB_MAX: u64 = 300;
const TARGET_MIB: f64 = 10.0 * 1024.0;
const BATCH: &str = "16";
/// One run at a time, so that the memory is seen on the way.
const SECONDS: &str = "20";
const MIB: f64 = 1024.0 * 1024.0;

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let data = scratch.0.to_string_lossy().into_owned();
    let cluster = Cluster::start(&program, &scratch.0.join("cluster"), false)?;
    say(cluster.agree()?);
    let idle = cluster.anonymous_mib()?;
    say(format_args!("idle: {idle} MiB"));
    let mut written = 0.0;
    let mut seen = Vec::new();
    while written < TARGET_MIB {
        let words = ["bench", "produce", "--batch", BATCH, "--seconds", SECONDS, "--data", &data];
        let run: Measured = cluster.ask(&words)?;
        // Bodies alone, and only those that were counted: less than what was written.
        written += run.mb_per_second * 1e6 / MIB * SECONDS.parse::<f64>().unwrap_or_default();
        let now = cluster.anonymous_mib()?;
        say(format_args!("{written:.0} MiB written: {now} MiB"));
        seen.push(now);
    }
    say(cluster.agree()?);
    let last = seen.last().copied().unwrap_or_default();
    let most = seen.iter().copied().max().unwrap_or_default();
    let figures = format!(
        "anonymous memory of a node: {idle} MiB idle, {last} MiB after {written:.0} MiB of bodies, \
         {most} MiB at most between runs"
    );
    Ok(Outcome { good: idle < IDLE_MIB_MAX && most < WRITTEN_MIB_MAX, figures })
}
