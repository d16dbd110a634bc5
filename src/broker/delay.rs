//! Delayed messages: taking them in, and what is asked for one until it fires.

use tokio::time::Instant;

use crate::base::{BrokerGroupId, LogPosition, QueueOffset, TopicId, TopicName, UtcMillis};
use crate::broker::Replica;
use crate::broker::api::{SendRequest, Sent, TimerChange};
use crate::broker::error::{
    BadRecallHandle, KindConflict, LimitError, NoTopic, Overloaded, SendError, TimerError,
    Unavailable,
};
use crate::broker::handle;
use crate::broker::propose::{send_error, unavailable, unexpected};
use crate::broker::replica::Inner;
use crate::command::{
    Command, PublishItem, Reader, Refusal, Reply, Schedule, ScheduleItem, Scheduled, TimerKey,
    TimerOutcome, Writer,
};
use crate::message::{Message, MessageIdHash, MessageKind};

/// The first byte of every recall handle; receipt handles have another.
const VERSION: u8 = 3;
/// Version, broker group, topic, place.
const FIXED: usize = 1 + 4 + 8 + 8;
/// Message ids are shorter.
const ID_MAX: usize = 1024;
/// What a producer is told when too many delayed messages are kept beyond the log's front.
const RETRY_AFTER: crate::base::Millis = crate::base::Millis::from_secs(1);

/// Whether the messages of a request are delayed: all of them, or none.
pub(super) fn is_delayed(request: &SendRequest) -> Result<bool, SendError> {
    let delayed = |message: &&Message| message.kind == MessageKind::Delay;
    let count = request.messages.iter().filter(delayed).count();
    if count == 0 || count == request.messages.len() {
        return Ok(count > 0);
    }
    let value = format!("{count} of {}", request.messages.len());
    let what = "number of delayed messages in one request";
    Err(LimitError { what, value, allowed: "all of them, or none".to_owned() }.into())
}

/// A delayed message as its recall handle names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recallable {
    pub(super) topic: TopicId,
    pub(super) position: LogPosition,
    pub(super) message_id: String,
}

impl Recallable {
    fn seal(&self, broker_group: BrokerGroupId, key: &[u8; 32]) -> String {
        let mut writer = Writer::with_capacity(FIXED + self.message_id.len());
        writer.u8(VERSION);
        writer.u32(broker_group.get());
        writer.u64(self.topic.get());
        writer.u64(self.position.get());
        writer.raw(self.message_id.as_bytes());
        handle::seal(&writer.finish(), key)
    }
}

/// A recall handle whose signature was not looked at yet.
#[derive(Clone, Debug)]
pub(super) struct RecallHandle {
    fields: Vec<u8>,
    signature: Vec<u8>,
    pub(super) broker_group: BrokerGroupId,
    named: Recallable,
}

impl RecallHandle {
    pub(super) fn parse(text: &str) -> Result<Self, BadRecallHandle> {
        let malformed = BadRecallHandle { why: "is malformed" };
        let sealed = handle::read_seal(text, FIXED + ID_MAX).ok_or_else(|| malformed.clone())?;
        let (fields, signature) = sealed;
        let mut reader = Reader::new(fields.clone().into());
        let mut read = || -> Result<(u8, u32, u64, u64), crate::command::CommandError> {
            Ok((reader.u8()?, reader.u32()?, reader.u64()?, reader.u64()?))
        };
        let (version, group, topic, position) = read().map_err(|_| malformed.clone())?;
        let id = String::from_utf8(fields[FIXED..].to_vec()).map_err(|_| malformed.clone())?;
        if version != VERSION {
            return Err(malformed);
        }
        let named = Recallable {
            topic: TopicId::new(topic),
            position: LogPosition::new(position),
            message_id: id,
        };
        Ok(Self { fields, signature, broker_group: BrokerGroupId::new(group), named })
    }

    fn open(self, key: &[u8; 32]) -> Result<Recallable, BadRecallHandle> {
        if handle::is_genuine(&self.fields, &self.signature, key) {
            return Ok(self.named);
        }
        Err(BadRecallHandle { why: "was not issued by this cluster" })
    }
}

impl Inner {
    pub(super) async fn schedule(
        &self,
        request: &SendRequest,
        topic: TopicId,
        items: Vec<PublishItem>,
    ) -> Result<Vec<Sent>, SendError> {
        let with_due = |(message, item): (&Message, PublishItem)| ScheduleItem {
            due: message.deliver_at.unwrap_or_default(),
            item,
        };
        let items: Vec<_> = request.messages.iter().zip(items).map(with_due).collect();
        let queue = items[0].item.queue;
        let schedule = Schedule { topic, dedup: true, items };
        let reply = self.group.propose(Command::Schedule(schedule), request.deadline).await;
        match reply.map_err(|error| send_error(&error))? {
            Reply::Scheduled(scheduled) => {
                assert_eq!(scheduled.len(), request.messages.len(), "one outcome each");
                let first = scheduled.iter().filter(|outcome| !outcome.repeated).count();
                crate::metrics::MESSAGES_IN.add([request.topic.as_str()], first as u64);
                let key = self.handle_key();
                let sent = |(message, scheduled): (&Message, &Scheduled)| {
                    let message_id = message.message_id.clone();
                    let position = scheduled.position;
                    let named = Recallable { topic, position, message_id: message_id.clone() };
                    let recall_handle = key.map(|key| named.seal(self.id, &key));
                    Sent { message_id, queue, offset: QueueOffset::ZERO, recall_handle }
                };
                Ok(request.messages.iter().zip(&scheduled).map(sent).collect())
            }
            Reply::Refused(Refusal::NoTopic { .. }) => {
                Err(NoTopic { topic: request.topic.clone() }.into())
            }
            Reply::Refused(
                refusal @ (Refusal::DelayedFull { .. }
                | Refusal::TimersFull { .. }
                | Refusal::Limit { .. }),
            ) => Err(Overloaded { what: refusal.to_string(), retry_after: RETRY_AFTER }.into()),
            other => Err(unexpected(&other).into()),
        }
    }

    /// The delayed message that a handle names, if the handle is this broker group's, and the topic
    /// that it is to be of.
    pub(super) fn open_recall(
        &self,
        topic: &TopicName,
        handle: RecallHandle,
    ) -> Result<(TimerKey, String), TimerError> {
        let key = self.handle_key().ok_or_else(|| Unavailable {
            reason: "this node does not know the key of handles yet".to_owned(),
            outcome_unknown: false,
        })?;
        let named = handle.open(&key)?;
        let of =
            self.group.read(|state| state.topic_by_id(named.topic).map(|found| found.name.clone()));
        if of.is_some_and(|of| of != *topic) {
            return Err(BadRecallHandle { why: "is of another topic" }.into());
        }
        let Recallable { topic, position, message_id } = named;
        let id_hash = MessageIdHash::of(&message_id);
        Ok((TimerKey { topic, id_hash, position: Some(position) }, message_id))
    }

    fn timer_of_id(&self, topic: &TopicName, id: &str) -> Option<TimerKey> {
        let topic = self.group.read(|state| state.topic(topic).map(|topic| topic.id))?;
        Some(TimerKey { topic, id_hash: MessageIdHash::of(id), position: None })
    }

    /// Refuses a topic here that takes no delayed messages.
    pub(super) fn check_takes_delayed(&self, name: &TopicName) -> Result<(), TimerError> {
        self.group.read(|state| match state.topic(name) {
            Some(topic) if !topic.kinds.contains(&MessageKind::Delay) => {
                let takes = topic.kinds.iter().map(|kind| kind.name()).collect();
                let (topic, kind) = (name.clone(), MessageKind::Delay);
                Err(KindConflict { topic, kind, takes }.into())
            }
            _ => Ok(()),
        })
    }
}

impl Replica {
    /// The oldest pending message of an id in this broker group.
    pub(super) async fn change_by_id(
        &self,
        (topic, message_id): (&TopicName, &str),
        change: TimerChange,
        deadline: Instant,
    ) -> Result<TimerOutcome, Unavailable> {
        if let Some(timer) = self.timer_of_id(topic, message_id)
            && let Some(outcome) = self.change_timer(timer, change, deadline).await?
        {
            return Ok(outcome);
        }
        // This replica may still know the topic that was deleted before one of the same name was
        // made.
        self.catch_up_by(deadline).await?;
        let outcome = match self.timer_of_id(topic, message_id) {
            Some(timer) => self.change_timer(timer, change, deadline).await?,
            None => None,
        };
        Ok(outcome.unwrap_or(TimerOutcome::NotFound))
    }

    /// `None` when there is no such topic (any more).
    pub(super) async fn change_timer(
        &self,
        timer: TimerKey,
        change: TimerChange,
        deadline: Instant,
    ) -> Result<Option<TimerOutcome>, Unavailable> {
        let command = match change {
            TimerChange::Recall => Command::Recall(timer),
            TimerChange::DeliverAt(due) => Command::Reschedule { timer, due },
        };
        match self.group.propose(command, deadline).await.map_err(|error| unavailable(&error))? {
            Reply::Timer(outcome) => Ok(Some(outcome)),
            Reply::Refused(Refusal::NoTopic { .. }) => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn wall(&self) -> UtcMillis {
        self.group.wall()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_that_signed_opens_a_recall_handle() {
        let named = Recallable {
            topic: TopicId::new(2),
            position: LogPosition::new(77),
            message_id: "id-\u{fc}".to_owned(),
        };
        let group = BrokerGroupId::new(5);
        let text = named.seal(group, &[7; 32]);
        let parsed = RecallHandle::parse(&text).unwrap();
        assert_eq!(parsed.broker_group, group);
        assert_eq!(parsed.clone().open(&[7; 32]), Ok(named));
        assert!(parsed.open(&[8; 32]).is_err());
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            let opened = RecallHandle::parse(&changed).and_then(|handle| handle.open(&[7; 32]));
            assert!(opened.is_err(), "character {at} is not covered");
        }
        for text in ["", "03", "zz", &"0".repeat(10_000)] {
            assert!(RecallHandle::parse(text).is_err(), "{text:?}");
        }
    }
}
