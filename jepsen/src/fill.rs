//! Filling a topic with so many messages, and what the disk has room for.

use std::path::Path;

use serde::Deserialize;

use crate::bench::Measured;
use crate::cluster::Cluster;
use crate::{Failure, say};

/// A part of the free disk that is never filled.
pub(crate) const SPARE: u64 = 8 << 30;
/// The first run of `bench produce`, which tells how fast it goes, and any other at most.
const FIRST_SECONDS: f64 = 5.0;
const SECONDS_MAX: f64 = 30.0;

#[derive(Debug, Deserialize)]
struct Topic {
    parts: Vec<Part>,
}

#[derive(Debug, Deserialize)]
struct Part {
    queues: Vec<Queue>,
}

#[derive(Debug, Deserialize)]
struct Queue {
    start: u64,
    end: u64,
}

/// Bytes that may be filled.
pub(crate) fn room(at: &Path) -> Result<u64, Failure> {
    let stat = rustix::fs::statvfs(at).map_err(std::io::Error::from);
    let stat = stat.map_err(Failure::io(at.display().to_string()))?;
    Ok((stat.f_bavail * stat.f_frsize).saturating_sub(SPARE))
}

pub(crate) fn messages(cluster: &Cluster, topic: &str) -> Result<u64, Failure> {
    let topic: Topic = cluster.ask(&["topic", "describe", topic])?;
    let queues = topic.parts.iter().flat_map(|part| &part.queues);
    Ok(queues.map(|queue| queue.end - queue.start).sum())
}

/// Sends bodies of `size` bytes until the topic has at least `wanted` messages, with a key each
/// where `keys` says so: `k-0` and so on. Answers how many it has.
pub(crate) fn fill(
    cluster: &Cluster,
    (topic, size): (&str, &str),
    wanted: u64,
    keys: bool,
) -> Result<u64, Failure> {
    let (mut held, mut rate) = (0, 0.0);
    while held < wanted {
        // The last run is as long as what is missing takes, so that little more than that is sent.
        let left = if held == 0 { FIRST_SECONDS } else { (wanted - held) as f64 / rate };
        let seconds = format!("{:.0}", left.ceil().clamp(1.0, SECONDS_MAX));
        let words = ["bench", "produce", "--topic", topic, "--size", size, "--batch", "64"];
        let pace = ["--in-flight", "64", "--seconds", &seconds];
        let from = held.to_string();
        let numbered = ["--keys", "--keys-from", &from];
        let more = if keys { &numbered[..] } else { &[] };
        let filled: Measured = cluster.ask(&[&words[..], &pace[..], more].concat())?;
        held = messages(cluster, topic)?;
        rate = filled.messages_per_second;
        say(format_args!("{held} of {wanted} at {rate:.0}/s"));
    }
    Ok(held)
}
