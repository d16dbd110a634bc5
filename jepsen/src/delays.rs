//! Delayed messages in number: a million pending, half a million due at one second, and a steady
//! load.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::bench::Measured;
use crate::cluster::{Cluster, End, Scratch, program};
use crate::{Failure, Outcome, say};

const PENDING: &str = "1000000";
const BURST: &str = "500000";
/// 5 000 a second for half a minute.
const SPREAD: [&str; 2] = ["150000", "30s"];
const GROWN_MIB_MAX: u64 = 100;
const READY_WITHIN: Duration = Duration::from_secs(5);
const FIRED_PER_SECOND: f64 = 50_000.0;
const LATE_P99_MS_MAX: u64 = 100;
/// Until the ids of what was sent are forgotten, whatever it was.
const FORGOTTEN: Duration = Duration::from_secs(35);

#[derive(Debug, Deserialize)]
struct Delays {
    sent: u64,
    sent_per_second: f64,
    received: u64,
    repeated: u64,
    early: u64,
    fired_within_ms: u64,
    fired_per_second: f64,
    late_p50_ms: u64,
    late_p99_ms: u64,
    late_max_ms: u64,
}

impl Delays {
    fn line(&self) -> String {
        format!(
            "{} sent at {:.0}/s, {} received, {} of them again, {} early; visible within {} ms, {:.0}/s; late p50 {} \
             ms, p99 {} ms, max {} ms",
            self.sent,
            self.sent_per_second,
            self.received,
            self.repeated,
            self.early,
            self.fired_within_ms,
            self.fired_per_second,
            self.late_p50_ms,
            self.late_p99_ms,
            self.late_max_ms
        )
    }

    fn is_whole(&self) -> bool {
        self.early == 0 && self.received == self.sent
    }
}

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let (mut good, mut figures) = (true, Vec::new());
    {
        let cluster = Cluster::start(&program, &scratch.0.join("firing"), false)?;
        let words = ["bench", "delayed", "--count", BURST, "--after", "90s", "--batch", "32"];
        let burst: Delays = cluster.ask(&words)?;
        say(format_args!("due at one second: {}", burst.line()));
        let words = ["bench", "delayed", "--count", SPREAD[0], "--spread", SPREAD[1]];
        let spread: Delays =
            cluster.ask(&[&words[..], &["--after", "60s", "--batch", "1"]].concat())?;
        say(format_args!("5 000 a second: {}", spread.line()));
        say(cluster.agree()?);
        good &= burst.is_whole() && burst.fired_per_second >= FIRED_PER_SECOND;
        good &= spread.is_whole() && spread.late_p99_ms < LATE_P99_MS_MAX;
        figures.push(format!("due at one second: {}", burst.line()));
        figures.push(format!("5 000 a second: {}", spread.line()));
    }
    let mut cluster = Cluster::start(&program, &scratch.0.join("pending"), false)?;
    // The memory of sent ids, which any message takes, is filled before.
    let fill = ["bench", "produce", "--batch", "32", "--size", "100", "--seconds", "40"];
    let filled: Measured = cluster.ask(&fill)?;
    say(format_args!("filled at {:.0}/s", filled.messages_per_second));
    forget(&cluster)?;
    let before = cluster.anonymous_mib()?;
    let words = ["bench", "delayed", "--count", PENDING, "--after", "12h", "--spread", "12h"];
    let words = [&words[..], &["--hold", "--batch", "32"]].concat();
    let held: Delays = cluster.ask(&words)?;
    say(format_args!("pending: {} at {:.0}/s", held.sent, held.sent_per_second));
    forget(&cluster)?;
    let after = cluster.anonymous_mib()?;
    say(cluster.agree()?);
    let killed = cluster.start_again(End::Killed)?;
    let told = cluster.start_again(End::Told)?;
    say(cluster.agree()?);
    let restarted = cluster.anonymous_mib()?;
    good &= after.saturating_sub(before) < GROWN_MIB_MAX && killed.max(told) < READY_WITHIN;
    figures.push(format!(
        "{PENDING} pending: anonymous memory {before} MiB before, {after} MiB after, {restarted} \
         MiB after a restart; ready {told:.2?} after a clean stop, {killed:.2?} after kill -9 of all"
    ));
    Ok(Outcome { good, figures: figures.join("; ") })
}

fn forget(cluster: &Cluster) -> Result<(), Failure> {
    std::thread::sleep(FORGOTTEN);
    let sent: Value = cluster.ask(&["message", "send", "--topic", "bench", "--body", "x"])?;
    say(format_args!("one more: {}", sent[0]["message_id"]));
    Ok(())
}
