//! More than the brokers can take: refused at once and by its own code, while what was accepted is
//! there and memory stays what it was. The bound is set so low that a few requests are an overload,
//! so that nothing here depends on how fast a machine is.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use raftmq::wire::rocketmq as v2;
use tokio::task::JoinSet;
use v2::Code;

use crate::common::cluster::{Cluster, Node, Plan};
use crate::common::raw::{Raw, answer, message, receive};

const GROUP: &str = "survivors";
/// Bytes that may be under way at a node: eight of these requests, not more.
const UNDER_WAY: &str = "1MiB";
const BODY: usize = 128 << 10;
/// Requests at once on each of the connections.
const AT_ONCE: usize = 64;
const CONNECTIONS: usize = 4;
const ROUNDS: usize = 3;
/// What the overload may add to a node's own memory: its window of 1 MiB, what its connections have
/// read ahead, and what the allocator keeps.
const GROWTH_MAX_MIB: u64 = 192;

struct Told {
    code: i32,
    text: String,
    id: String,
    after: Duration,
}

async fn send(mut raw: Raw, topic: &str, id: String) -> Told {
    let messages = vec![message(topic, &id, vec![b'x'; BODY])];
    let begun = Instant::now();
    let status = raw.send_message(v2::SendMessageRequest { messages }).await.unwrap().status;
    let (code, text) = answer(status);
    Told { code, text, id, after: begun.elapsed() }
}

/// The memory of a process that is no file's, in MiB.
fn anonymous(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid)).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// All that is there.
async fn drain(raw: &mut Raw, topic: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    loop {
        let ((code, text), messages) = raw.receive(receive(topic, GROUP)).await.unwrap();
        if messages.is_empty() {
            assert_eq!(code, i32::from(Code::MessageNotFound), "{text}");
            return ids;
        }
        for message in messages {
            ids.insert(message.system_properties.unwrap().message_id);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_much_is_refused_at_once_and_nothing_accepted_is_lost() {
    let mut plan = Plan::of(3);
    plan.environment.push(("RAFTMQ_RAFT__UNDER_WAY_BYTES", UNDER_WAY.to_owned()));
    let cluster = Cluster::start(plan);
    // At a follower too: it hears from the leader that there is no room.
    for (topic, node) in [("leader", cluster.leader()), ("follower", cluster.a_follower())] {
        let mut first = Raw::connect(node.grpc).await;
        let (code, text) = first.send(vec![message(topic, "01first", "one")]).await;
        assert_eq!(code, i32::from(Code::Ok), "{text}");
        let before = anonymous(&node);
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Raw::connect(node.grpc).await);
        }
        let mut accepted = BTreeSet::from(["01first".to_owned()]);
        let mut refusals = Vec::new();
        for round in 0..ROUNDS {
            let mut sends = JoinSet::new();
            for number in 0..CONNECTIONS * AT_ONCE {
                let raw = connections[number % CONNECTIONS].clone();
                sends.spawn(send(raw, topic, format!("01{round}x{number}")));
            }
            while let Some(told) = sends.join_next().await {
                let Told { code, text, id, after } = told.unwrap();
                if code == i32::from(Code::Ok) {
                    accepted.insert(id);
                    continue;
                }
                assert_eq!(code, i32::from(Code::TooManyRequests), "{text}");
                assert!(text.contains("try again in"), "it says how long to wait: {text}");
                refusals.push(after);
            }
        }
        assert!(!refusals.is_empty(), "256 requests at once fit into {UNDER_WAY}");
        assert!(accepted.len() > ROUNDS, "an overload is not a standstill");
        refusals.sort_unstable();
        let growth = anonymous(&node).saturating_sub(before);
        println!(
            "at the {topic}: {} accepted, {} refused, the slowest after {:.1?} with all that was \
             read before it; memory grew by {growth} MiB",
            accepted.len(),
            refusals.len(),
            refusals[refusals.len() - 1]
        );
        assert!(growth <= GROWTH_MAX_MIB, "{growth} MiB more");
        // Nobody waits for what was refused, so the next send finds room.
        let (code, text) = first.send(vec![message(topic, "01last", "one")]).await;
        assert_eq!(code, i32::from(Code::Ok), "{text}");
        accepted.insert("01last".to_owned());
        let there = drain(&mut first, topic).await;
        let lost: Vec<_> = accepted.difference(&there).collect();
        assert!(lost.is_empty(), "accepted and not there: {lost:?}");
        let more: Vec<_> = there.difference(&accepted).collect();
        assert!(more.is_empty(), "refused and there: {more:?}");
    }
    cluster.wait_equal(Duration::from_secs(30));
}
