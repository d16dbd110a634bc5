//! Two broker groups on the same three nodes: every client reaches both through any node, and what
//! befalls one is not noticed in the other.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::cluster::{Cluster, PATIENCE, Plan, Replica, kill};
use crate::common::until;

const SENT: usize = 60;
/// Sends to each group before the leader of one is killed, and after.
const WATCHED: usize = 50;

fn two_groups() -> Cluster {
    Cluster::start(Plan { broker_groups: 2, ..Plan::of(3) })
}

fn leader(replicas: &[Replica]) -> Option<u64> {
    replicas.iter().find(|replica| replica.role == "leader").map(|replica| replica.node)
}

/// The leaders of both groups, once they are on different nodes.
pub(super) fn spread_leaders(cluster: &Cluster) -> [u64; 2] {
    until("the leaders are spread", PATIENCE, || {
        let endpoint = cluster.nodes()[0].grpc;
        let groups = cluster.groups_by(endpoint)?;
        match (leader(&groups[0]), leader(&groups[1])) {
            (Some(one), Some(other)) if one != other => Ok([one, other]),
            leaders => Err(format!("{leaders:?}")),
        }
    })
}

/// How many messages of a topic each broker group holds, by the group's name.
pub(super) fn held(cluster: &Cluster, endpoint: SocketAddr, topic: &str) -> Vec<(String, u64)> {
    let described = cluster.tool(endpoint, &["topic", "describe", topic]).unwrap();
    let part = |part: &Value| {
        let queues = part["queues"].as_array().unwrap().iter();
        let messages = queues.map(|q| q["end"].as_u64().unwrap() - q["start"].as_u64().unwrap());
        (part["broker_group"].as_str().unwrap().to_owned(), messages.sum())
    };
    described["parts"].as_array().unwrap().iter().map(part).collect()
}

#[test]
fn every_node_serves_the_topics_of_both_groups() {
    let cluster = two_groups();
    let nodes = cluster.nodes();
    spread_leaders(&cluster);
    let at = |node: usize, words: &[&str]| cluster.tool(nodes[node].grpc, words).unwrap();

    // A topic in one group only differs from what it should be; making it again makes it alike.
    let created =
        at(0, &["topic", "create", "both", "--queues", "4", "--broker-groups", "group-1"]);
    assert_eq!(created["parts"].as_array().unwrap().len(), 1, "{created}");
    let differences = created["differences"].to_string();
    assert!(differences.contains("group-0 does not have it"), "{differences}");
    let created = at(1, &["topic", "create", "both", "--queues", "4"]);
    assert_eq!(created["parts"].as_array().unwrap().len(), 2, "{created}");
    assert_eq!(created["differences"].as_array().unwrap().len(), 0, "{created}");
    let other = cluster.tool(nodes[2].grpc, &["topic", "create", "both", "--queues", "5"]);
    assert!(other.unwrap_err().contains("broker group group-0"), "the settings differ");
    let stranger = ["topic", "create", "none", "--broker-groups", "group-7"];
    assert!(cluster.tool(nodes[0].grpc, &stranger).unwrap_err().contains("group-0, group-1"));

    // A node sends to the group that it leads, so all nodes together reach both.
    let mut sent = BTreeSet::new();
    for node in 0..nodes.len() {
        for number in 0..SENT / nodes.len() {
            let body = format!("{node}-{number}");
            at(node, &["message", "send", "--topic", "both", "--body", &body]);
            sent.insert(body);
        }
    }
    let held = held(&cluster, nodes[0].grpc, "both");
    println!("messages in each group: {held:?}");
    assert_eq!(held.iter().map(|(_, messages)| messages).sum::<u64>(), SENT as u64);
    assert!(held.iter().all(|(_, messages)| *messages > 0), "{held:?}");

    // A consumer behind one node gets the messages of both groups, each once.
    let mut received = Vec::new();
    for node in [2, 0, 1].into_iter().cycle().take(3 * SENT) {
        let words = ["message", "receive", "--topic", "both", "--group", "readers"];
        let words = [&words[..], &["--max", "5", "--ack", "--wait", "10s"]].concat();
        let messages = at(node, &words);
        received.extend(messages.as_array().unwrap().iter().map(body));
        if received.len() >= SENT {
            break;
        }
    }
    assert_eq!(received.len(), SENT, "{received:?}");
    assert_eq!(received.into_iter().collect::<BTreeSet<_>>(), sent);

    // A poll that waits hears of a message in either group.
    for (node, group) in [(0, "group-0"), (1, "group-0"), (2, "group-1"), (0, "group-1")] {
        let topic = format!("late-{node}-{group}");
        at(node, &["topic", "create", &topic, "--broker-groups", "group-0,group-1"]);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let words = ["message", "receive", "--topic", &topic, "--group", "readers"];
                at(node, &[&words[..], &["--max", "1", "--ack", "--wait", "15s"]].concat())
            });
            let leader = spread_leaders(&cluster)[usize::from(group == "group-1")];
            let endpoint = cluster.node(leader).grpc;
            let send = ["message", "send", "--topic", &topic, "--body", group];
            cluster.tool(endpoint, &send).unwrap();
            let messages = waiting.join().unwrap();
            assert_eq!(messages.as_array().unwrap().len(), 1, "{messages}");
        });
    }
}

fn body(message: &Value) -> String {
    message["body"].as_str().unwrap().to_owned()
}

/// What sends to one topic saw: how many there were, the errors, and the longest one.
#[derive(Debug, Default)]
struct Seen {
    sends: AtomicUsize,
    errors: Mutex<Vec<String>>,
    longest: Mutex<Duration>,
}

impl Seen {
    /// One send after the other, until it is told to stop.
    fn send(&self, cluster: &Cluster, (endpoint, topic): (SocketAddr, &str), stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let words = ["message", "send", "--topic", topic, "--body", "x"];
            self.errors.lock().unwrap().extend(cluster.tool(endpoint, &words).err());
            let mut longest = self.longest.lock().unwrap();
            *longest = longest.max(start.elapsed());
            self.sends.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn wait_more(&self) {
        let enough = self.sends.load(Ordering::Relaxed) + WATCHED;
        until("there are more sends", PATIENCE, || {
            let sends = self.sends.load(Ordering::Relaxed);
            if sends >= enough { Ok(()) } else { Err(format!("{sends} of {enough}")) }
        });
    }

    fn sends(&self) -> u64 {
        self.sends.load(Ordering::Relaxed) as u64
    }
}

#[test]
fn the_kill_of_one_groups_leader_is_not_noticed_in_the_other() {
    let cluster = two_groups();
    let [killed, stays] = spread_leaders(&cluster);
    let bystander = (1..=3).find(|node| ![killed, stays].contains(node)).unwrap();
    let endpoint = cluster.node(bystander).grpc;
    for (topic, group) in [("hit", "group-0"), ("spared", "group-1")] {
        cluster.tool(endpoint, &["topic", "create", topic, "--broker-groups", group]).unwrap();
    }
    let before = cluster.groups_by(endpoint).unwrap();

    let victim = cluster.node(killed);
    let (hit, spared, stop) = (Seen::default(), Seen::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| hit.send(&cluster, (endpoint, "hit"), &stop));
        scope.spawn(|| spared.send(&cluster, (endpoint, "spared"), &stop));
        hit.wait_more();
        kill(victim.pid, Signal::KILL);
        hit.wait_more();
        spared.wait_more();
        stop.store(true, Ordering::Relaxed);
    });
    println!("the killed leader's group: {hit:?}\nthe other group: {spared:?}");
    assert!(spared.errors.lock().unwrap().is_empty(), "{spared:?}");
    assert!(hit.errors.lock().unwrap().is_empty(), "{hit:?}");

    let after = cluster.groups_by(endpoint).unwrap();
    assert_ne!(leader(&after[0]), Some(killed), "the killed leader's group has another");
    assert!(leader(&after[0]).is_some());
    assert_eq!(leader(&after[1]), Some(stays), "the other group kept its leader");
    let term = |replicas: &[Replica], node: u64| {
        replicas.iter().find(|replica| replica.node == node).map(|replica| replica.term)
    };
    assert_eq!(term(&after[1], stays), term(&before[1], stays), "and its term");
    let held = |topic| held(&cluster, endpoint, topic)[0].1;
    assert_eq!((held("hit"), held("spared")), (hit.sends(), spared.sends()));
}
