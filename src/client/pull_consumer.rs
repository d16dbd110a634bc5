//! Reading queues by offset: nothing is hidden from others, and the reader says how far it is.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::{GroupName, TopicName};
use crate::wire::rocketmq as v2;
use crate::wire::rocketmq::pull_message_response::Content;

use super::error::ClientError;
use super::messages::{accepted, filter, received, resource, timestamp, wire_duration};
use super::values::{Received, ResetTo};
use super::{CALL_TIMEOUT, Client};

/// Numbers of queues of one broker group; those of the second one by name begin here, and so on.
const QUEUES_PER_BROKER_GROUP: u32 = 1024;

/// What one look at a queue gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    pub messages: Vec<Received>,
    /// Where to go on.
    pub next: u64,
    /// The offset that was asked for is not in the queue; `next` is the nearest one that is.
    pub out_of_range: bool,
}

/// Reads the queues that it is given, one after the other.
#[derive(Debug)]
pub struct PullConsumer {
    client: Client,
    group: GroupName,
    topic: TopicName,
    /// Tags, `*` for everything, or `sql:` and an SQL condition.
    filter: String,
    /// By queue: where it goes on.
    positions: BTreeMap<u32, u64>,
    /// The queue that was looked at last.
    last: Option<u32>,
}

impl PullConsumer {
    /// Without queues: see [`Self::assign`].
    pub fn new(client: Client, group: GroupName, topic: TopicName, filter: &str) -> Self {
        let (positions, filter) = (BTreeMap::new(), filter.to_owned());
        Self { client, group, topic, filter, positions, last: None }
    }

    /// All queues of the topic, as readers number them.
    pub async fn queues(&self) -> Result<Vec<u32>, ClientError> {
        let topic = self.client.topic(&self.topic).await?;
        let numbered = (0..).zip(topic.parts).flat_map(|(number, part)| {
            let first = number * QUEUES_PER_BROKER_GROUP;
            part.queues.into_iter().map(move |queue| first + queue.queue)
        });
        Ok(numbered.collect())
    }

    /// Reads these queues from here on, each from where the group is in it; where the group has no
    /// place yet, from its first message.
    pub async fn assign(&mut self, queues: &[u32]) -> Result<(), ClientError> {
        let mut positions = BTreeMap::new();
        for queue in queues {
            let at = match self.committed(*queue).await? {
                Some(offset) => offset,
                None => self.find(*queue, ResetTo::Earliest).await?,
            };
            positions.insert(*queue, at);
        }
        self.positions = positions;
        Ok(())
    }

    /// Goes on elsewhere in a queue, which it reads from here on.
    pub async fn seek(&mut self, queue: u32, to: ResetTo) -> Result<u64, ClientError> {
        let at = match to {
            ResetTo::Offset(offset) => offset,
            other => self.find(queue, other).await?,
        };
        self.positions.insert(queue, at);
        Ok(at)
    }

    /// Where it goes on in a queue.
    pub fn position(&self, queue: u32) -> Option<u64> {
        self.positions.get(&queue).copied()
    }

    /// The first messages that one of its queues has, at most `max`; waits at each in turn for a part
    /// of `wait`. Where a queue lost what was asked for, it goes on at its first message.
    pub async fn poll(&mut self, max: u32, wait: Duration) -> Result<Vec<Received>, ClientError> {
        let behind = self.positions.range(self.last.map_or(0, |last| last.saturating_add(1))..);
        let order: Vec<u32> = behind.chain(&self.positions).map(|(queue, _)| *queue).collect();
        let count = self.positions.len();
        let each = wait / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        // First whether something is there, then a turn of waiting.
        for wait in [Duration::ZERO, each] {
            for queue in order.iter().take(count) {
                let at = self.positions[queue];
                let pulled = self.pull(*queue, at, max, wait).await?;
                self.positions.insert(*queue, pulled.next);
                self.last = Some(*queue);
                if !pulled.messages.is_empty() {
                    return Ok(pulled.messages);
                }
            }
        }
        Ok(Vec::new())
    }

    /// The group has done everything before where it goes on, in all its queues.
    pub async fn commit(&self) -> Result<(), ClientError> {
        for (queue, offset) in &self.positions {
            self.commit_at(*queue, *offset).await?;
        }
        Ok(())
    }

    /// The group has done everything before `offset` in a queue.
    pub async fn commit_at(&self, queue: u32, offset: u64) -> Result<(), ClientError> {
        let request = v2::UpdateOffsetRequest {
            group: Some(resource(self.group.as_str())),
            message_queue: Some(self.queue(queue)),
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
        };
        let request = self.client.request(request, CALL_TIMEOUT);
        accepted(self.client.messaging().update_offset(request).await?.into_inner().status)
    }

    /// Where the group is in a queue; `None` where it has no place yet.
    pub async fn committed(&self, queue: u32) -> Result<Option<u64>, ClientError> {
        let request = v2::GetOffsetRequest {
            group: Some(resource(self.group.as_str())),
            message_queue: Some(self.queue(queue)),
        };
        let request = self.client.request(request, CALL_TIMEOUT);
        let answer = self.client.messaging().get_offset(request).await?.into_inner();
        let none = i32::from(v2::Code::OffsetNotFound);
        if answer.status.as_ref().is_some_and(|status| status.code == none) {
            return Ok(None);
        }
        accepted(answer.status)?;
        Ok(u64::try_from(answer.offset).ok())
    }

    /// The offset of a place in a queue.
    pub async fn find(&self, queue: u32, at: ResetTo) -> Result<u64, ClientError> {
        use v2::QueryOffsetPolicy::{Beginning, End, Timestamp};
        let (policy, time) = match at {
            ResetTo::Earliest => (Beginning, None),
            ResetTo::Latest => (End, None),
            ResetTo::Time(time) => (Timestamp, Some(timestamp(time))),
            ResetTo::Offset(offset) => return Ok(offset),
        };
        let request = v2::QueryOffsetRequest {
            message_queue: Some(self.queue(queue)),
            query_offset_policy: policy.into(),
            timestamp: time,
        };
        let request = self.client.request(request, CALL_TIMEOUT);
        let answer = self.client.messaging().query_offset(request).await?.into_inner();
        accepted(answer.status)?;
        Ok(u64::try_from(answer.offset).unwrap_or_default())
    }

    /// Messages of a queue from an offset on, whatever it goes on with itself.
    pub async fn pull(
        &self,
        queue: u32,
        offset: u64,
        max: u32,
        wait: Duration,
    ) -> Result<Pulled, ClientError> {
        let request = v2::PullMessageRequest {
            group: Some(resource(self.group.as_str())),
            message_queue: Some(self.queue(queue)),
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
            batch_size: i32::try_from(max).unwrap_or(i32::MAX),
            filter_expression: Some(filter(&self.filter)),
            long_polling_timeout: Some(wire_duration(wait)),
        };
        let request = self.client.request(request, wait + CALL_TIMEOUT);
        let mut stream = self.client.messaging().pull_message(request).await?.into_inner();
        let mut pulled = Pulled { messages: Vec::new(), next: offset, out_of_range: false };
        let mut status = None;
        while let Some(item) = stream.message().await? {
            match item.content {
                Some(Content::Status(told)) => status = Some(told),
                Some(Content::Message(message)) => pulled.messages.push(received(message)?),
                Some(Content::NextOffset(next)) => {
                    pulled.next = u64::try_from(next).unwrap_or_default();
                }
                None => {}
            }
        }
        let status = status.ok_or(ClientError::Incomplete { what: "a status" })?;
        match v2::Code::try_from(status.code) {
            Ok(v2::Code::MessageNotFound) => Ok(pulled),
            Ok(v2::Code::IllegalOffset) => Ok(Pulled { out_of_range: true, ..pulled }),
            _ => accepted(Some(status)).map(|()| pulled),
        }
    }

    fn queue(&self, id: u32) -> v2::MessageQueue {
        v2::MessageQueue {
            topic: Some(resource(self.topic.as_str())),
            id: i32::try_from(id).unwrap_or(i32::MAX),
            ..Default::default()
        }
    }
}
