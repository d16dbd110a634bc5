//! Proofs that are stories of the test binary, told at full length.

use std::process::Command;

use crate::{Failure, Outcome, root, say};

const KILLS: &str = "10";
const KILL_IN_EACH: &str = "with and without a kill in each cell";

/// Tests of that name, in the build that this program is of: a debug build has the test command's
/// own, which is there already.
fn black_box(name: &str) -> Command {
    let mut test = Command::new("cargo");
    // With the whole workspace, so that the test command's build is the same.
    test.args(["test", "--workspace", "--test", "black_box"]);
    if !cfg!(debug_assertions) {
        test.arg("--release");
    }
    test.args([name, "--", "--nocapture"]).current_dir(root());
    test
}

/// What a ledger has to say of a build that is not the one that users get.
fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug build; " } else { "" }
}

/// Every official client against ten kills of the leader.
pub(crate) fn prove_clients() -> Result<Outcome, Failure> {
    prove_matrix("client_matrix", KILLS, &format!("{KILLS} kills each"))
}

/// Every kind of message through every official client, without and with a leader's death in each
/// cell.
pub(crate) fn prove_kinds() -> Result<Outcome, Failure> {
    prove_matrix("kinds_matrix", "1", KILL_IN_EACH)
}

/// What a consumer can ask for through every official client, without and with a leader's death in
/// each cell.
pub(crate) fn prove_consumer_matrix() -> Result<Outcome, Failure> {
    prove_matrix("consumer_matrix", "1", KILL_IN_EACH)
}

/// Tells the stories of one matrix; its figures are the table, which the last client prints.
fn prove_matrix(name: &str, kills: &str, form: &str) -> Result<Outcome, Failure> {
    let mut test = black_box(name);
    test.env("RAFTMQ_KILLS", kills);
    let output = test.output().map_err(Failure::io("cargo test"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    say(&text);
    let rows = text.lines().map(str::trim).filter(|line| line.starts_with('|'));
    let result = text.lines().rfind(|line| line.starts_with("test result:"));
    let result = result.unwrap_or("no test ran");
    let squeezed = |row: &str| row.split_whitespace().collect::<Vec<_>>().join(" ");
    let rows = rows.map(squeezed).collect::<Vec<_>>().join(" ");
    Ok(Outcome {
        good: output.status.success() && !text.contains(" 0 passed"),
        figures: format!("{}{form}; {result}; {rows}", build()),
    })
}

/// Messages leave while others come: 64 MiB segments, ten minutes, 5 MB a second, a quarter hour.
pub(crate) fn prove_retention() -> Result<Outcome, Failure> {
    let mut test = black_box("old_messages");
    test.env("RAFTMQ_FORM_SEGMENT", "64MiB")
        .env("RAFTMQ_FORM_KEEP_SECONDS", "600")
        .env("RAFTMQ_FORM_LOAD_SECONDS", "900")
        .env("RAFTMQ_FORM_RATE", "5000000");
    let output = test.output().map_err(Failure::io("cargo test"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    say(&text);
    let lines = text.lines().filter_map(|line| line.strip_prefix("retention: "));
    let figures = lines.collect::<Vec<_>>().join("; ");
    let ran = text.contains("1 passed");
    Ok(Outcome { good: output.status.success() && ran, figures: format!("{}{figures}", build()) })
}

/// Delayed messages at full length: a leader dies every ten seconds of the minute in which they fall
/// due, recalls race them, and one kind waits longer than retention.
pub(crate) fn prove_timers() -> Result<Outcome, Failure> {
    let mut test = black_box("delayed::");
    test.env("RAFTMQ_FORM_DELAYED", "10000")
        .env("RAFTMQ_FORM_SPREAD_SECONDS", "60")
        .env("RAFTMQ_FORM_KILLS", "5")
        .env("RAFTMQ_FORM_RECALLS", "10000")
        .env("RAFTMQ_FORM_RECALL_SECONDS", "60")
        .env("RAFTMQ_FORM_KEEP_SECONDS", "60")
        .env("RAFTMQ_FORM_DELAY_SECONDS", "300");
    let output = test.output().map_err(Failure::io("cargo test"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    say(&text);
    let lines = text.lines().filter_map(|line| line.strip_prefix("delayed: "));
    let figures = lines.filter(|line| !line.starts_with("killed")).collect::<Vec<_>>().join("; ");
    let ran = !text.contains(" 0 passed");
    Ok(Outcome { good: output.status.success() && ran, figures: format!("{}{figures}", build()) })
}

/// A node that was away, then a new one, catch up with 3 GiB of which 1 GiB is left, beside a load of
/// half of what goes; that load keeps 70 % of its rate.
pub(crate) fn prove_catch_up() -> Result<Outcome, Failure> {
    const KEPT_MIN: f64 = 70.0;
    let mut test = black_box("a_node_that_was_away_and_one_that_is_new");
    test.env("RAFTMQ_FORM_SEGMENT", "64MiB")
        .env("RAFTMQ_FORM_PASSED_MIB", "3072")
        .env("RAFTMQ_FORM_KEEP", "1GiB")
        .env("RAFTMQ_FORM_MEASURED", "1");
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
    Ok(Outcome { good, figures: format!("{}{}", build(), lines.join("; ")) })
}

/// One, twenty and a hundred consumers of one queue; the leader dies while twenty drain it, and some
/// leave with messages in their hands.
pub(crate) fn prove_consumers() -> Result<Outcome, Failure> {
    let mut test = black_box("shared_queue::");
    test.env("RAFTMQ_FORM_CONSUMERS", "100")
        .env("RAFTMQ_FORM_KILLS", "1")
        .env("RAFTMQ_FORM_MESSAGES", "80000");
    let output = test.output().map_err(Failure::io("cargo test"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    say(&text);
    let lines = text.lines().filter_map(|line| line.strip_prefix("consumers: "));
    let figures = lines.collect::<Vec<_>>().join("; ");
    let ran = text.contains("1 passed");
    Ok(Outcome { good: output.status.success() && ran, figures: format!("{}{figures}", build()) })
}
