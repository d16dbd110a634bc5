//! Proofs that are stories of the test binary, told at full length.

use std::process::Command;

use crate::{Failure, Outcome, root, say};

const KILLS: &str = "10";

/// Every official client against ten kills of the leader.
pub(crate) fn prove_clients() -> Result<Outcome, Failure> {
    let mut test = Command::new("cargo");
    test.args(["test", "--release", "--test", "black_box", "client_matrix", "--", "--nocapture"])
        .env("RAFTMQ_KILLS", KILLS)
        .current_dir(root());
    let output = test.output().map_err(Failure::io("cargo test"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    say(&text);
    // The last client to finish prints the table.
    let rows = text.lines().filter(|line| line.trim_start().starts_with('|'));
    let mut figures: Vec<&str> = rows.collect();
    figures.dedup();
    let result = text.lines().rfind(|line| line.starts_with("test result:"));
    let result = result.unwrap_or("no test ran").to_owned();
    let last = figures.iter().rev().take(6).rev().map(|row| row.trim()).collect::<Vec<_>>();
    let figures = format!("{KILLS} kills each; {result}; {}", last.join(" "));
    Ok(Outcome { good: output.status.success(), figures })
}

/// Messages leave while others come: 64 MiB segments, ten minutes, 5 MB a second, a quarter hour.
pub(crate) fn prove_retention() -> Result<Outcome, Failure> {
    let mut test = Command::new("cargo");
    test.args(["test", "--release", "--test", "black_box", "old_messages", "--", "--nocapture"])
        .env("RAFTMQ_FORM_SEGMENT", "64MiB")
        .env("RAFTMQ_FORM_KEEP_SECONDS", "600")
        .env("RAFTMQ_FORM_LOAD_SECONDS", "900")
        .env("RAFTMQ_FORM_RATE", "5000000")
        .current_dir(root());
    let output = test.output().map_err(Failure::io("cargo test"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    say(&text);
    let lines = text.lines().filter_map(|line| line.strip_prefix("retention: "));
    let figures = lines.collect::<Vec<_>>().join("; ");
    let ran = text.contains("1 passed");
    Ok(Outcome { good: output.status.success() && ran, figures })
}

/// A node that was away, then a new one, catch up with 3 GiB of which 1 GiB is left, beside a load of
/// half of what goes; that load keeps 70 % of its rate.
pub(crate) fn prove_catch_up() -> Result<Outcome, Failure> {
    const KEPT_MIN: f64 = 70.0;
    let mut test = Command::new("cargo");
    let name = "a_node_that_was_away_and_one_that_is_new";
    test.args(["test", "--release", "--test", "black_box", name, "--", "--nocapture"])
        .env("RAFTMQ_FORM_SEGMENT", "64MiB")
        .env("RAFTMQ_FORM_PASSED_MIB", "3072")
        .env("RAFTMQ_FORM_KEEP", "1GiB")
        .env("RAFTMQ_FORM_MEASURED", "1")
        .current_dir(root());
    let output = test.output().map_err(Failure::io("cargo test"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    say(&text);
    let lines: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("catch-up: ")).collect();
    let kept = lines.iter().filter_map(|line| line.strip_suffix(" %")?.rsplit(' ').next());
    let kept: Vec<f64> = kept.filter_map(|percent| percent.parse().ok()).collect();
    let good = output.status.success()
        && text.contains("1 passed")
        && kept.len() == 2
        && kept.iter().all(|kept| *kept >= KEPT_MIN);
    Ok(Outcome { good, figures: lines.join("; ") })
}
