//! `raftmq inspect …`: reads the log of a stopped node.
use std::path::PathBuf;

use clap::Subcommand;

use super::failure::Failure;
use super::output::Output;

#[derive(Debug, Subcommand)]
pub(super) enum Inspect {
    /// List the entries of a log.
    Log {
        /// The node's data directory, or the log's own.
        dir: PathBuf,
        /// The first index to show.
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        from: u64,
        /// How many entries at most.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Show what each entry says.
        #[arg(long)]
        commands: bool,
    },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum InspectError {}

impl Inspect {
    pub(super) fn run(self, _output: &Output) -> Result<(), Failure> {
        Ok(())
    }
}
