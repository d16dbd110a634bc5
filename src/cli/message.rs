//! `raftmq message …`

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, Subcommand};
use futures::StreamExt;
use serde::Serialize;

use crate::base::{GroupName, TopicName};
use crate::client::{
    Draft, PRIORITY_MAX, Producer, Received, SQL_PREFIX, SentMessage, SimpleConsumer, Take,
};

use super::Ask;
use super::delayed::{Recall, Reschedule, When};
use super::failure::Failure;
use super::find::{At, Get, Query};
use super::group::{group_name, millis};
use super::listen::Listen;
use super::output::{Output, Table, or_dash};
use super::pull::Pull;
use super::topic::topic_name;

#[derive(Debug, Subcommand)]
pub(super) enum Message {
    /// Send a message, and print where it went.
    Send(Send),
    /// Take a delayed message back, so that it is never delivered.
    Recall(Recall),
    /// Deliver a delayed message at another time; now, without one.
    Reschedule(Reschedule),
    /// Receive messages of a consumer group. Without --ack they come again after --invisible.
    Receive(Receive),
    /// Listen as one instance of a consumer group that sees every message of a topic.
    Listen(Listen),
    /// Read a queue from an offset on. Nothing is hidden from anybody, and nothing is kept of it.
    Pull(Pull),
    /// Find a message by its id, or by topic, queue and offset.
    Get(Get),
    /// Find messages by a key.
    Query(Query),
    /// Show the first message of each queue that was visible at a time or later.
    At(At),
}

#[derive(Debug, Args)]
pub(super) struct Send {
    #[arg(long, value_parser = topic_name)]
    topic: TopicName,
    /// The content, as text.
    #[arg(long, required_unless_present = "body_file", conflicts_with = "body_file")]
    body: Option<String>,
    /// The content, from a file; - is standard input.
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// What consumers can filter by.
    #[arg(long)]
    tag: Option<String>,
    /// What the message can be found by; may be given several times.
    #[arg(long = "key", value_name = "KEY")]
    keys: Vec<String>,
    /// A property; may be given several times.
    #[arg(long = "property", value_name = "NAME=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,
    /// Messages of one message group come in the order in which they were sent; for fifo topics.
    #[arg(long, value_name = "GROUP")]
    message_group: Option<String>,
    /// What is higher goes first; for priority topics.
    #[arg(long, value_name = "N", conflicts_with = "message_group")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=i64::from(PRIORITY_MAX)))]
    priority: Option<u32>,
    /// Send the same content so many times, one request each, several of them under way at a time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Debug, Args)]
pub(super) struct Receive {
    #[arg(long, value_parser = topic_name)]
    topic: TopicName,
    #[arg(long, value_parser = group_name)]
    group: GroupName,
    /// Tags to receive, such as "red || blue"; * is everything.
    #[arg(long, value_name = "TAGS", default_value = "*", conflicts_with = "sql")]
    filter: String,
    /// An SQL92 condition on properties instead, such as "price > 10 AND TAGS IN ('red', 'blue')".
    #[arg(long, value_name = "CONDITION")]
    sql: Option<String>,
    /// How many messages at most.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
    /// Acknowledge what was received, so that it does not come again.
    #[arg(long)]
    ack: bool,
    /// How long to wait until there is something.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = millis)]
    wait: u64,
    /// How long the messages stay hidden from other consumers; 10s to 12h.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = millis)]
    invisible: u64,
    #[command(flatten)]
    ask: Ask,
}

/// Requests of one command that are under way at a time.
const IN_FLIGHT: usize = 64;
/// One receive asks for at most so many, by the protocol.
const BATCH_MAX: usize = 32;
/// One poll lasts at most so long, by the protocol.
const POLL_MAX: Duration = Duration::from_secs(20);

fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

impl Message {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        match self {
            Self::Send(send) => send.run(output).await,
            Self::Receive(receive) => receive.run(output).await,
            Self::Recall(recall) => recall.run(output).await,
            Self::Reschedule(reschedule) => reschedule.run(output).await,
            Self::Listen(listen) => listen.run(output).await,
            Self::Pull(pull) => pull.run(output).await,
            Self::Get(get) => get.run(output).await,
            Self::Query(query) => query.run(output).await,
            Self::At(at) => at.run(output).await,
        }
    }
}

impl Send {
    async fn run(self, output: &Output) -> Result<(), Failure> {
        let body = match (self.body, &self.body_file) {
            (Some(text), _) => Bytes::from(text),
            (None, Some(path)) => read_body(path)?,
            (None, None) => Bytes::new(),
        };
        let draft = Draft {
            message_group: self.message_group,
            priority: self.priority,
            tag: self.tag,
            keys: self.keys,
            properties: self.properties,
            ..Draft::new(self.topic, body)
        };
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        let producer = Producer::connect(&self.ask.endpoint, count.min(IN_FLIGHT)).await?;
        let requests = futures::stream::repeat(vec![draft]).take(count);
        let mut answers = std::pin::pin!(producer.pipeline_at(requests, self.when.deliver_at()));
        let mut sent = Vec::new();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(receipts) => sent.extend(receipts),
                Err(error) => {
                    // What was sent before stays sent, and the caller has to know.
                    if !sent.is_empty() {
                        output.show(sent.as_slice(), receipts);
                    }
                    return Err(error.into());
                }
            }
        }
        output.show(sent.as_slice(), receipts);
        Ok(())
    }
}

fn read_body(path: &Path) -> Result<Bytes, Failure> {
    let mut content = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().read_to_end(&mut content)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut content))
    };
    read.map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    Ok(content.into())
}

fn receipts(sent: &[SentMessage]) -> Table {
    if sent.iter().any(|sent| sent.recall_handle.is_some()) {
        let row =
            |sent: &SentMessage| [sent.message_id.clone(), or_dash(sent.recall_handle.as_ref())];
        return Table::new(["MESSAGE ID", "RECALL HANDLE"], sent.iter().map(row));
    }
    let row = |sent: &SentMessage| [sent.message_id.clone(), sent.offset.to_string()];
    Table::new(["MESSAGE ID", "OFFSET"], sent.iter().map(row))
}

impl Receive {
    async fn run(self, output: &Output) -> Result<(), Failure> {
        let client = self.ask.client().await?;
        let deadline = Instant::now() + Duration::from_millis(self.wait);
        let max = usize::try_from(self.max).unwrap_or(usize::MAX);
        let take = Take {
            topic: self.topic,
            group: self.group,
            filter: self.sql.map_or(self.filter, |condition| format!("{SQL_PREFIX}{condition}")),
            max: 1,
            invisible: Duration::from_millis(self.invisible),
            wait: Duration::ZERO,
        };
        let consumer = SimpleConsumer::new(client, take).await?;
        let mut received = Vec::new();
        while received.len() < max {
            let left = deadline.saturating_duration_since(Instant::now());
            let batch = (max - received.len()).min(BATCH_MAX);
            let batch = u32::try_from(batch).expect("at most 32");
            // Once there is something, only what is ready is wanted.
            let wait = if received.is_empty() { left.min(POLL_MAX) } else { Duration::ZERO };
            let batch = consumer.receive_up_to(batch, wait).await?;
            if batch.is_empty() && (!received.is_empty() || left <= POLL_MAX) {
                break;
            }
            if self.ack && !batch.is_empty() {
                consumer.ack(&batch).await?;
            }
            received.extend(batch);
        }
        show(output, &received);
        Ok(())
    }
}

pub(super) fn show(output: &Output, received: &[Received]) {
    let shown: Vec<Shown<'_>> = received.iter().map(Shown::from).collect();
    output.show(shown.as_slice(), table);
}

/// A received message with its body as far as it is text.
#[derive(Debug, Serialize)]
pub(super) struct Shown<'a> {
    #[serde(flatten)]
    message: &'a Received,
    /// The body when it is UTF-8, otherwise absent.
    body: Option<&'a str>,
    /// The body in hexadecimal when it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_hex: Option<String>,
}

impl<'a> From<&'a Received> for Shown<'a> {
    fn from(message: &'a Received) -> Self {
        let body = std::str::from_utf8(&message.body).ok();
        let hex = || message.body.iter().map(|byte| format!("{byte:02x}")).collect();
        let body_hex = body.is_none().then(hex);
        Self { message, body, body_hex }
    }
}

pub(super) fn table(received: &[Shown<'_>]) -> Table {
    let row = |shown: &Shown<'_>| {
        let message = shown.message;
        let properties = message.properties.iter().map(|(name, value)| format!("{name}={value}"));
        [
            message.message_id.clone(),
            message.queue.to_string(),
            message.offset.to_string(),
            message.attempt.to_string(),
            or_dash(message.tag.as_ref()),
            message.keys.join(" "),
            properties.collect::<Vec<_>>().join(" "),
            shown.body.map_or_else(|| format!("{} bytes", message.body.len()), str::to_owned),
        ]
    };
    let head = ["MESSAGE ID", "QUEUE", "OFFSET", "ATTEMPT", "TAG", "KEYS", "PROPERTIES", "BODY"];
    Table::new(head, received.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_shown_as_text_or_in_hexadecimal() {
        let mut message = Received {
            message_id: "id".into(),
            topic: "t".into(),
            tag: None,
            message_group: None,
            priority: None,
            keys: vec![],
            properties: std::collections::BTreeMap::new(),
            body: Bytes::from_static(b"text"),
            queue: 0,
            offset: 0,
            attempt: 1,
            stored: 0,
            handle: "h".into(),
        };
        let json = |message: &Received| serde_json::to_value(Shown::from(message)).unwrap();
        assert_eq!(json(&message)["body"], "text");
        assert_eq!(json(&message).get("body_hex"), None);
        message.body = Bytes::from_static(b"\xff\x00");
        assert_eq!(json(&message)["body_hex"], "ff00");
        assert!(json(&message)["body"].is_null());
    }

    #[test]
    fn a_property_keeps_further_equal_signs() {
        assert_eq!(property("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(property("=b").is_err());
    }
}
