//! Taking messages in.

use std::sync::atomic::Ordering;

use crate::base::{Mutant, QueueId, TopicName};
use crate::broker::Replica;
use crate::broker::api::{SendRequest, Sent};
use crate::broker::error::{KindConflict, KindNotYet, LimitError, NoTopic, NotWritable, SendError};
use crate::broker::propose::{send_error, unexpected};
use crate::broker::replica::Inner;
use crate::command::{Command, Publish, PublishItem, Published, Refusal, Reply};
use crate::message::{
    Message, MessageIdHash, MessageKind, body_crc, encode_record, group_hash, tag_hash,
};

/// What one request may carry, in bytes of records; one request is one entry.
pub(super) const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024 + 64 * 1024;

/// What apply has to know of the topic a request goes to.
struct Target {
    topic: crate::base::TopicId,
    /// One for each message.
    queues: Vec<QueueId>,
}

impl Replica {
    /// Refuses messages of so many bytes when there is no room for them: to be asked before work is
    /// done for them.
    pub(super) fn has_room(&self, bytes: usize) -> Result<(), SendError> {
        self.group.has_room(bytes).map_err(|error| send_error(&error))
    }

    /// All messages of the request are one entry: all become visible, or none.
    pub(super) async fn send(&self, request: &SendRequest) -> Result<Vec<Sent>, SendError> {
        self.resolve_topic(&request.topic, request.deadline).await?;
        match self.publish(request).await {
            // This replica may still know the topic that was deleted before one of the same name
            // was made.
            Err(SendError::NoTopic(_)) => {
                self.catch_up().await?;
                self.resolve_topic(&request.topic, request.deadline).await?;
                self.publish(request).await
            }
            outcome => outcome,
        }
    }
}

fn sent(request: &SendRequest, published: &[Published]) -> Vec<Sent> {
    assert_eq!(published.len(), request.messages.len(), "one outcome for each message");
    let first = published.iter().filter(|outcome| !outcome.repeated).count();
    crate::metrics::MESSAGES_IN.add([request.topic.as_str()], first as u64);
    let outcome = |(message, outcome): (&Message, &Published)| Sent {
        message_id: message.message_id.clone(),
        queue: outcome.queue,
        offset: outcome.offset,
        recall_handle: None,
    };
    request.messages.iter().zip(published).map(outcome).collect()
}

impl Inner {
    async fn publish(&self, request: &SendRequest) -> Result<Vec<Sent>, SendError> {
        let target = self.target(request)?;
        let items = self.items(request, &target.queues)?;
        if super::delay::is_delayed(request)? {
            return self.schedule(request, target.topic, items).await;
        }
        let next = self.group.read(|state| state.queue_end(target.topic, target.queues[0]));
        let publish = Publish { topic: target.topic, dedup: true, items };
        let reply = self.group.propose(Command::Publish(publish), request.deadline).await;
        match reply.map_err(|error| send_error(&error))? {
            Reply::Published(mut published) => {
                if Mutant::OffsetAtAppend.is_on() {
                    published.iter_mut().for_each(|one| one.offset = next);
                }
                Ok(sent(request, &published))
            }
            Reply::Refused(Refusal::NoTopic { .. }) => {
                Err(NoTopic { topic: request.topic.clone() }.into())
            }
            other => Err(unexpected(&other).into()),
        }
    }

    /// A message group has its queue, and so has a priority: the highest ones share the last queue.
    /// All others of one request stay together in one.
    fn target(&self, request: &SendRequest) -> Result<Target, SendError> {
        self.group.read(|state| {
            let topic = state
                .topic(&request.topic)
                .ok_or_else(|| NoTopic { topic: request.topic.clone() })?;
            if topic.name.is_for_dead_letters() {
                return Err(NotWritable { topic: request.topic.clone() }.into());
            }
            for message in &request.messages {
                assert_eq!(message.topic, request.topic, "the protocol checks that topics agree");
                check_kind(&request.topic, message.kind, &topic.kinds)?;
            }
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let any = QueueId::new(turn % topic.queues);
            let queue = |message: &Message| match (
                group_hash(message.message_group.as_deref()),
                message.priority,
            ) {
                (0, None) => any,
                (0, Some(priority)) => QueueId::new(priority.min(topic.queues - 1)),
                (group, _) => topic.home(group),
            };
            Ok(Target { topic: topic.id, queues: request.messages.iter().map(queue).collect() })
        })
    }

    pub(super) fn items(
        &self,
        request: &SendRequest,
        queues: &[QueueId],
    ) -> Result<Vec<PublishItem>, SendError> {
        let mut bytes = 0;
        let mut items = Vec::with_capacity(request.messages.len());
        for (message, queue) in request.messages.iter().zip(queues) {
            let record =
                encode_record(message, self.options.store_host).map_err(|error| LimitError {
                    what: "stored record",
                    value: error.to_string(),
                    allowed: "what RocketMQ's record layout can hold".into(),
                })?;
            bytes += record.len();
            items.push(PublishItem {
                queue: *queue,
                kind: message.kind,
                id_hash: MessageIdHash::of(&message.message_id),
                body_crc: body_crc(&message.body),
                tag_hash: tag_hash(message.tag.as_deref()),
                group_hash: group_hash(message.message_group.as_deref()),
                record,
                record_at: 0,
            });
        }
        if bytes > REQUEST_BYTES_MAX {
            let allowed = format!("at most {REQUEST_BYTES_MAX} bytes");
            let what = "size of all messages of the request";
            return Err(LimitError { what, value: bytes.to_string(), allowed }.into());
        }
        Ok(items)
    }
}

fn check_kind(
    topic: &TopicName,
    kind: MessageKind,
    takes: &[MessageKind],
) -> Result<(), SendError> {
    if !takes.contains(&kind) {
        let takes = takes.iter().map(|kind| kind.name()).collect();
        return Err(KindConflict { topic: topic.clone(), kind, takes }.into());
    }
    match kind {
        MessageKind::Normal | MessageKind::Fifo | MessageKind::Delay | MessageKind::Priority => {
            Ok(())
        }
        MessageKind::Transaction => Err(KindNotYet { kind }.into()),
    }
}
