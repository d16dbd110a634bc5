//! Reading a queue by offset: nothing is handed out, so nothing is acknowledged.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::{GroupName, TopicName};
use crate::wire::rocketmq as v2;
use v2::pull_message_response::Content;

use super::error::ClientError;
use super::messages::{accepted, received, resource, tags, wire_duration};
use super::values::Received;
use super::{CALL_TIMEOUT, Client};

/// One queue and the place in it. The place is this reader's own, and no broker knows it.
#[derive(Clone, Debug)]
pub struct Reader {
    client: Client,
    group: GroupName,
    queue: v2::MessageQueue,
    next: i64,
}

impl Reader {
    /// One for each queue of the topic, at offset 0.
    pub async fn of_topic(
        client: &Client,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<Vec<Self>, ClientError> {
        // Every node names all of them, since every node serves them.
        let queues = client.queues(topic).await?.into_iter().map(|queue| (queue.id, queue));
        let reader = |queue| Self { client: client.clone(), group: group.clone(), queue, next: 0 };
        Ok(queues.collect::<BTreeMap<_, _>>().into_values().map(reader).collect())
    }

    /// Up to `max` messages from the place on, which moves behind them; none when none came within
    /// `wait`.
    pub async fn read(&mut self, max: u32, wait: Duration) -> Result<Vec<Received>, ClientError> {
        let request = v2::PullMessageRequest {
            group: Some(resource(self.group.as_str())),
            message_queue: Some(self.queue.clone()),
            offset: self.next,
            batch_size: i32::try_from(max).unwrap_or(i32::MAX),
            filter_expression: Some(tags("*")),
            long_polling_timeout: Some(wire_duration(wait)),
        };
        let request = self.client.request(request, wait + CALL_TIMEOUT);
        let mut answers = self.client.messaging().pull_message(request).await?.into_inner();
        let (mut status, mut messages, mut next) = (None, Vec::new(), self.next);
        while let Some(answer) = answers.message().await? {
            match answer.content {
                Some(Content::Status(said)) => status = Some(said),
                Some(Content::Message(message)) => messages.push(received(message)?),
                Some(Content::NextOffset(offset)) => next = offset,
                None => {}
            }
        }
        match accepted(status) {
            Err(ClientError::Refused { code, .. })
                if code == i32::from(v2::Code::MessageNotFound) && messages.is_empty() => {}
            said => said?,
        }
        self.next = next;
        Ok(messages)
    }
}
