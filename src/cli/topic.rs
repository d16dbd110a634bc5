//! `raftmq topic …`

use std::collections::BTreeSet;

use clap::{Subcommand, ValueEnum};
use serde_json::json;

use crate::base::TopicName;
use crate::client::TopicInfo;

use super::Ask;
use super::failure::Failure;
use super::output::{Output, Table};

#[derive(Debug, Subcommand)]
pub(super) enum Topic {
    /// Create a topic. Creating it again with the same values changes nothing.
    Create {
        #[arg(value_parser = topic_name)]
        name: TopicName,
        /// How many queues; 1 to 1024.
        #[arg(long, value_name = "N", default_value_t = 8)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
        queues: u32,
        /// What kind of messages it takes.
        #[arg(long = "type", value_name = "TYPE", value_enum, default_value_t = Kind::Normal)]
        kind: Kind,
        /// Where to create it: broker groups, separated by commas. By default in all.
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        broker_groups: Vec<String>,
        #[command(flatten)]
        ask: Ask,
    },
    /// List all topics.
    List {
        #[command(flatten)]
        ask: Ask,
    },
    /// Show the queues of a topic in each broker group, and how the broker groups differ.
    Describe {
        #[arg(value_parser = topic_name)]
        name: TopicName,
        #[command(flatten)]
        ask: Ask,
    },
    /// Delete a topic with all of its messages.
    Delete {
        #[arg(value_parser = topic_name)]
        name: TopicName,
        #[command(flatten)]
        ask: Ask,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    Normal,
    Fifo,
    Delay,
    Transaction,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Fifo => "fifo",
            Self::Delay => "delay",
            Self::Transaction => "transaction",
        }
    }
}

pub(super) fn topic_name(text: &str) -> Result<TopicName, String> {
    TopicName::new(text).map_err(|error| error.to_string())
}

impl Topic {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        match self {
            Self::Create { name, queues, kind, broker_groups, ask } => {
                let (kinds, client) = ([kind.name().to_owned()], ask.client().await?);
                let topic = client.create_topic(&name, queues, &kinds, &broker_groups).await?;
                output.show(&topic, |topic| list(std::slice::from_ref(topic)));
                output.differences(&topic.differences);
            }
            Self::List { ask } => {
                let topics = ask.client().await?.topics().await?;
                output.show(topics.as_slice(), list);
            }
            Self::Describe { name, ask } => {
                let topic = ask.client().await?.topic(&name).await?;
                output.show(&topic, queues);
                output.differences(&topic.differences);
            }
            Self::Delete { name, ask } => {
                ask.client().await?.delete_topic(&name).await?;
                output.done(
                    &json!({ "deleted": name.as_str() }),
                    format_args!("topic {name} is deleted"),
                );
            }
        }
        Ok(())
    }
}

fn list(topics: &[TopicInfo]) -> Table {
    let row = |topic: &TopicInfo| {
        let queues = || topic.parts.iter().flat_map(|part| &part.queues);
        let messages: u64 = queues().map(|queue| queue.end - queue.start).sum();
        let kinds: BTreeSet<&str> =
            topic.parts.iter().flat_map(|part| &part.kinds).map(String::as_str).collect();
        let places: Vec<_> = topic.parts.iter().map(|part| part.broker_group.as_str()).collect();
        [
            topic.name.clone(),
            kinds.into_iter().collect::<Vec<_>>().join(","),
            queues().count().to_string(),
            messages.to_string(),
            places.join(","),
        ]
    };
    let head = ["TOPIC", "TYPE", "QUEUES", "MESSAGES", "BROKER GROUPS"];
    Table::new(head, topics.iter().map(row))
}

fn queues(topic: &TopicInfo) -> Table {
    let all =
        topic.parts.iter().flat_map(|part| part.queues.iter().map(move |queue| (part, queue)));
    let rows = all.map(|(part, queue)| {
        let messages = queue.end - queue.start;
        [
            topic.name.clone(),
            part.broker_group.clone(),
            queue.queue.to_string(),
            queue.start.to_string(),
            queue.end.to_string(),
            messages.to_string(),
        ]
    });
    Table::new(["TOPIC", "BROKER GROUP", "QUEUE", "START", "END", "MESSAGES"], rows)
}
