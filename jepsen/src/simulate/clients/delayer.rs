//! Sends messages for later, and changes its mind about some of them around their time.

use std::time::Duration;

use raftmq::base::UtcMillis;
use raftmq::broker::{
    DelayedMessage, SendError, SendRequest, TimerChange, TimerError, TimerOutcome, TimerRequest,
};
use raftmq::message::MessageKind;
use tokio::time::{Instant, sleep};

use super::producer::message;
use super::{Called, Clients, outcome_of, topic_name};
use crate::history::{Answer, Ending, Micros, Outcome, Value, What};
use crate::simulate::random::Random;
use crate::simulate::world::STARTED;

/// How long it listens, and how long the broker tries.
const PATIENCE: Duration = Duration::from_secs(4);
/// Delayers are told apart from other producers by their numbers.
const FIRST: u32 = 500;

pub(super) async fn run(clients: Clients, delayer: u32) {
    let random = clients.random(&format!("delayer {delayer}"));
    let workload = clients.0.workload.clone();
    let topic = workload.delayed_topic();
    let mut count = 0;
    while !clients.is_quiet() {
        sleep(Duration::from_millis(random.between(20, 3 * workload.send_pause_millis + 21))).await;
        let value = Value { producer: FIRST + delayer, count };
        count += 1;
        let len = random.between(0, workload.body_max + 1);
        let one = Delayer { clients: clients.clone(), topic, value };
        // Some are due before they are sent.
        let delay = random.between(0, 5_000_000).saturating_sub(200_000);
        let due = one.clients.now() + delay;
        let life = clients.random(&format!("delayed {value}"));
        tokio::spawn(async move { one.live(&life, len, due).await });
    }
}

struct Delayer {
    clients: Clients,
    topic: u32,
    value: Value,
}

fn instant(at: Micros) -> UtcMillis {
    // Up to the next millisecond, so that what is on time is not early.
    UtcMillis::new(STARTED + at.div_ceil(1000))
}

impl Delayer {
    /// One message, from its sending to what is asked for it last.
    async fn live(&self, random: &Random, len: u64, due: Micros) {
        let mut handle = None;
        for _ in 0..4 {
            let (unknown, told) = self.send(random, len, due).await;
            handle = handle.or(told);
            let again = if unknown { random.percent(60) } else { random.percent(5) };
            if !again {
                break;
            }
        }
        if random.percent(15) {
            let change = self.clients.now() + random.between(0, 4_000_000);
            self.ask(random, handle.as_ref(), Some(change)).await;
            return;
        }
        if !random.percent(50) {
            return;
        }
        // Most recalls come around the due time.
        let around = (due + random.between(0, 100_000)).saturating_sub(60_000);
        let wait = around.saturating_sub(self.clients.now());
        let wait = if random.percent(70) { wait } else { random.between(0, 1_000_000) };
        sleep(Duration::from_micros(wait)).await;
        while self.ask(random, handle.as_ref(), None).await && random.percent(80) {
            sleep(Duration::from_millis(random.between(1, 200))).await;
        }
    }

    /// True when nobody knows what came of it, and the recall handle.
    async fn send(&self, random: &Random, len: u64, due: Micros) -> (bool, Option<String>) {
        let (topic, value) = (self.topic, self.value);
        let call = self.clients.invoke(value.producer, What::SendDelayed { topic, value, due });
        let tagged = self.clients.is_tagged();
        let mut message = message(topic, value, len, tagged);
        message.kind = MessageKind::Delay;
        message.deliver_at = Some(instant(due));
        let sent = self.clients.call(random, PATIENCE, move |broker| async move {
            let request = SendRequest {
                topic: message.topic.clone(),
                messages: vec![message],
                deadline: Instant::now() + PATIENCE,
            };
            broker.send(request).await
        });
        let mut told = None;
        let outcome = match sent.await {
            Called::Answered(Ok(sent)) => {
                told = sent.into_iter().next().and_then(|sent| sent.recall_handle);
                match &told {
                    Some(handle) => Outcome::Ok(Answer::Scheduled(handle.clone())),
                    None => Outcome::Unknown("no recall handle".to_owned()),
                }
            }
            Called::Answered(Err(SendError::Unavailable(error))) => outcome_of(&error),
            Called::Answered(Err(error)) => Outcome::Fail(error.to_string()),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        let unknown = matches!(outcome, Outcome::Unknown(_));
        self.clients.complete(call, outcome);
        (unknown, told)
    }

    /// Recalls it, or asks for another time; true when it is to be asked again.
    async fn ask(&self, random: &Random, handle: Option<&String>, due: Option<Micros>) -> bool {
        let (topic, value) = (self.topic, self.value);
        let by_handle = random.percent(50);
        let which = match handle {
            Some(handle) if by_handle => DelayedMessage::Handle(handle.clone()),
            _ => DelayedMessage::Id(format!("message-{value}")),
        };
        let (what, change) = match due {
            None => (What::Recall { topic, value }, TimerChange::Recall),
            Some(due) => {
                let change = TimerChange::DeliverAt(instant(due));
                (What::Reschedule { topic, value, due }, change)
            }
        };
        let call = self.clients.invoke(value.producer, what);
        let asked = self.clients.call(random, PATIENCE, move |broker| async move {
            let topic = topic_name(topic);
            let deadline = Instant::now() + PATIENCE;
            broker.change_timer(TimerRequest { topic, which, change, deadline }).await
        });
        let outcome = match asked.await {
            Called::Answered(Ok(answer)) => Outcome::Ok(Answer::Ended(match answer.outcome {
                TimerOutcome::Recalled => Ending::Recalled,
                TimerOutcome::Rescheduled => Ending::Rescheduled,
                TimerOutcome::AlreadyFired => Ending::AlreadyFired,
                TimerOutcome::NotFound => Ending::NotFound,
            })),
            Called::Answered(Err(TimerError::Unavailable(error))) => outcome_of(&error),
            Called::Answered(Err(error)) => Outcome::Fail(error.to_string()),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        let again = !matches!(outcome, Outcome::Ok(_)) || random.percent(10);
        self.clients.complete(call, outcome);
        again
    }
}
