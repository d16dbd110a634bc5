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
