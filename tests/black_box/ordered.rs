//! Message groups in order: one whose handler sleeps holds back nothing but itself, and the order
//! holds while leaders die.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{Client, ClientError, Draft, Received, SimpleConsumer, Take};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::broker_groups::{held, spread_leaders};
use crate::common::cluster::{Cluster, PATIENCE, Plan, kill, wait_drained};

const GROUPS: usize = 10;
const EACH: usize = 100;
const CONSUMERS: usize = 4;
/// The message group whose handler sleeps, and for how long at each message.
const SLOW: &str = "line-0";
const SLEEP: Duration = Duration::from_secs(1);
/// What a busy machine may cost. A message group that is passed by until a poll ends, or its lock
/// does, costs more.
const STANDSTILL: Duration = Duration::from_secs(4);

/// One message as a handler began with it, and whether its ack was answered.
#[derive(Clone, Debug)]
struct Handled {
    number: usize,
    acked: bool,
}

#[derive(Clone, Default)]
struct Story {
    /// By message group, in the order in which handlers began.
    handled: BTreeMap<String, Vec<Handled>>,
    /// Messages at which a handler is at this moment.
    busy: BTreeSet<String>,
    overlaps: Vec<String>,
}

fn names(topic: &str) -> (TopicName, GroupName) {
    (TopicName::new(topic).unwrap(), GroupName::new("workers").unwrap())
}

fn draft(topic: &str, line: usize, number: usize) -> Draft {
    let message_group = Some(format!("line-{line}"));
    Draft { message_group, ..Draft::new(names(topic).0, number.to_string()) }
}

/// Sends until it is known that it was taken.
async fn send(endpoint: &str, draft: Draft) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let sent = match Client::connect(endpoint).await {
            Ok(client) => client.send(std::slice::from_ref(&draft)).await.map(drop),
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) => return,
            Err(error) => assert!(Instant::now() < deadline, "not sent: {error}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// A consumer that works at each message group of a batch side by side, and at the messages of one
/// after the other, as `--ordered` asks of it.
async fn consume(endpoint: String, topic: &'static str, slow: Duration, story: Arc<Mutex<Story>>) {
    loop {
        if let Err(error) = consume_some(&endpoint, topic, slow, &story).await {
            println!("a consumer begins again: {error}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn consume_some(
    endpoint: &str,
    topic: &'static str,
    slow: Duration,
    story: &Arc<Mutex<Story>>,
) -> Result<(), ClientError> {
    let (topic, group) = names(topic);
    let (invisible, wait) = (Duration::from_secs(10), Duration::from_secs(5));
    let take = Take { topic, group, filter: "*".to_owned(), max: 8, invisible, wait };
    let consumer = SimpleConsumer::new(Client::connect(endpoint).await?, take).await?;
    loop {
        let mut lines: BTreeMap<String, Vec<Received>> = BTreeMap::new();
        for message in consumer.receive().await? {
            lines.entry(message.message_group.clone().unwrap()).or_default().push(message);
        }
        for (line, messages) in lines {
            tokio::spawn(work(consumer.clone(), line, messages, slow, story.clone()));
        }
    }
}

async fn work(
    consumer: SimpleConsumer,
    line: String,
    messages: Vec<Received>,
    slow: Duration,
    story: Arc<Mutex<Story>>,
) {
    for message in messages {
        let number = String::from_utf8(message.body.to_vec()).unwrap().parse().unwrap();
        let at = {
            let mut story = story.lock();
            if !story.busy.insert(line.clone()) {
                story.overlaps.push(format!("{line}: {number} began beside another one"));
            }
            let handled = story.handled.entry(line.clone()).or_default();
            handled.push(Handled { number, acked: false });
            handled.len() - 1
        };
        if line == SLOW {
            sleep(slow).await;
        }
        // The handler ends here: once the broker has the ack, another one may begin before its answer
        // has come back to this one.
        story.lock().busy.remove(&line);
        match consumer.ack(std::slice::from_ref(&message)).await {
            Ok(()) => story.lock().handled.get_mut(&line).unwrap()[at].acked = true,
            // Those behind it are not its consumer's to work at any more.
            Err(error) => {
                println!("{line}: ack of {number} failed: {error}");
                return;
            }
        }
    }
}

/// What each handler saw is the order of sending, and what came again had not been acknowledged.
fn check_order(story: &Story) -> usize {
    let mut repeats = 0;
    for (line, handled) in &story.handled {
        let mut last: Option<&Handled> = None;
        let mut acked = BTreeSet::new();
        for one in handled {
            assert!(!acked.contains(&one.number), "{line}: {} came after its ack", one.number);
            if let Some(last) = last {
                assert!(one.number <= last.number + 1, "{line}: {last:?}, then {one:?}");
                repeats += usize::from(one.number <= last.number);
            } else {
                assert_eq!(one.number, 0, "{line}");
            }
            if one.acked {
                acked.insert(one.number);
            }
            last = Some(one);
        }
    }
    repeats
}

fn finished(story: &Story, line: usize) -> bool {
    let handled = story.handled.get(&format!("line-{line}"));
    handled.and_then(|all| all.last()).is_some_and(|one| one.number == EACH - 1 && one.acked)
}

async fn wait_for(story: &Mutex<Story>, within: Duration, what: &str, is: impl Fn(&Story) -> bool) {
    let waited = timeout(within, async {
        while !is(&story.lock()) {
            sleep(Duration::from_millis(20)).await;
        }
    });
    if waited.await.is_err() {
        let story = story.lock();
        let far: Vec<_> = story.handled.iter().map(|(line, all)| (line, all.last())).collect();
        panic!("{what}: not within {within:?}; {far:?}");
    }
}

/// Sends `EACH` messages of each of these message groups and has consumers at all nodes work at
/// them; how long it took until the nine that do not sleep were done, and what was seen.
async fn nine(cluster: &Cluster, topic: &'static str, lines: Range<usize>) -> (Duration, Story) {
    let leader = cluster.leader().grpc;
    cluster.tool(leader, &["topic", "create", topic, "--type", "fifo", "--queues", "2"]).unwrap();
    let client = Client::connect(&leader.to_string()).await.unwrap();
    for number in 0..EACH {
        let drafts: Vec<Draft> = lines.clone().map(|line| draft(topic, line, number)).collect();
        client.send(&drafts).await.unwrap();
    }
    let story = Arc::new(Mutex::new(Story::default()));
    let start = Instant::now();
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|at| {
            let endpoint = cluster.nodes()[at % 3].grpc.to_string();
            tokio::spawn(consume(endpoint, topic, SLEEP, story.clone()))
        })
        .collect();
    wait_for(&story, Duration::from_secs(60), "the other nine", |story| {
        (1..GROUPS).all(|line| finished(story, line))
    })
    .await;
    let took = start.elapsed();
    consumers.iter().for_each(tokio::task::JoinHandle::abort);
    let story = story.lock().clone();
    (took, story)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sleeping_handler_holds_back_its_own_message_group_only() {
    let cluster = Cluster::start(Plan::of(3));
    let leader = cluster.leader().grpc;
    cluster.tool(leader, &["group", "create", "workers", "--ordered"]).unwrap();
    let (alone, story) = nine(&cluster, "alone", 1..GROUPS).await;
    assert_eq!((story.overlaps.len(), check_order(&story)), (0, 0));
    let (took, story) = nine(&cluster, "orders", 0..GROUPS).await;
    assert_eq!(story.overlaps, Vec::<String>::new());
    assert_eq!(check_order(&story), 0, "nothing failed, so nothing comes again");
    let slow = story.handled[SLOW].len();
    println!("nine groups of {EACH} after {alone:?}, and beside a slow one after {took:?}");
    println!("the slow one was at {slow}");
    // One wait for the sleeper, or for a poll to end that passed a message group by, is more.
    let most = alone * 2 + STANDSTILL;
    assert!(took < most, "{took:?} beside a sleeper, and {alone:?} without it");
}

/// All message groups of a topic live in one of the broker groups, whatever node takes them in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_holds_with_two_broker_groups() {
    let cluster = Cluster::start(Plan { broker_groups: 2, ..Plan::of(3) });
    spread_leaders(&cluster);
    let nodes: Vec<String> = cluster.nodes().iter().map(|node| node.grpc.to_string()).collect();
    let at = cluster.nodes()[0].grpc;
    cluster.tool(at, &["topic", "create", "orders", "--type", "fifo", "--queues", "2"]).unwrap();
    cluster.tool(at, &["group", "create", "workers", "--ordered"]).unwrap();
    let story = Arc::new(Mutex::new(Story::default()));
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|at| {
            let endpoint = nodes[at % 3].clone();
            tokio::spawn(consume(endpoint, "orders", Duration::ZERO, story.clone()))
        })
        .collect();
    for number in 0..EACH {
        let drafts: Vec<Draft> = (0..GROUPS).map(|line| draft("orders", line, number)).collect();
        Client::connect(&nodes[number % 3]).await.unwrap().send(&drafts).await.unwrap();
    }
    let sent = Instant::now();
    wait_for(&story, Duration::from_secs(60), "all ten", |story| {
        (0..GROUPS).all(|line| finished(story, line))
    })
    .await;
    let after = sent.elapsed();
    consumers.iter().for_each(tokio::task::JoinHandle::abort);
    let story = story.lock();
    assert_eq!(story.overlaps, Vec::<String>::new());
    assert_eq!(check_order(&story), 0, "nothing failed, so nothing comes again");
    let held = held(&cluster, at, "orders");
    println!("{held:?}, and all were handled {after:?} after the last was sent");
    let full: Vec<_> = held.iter().filter(|(_, messages)| *messages > 0).collect();
    assert!(matches!(full[..], [(_, all)] if *all == (GROUPS * EACH) as u64), "{held:?}");
    assert!(after < STANDSTILL * 2, "the last were handled {after:?} after they were sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_holds_while_a_leader_dies() {
    let cluster = Cluster::start(Plan::of(3));
    let first = cluster.leader();
    let tool = |words: &[&str]| cluster.tool(first.grpc, words).unwrap();
    tool(&["topic", "create", "orders", "--type", "fifo", "--queues", "3"]);
    tool(&["group", "create", "workers", "--ordered", "--attempts", "1000"]);
    let survivors: Vec<String> = cluster
        .nodes()
        .iter()
        .filter(|node| node.node != first.node)
        .map(|node| node.grpc.to_string())
        .collect();
    let story = Arc::new(Mutex::new(Story::default()));
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|at| {
            let endpoint = survivors[at % 2].clone();
            tokio::spawn(consume(endpoint, "orders", Duration::from_millis(20), story.clone()))
        })
        .collect();
    let producers: Vec<_> = (0..GROUPS)
        .map(|line| {
            let endpoint = survivors[line % 2].clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    send(&endpoint, draft("orders", line, number)).await;
                }
            })
        })
        .collect();
    wait_for(&story, Duration::from_secs(60), "the first third", |story| {
        story.handled.values().map(Vec::len).sum::<usize>() > GROUPS * EACH / 3
    })
    .await;
    let begun = story.lock().handled.values().map(Vec::len).sum::<usize>();
    kill(first.pid, Signal::KILL);
    println!("the leader died after {begun} of {}", GROUPS * EACH);
    for producer in producers {
        producer.await.unwrap();
    }
    wait_for(&story, Duration::from_secs(120), "all ten", |story| {
        (0..GROUPS).all(|line| finished(story, line))
    })
    .await;
    let repeats = check_order(&story.lock());
    println!("all {} in order, {repeats} came again", GROUPS * EACH);
    consumers.iter().for_each(tokio::task::JoinHandle::abort);
    let endpoint = survivors[0].parse().unwrap();
    wait_drained(&cluster, endpoint, "workers");
}

fn code_of<T: std::fmt::Debug>(outcome: Result<T, ClientError>) -> i32 {
    match outcome {
        Err(ClientError::Refused { code, .. }) => code,
        other => panic!("not refused: {other:?}"),
    }
}

async fn consumer(endpoint: &str, group: &str, max: u32) -> SimpleConsumer {
    let take = Take {
        topic: TopicName::new("orders").unwrap(),
        group: GroupName::new(group).unwrap(),
        filter: "*".to_owned(),
        max,
        invisible: Duration::from_secs(30),
        wait: Duration::from_secs(2),
    };
    SimpleConsumer::new(Client::connect(endpoint).await.unwrap(), take).await.unwrap()
}

fn texts(messages: &[Received]) -> Vec<&str> {
    messages.iter().map(|message| str::from_utf8(&message.body).unwrap()).collect()
}

#[tokio::test]
async fn topics_take_their_kind_and_groups_say_what_follows_a_last_attempt() {
    let cluster = Cluster::start(Plan::of(3));
    let leader = cluster.leader().grpc;
    let tool = |words: &[&str]| cluster.tool(leader, words).unwrap();
    tool(&["topic", "create", "orders", "--type", "fifo", "--queues", "2"]);
    tool(&["topic", "create", "plain"]);
    let endpoint = leader.to_string();
    let client = Client::connect(&endpoint).await.unwrap();

    // MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, and nothing of the request is taken.
    let plain = Draft::new(TopicName::new("orders").unwrap(), "plain");
    assert_eq!(code_of(client.send(&[draft("orders", 0, 0), plain]).await), 40_014);
    assert_eq!(code_of(client.send(&[draft("plain", 0, 0)]).await), 40_014);

    // The queue of a message group stays when the topic grows, and with it the order.
    client.send(&[draft("orders", 0, 0), draft("orders", 0, 1)]).await.unwrap();
    let grown = tool(&["topic", "grow", "orders", "--queues", "7"]);
    assert_eq!(grown["parts"][0]["queues"].as_array().unwrap().len(), 7);
    client.send(&[draft("orders", 0, 2)]).await.unwrap();
    client.send(&[draft("orders", 0, 3)]).await.unwrap();

    // A group that says nothing gets one at a time, and several when it asks for them.
    let single = consumer(&endpoint, "single", 8).await;
    let first = single.receive().await.unwrap();
    assert_eq!(texts(&first), ["0"]);
    assert!(single.receive().await.unwrap().is_empty(), "the first one is not acknowledged");
    tool(&["group", "create", "batch", "--ordered", "--attempts", "1"]);
    let batch = consumer(&endpoint, "batch", 8).await;
    let all = batch.receive().await.unwrap();
    assert_eq!(texts(&all), ["0", "1", "2", "3"]);
    assert!(all.iter().all(|message| message.queue == all[0].queue));

    // The first one fails for the last time: dead, and the rest come again without it.
    batch.change_invisible(&all[0], Duration::ZERO).await.unwrap();
    let stale = batch.ack(&all[1..2]).await;
    assert_eq!(code_of(stale), 40_013, "the handles of those behind it are stale");
    let again = batch.receive().await.unwrap();
    assert_eq!(texts(&again), ["1", "2", "3"]);
    // What a push consumer of such a group says when it has tried often enough by itself.
    let group = GroupName::new("batch").unwrap();
    client.give_up(&group, &again[0]).await.unwrap();
    client.give_up(&group, &again[0]).await.unwrap();
    batch.ack(&again[1..]).await.unwrap();
    let topic = tool(&["group", "describe", "batch"])["parts"][0]["topics"][0].clone();
    assert_eq!(
        (&topic["dead"], &topic["ready"], &topic["in_flight"]),
        (&2.into(), &0.into(), &0.into())
    );

    // Or the message group stands still until somebody resumes it.
    tool(&["group", "create", "strict", "--ordered", "--attempts", "1", "--exhausted", "stop"]);
    let strict = consumer(&endpoint, "strict", 8).await;
    let all = strict.receive().await.unwrap();
    strict.change_invisible(&all[0], Duration::ZERO).await.unwrap();
    assert!(strict.receive().await.unwrap().is_empty());
    let stands = tool(&["group", "describe", "strict"])["parts"][0]["topics"][0].clone();
    assert_eq!((&stands["dead"], &stands["stopped"]), (&0.into(), &1.into()));
    tool(&["group", "resume", "strict", "--topic", "orders"]);
    assert_eq!(texts(&strict.receive().await.unwrap()), ["0", "1", "2", "3"]);
}
