//! `raftmq bench query`: how soon messages are found by their keys.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::base::TopicName;
use crate::client::{FindBy, FindKey};

use super::super::Ask;
use super::super::failure::Failure;
use super::super::output::Table;
use super::super::topic::topic_name;

#[derive(Debug, Args)]
pub(in crate::cli) struct Query {
    #[arg(long, default_value = "bench", value_parser = topic_name)]
    topic: TopicName,
    /// Keys that there are: k-0 to k-(N - 1), as bench produce --keys makes them.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// How many random keys are looked for, one after the other.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    #[command(flatten)]
    ask: Ask,
}

/// The keys are those of `--output json`.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Finds {
    topic: String,
    keys: u64,
    count: u32,
    /// Questions whose key was not found, though the answer was complete.
    misses: u32,
    /// Answers that were not complete.
    incomplete: u32,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

impl Query {
    pub(in crate::cli) async fn run(self) -> Result<Finds, Failure> {
        let client = self.ask.client().await?;
        let random = RandomState::new();
        let (mut times, mut misses, mut incomplete) = (Vec::new(), 0, 0);
        for number in 0..self.count {
            let key = random.hash_one(number) % self.keys;
            let by = FindBy::Key(FindKey {
                topic: self.topic.clone(),
                key: format!("k-{key}"),
                from: None,
                to: None,
                limit: 1,
                oldest_first: false,
            });
            let begun = Instant::now();
            let answer = client.find(by).await?;
            times.push(begun.elapsed());
            incomplete += u32::from(!answer.complete);
            misses += u32::from(answer.complete && answer.messages.is_empty());
        }
        times.sort_unstable();
        Ok(Finds {
            topic: self.topic.to_string(),
            keys: self.keys,
            count: self.count,
            misses,
            incomplete,
            p50_us: at(&times, 50),
            p99_us: at(&times, 99),
            max_us: at(&times, 100),
        })
    }
}

/// The time within which so many percent were done, in microseconds.
fn at(sorted: &[Duration], percent: usize) -> u64 {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

pub(in crate::cli) fn table(finds: &Finds) -> Table {
    let row = |name: &str, value: String| [name.to_owned(), value];
    let micros = |value: u64| format!("{value} us");
    Table::new(
        ["BENCH", "query"],
        [
            row("latency of", "a key, until its message is here".to_owned()),
            row("  p50", micros(finds.p50_us)),
            row("  p99", micros(finds.p99_us)),
            row("  max", micros(finds.max_us)),
            row("keys", format!("{} of {}", finds.count, finds.keys)),
            row("misses", finds.misses.to_string()),
            row("incomplete", finds.incomplete.to_string()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_time_of_one() {
        let times: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!([at(&times, 50), at(&times, 99), at(&times, 100)], [100, 198, 200]);
        assert_eq!([at(&times[..1], 50), at(&[], 99)], [1, 0]);
    }
}
