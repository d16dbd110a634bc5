//! Nodes come, go, move and are replaced.

use std::fs;

use tokio::time::{Duration, Instant, sleep};

use super::cluster::{Cluster, PATIENCE, eventually};
use crate::base::{Durability, LogIndex, NodeId, Term};
use crate::command::Reply;
use crate::raft::{Belonging, ChangeError, MemberChange, Role, StartError};

/// Long enough for a node that disturbs to do so several times.
const QUIET: Duration = Duration::from_secs(4);

async fn create(cluster: &Cluster, through: u64, name: &str) {
    let reply = cluster.node(through).create_topic(name).await;
    assert!(matches!(reply, Ok(Reply::TopicCreated { .. })), "{name}: {reply:?}");
}

async fn add(cluster: &Cluster, node: u64) {
    cluster.change(MemberChange::AddLearner(cluster.member(node))).await.unwrap();
}

async fn promote(cluster: &Cluster, node: u64, instead_of: Option<u64>) {
    cluster.caught_up(node).await;
    let (node, instead_of) = (NodeId::new(node), instead_of.map(NodeId::new));
    cluster.change(MemberChange::Promote { node, instead_of }).await.unwrap();
}

/// Hands over until this one leads: a hand-over may be too slow on a busy machine.
async fn lead(cluster: &Cluster, to: u64) {
    let since = Instant::now();
    loop {
        let leader = cluster.leader().await;
        if leader == to {
            return;
        }
        let group = cluster.node(leader).group.clone();
        let moved = async move { group.transfer_leadership_to(NodeId::new(to)).await };
        let moved = cluster.node(leader).on(moved).await;
        assert!(since.elapsed() < PATIENCE, "node {to} does not lead: {moved:?}");
    }
}

fn voters(cluster: &Cluster, seen_by: u64) -> Vec<u64> {
    cluster.node(seen_by).group.roster().voters.into_iter().map(NodeId::get).collect()
}

/// Node 4 comes, node 1 goes and stays running, and nobody notices but node 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_added_and_another_removed() {
    let mut cluster = Cluster::started_with(4, &[1, 2, 3]).await;
    for round in 0..20 {
        create(&cluster, 1, &format!("before-{round}")).await;
    }
    cluster.configure(4);
    cluster.start_waiting(4).await;
    assert_eq!(cluster.node(4).group.cluster(), None, "it did not found anything");
    let Belonging::Waiting { why } = cluster.node(4).group.belonging().borrow().clone() else {
        panic!("it waits");
    };
    assert!(why.contains("add-node --node 4"), "{why}");

    lead(&cluster, 2).await;
    add(&cluster, 4).await;
    promote(&cluster, 4, None).await;
    cluster.agree().await;
    assert_eq!(voters(&cluster, 4), [1, 2, 3, 4]);
    let mut belonging = cluster.node(4).group.belonging();
    drop(belonging.wait_for(|now| *now == Belonging::Member).await.unwrap());

    cluster.change(MemberChange::Remove(NodeId::new(1))).await.unwrap();
    let term = cluster.node(2).status().term;
    create(&cluster, 3, "after").await;
    let mut belonging = cluster.node(1).group.belonging();
    let removed = belonging.wait_for(|now| *now == Belonging::Removed);
    drop(tokio::time::timeout(PATIENCE, removed).await.unwrap().unwrap());
    sleep(QUIET).await;
    for node in [2, 3, 4] {
        let status = cluster.node(node).status();
        assert_eq!((status.term, status.leader), (term, Some(NodeId::new(2))), "node {node}");
    }
    cluster.agree_without(1).await;
    assert_eq!(voters(&cluster, 3), [2, 3, 4]);
    assert_eq!(cluster.node(4).topics(), 21);

    // The three that are left are a whole group.
    cluster.kill(2).await;
    create(&cluster, 4, "with-two-of-three").await;
    assert_ne!(cluster.leader().await, 1);
}

/// A new node with the lowest id would be the founder of a new group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_with_the_lowest_id_founds_nothing() {
    let mut cluster = Cluster::started_with(4, &[2, 3, 4]).await;
    create(&cluster, 2, "before").await;
    cluster.configure(1);
    cluster.start_waiting(1).await;
    add(&cluster, 1).await;
    promote(&cluster, 1, None).await;
    cluster.agree().await;
    assert_eq!(cluster.node(1).group.cluster(), cluster.node(2).group.cluster());

    // Stopped and started it goes on as what it is, also with its log still empty.
    cluster.kill(1).await;
    cluster.start(1).await.unwrap();
    create(&cluster, 1, "again").await;
    cluster.agree().await;
}

/// A dead node is replaced in one step, which needs only a majority of the old and of the new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_is_replaced() {
    let mut cluster = Cluster::started_with(4, &[1, 2, 3]).await;
    for round in 0..20 {
        create(&cluster, 1, &format!("before-{round}")).await;
    }
    cluster.kill(3).await;
    fs::remove_dir_all(cluster.dir(3)).unwrap();
    let refused = cluster.start(3).await.unwrap_err();
    assert!(matches!(refused, StartError::Wiped { .. }), "{refused}");
    assert!(refused.to_string().contains("replace-node --old 3"), "{refused}");
    cluster.kill(3).await;

    cluster.configure(4);
    cluster.start_waiting(4).await;
    add(&cluster, 4).await;
    promote(&cluster, 4, Some(3)).await;
    cluster.agree().await;
    assert_eq!(voters(&cluster, 1), [1, 2, 4]);
    cluster.kill(1).await;
    create(&cluster, 4, "after").await;
    cluster.agree().await;
    assert_eq!(cluster.node(4).topics(), 21);
}

/// What would leave the group without a majority that answers is refused before it is begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_could_not_be_committed_is_refused() {
    let mut cluster = Cluster::started(3).await;
    lead(&cluster, 1).await;
    cluster.kill(3).await;
    let leader = cluster.node(1).group.clone();
    eventually("node 3 is missed", || (!leader.answers(NodeId::new(3))).then_some(())).await;
    drop(leader);
    let remove = MemberChange::Remove(NodeId::new(2));
    let error = cluster.change(remove).await.unwrap_err();
    assert!(matches!(error, ChangeError::NoMajority { .. }), "{error}");
    assert!(error.to_string().contains("1, 3 only 1 answer"), "{error}");
    create(&cluster, 2, "still-there").await;

    cluster.start(3).await.unwrap();
    let leader = cluster.node(1).group.clone();
    eventually("node 3 is back", || leader.answers(NodeId::new(3)).then_some(())).await;
    cluster.change(MemberChange::Remove(NodeId::new(2))).await.unwrap();
    cluster.change(MemberChange::Remove(NodeId::new(3))).await.unwrap();
    let last = cluster.change(MemberChange::Remove(NodeId::new(1))).await;
    assert_eq!(last, Err(ChangeError::LastVoter { node: NodeId::new(1) }));
    create(&cluster, 1, "alone").await;
}

/// An id that had another disk before: old entries name it among the voters, and it must not act
/// on them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_comes_back_with_an_empty_disk_and_no_voice() {
    let mut cluster = Cluster::started(3).await;
    lead(&cluster, 1).await;
    for round in 0..20 {
        create(&cluster, 1, &format!("topic-{round}")).await;
    }
    cluster.change(MemberChange::Remove(NodeId::new(3))).await.unwrap();
    cluster.kill(3).await;
    fs::remove_dir_all(cluster.dir(3)).unwrap();
    cluster.start_waiting(3).await;
    let before = cluster.node(1).status().last;
    assert!(cluster.node(3).group.shared().has_voice(), "nobody took it in yet");
    add(&cluster, 3).await;
    let joined = eventually("it keeps where it joined", || {
        cluster.node(3).group.shared().identity.lock().and_then(|identity| identity.joined)
    })
    .await;
    assert!(Some(joined) > before, "above all entries that call it a voter: {joined}");
    promote(&cluster, 3, None).await;
    assert!(cluster.node(3).group.shared().has_voice());

    // Once it has caught up it votes like any other.
    cluster.kill(2).await;
    create(&cluster, 3, "with-its-help").await;
    lead(&cluster, 3).await;
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_whose_disk_was_wiped_is_told_what_to_do() {
    let mut cluster = Cluster::started_with(4, &[1, 2, 3]).await;
    create(&cluster, 1, "topic").await;
    cluster.configure(4);
    cluster.start_waiting(4).await;
    add(&cluster, 4).await;
    cluster.caught_up(4).await;
    assert_eq!(cluster.node(4).status().role, Role::Learner);
    cluster.kill(4).await;
    fs::remove_dir_all(cluster.dir(4)).unwrap();
    let refused = cluster.start(4).await.unwrap_err();
    assert!(matches!(refused, StartError::LearnerLost { .. }), "{refused}");
    cluster.kill(4).await;
    cluster.change(MemberChange::Remove(NodeId::new(4))).await.unwrap();
    cluster.start_waiting(4).await;
    add(&cluster, 4).await;
    promote(&cluster, 4, None).await;
    cluster.agree().await;
}

/// A node is its id. Where it is may change, for one of them and for all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_move() {
    let mut cluster = Cluster::started(3).await;
    let follower = cluster.follower().await;
    create(&cluster, follower, "before").await;
    let known_at = async |cluster: &Cluster, moved: u64| {
        eventually("the log says where it is", || {
            let place = cluster.member(moved);
            let knows = |(_, node): (u64, &super::cluster::Node)| {
                node.group.roster().member(place.node) == Some(&place)
            };
            cluster.running().all(knows).then_some(())
        })
        .await;
    };
    cluster.kill(follower).await;
    cluster.relocate(follower).await;
    cluster.start(follower).await.unwrap();
    known_at(&cluster, follower).await;
    create(&cluster, follower, "one-moved").await;
    cluster.agree().await;

    for node in 1..=3 {
        cluster.kill(node).await;
        cluster.relocate(node).await;
    }
    for (node, result) in cluster.start_all(&[1, 2, 3]).await {
        assert_eq!(result, Ok(()), "node {node}");
    }
    for node in 1..=3 {
        known_at(&cluster, node).await;
    }
    create(&cluster, follower, "all-moved").await;
    cluster.agree().await;
    assert_eq!(cluster.node(1).topics(), 3);
}

/// Stopped before its first entry came, so that its own log does not know where it was; found in
/// `nodes_move`, whose follower is killed that early now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_entries_moves() {
    let mut cluster = Cluster::started(3).await;
    lead(&cluster, 1).await;
    create(&cluster, 1, "before").await;
    for node in 1..=3 {
        cluster.kill(node).await;
    }
    for entry in fs::read_dir(cluster.dir(2)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        }
    }
    // No leader remembers that it had entries.
    for (node, result) in cluster.start_all(&[1, 3]).await {
        assert_eq!(result, Ok(()), "node {node}");
    }
    create(&cluster, 1, "without-it").await;
    cluster.relocate(2).await;
    cluster.start(2).await.unwrap();
    cluster.agree().await;
    assert_eq!(cluster.node(2).topics(), 2);
    create(&cluster, 2, "after").await;
}

/// A leader that dies between the two entries of a change leaves it to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_done_change_is_finished_by_the_next_leader() {
    let mut cluster = Cluster::started_with(4, &[1, 2, 3]).await;
    cluster.configure(4);
    cluster.start_waiting(4).await;
    add(&cluster, 4).await;
    cluster.caught_up(4).await;
    lead(&cluster, 1).await;
    // The first entry of the change alone, as it stands when the leader dies behind it.
    let running = cluster.node(1).group.clone();
    let half = async move {
        let (group, running) = (running.clone(), running.shared().running().unwrap());
        let nodes = group.roster().members.into_iter().map(|member| {
            let crate::raft::Member { node, peer, grpc } = member;
            (node.get(), crate::raft::types::Address { peer, grpc })
        });
        let nodes: std::collections::BTreeMap<_, _> = nodes.collect();
        let voters = [[1, 2, 3].into(), [1, 2, 3, 4].into()];
        let joint = openraft::Membership::new(voters.to_vec(), nodes).unwrap();
        use openraft::entry::RaftPayload;
        let blank = crate::raft::types::Payload::blank();
        let written = running.raft.append_membership(joint, blank, []).await;
        written.unwrap();
    };
    cluster.node(1).on(half).await;
    cluster.kill(1).await;
    eventually("the change is finished", || {
        let done = |(_, node): (u64, &super::cluster::Node)| {
            let roster = node.group.roster();
            !roster.changing && roster.voters.len() == 4
        };
        cluster.running().all(done).then_some(())
    })
    .await;
    create(&cluster, 4, "after").await;
    let last: Option<LogIndex> = cluster.node(4).status().last;
    assert!(last.is_some() && cluster.node(4).status().term > Term::ZERO);
}

/// A node that lost its last entries with the power goes on with the others, and a configuration
/// that says otherwise than the broker group was created is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durability_is_decided_once_and_for_all_nodes() {
    let mut cluster = Cluster::new(4).await;
    cluster.durability = Some(Durability::MajorityMemory);
    cluster.configure_only(&[1, 2, 3]);
    for (node, result) in cluster.start_all(&[1, 2, 3]).await {
        assert_eq!(result, Ok(()), "node {node}");
    }
    create(&cluster, 1, "topic").await;
    let follower = cluster.follower().await;
    assert_eq!(cluster.node(follower).group.durability(), Durability::MajorityMemory);

    cluster.kill(follower).await;
    cluster.durability = Some(Durability::MajorityFsync);
    let refused = cluster.refused(follower).to_string();
    assert!(refused.contains("majority-fsync") && refused.contains("majority-memory"), "{refused}");

    // One that comes later takes what there is, and does not come where it is told otherwise.
    cluster.configure(4);
    cluster.start_waiting(4).await;
    add(&cluster, 4).await;
    let refused = cluster.started_waiting().await.unwrap_err().to_string();
    assert!(refused.contains("majority-fsync") && refused.contains("majority-memory"), "{refused}");
    cluster.kill(4).await;
    cluster.durability = None;
    cluster.start(4).await.unwrap();
    assert_eq!(cluster.node(4).group.durability(), Durability::MajorityMemory);
    cluster.start(follower).await.unwrap();
    promote(&cluster, 4, None).await;
    cluster.agree().await;
}
