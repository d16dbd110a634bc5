//! `raftmq serve`: one node, in this process.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, Sources};
use crate::node::{self, Load, NodeError};

use super::failure::Failure;
use super::output::Output;

/// What the process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// A node with replicas, and a name server among them.
    Node,
    /// Only a name server: brokers that list it in broker.name_servers register with it, and it
    /// tells clients where topics are. It keeps no data.
    NameServer,
}

/// A flag (--set) wins over an environment variable (RAFTMQ_SECTION__KEY), which wins over the
/// file. `raftmq config example` prints a file with all settings.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// The configuration file. A name server reads [listen] and [tls] only, and may do without.
    #[arg(long, value_name = "FILE", required_unless_present = "role")]
    #[arg(required_if_eq("role", "node"))]
    config: Option<PathBuf>,
    /// What to be.
    #[arg(long, value_enum, default_value_t = Role::Node)]
    role: Role,
    /// A setting that wins over the file; may be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    settings: Vec<String>,
    /// Only check the configuration.
    #[arg(long)]
    check: bool,
    /// End when this process, which must be the parent, has ended in whatever way.
    #[arg(long, hide = true, value_name = "PID")]
    with_parent: Option<u32>,
    /// When this node leads, measure log and machine; what `raftmq bench raft` starts.
    #[arg(long, hide = true, value_name = "SIZE,IN_FLIGHT,BATCH,SECONDS")]
    load: Option<Load>,
}

/// What is logged unless `RUST_LOG` says otherwise.
const LOG_DEFAULT: &str = "info,openraft=error";

impl Serve {
    pub(super) fn run(self, output: &Output) -> Result<(), Failure> {
        let file = self.config.clone().unwrap_or_default();
        let sources = Sources::gather(&file, &self.settings)?;
        match self.role {
            Role::Node => {
                let config = sources.load()?;
                if self.check {
                    checked(&config, output);
                    return Ok(());
                }
                let load = self.load;
                self.run_here(node::run(config, load))
            }
            Role::NameServer => {
                let config = sources.load_name_server()?;
                if self.check {
                    let value = json!({ "role": "name-server" });
                    output.done(&value, "the configuration of a name server is valid");
                    return Ok(());
                }
                self.run_here(node::run_name_server(config))
            }
        }
    }

    fn run_here(self, work: impl Future<Output = Result<(), NodeError>>) -> Result<(), Failure> {
        if let Some(parent) = self.with_parent {
            node::end_with_parent(parent)?;
        }
        log_to_stderr();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(Failure::Runtime)?;
        let ended = runtime.block_on(work);
        // Work on other threads that still waits has nobody left to answer to.
        runtime.shutdown_background();
        Ok(ended?)
    }
}

fn checked(config: &Config, output: &Output) {
    let members: Vec<u64> = config.members.iter().map(|member| member.node.get()).collect();
    let value = json!({
        "node": config.node.get(),
        "profile": config.profile.name(),
        "data": config.data,
        "members": members,
    });
    let (node, profile) = (config.node, config.profile.name());
    let voters = members.len();
    output.done(
        &value,
        format_args!("the configuration is valid: node {node} of {voters}, profile {profile}"),
    );
}

fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_DEFAULT));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
