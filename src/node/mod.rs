//! One running node: everything that the rooms offer, put together from a [`Config`].
//!
//! What it is: the composition root. It starts every long task, owns it, and awaits its end.
//! Promises: the first failure wins and is what [`run()`] answers; a told stop hands leadership over
//! first and leaves nothing running; two processes never share a data directory.
//! Never: a decision about messages, or a loop that nobody awaits.
//! Start reading at `run` for the order of starting and stopping.

pub mod certificate;
mod error;
mod gauges;
mod handles;
mod hosted;
mod index;
mod live;
mod load;
mod lock;
mod names;
mod parent;
mod peers;
mod readiness;
mod run;
mod scrub;
mod signals;
mod spread;
mod tasks;
mod tls;

pub use error::NodeError;
pub use handles::take_all_handles;
pub use load::{Figures, Load, REPORT, Tally};
pub use names::run_name_server;
pub use parent::end_with_parent;
pub use run::run;

use std::path::PathBuf;

use crate::base::BrokerGroupName;
use crate::command::Retention;
use crate::config::Config;
use crate::{broker, commit_log, machine, raft};

/// Queues of a topic that a client's first use creates.
const QUEUES_ON_USE: u32 = 8;

/// What clients see as the broker's name: stable, and another for each node.
fn broker_name(config: &Config) -> String {
    format!("node-{}", config.node)
}

fn raft_options(config: &Config, name: &BrokerGroupName) -> raft::Options {
    let members = config.members.iter().map(|member| raft::Member {
        node: member.node,
        peer: member.peer.to_string(),
        grpc: member.grpc.to_string(),
    });
    let defaults = raft::Options::new(config.node, replica_dir(config, name), members.collect());
    raft::Options {
        group: name.id(),
        timing: raft::Timing {
            heartbeat: config.raft.heartbeat,
            election_min: config.raft.election_min,
            election_max: config.raft.election_max,
            ..defaults.timing
        },
        log: commit_log::Options {
            segment_bytes: config.log.segment.get(),
            ..commit_log::Options::default()
        },
        machine: machine::Options {
            checkpoint_bytes: config.log.checkpoint.get(),
            ..machine::Options::default()
        },
        admission: config.raft.under_way,
        reserve: config.log.reserve,
        durability: config.durability.get(name).copied(),
        ..defaults
    }
}

/// Each broker group that the node hosts has its own directory.
fn replica_dir(config: &Config, name: &BrokerGroupName) -> PathBuf {
    config.data.join(name.as_str())
}

fn broker_options(config: &Config) -> broker::Options {
    broker::Options {
        node: config.node,
        create_on_use: config.create_on_use,
        queues_on_use: QUEUES_ON_USE,
        store_host: live::store_host(config),
        retention: Retention {
            stride: config.retention.stride.get(),
            time: config.retention.time,
            bytes: config.retention.bytes.get(),
            moved_max: config.retention.under_way.get(),
        },
        delay_max: config.delay_max,
        checks: broker::CheckRule {
            first: config.transactions.first_check,
            interval: config.transactions.check_interval,
            max: config.transactions.checks_max,
        },
    }
}
