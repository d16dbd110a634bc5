//! Receives, and does with what it got what consumers do: acknowledges it, holds it, forgets it.

use std::time::Duration;

use raftmq::base::{ClientId, Millis};
use raftmq::broker::{
    AckError, AckRequest, Delivered, FilterText, HoldError, HoldRequest, ReceiveRequest, leaving,
};
use tokio::time::{Instant, sleep};

use super::producer::decode;
use super::{Called, Clients, group_name, outcome_of, topic_name};
use crate::history::{Answer, Delivery, Outcome, Place, Wanted, What};
use crate::simulate::random::Random;

/// How long a consumer listens beyond its polling time.
const PATIENCE: Duration = Duration::from_secs(3);
/// Tags that are asked for and never sent; a group may have 64 subscriptions to a topic.
const NEVER: u64 = 25;

pub(super) struct Consumer {
    pub(super) clients: Clients,
    pub(super) id: u32,
    pub(super) group: u32,
    pub(super) random: Random,
}

pub(super) async fn run(clients: Clients, consumer: u32, group: u32) {
    let random = clients.random(&format!("consumer {consumer}"));
    let id = 1000 + consumer;
    let consumer = Consumer { clients, id, group, random };
    let topics = consumer.clients.0.workload.all_topics();
    let mut turn = consumer.id;
    loop {
        let draining = consumer.clients.is_draining();
        let pause = if draining { 5 } else { consumer.random.between(1, 300) };
        sleep(Duration::from_millis(pause)).await;
        turn = turn.wrapping_add(1);
        consumer.round(turn % topics, draining).await;
    }
}

impl Consumer {
    /// One receive, and what becomes of its messages.
    async fn round(&self, topic: u32, draining: bool) {
        let invisible = if draining {
            2_000
        } else {
            self.random.between(200, self.clients.0.workload.invisible_millis + 1)
        };
        let wants = self.wants(topic, draining);
        let Some(messages) = self.receive(topic, invisible, wants).await else { return };
        for message in messages {
            let lot = self.random.between(0, 100);
            match lot {
                _ if draining => self.ack(topic, &message).await,
                0..70 => self.ack(topic, &message).await,
                70..80 => {
                    let invisible = self.random.between(0, 3_000);
                    self.hold(topic, &message, invisible).await;
                    if self.random.percent(50) {
                        self.ack(topic, &message).await;
                    }
                }
                80..85 => {
                    // Twice: the second finds it done, or is late.
                    self.ack(topic, &message).await;
                    self.ack(topic, &message).await;
                }
                85..90 => {
                    sleep(Duration::from_millis(self.random.between(1, invisible * 2))).await;
                    self.ack(topic, &message).await;
                }
                _ => {}
            }
        }
    }

    /// Members of a group that asks for tags change their minds, and disagree.
    pub(super) fn wants(&self, topic: u32, draining: bool) -> Wanted {
        let workload = &self.clients.0.workload;
        // What nobody wants holds nothing up, so that order would not be all that is told.
        let ordered = topic == workload.ordered_topic();
        if draining || self.group == 0 || ordered || !workload.tagged {
            return Wanted::All;
        }
        if self.group == workload.groups {
            // One for each, so that both are wanted as long as both are there.
            return if self.id.is_multiple_of(2) { Wanted::Even } else { Wanted::Odd };
        }
        *self.random.pick(&[Wanted::Even, Wanted::Even, Wanted::Odd, Wanted::All])
    }

    /// Now and then with a tag that nobody sends: a subscription that the group did not have, so
    /// that what others are about to skip was found under an older version.
    fn filter(&self, wants: Wanted) -> String {
        let filter = wants.filter();
        if wants == Wanted::All || !self.random.percent(40) {
            return filter.to_owned();
        }
        format!("{filter} || never-{}", self.random.between(0, NEVER))
    }

    pub(super) async fn receive(
        &self,
        topic: u32,
        invisible: u64,
        wants: Wanted,
    ) -> Option<Vec<Delivered>> {
        // A drain has no time to wait where nothing is.
        let (poll, batch) = if self.clients.is_draining() {
            (20, 32)
        } else {
            (self.random.between(0, 1_000), self.random.between(1, 17))
        };
        let poll = Duration::from_millis(poll);
        let request = ReceiveRequest {
            topic: topic_name(topic),
            group: group_name(self.group),
            client: ClientId::new(&format!("consumer-{}", self.id)).expect("the name is one"),
            filter: FilterText::Tags(self.filter(wants)),
            batch: u32::try_from(batch).unwrap_or(1),
            invisible: Millis::new(invisible),
            auto_renew: false,
            attempt_id: None,
            poll,
        };
        let group = self.group;
        let call = self
            .clients
            .invoke(self.id, What::Receive { group, topic, invisible: invisible * 1000, wants });
        let received = self.clients.call(&self.random, poll + PATIENCE, move |broker| async move {
            let (_leaving, gone) = leaving();
            broker.receive(request, &gone).await
        });
        let mut messages = None;
        let outcome = match received.await {
            Called::Answered(Ok(delivered)) => {
                let seen = delivered.iter().map(|message| delivery(topic, message)).collect();
                messages = Some(delivered);
                Outcome::Ok(Answer::Received(seen))
            }
            Called::Answered(Err(error)) => Outcome::Unknown(error.to_string()),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        self.clients.complete(call, outcome);
        messages
    }

    pub(super) async fn ack(&self, topic: u32, message: &Delivered) {
        let Delivery { place, attempt, .. } = delivery(topic, message);
        let what = What::Ack { group: self.group, place, attempt };
        let call = self.clients.invoke(self.id, what);
        let (name, group, handle) =
            (topic_name(topic), group_name(self.group), message.handle.clone());
        let acked = self.clients.call(&self.random, PATIENCE, move |broker| async move {
            let deadline = Instant::now() + PATIENCE;
            let request = AckRequest { topic: name, group, handles: vec![handle], deadline };
            broker.ack(request).await.pop()
        });
        let outcome = match acked.await {
            Called::Answered(Some(Ok(()))) => Outcome::Ok(Answer::Done),
            Called::Answered(Some(Err(AckError::Unavailable(error)))) => outcome_of(&error),
            // The handle's delivery is over; whether by this ack's first try, nobody says.
            Called::Answered(Some(Err(AckError::BadHandle(error)))) => {
                Outcome::Unknown(error.to_string())
            }
            Called::Answered(None) => Outcome::Unknown("an empty answer".to_owned()),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        self.clients.complete(call, outcome);
    }

    pub(super) async fn hold(&self, topic: u32, message: &Delivered, invisible: u64) {
        let Delivery { place, attempt, .. } = delivery(topic, message);
        let what = What::Hold { group: self.group, place, attempt, invisible: invisible * 1000 };
        let call = self.clients.invoke(self.id, what);
        let (name, group, handle) =
            (topic_name(topic), group_name(self.group), message.handle.clone());
        let held = self.clients.call(&self.random, PATIENCE, move |broker| async move {
            let request = HoldRequest {
                topic: name,
                group,
                handle,
                invisible: Millis::new(invisible),
                deadline: Instant::now() + PATIENCE,
            };
            broker.hold(request).await
        });
        let outcome = match held.await {
            Called::Answered(Ok(_)) => Outcome::Ok(Answer::Done),
            Called::Answered(Err(HoldError::Unavailable(error))) => outcome_of(&error),
            Called::Answered(Err(HoldError::BadHandle(error))) => {
                Outcome::Unknown(error.to_string())
            }
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        self.clients.complete(call, outcome);
    }

    /// Tries it no more.
    pub(super) async fn give_up(&self, topic: u32, message: &Delivered) {
        let Delivery { place, attempt, .. } = delivery(topic, message);
        let what = What::GiveUp { group: self.group, place, attempt };
        let call = self.clients.invoke(self.id, what);
        let (name, group, handle) =
            (topic_name(topic), group_name(self.group), message.handle.clone());
        let given = self.clients.call(&self.random, PATIENCE, move |broker| async move {
            let request = HoldRequest {
                topic: name,
                group,
                handle,
                invisible: Millis::new(500),
                deadline: Instant::now() + PATIENCE,
            };
            broker.give_up(request).await
        });
        let outcome = match given.await {
            Called::Answered(Ok(())) => Outcome::Ok(Answer::Done),
            Called::Answered(Err(HoldError::Unavailable(error))) => outcome_of(&error),
            Called::Answered(Err(HoldError::BadHandle(error))) => {
                Outcome::Unknown(error.to_string())
            }
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        self.clients.complete(call, outcome);
    }
}

fn delivery(topic: u32, message: &Delivered) -> Delivery {
    let place = Place { topic, queue: message.queue.get(), offset: message.offset.get() };
    Delivery { place, value: decode(&message.message.body), attempt: message.attempt }
}
