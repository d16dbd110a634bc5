//! Files of a stopped node that are gone or rotten.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::cluster::{Cluster, PATIENCE, Plan, RAFTMQ, gone, kill};
use crate::common::raw::{Raw, message, receive};
use crate::common::{turn, until};

/// What a node may not lose: the log, the vote, who it is. All else is derived from the log.
/// Entries of the broker group's folder, by their beginning.
const KEPT: [&str; 4] = ["log", "vote", "identity", "floor"];

const SEGMENT_BYTES: u64 = 8 << 20;
const BODY_BYTES: usize = 1 << 20;

/// The folder of the node's one broker group.
fn group_folder(cluster: &Cluster, node: u64) -> PathBuf {
    let root = cluster.data();
    let mut folders = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name == "identity") {
                found.push(folder.clone());
            }
        }
    }
    found.sort();
    assert_eq!(found.len(), 3, "one identity file for each node: {found:?}");
    found[usize::try_from(node).unwrap() - 1].clone()
}

fn is_kept(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    KEPT.iter().any(|kept| name.starts_with(kept))
}

/// Removes what can be derived; the names of what was removed.
fn remove_derived(folder: &Path) -> Vec<String> {
    let mut removed = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if is_kept(&path) {
            continue;
        }
        if path.is_dir() {
            fs::remove_dir_all(&path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        removed.push(path.file_name().unwrap().to_string_lossy().into_owned());
    }
    removed
}

/// Sends `count` messages of `bytes` each; all must be OK.
async fn send_many(raw: &mut Raw, topic: &str, prefix: &str, count: usize, bytes: usize) {
    for n in 0..count {
        let body = vec![u8::try_from(n % 251).unwrap(); bytes];
        let (code, text) = raw.send(vec![message(topic, &format!("{prefix}-{n}"), body)]).await;
        assert_eq!(code, 20000, "message {n}: {text}");
    }
}

/// A mixed state: published, in flight, acknowledged.
async fn receive_and_ack_some(raw: &mut Raw, topic: &str, group: &str) {
    use raftmq::wire::rocketmq as v2;
    let (_, messages) = raw.receive(receive(topic, group)).await.unwrap();
    assert!(!messages.is_empty());
    for message in messages.iter().step_by(2) {
        let properties = message.system_properties.as_ref().unwrap();
        let request = v2::AckMessageRequest {
            group: crate::common::raw::resource(group),
            topic: crate::common::raw::resource(topic),
            entries: vec![v2::AckMessageEntry {
                message_id: properties.message_id.clone(),
                receipt_handle: properties.receipt_handle.clone().unwrap(),
                lite_topic: None,
            }],
        };
        assert_eq!(raw.ack_message(request).await.unwrap().status.unwrap().code, 20000);
    }
}

#[tokio::test]
async fn derived_files_come_back_from_the_log() {
    let _turn = turn();
    let mut cluster = Cluster::start(Plan::of(3));
    let leader = cluster.leader();
    let mut raw = Raw::connect(leader.grpc).await;
    for topic in ["one", "two"] {
        send_many(&mut raw, topic, topic, 200, 100).await;
        receive_and_ack_some(&mut raw, topic, "readers").await;
    }
    drop(raw);
    cluster.wait_equal(PATIENCE);
    cluster.stop();

    let removed = remove_derived(&group_folder(&cluster, 1));
    println!("removed from node 1: {removed:?}");
    assert!(!removed.is_empty(), "nothing was derived");

    // The other two have their files, so equal hashes mean that the log alone gave the same state.
    cluster.up();
    cluster.wait_ready(PATIENCE);
    println!("replicas: {:?}", cluster.wait_equal(PATIENCE));

    // And the state works: what was in flight or never handed out can still be received.
    let mut raw = Raw::connect(cluster.node(1).grpc).await;
    let (_, messages) = raw.receive(receive("one", "readers")).await.unwrap();
    assert!(!messages.is_empty());
}

/// Segment files of a node, oldest first. Only the last one is not sealed.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let is_segment = |path: &PathBuf| {
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        stem.len() == 20 && stem.bytes().all(|byte| byte.is_ascii_digit())
    };
    let log = folder.join("log");
    let log = if log.is_dir() { log } else { folder.to_owned() };
    let mut found: Vec<_> =
        fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).filter(is_segment).collect();
    found.sort();
    found
}

/// Flips one bit in the middle of the file, which lies in a message's body.
fn flip_bit(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn a_flipped_bit_in_a_sealed_segment_ends_that_node_and_no_other() {
    let _turn = turn();
    let small = ("RAFTMQ_LOG_SEGMENT_BYTES", SEGMENT_BYTES.to_string());
    let cluster = Cluster::start(Plan { environment: vec![small], ..Plan::of(3) });
    let mut raw = Raw::connect(cluster.leader().grpc).await;
    send_many(&mut raw, "big", "before", 28, BODY_BYTES).await;
    cluster.wait_equal(PATIENCE);

    let victim = cluster.a_follower();
    kill(victim.pid, Signal::KILL);
    until("the follower is gone", PATIENCE, || gone(victim.pid));
    let folder = group_folder(&cluster, victim.node);
    let files = segments(&folder);
    assert!(files.len() > 2, "more than two segments: {files:?}");
    flip_bit(&files[0]);

    // The node alone, as an operator would start it again; the other two are running.
    let config = folder.ancestors().map(|folder| folder.join("raftmq.toml")).find(|f| f.exists());
    let config = config.expect("up writes the configuration of each node");
    let log = cluster.folder().join("victim.log");
    let output = fs::File::create(&log).unwrap();
    let mut child = Command::new(RAFTMQ)
        .args(["serve", "--config"])
        .arg(config)
        .env("RAFTMQ_LOG_SEGMENT_BYTES", SEGMENT_BYTES.to_string())
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let status = until("the damaged node ends", Duration::from_secs(60), || {
        child.try_wait().unwrap().ok_or_else(|| fs::read_to_string(&log).unwrap())
    });
    let said = fs::read_to_string(&log).unwrap();
    println!("the damaged node ended with {status} and said:\n{said}");
    assert!(!status.success(), "a damaged node must not end as if all were well");
    let segment = files[0].file_name().unwrap().to_string_lossy().into_owned();
    assert!(said.contains(&segment), "the segment {segment} is named");

    send_many(&mut raw, "big", "after", 5, 1000).await;
    println!("the other two go on sending");
}
