//! The clients: all on one host of their own, each a task that calls one node at a time and writes
//! down what it did.

mod consumer;
mod delayer;
pub(super) mod hard;
mod operated;
pub(super) mod ordered;
pub(super) mod producer;
mod transactor;

use std::any::Any;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use raftmq::base::{GroupName, TopicName};
use raftmq::broker::{
    Broker, Exhausted, NewGroup, NewTopic, Order, OrderRule, TopicError, TopicInfo, Unavailable,
};
use raftmq::message::MessageKind;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::net::{Content, HostId, Letter, Net};
use super::node::Work;
use super::random::Random;
use super::trace::Trace;
use crate::history::{Answer, History, Outcome, QueueBounds, What};

/// Topics and consumer groups are numbers here; these are their names.
pub(crate) fn topic_name(topic: u32) -> TopicName {
    TopicName::new(&format!("topic-{topic}")).expect("the name is one")
}

pub(crate) fn group_name(group: u32) -> GroupName {
    GroupName::new(&format!("group-{group}")).expect("the name is one")
}

/// How clients behave in one run.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) topics: u32,
    pub(crate) queues: u32,
    pub(crate) groups: u32,
    pub(crate) producers: u32,
    /// They send to the last topic, which is in order.
    pub(crate) ordered_producers: u32,
    /// Clients that send transactional messages, to a topic of its own behind the others.
    pub(crate) transactors: u32,
    pub(crate) consumers_per_group: u32,
    /// The longest pause between two sends of one producer.
    pub(crate) send_pause_millis: u64,
    pub(crate) body_max: u64,
    /// The longest time for which messages are hidden.
    pub(crate) invisible_millis: u64,
    /// Messages have tags, and consumers of all groups but the first ask now for these, now for
    /// those.
    pub(crate) tagged: bool,
    /// Who sends messages for later, to a topic of their own behind the others.
    pub(crate) delayers: u32,
    /// One group more, some of whose messages always fail.
    pub(crate) hard: Option<hard::Hard>,
}

impl Workload {
    /// Topics are made in this order: normal ones, then the one for transactions, then the one for
    /// delayed messages, then the one that is in order.
    pub(crate) fn all_topics(&self) -> u32 {
        self.ordered_topic() + 1
    }

    pub(crate) fn ordered_topic(&self) -> u32 {
        self.delayed_topic() + u32::from(self.delayers > 0)
    }

    pub(crate) fn delayed_topic(&self) -> u32 {
        self.topics + u32::from(self.transactors > 0)
    }

    /// Whether a group's consumers take anything of a topic: the one whose messages fail takes the
    /// first one and the one that is in order.
    pub(crate) fn takes(&self, group: u32, topic: u32) -> bool {
        group < self.groups || topic == 0 || topic == self.ordered_topic()
    }

    /// Whether the messages of a topic have tags.
    pub(crate) fn has_tags(&self, topic: u32) -> bool {
        let kinds = [MessageKind::Normal, MessageKind::Delay];
        self.tagged && kinds.contains(&self.kind(topic))
    }

    fn kind(&self, topic: u32) -> MessageKind {
        match topic {
            topic if topic < self.topics => MessageKind::Normal,
            topic if topic == self.ordered_topic() => MessageKind::Fifo,
            topic if topic == self.delayed_topic() => MessageKind::Delay,
            _ => MessageKind::Transaction,
        }
    }
}

/// What all clients share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Clients(Arc<Inner>);

struct Inner {
    net: Net,
    host: HostId,
    /// Those that may be called.
    nodes: Mutex<Vec<HostId>>,
    seed: u64,
    workload: Workload,
    trace: Trace,
    history: Mutex<History>,
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<Reply>>>,
    next_call: AtomicU64,
    now: AtomicU64,
    /// No new messages any more.
    quiet: AtomicBool,
    /// Consumers take everything and acknowledge all of it.
    draining: AtomicBool,
}

enum Reply {
    Answered(Box<dyn Any + Send>),
    Refused,
}

/// What came of one call.
enum Called<T> {
    Answered(T),
    /// It never reached a program.
    Refused,
    /// No answer in time.
    Lost,
}

impl Clients {
    pub(crate) fn new(
        (net, host): (Net, HostId),
        nodes: usize,
        seed: u64,
        workload: Workload,
        trace: Trace,
    ) -> Self {
        Self(Arc::new(Inner {
            net,
            host,
            nodes: Mutex::new((0..nodes).collect()),
            seed,
            workload,
            trace,
            history: Mutex::default(),
            waiting: Mutex::default(),
            next_call: AtomicU64::new(0),
            now: AtomicU64::new(0),
            quiet: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }))
    }

    pub(crate) fn set_time(&self, now: u64) {
        self.0.now.store(now, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.now.load(Ordering::Relaxed)
    }

    pub(crate) fn workload(&self) -> &Workload {
        &self.0.workload
    }

    pub(crate) fn history(&self) -> History {
        self.0.history.lock().clone()
    }

    /// Ends the sending; what is under way goes on.
    pub(crate) fn be_quiet(&self) {
        self.0.quiet.store(true, Ordering::Relaxed);
    }

    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// From now on only these are called.
    pub(crate) fn set_nodes(&self, nodes: &[HostId]) {
        *self.0.nodes.lock() = nodes.to_vec();
    }

    pub(crate) fn is_tagged(&self) -> bool {
        self.0.workload.tagged
    }

    fn is_quiet(&self) -> bool {
        self.0.quiet.load(Ordering::Relaxed)
    }

    fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    /// The program of the clients' host. Never ends.
    pub(crate) async fn run(self) {
        let workload = self.0.workload.clone();
        for producer in 0..workload.producers {
            tokio::spawn(producer::run(self.clone(), producer));
        }
        for producer in 0..workload.ordered_producers {
            tokio::spawn(ordered::run(self.clone(), ordered::FIRST + producer));
        }
        for delayer in 0..workload.delayers {
            tokio::spawn(delayer::run(self.clone(), delayer));
        }
        let transactional = workload.topics;
        for transactor in 0..workload.transactors {
            tokio::spawn(transactor::run(self.clone(), transactional, transactor));
            tokio::spawn(transactor::answer(self.clone(), transactional, transactor));
        }
        if workload.transactors > 0 {
            tokio::spawn(transactor::operate(self.clone(), transactional));
        }
        let consumers = workload.groups * workload.consumers_per_group;
        for consumer in 0..consumers {
            tokio::spawn(consumer::run(self.clone(), consumer, consumer % workload.groups));
        }
        if let Some(hard) = workload.hard {
            tokio::spawn(hard::run(self.clone(), hard));
        }
        tokio::spawn(self.clone().manage());
        loop {
            let Letter { id, content, .. } =
                poll_fn(|context| self.0.net.poll_mail(self.0.host, context)).await;
            let Some(waits) = self.0.waiting.lock().remove(&id) else { continue };
            let reply = match content {
                Content::Answered(answer) => Reply::Answered(answer),
                Content::Refused => Reply::Refused,
                Content::Asked(_) => unreachable!("nobody asks clients"),
            };
            // Whoever asked may have given up.
            drop(waits.send(reply));
        }
    }

    /// Makes topics and groups, and looks at the topics' bounds now and then.
    async fn manage(self) {
        let random = self.random("manager");
        let client = u32::MAX;
        for group in 0..self.0.workload.groups {
            while !self.create_group(&random, group).await {
                sleep(Duration::from_millis(100)).await;
            }
        }
        let all = self.0.workload.all_topics();
        for topic in 0..all {
            while !self.create_topic(&random, client, topic).await {
                sleep(Duration::from_millis(100)).await;
            }
        }
        loop {
            sleep(Duration::from_millis(random.between(50, 1000))).await;
            let topic = u32::try_from(random.between(0, all.into()));
            self.look(&random, client, topic.unwrap_or_default()).await;
        }
    }

    async fn create_group(&self, random: &Random, group: u32) -> bool {
        let new = NewGroup {
            name: group_name(group),
            attempts_max: 1000,
            backoff: vec![raftmq::base::Millis::new(100)].into(),
            // One that takes several of a message group at once, the others one at a time.
            rule: OrderRule {
                order: if group == 0 { Order::Batch } else { Order::Single },
                exhausted: Exhausted::Dead,
            },
            broker_groups: Vec::new(),
            dead_keep: None,
            begin: raftmq::broker::Begin::default(),
        };
        let made = self.call(random, Duration::from_secs(4), move |broker| async move {
            broker.create_group(new).await.is_ok()
        });
        matches!(made.await, Called::Answered(true))
    }

    async fn create_topic(&self, random: &Random, client: u32, topic: u32) -> bool {
        let new = NewTopic {
            name: topic_name(topic),
            queues: self.0.workload.queues,
            kinds: vec![self.0.workload.kind(topic)],
            keep: None,
            broker_groups: Vec::new(),
        };
        let call = self.invoke(client, What::CreateTopic { topic });
        let made = self.call(random, Duration::from_secs(4), move |broker| async move {
            broker.create_topic(new).await
        });
        let outcome = match made.await {
            Called::Answered(Ok(_)) => Outcome::Ok(Answer::Done),
            Called::Answered(Err(error)) => Outcome::Unknown(error.to_string()),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        let good = matches!(outcome, Outcome::Ok(_));
        self.complete(call, outcome);
        good
    }

    async fn look(&self, random: &Random, client: u32, topic: u32) {
        let call = self.invoke(client, What::Bounds { topic });
        let name = topic_name(topic);
        let looked = self.call(random, Duration::from_secs(5), move |broker| async move {
            broker.topic(&name).await
        });
        let outcome = match looked.await {
            Called::Answered(Ok(info)) => Outcome::Ok(Answer::Bounds(bounds(&info))),
            Called::Answered(Err(TopicError::NoTopic(error))) => Outcome::Fail(error.to_string()),
            Called::Answered(Err(error)) => Outcome::Unknown(error.to_string()),
            Called::Refused => Outcome::Fail("refused".to_owned()),
            Called::Lost => Outcome::Unknown("no answer".to_owned()),
        };
        self.complete(call, outcome);
    }

    fn random(&self, part: &str) -> Random {
        Random::new(self.0.seed, part)
    }

    fn invoke(&self, client: u32, what: What) -> usize {
        self.0.history.lock().invoke(client, what, self.now())
    }

    fn complete(&self, call: usize, outcome: Outcome) {
        self.0.trace.note(format_args!("call {call} {outcome:?}"));
        self.0.history.lock().complete(call, outcome, self.now());
    }

    /// Has a random node do something, and waits for its answer.
    async fn call<T, F>(
        &self,
        random: &Random,
        limit: Duration,
        work: impl FnOnce(Broker) -> F + Send + 'static,
    ) -> Called<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let inner = &self.0;
        let (sender, receiver) = oneshot::channel();
        let id = inner.next_call.fetch_add(1, Ordering::Relaxed);
        inner.waiting.lock().insert(id, sender);
        let work: Work = Box::new(move |broker| {
            let done = work(broker);
            Box::pin(async move { Box::new(done.await) as Box<dyn Any + Send> })
        });
        let node = *random.pick(&inner.nodes.lock());
        inner.net.post(inner.host, node, id, Content::Asked(Box::new(work)));
        let reply = timeout(limit, receiver).await;
        inner.waiting.lock().remove(&id);
        match reply {
            Ok(Ok(Reply::Answered(answer))) => {
                Called::Answered(*answer.downcast().expect("the answer is that of the question"))
            }
            Ok(Ok(Reply::Refused)) => Called::Refused,
            Ok(Err(_)) | Err(_) => Called::Lost,
        }
    }
}

fn bounds(info: &TopicInfo) -> Vec<QueueBounds> {
    let parts = info.parts.iter().flat_map(|part| &part.queues);
    let bounds = parts.map(|queue| QueueBounds {
        queue: queue.queue.get(),
        start: queue.start.get(),
        end: queue.end.get(),
    });
    bounds.collect()
}

/// Whether the broker knows that nothing happened.
fn outcome_of(error: &Unavailable) -> Outcome {
    if error.outcome_unknown {
        Outcome::Unknown(error.to_string())
    } else {
        Outcome::Fail(error.to_string())
    }
}
