//! One way to count for every load, so that their figures can be compared.

use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Longer than any deadline; what takes longer counts as this long.
const LONGEST_US: u64 = 60_000_000;

/// Messages and latencies while a load runs.
#[derive(Debug)]
pub struct Tally(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    messages: u64,
    latencies: Histogram<u64>,
}

/// What a load came to. The names are keys of `--output json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub messages: u64,
    pub seconds: f64,
    pub messages_per_second: f64,
    /// Millions of bytes of bodies in a second.
    pub mb_per_second: f64,
    pub p50_us: u64,
    pub p90_us: u64,
    pub p95_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
}

impl Tally {
    #[expect(clippy::new_without_default, reason = "an empty tally is no sensible default")]
    pub fn new() -> Self {
        let latencies = Histogram::new_with_max(LONGEST_US, 3);
        let latencies = latencies.expect("the bounds are constants that a histogram takes");
        Self(Mutex::new(Counts { messages: 0, latencies }))
    }

    /// One request of `messages` that took `latency`.
    pub fn note(&self, latency: Duration, messages: u64) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(LONGEST_US);
        let mut counts = self.0.lock();
        counts.latencies.saturating_record(micros.clamp(1, LONGEST_US));
        counts.messages += messages;
    }

    pub fn messages(&self) -> u64 {
        self.0.lock().messages
    }

    /// Of bodies with `size` bytes that were counted for `time`.
    pub fn figures(&self, size: usize, time: Duration) -> Figures {
        let counts = self.0.lock();
        let seconds = time.as_secs_f64();
        // Below 2^53, so that nothing is lost; a run counts fewer.
        let messages_per_second = counts.messages as f64 / seconds;
        let at = |quantile| counts.latencies.value_at_quantile(quantile);
        Figures {
            messages: counts.messages,
            seconds,
            messages_per_second,
            mb_per_second: messages_per_second * size as f64 / 1e6,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: counts.latencies.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_what_was_noted() {
        let tally = Tally::new();
        for micros in 1..=1000 {
            tally.note(Duration::from_micros(micros), 2);
        }
        let figures = tally.figures(1000, Duration::from_secs(2));
        assert_eq!((figures.messages, figures.messages_per_second), (2000, 1000.0));
        assert_eq!(figures.mb_per_second, 1.0);
        assert_eq!((figures.p50_us, figures.p99_us, figures.max_us), (500, 990, 1000));
        tally.note(Duration::from_secs(1000), 1);
        assert!(tally.figures(1, Duration::from_secs(1)).max_us >= LONGEST_US - 100_000);
    }
}
