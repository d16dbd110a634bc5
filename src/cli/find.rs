//! `raftmq message get`, `query` and `at`: messages found again.

use clap::Args;
use serde::Serialize;

use crate::base::TopicName;
use crate::client::{FindBy, FindKey, FoundMessage, FoundMessages};

use super::Ask;
use super::failure::Failure;
use super::instant::{self, Instant};
use super::output::{Output, Table, or_dash};
use super::topic::topic_name;

/// By id, or by place.
#[derive(Debug, Args)]
pub(super) struct Get {
    /// The message id, as sending the message answered.
    #[arg(value_name = "ID", required_unless_present = "queue")]
    #[arg(conflicts_with_all = ["queue", "offset"])]
    id: Option<String>,
    /// The topic; with an ID all topics are searched without it.
    #[arg(long, value_parser = topic_name, required_unless_present = "id")]
    topic: Option<TopicName>,
    /// The queue of the message, with --offset instead of an ID.
    #[arg(long, value_name = "N", requires = "offset")]
    queue: Option<u32>,
    #[arg(long, value_name = "N", requires = "queue")]
    offset: Option<u64>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Debug, Args)]
pub(super) struct Query {
    #[arg(long, value_parser = topic_name)]
    topic: TopicName,
    /// One of the keys that the message was sent with.
    #[arg(long, value_name = "KEY")]
    key: String,
    /// Only what became visible at this time or later: milliseconds since 1970, a time such as
    /// 2026-11-30T18:00:00Z, or a length of time ago such as 10m.
    #[arg(long, visible_alias = "since", value_name = "TIME", value_parser = instant::parse)]
    from: Option<Instant>,
    /// Only what became visible at this time or earlier.
    #[arg(long, value_name = "TIME", value_parser = instant::parse)]
    to: Option<Instant>,
    /// How many at most: those that were stored last.
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Those that were stored first, in that order.
    #[arg(long)]
    oldest_first: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Debug, Args)]
pub(super) struct At {
    #[arg(long, value_parser = topic_name)]
    topic: TopicName,
    /// Milliseconds since 1970, a time such as 2026-11-30T18:00:00Z, or a length of time ago such
    /// as 10m.
    #[arg(long, value_name = "TIME", value_parser = instant::parse)]
    time: Instant,
    #[command(flatten)]
    ask: Ask,
}

impl Get {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let by = match (self.id, self.topic, self.queue.zip(self.offset)) {
            (_, Some(topic), Some((queue, offset))) => FindBy::Place { topic, queue, offset },
            (id, topic, _) => FindBy::Id { id: id.unwrap_or_default(), topic },
        };
        find(by, &self.ask, output).await
    }
}

impl Query {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let by = FindBy::Key(FindKey {
            topic: self.topic,
            key: self.key,
            from: self.from.map(Instant::millis),
            to: self.to.map(Instant::millis),
            limit: self.limit,
            oldest_first: self.oldest_first,
        });
        find(by, &self.ask, output).await
    }
}

impl At {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let by = FindBy::Time { topic: self.topic, time: self.time.millis() };
        find(by, &self.ask, output).await
    }
}

async fn find(by: FindBy, ask: &Ask, output: &Output) -> Result<(), Failure> {
    let answer = ask.client().await?.find(by).await?;
    output.show(&Shown::from(&answer), table);
    if answer.complete {
        return Ok(());
    }
    let why = incomplete(&answer);
    if answer.messages.is_empty() {
        return Err(Failure::FoundNothingYet { why });
    }
    output.note(format_args!("INCOMPLETE: there may be more: {why}"));
    Ok(())
}

/// Which broker groups did not know everything, and why.
fn incomplete(answer: &FoundMessages) -> String {
    let open = answer.parts.iter().filter(|part| !part.complete);
    let sentences = open.map(|part| {
        let why = part.why.as_deref().unwrap_or("it does not say why");
        match part.complete_until.filter(|until| *until > 0) {
            Some(until) => {
                format!("{} up to {} only: {why}", part.broker_group, instant::text(until))
            }
            None => format!("{}: {why}", part.broker_group),
        }
    });
    sentences.collect::<Vec<_>>().join("; ")
}

/// An answer with bodies as far as they are text.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    complete: bool,
    messages: Vec<ShownMessage<'a>>,
    parts: &'a [crate::client::FoundPart],
}

#[derive(Debug, Serialize)]
struct ShownMessage<'a> {
    #[serde(flatten)]
    message: &'a FoundMessage,
    /// The body when it is UTF-8, otherwise absent.
    body: Option<&'a str>,
    /// The body in hexadecimal when it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_hex: Option<String>,
}

impl<'a> From<&'a FoundMessages> for Shown<'a> {
    fn from(answer: &'a FoundMessages) -> Self {
        let shown = |message: &'a FoundMessage| {
            let bytes = message.content.as_ref().map(|content| &content.body);
            let body = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
            let hex =
                |bytes: &bytes::Bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let body_hex = if body.is_none() { bytes.map(hex) } else { None };
            ShownMessage { message, body, body_hex }
        };
        Self {
            complete: answer.complete,
            messages: answer.messages.iter().map(shown).collect(),
            parts: &answer.parts,
        }
    }
}

fn table(answer: &Shown<'_>) -> Table {
    let row = |shown: &ShownMessage<'_>| {
        let message = shown.message;
        let content = message.content.as_ref();
        let properties = content.iter().flat_map(|content| &content.properties);
        let properties: Vec<_> =
            properties.map(|(name, value)| format!("{name}={value}")).collect();
        let keys = content.map(|content| content.keys.join(" ")).unwrap_or_default();
        let size = || content.map_or_else(String::new, |one| format!("{} bytes", one.body.len()));
        let state = match message.due {
            Some(due) => format!("{} until {}", message.state, instant::text(due)),
            None => message.state.to_owned(),
        };
        [
            message.message_id.clone(),
            message.topic.clone(),
            message.broker_group.clone(),
            or_dash(message.queue),
            or_dash(message.offset),
            state,
            or_dash(message.stored.map(instant::text)),
            or_dash(content.map(|content| instant::text(content.born))),
            or_dash(content.and_then(|content| content.tag.as_ref())),
            keys,
            properties.join(" "),
            shown.body.map_or_else(size, str::to_owned),
        ]
    };
    let head = [
        "MESSAGE ID",
        "TOPIC",
        "BROKER GROUP",
        "QUEUE",
        "OFFSET",
        "STATE",
        "STORED",
        "BORN",
        "TAG",
        "KEYS",
        "PROPERTIES",
        "BODY",
    ];
    Table::new(head, answer.messages.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::FoundPart;

    #[test]
    fn what_is_incomplete_is_said_with_the_reason() {
        let part = |broker_group: &str, until, why: Option<&str>| FoundPart {
            broker_group: broker_group.to_owned(),
            complete: why.is_none(),
            complete_until: until,
            why: why.map(str::to_owned),
        };
        let parts = vec![
            part("a", Some(5), None),
            part("b", Some(1_000), Some("7 bytes are left")),
            part("c", None, Some("no leader")),
        ];
        let answer = FoundMessages { complete: false, messages: vec![], parts };
        let told = "b up to 1970-01-01T00:00:01.000Z only: 7 bytes are left; c: no leader";
        assert_eq!(incomplete(&answer), told);
        let json = serde_json::to_value(Shown::from(&answer)).unwrap();
        assert_eq!(json["complete"], false);
        assert_eq!(json["messages"], serde_json::json!([]));
        assert_eq!(json["parts"][1]["why"], "7 bytes are left");
    }
}
