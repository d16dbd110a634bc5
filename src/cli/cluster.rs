//! `raftmq cluster …`

use clap::Subcommand;

use crate::client::{BrokerGroupStatus, MembersChange, NodeStatus};

use super::Ask;
use super::failure::Failure;
use super::members::{Patience, Where};
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
    /// Take a node into every broker group: first as a learner, then, once it has caught up, as a
    /// voter. Start it before, with an empty directory and the others in its configuration.
    AddNode {
        /// The id of the new node, one that no node had before.
        #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
        node: u64,
        #[command(flatten)]
        place: Where,
        #[command(flatten)]
        patience: Patience,
    },
    /// Take a node out of every broker group; one that leads hands over first. Stop it afterwards.
    RemoveNode {
        #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
        node: u64,
        #[command(flatten)]
        patience: Patience,
    },
    /// Put a new node in the place of one that may be dead: the new one catches up, and both
    /// change in one step.
    ReplaceNode {
        #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
        old: u64,
        /// The id of the new node, one that no node had before.
        #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
        new: u64,
        #[command(flatten)]
        place: Where,
        #[command(flatten)]
        patience: Patience,
    },
    /// Hand the leadership to a node. With several broker groups, leaders are spread over the
    /// nodes again after a while where one leads two more than another.
    TransferLeader {
        #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
        to: u64,
        /// Of which broker groups, separated by commas; of all by default.
        #[arg(long = "broker-group", value_name = "NAME", value_delimiter = ',')]
        broker_groups: Vec<String>,
        #[command(flatten)]
        patience: Patience,
    },
}

impl Cluster {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        match self {
            Self::Status { units, ask } => {
                let groups = ask.client().await?.cluster_status(units).await?;
                output.show(groups.as_slice(), status);
                if !output.is_json() {
                    for group in &groups {
                        remarks(group, output);
                    }
                }
                Ok(())
            }
            Self::AddNode { node, place, patience } => {
                patience.change(MembersChange::Add(place.node(node)), output).await
            }
            Self::RemoveNode { node, patience } => {
                patience.change(MembersChange::Remove(node), output).await
            }
            Self::ReplaceNode { old, new, place, patience } => {
                let new = place.node(new);
                patience.change(MembersChange::Replace { old, new }, output).await
            }
            Self::TransferLeader { to, broker_groups, patience } => {
                patience.transfer(to, &broker_groups, output).await
            }
        }
    }
}

fn status(groups: &[BrokerGroupStatus]) -> Table {
    let head = [
        "GROUP",
        "NODE",
        "ROLE",
        "VOTER",
        "TERM",
        "FLOOR",
        "LAST",
        "COMMITTED",
        "APPLIED",
        "BEHIND",
        "STATE HASH",
        "GRPC",
    ];
    let row = |group: &BrokerGroupStatus, node: &NodeStatus| {
        [
            group.group.clone(),
            node.node.to_string(),
            node.role.clone(),
            if node.voter { "yes" } else { "no" }.to_owned(),
            node.term.to_string(),
            or_dash(node.floor),
            or_dash(node.last),
            or_dash(node.committed),
            or_dash(node.applied),
            or_dash(node.behind_entries),
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
    output.note(format_args!("an OK of {} stands for {}", group.group, group.durability));
    for node in &group.nodes {
        if let (Some(entries), Some(bytes), false) =
            (node.behind_entries, node.behind_bytes, node.voter)
        {
            output.note(format_args!(
                "node {} of {} is a learner, {entries} entries and {bytes} bytes of log behind",
                node.node, group.group
            ));
        }
        if let Some(error) = &node.error {
            output.note(format_args!("node {}: {error}", node.node));
        }
    }
}
