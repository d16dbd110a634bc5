//! Taking half messages in, ending and listing them: what one replica does.

use std::sync::atomic::Ordering;

use super::id::TransactionName;
use super::{EndRequest, PrepareRequest, PreparedMessage, TransactionFilter, TransactionInfo};
use crate::base::{LogPosition, QueueId, TopicId};
use crate::broker::Replica;
use crate::broker::error::{
    BadTransactionId, DecidedOtherwise, EndError, HalvesFull, KindConflict, NoTopic, NoTransaction,
    SendError, Unavailable,
};
use crate::broker::propose::{send_error, unavailable, unexpected};
use crate::broker::remote::Declined;
use crate::broker::replica::Inner;
use crate::command::{
    Command, Decided, End, HalfItem, Prepare, Prepared, Refusal, Reply, Transaction,
};
use crate::machine::Half;
use crate::message::{MessageIdHash, MessageKind, decode_record};

impl Replica {
    /// All half messages of the request are one entry, each a transaction of its own.
    pub(in crate::broker) async fn prepare(
        &self,
        request: &PrepareRequest,
    ) -> Result<Vec<PreparedMessage>, SendError> {
        let (topic, deadline) = (&request.send.topic, request.send.deadline);
        self.resolve_topic(topic, deadline).await?;
        match self.propose_halves(request).await {
            // As for a send: a topic may have been deleted and made again.
            Err(SendError::NoTopic(_)) => {
                self.catch_up().await?;
                self.resolve_topic(topic, deadline).await?;
                self.propose_halves(request).await
            }
            outcome => outcome,
        }
    }

    pub(in crate::broker) async fn end_transaction(
        &self,
        request: &EndRequest,
    ) -> Result<Decided, EndError> {
        let transaction = self.open_transaction(request)?;
        let end = End { transaction, decision: request.decision, by: request.by };
        let reply = self.group.propose(Command::End(end), request.deadline).await;
        match reply.map_err(|error| unavailable(&error))? {
            Reply::Ended { decided, .. } => Ok(decided),
            Reply::Refused(refusal) => Err(end_error(&refusal)),
            other => Err(unexpected(&other).into()),
        }
    }

    /// It is undecided still; asks about it begin anew.
    pub(in crate::broker) async fn resume_transaction(&self, text: &str) -> Result<(), EndError> {
        let name = TransactionName::open(self.id, text, &self.signing_key()?)?;
        let resume = Command::Resume(name.transaction);
        match self.group.propose(resume, self.default_deadline()).await {
            Ok(Reply::Done) => Ok(()),
            Ok(Reply::Refused(refusal)) => Err(end_error(&refusal)),
            Ok(other) => Err(unexpected(&other).into()),
            Err(error) => Err(unavailable(&error).into()),
        }
    }

    /// At most `limit`, from the one behind `after`.
    pub(in crate::broker) async fn transactions(
        &self,
        filter: &TransactionFilter,
        after: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<TransactionInfo>, Unavailable> {
        self.catch_up().await?;
        let key = self.signing_key()?;
        let found: Vec<(LogPosition, Half)> = self.group.read(|state| {
            let topic = filter.topic.as_ref().map(|name| state.topic(name).map(|topic| topic.id));
            let wanted = |(_, half): &(LogPosition, &Half)| {
                topic.is_none_or(|topic| topic == Some(half.topic))
                    && (!filter.parked || half.is_parked())
            };
            let page = state.halves_after(after).filter(wanted).take(limit);
            page.map(|(at, half)| (at, half.clone())).collect()
        });
        let mut infos = Vec::with_capacity(found.len());
        for (at, half) in found {
            let record = self.record(half.unit).map_err(declined)?;
            // Decided and gone since it was listed.
            let Some(record) = record else { continue };
            let stored = decode_record(&record).map_err(|error| unreadable(at, &error))?;
            let message_id = stored.message.message_id;
            let transaction = Transaction { topic: half.topic, at };
            let name = TransactionName { transaction, message: MessageIdHash::of(&message_id) };
            infos.push(TransactionInfo {
                transaction: name.sign(self.id, &key),
                broker_group: self.name.clone(),
                topic: stored.message.topic,
                message_id,
                bytes: half.unit.size,
                prepared: half.prepared(),
                checks: half.checks,
                checks_max: half.checks_max,
                next_check: (!half.is_parked()).then_some(half.due),
                producer: half.producer,
            });
        }
        Ok(infos)
    }
}

impl Inner {
    async fn propose_halves(
        &self,
        request: &PrepareRequest,
    ) -> Result<Vec<PreparedMessage>, SendError> {
        let key = self.signing_key()?;
        let (topic, queue) = self.half_target(request)?;
        let rule = self.options.checks;
        let queues = vec![queue; request.send.messages.len()];
        let items = self.items(&request.send, &queues)?;
        assert_eq!(items.len(), request.first_checks.len(), "one time for each message");
        let half = |(item, first): (_, &Option<_>)| HalfItem {
            item,
            first_check: first.unwrap_or(rule.first),
        };
        let prepare = Prepare {
            topic,
            producer: request.producer.clone(),
            interval: rule.interval,
            checks_max: rule.max,
            halves: items.into_iter().zip(&request.first_checks).map(half).collect(),
        };
        let reply = self.group.propose(Command::Prepare(prepare), request.send.deadline).await;
        let prepared = match reply.map_err(|error| send_error(&error))? {
            Reply::Prepared(prepared) => prepared,
            Reply::Refused(Refusal::NoTopic { .. }) => {
                return Err(NoTopic { topic: request.send.topic.clone() }.into());
            }
            Reply::Refused(full @ (Refusal::HalvesFull { .. } | Refusal::Limit { .. })) => {
                return Err(HalvesFull { reason: full.to_string() }.into());
            }
            other => return Err(unexpected(&other).into()),
        };
        assert_eq!(prepared.len(), request.send.messages.len(), "one outcome for each message");
        let first = prepared.iter().filter(|outcome| !outcome.repeated).count() as u64;
        crate::metrics::MESSAGES_IN.add([request.send.topic.as_str()], first);
        let named = |(message, Prepared { at, .. }): (&crate::message::Message, Prepared)| {
            let transaction = Transaction { topic, at };
            let message_id = message.message_id.clone();
            let name = TransactionName { transaction, message: MessageIdHash::of(&message_id) };
            PreparedMessage { message_id, transaction: name.sign(self.id, &key) }
        };
        Ok(request.send.messages.iter().zip(prepared).map(named).collect())
    }

    /// The queue that they come to once they are committed.
    fn half_target(&self, request: &PrepareRequest) -> Result<(TopicId, QueueId), SendError> {
        let name = &request.send.topic;
        self.group.read(|state| {
            let topic = state.topic(name).ok_or_else(|| NoTopic { topic: name.clone() })?;
            let kind = MessageKind::Transaction;
            if !topic.kinds.contains(&kind) {
                let takes = topic.kinds.iter().map(|kind| kind.name()).collect();
                return Err(KindConflict { topic: name.clone(), kind, takes }.into());
            }
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            Ok((topic.id, QueueId::new(turn % topic.queues)))
        })
    }

    pub(in crate::broker) fn signing_key(&self) -> Result<[u8; 32], Unavailable> {
        self.handle_key().ok_or_else(|| Unavailable {
            reason: "the broker group has not been founded yet".into(),
            outcome_unknown: false,
        })
    }

    /// A transaction id is good only for the topic and message that it was issued for.
    pub(in crate::broker) fn open_transaction(
        &self,
        request: &EndRequest,
    ) -> Result<Transaction, EndError> {
        let key = self.signing_key()?;
        let name = TransactionName::open(self.id, &request.transaction, &key)?;
        if request.message_id.as_ref().is_some_and(|id| MessageIdHash::of(id) != name.message) {
            return Err(BadTransactionId { why: "belongs to another message" }.into());
        }
        if let Some(topic) = &request.topic {
            // A follower may not have applied the creation yet; apply checks the id again.
            let id = self.group.read(|state| state.topic(topic).map(|topic| topic.id));
            if id.is_some_and(|id| id != name.transaction.topic) {
                return Err(BadTransactionId { why: "belongs to another topic" }.into());
            }
        }
        Ok(name.transaction)
    }
}

fn end_error(refusal: &Refusal) -> EndError {
    let reason = refusal.to_string();
    match refusal {
        Refusal::Decided { .. } => DecidedOtherwise { reason }.into(),
        Refusal::NoTransaction { .. } => NoTransaction { reason }.into(),
        _ => Unavailable { reason, outcome_unknown: false }.into(),
    }
}

pub(super) fn unreadable(at: LogPosition, error: &dyn std::fmt::Display) -> Unavailable {
    let reason = format!("the half message at {at} cannot be read: {error}");
    Unavailable { reason, outcome_unknown: false }
}

pub(super) fn declined(declined: Declined) -> Unavailable {
    Unavailable { reason: format!("{declined:?}"), outcome_unknown: false }
}
