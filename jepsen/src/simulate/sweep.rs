//! Many seeds, each in a process of its own, on all cores; and what is left of a failing one's
//! faults when all that it does not need are switched off.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::ValueEnum;

use super::plan::Class;
use super::random::split;
use super::summary::Summary;
use crate::{Failure, Outcome, ledger, say};

/// Seeds that every sweep begins with.
const FIXED: u64 = 20;
/// So many seeds have faults of every kind, or the sweep proves too little.
const COVERING: u64 = 60;
/// Fresh seeds that are printed; the others follow from the commit as these do.
const SHOWN: usize = 40;
/// Runs that are spent on one failing seed to find out what it needs.
const SHRINKS_MAX: usize = 80;

/// The seeds of a sweep: the fixed ones, then fresh ones that the commit decides.
fn seeds(count: u64, commit: &str) -> Vec<u64> {
    let fixed = FIXED.min(count);
    let fresh = (fixed..count).map(|number| split(number, commit) >> 16);
    (1..=fixed).chain(fresh).collect()
}

/// Runs one seed in a fresh process of this program.
pub(super) fn run_one(seed: u64, more: &[String]) -> Result<Summary, Failure> {
    let program = std::env::current_exe().map_err(Failure::io("finding this program"))?;
    let mut command = Command::new(program);
    command.args(["simulate", "--json", "--seed", &seed.to_string()]).args(more);
    let output = command.output().map_err(Failure::io("running a seed"))?;
    let what = format!("seed {seed} {}", more.join(" "));
    if !matches!(output.status.code(), Some(0..=2)) {
        let output_text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        return Err(Failure::Ended { what, status: output.status, output: output_text });
    }
    serde_json::from_slice(&output.stdout).map_err(|source| Failure::Json { what, source })
}

/// Runs seeds on all cores, in order, until all are done or one is `enough`.
pub(super) fn run_all(
    seeds: &[u64],
    more: &[String],
    enough: impl Fn(&Summary) -> bool + Sync,
) -> Result<Vec<Summary>, Failure> {
    let next = AtomicUsize::new(0);
    let ran: Mutex<Vec<(usize, Result<Summary, Failure>)>> = Mutex::default();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = seeds.get(at) else { return };
            let one = run_one(*seed, more);
            if one.as_ref().is_ok_and(&enough) {
                next.store(seeds.len(), Ordering::Relaxed);
            }
            if let Ok(mut ran) = ran.lock() {
                ran.push((at, one));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let mut ran = ran.into_inner().unwrap_or_default();
    ran.sort_by_key(|(at, _)| *at);
    ran.into_iter().map(|(_, one)| one).collect()
}

/// Runs many seeds and says what came of them; the first that is false is shrunken.
pub(crate) fn prove(count: u64) -> Result<Outcome, Failure> {
    let commit = ledger::head();
    let seeds = seeds(count, &commit);
    say(format_args!("{count} seeds, {} of them fixed, the others of {commit}", FIXED.min(count)));
    let fresh: Vec<String> = seeds.iter().skip(20).take(SHOWN).map(u64::to_string).collect();
    say(format_args!("fresh: {}{}", fresh.join(" "), if count > 60 { " …" } else { "" }));
    let ran = run_all(&seeds, &[], |_| false)?;
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for one in &ran {
        one.faults.iter().for_each(|(of, n)| *faults.entry(of).or_default() += n);
        one.counts.iter().for_each(|(of, n)| *counts.entry(of).or_default() += n);
    }
    let bad: Vec<&Summary> = ran.iter().filter(|one| !one.is_good()).collect();
    bad.iter().for_each(say);
    if let Some(first) = bad.iter().find(|one| one.verdict == "false") {
        say(shrink(first)?);
    }
    let by_kind: Vec<String> = faults.iter().map(|(of, n)| format!("{n} {of}")).collect();
    let count_of = |what: &str| counts.get(what).copied().unwrap_or(0);
    let hours = ran.iter().map(|one| one.simulated_millis).sum::<u64>() / 360_000;
    let known: Vec<&str> = Class::value_variants().iter().map(|class| class.name()).collect();
    let never: Vec<&str> = known.into_iter().filter(|class| !faults.contains_key(class)).collect();
    let covered = never.is_empty() || count < COVERING;
    let never = if covered { String::new() } else { format!("; NEVER: {}", never.join(", ")) };
    let bad_seeds: Vec<String> = bad.iter().map(|one| one.seed.to_string()).collect();
    let figures = format!(
        "{} seeds, {} not true ({}); {}.{} h simulated, {} messages acknowledged, {} deliveries, \
         {} restarts, {} terms; {} faults: {}{never}",
        ran.len(),
        bad.len(),
        bad_seeds.join(" "),
        hours / 10,
        hours % 10,
        count_of("acked"),
        count_of("deliveries"),
        count_of("restarts"),
        count_of("terms"),
        faults.values().sum::<u64>(),
        by_kind.join(", ")
    );
    Ok(Outcome { good: covered && bad.is_empty() && ran.len() == seeds.len(), figures })
}

/// Switches off classes, then single faults, as long as the same check still fails.
pub(crate) fn shrink(failed: &Summary) -> Result<String, Failure> {
    let checks: BTreeSet<&String> = failed.violations.iter().map(|(check, _)| check).collect();
    let mut left = SHRINKS_MAX;
    let mut off: Vec<String> = Vec::new();
    let mut smallest = failed.clone();
    let fails_without = |off: &[String], left: &mut usize| -> Result<Option<Summary>, Failure> {
        if *left == 0 {
            return Ok(None);
        }
        *left -= 1;
        let one = run_one(failed.seed, off)?;
        let same = one.violations.iter().any(|(check, _)| checks.contains(check));
        Ok(same.then_some(one))
    };
    let classes: BTreeSet<String> =
        failed.planned.iter().map(|(_, class, _)| class.clone()).collect();
    for class in classes {
        let with: Vec<String> =
            off.iter().cloned().chain(["--without".to_owned(), class]).collect();
        if let Some(one) = fails_without(&with, &mut left)? {
            (off, smallest) = (with, one);
        }
    }
    for (number, ..) in smallest.planned.clone() {
        let more = ["--skip".to_owned(), number.to_string()];
        let with: Vec<String> = off.iter().cloned().chain(more).collect();
        if let Some(one) = fails_without(&with, &mut left)? {
            (off, smallest) = (with, one);
        }
    }
    Ok(format!("shrunken, in {} runs:\n{smallest}", SHRINKS_MAX - left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_seeds_are_the_commits() {
        let one = seeds(60, "abc");
        assert_eq!(one.len(), 60);
        assert_eq!(one[..20], (1..=20).collect::<Vec<u64>>());
        assert_eq!(one, seeds(60, "abc"));
        assert_ne!(one[20..], seeds(60, "abd")[20..]);
        assert_eq!(seeds(5, "abc"), [1, 2, 3, 4, 5]);
    }
}
