//! The lines of `LEDGER.md`.

use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Failure, Outcome, Proof, root};

/// Adds a line for a run that came to its end.
pub(crate) fn add(proof: Proof, outcome: &Outcome) -> Result<(), Failure> {
    let path = root().join("jepsen").join("LEDGER.md");
    let name = format!("{proof:?}").to_lowercase();
    let said = if outcome.good { "good" } else { "BAD" };
    let figures = outcome.figures.replace('|', "/").replace('\n', " ");
    let line = [now(), name, commit(), machine(), said.to_owned(), figures].join(" | ");
    let what = || Failure::io(path.display().to_string());
    let mut file = File::options().append(true).open(&path).map_err(what())?;
    file.write_all(format!("| {line} |\n").as_bytes()).map_err(what())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn commit() -> String {
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|| "none".to_owned());
    // The ledger itself changes by each run.
    let changed = git(&["status", "--porcelain", "--", ".", ":!jepsen/LEDGER.md"]);
    let dirty = changed.is_none_or(|changed| !changed.is_empty());
    if dirty { commit + "+" } else { commit }
}

/// The commit that fresh seeds are made from.
pub(crate) fn head() -> String {
    let told = std::env::var("RAFTMQ_SEEDS_OF").ok();
    told.or_else(|| git(&["rev-parse", "HEAD"])).unwrap_or_else(|| "none".to_owned())
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|rest| rest.trim_start_matches([' ', '\t', ':'])).unwrap_or("unknown");
    format!("{cores} cores, {model}")
}

fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// The date that is so many days behind 1970-01-01.
fn date(mut days: u64) -> (u64, usize, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    (year, month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(59), (1970, 3, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(20_786), (2026, 11, 29));
    }
}
