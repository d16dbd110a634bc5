//! The simulator: a whole cluster and its clients in one thread, on a network, disks and clocks
//! that one seed decides, with everything going wrong that may.
//!
//! What it is: the real `commit_log`, `machine`, `raft` and `broker` of the library, run by hosts
//! of its own. Clients call the broker; peers speak their real protocol over the simulated network.
//! Promises: one seed is one run, byte for byte.
//! Never: a thread, a real file, socket or clock inside a run; a second run in one process.
//! Start reading at `run`, then `plan`, `world`, `net`.

mod ambient;
mod books;
mod clients;
mod disk;
mod faults;
pub(crate) mod mutants;
mod net;
mod node;
mod panics;
mod plan;
mod random;
mod run;
mod summary;
pub(crate) mod sweep;
mod trace;
mod verdict;
mod watch;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use clap::Args;

use self::plan::Class;
use self::run::{Choice, Report, run};
use self::summary::Summary;
use crate::checkers::Verdict;
use crate::say;

/// How a build like this one is made.
const FEATURES: &str = if cfg!(feature = "mutants") { " --features mutants" } else { "" };
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
    /// Print what came of it as one line of JSON.
    #[arg(long)]
    json: bool,
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
    let summary = Summary::of(arguments.seed, report, arguments.command());
    if arguments.json {
        say(serde_json::to_string(&summary).expect("a summary is text and numbers"));
    } else {
        say(&summary);
    }
    ExitCode::from(match report.findings.verdict() {
        Verdict::True => 0,
        Verdict::False => 1,
        Verdict::Unknown => 2,
    })
}

impl Simulate {
    /// The command that repeats this run.
    fn command(&self) -> String {
        let mut text = format!("cargo run -p jepsen{} -- simulate --seed {}", FEATURES, self.seed);
        for class in &self.without {
            text.push_str(&format!(" --without {class}"));
        }
        for number in &self.skip {
            text.push_str(&format!(" --skip {number}"));
        }
        #[cfg(feature = "mutants")]
        if let Some(mutant) = self.mutant {
            text.push_str(&format!(" --mutant {}", mutant.name()));
        }
        text
    }
}
