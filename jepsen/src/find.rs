//! Finding a message by its key among ten million.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::cluster::{Cluster, Scratch, program};
use crate::fill::{fill, room};
use crate::{Failure, Outcome, say};

const MESSAGES: u64 = 10_000_000;
const TOPIC: &str = "find";
/// Bytes of a body.
const SIZE: &str = "100";
/// What one such message takes on the disk of all three nodes, about: its frame's share, record,
/// unit and index.
const BYTES_EACH: u64 = 1600;
const QUERIES: &str = "10000";
const P99_US_MAX: u64 = 20_000;
const INDEX_WITHIN: Duration = Duration::from_secs(600);

/// What `bench query` says.
#[derive(Debug, Deserialize)]
struct Queried {
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
    /// Queries that found nothing.
    misses: u64,
    /// Answers that may have lacked something.
    incomplete: u64,
}

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let (need, have) = (MESSAGES * BYTES_EACH, room(&scratch.0)?);
    say(format_args!("{MESSAGES} messages take about {} GiB of {} GiB", need >> 30, have >> 30));
    if have < need {
        return Err(Failure::Room { need_gib: need >> 30, have_gib: have >> 30 });
    }
    let cluster = Cluster::start(&program, &scratch.0.join("cluster"), false)?;
    let held = fill(&cluster, (TOPIC, SIZE), MESSAGES, true)?;
    say(cluster.agree()?);
    let keys = held.to_string();
    let waited = wait_for_index(&cluster, &keys)?;
    let queried = query(&cluster, &keys, QUERIES)?;
    let Queried { p50_us, p99_us, max_us, misses, incomplete } = queried;
    let figures = format!(
        "{held} messages of {SIZE} bytes with a key each; the index has all of them {waited} s after the \
         last was sent; {QUERIES} queries by random keys: {misses} \
         missed, {incomplete} incomplete, p50 {p50_us} us, p99 {p99_us} us of {P99_US_MAX}, max \
         {max_us} us"
    );
    Ok(Outcome { good: misses + incomplete == 0 && p99_us < P99_US_MAX, figures })
}

fn query(cluster: &Cluster, keys: &str, count: &str) -> Result<Queried, Failure> {
    cluster.ask(&["bench", "query", "--topic", TOPIC, "--keys", keys, "--count", count])
}

/// The index follows the log in its own time, and says so in each answer. Answers how many seconds
/// that took.
fn wait_for_index(cluster: &Cluster, keys: &str) -> Result<u64, Failure> {
    let start = Instant::now();
    while query(cluster, keys, "1")?.incomplete > 0 {
        if start.elapsed() > INDEX_WITHIN {
            let seconds = INDEX_WITHIN.as_secs();
            return Err(Failure::Late { what: "an index of all keys", seconds });
        }
        sleep(Duration::from_secs(1));
    }
    Ok(start.elapsed().as_secs())
}
