//! Dead letters: a message that always fails gets its attempts and no more, what is known of its end
//! is told, the rest flows; and they come back when an operator says so, also while a leader dies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::future::join_all;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{
    Client, ClientError, DeadLetterFilter, Draft, Received, RedrivenLetter, SentMessage,
    SimpleConsumer, Take,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::cluster::{Cluster, PATIENCE, Plan, kill, wait_drained};

const ATTEMPTS: i32 = 3;
const MESSAGES: usize = 20;
/// The message that always fails.
const POISON: usize = 7;

async fn consumer(endpoint: &str, topic: &str, group: &str) -> SimpleConsumer {
    let take = Take {
        topic: TopicName::new(topic).unwrap(),
        group: GroupName::new(group).unwrap(),
        filter: "*".to_owned(),
        max: 32,
        invisible: Duration::from_secs(30),
        wait: Duration::from_secs(2),
    };
    SimpleConsumer::new(Client::connect(endpoint).await.unwrap(), take).await.unwrap()
}

fn text(message: &Received) -> String {
    String::from_utf8(message.body.to_vec()).unwrap()
}

fn letters(cluster: &Cluster, group: &str) -> Vec<Value> {
    let at = cluster.nodes()[0].grpc;
    cluster.tool(at, &["dlq", "list", group]).unwrap().as_array().unwrap().clone()
}

/// Takes until nothing comes any more: acknowledges everything but the poison, which it gives back.
/// Answers in which order the others were done, and the attempts of the poison.
async fn work(consumer: &SimpleConsumer) -> (Vec<usize>, Vec<i32>) {
    let (mut done, mut attempts) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "{done:?} done, poison tried as {attempts:?}");
        let messages = consumer.receive().await.unwrap();
        if messages.is_empty() {
            return (done, attempts);
        }
        for message in messages {
            let number: usize = text(&message).parse().unwrap();
            if number == POISON {
                attempts.push(message.attempt);
                consumer.change_invisible(&message, Duration::ZERO).await.unwrap();
                // In order, those behind it were taken away.
                if message.message_group.is_some() {
                    break;
                }
            } else {
                consumer.ack(std::slice::from_ref(&message)).await.unwrap();
                done.push(number);
            }
        }
    }
}

/// What an operator sees of the one dead letter.
fn check_letter(cluster: &Cluster, topic: &str, group: &str, poison: &SentMessage) {
    let at = cluster.nodes()[0].grpc;
    let tool = |words: &[&str]| cluster.tool(at, words).unwrap();
    let listed = letters(cluster, group);
    assert_eq!(listed.len(), 1, "{listed:?}");
    let letter = &listed[0];
    assert_eq!(letter["topic"], topic);
    assert_eq!(letter["message_id"], poison.message_id.as_str());
    assert_eq!(letter["origin_offset"], poison.offset);
    assert_eq!((&letter["attempts"], &letter["reason"]), (&3.into(), &"returned".into()));
    let read = tool(&["dlq", "read", group, "--offset", "0"]);
    assert_eq!((&read[0]["body"], &read[0]["keys"][0]), (&"7".into(), &"key-7".into()));
    let described = tool(&["group", "describe", group]);
    let of_topic = &described["parts"][0]["topics"][0];
    assert_eq!((&of_topic["dead"], &of_topic["dead_letters"]), (&1.into(), &1.into()));
}

/// What a consumer of the topic of dead letters gets.
async fn check_consumed(endpoint: &str, topic: &str, group: &str, poison: &SentMessage) {
    let name = format!("%DLQ%{group}");
    let repair = consumer(endpoint, &name, "repair").await;
    let messages = repair.receive().await.unwrap();
    assert_eq!(messages.iter().map(text).collect::<Vec<_>>(), ["7"]);
    let message = &messages[0];
    assert_eq!((message.topic.as_str(), message.attempt), (name.as_str(), 1));
    assert_eq!(message.message_id, poison.message_id);
    let offset = poison.offset.to_string();
    for (property, value) in [
        ("DLQ_ORIGIN_TOPIC", topic),
        ("DLQ_ORIGIN_MESSAGE_ID", poison.message_id.as_str()),
        ("RAFTMQ_DLQ_ORIGIN_OFFSET", offset.as_str()),
        ("RAFTMQ_DLQ_ATTEMPTS", "3"),
        ("RAFTMQ_DLQ_REASON", "returned"),
    ] {
        assert_eq!(message.properties[property], value, "{property}");
    }
    repair.ack(&messages).await.unwrap();
}

#[tokio::test]
async fn a_poison_message_gets_three_attempts_in_and_out_of_order() {
    let cluster = Cluster::start(Plan::of(3));
    let at = cluster.leader().grpc;
    let tool = |words: &[&str]| cluster.tool(at, words).unwrap();
    tool(&["topic", "create", "in-order", "--type", "fifo"]);
    tool(&["topic", "create", "loose"]);
    let curve = ["--attempts", "3", "--backoff", "exponential:1s,2,10m"];
    let made = tool(&[&["group", "create", "strict", "--ordered"][..], &curve].concat());
    let told = &made["parts"][0]["curve"];
    assert_eq!((&told["initial"], &told["growth"]), (&1000.into(), &2000.into()));
    tool(&["group", "create", "any", "--attempts", "3"]);
    let endpoint = at.to_string();
    let client = Client::connect(&endpoint).await.unwrap();
    for (topic, message_group) in [("in-order", Some("line".to_owned())), ("loose", None)] {
        let draft = |number: usize| Draft {
            message_group: message_group.clone(),
            keys: vec![format!("key-{number}")],
            ..Draft::new(TopicName::new(topic).unwrap(), number.to_string())
        };
        let drafts: Vec<Draft> = (0..MESSAGES).map(draft).collect();
        let sent = client.send(&drafts).await.unwrap();
        let group = if topic == "loose" { "any" } else { "strict" };
        let (done, attempts) = work(&consumer(&endpoint, topic, group).await).await;
        assert_eq!(attempts, (1..=ATTEMPTS).collect::<Vec<_>>(), "{topic}");
        let all: BTreeSet<usize> = done.iter().copied().collect();
        assert_eq!(
            (done.len(), all.len()),
            (MESSAGES - 1, MESSAGES - 1),
            "{topic}: the rest flows"
        );
        if topic == "in-order" {
            assert!(done.is_sorted(), "{done:?}");
        }
        wait_drained(&cluster, at, group);

        check_letter(&cluster, topic, group, &sent[POISON]);
        check_consumed(&endpoint, topic, group, &sent[POISON]).await;

        // Nobody sends to it, and back it goes.
        let letters_topic = TopicName::new(&format!("%DLQ%{group}")).unwrap();
        let own = Draft::new(letters_topic, "mine");
        match client.send(&[own]).await {
            Err(ClientError::Refused { code: 40_300, .. }) => {}
            other => panic!("{other:?}"),
        }
        let would = tool(&["dlq", "redrive", group, "--dry-run"]);
        assert_eq!((&would[0]["outcome"], letters(&cluster, group).len()), (&"DRY_RUN".into(), 1));
        let redriven = tool(&["dlq", "redrive", group, "--topic", topic]);
        assert_eq!(redriven[0]["outcome"], "REDRIVEN");
        assert_eq!(letters(&cluster, group).len(), 0);
        let again = consumer(&endpoint, topic, group).await;
        let messages = again.receive().await.unwrap();
        assert_eq!(
            messages.iter().map(|one| (text(one), one.attempt)).collect::<Vec<_>>(),
            [("7".to_owned(), 1)]
        );
        again.ack(&messages).await.unwrap();
    }
}

const LETTERS: usize = 1000;
const GONE: usize = 3;

/// Takes everything of a topic and gives it up; answers the ids.
async fn bury(endpoint: &str, topic: &str, count: usize) -> BTreeSet<String> {
    let consumer = consumer(endpoint, topic, "workers").await;
    let client = Client::connect(endpoint).await.unwrap();
    let group = GroupName::new("workers").unwrap();
    let mut buried = BTreeSet::new();
    while buried.len() < count {
        let messages = consumer.receive().await.unwrap();
        assert!(!messages.is_empty(), "{} of {count} came", buried.len());
        let given = join_all(messages.iter().map(|message| client.give_up(&group, message))).await;
        given.into_iter().for_each(Result::unwrap);
        buried.extend(messages.into_iter().map(|message| message.message_id));
    }
    buried
}

/// Redrives page after page; kills the leader once the first one is done.
async fn redrive(cluster: &Cluster, endpoint: &str) -> Vec<RedrivenLetter> {
    let (client, group) =
        (Client::connect(endpoint).await.unwrap(), GroupName::new("workers").unwrap());
    let filter = DeadLetterFilter::default();
    let mut all: Vec<RedrivenLetter> = Vec::new();
    let leader = cluster.leader();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let after = all.last().map(|one| one.letter.at.clone());
        let page = match client.redrive(&group, &filter, (after, 200), false).await {
            Ok(page) => page,
            // Nobody led in time, and nothing was done.
            Err(ClientError::Call { text, .. }) if Instant::now() < deadline => {
                println!("once more: {text}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        if all.is_empty() {
            kill(leader.pid, Signal::KILL);
        }
        all.extend(page.items);
        if !page.more {
            return all;
        }
    }
}

#[tokio::test]
async fn redrive_of_a_thousand_through_a_leaders_death_says_what_came_of_each() {
    let cluster = Cluster::start(Plan::of(3));
    let leader = cluster.leader();
    let survivor = cluster.nodes().into_iter().find(|node| node.node != leader.node).unwrap();
    let endpoint = survivor.grpc.to_string();
    let tool = |words: &[&str]| cluster.tool(survivor.grpc, words).unwrap();
    tool(&["topic", "create", "orders"]);
    tool(&["topic", "create", "gone"]);
    tool(&["group", "create", "workers", "--attempts", "3"]);
    let client = Client::connect(&endpoint).await.unwrap();
    let draft =
        |topic: &str, number: usize| Draft::new(TopicName::new(topic).unwrap(), number.to_string());
    for part in (0..LETTERS - GONE).collect::<Vec<_>>().chunks(100) {
        let drafts: Vec<Draft> = part.iter().map(|number| draft("orders", *number)).collect();
        client.send(&drafts).await.unwrap();
    }
    client.send(&[0, 1, 2].map(|number| draft("gone", number))).await.unwrap();
    let start = Instant::now();
    let orders = bury(&endpoint, "orders", LETTERS - GONE).await;
    let gone = bury(&endpoint, "gone", GONE).await;
    println!("{LETTERS} dead letters after {:?}", start.elapsed());
    tool(&["topic", "delete", "gone"]);
    tool(&["topic", "create", "gone"]);

    let start = Instant::now();
    let redriven = redrive(&cluster, &endpoint).await;
    println!("{LETTERS} sent back through the death of a leader after {:?}", start.elapsed());
    let mut by_outcome: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for one in &redriven {
        by_outcome.entry(one.outcome).or_default().insert(one.letter.message_id.clone());
    }
    assert_eq!(redriven.len(), LETTERS);
    assert_eq!(by_outcome, BTreeMap::from([("REDRIVEN", orders), ("TARGET_GONE", gone)]));
    let (group, filter) = (GroupName::new("workers").unwrap(), DeadLetterFilter::default());
    let left = client.dead_letters(&group, &filter, (None, 100), false).await.unwrap();
    assert_eq!(left.items.len(), GONE, "they stay");

    // Each comes once more, and once only.
    let consumer = consumer(&endpoint, "orders", "workers").await;
    let mut seen = BTreeSet::new();
    while seen.len() < LETTERS - GONE {
        let messages = consumer.receive().await.unwrap();
        assert!(!messages.is_empty(), "{} came again", seen.len());
        for message in &messages {
            assert_eq!(message.attempt, 1);
            assert!(seen.insert(text(message)), "{} came twice", text(message));
        }
        consumer.ack(&messages).await.unwrap();
    }
    wait_drained(&cluster, survivor.grpc, "workers");
}
