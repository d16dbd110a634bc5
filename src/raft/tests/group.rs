//! What a group promises, told as stories over real disks and loopback TCP.

use std::fs;

use tokio::time::{Duration, Instant};

use super::cluster::{Cluster, PATIENCE, create_topic, eventually};
use crate::base::{Millis, NodeId};
use crate::command::{Command, Reply, Retention};
use crate::raft::{AskError, ProposeError, Role, StartError, TransferError};

fn created(reply: &Result<Reply, ProposeError>) -> bool {
    matches!(reply, Ok(Reply::TopicCreated { existed: false, .. }))
}

/// A killed leader is replaced, what was answered stays, and it comes back as a follower that has
/// everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_outlives_its_leader() {
    let mut cluster = Cluster::started(3).await;
    let first = cluster.leader().await;
    let follower = cluster.follower().await;
    for round in 0..20 {
        let reply = cluster.node(follower).create_topic(&format!("before-{round}")).await;
        assert!(created(&reply), "through a follower: {reply:?}");
    }
    cluster.agree().await;

    cluster.kill(first).await;
    for round in 0..20 {
        let reply = cluster.node(follower).create_topic(&format!("after-{round}")).await;
        assert!(created(&reply), "with two of three nodes: {reply:?}");
    }
    assert_ne!(cluster.leader().await, first);

    cluster.start(first).await.unwrap();
    eventually("the old leader caught up", || (cluster.node(first).topics() == 40).then_some(()))
        .await;
    cluster.agree().await;
}

/// One that was never heard of since they started counts as one that understands what they do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_that_start_anew_take_every_command() {
    let mut cluster = Cluster::started(3).await;
    assert!(created(&cluster.node(1).create_topic("before").await));
    cluster.agree().await;
    for node in 1..=3 {
        cluster.kill(node).await;
    }
    for (node, result) in cluster.start_all(&[1, 2]).await {
        result.unwrap_or_else(|error| panic!("node {node} does not start: {error}"));
    }
    let leader = cluster.leader().await;
    let retention = Retention { stride: 1 << 20, time: Millis::ZERO, bytes: 0, moved_max: 1 << 20 };
    let checks = Command::Check(Vec::new());
    for command in [Command::Retain(retention), checks] {
        let group = cluster.node(leader).group.clone();
        let deadline = Instant::now() + PATIENCE;
        let proposed = async move { group.propose(command, deadline).await };
        let reply = cluster.node(leader).on(proposed).await;
        assert!(reply.is_ok(), "with the third node away: {reply:?}");
    }
}

/// Whatever was answered is there on every node in the end, however often leaders are killed
/// while proposals are under way; and nothing is there that nobody asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_proposals_survive_kills_under_load() {
    let mut cluster = Cluster::started(3).await;
    let mut answered = Vec::new();
    for round in 0..3 {
        let leader = cluster.leader().await;
        let follower = cluster.follower().await;
        let burst = (0..100).map(|number| {
            let name = format!("round-{round}-{number}");
            let group = cluster.node(follower).group.clone();
            cluster.node(follower).spawn(async move {
                let reply = group.propose(create_topic(&name), Instant::now() + PATIENCE).await;
                (name, reply)
            })
        });
        let burst: Vec<_> = burst.collect();
        cluster.kill(leader).await;
        for proposal in burst {
            let (name, reply) = proposal.await.unwrap();
            // A repeated creation says that the topic exists, which is the same to its caller.
            assert!(matches!(reply, Ok(Reply::TopicCreated { .. })), "{name}: {reply:?}");
            answered.push(name);
        }
        cluster.start(leader).await.unwrap();
    }
    cluster.agree().await;
    answered.sort();
    for (node, running) in cluster.running() {
        let names = |state: &crate::machine::State| {
            state.topics_after(None).map(|topic| topic.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(running.group.read(names), answered, "node {node}");
    }
}

/// All nodes at once: the log alone brings everything back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_comes_back_from_its_disks() {
    let mut cluster = Cluster::started(3).await;
    for round in 0..30 {
        assert!(created(&cluster.node(1).create_topic(&format!("topic-{round}")).await));
    }
    let found = cluster.node(1).group.read(|state| state.founded().cloned());
    for node in 1..=3 {
        cluster.kill(node).await;
    }
    for (node, result) in cluster.start_all(&[1, 2, 3]).await {
        assert_eq!(result, Ok(()), "node {node}");
    }
    cluster.leader().await;
    let reply = cluster.node(2).create_topic("topic-3").await;
    assert!(matches!(reply, Ok(Reply::TopicCreated { existed: true, .. })), "{reply:?}");
    cluster.agree().await;
    assert_eq!(cluster.node(3).topics(), 30);
    assert_eq!(cluster.node(3).group.read(|state| state.founded().cloned()), found);
    assert!(found.is_some());
}

/// A node whose disk was wiped could vote twice in a term it has voted in already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_told_what_to_do() {
    let mut cluster = Cluster::started(3).await;
    let wiped = cluster.follower().await;
    cluster.kill(wiped).await;
    fs::remove_dir_all(cluster.dir(wiped)).unwrap();
    let refused = cluster.start(wiped).await.unwrap_err();
    let StartError::Wiped { node, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*node, NodeId::new(wiped));
    assert!(refused.to_string().contains("new node id"), "{refused}");
    cluster.kill(wiped).await;

    // The one that founded the group would found another one.
    if cluster.running().any(|(node, _)| node == 1) {
        cluster.kill(1).await;
    }
    fs::remove_dir_all(cluster.dir(1)).unwrap_or_default();
    let refused = cluster.start(1).await.unwrap_err();
    assert!(matches!(refused, StartError::Wiped { .. }), "{refused}");
}

/// One node is a group, without any network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_node_is_a_group() {
    let mut cluster = Cluster::started(1).await;
    for round in 0..10 {
        assert!(created(&cluster.node(1).create_topic(&format!("topic-{round}")).await));
    }
    let group = cluster.node(1).group.clone();
    let nobody = cluster.node(1).on(async move { group.transfer_leadership().await }).await;
    assert_eq!(nobody, Err(TransferError::NobodyElse));
    cluster.shutdown(1).await;
    let group = cluster.open(1).await;
    assert_eq!(cluster.node(1).topics(), 10, "the checkpoint of the clean stop has them");
    cluster.node(1).on(async move { group.start().await }).await.unwrap();
    cluster.leader().await;
    assert!(created(&cluster.node(1).create_topic("another").await));
}

/// Founding waits for everybody and goes on after any node was killed on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn founding_survives_being_killed() {
    let mut cluster = Cluster::new(3).await;
    // Two of three are there: nobody may found anything.
    for node in [1, 2] {
        let group = cluster.open(node).await;
        drop(cluster.node(node).spawn(async move { group.start().await }));
    }
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(cluster.node(1).status().last, None);
    assert_eq!(cluster.node(2).group.cluster(), None);
    cluster.kill(1).await;
    cluster.kill(2).await;

    // The founder was killed after it and one other had the identity on disk.
    let cluster_id = crate::base::ClusterId::new(77);
    for node in [1, 2] {
        let group = crate::base::BrokerGroupId::new(0);
        let identity = crate::commit_log::Identity {
            cluster: cluster_id,
            group,
            node: NodeId::new(node),
            durability: crate::base::Durability::MajorityFsync,
            joined: None,
        };
        identity.store(&crate::env::os::OsDisk, &cluster.dir(node)).unwrap();
    }
    for (node, result) in cluster.start_all(&[3, 2, 1]).await {
        assert_eq!(result, Ok(()), "node {node}");
    }
    cluster.leader().await;
    assert_eq!(cluster.node(3).group.cluster(), Some(cluster_id));
    assert!(created(&cluster.node(3).create_topic("founded").await));
    cluster.agree().await;
}

/// Handing over is quick, and proposals made meanwhile just wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over() {
    let mut cluster = Cluster::started(3).await;
    let first = cluster.leader().await;
    let group = cluster.node(first).group.clone();
    let handed = cluster.node(first).on(async move { group.transfer_leadership().await }).await;
    assert_eq!(handed, Ok(()));
    assert!(created(&cluster.node(first).create_topic("during").await));
    let second = cluster.leader().await;
    assert_ne!(second, first);
    assert_eq!(cluster.node(second).status().role, Role::Leader);

    // A planned stop hands over too: no election has to time out.
    let other = (1..=3).find(|node| *node != second).unwrap();
    let before = Instant::now();
    cluster.shutdown(second).await;
    assert!(created(&cluster.node(other).create_topic("after").await));
    assert!(before.elapsed() < PATIENCE / 4);
    assert_ne!(cluster.leader().await, second);
}

/// After a barrier a follower's state has what was answered anywhere before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_makes_a_follower_current() {
    let cluster = Cluster::started(3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    for round in 0..20 {
        assert!(created(&cluster.node(leader).create_topic(&format!("topic-{round}")).await));
        for node in [follower, leader] {
            let group = cluster.node(node).group.clone();
            cluster.node(node).on(async move { group.read_barrier().await }).await.unwrap();
            assert_eq!(cluster.node(node).topics(), round + 1);
        }
    }
}

/// Without a majority a proposal is refused for certain, not left open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_sent() {
    let mut cluster = Cluster::started(3).await;
    let leader = cluster.leader().await;
    for node in (1..=3).filter(|node| *node != leader) {
        cluster.kill(node).await;
    }
    let mut tries = 0;
    let refused = loop {
        let deadline = Instant::now() + Duration::from_millis(300);
        tries += 1;
        let result = cluster.node(leader).create_topic_by(&format!("lost-{tries}"), deadline).await;
        match result {
            // Taken before the lease ran out: it waits for a majority in the log.
            Err(ProposeError::Unknown { .. }) => assert!(tries < 100),
            Err(error) => break error,
            Ok(reply) => panic!("a reply without a majority: {reply:?}"),
        }
    };
    assert!(matches!(refused, ProposeError::NotSent { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_ask_each_other() {
    let mut cluster = Cluster::started(3).await;
    let ask = async |cluster: &Cluster, to: u64| {
        let group = cluster.node(1).group.clone();
        let deadline = Instant::now() + Duration::from_secs(5);
        let ask = async move { group.ask(NodeId::new(to), "hello".into(), deadline).await };
        cluster.node(1).on(ask).await
    };
    assert_eq!(ask(&cluster, 1).await.unwrap(), "1 to 1: hello");
    assert_eq!(ask(&cluster, 2).await.unwrap(), "2 to 1: hello");
    let stranger = AskError::NoMember { node: NodeId::new(9) };
    assert_eq!(ask(&cluster, 9).await.unwrap_err(), stranger);
    cluster.kill(2).await;
    assert!(matches!(ask(&cluster, 2).await, Err(AskError::Unreachable { .. })));
}
