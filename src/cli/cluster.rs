//! `raftmq cluster …`

use clap::Subcommand;

use crate::client::{BrokerGroupStatus, NodeStatus};

use super::Ask;
use super::failure::Failure;
use super::output::{Output, Table, or_dash};

#[derive(Debug, Subcommand)]
pub(super) enum Cluster {
    /// Show each broker group's nodes: who leads, how far each is, whether states are equal.
    Status {
        /// Also read and hash every queue unit on every node.
        #[arg(long)]
        units: bool,
        #[command(flatten)]
        ask: Ask,
    },
}

impl Cluster {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let Self::Status { units, ask } = self;
        let groups = ask.client().await?.cluster_status(units).await?;
        output.show(groups.as_slice(), status);
        if !output.is_json() {
            for group in &groups {
                remarks(group, output);
            }
        }
        Ok(())
    }
}

fn status(groups: &[BrokerGroupStatus]) -> Table {
    let head =
        ["GROUP", "NODE", "ROLE", "TERM", "LAST", "COMMITTED", "APPLIED", "STATE HASH", "GRPC"];
    let row = |group: &BrokerGroupStatus, node: &NodeStatus| {
        [
            group.group.clone(),
            node.node.to_string(),
            node.role.clone(),
            node.term.to_string(),
            or_dash(node.last),
            or_dash(node.committed),
            or_dash(node.applied),
            or_dash(node.state_hash.as_ref()),
            node.grpc.clone(),
        ]
    };
    let rows = groups.iter().flat_map(|group| group.nodes.iter().map(move |node| row(group, node)));
    Table::new(head, rows)
}

fn remarks(group: &BrokerGroupStatus, output: &Output) {
    if let Some(index) = group.audit_index {
        output.note(format_args!("state hashes of {} are those at index {index}", group.group));
    }
    for node in &group.nodes {
        if let Some(error) = &node.error {
            output.note(format_args!("node {}: {error}", node.node));
        }
    }
}
