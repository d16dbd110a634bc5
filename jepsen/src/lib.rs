//! Proofs that take too long for a test: `prove NAME` runs one in full and adds a line to
//! `LEDGER.md`, with the commit and the figures.
//!
//! What it is: the long tier of what `cargo test` shows in a small form.
//! Promises: a line stands for a run that came to its end, good or bad; figures of speed are of a
//! release build.
//! Never: a link to the library under test, but for the simulator, which runs it in a world of its
//! own. All else drives the program as anybody can.

mod backlog;
mod bench;
mod bodies;
mod checkers;
mod cluster;
mod delays;
mod failover;
mod fill;
mod find;
mod history;
mod idle;
mod layer;
mod ledger;
mod memory;
mod overload;
mod recovery;
mod simulate;
mod speed;
mod stories;
mod topics;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

#[derive(Debug, Parser)]
#[command(name = "jepsen", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one proof in full, and add a line to jepsen/LEDGER.md.
    Prove {
        name: Proof,
        /// How many seeds `seeds` runs.
        #[arg(long, default_value_t = 2000)]
        count: u64,
        /// Run it without adding a line.
        #[arg(long)]
        dry: bool,
    },
    /// Run a cluster and its clients in a simulated world that one seed decides.
    Simulate(simulate::Simulate),
    /// Run seeds on mutants of the library until each is caught.
    #[cfg(feature = "mutants")]
    Hunt {
        /// All of them, when none is named.
        mutants: Vec<String>,
        /// Seeds that are tried on each.
        #[arg(long)]
        seeds: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Proof {
    /// The speed table: disk, log and machine alone, and the way over gRPC.
    Speed,
    /// Every official client, ten leader kills each.
    Clients,
    /// Every kind of message through every official client, a leader kill in each cell.
    Kinds,
    /// What a consumer can ask for through every official client, a leader kill in each cell.
    ConsumerMatrix,
    /// The leader is killed twenty times while our own client sends.
    Failover,
    /// Ten thousand topics: their creation, what they cost, and the start with them.
    Topics,
    /// What a node takes of memory, idle and after 10 GiB.
    Memory,
    /// A thousand push consumers that have nothing to do.
    Idle,
    /// Twice the saturating load for a minute.
    Overload,
    /// Messages leave after ten minutes while others come.
    Retention,
    /// Nodes catch up with 3 GiB beside a fixed load.
    CatchUp,
    /// How soon a node is ready after kill -9 with 8 and 16 GiB of log and 10 000 queues.
    Recovery,
    /// A million delayed messages pending, and half a million due at one second.
    Delays,
    /// Ten thousand delayed messages over a minute of leader kills, ten thousand recalls around their
    /// time, and a delay five times as long as retention.
    Timers,
    /// Receiving from 20 million messages that wait, against receiving from a fresh queue.
    Backlog,
    /// One, twenty and a hundred consumers of one queue, a leader kill, and some that leave.
    Consumers,
    /// Finding messages by their keys among ten million.
    Find,
    /// What the layer between a queue and its consumers costs.
    Layer,
    /// Many seeds of the simulator.
    Seeds,
    /// Whether the simulator's checks catch faults that are put into the library.
    Mutants,
}

/// What a proof came to.
struct Outcome {
    good: bool,
    figures: String,
}

/// Why a proof did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("{what} ended {status}; its output:\n{output}")]
    Ended { what: String, status: std::process::ExitStatus, output: String },
    #[error("{what} answered what is not its JSON: {source}")]
    Json { what: String, source: serde_json::Error },
    #[error("{what} did not happen within {seconds} s")]
    Late { what: &'static str, seconds: u64 },
    #[error(
        "the disk has room for {have_gib} GiB besides the {} GiB that stay free, and {need_gib} GiB \
         are needed; make room, or prove this elsewhere",
        fill::SPARE >> 30
    )]
    Room { need_gib: u64, have_gib: u64 },
}

impl Failure {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// The program.
pub fn main() -> ExitCode {
    let (name, count, dry) = match Cli::parse().command {
        Command::Prove { name, count, dry } => (name, count, dry),
        Command::Simulate(arguments) => return simulate::simulate(arguments),
        #[cfg(feature = "mutants")]
        Command::Hunt { mutants, seeds } => {
            return match simulate::mutants::hunt(&mutants, seeds) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(failure) => {
                    say(format_args!("jepsen: {failure}"));
                    ExitCode::FAILURE
                }
            };
        }
    };
    let proved = prove(name, count).and_then(|outcome| {
        if !dry {
            ledger::add(name, &outcome)?;
        }
        Ok(outcome)
    });
    match proved {
        Ok(outcome) => {
            say(format_args!("{name:?}: {}", outcome.figures));
            if outcome.good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(failure) => {
            say(format_args!("jepsen: {failure}"));
            ExitCode::FAILURE
        }
    }
}

fn prove(name: Proof, count: u64) -> Result<Outcome, Failure> {
    match name {
        Proof::Speed => speed::prove(),
        Proof::Clients => stories::prove_clients(),
        Proof::Kinds => stories::prove_kinds(),
        Proof::ConsumerMatrix => stories::prove_consumer_matrix(),
        Proof::Failover => failover::prove(),
        Proof::Topics => topics::prove(),
        Proof::Memory => memory::prove(),
        Proof::Idle => idle::prove(),
        Proof::Overload => overload::prove(),
        Proof::Retention => stories::prove_retention(),
        Proof::CatchUp => stories::prove_catch_up(),
        Proof::Recovery => recovery::prove(),
        Proof::Delays => delays::prove(),
        Proof::Timers => stories::prove_timers(),
        Proof::Backlog => backlog::prove(),
        Proof::Consumers => stories::prove_consumers(),
        Proof::Find => find::prove(),
        Proof::Layer => layer::prove(),
        Proof::Seeds => simulate::sweep::prove(count),
        Proof::Mutants => simulate::mutants::prove(),
    }
}

/// Standard output; a reader that went away is no failure.
fn say(line: impl std::fmt::Display) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The root of the repository.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}
