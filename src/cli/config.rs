//! `raftmq config …`

use clap::Subcommand;
use serde_json::json;

use crate::config::EXAMPLE;

use super::failure::Failure;
use super::output::Output;

#[derive(Debug, Subcommand)]
pub(super) enum Config {
    /// Print a valid configuration file with a comment at each setting.
    Example,
}

impl Config {
    pub(super) fn run(self, output: &Output) -> Result<(), Failure> {
        let Self::Example = self;
        output.done(&json!({ "file": EXAMPLE }), EXAMPLE.trim_end());
        Ok(())
    }
}
