//! Send, receive, acknowledge, extend.

use std::time::Duration;

use crate::base::{GroupName, TopicName};
use crate::wire::rocketmq as v2;

use super::error::ClientError;
use super::values::{Draft, Received, RouteQueue, SQL_PREFIX, SentMessage, Take};
use super::{CALL_TIMEOUT, Client, random};

impl Client {
    /// Where a topic can be reached. May create the topic, where the broker's profile says so.
    pub async fn route(&self, topic: &TopicName) -> Result<Vec<RouteQueue>, ClientError> {
        let queues = self.queues(topic).await?;
        Ok(queues.into_iter().map(route_queue).collect())
    }

    pub(super) async fn queues(
        &self,
        topic: &TopicName,
    ) -> Result<Vec<v2::MessageQueue>, ClientError> {
        let request =
            v2::QueryRouteRequest { topic: Some(resource(topic.as_str())), endpoints: None };
        let request = self.request(request, CALL_TIMEOUT);
        let answer = self.messaging().query_route(request).await?.into_inner();
        accepted(answer.status)?;
        Ok(answer.message_queues)
    }

    /// Sends drafts of one topic as one request: all of them become visible, or none.
    pub async fn send(&self, drafts: &[Draft]) -> Result<Vec<SentMessage>, ClientError> {
        self.send_messages(drafts.iter().map(message).collect()).await
    }

    /// The same, visible not before `deliver_at`, in milliseconds since 1970-01-01T00:00:00Z.
    pub async fn send_delayed(
        &self,
        drafts: &[Draft],
        deliver_at: u64,
    ) -> Result<Vec<SentMessage>, ClientError> {
        let delayed = |draft| {
            let mut message = message(draft);
            let system = message.system_properties.get_or_insert_default();
            system.message_type = v2::MessageType::Delay.into();
            system.delivery_timestamp = Some(timestamp(deliver_at));
            message
        };
        self.send_messages(drafts.iter().map(delayed).collect()).await
    }

    async fn send_messages(
        &self,
        messages: Vec<v2::Message>,
    ) -> Result<Vec<SentMessage>, ClientError> {
        let request = self.request(v2::SendMessageRequest { messages }, CALL_TIMEOUT);
        let answer = self.messaging().send_message(request).await?.into_inner();
        accepted(answer.status)?;
        let sent = |entry: v2::SendResultEntry| {
            accepted(entry.status)?;
            let recall_handle = Some(entry.recall_handle).filter(|handle| !handle.is_empty());
            Ok(SentMessage { message_id: entry.message_id, offset: entry.offset, recall_handle })
        };
        answer.entries.into_iter().map(sent).collect()
    }

    /// Recalls a delayed message as RocketMQ's clients do; answers its id.
    pub async fn recall(&self, topic: &TopicName, handle: &str) -> Result<String, ClientError> {
        let request = v2::RecallMessageRequest {
            topic: Some(resource(topic.as_str())),
            recall_handle: handle.to_owned(),
        };
        let request = self.request(request, CALL_TIMEOUT);
        let answer = self.messaging().recall_message(request).await?.into_inner();
        accepted(answer.status)?;
        Ok(answer.message_id)
    }

    pub(super) async fn any_queue(
        &self,
        topic: &TopicName,
    ) -> Result<v2::MessageQueue, ClientError> {
        let queue = self.queues(topic).await?.into_iter().next();
        queue.ok_or(ClientError::Incomplete { what: "a queue in the route" })
    }

    /// Up to `take.max` messages; none when nothing came in time.
    pub(super) async fn receive_from(
        &self,
        take: &Take,
        queue: v2::MessageQueue,
    ) -> Result<Vec<Received>, ClientError> {
        self.receive(receive_request(take, queue, false), take.wait).await
    }

    pub(super) async fn receive(
        &self,
        request: v2::ReceiveMessageRequest,
        wait: Duration,
    ) -> Result<Vec<Received>, ClientError> {
        let request = self.request(request, wait + CALL_TIMEOUT);
        let mut answers = self.messaging().receive_message(request).await?.into_inner();
        let mut received = Vec::new();
        let mut status = None;
        while let Some(answer) = answers.message().await? {
            match answer.content {
                Some(v2::receive_message_response::Content::Status(said)) => status = Some(said),
                Some(v2::receive_message_response::Content::Message(message)) => {
                    received.push(self::received(message)?);
                }
                Some(v2::receive_message_response::Content::DeliveryTimestamp(_)) | None => {}
            }
        }
        match accepted(status) {
            Err(ClientError::Refused { code, .. })
                if code == i32::from(v2::Code::MessageNotFound) && received.is_empty() =>
            {
                Ok(received)
            }
            Err(error) => Err(error),
            Ok(()) => Ok(received),
        }
    }

    /// Acknowledges: these messages never come to the group again.
    pub async fn ack(
        &self,
        topic: &TopicName,
        group: &GroupName,
        messages: &[Received],
    ) -> Result<(), ClientError> {
        let entry = |message: &Received| v2::AckMessageEntry {
            message_id: message.message_id.clone(),
            receipt_handle: message.handle.clone(),
            lite_topic: None,
        };
        let request = v2::AckMessageRequest {
            group: Some(resource(group.as_str())),
            topic: Some(resource(topic.as_str())),
            entries: messages.iter().map(entry).collect(),
        };
        let request = self.request(request, CALL_TIMEOUT);
        let answer = self.messaging().ack_message(request).await?.into_inner();
        for entry in answer.entries {
            accepted(entry.status)?;
        }
        accepted(answer.status)
    }

    /// The consumer tries a message no more: it becomes a dead letter, or in order its message group
    /// stands still, as its group says.
    pub async fn give_up(&self, group: &GroupName, message: &Received) -> Result<(), ClientError> {
        let request = v2::ForwardMessageToDeadLetterQueueRequest {
            group: Some(resource(group.as_str())),
            topic: Some(resource(&message.topic)),
            receipt_handle: message.handle.clone(),
            message_id: message.message_id.clone(),
            delivery_attempt: message.attempt,
            ..Default::default()
        };
        let request = self.request(request, CALL_TIMEOUT);
        let answer = self.messaging().forward_message_to_dead_letter_queue(request).await?;
        accepted(answer.into_inner().status)
    }

    /// Keeps a message hidden for `invisible` from now on; answers the handle that is valid now.
    pub async fn change_invisible(
        &self,
        group: &GroupName,
        message: &Received,
        invisible: Duration,
    ) -> Result<String, ClientError> {
        let request = v2::ChangeInvisibleDurationRequest {
            group: Some(resource(group.as_str())),
            topic: Some(resource(&message.topic)),
            receipt_handle: message.handle.clone(),
            invisible_duration: Some(wire_duration(invisible)),
            message_id: message.message_id.clone(),
            ..Default::default()
        };
        let request = self.request(request, CALL_TIMEOUT);
        let answer = self.messaging().change_invisible_duration(request).await?.into_inner();
        accepted(answer.status)?;
        Ok(answer.receipt_handle)
    }
}

/// With `auto_renew` the broker chooses how long the messages stay hidden, and extends it.
pub(super) fn receive_request(
    take: &Take,
    queue: v2::MessageQueue,
    auto_renew: bool,
) -> v2::ReceiveMessageRequest {
    v2::ReceiveMessageRequest {
        group: Some(resource(take.group.as_str())),
        message_queue: Some(queue),
        filter_expression: Some(filter(&take.filter)),
        batch_size: i32::try_from(take.max).unwrap_or(i32::MAX),
        invisible_duration: (!auto_renew).then(|| wire_duration(take.invisible)),
        auto_renew,
        long_polling_timeout: Some(wire_duration(take.wait)),
        attempt_id: Some(format!("{:016x}{:016x}", random(), random())),
    }
}

/// A tag that begins like SQL can be written behind `||`, which means nothing more.
pub(super) fn filter(filter: &str) -> v2::FilterExpression {
    let (r#type, expression) = match filter.strip_prefix(SQL_PREFIX) {
        Some(condition) => (v2::FilterType::Sql, condition),
        None => (v2::FilterType::Tag, filter),
    };
    v2::FilterExpression { r#type: r#type.into(), expression: expression.to_owned() }
}

pub(super) fn accepted(status: Option<v2::Status>) -> Result<(), ClientError> {
    let status = status.ok_or(ClientError::Incomplete { what: "a status" })?;
    if status.code == i32::from(v2::Code::Ok) {
        return Ok(());
    }
    let name = v2::Code::try_from(status.code).map_or("an unknown code", |code| code.as_str_name());
    Err(ClientError::Refused { code: status.code, name, text: status.message })
}

pub(super) fn resource(name: &str) -> v2::Resource {
    v2::Resource { resource_namespace: String::new(), name: name.to_owned() }
}

fn route_queue(queue: v2::MessageQueue) -> RouteQueue {
    let broker = queue.broker.unwrap_or_default();
    let addresses = broker.endpoints.unwrap_or_default().addresses;
    let address: Vec<String> =
        addresses.iter().map(|address| format!("{}:{}", address.host, address.port)).collect();
    RouteQueue { queue: queue.id, broker: broker.name, address: address.join(",") }
}

pub(super) fn message(draft: &Draft) -> v2::Message {
    let now = std::time::SystemTime::now();
    v2::Message {
        topic: Some(resource(draft.topic.as_str())),
        user_properties: draft.properties.iter().cloned().collect(),
        system_properties: Some(v2::SystemProperties {
            tag: draft.tag.clone(),
            keys: draft.keys.clone(),
            message_id: message_id(),
            body_encoding: v2::Encoding::Identity.into(),
            message_type: kind(draft).into(),
            message_group: draft.message_group.clone(),
            priority: draft.priority.map(|number| i32::try_from(number).unwrap_or(i32::MAX)),
            born_timestamp: Some(now.into()),
            born_host: "raftmq".to_owned(),
            ..Default::default()
        }),
        body: draft.body.clone(),
    }
}

fn kind(draft: &Draft) -> v2::MessageType {
    match (&draft.message_group, draft.priority) {
        (Some(_), _) => v2::MessageType::Fifo,
        (None, Some(_)) => v2::MessageType::Priority,
        (None, None) => v2::MessageType::Normal,
    }
}

/// Shaped as RocketMQ's clients shape theirs: version 01, then 16 bytes, all in hexadecimal.
fn message_id() -> String {
    format!("01{:016X}{:016X}", random(), random())
}

pub(super) fn received(message: v2::Message) -> Result<Received, ClientError> {
    let system = message.system_properties;
    let system = system.ok_or(ClientError::Incomplete { what: "the system properties" })?;
    Ok(Received {
        message_id: system.message_id,
        topic: message.topic.unwrap_or_default().name,
        tag: system.tag,
        message_group: system.message_group,
        priority: system.priority.and_then(|number| u32::try_from(number).ok()),
        keys: system.keys,
        properties: message.user_properties.into_iter().collect(),
        body: message.body,
        queue: system.queue_id,
        offset: system.queue_offset.unwrap_or(0),
        attempt: system.delivery_attempt.unwrap_or(0),
        stored: system.store_timestamp.as_ref().map_or(0, millis),
        handle: system.receipt_handle.unwrap_or_default(),
    })
}

fn millis(stamp: &prost_types::Timestamp) -> u64 {
    let seconds = u64::try_from(stamp.seconds).unwrap_or(0);
    let millis = u64::try_from(stamp.nanos).unwrap_or(0) / 1_000_000;
    seconds.saturating_mul(1000).saturating_add(millis)
}

pub(super) fn timestamp(at: u64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(at / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(at % 1000 * 1_000_000).expect("below a second"),
    }
}

pub(super) fn wire_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_tags_or_a_condition() {
        let read = |text: &str| {
            let v2::FilterExpression { r#type, expression } = filter(text);
            (r#type, expression)
        };
        assert_eq!(read("a || b"), (1, "a || b".to_owned()));
        assert_eq!(read("sql:a = 1"), (2, "a = 1".to_owned()));
        assert_eq!(read("||sql:a"), (1, "||sql:a".to_owned()), "a tag of that name");
    }

    #[test]
    fn a_draft_becomes_a_message_with_an_id_of_its_own() {
        let draft = Draft {
            tag: Some("red".into()),
            keys: vec!["k".into()],
            properties: vec![("p".into(), "v".into())],
            ..Draft::new(TopicName::new("t").unwrap(), "b")
        };
        let ids = [message(&draft), message(&draft)].map(|message| {
            let system = message.system_properties.unwrap();
            assert_eq!(system.message_type, i32::from(v2::MessageType::Normal));
            assert_eq!(system.tag.as_deref(), Some("red"));
            system.message_id
        });
        assert_ne!(ids[0], ids[1]);
        assert_eq!(ids[0].len(), 34);
    }

    #[test]
    fn only_ok_is_accepted_and_a_refusal_keeps_its_code() {
        let status = |code| Some(v2::Status { code, message: "why".into() });
        assert!(accepted(status(20_000)).is_ok());
        let error = accepted(status(40_402)).unwrap_err();
        assert!(error.is_not_found());
        assert!(error.to_string().contains("TOPIC_NOT_FOUND (40402): why"), "{error}");
        assert!(accepted(status(1)).unwrap_err().to_string().contains("unknown code"));
        assert!(accepted(None).is_err());
    }
}
