//! A group with few attempts, some of whose messages always fail; who reads its dead letters; and an
//! operator who sends them back, puts the group elsewhere and has it pause.

use std::time::Duration;

use raftmq::base::{ClientId, GroupName, Millis};
use raftmq::broker::{
    AckRequest, Begin, DeadLetterInfo, Delivered, Exhausted, FilterText, GroupError, LetterFilter,
    LetterPage, NewGroup, Order, OrderRule, ReceiveRequest, Redriven, StartAt, leaving,
};
use tokio::time::{Instant, sleep};

use super::consumer::Consumer;
use super::producer::decode;
use super::{Called, Clients, group_name, outcome_of};
use crate::history::{Answer, DeadLetter, Outcome, Place, Value, What};
use crate::simulate::random::Random;

pub(super) const PATIENCE: Duration = Duration::from_secs(4);
/// A redrive goes on through a change of leaders.
const LONG_PATIENCE: Duration = Duration::from_secs(10);
/// Numbers of its clients.
pub(super) const OPERATOR: u32 = 3000;
const READER: u32 = 3001;
const CONSUMER: u32 = 3100;
/// Its consumers; the last one comes and goes.
const CONSUMERS: u32 = 2;
/// Messages of which a consumer keeps the handles, to acknowledge them much later.
const KEPT_MAX: usize = 24;
/// Letters that are sent back at once at most.
const BACK_MAX: usize = 8;

/// How the group is made, and what is done to it.
#[derive(Clone, Debug)]
pub(crate) struct Hard {
    pub(crate) attempts_max: u32,
    /// It takes what comes after its creation only.
    pub(crate) latest: bool,
    /// It is reset now and then, and has to pause.
    pub(crate) operated: bool,
    /// It takes several of a message group at once.
    pub(crate) batch: bool,
}

/// No consumer ever acknowledges it.
fn is_poison(value: Option<Value>) -> bool {
    value.is_none_or(|value| value.count.is_multiple_of(5))
}

/// Everything that has to do with the group, from its creation on.
pub(super) async fn run(clients: Clients, hard: Hard) {
    let group = clients.0.workload.groups;
    let random = clients.random("operator");
    let operator = Operator { clients: clients.clone(), group, random, hard };
    sleep(Duration::from_millis(operator.random.between(1, 4_000))).await;
    while !operator.create().await {
        sleep(Duration::from_millis(100)).await;
    }
    for number in 0..CONSUMERS {
        tokio::spawn(consume(clients.clone(), group, number));
    }
    tokio::spawn(read(clients, group));
    operator.operate().await;
}

async fn consume(clients: Clients, group: u32, number: u32) {
    let random = clients.random(&format!("hard consumer {number}"));
    let workload = clients.0.workload.clone();
    let topics: Vec<u32> =
        (0..workload.all_topics()).filter(|topic| workload.takes(group, *topic)).collect();
    let consumer = Consumer { clients, id: CONSUMER + number, group, random };
    let mut turn = usize::try_from(number).unwrap_or_default();
    let mut kept = Vec::new();
    loop {
        let draining = consumer.clients.is_draining();
        let pause = if draining { 5 } else { consumer.random.between(1, 200) };
        sleep(Duration::from_millis(pause)).await;
        if !draining && number + 1 == CONSUMERS && consumer.random.percent(5) {
            sleep(Duration::from_millis(consumer.random.between(500, 3_000))).await;
        }
        turn += 1;
        round(&consumer, topics[turn % topics.len()], draining, &mut kept).await;
        // Late, whatever became of it: after a reset such a handle must do nothing.
        if !draining && kept.len() > 1 && consumer.random.percent(30) {
            let (topic, message) = kept.swap_remove(consumer.random.index(kept.len()));
            consumer.ack(topic, &message).await;
        }
    }
}

/// One receive, and what becomes of its messages.
async fn round(consumer: &Consumer, topic: u32, draining: bool, kept: &mut Vec<(u32, Delivered)>) {
    let invisible = if draining { 2_000 } else { consumer.random.between(200, 2_001) };
    let wants = consumer.wants(topic, draining);
    let Some(messages) = consumer.receive(topic, invisible, wants).await else { return };
    let most = consumer.clients.0.workload.hard.as_ref().map_or(0, |hard| hard.attempts_max);
    for message in messages {
        let lot = consumer.random.between(0, 100);
        // What there is no room to bury would go round for ever.
        let poison = is_poison(decode(&message.message.body)) && message.attempt <= most;
        if !poison && !draining && kept.len() < KEPT_MAX && consumer.random.percent(25) {
            kept.push((topic, message.clone()));
        }
        match lot {
            _ if draining && poison => consumer.hold(topic, &message, 0).await,
            _ if draining => consumer.ack(topic, &message).await,
            0..60 if poison => consumer.hold(topic, &message, 0).await,
            60..75 if poison => {
                let later = consumer.random.between(1, 600);
                consumer.hold(topic, &message, later).await;
            }
            75..83 if poison => consumer.give_up(topic, &message).await,
            0..80 if !poison => consumer.ack(topic, &message).await,
            80..88 if !poison => consumer.hold(topic, &message, 0).await,
            88..94 if !poison => {
                sleep(Duration::from_millis(consumer.random.between(1, invisible * 2))).await;
                consumer.ack(topic, &message).await;
            }
            _ => {}
        }
    }
}

/// Takes dead letters as messages of their topic.
async fn read(clients: Clients, group: u32) {
    let random = clients.random("reader of dead letters");
    let readers = GroupName::new("readers").expect("the name is one");
    while !clients.is_draining() {
        sleep(Duration::from_millis(random.between(200, 1_500))).await;
        let call = clients.invoke(READER, What::ReceiveDead { group });
        let request = ReceiveRequest {
            topic: group_name(group).dead_letters(),
            group: readers.clone(),
            client: ClientId::new("reader").expect("the name is one"),
            filter: FilterText::Tags("*".to_owned()),
            batch: 16,
            invisible: Millis::new(random.between(200, 2_000)),
            auto_renew: false,
            attempt_id: None,
            poll: Duration::from_millis(100),
        };
        let received = clients.call(&random, PATIENCE, move |broker| async move {
            let (_leaving, gone) = leaving();
            broker.receive(request, &gone).await
        });
        let mut letters = Vec::new();
        let outcome = match received.await {
            Called::Answered(Ok(delivered)) => {
                let seen = |one: &Delivered| (one.offset.get(), decode(&one.message.body));
                let seen = delivered.iter().map(seen).collect();
                letters = delivered;
                Outcome::Ok(Answer::Letters(seen))
            }
            Called::Answered(Err(error)) => Outcome::Unknown(error.to_string()),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        clients.complete(call, outcome);
        let handles: Vec<String> = letters.into_iter().map(|letter| letter.handle).collect();
        if handles.is_empty() || random.percent(30) {
            continue;
        }
        let (topic, group) = (group_name(group).dead_letters(), readers.clone());
        let acked = clients.call(&random, PATIENCE, move |broker| async move {
            let deadline = Instant::now() + PATIENCE;
            broker.ack(AckRequest { topic, group, handles, deadline }).await
        });
        drop(acked.await);
    }
}

pub(super) struct Operator {
    pub(super) clients: Clients,
    pub(super) group: u32,
    pub(super) random: Random,
    hard: Hard,
}

impl Operator {
    async fn create(&self) -> bool {
        let order = if self.hard.batch { Order::Batch } else { Order::Single };
        let start = if self.hard.latest { StartAt::Latest } else { StartAt::Earliest };
        let new = NewGroup {
            name: group_name(self.group),
            attempts_max: self.hard.attempts_max,
            backoff: vec![Millis::new(100)].into(),
            rule: OrderRule { order, exhausted: Exhausted::Dead },
            broker_groups: Vec::new(),
            dead_keep: None,
            begin: Begin { start, paused: false },
        };
        let what = What::CreateGroup { group: self.group, latest: self.hard.latest };
        let call = self.clients.invoke(OPERATOR, what);
        let readers = NewGroup {
            name: GroupName::new("readers").expect("the name is one"),
            attempts_max: 1000,
            begin: Begin::default(),
            ..new.clone()
        };
        let made = self.clients.call(&self.random, PATIENCE, move |broker| async move {
            broker.create_group(readers).await?;
            broker.create_group(new).await
        });
        let outcome = outcome(made.await, |_| Answer::Done);
        let good = matches!(outcome, Outcome::Ok(_));
        self.clients.complete(call, outcome);
        good
    }

    async fn operate(self) {
        let mut resets = 0;
        while !self.clients.is_quiet() {
            sleep(Duration::from_millis(self.random.between(100, 2_000))).await;
            match self.random.between(0, 100) {
                0..60 => self.look(self.random.percent(70)).await,
                60..80 if self.hard.operated && resets < 3 => {
                    resets += 1;
                    self.reset().await;
                }
                80..100 if self.hard.operated => self.rest().await,
                _ => {}
            }
        }
        if !self.hard.operated {
            return;
        }
        // A pause of which nobody knows what came may have come late.
        while !self.clients.is_draining() {
            sleep(Duration::from_millis(100)).await;
        }
        self.go_on().await;
    }

    /// Lists dead letters, and may send some of them back.
    async fn look(&self, redrive: bool) {
        let call = self.clients.invoke(OPERATOR, What::ListDead { group: self.group });
        let name = group_name(self.group);
        let listed = self.clients.call(&self.random, PATIENCE, move |broker| async move {
            broker.dead_letters(&name, &LetterFilter::default(), None, (200, None)).await
        });
        let listed = listed.await;
        let mut found = Vec::new();
        let outcome = outcome(listed, |page: LetterPage| {
            let seen = page.letters.iter().filter_map(letter).collect();
            found = page.letters;
            Answer::Dead(seen)
        });
        self.clients.complete(call, outcome);
        if !redrive || found.is_empty() {
            return;
        }
        let chosen = self.random.some(self.random.index(BACK_MAX) + 1, found.len());
        let mut chosen: Vec<DeadLetterInfo> =
            chosen.into_iter().map(|at| found[at].clone()).collect();
        chosen.sort_by_key(|letter| letter.at.offset);
        self.redrive(chosen).await;
    }

    async fn redrive(&self, letters: Vec<DeadLetterInfo>) {
        let call = self.clients.invoke(OPERATOR, What::Redrive { group: self.group });
        let name = group_name(self.group);
        let redriven = self.clients.call(&self.random, LONG_PATIENCE, move |broker| async move {
            broker.redrive(&name, letters, false).await
        });
        let outcome = outcome(redriven.await, |letters| {
            let went = letters.iter().filter(|one| one.outcome == Some(Redriven::Done));
            Answer::Redriven(went.filter_map(|one| letter(&one.letter)).collect())
        });
        self.clients.complete(call, outcome);
    }
}

/// What came of a call of the operator.
pub(super) fn outcome<T>(
    called: Called<Result<T, GroupError>>,
    told: impl FnOnce(T) -> Answer,
) -> Outcome {
    match called {
        Called::Answered(Ok(answer)) => Outcome::Ok(told(answer)),
        Called::Answered(Err(GroupError::Unavailable(error))) => outcome_of(&error),
        Called::Answered(Err(error)) => Outcome::Unknown(error.to_string()),
        Called::Refused => Outcome::Fail("refused".to_owned()),
        Called::Lost => Outcome::Unknown("no answer".to_owned()),
    }
}

/// A dead letter of one of the topics here.
fn letter(info: &DeadLetterInfo) -> Option<DeadLetter> {
    let topic = info.facts.topic.as_str().strip_prefix("topic-")?.parse().ok()?;
    let (queue, offset) = (info.facts.queue.get(), info.facts.offset.get());
    Some(DeadLetter {
        letter: info.at.offset.get(),
        origin: Place { topic, queue, offset },
        attempts: info.facts.attempts,
    })
}
