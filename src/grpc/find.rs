//! Messages found again, as an operator asks for them.

use tonic::Status;

use crate::base::{LogPosition, QueueId, QueueOffset, UtcMillis};
use crate::broker::{
    Answer, AnswerPart, Broker, FindError, FoundMessage, FoundState, KeyQuery, QUERY_MAX, Wanted,
};
use crate::message::{BodyEncoding, Message};
use crate::wire::raftmq as v1;
use crate::wire::raftmq::found_message::State;
use crate::wire::raftmq::query_messages_request::By;

use super::admin::topic_name;

/// Messages that an answer has where the request does not say how many.
const LIMIT_DEFAULT: usize = 32;

pub(super) async fn query(
    broker: &Broker,
    request: v1::QueryMessagesRequest,
) -> Result<v1::QueryMessagesResponse, Status> {
    let answer = broker.find(&wanted(request)?).await.map_err(|error| match error {
        FindError::NoTopic(error) => Status::not_found(error.to_string()),
    })?;
    let complete = answer.is_complete();
    let Answer { found, parts } = answer;
    Ok(v1::QueryMessagesResponse {
        complete,
        messages: found.into_iter().map(message).collect(),
        parts: parts.into_iter().map(part).collect(),
    })
}

fn wanted(request: v1::QueryMessagesRequest) -> Result<Wanted, Status> {
    let by = request.by.ok_or_else(|| {
        Status::invalid_argument("the request says neither id, key, place nor time")
    })?;
    Ok(match by {
        By::Id(by) => {
            if by.message_id.is_empty() {
                return Err(Status::invalid_argument("the message id is empty"));
            }
            let topic = by.topic.as_deref().map(topic_name).transpose()?;
            Wanted::Id { id: by.message_id, topic }
        }
        By::Key(by) => {
            if by.key.is_empty() {
                return Err(Status::invalid_argument("the key is empty"));
            }
            let limit = usize::try_from(by.limit).unwrap_or(QUERY_MAX).min(QUERY_MAX);
            Wanted::Key(KeyQuery {
                topic: topic_name(&by.topic)?,
                key: by.key,
                from: by.from.map(UtcMillis::new),
                to: by.to.map(UtcMillis::new),
                limit: if limit == 0 { LIMIT_DEFAULT } else { limit },
                oldest_first: by.oldest_first,
            })
        }
        By::Place(by) => Wanted::Place {
            topic: topic_name(&by.topic)?,
            queue: QueueId::new(by.queue),
            offset: QueueOffset::new(by.offset),
        },
        By::Time(by) => Wanted::Time { topic: topic_name(&by.topic)?, at: UtcMillis::new(by.time) },
    })
}

fn part(part: AnswerPart) -> v1::AnswerPart {
    v1::AnswerPart {
        broker_group: part.broker_group.to_string(),
        complete: part.complete,
        complete_until: part.complete_until.map(UtcMillis::get),
        why: part.why,
    }
}

fn message(found: FoundMessage) -> v1::FoundMessage {
    let (state, due) = match found.state {
        FoundState::Visible => (State::Visible, None),
        FoundState::Delayed { due } => (State::Delayed, Some(due.get())),
        FoundState::Half => (State::Half, None),
        FoundState::Left => (State::Left, None),
        FoundState::Unknown => (State::Unknown, None),
    };
    v1::FoundMessage {
        broker_group: found.broker_group.to_string(),
        state: state.into(),
        topic: found.topic.to_string(),
        message_id: found.message_id,
        position: found.position.map(LogPosition::get),
        queue: found.queue.map(QueueId::get),
        offset: found.offset.map(QueueOffset::get),
        stored: found.stored.map(UtcMillis::get),
        due,
        content: found.message.map(content),
    }
}

fn content(message: Message) -> v1::MessageContent {
    v1::MessageContent {
        gzip: message.encoding == BodyEncoding::Gzip,
        body: message.body,
        kind: message.kind.name().to_owned(),
        tag: message.tag,
        keys: message.keys,
        properties: message.properties.into_iter().collect(),
        message_group: message.message_group,
        born: message.born.get(),
        born_host: message.born_host,
        trace_context: message.trace_context,
        priority: message.priority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_says_what_it_is_by() {
        let by = |by| wanted(v1::QueryMessagesRequest { by: Some(by) });
        let key = |limit| v1::MessagesByKey {
            topic: "t".into(),
            key: "k".into(),
            limit,
            ..Default::default()
        };
        for (limit, told) in [(0, LIMIT_DEFAULT), (7, 7), (1_000_000, QUERY_MAX)] {
            let Ok(Wanted::Key(query)) = by(By::Key(key(limit))) else { panic!("a key") };
            assert_eq!(query.limit, told);
        }
        assert!(wanted(v1::QueryMessagesRequest::default()).is_err());
        assert!(by(By::Id(v1::MessageById::default())).is_err());
        assert!(by(By::Key(v1::MessagesByKey { key: String::new(), ..key(1) })).is_err());
        assert!(by(By::Key(v1::MessagesByKey { topic: "a/b".into(), ..key(1) })).is_err());
        let id = v1::MessageById { message_id: "i".into(), topic: None };
        assert_eq!(by(By::Id(id)).unwrap(), Wanted::Id { id: "i".into(), topic: None });
    }
}
