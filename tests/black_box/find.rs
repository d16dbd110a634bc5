//! Messages found again by id, key, place and time: of every kind, after kill -9 of everything, and
//! while the index is made anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::StreamExt;
use raftmq::base::TopicName;
use raftmq::client::{
    Client, ClientError, Delayed, Draft, FindBy, FindKey, FoundMessage, FoundMessages, Producer,
};

use crate::common::cluster::{Cluster, PATIENCE, Plan};
use crate::common::until;

const MESSAGES: u64 = 1_000;
const BATCH: u64 = 10;
/// While an index follows at this rate, a log of a megabyte keeps it busy for longer than a test
/// needs to see that.
const SLOW: &str = "64KiB";
const REBUILT_WITHIN: Duration = Duration::from_secs(120);

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn create(cluster: &Cluster, name: &str, kind: &str) {
    let words = ["topic", "create", name, "--queues", "4", "--type", kind];
    cluster.tool(cluster.nodes()[0].grpc, &words).unwrap();
}

fn draft(name: &str, number: u64, size: usize) -> Draft {
    let mut body = format!("body {number} ").into_bytes();
    body.resize(body.len() + size, b'.');
    let keys = vec![format!("key-{number}"), format!("shared-{}", number % 10)];
    Draft { keys, ..Draft::new(topic(name), Bytes::from(body)) }
}

/// Sends messages with keys of their own; answers their ids by their numbers.
async fn send(cluster: &Cluster, name: &str, size: usize) -> BTreeMap<u64, String> {
    let endpoint = cluster.nodes()[0].grpc.to_string();
    let producer = Producer::connect(&endpoint, 16).await.unwrap();
    let batch = |first: u64| (first..first + BATCH).map(|n| draft(name, n, size)).collect();
    let firsts = (0..MESSAGES / BATCH).map(|batch| batch * BATCH);
    let mut answers = std::pin::pin!(producer.pipeline(futures::stream::iter(firsts.map(batch))));
    let mut ids = BTreeMap::new();
    while let Some(answer) = answers.next().await {
        for sent in answer.unwrap() {
            let number = u64::try_from(ids.len()).unwrap();
            ids.insert(number, sent.message_id);
        }
    }
    ids
}

async fn clients(cluster: &Cluster) -> Vec<Client> {
    let mut clients = Vec::new();
    for node in cluster.nodes() {
        clients.push(Client::connect(&node.grpc.to_string()).await.unwrap());
    }
    clients
}

fn by_key(name: &str, key: &str) -> FindBy {
    FindBy::Key(FindKey {
        topic: topic(name),
        key: key.to_owned(),
        from: None,
        to: None,
        limit: 1000,
        oldest_first: true,
    })
}

fn by_id(id: &str) -> FindBy {
    FindBy::Id { id: id.to_owned(), topic: None }
}

/// The only message of an answer that lacks nothing.
fn only(answer: Result<FoundMessages, ClientError>) -> FoundMessage {
    let answer = answer.unwrap();
    assert!(answer.complete, "{:?}", answer.parts);
    assert_eq!(answer.messages.len(), 1, "{:?}", answer.messages);
    answer.messages.into_iter().next().unwrap()
}

async fn check_place(client: &Client, found: &FoundMessage) {
    assert_eq!(found.state, "visible", "{found:?}");
    let (queue, offset) = (found.queue.unwrap(), found.offset.unwrap());
    let place = FindBy::Place { topic: topic(&found.topic), queue, offset };
    assert_eq!(only(client.find(place).await), *found);
}

/// Every message by its id and by its key, at each node in turn, and at its place.
async fn check_all(cluster: &Cluster, name: &str, ids: &BTreeMap<u64, String>) {
    let clients = clients(cluster).await;
    for (number, client) in (0..MESSAGES).zip(clients.iter().cycle()) {
        // A number that comes to all of them in another order than they were sent.
        let number = number * 7_919 % MESSAGES;
        let by_key = only(client.find(by_key(name, &format!("key-{number}"))).await);
        assert_eq!(by_key.message_id, ids[&number]);
        let content = by_key.content.as_ref().unwrap();
        assert!(content.body.starts_with(format!("body {number} ").as_bytes()));
        assert!(content.born > 0 && by_key.stored.unwrap() > 0);
        assert_eq!(only(client.find(by_id(&ids[&number])).await), by_key);
        check_place(client, &by_key).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_is_found_after_all_nodes_were_killed() {
    let mut cluster = Cluster::start(Plan::of(3));
    create(&cluster, "found", "normal");
    let ids = send(&cluster, "found", 20).await;
    check_all(&cluster, "found", &ids).await;

    cluster.kill_all();
    cluster.up();
    cluster.wait_ready(PATIENCE);
    check_all(&cluster, "found", &ids).await;

    let client = &clients(&cluster).await[0];
    let shared = client.find(by_key("found", "shared-3")).await.unwrap();
    assert_eq!(shared.messages.len() as u64, MESSAGES / 10);
    let stored: Vec<_> = shared.messages.iter().map(|one| one.stored.unwrap()).collect();
    assert!(stored.is_sorted(), "the oldest first");
    let newest = FindBy::Key(FindKey {
        limit: 3,
        oldest_first: false,
        from: Some(stored[50]),
        ..match by_key("found", "shared-3") {
            FindBy::Key(by) => by,
            _ => unreachable!(),
        }
    });
    let newest = client.find(newest).await.unwrap().messages;
    assert_eq!(newest.len(), 3);
    assert!(newest.iter().rev().map(|one| one.stored).is_sorted(), "the newest first");

    // By time: the first of each queue.
    let first = client.find(FindBy::Time { topic: topic("found"), time: 0 }).await.unwrap();
    assert!(first.complete && !first.messages.is_empty());
    assert!(first.messages.iter().all(|one| one.offset == Some(0)), "{first:?}");
    let later = FindBy::Time { topic: topic("found"), time: now() + 60_000 };
    assert_eq!(client.find(later).await.unwrap().messages, []);
    for nobody in [by_key("found", "nobody"), by_id("nobody")] {
        let answer = client.find(nobody).await.unwrap();
        assert!(answer.complete && answer.messages.is_empty(), "{answer:?}");
    }
    let strange = client.find(by_key("strange", "k")).await;
    assert!(strange.is_err(), "{strange:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_and_transactional_messages_are_told_as_what_they_are() {
    let mut cluster = Cluster::start(Plan::of(3));
    create(&cluster, "later", "delay");
    create(&cluster, "halves", "transaction");
    let client = clients(&cluster).await.remove(0);
    let soon = client.send_delayed(&[draft("later", 1, 9)], now() + 1_000).await.unwrap();
    let due = now() + 3_600_000;
    let far = client.send_delayed(&[draft("later", 2, 9)], due).await.unwrap();
    let recalled = client.send_delayed(&[draft("later", 3, 9)], due).await.unwrap();
    let handle = recalled[0].recall_handle.clone().unwrap();
    client.recall_delayed(&topic("later"), Delayed::Handle(handle)).await.unwrap();
    let drafts: Vec<_> = (0..3).map(|number| draft("halves", number, 9)).collect();
    let mut halves = Vec::new();
    for one in &drafts {
        halves.extend(client.prepare(std::slice::from_ref(one)).await.unwrap());
    }
    client.end_transaction(&topic("halves"), &halves[0], true).await.unwrap();
    client.end_transaction(&topic("halves"), &halves[1], false).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;

    for round in 0..2 {
        for client in clients(&cluster).await {
            let fired = only(client.find(by_id(&soon[0].message_id)).await);
            assert_eq!(fired.content.as_ref().unwrap().keys[0], "key-1");
            check_place(&client, &fired).await;
            let pending = only(client.find(by_key("later", "key-2")).await);
            assert_eq!((pending.state, pending.due), ("delayed", Some(due)));
            assert_eq!((&pending.message_id, pending.content), (&far[0].message_id, None));
            for gone in [by_id(&recalled[0].message_id), by_key("later", "key-3")] {
                let answer = client.find(gone).await.unwrap();
                assert!(answer.complete, "{answer:?}");
                assert!(answer.messages.iter().all(|one| one.content.is_none()), "{answer:?}");
            }
            let committed = only(client.find(by_key("halves", "key-0")).await);
            assert_eq!(committed.message_id, halves[0].message_id);
            check_place(&client, &committed).await;
            let rolled_back = client.find(by_id(&halves[1].message_id)).await.unwrap();
            assert!(rolled_back.complete && rolled_back.messages.is_empty(), "{rolled_back:?}");
            let half = only(client.find(by_key("halves", "key-2")).await);
            assert_eq!((half.state, half.content), ("half", None));
        }
        if round == 0 {
            cluster.kill_all();
            cluster.up();
            cluster.wait_ready(PATIENCE);
        }
    }
}

/// The directories of indexes below `dir`.
fn indexes(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let is_index = path.file_name().is_some_and(|name| name == "index");
            if is_index { found.push(path) } else { found.extend(indexes(&path)) }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_index_is_made_anew_answers_say_so() {
    let mut cluster = Cluster::start(Plan::of(3));
    create(&cluster, "lost", "normal");
    let ids = send(&cluster, "lost", 1_024).await;
    check_all(&cluster, "lost", &ids).await;
    cluster.kill_all();
    let lost = indexes(&cluster.data());
    assert_eq!(lost.len(), 3, "{lost:?}");
    lost.iter().for_each(|dir| fs::remove_dir_all(dir).unwrap());
    cluster.set_environment(vec![("RAFTMQ_INDEX__BYTES_PER_SECOND", SLOW.to_owned())]);
    cluster.up();
    cluster.wait_ready(PATIENCE);

    let last = MESSAGES - 1;
    let key = format!("key-{last}");
    for client in clients(&cluster).await {
        let answer = client.find(by_key("lost", &key)).await.unwrap();
        assert!(answer.messages.is_empty(), "the index has not come so far: {answer:?}");
        assert!(!answer.complete, "this is not known to be all");
        assert!(answer.parts.iter().all(|part| part.why.is_some()), "{answer:?}");
        // What goes without the index is complete.
        let place = FindBy::Time { topic: topic("lost"), time: 0 };
        assert!(client.find(place).await.unwrap().complete);
    }
    let at = cluster.nodes()[0].grpc;
    let words = ["message", "query", "--topic", "lost", "--key", &key];
    let refused = cluster.tool(at, &words).unwrap_err();
    assert!(refused.contains("INCOMPLETE"), "{refused}");

    until("the index of this node is whole again", REBUILT_WITHIN, || {
        let found = cluster.tool(at, &words)?;
        let complete = found["complete"] == true && found["messages"][0]["state"] == "visible";
        if complete { Ok(()) } else { Err(found.to_string()) }
    });
    let found = cluster.tool(at, &["message", "get", &ids[&last]]).unwrap();
    assert_eq!(found["messages"][0]["message_id"], ids[&last].as_str());
}
