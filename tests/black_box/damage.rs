//! Files of a stopped node that are gone or rotten.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::cluster::{Cluster, PATIENCE, Plan, RAFTMQ, gone, kill};
use crate::common::raw::{Raw, message, receive};
use crate::common::until;

/// What a node may not lose, beside the segments: its vote, who it is, how far its log reaches at
/// least, and the checkpoint that its log starts from. All else is derived from the log.
const KEPT: [&str; 7] = ["vote", "identity", "flushed", "committed", "purged", "restart", "floor"];

/// The smallest that is allowed.
const SEGMENT_BYTES: &str = "8MiB";
const CHECKPOINT_BYTES: &str = "2MiB";
const BODY_BYTES: usize = 1 << 20;

/// Small, so that there are sealed segments, their indexes, and checkpoints.
fn small_files() -> Vec<(&'static str, String)> {
    vec![
        ("RAFTMQ_LOG__SEGMENT_BYTES", SEGMENT_BYTES.to_owned()),
        ("RAFTMQ_LOG__CHECKPOINT_BYTES", CHECKPOINT_BYTES.to_owned()),
    ]
}

/// Where a node keeps its log and what it derives from it.
fn node_data(cluster: &Cluster, node: u64) -> PathBuf {
    cluster.data().join(format!("node-{node}/data"))
}

/// Removes every file below the folder that can be derived; the names of what was removed.
fn remove_derived(folder: &Path) -> Vec<String> {
    let mut removed = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !name.ends_with(".log") && !KEPT.contains(&name.as_str()) {
                fs::remove_file(&path).unwrap();
                removed.push(name);
            }
        }
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
    let mut cluster = Cluster::start(Plan { environment: small_files(), ..Plan::of(3) });
    let leader = cluster.leader();
    let mut raw = Raw::connect(leader.grpc).await;
    for topic in ["one", "two"] {
        send_many(&mut raw, topic, topic, 200, 50_000).await;
        receive_and_ack_some(&mut raw, topic, "readers").await;
    }
    drop(raw);
    cluster.wait_equal(PATIENCE);
    cluster.stop();

    let removed = remove_derived(&node_data(&cluster, 1));
    println!("removed from node 1: {removed:?}");
    for kind in ["units-", "checkpoint-", "0000000"] {
        assert!(removed.iter().any(|name| name.starts_with(kind)), "no {kind} file was there");
    }

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
fn segments(data: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(data.join("group-0/log")).unwrap().map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let mut found: Vec<_> = files.filter(is_segment).collect();
    found.sort();
    found
}

/// Flips one bit this many sixteenths into the file, which lies in a message's body; where it is.
fn flip_bit(file: &Path, sixteenths: usize) -> usize {
    let mut bytes = fs::read(file).unwrap();
    let place = bytes.len() / 16 * sixteenths;
    bytes[place] ^= 0x10;
    fs::write(file, bytes).unwrap();
    place
}

/// The number behind these words, in what a node said.
fn number_after(said: &str, words: &str) -> usize {
    let (_, rest) = said.split_once(words).unwrap_or_else(|| panic!("no {words:?} in:\n{said}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number after {words:?} in:\n{said}"))
}

/// Damages a follower, starts it again, and sees it end; the other two go on, and nobody is served
/// the damaged record. What the node said.
async fn flip_a_bit_of_a_follower(
    environment: Vec<(&'static str, String)>,
    sixteenths: usize,
) -> String {
    const COUNT: usize = 28;
    let plan = Plan { environment: environment.clone(), ..Plan::of(3) };
    let cluster = Cluster::start(plan);
    let mut raw = Raw::connect(cluster.leader().grpc).await;
    send_many(&mut raw, "big", "before", COUNT, BODY_BYTES).await;
    cluster.wait_equal(PATIENCE);

    let victim = cluster.a_follower();
    kill(victim.pid, Signal::KILL);
    until("the follower is gone", PATIENCE, || gone(victim.pid));
    let files = segments(&node_data(&cluster, victim.node));
    assert!(files.len() > 2, "more than two segments: {files:?}");
    let flipped = flip_bit(&files[0], sixteenths);

    // The node alone, as an operator would start it again; the other two are running.
    let log = cluster.folder().join("victim.log");
    let output = fs::File::create(&log).unwrap();
    let mut child = Command::new(RAFTMQ)
        .args(["serve", "--config"])
        .arg(cluster.data().join(format!("node-{}/raftmq.toml", victim.node)))
        .envs(environment)
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
    let rot = format!("{segment}: entry ");
    assert!(number_after(&said, &rot) > 0, "segment and entry are named");
    let (_, named) = said.split_once(&rot).unwrap();
    let position = number_after(named, " at position ");
    let entry = position..position + BODY_BYTES + 4096;
    assert!(entry.contains(&flipped), "bit {flipped} is not in the entry at {position}");

    send_many(&mut raw, "big", "after", 5, 1000).await;
    let mut seen = BTreeSet::new();
    while seen.len() < COUNT + 5 {
        let ((code, text), messages) = raw.receive(receive("big", "all")).await.unwrap();
        assert_eq!(code, 20000, "{} came, then: {text}", seen.len());
        for message in messages {
            let equal = message.body.iter().all(|byte| *byte == message.body[0]);
            let id = message.system_properties.unwrap().message_id;
            assert!(equal && id.ends_with(&format!("-{}", message.body[0])), "{id} is damaged");
            seen.insert(id);
        }
    }
    println!("the other two go on, with every message intact");
    said
}

#[tokio::test]
async fn a_flipped_bit_is_found_by_the_first_read_and_ends_that_node_alone() {
    // Without a checkpoint the node reads the whole log when it starts.
    let environment = vec![("RAFTMQ_LOG__SEGMENT_BYTES", SEGMENT_BYTES.to_owned())];
    let said = flip_a_bit_of_a_follower(environment, 8).await;
    assert!(said.contains("does not start"), "it was found before the node served");
}

#[tokio::test]
async fn a_flipped_bit_behind_a_checkpoint_is_found_by_the_scrub() {
    // A start looks up terms by halving the log, and its steps do not hit this place.
    let said = flip_a_bit_of_a_follower(small_files(), 11).await;
    assert!(!said.contains("does not start"), "the node started, and found it later");
    assert!(said.contains("the scrub found that the log is damaged in "), "{said}");
    assert!(said.contains("this node ends"), "{said}");
}
