//! `raftmq topic …`

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
        #[command(flatten)]
        ask: Ask,
    },
    /// List all topics.
    List {
        #[command(flatten)]
        ask: Ask,
    },
    /// Show the queues of a topic.
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
            Self::Create { name, queues, kind, ask } => {
                let kinds = [kind.name().to_owned()];
                let topic = ask.client().await?.create_topic(&name, queues, &kinds).await?;
                output.show(&topic, |topic| list(std::slice::from_ref(topic)));
            }
            Self::List { ask } => {
                let topics = ask.client().await?.topics().await?;
                output.show(topics.as_slice(), list);
            }
            Self::Describe { name, ask } => {
                let topic = ask.client().await?.topic(&name).await?;
                output.show(&topic, queues);
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
        let messages: u64 = topic.queues.iter().map(|queue| queue.end - queue.start).sum();
        [
            topic.name.clone(),
            topic.kinds.join(","),
            topic.queues.len().to_string(),
            messages.to_string(),
        ]
    };
    Table::new(["TOPIC", "TYPE", "QUEUES", "MESSAGES"], topics.iter().map(row))
}

fn queues(topic: &TopicInfo) -> Table {
    let rows = topic.queues.iter().map(|queue| {
        let messages = queue.end - queue.start;
        [
            topic.name.clone(),
            queue.queue.to_string(),
            queue.start.to_string(),
            queue.end.to_string(),
            messages.to_string(),
        ]
    });
    Table::new(["TOPIC", "QUEUE", "START", "END", "MESSAGES"], rows)
}
