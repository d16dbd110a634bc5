//! Whether the checks catch what they are for: the library is given one fault after another, and
//! seeds are run until one of them fails.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

#[cfg(feature = "mutants")]
use super::{
    summary::Summary,
    sweep::{run_all, run_one},
};
use crate::{Failure, Outcome, root, say};

/// Seeds that are tried on one mutant.
#[cfg(feature = "mutants")]
const SEEDS: u64 = 300;
/// The program of a build with the feature. It has a name of its own, so that it can share all
/// other packages with the usual build.
const PROGRAM: &str = "jepsen-mutants";

/// Builds this program with the feature `mutants` and has it hunt for all of them.
pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = build()?;
    let mut hunt = Command::new(program);
    let output = hunt.arg("hunt").output().map_err(Failure::io("hunting mutants"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    say(&text);
    let figures = text.lines().last().unwrap_or("nothing was said").to_owned();
    Ok(Outcome { good: output.status.success(), figures })
}

/// Answers where the program lies.
fn build() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe().map_err(Failure::io("finding this program"))?;
    let mut build = Command::new("cargo");
    build.args(["build", "--package", "jepsen", "--features", "mutants", "--bin", PROGRAM]);
    // A profile builds into a directory of its name, but for the usual one.
    let profile = here.parent().and_then(Path::file_name).and_then(OsStr::to_str);
    if let Some(profile) = profile.filter(|profile| *profile != "debug") {
        build.args(["--profile", profile]);
    }
    let output = build.current_dir(root()).output().map_err(Failure::io("cargo build"))?;
    if !output.status.success() {
        let (what, status) = ("the build of mutants".to_owned(), output.status);
        let output = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::Ended { what, status, output });
    }
    Ok(here.with_file_name(PROGRAM))
}

/// Hunts for those named, or all, and prints the table.
#[cfg(feature = "mutants")]
pub(crate) fn hunt(names: &[String], seeds: Option<u64>) -> Result<bool, Failure> {
    let all = raftmq::base::Mutant::ALL.iter().map(|mutant| mutant.name().to_owned());
    let names: Vec<String> = if names.is_empty() { all.collect() } else { names.to_vec() };
    let most = seeds.unwrap_or(SEEDS);
    say("| mutant | caught by | seeds | first words |");
    say("|---|---|---|---|");
    let mut rows = Vec::new();
    let mut caught = 0;
    for name in &names {
        let seeds: Vec<u64> = (1..=most).collect();
        let more = ["--mutant".to_owned(), name.clone()];
        // What fails without the mutant too says nothing of it.
        let caught_by = |one: &Summary| {
            one.verdict == "false" && run_one(one.seed, &[]).is_ok_and(|plain| plain.is_good())
        };
        let ran = run_all(&seeds, &more, caught_by)?;
        let found = ran.iter().position(caught_by);
        let row = match found {
            Some(at) => {
                caught += 1;
                let (check, what) = first(&ran[at]);
                let what: String = what.chars().take(90).collect();
                rows.push(format!("{name}: {check}, {}", at + 1));
                format!("| {name} | {check} | {} | {what} |", at + 1)
            }
            None => {
                rows.push(format!("{name}: NOT CAUGHT, {most}"));
                format!("| {name} | nothing | {most} | |")
            }
        };
        say(row);
    }
    say(format_args!("{caught} of {} mutants caught: {}", names.len(), rows.join("; ")));
    Ok(caught == names.len())
}

/// All checks that failed, and the first one's words.
#[cfg(feature = "mutants")]
fn first(summary: &Summary) -> (String, &str) {
    let mut checks: Vec<&str> = Vec::new();
    for (check, _) in &summary.violations {
        if !checks.contains(&check.as_str()) {
            checks.push(check);
        }
    }
    let what = summary.violations.first().map_or("", |(_, what)| what);
    (checks.join(" "), what)
}
