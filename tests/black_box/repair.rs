//! One flipped bit in each kind of file of one node: found, named, and put right from the other
//! nodes or from the log.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use raftmq::base::TopicName;
use raftmq::client::{Draft, Producer};
use rustix::process::Signal;

use crate::common::cluster::{Cluster, Node, PATIENCE, Plan, gone, kill};
use crate::common::solo::Solo;
use crate::common::until;

const BODY_BYTES: usize = 1 << 20;
const COUNT: usize = 30;

/// Small, so that there are sealed segments and checkpoints.
fn environment() -> Vec<(&'static str, String)> {
    vec![
        ("RAFTMQ_LOG__SEGMENT_BYTES", "8MiB".to_owned()),
        ("RAFTMQ_LOG__CHECKPOINT_BYTES", "2MiB".to_owned()),
    ]
}

/// The files of a folder whose names start and end so, sorted.
fn files(folder: &Path, start: &str, end: &str) -> Vec<PathBuf> {
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(start) && name.ends_with(end)
    };
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(fits).collect();
    found.sort();
    found
}

fn flip(file: &Path, place: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[place] ^= 0x10;
    fs::write(file, bytes).unwrap();
}

fn len(file: &Path) -> usize {
    usize::try_from(fs::metadata(file).unwrap().len()).unwrap()
}

/// Where a file's last byte that is not zero lies.
fn end_of_content(file: &Path) -> usize {
    let bytes = fs::read(file).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).unwrap()
}

async fn send(cluster: &Cluster, count: usize) {
    let producer = Producer::connect(&cluster.node(1).grpc.to_string(), 4).await.unwrap();
    for n in 0..count {
        let body = Bytes::from(vec![u8::try_from(n % 251 + 1).unwrap(); BODY_BYTES]);
        let topic = TopicName::new("big").unwrap();
        let draft = Draft::new(topic, body);
        producer.send(&[draft]).await.unwrap();
    }
}

/// What is flipped, in which file, and what the node says of it.
struct Flip {
    what: &'static str,
    file: PathBuf,
    place: usize,
    says: &'static [&'static str],
}

fn flips(data: &Path) -> Vec<Flip> {
    let (log, machine) = (data.join("group-0/log"), data.join("group-0/machine"));
    let segments = files(&log, "", ".log");
    assert!(segments.len() > 3, "several sealed segments: {segments:?}");
    let active = segments.last().unwrap().clone();
    let sealed = segments[1].clone();
    let checkpoint = files(&machine, "checkpoint-", "").pop().unwrap();
    let units = files(&machine, "units-", "").remove(0);
    vec![
        Flip {
            what: "a sealed segment",
            place: len(&sealed) / 16 * 11,
            file: sealed,
            says: &["the log is damaged in", "the hole is filled"],
        },
        Flip {
            what: "the active segment",
            place: end_of_content(&active) / 2,
            file: active,
            says: &["the log is damaged in", "the log's end is put back"],
        },
        Flip {
            what: "the checkpoint",
            place: len(&checkpoint) / 2,
            file: checkpoint,
            says: &["passed by; what it held comes from the log again", "checkpoint-"],
        },
        Flip {
            what: "the vote",
            place: 10,
            file: log.join("vote"),
            says: &["the vote was damaged; this node votes behind the term"],
        },
        Flip {
            what: "an extent file",
            place: 5,
            file: units,
            says: &["the units of topic", "passed by; what it held comes from the log again"],
        },
    ]
}

#[tokio::test]
async fn a_flipped_bit_of_every_kind_is_found_and_repaired() {
    let cluster = Cluster::start(Plan { environment: environment(), ..Plan::of(3) });
    send(&cluster, COUNT).await;
    cluster.wait_equal(PATIENCE);
    let victim: Node = cluster.a_follower();
    kill(victim.pid, Signal::KILL);
    until("the follower is gone", PATIENCE, || gone(victim.pid));
    let data = cluster.data().join(format!("node-{}/data", victim.node));
    for number in 0..5 {
        // Looked up anew each time: repairs make new files.
        let Flip { what, file, place, says } = flips(&data).swap_remove(number);
        flip(&file, place);
        let mut solo = Solo::start(&cluster, &victim, &format!("flip-{number}"), &environment());
        solo.until_ready(Duration::from_secs(60));
        // What only the scrub finds ends the node when it does.
        until("the node says what it found and did", Duration::from_secs(60), || {
            if solo.ended().is_some() {
                solo.until_ready(Duration::from_secs(60));
            }
            let said = solo.said();
            match says.iter().find(|words| !said.contains(*words)) {
                None => Ok(()),
                Some(missing) => Err(format!("{what}: no {missing:?} in:\n{said}")),
            }
        });
        solo.until_ready(Duration::from_secs(60));
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let named = what == "an extent file" || solo.said().contains(&name);
        assert!(named, "{name} is not named in:\n{}", solo.said());
        send(&cluster, 1).await;
        cluster.wait_equal(PATIENCE);
        let units = cluster.tool(cluster.node(1).grpc, &["cluster", "status", "--units"]).unwrap();
        let hashes: Vec<String> = units[0]["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["units_hash"].to_string())
            .collect();
        assert_eq!(hashes.len(), 3, "{units}");
        assert!(hashes.iter().all(|hash| *hash == hashes[0] && hash != "null"), "{hashes:?}");
        println!("repair: {what} ({name}, byte {place}): found and repaired, states equal");
        solo.kill();
    }
}
