//! Twice the saturating load for a minute: what is accepted, how soon the rest is refused, what it
//! takes of memory, and how soon all is normal again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::Measured;
use crate::cluster::{Cluster, Scratch, program};
use crate::{Failure, Outcome, say};

const TOPIC: &str = "overload";
const SECONDS: &str = "60";
/// Requests under way when the most is measured; and those that an overload may have.
const SATURATING: &str = "256";
const WINDOW: &str = "4096";
const GOODPUT_MIN: f64 = 0.8;
const REFUSAL_MAX_US: u64 = 50_000;
const NORMAL_WITHIN: Duration = Duration::from_secs(5);
/// A node's own memory, of which the memory of sent messages is 62 MB.
const MEMORY_MAX_MIB: u64 = 300;
/// One send after the overload is as quick as before, or nearly.
const NORMAL_TIMES: u32 = 3;
const POLL: Duration = Duration::from_millis(200);

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let data = scratch.0.to_string_lossy().into_owned();
    let cluster = Cluster::start(&program, &scratch.0.join("cluster"), false)?;
    let words = ["bench", "produce", "--topic", TOPIC, "--data", &data];
    let run = |more: &[&str]| cluster.ask::<Measured>(&[&words[..], more].concat());
    let most = run(&["--in-flight", SATURATING, "--seconds", "10"])?;
    say(format_args!("{}\n{}", Measured::HEAD, most.row()));
    let usual = one_send(&cluster)?;
    let rate = format!("{:.0}", most.messages_per_second * 2.0);
    let peak = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let offered = thread::scope(|scope| {
        scope.spawn(|| watch(&cluster, &peak, &over));
        let offered = run(&["--rate", &rate, "--in-flight", WINDOW, "--seconds", SECONDS]);
        over.store(true, Ordering::Relaxed);
        offered
    })?;
    say(offered.row());
    let ended = Instant::now();
    let normal = loop {
        if one_send(&cluster)? <= usual * NORMAL_TIMES {
            break ended.elapsed();
        }
        if ended.elapsed() > NORMAL_WITHIN * 4 {
            break ended.elapsed();
        }
    };
    say(cluster.agree()?);
    let goodput = offered.messages_per_second / most.messages_per_second;
    let memory = peak.load(Ordering::Relaxed);
    let good = goodput >= GOODPUT_MIN
        && offered.refused_p99_us < REFUSAL_MAX_US
        && memory <= MEMORY_MAX_MIB
        && normal <= NORMAL_WITHIN;
    let figures = format!(
        "most {:.0}/s at {SATURATING} in flight; offered {rate}/s for {SECONDS} s: accepted \
         {:.0}/s ({:.0} %), p99 {} us; refused {} with p99 {} us; anonymous memory of a node at \
         most {memory} MiB; normal again after {normal:.1?}",
        most.messages_per_second,
        offered.messages_per_second,
        goodput * 100.0,
        offered.p99_us,
        offered.refused,
        offered.refused_p99_us,
    );
    Ok(Outcome { good, figures })
}

/// How long one send takes, the start of the program included.
fn one_send(cluster: &Cluster) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let words = ["message", "send", "--topic", TOPIC, "--body", "x"];
    let _: serde_json::Value = cluster.ask(&words)?;
    Ok(begun.elapsed())
}

/// Keeps the most that any node's own memory came to.
fn watch(cluster: &Cluster, peak: &AtomicU64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        // What cannot be read is as bad as too much.
        peak.fetch_max(cluster.anonymous_mib().unwrap_or(u64::MAX), Ordering::Relaxed);
        thread::sleep(POLL);
    }
}
