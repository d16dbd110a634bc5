//! Messages found again.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;

use crate::base::TopicName;
use crate::wire::raftmq as v1;
use crate::wire::raftmq::found_message::State;
use crate::wire::raftmq::query_messages_request::By;

use super::error::ClientError;
use super::{CALL_TIMEOUT, Client};

/// What is looked for. Times are milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindBy {
    /// A message id, in one topic or in all.
    Id {
        id: String,
        topic: Option<TopicName>,
    },
    Key(FindKey),
    /// One place, in each broker group.
    Place {
        topic: TopicName,
        queue: u32,
        offset: u64,
    },
    /// The first message of each queue that was visible at this time or later.
    Time {
        topic: TopicName,
        time: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindKey {
    pub topic: TopicName,
    pub key: String,
    /// Visible at this time or later.
    pub from: Option<u64>,
    /// Visible at this time or earlier.
    pub to: Option<u64>,
    /// 1 to 1000.
    pub limit: u32,
    pub oldest_first: bool,
}

/// What all broker groups have of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundMessages {
    /// Whether nothing is missing of what was acknowledged before the question.
    pub complete: bool,
    pub messages: Vec<FoundMessage>,
    pub parts: Vec<FoundPart>,
}

/// How far a broker group's answer reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundPart {
    pub broker_group: String,
    pub complete: bool,
    /// Everything up to this time was looked at, in milliseconds since 1970-01-01T00:00:00Z.
    pub complete_until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundMessage {
    pub message_id: String,
    pub topic: String,
    /// `visible`, `delayed`, `half`, `left` or `unknown`.
    pub state: &'static str,
    pub broker_group: String,
    pub queue: Option<u32>,
    /// `None` where it is not known.
    pub offset: Option<u64>,
    /// Where the record lies in the log of its broker group.
    pub position: Option<u64>,
    /// When it became visible, in milliseconds since 1970-01-01T00:00:00Z.
    pub stored: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<u64>,
    /// Of what is visible.
    #[serde(flatten)]
    pub content: Option<FoundContent>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundContent {
    #[serde(skip)]
    pub body: Bytes,
    /// The producer compressed the body.
    pub gzip: bool,
    pub kind: String,
    pub tag: Option<String>,
    pub keys: Vec<String>,
    pub properties: BTreeMap<String, String>,
    pub message_group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// When the producer made it, in milliseconds since 1970-01-01T00:00:00Z.
    pub born: u64,
    pub born_host: String,
}

impl Client {
    /// Looks for messages in all broker groups. An answer may be incomplete, and says so.
    pub async fn find(&self, by: FindBy) -> Result<FoundMessages, ClientError> {
        let by = match by {
            FindBy::Id { id, topic } => {
                let topic = topic.map(|topic| topic.to_string());
                By::Id(v1::MessageById { message_id: id, topic })
            }
            FindBy::Key(by) => By::Key(v1::MessagesByKey {
                topic: by.topic.to_string(),
                key: by.key,
                from: by.from,
                to: by.to,
                limit: by.limit,
                oldest_first: by.oldest_first,
            }),
            FindBy::Place { topic, queue, offset } => {
                By::Place(v1::MessageAtPlace { topic: topic.to_string(), queue, offset })
            }
            FindBy::Time { topic, time } => {
                By::Time(v1::MessagesAtTime { topic: topic.to_string(), time })
            }
        };
        let request = self.request(v1::QueryMessagesRequest { by: Some(by) }, CALL_TIMEOUT);
        let answer = self.admin().query_messages(request).await?.into_inner();
        let part = |part: v1::AnswerPart| FoundPart {
            broker_group: part.broker_group,
            complete: part.complete,
            complete_until: part.complete_until,
            why: part.why,
        };
        Ok(FoundMessages {
            complete: answer.complete,
            messages: answer.messages.into_iter().map(message).collect(),
            parts: answer.parts.into_iter().map(part).collect(),
        })
    }
}

fn message(message: v1::FoundMessage) -> FoundMessage {
    let state = match message.state() {
        State::Visible => "visible",
        State::Delayed => "delayed",
        State::Half => "half",
        State::Left => "left",
        State::Unknown | State::Unspecified => "unknown",
    };
    let content = |content: v1::MessageContent| FoundContent {
        body: content.body,
        gzip: content.gzip,
        kind: content.kind,
        tag: content.tag,
        keys: content.keys,
        properties: content.properties.into_iter().collect(),
        message_group: content.message_group,
        priority: content.priority,
        born: content.born,
        born_host: content.born_host,
    };
    FoundMessage {
        message_id: message.message_id,
        topic: message.topic,
        state,
        broker_group: message.broker_group,
        queue: message.queue,
        offset: message.offset,
        position: message.position,
        stored: message.stored,
        due: message.due,
        content: message.content.map(content),
    }
}
