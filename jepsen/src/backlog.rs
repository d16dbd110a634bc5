//! Receiving from a backlog of 20 million small messages, against receiving from a queue that was
//! filled just before.

use crate::bench::Measured;
use crate::cluster::{Cluster, Scratch, program};
use crate::fill::{fill, room};
use crate::{Failure, Outcome, say};

/// Messages that wait.
const WANTED: u64 = 20_000_000;
/// Bytes of a body.
const SIZE: &str = "100";
/// What one such message takes on the disk of all three nodes, about: its frame's share, record and
/// unit.
const BYTES_EACH: u64 = 3 * 320;
/// Before each measurement of a fresh queue.
const FRESH: &str = "1000000";
/// One and the other by turns.
const TURNS: usize = 3;
const RATIO_MIN: f64 = 0.8;

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let wanted = WANTED.min(room(&scratch.0)? / BYTES_EACH);
    if wanted < WANTED {
        say(format_args!("the disk has room for {wanted} of {WANTED} messages"));
    }
    let cluster = Cluster::start(&program, &scratch.0.join("cluster"), false)?;
    let held = fill(&cluster, ("backlog", SIZE), wanted, false)?;
    say(cluster.agree()?);
    say(Measured::HEAD);
    let (mut fresh, mut backlog) = (0.0, 0.0);
    let (mut first, mut disk) = (None, 0.0);
    for turn in 0..TURNS {
        let topic = format!("fresh-{turn}");
        let new = consume(&cluster, &topic, FRESH)?;
        let old = consume(&cluster, "backlog", "0")?;
        say(new.row());
        say(old.row());
        fresh += new.messages_per_second;
        backlog += old.messages_per_second;
        first.get_or_insert(old.messages_per_second);
        disk = old.fdatasync_per_second;
    }
    let ratio = backlog / fresh;
    let each = |sum: f64| sum / TURNS as f64;
    let figures = format!(
        "{held} messages of {SIZE} bytes wait (the goal is {WANTED}, as far as the disk has room); received by turns \
         from them at {:.0}/s, from a queue that was filled with {FRESH} just before at {:.0}/s: {ratio:.2} of {RATIO_MIN}; the first \
         time, when nobody had read them, at {:.0}/s; fdatasync {disk:.0}/s",
        each(backlog),
        each(fresh),
        first.unwrap_or_default(),
    );
    Ok(Outcome { good: held >= wanted && ratio >= RATIO_MIN, figures })
}

/// By a new group, from the first message on.
fn consume(cluster: &Cluster, topic: &str, prefill: &str) -> Result<Measured, Failure> {
    let words = ["bench", "consume", "--topic", topic, "--prefill", prefill, "--size", SIZE];
    cluster.ask(&[&words[..], &["--seconds", "15"]].concat())
}
