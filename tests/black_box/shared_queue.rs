//! Any number of consumers share one queue: twenty do the work of twenty, and whoever leaves loses
//! nothing. The full form is `prove consumers` of the crate jepsen.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{Client, Draft, PushConsumer, Pushed, Received, Take};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, sleep};

use crate::common::cluster::{Cluster, PATIENCE, Plan, kill, tool, wait_drained};

const TOPIC: &str = "shared";
const GROUP: &str = "workers";
/// What a message takes its consumer.
const HANDLER: Duration = Duration::from_millis(10);
/// A message that comes within this time after the one before was there already.
const AT_HAND: Duration = Duration::from_millis(1);
const CONSUMERS: usize = 20;
const RATIO_MIN: f64 = 18.0;
/// One and twenty are measured alike: counted from so long after their start, for so long. Together
/// that is the time in which twenty have to be at full speed.
const SETTLE: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(3);
/// More than all of them handle in their time.
const MESSAGES: u64 = 13_000;
const BATCH: u64 = 100;
/// What is left then, with a leader that dies.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);
/// Messages that those hold who leave.
const HELD: u64 = 100;
const LEAVERS: usize = 4;
const STAYERS: usize = 4;
/// A goodbye gives back at once; the handlers of those who stay have a part in this.
const BACK_AFTER_GOODBYE: Duration = Duration::from_secs(3);
/// Without one: 25 s after the streams broke, as the next round of the leader sees it.
const BACK_AFTER_CRASH: Duration = Duration::from_secs(45);

/// What all consumers did together.
#[derive(Default)]
struct Work {
    handled: Cell<u64>,
    /// How long they had nothing to handle.
    waited: Cell<Duration>,
    /// How often each message was.
    times: RefCell<BTreeMap<u64, u64>>,
    failed: RefCell<Vec<String>>,
}

impl Work {
    /// Messages that were handled at least once.
    fn different(&self) -> u64 {
        self.times.borrow().len() as u64
    }

    fn note(&self, message: &Received) {
        let number = std::str::from_utf8(&message.body).unwrap().parse().unwrap();
        *self.times.borrow_mut().entry(number).or_default() += 1;
        self.handled.set(self.handled.get() + 1);
    }
}

/// What a consumer does with a message.
#[derive(Clone, Copy)]
enum Manner {
    Handles,
    /// It never comes to an end with its first one.
    Hangs,
}

/// A running consumer.
struct Member {
    leave: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Member {
    async fn start(at: SocketAddr, manner: Manner, work: &Rc<Work>) -> Self {
        let take = Take {
            topic: TopicName::new(TOPIC).unwrap(),
            group: GroupName::new(GROUP).unwrap(),
            filter: "*".to_owned(),
            max: 60,
            invisible: Duration::from_secs(60),
            wait: Duration::from_secs(20),
        };
        let consumer = PushConsumer::connect(&at.to_string(), take).await.unwrap();
        let (leave, leaves) = oneshot::channel::<()>();
        let (work, told) = (Rc::clone(work), Rc::clone(work));
        let task = tokio::task::spawn_local(async move {
            let (free, due) = (Cell::new(Instant::now()), Cell::new(Instant::now()));
            let handle = async |message: &Received| match manner {
                Manner::Hangs => std::future::pending().await,
                Manner::Handles => {
                    let waited = free.get().elapsed();
                    work.waited.set(work.waited.get() + waited);
                    // Who is woken late by a busy machine is done sooner with the next: it is to be
                    // seen how well consumers are supplied, not how punctually threads are woken.
                    let begun = if waited > AT_HAND { Instant::now() } else { due.get() };
                    due.set(begun + HANDLER);
                    tokio::time::sleep_until(due.get()).await;
                    work.note(message);
                    free.set(Instant::now());
                }
            };
            let hear = |pushed| {
                if let Pushed::Failed(error) = pushed {
                    told.failed.borrow_mut().push(error.to_string());
                }
            };
            consumer.handle_each(handle, hear, async { drop(leaves.await) }).await;
        });
        Self { leave, task }
    }

    async fn start_many(
        count: usize,
        at: SocketAddr,
        manner: Manner,
        work: &Rc<Work>,
    ) -> Vec<Self> {
        let mut members = Vec::new();
        for _ in 0..count {
            members.push(Self::start(at, manner, work).await);
        }
        members
    }

    /// With a goodbye.
    async fn leave(self) {
        self.leave.send(()).unwrap();
        self.task.await.unwrap();
    }

    /// As a process that is killed: its connections are gone, and nobody is told.
    async fn vanish(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

async fn leave_all(members: Vec<Member>) {
    futures::future::join_all(members.into_iter().map(Member::leave)).await;
}

async fn send(client: &Client, from: u64, count: u64) {
    for first in (from..from + count).step_by(usize::try_from(BATCH).unwrap()) {
        let draft = |number: u64| {
            let body = Bytes::from(number.to_string());
            Draft::new(TopicName::new(TOPIC).unwrap(), body)
        };
        let drafts: Vec<Draft> = (first..first + BATCH).map(draft).collect();
        client.send(&drafts).await.unwrap();
    }
}

/// Messages a second that so many consumers handle.
async fn rate(count: usize, at: SocketAddr, work: &Rc<Work>) -> f64 {
    let start = Instant::now();
    let members = Member::start_many(count, at, Manner::Handles, work).await;
    tokio::time::sleep_until(start + SETTLE).await;
    let (counted, before, waited) = (Instant::now(), work.handled.get(), work.waited.get());
    sleep(WINDOW).await;
    let time = counted.elapsed().as_secs_f64();
    let rate = (work.handled.get() - before) as f64 / time;
    let waited = (work.waited.get() - waited).as_secs_f64() / time / count as f64 * 100.0;
    println!("{count} handle {rate:.0}/s, and wait for messages {waited:.1} % of their time");
    leave_all(members).await;
    rate
}

/// Waits until so many are handled; answers how long after `since` the last one was.
async fn all_handled(work: &Work, wanted: u64, since: Instant, within: Duration) -> Duration {
    while work.handled.get() < wanted {
        let handled = work.handled.get();
        assert!(since.elapsed() < within, "{handled} of {wanted} are handled after {within:?}");
        sleep(Duration::from_millis(5)).await;
    }
    since.elapsed()
}

/// `LEAVERS` hold `HELD` messages and go, in the manner of `go`; others get all of them.
async fn go_and_give_back(
    at: SocketAddr,
    work: &Rc<Work>,
    (from, within): (u64, Duration),
    go: impl AsyncFn(Vec<Member>),
) -> (Duration, Duration) {
    let client = Client::connect(&at.to_string()).await.unwrap();
    let leavers = Member::start_many(LEAVERS, at, Manner::Hangs, work).await;
    send(&client, from, HELD).await;
    let done = work.handled.get();
    let sent = Instant::now();
    while in_flight(at).await != HELD {
        assert!(sent.elapsed() < PATIENCE, "not all of {HELD} are held after {PATIENCE:?}");
        sleep(Duration::from_millis(20)).await;
    }
    let stayers = Member::start_many(STAYERS, at, Manner::Handles, work).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(work.handled.get(), done, "what is held comes to nobody else");
    let gone = Instant::now();
    go(leavers).await;
    let first = all_handled(work, done + 1, gone, within).await;
    let last = all_handled(work, done + HELD, gone, within).await;
    leave_all(stayers).await;
    (first, last)
}

/// Asks beside the consumers, which live on this thread.
async fn ask(at: SocketAddr, words: &[&str]) -> Value {
    let words = words.iter().map(|word| (*word).to_owned());
    let more = ["--output", "json", "--endpoint"].map(str::to_owned);
    let words: Vec<String> = words.chain(more).chain([at.to_string()]).collect();
    let asked = tokio::task::spawn_blocking(move || tool(words.iter().map(String::as_str)));
    asked.await.unwrap().unwrap()
}

/// What the group holds.
async fn in_flight(at: SocketAddr) -> u64 {
    let value = ask(at, &["group", "describe", GROUP]).await;
    value["parts"][0]["topics"][0]["in_flight"].as_u64().unwrap_or(0)
}

/// Who leads, asked for in the same way.
async fn leader(at: SocketAddr) -> u64 {
    let groups = ask(at, &["cluster", "status"]).await;
    let mut nodes = groups[0]["nodes"].as_array().unwrap().iter();
    nodes.find(|node| node["role"] == "leader").unwrap()["node"].as_u64().unwrap()
}

/// The full form has more consumers at last, and kills the leader under a load.
struct Form {
    most: Option<usize>,
    kill: bool,
    messages: u64,
}

impl Form {
    fn of_environment() -> Self {
        let most = std::env::var("RAFTMQ_FORM_CONSUMERS").ok();
        let most = most.map(|text| text.parse().expect("RAFTMQ_FORM_CONSUMERS"));
        let kill = std::env::var_os("RAFTMQ_FORM_KILLS").is_some();
        let messages = std::env::var("RAFTMQ_FORM_MESSAGES").ok();
        let messages = messages.map(|text| text.parse().expect("RAFTMQ_FORM_MESSAGES"));
        Self { most, kill, messages: messages.unwrap_or(MESSAGES) }
    }
}

/// One, twenty, and in the full form more, one after the other.
async fn compare(at: SocketAddr, work: &Rc<Work>, form: &Form) {
    let one = rate(1, at, work).await;
    for count in std::iter::once(CONSUMERS).chain(form.most) {
        let many = rate(count, at, work).await;
        let ratio = many / one;
        println!(
            "consumers: one queue, {HANDLER:?} a message: 1 consumer {one:.0}/s, {count} \
             {many:.0}/s, {ratio:.1} times as many"
        );
        // How far a hundred come depends on the machine.
        let wanted = if count == CONSUMERS { RATIO_MIN } else { 0.0 };
        assert!(ratio >= wanted, "{ratio:.1} times as many; {:?}", work.failed.borrow());
    }
}

/// Twenty drain the queue, and the leader dies under them where the form says so.
async fn drain(cluster: &Cluster, at: SocketAddr, work: &Rc<Work>, form: &Form) {
    let left = form.messages - work.handled.get();
    let start = Instant::now();
    let members = Member::start_many(CONSUMERS, at, Manner::Handles, work).await;
    if form.kill {
        let leader = cluster.node(leader(at).await);
        kill(leader.pid, Signal::KILL);
        println!("consumers: node {}, the leader, is killed", leader.node);
    }
    while work.different() < form.messages {
        let done = work.different();
        assert!(start.elapsed() < DRAINED_WITHIN, "{done} of {} handled", form.messages);
        sleep(Duration::from_millis(20)).await;
    }
    leave_all(members).await;
    println!(
        "consumers: the last {left} of {} were handled by others than those who had left",
        form.messages
    );
}

#[test]
fn twenty_consumers_share_one_queue_and_whoever_leaves_loses_nothing() {
    let form = Form::of_environment();
    let cluster = Cluster::start(Plan { restart: form.kill, ..Plan::of(3) });
    cluster.wait_equal(PATIENCE);
    let at = cluster.a_follower().grpc;
    cluster.tool(at, &["topic", "create", TOPIC, "--queues", "1"]).unwrap();
    let work = Rc::new(Work::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let story = async {
        let client = Client::connect(&at.to_string()).await.unwrap();
        send(&client, 0, form.messages).await;
        compare(at, &work, &form).await;
        drain(&cluster, at, &work, &form).await;
        let from = form.messages;
        let told = go_and_give_back(at, &work, (from, BACK_AFTER_GOODBYE), leave_all).await;
        tell("say goodbye", told);
        let vanish = async |members: Vec<Member>| {
            for member in members {
                member.vanish().await;
            }
        };
        let from = from + HELD;
        let told = go_and_give_back(at, &work, (from, BACK_AFTER_CRASH), vanish).await;
        tell("vanish", told);
    };
    LocalSet::new().block_on(&runtime, story);
    wait_drained(&cluster, at, GROUP);
    let times = work.times.borrow();
    let lost = (0..form.messages + 2 * HELD).filter(|number| !times.contains_key(number)).count();
    let again = times.values().filter(|times| **times > 1).count();
    println!("consumers: {} messages handled, {lost} lost, {again} handled again", times.len());
    println!("failed calls: {:?}", work.failed.borrow());
    assert_eq!(lost, 0);
    // Who does not hear that an acknowledgement was taken cannot know; nobody is killed otherwise.
    assert!(form.kill || again == 0, "{again} handled again");
    cluster.wait_equal(PATIENCE);
}

fn tell(how: &str, (first, last): (Duration, Duration)) {
    println!(
        "consumers: {HELD} messages held by {LEAVERS} who {how}: with others after {first:.2?}, all \
         handled after {last:.2?}"
    );
}
