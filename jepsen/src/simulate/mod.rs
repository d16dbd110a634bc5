//! The simulator: a whole cluster and its clients in one thread, on a network, disks and clocks
//! that one seed decides, with everything going wrong that may.
//!
//! What it is: the real `commit_log`, `machine`, `raft` and `broker` of the library, run by hosts
//! of its own. Clients call the broker; peers speak their real protocol over the simulated network.
//! Promises: one seed is one run, byte for byte.
//! Never: a thread, a real file, socket or clock inside a run; a second run in one process.
//! Start reading at `run`, then `plan`, `world`, `net`.

mod ambient;
mod clients;
mod disk;
mod faults;
mod net;
mod node;
mod panics;
mod plan;
mod random;
mod run;
mod trace;
mod watch;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use clap::Args;

use self::plan::Class;
use self::run::{Choice, Report, run};
use crate::checkers::Verdict;
use crate::say;

/// The run could not be made.
const HARNESS_FAILED: u8 = 3;
/// Stack of the thread that a run has for itself.
const STACK: usize = 64 << 20;

#[derive(Clone, Debug, Args)]
pub(crate) struct Simulate {
    /// What the run is made from.
    #[arg(long)]
    seed: u64,
    /// Leave out a kind of faults. Can be given several times.
    #[arg(long, value_name = "CLASS")]
    without: Vec<Class>,
    /// Leave out single faults, by number. Can be given several times.
    #[arg(long, value_name = "NUMBER")]
    skip: Vec<usize>,
    /// What to turn the library into.
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "MUTANT", value_parser = mutant)]
    mutant: Option<raftmq::base::Mutant>,
    /// Write down everything that happens.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Runs one seed and prints what came of it. The exit code is 0 for true, 1 for false, 2 for
/// unknown, and 3 when there was no run.
pub(crate) fn simulate(arguments: Simulate) -> ExitCode {
    if !ambient::is_effective() {
        say(
            "jepsen: this build does not decide what libraries draw at random, so a seed would not \
             repeat; build it as a dynamically linked program for Linux",
        );
        return ExitCode::from(HARNESS_FAILED);
    }
    #[cfg(feature = "mutants")]
    if let Some(mutant) = arguments.mutant {
        mutant.choose();
    }
    panics::keep();
    let choice = Choice {
        without: arguments.without.iter().copied().collect(),
        skip: arguments.skip.iter().copied().collect(),
    };
    let (seed, trace) = (arguments.seed, arguments.trace.clone());
    let runs = thread::Builder::new().stack_size(STACK);
    let made = runs.spawn(move || run(seed, &choice, trace.as_deref()));
    let report = made.map(thread::JoinHandle::join);
    match report {
        Ok(Ok(Ok(report))) => print(&arguments, &report),
        Ok(Ok(Err(error))) | Err(error) => {
            say(format_args!("jepsen: seed {seed}: {error}"));
            ExitCode::from(HARNESS_FAILED)
        }
        Ok(Err(_)) => {
            say(format_args!("jepsen: seed {seed}: the simulator panicked"));
            for panic in panics::seen() {
                say(panic);
            }
            ExitCode::from(HARNESS_FAILED)
        }
    }
}

#[cfg(feature = "mutants")]
fn mutant(name: &str) -> Result<raftmq::base::Mutant, String> {
    let all = raftmq::base::Mutant::ALL;
    let names = || all.iter().map(|mutant| mutant.name()).collect::<Vec<_>>().join(", ");
    let found = all.iter().find(|mutant| mutant.name() == name).copied();
    found.ok_or_else(|| format!("{name} is none of {}", names()))
}

fn print(arguments: &Simulate, report: &Report) -> ExitCode {
    let Report { findings, planned, happened, trace, simulated } = report;
    let verdict = findings.verdict();
    let happened: Vec<String> =
        happened.iter().map(|(class, count)| format!("{class} {count}")).collect();
    let counts: Vec<String> =
        findings.counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
    let word = match verdict {
        Verdict::True => "true",
        Verdict::False => "false",
        Verdict::Unknown => "unknown",
    };
    let (lines, sum) = trace;
    say(format_args!("seed {}: {word}", arguments.seed));
    say(format_args!(
        "  {}.{} s simulated, trace of {lines} lines, {sum:08x}",
        simulated / 1_000_000,
        simulated / 100_000 % 10
    ));
    say(format_args!("  faults: {}", happened.join(", ")));
    say(format_args!("  counts: {}", counts.join(", ")));
    if verdict == Verdict::True {
        return ExitCode::SUCCESS;
    }
    for fault in planned {
        say(format_args!("  fault {fault}"));
    }
    for violation in &findings.violations {
        say(format_args!("  violated {}: {}", violation.check, violation.what));
    }
    for unknown in &findings.unknown {
        say(format_args!("  unknown: {unknown}"));
    }
    say(format_args!("  again: {}", arguments.command()));
    ExitCode::from(if verdict == Verdict::False { 1 } else { 2 })
}

impl Simulate {
    /// The command that repeats this run.
    fn command(&self) -> String {
        let mut text = format!("cargo run -p jepsen -- simulate --seed {}", self.seed);
        for class in &self.without {
            text.push_str(&format!(" --without {class}"));
        }
        for number in &self.skip {
            text.push_str(&format!(" --skip {number}"));
        }
        text
    }
}
