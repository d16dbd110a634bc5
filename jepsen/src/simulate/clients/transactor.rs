//! Sends transactional messages and ends most of them; others are asked about the rest, and an
//! operator looks after what is left.

use std::time::Duration;

use raftmq::base::{ClientId, Millis, UtcMillis};
use raftmq::broker::{
    Decider, Decision, EndError, EndRequest, PrepareRequest, SendError, SendRequest,
    TransactionFilter,
};
use raftmq::message::{BodyEncoding, Message, MessageKind};
use tokio::time::{Instant, sleep, timeout};

use super::producer::{decode, encode};
use super::{Called, Clients, outcome_of, topic_name};
use crate::history::{Answer, Outcome, Place, Value, What};
use crate::simulate::random::Random;

/// How long a client listens, and how long the broker tries.
const PATIENCE: Duration = Duration::from_secs(4);
/// A call whose outcome is not known is made again so often at most.
const AGAIN: u32 = 3;
/// Transactors are told apart from producers by their numbers.
const FIRST: u32 = 100;

struct Transactor {
    clients: Clients,
    topic: u32,
    id: u32,
    random: Random,
}

fn name(id: u32) -> ClientId {
    ClientId::new(&format!("transactor-{id}")).expect("the name is one")
}

/// Prepares and ends.
pub(super) async fn run(clients: Clients, topic: u32, number: u32) {
    let random = clients.random(&format!("transactor {number}"));
    let transactor = Transactor { clients, topic, id: FIRST + number, random };
    let mut count = 0;
    while !transactor.clients.is_quiet() {
        let pause = transactor.clients.0.workload.send_pause_millis * 2;
        sleep(Duration::from_millis(transactor.random.between(1, pause + 1))).await;
        transactor.transact(Value { producer: transactor.id, count }).await;
        count += 1;
    }
}

/// Is connected now here and now there, and answers what it is asked.
pub(super) async fn answer(clients: Clients, topic: u32, number: u32) {
    let random = clients.random(&format!("answerer {number}"));
    // Under the name of one that prepares, now and then.
    let transactor = Transactor { clients, topic, id: FIRST + number, random };
    while !transactor.clients.is_quiet() {
        sleep(Duration::from_millis(transactor.random.between(1, 1_000))).await;
        let Some((value, id)) = transactor.listen().await else { continue };
        match transactor.random.between(0, 100) {
            0..45 => transactor.end(value, &id, Decision::Commit, Decider::Check).await,
            45..70 => transactor.end(value, &id, Decision::RollBack, Decider::Check).await,
            _ => {}
        }
    }
}

/// Decides what nobody is asked about any more.
pub(super) async fn operate(clients: Clients, topic: u32) {
    let random = clients.random("operator");
    let operator = Transactor { clients, topic, id: FIRST - 1, random };
    while !operator.clients.is_quiet() {
        sleep(Duration::from_millis(operator.random.between(200, 2_000))).await;
        let filter = TransactionFilter { parked: true, limit: 4, ..TransactionFilter::default() };
        let listed = operator.clients.call(&operator.random, PATIENCE, move |broker| async move {
            broker.transactions(&filter).await
        });
        let Called::Answered(Ok(parked)) = listed.await else { continue };
        for one in parked {
            let Some(value) = value_of(&one.message_id) else { continue };
            match operator.random.between(0, 3) {
                0 => {
                    operator.end(value, &one.transaction, Decision::Commit, Decider::Operator).await
                }
                1 => {
                    let decision = Decision::RollBack;
                    operator.end(value, &one.transaction, decision, Decider::Operator).await;
                }
                _ => operator.resume(one.transaction).await,
            }
        }
    }
}

fn message_id(value: Value) -> String {
    format!("half-{}-{}", value.producer, value.count)
}

fn value_of(message_id: &str) -> Option<Value> {
    let (producer, count) = message_id.strip_prefix("half-")?.split_once('-')?;
    Some(Value { producer: producer.parse().ok()?, count: count.parse().ok()? })
}

impl Transactor {
    async fn transact(&self, value: Value) {
        let len = self.random.between(0, self.clients.0.workload.body_max + 1);
        let message = self.message(value, len);
        let mut id = None;
        for _ in 0..=AGAIN {
            let (told, unknown) = self.prepare(value, &message).await;
            id = told.or(id);
            // Now and then a client that knows the outcome sends again all the same.
            if !unknown && !self.random.percent(5) {
                break;
            }
        }
        let Some(id) = id else { return };
        sleep(Duration::from_millis(self.random.between(0, 300))).await;
        let by = Decider::Producer;
        match self.random.between(0, 100) {
            0..50 => self.end(value, &id, Decision::Commit, by).await,
            50..70 => self.end(value, &id, Decision::RollBack, by).await,
            70..80 => {
                // Both at once: one of them is told the fact.
                let commit = self.end(value, &id, Decision::Commit, by);
                let roll_back = self.end(value, &id, Decision::RollBack, by);
                tokio::join!(commit, roll_back);
            }
            80..84 => {
                self.end(value, &id, Decision::RollBack, by).await;
                self.end(value, &id, Decision::Commit, by).await;
            }
            // Somebody will be asked.
            _ => {}
        }
    }

    fn message(&self, value: Value, len: u64) -> Message {
        Message {
            topic: topic_name(self.topic),
            body: encode(value, len),
            encoding: BodyEncoding::Identity,
            message_id: message_id(value),
            kind: MessageKind::Transaction,
            tag: None,
            keys: Vec::new(),
            properties: Vec::new(),
            message_group: None,
            born: UtcMillis::new(1_700_000_000_000),
            born_host: "127.0.0.1:1".to_owned(),
            trace_context: None,
            deliver_at: None,
            priority: None,
        }
    }

    /// The transaction id, if it is known now; and whether nobody knows what came of it.
    async fn prepare(&self, value: Value, message: &Message) -> (Option<String>, bool) {
        let topic = self.topic;
        let call = self.clients.invoke(self.id, What::Prepare { topic, value });
        let (message, producer) = (message.clone(), name(self.id));
        let first = self.random.percent(30).then(|| Millis::new(self.random.between(0, 2_000)));
        let prepared = self.clients.call(&self.random, PATIENCE, move |broker| async move {
            let send = SendRequest {
                topic: message.topic.clone(),
                messages: vec![message],
                deadline: Instant::now() + PATIENCE,
            };
            broker.prepare(PrepareRequest { send, producer, first_checks: vec![first] }).await
        });
        let mut id = None;
        let outcome = match prepared.await {
            Called::Answered(Ok(prepared)) => match &prepared[..] {
                [one] => {
                    id = Some(one.transaction.clone());
                    Outcome::Ok(Answer::Prepared(one.transaction.clone()))
                }
                other => Outcome::Unknown(format!("{} answers to one message", other.len())),
            },
            Called::Answered(Err(SendError::Unavailable(error))) => outcome_of(&error),
            Called::Answered(Err(error)) => Outcome::Fail(error.to_string()),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        let unknown = matches!(outcome, Outcome::Unknown(_));
        self.clients.complete(call, outcome);
        (id, unknown)
    }

    /// Ends it, again and again while nobody knows what came of it.
    async fn end(&self, value: Value, id: &str, decision: Decision, by: Decider) {
        for _ in 0..=AGAIN {
            let unknown = self.end_once(value, id, decision, by).await;
            let again = if unknown { self.random.percent(70) } else { self.random.percent(5) };
            if !again || self.clients.is_quiet() {
                return;
            }
        }
    }

    /// True when nobody knows what came of it.
    async fn end_once(&self, value: Value, id: &str, decision: Decision, by: Decider) -> bool {
        let (topic, commit) = (self.topic, decision == Decision::Commit);
        let call = self.clients.invoke(self.id, What::End { topic, value, commit });
        let request = EndRequest {
            transaction: id.to_owned(),
            topic: (by != Decider::Operator).then(|| topic_name(topic)),
            message_id: (by != Decider::Operator).then(|| message_id(value)),
            decision,
            by,
            deadline: Instant::now() + PATIENCE,
        };
        let ended = self.clients.call(&self.random, PATIENCE, move |broker| async move {
            // The hosts' clocks differ: the deadline is the node's.
            let deadline = Instant::now() + PATIENCE;
            broker.end_transaction(EndRequest { deadline, ..request }).await
        });
        let outcome = match ended.await {
            Called::Answered(Ok(decided)) => match decided.place {
                Some((queue, offset)) if commit => {
                    let (queue, offset) = (queue.get(), offset.get());
                    Outcome::Ok(Answer::Sent(Place { topic, queue, offset }))
                }
                // An OK is one to what was asked for, wherever it says that the message lies.
                _ => Outcome::Ok(Answer::Done),
            },
            Called::Answered(Err(EndError::DecidedOtherwise(_))) => {
                Outcome::Ok(Answer::Decided { committed: !commit })
            }
            Called::Answered(Err(EndError::NoTransaction(_) | EndError::BadTransactionId(_))) => {
                Outcome::Ok(Answer::NoTransaction)
            }
            Called::Answered(Err(EndError::Unavailable(error))) => outcome_of(&error),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        let unknown = matches!(outcome, Outcome::Unknown(_));
        self.clients.complete(call, outcome);
        unknown
    }

    async fn resume(&self, id: String) {
        let resumed = self.clients.call(&self.random, PATIENCE, move |broker| async move {
            broker.resume_transaction(&id).await.is_ok()
        });
        // What it does is seen by the questions that come of it.
        let _: Called<bool> = resumed.await;
    }

    /// Connected to one node for a while: what it is asked about.
    async fn listen(&self) -> Option<(Value, String)> {
        let topic = self.topic;
        let call = self.clients.invoke(self.id, What::Listen { topic });
        let client = name(self.id);
        let wait = Duration::from_millis(self.random.between(100, 2_500));
        let heard = self.clients.call(&self.random, wait + PATIENCE, move |broker| async move {
            let mut stream = broker.producer_stream(&client);
            stream.publishes([topic_name(topic)]);
            // Nothing asked in time is an answer.
            let pending = timeout(wait, stream.next()).await.ok()?;
            let check = pending.check.clone();
            pending.written();
            Some(check)
        });
        let mut asked = None;
        let outcome = match heard.await {
            Called::Answered(Some(check)) => {
                let value = decode(&check.message.body);
                asked = value.map(|value| (value, check.transaction));
                Outcome::Ok(Answer::Asked(value))
            }
            Called::Answered(None) => Outcome::Ok(Answer::Asked(None)),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        self.clients.complete(call, outcome);
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_id_names_its_value() {
        let value = Value { producer: 101, count: 7 };
        assert_eq!(value_of(&message_id(value)), Some(value));
        assert_eq!(value_of("message-1-2"), None);
    }
}
