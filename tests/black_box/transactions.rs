//! Transactional messages: nobody sees one before it is committed, the first decision counts, and
//! whoever can decide is asked.

use std::net::SocketAddr;
use std::time::Duration;

use raftmq::wire::rocketmq as v2;
use rustix::process::Signal;
use serde_json::Value;
use v2::telemetry_command::Command;
use v2::{TransactionResolution as Resolution, TransactionSource as Source};

use crate::common::cluster::{Cluster, Node, PATIENCE, Plan, gone, kill, wait_drained};
use crate::common::python::{Script, count};
use crate::common::raw::{self, Raw, Talk, answer, message, resource};
use crate::common::until;

const OK: i32 = 20_000;
const INVALID_TRANSACTION_ID: i32 = 40_008;
const PRECONDITION_FAILED: i32 = 42_800;
const WITHIN: Duration = Duration::from_secs(60);
/// As the clusters of these tests are told.
const INTERVAL: &str = "300ms";
const CHECKS_MAX: u64 = 3;

fn plan(nodes: u16, restart: bool, checks_max: u64) -> Plan {
    let environment = vec![
        ("RAFTMQ_TRANSACTIONS__FIRST_CHECK", "200ms".to_owned()),
        ("RAFTMQ_TRANSACTIONS__CHECK_INTERVAL", INTERVAL.to_owned()),
        ("RAFTMQ_TRANSACTIONS__CHECKS_MAX", checks_max.to_string()),
    ];
    Plan { environment, restart, ..Plan::of(nodes) }
}

fn create(cluster: &Cluster, at: SocketAddr, topic: &str) {
    let words = ["topic", "create", topic, "--queues", "2", "--type", "transaction"];
    cluster.tool(at, &words).unwrap();
}

/// A half message and its transaction id.
#[derive(Clone, Debug)]
struct Half {
    topic: &'static str,
    id: String,
    transaction: String,
}

fn half_message(topic: &str, id: &str) -> v2::Message {
    let mut half = message(topic, id, format!("body of {id}"));
    let system = half.system_properties.as_mut().unwrap();
    system.message_type = v2::MessageType::Transaction.into();
    half
}

async fn prepare(raw: &mut Raw, topic: &'static str, id: &str) -> Half {
    let messages = vec![half_message(topic, id)];
    let answered = raw.send_message(v2::SendMessageRequest { messages }).await.unwrap();
    assert_eq!(answer(answered.status).0, OK);
    let entry = answered.entries.into_iter().next().unwrap();
    assert_eq!((answer(entry.status).0, entry.message_id.as_str()), (OK, id));
    assert!(!entry.transaction_id.is_empty(), "a half message has a transaction id");
    Half { topic, id: id.to_owned(), transaction: entry.transaction_id }
}

async fn end(raw: &mut Raw, half: &Half, resolution: Resolution, source: Source) -> raw::Answer {
    let request = v2::EndTransactionRequest {
        topic: resource(half.topic),
        message_id: half.id.clone(),
        transaction_id: half.transaction.clone(),
        resolution: resolution.into(),
        source: source.into(),
        ..Default::default()
    };
    answer(raw.end_transaction(request).await.unwrap().status)
}

async fn commit(raw: &mut Raw, half: &Half) -> raw::Answer {
    end(raw, half, Resolution::Commit, Source::SourceClient).await
}

async fn roll_back(raw: &mut Raw, half: &Half) -> raw::Answer {
    end(raw, half, Resolution::Rollback, Source::SourceClient).await
}

/// A producer of the topic, connected to this node alone.
async fn producer(raw: &mut Raw, topic: &str) -> Talk {
    let publishing =
        v2::Publishing { topics: resource(topic).into_iter().collect(), ..Default::default() };
    let settings = v2::Settings {
        client_type: Some(v2::ClientType::Producer.into()),
        pub_sub: Some(v2::settings::PubSub::Publishing(publishing)),
        ..Default::default()
    };
    let command = Some(Command::Settings(settings));
    let mut talk = raw.talk(v2::TelemetryCommand { status: None, command }).await.unwrap();
    let told = talk.next(PATIENCE).await.unwrap();
    assert!(matches!(told.command, Some(Command::Settings(_))), "{told:?}");
    talk
}

/// The next question on a stream.
async fn question(talk: &mut Talk) -> (String, v2::Message) {
    let asked = talk.next(PATIENCE).await.unwrap();
    match asked.command {
        Some(Command::RecoverOrphanedTransactionCommand(asked)) => {
            (asked.transaction_id, asked.message.unwrap())
        }
        other => panic!("another command: {other:?}"),
    }
}

/// Ids of the messages that a group gets, acknowledged.
async fn take_all(raw: &mut Raw, topic: &str, group: &str, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    let start = std::time::Instant::now();
    while ids.len() < count && start.elapsed() < PATIENCE {
        let (_, messages) = raw.receive(raw::receive(topic, group)).await.unwrap();
        for message in messages {
            let system = message.system_properties.unwrap();
            ids.push(system.message_id.clone());
            let entry = v2::AckMessageEntry {
                message_id: system.message_id,
                receipt_handle: system.receipt_handle.unwrap(),
                ..Default::default()
            };
            let request = v2::AckMessageRequest {
                group: resource(group),
                topic: resource(topic),
                entries: vec![entry],
            };
            let acked = raw.ack_message(request).await.unwrap();
            assert_eq!(answer(acked.status).0, OK);
        }
    }
    ids
}

/// Open transactions of a topic as the command line lists them.
fn listed(cluster: &Cluster, at: SocketAddr, topic: &str, parked: bool) -> Vec<Value> {
    let mut words = vec!["transaction", "list", "--topic", topic];
    words.extend(parked.then_some("--parked"));
    let value = until("transactions are listed", PATIENCE, || cluster.tool(at, &words));
    value.as_array().unwrap().clone()
}

fn checks(cluster: &Cluster, at: SocketAddr, topic: &str) -> u64 {
    let open = listed(cluster, at, topic, false);
    assert_eq!(open.len(), 1, "{open:?}");
    open[0]["checks"].as_u64().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn followers(cluster: &Cluster) -> (Node, Vec<Node>) {
    let leader = cluster.leader();
    let followers = cluster.nodes().into_iter().filter(|node| node.node != leader.node);
    let followers = followers.collect();
    (leader, followers)
}

#[test]
fn a_producer_that_lives_elsewhere_is_asked_when_the_first_is_gone() {
    let cluster = Cluster::start(plan(3, false, CHECKS_MAX));
    let (leader, followers) = followers(&cluster);
    create(&cluster, leader.grpc, "orders");
    let (one, other) = (followers[0].grpc, followers[1].grpc);
    runtime().block_on(async {
        // Its connection ends with it: the producer is gone.
        let half = {
            let mut gone = Raw::connect(one).await.named(Some("gone@1@0@raw"));
            let _talk = producer(&mut gone, "orders").await;
            prepare(&mut gone, "orders", "orphan").await
        };
        // This one has sent nothing, and is connected to the third node only.
        let mut other = Raw::connect(other).await.named(Some("other@1@0@raw"));
        let mut talk = producer(&mut other, "orders").await;
        let (transaction, asked) = question(&mut talk).await;
        assert_eq!(transaction, half.transaction);
        let system = asked.system_properties.unwrap();
        assert_eq!(system.message_id, "orphan");
        assert_eq!(&asked.body[..], b"body of orphan");
        assert!(system.body_digest.is_some() && system.born_timestamp.is_some());
        let answered = end(&mut other, &half, Resolution::Commit, Source::SourceServerCheck).await;
        assert_eq!(answered.0, OK);
        assert_eq!(take_all(&mut other, "orders", "billing", 1).await, ["orphan"]);
        wait_drained(&cluster, leader.grpc, "billing");
    });
    assert!(listed(&cluster, leader.grpc, "orders", false).is_empty());
    cluster.wait_equal(PATIENCE);
    println!("a producer at another node was asked, and its commit delivered the message");
}

#[test]
fn the_producer_that_sent_it_is_asked_while_it_lives_and_nobody_is_nobody() {
    let cluster = Cluster::start(plan(3, false, CHECKS_MAX));
    let (leader, followers) = followers(&cluster);
    for topic in ["asked", "unasked"] {
        create(&cluster, leader.grpc, topic);
    }
    let (one, other) = (followers[0].grpc, followers[1].grpc);
    runtime().block_on(async {
        let mut nobody = Raw::connect(leader.grpc).await.named(Some("nobody@1@0@raw"));
        let unasked = prepare(&mut nobody, "unasked", "unasked").await;
        let mut bystander = Raw::connect(leader.grpc).await.named(Some("bystander@1@0@raw"));
        let mut bystanders = producer(&mut bystander, "asked").await;
        let mut sender = Raw::connect(one).await.named(Some("sender@1@0@raw"));
        let mut talk = producer(&mut sender, "asked").await;
        // Sent through yet another node: who it is counts, not where it came in.
        let mut elsewhere = Raw::connect(other).await.named(Some("sender@1@0@raw"));
        let half = prepare(&mut elsewhere, "asked", "asked").await;
        for number in 1..=CHECKS_MAX {
            let (transaction, _) = question(&mut talk).await;
            assert_eq!(transaction, half.transaction, "check {number}");
            let open = end(&mut sender, &half, Resolution::Unspecified, Source::SourceServerCheck);
            assert_eq!(open.await.0, OK, "undecided is an answer");
        }
        until("it is parked", PATIENCE, || match listed(&cluster, one, "asked", true).len() {
            1 => Ok(()),
            parked => Err(parked),
        });
        // All the while nobody lived who could have been asked about the other one.
        assert_eq!(checks(&cluster, leader.grpc, "unasked"), 0);
        assert!(listed(&cluster, leader.grpc, "unasked", true).is_empty());
        assert!(bystanders.try_next().await.is_none(), "the one that sent it lives");
        // Once somebody comes, it is asked.
        let mut late = producer(&mut nobody, "unasked").await;
        assert_eq!(question(&mut late).await.0, unasked.transaction);
        assert_eq!(roll_back(&mut nobody, &unasked).await.0, OK);
    });
    assert!(listed(&cluster, leader.grpc, "unasked", false).is_empty());
    println!("{CHECKS_MAX} checks of {INTERVAL} reached the sender, none reached nobody");
}

#[test]
fn the_first_decision_stands_on_every_node_and_over_a_leaders_death() {
    let mut cluster = Cluster::start(plan(3, true, CHECKS_MAX));
    let leader = cluster.leader();
    create(&cluster, leader.grpc, "first");
    let told = runtime().block_on(async {
        let mut raw = Raw::connect(cluster.a_follower().grpc).await;
        let rolled_back = prepare(&mut raw, "first", "rolled-back").await;
        let committed = prepare(&mut raw, "first", "committed").await;
        let open = prepare(&mut raw, "first", "open").await;
        assert_eq!(roll_back(&mut raw, &rolled_back).await.0, OK);
        assert_eq!(commit(&mut raw, &committed).await.0, OK);
        let told = check_decided(&mut raw, &rolled_back, &committed).await;
        for node in cluster.nodes() {
            let mut raw = Raw::connect(node.grpc).await;
            assert_eq!(check_decided(&mut raw, &rolled_back, &committed).await, told);
        }

        kill(leader.pid, Signal::KILL);
        until("the leader is gone", PATIENCE, || gone(leader.pid));
        let lives = cluster.try_nodes().unwrap().into_iter().find(|node| node.node != leader.node);
        let mut raw = Raw::connect(lives.unwrap().grpc).await;
        // What was asked before is answered the same, and what was open can be ended.
        assert_eq!(check_decided(&mut raw, &rolled_back, &committed).await, told);
        assert_eq!(commit(&mut raw, &open).await.0, OK);
        // A repeated send is the transaction that it was.
        for half in [&rolled_back, &committed, &open] {
            assert_eq!(prepare(&mut raw, "first", &half.id).await.transaction, half.transaction);
        }
        let mut got = take_all(&mut raw, "first", "group", 2).await;
        got.sort();
        assert_eq!(got, ["committed", "open"]);
        wait_drained(&cluster, cluster.a_follower().grpc, "group");
        told
    });
    cluster.wait_ready(PATIENCE);
    cluster.wait_equal(PATIENCE);
    println!("the same before and after the leader's death: {told:?}");
}

/// Repeating a decision is good, another one is told the fact.
async fn check_decided(raw: &mut Raw, rolled_back: &Half, committed: &Half) -> [raw::Answer; 2] {
    assert_eq!(roll_back(raw, rolled_back).await.0, OK);
    assert_eq!(commit(raw, committed).await.0, OK);
    let against = [commit(raw, rolled_back).await, roll_back(raw, committed).await];
    for ((code, text), fact) in against.iter().zip(["rolled back", "committed"]) {
        assert_eq!(*code, PRECONDITION_FAILED, "{text}");
        assert!(text.contains(fact), "{text}");
    }
    against
}

#[test]
fn a_parked_transaction_is_decided_by_an_operator() {
    let cluster = Cluster::start(plan(3, false, CHECKS_MAX));
    let at = cluster.leader().grpc;
    create(&cluster, at, "parked");
    runtime().block_on(async {
        let mut raw = Raw::connect(cluster.a_follower().grpc).await;
        let mut talk = producer(&mut raw, "parked").await;
        let half = prepare(&mut raw, "parked", "parked").await;
        let spare = prepare(&mut raw, "parked", "spare").await;
        assert_eq!(roll_back(&mut raw, &spare).await.0, OK);
        let parked = || {
            until("it is parked", PATIENCE, || {
                let parked = listed(&cluster, at, "parked", true);
                if parked.len() == 1 { Ok(parked[0].clone()) } else { Err(parked) }
            })
        };
        let found = parked();
        assert_eq!(found["transaction_id"], half.transaction.as_str());
        assert_eq!(
            (&found["message_id"], &found["checks"]),
            (&"parked".into(), &CHECKS_MAX.into())
        );
        // Asked again from the first check on, and parked again.
        cluster.tool(at, &["transaction", "resume", &half.transaction]).unwrap();
        for _ in 0..2 * CHECKS_MAX {
            assert_eq!(question(&mut talk).await.0, half.transaction);
        }
        parked();
        let committed = cluster.tool(at, &["transaction", "commit", &half.transaction]).unwrap();
        assert_eq!(committed["offset"], 0, "{committed}");
        cluster.tool(at, &["transaction", "commit", &half.transaction]).unwrap();
        let refused =
            cluster.tool(at, &["transaction", "rollback", &half.transaction]).unwrap_err();
        assert!(refused.contains("committed by an operator"), "{refused}");
        let (code, text) = roll_back(&mut raw, &half).await;
        assert_eq!(code, PRECONDITION_FAILED, "{text}");
        assert_eq!(take_all(&mut raw, "parked", "group", 1).await, ["parked"]);
        wait_drained(&cluster, at, "group");
    });
    assert!(listed(&cluster, at, "parked", false).is_empty());
    cluster.wait_equal(PATIENCE);
    println!("parked after {CHECKS_MAX} checks, resumed, parked, committed, delivered once");
}

#[test]
fn what_is_no_transaction_is_refused() {
    let cluster = Cluster::start(plan(1, false, CHECKS_MAX));
    let at = cluster.nodes()[0].grpc;
    create(&cluster, at, "strict");
    create(&cluster, at, "other");
    cluster.tool(at, &["topic", "create", "plain"]).unwrap();
    runtime().block_on(async {
        let mut raw = Raw::connect(at).await;
        let half = prepare(&mut raw, "strict", "m").await;
        let mut refused = Vec::new();
        let (rest, last) = half.transaction.split_at(half.transaction.len() - 1);
        let forged = format!("{rest}{}", if last == "0" { "1" } else { "0" });
        for transaction in ["", "  ", "nonsense", rest, &forged] {
            let half = Half { transaction: transaction.to_owned(), ..half.clone() };
            refused.push(commit(&mut raw, &half).await);
        }
        refused.push(commit(&mut raw, &Half { id: "n".into(), ..half.clone() }).await);
        refused.push(commit(&mut raw, &Half { topic: "other", ..half.clone() }).await);
        for (code, text) in refused {
            assert_eq!(code, INVALID_TRANSACTION_ID, "{text}");
        }
        // A topic takes the kinds that it was made for.
        let (code, text) = raw.send(vec![half_message("plain", "p")]).await;
        assert_eq!(code, 40_014, "{text}");
        let (code, text) = raw.send(vec![message("strict", "q", "normal")]).await;
        assert_eq!(code, 40_014, "{text}");
        let mixed = vec![half_message("strict", "r"), message("strict", "s", "normal")];
        assert_ne!(raw.send(mixed).await.0, OK);
        assert_eq!(commit(&mut raw, &half).await.0, OK);
        assert_eq!(take_all(&mut raw, "strict", "g", 1).await, ["m"]);
        // It goes with its topic.
        let open = prepare(&mut raw, "other", "open").await;
        cluster.tool(at, &["topic", "delete", "other"]).unwrap();
        let (code, text) = commit(&mut raw, &open).await;
        assert_eq!(code, INVALID_TRANSACTION_ID, "{text}");
    });
}

fn transact(cluster: &Cluster, at: SocketAddr, label: &str, words: [&str; 2]) -> Script {
    let at = at.to_string();
    let words = ["--endpoint", &at, "--topic", "trades", "--send", words[0], "--answer", words[1]];
    Script::start("transact", cluster.folder(), label, &words)
}

#[test]
fn the_python_client_commits_rolls_back_and_answers_checks() {
    let cluster = Cluster::start(plan(3, false, 1000));
    let at = cluster.nodes().iter().map(|node| node.grpc).collect::<Vec<_>>();
    create(&cluster, at[0], "trades");
    let mut first =
        transact(&cluster, at[0], "first", ["commit rollback open commit open", "open"]);
    first.wait("all is sent", WITHIN, |lines| count(lines, "sent") == 1);
    // Killed in the middle: its open ones are asked of another instance.
    let lines = first.cut();
    let ids = |word: &str| {
        let halves = lines.iter().filter(|line| line["event"] == "half" && line["word"] == word);
        halves.map(|line| line["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (open, mut due) = (ids("open"), ids("commit"));
    assert_eq!((open.len(), due.len(), ids("rollback").len()), (2, 2, 1));

    let mut second = transact(&cluster, at[2], "second", ["", "commit"]);
    let asked = |lines: &[Value]| {
        let asked = lines.iter().filter(|line| line["event"] == "asked");
        let mut ids: Vec<_> = asked.map(|line| line["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids.dedup();
        ids
    };
    second.wait("the other instance is asked", WITHIN, |lines| asked(lines).len() == 2);
    let lines = second.finish();
    let mut expected = open.clone();
    expected.sort();
    assert_eq!(asked(&lines), expected);
    let whole = lines.iter().filter(|line| line["event"] == "asked");
    for line in whole {
        assert_eq!((&line["corrupted"], &line["tag"]), (&false.into(), &"open".into()), "{line}");
    }
    until("nothing is open", PATIENCE, || match listed(&cluster, at[1], "trades", false) {
        open if open.is_empty() => Ok(()),
        open => Err(open),
    });
    due.extend(open);
    due.sort();
    let mut got = runtime().block_on(async {
        let mut raw = Raw::connect(at[1]).await;
        take_all(&mut raw, "trades", "settlement", due.len()).await
    });
    got.sort();
    assert_eq!(got, due, "what was committed came once, what was rolled back never");
    wait_drained(&cluster, at[1], "settlement");
    println!("2 committed, 1 rolled back, 2 committed by the checks of another instance");
}
