//! `raftmq topic …`

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use futures::StreamExt;
use serde_json::json;

use crate::base::{Millis, TopicName};
use crate::client::{TopicInfo, TopicShape};

use super::Ask;
use super::failure::Failure;
use super::output::{Output, Table};
use super::pages::{self, Part};

#[derive(Debug, Subcommand)]
pub(super) enum Topic {
    /// Create topics. Creating one again with the same values changes nothing.
    Create {
        #[arg(value_name = "NAME", value_parser = topic_name, required_unless_present = "from")]
        names: Vec<TopicName>,
        /// A file with further names, one on each line; - is standard input.
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
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
        /// How long its messages can be read, such as 30m or 12h: at most as long as the broker
        /// group keeps its log. By default that long.
        #[arg(long, value_name = "TIME")]
        keep: Option<Millis>,
        #[command(flatten)]
        ask: Ask,
    },
    /// List topics, sorted by name.
    List {
        #[command(flatten)]
        part: Part,
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
    /// Give a topic more queues. Message groups stay in the queues that they have.
    Grow {
        #[arg(value_parser = topic_name)]
        name: TopicName,
        /// How many it is to have; at least as many as it has, 1024 at most.
        #[arg(long, value_name = "N")]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
        queues: u32,
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
    Priority,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Fifo => "fifo",
            Self::Delay => "delay",
            Self::Transaction => "transaction",
            Self::Priority => "priority",
        }
    }
}

pub(super) fn topic_name(text: &str) -> Result<TopicName, String> {
    TopicName::new(text).map_err(|error| error.to_string())
}

impl Topic {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        match self {
            Self::Create { mut names, from, queues, kind, broker_groups, keep, ask } => {
                let kinds = [kind.name().to_owned()];
                let keep = keep.map_or(0, Millis::get);
                let broker_groups = &broker_groups;
                let shape = TopicShape { queues, kinds: &kinds, broker_groups, keep };
                if let ([name], None) = (names.as_slice(), &from) {
                    let client = ask.client().await?;
                    let topic = client.create_topic(name, shape).await?;
                    output.show(&topic, |topic| list(std::slice::from_ref(topic)));
                    output.differences(&topic.differences);
                    return Ok(());
                }
                if let Some(path) = from {
                    names.extend(read_names(&path)?);
                }
                create_all(&ask, names, shape, output).await?;
            }
            Self::List { part, ask } => {
                let client = ask.client().await?;
                let page = async |after, limit| client.topics(after, limit).await;
                let name = |topic: &TopicInfo| topic.name.clone();
                pages::list(output, part, page, (list, name)).await?;
            }
            Self::Describe { name, ask } => {
                let topic = ask.client().await?.topic(&name).await?;
                output.show(&topic, queues);
                output.differences(&topic.differences);
            }
            Self::Grow { name, queues, ask } => {
                let topic = ask.client().await?.grow_topic(&name, queues).await?;
                output.show(&topic, |topic| list(std::slice::from_ref(topic)));
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

/// Topics printed at a time, at most.
const PRINTED: usize = 100;

/// Over one connection; ends at the first that fails.
async fn create_all(
    ask: &Ask,
    names: Vec<TopicName>,
    shape: TopicShape<'_>,
    output: &Output,
) -> Result<(), Failure> {
    let client = ask.client().await?;
    let mut pages = output.pages();
    let created = client.create_topics(futures::stream::iter(names), shape);
    let mut created = std::pin::pin!(created.enumerate().ready_chunks(PRINTED));
    while let Some(chunk) = created.next().await {
        let mut failed = None;
        let mut topics = Vec::new();
        for (before, (name, created)) in chunk {
            match created {
                Ok(topic) => topics.push(topic),
                Err(source) => {
                    let name = name.to_string();
                    failed = Some(Failure::TopicOfMany { name, before, source });
                    break;
                }
            }
        }
        pages.add(&topics, list(&topics));
        for topic in &topics {
            output.differences(&topic.differences);
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
    }
    pages.end();
    Ok(())
}

/// One on each line; empty lines are passed over.
fn read_names(path: &Path) -> Result<Vec<TopicName>, Failure> {
    let read = |source| Failure::Read { path: path.to_owned(), source };
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).map_err(read)?
    } else {
        std::fs::read_to_string(path).map_err(read)?
    };
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, name)| !name.is_empty());
    let name = |(line, name): (usize, &str)| {
        topic_name(name).map_err(|why| Failure::Line { path: path.to_owned(), line, why })
    };
    lines.map(name).collect()
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
