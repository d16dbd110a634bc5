//! What RaftMQ tells about itself in numbers.
//!
//! What it is: a catalogue of every metric ([`catalog`]), and thin words over the `metrics` crate
//! to move them. The number of labels is part of a metric's type, so a label cannot be forgotten.
//! Promises: every metric that is moved is in the catalogue and described to whoever scrapes.
//! Never: a decision that reads a metric, or a label whose values a client could invent without
//! end (topics and groups exist; client ids, keys and addresses are never labels).

pub mod catalog;

use std::sync::OnceLock;
use std::time::Duration;

use ::metrics::{Key, Label, Level, Metadata, with_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub use catalog::*;

/// Upper bounds in seconds for everything that is timed: from a page cache write to a request that
/// waited for an election.
const SECONDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
    2.0, 5.0, 10.0, 30.0,
];

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// What a metric counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    Bytes,
    Seconds,
}

/// One line of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

/// A number that only grows.
#[derive(Clone, Copy, Debug)]
pub struct Counter<const LABELS: usize> {
    name: &'static str,
    labels: [&'static str; LABELS],
}

/// A number as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Gauge<const LABELS: usize> {
    name: &'static str,
    labels: [&'static str; LABELS],
}

/// How often something took how long.
#[derive(Clone, Copy, Debug)]
pub struct Histogram<const LABELS: usize> {
    name: &'static str,
    labels: [&'static str; LABELS],
}

impl<const LABELS: usize> Counter<LABELS> {
    pub fn add(&self, values: [&str; LABELS], by: u64) {
        self.with(values).increment(by);
    }

    /// For what is counted elsewhere: the total so far. A smaller one than before is passed over.
    pub fn set_total(&self, values: [&str; LABELS], total: u64) {
        self.with(values).absolute(total);
    }

    /// The counter of these labels, to keep where looking it up each time would cost too much.
    pub fn with(&self, values: [&str; LABELS]) -> ::metrics::Counter {
        let key = key(self.name, self.labels, values);
        with_recorder(|recorder| recorder.register_counter(&key, &METADATA))
    }
}

impl<const LABELS: usize> Gauge<LABELS> {
    pub fn set(&self, values: [&str; LABELS], value: u64) {
        self.with(values).set(value as f64);
    }

    pub fn with(&self, values: [&str; LABELS]) -> ::metrics::Gauge {
        let key = key(self.name, self.labels, values);
        with_recorder(|recorder| recorder.register_gauge(&key, &METADATA))
    }
}

impl<const LABELS: usize> Histogram<LABELS> {
    pub fn record(&self, values: [&str; LABELS], took: Duration) {
        self.with(values).record(took);
    }

    /// For what is counted elsewhere in buckets: `count` times about `took`.
    pub fn record_many(&self, values: [&str; LABELS], took: Duration, count: usize) {
        self.with(values).record_many(took, count);
    }

    pub fn with(&self, values: [&str; LABELS]) -> ::metrics::Histogram {
        let key = key(self.name, self.labels, values);
        with_recorder(|recorder| recorder.register_histogram(&key, &METADATA))
    }
}

fn key<const LABELS: usize>(
    name: &'static str,
    names: [&'static str; LABELS],
    values: [&str; LABELS],
) -> Key {
    let pairs = names.into_iter().zip(values);
    let labels: Vec<Label> =
        pairs.map(|(name, value)| Label::new(name, value.to_owned())).collect();
    Key::from_parts(name, labels)
}

/// Starts to keep the numbers of this process; before, they go nowhere. Asked again, it answers the
/// same handle. Somebody has to call `run_upkeep` on it every few seconds, because samples of
/// histograms pile up until then.
pub fn install() -> PrometheusHandle {
    static INSTALLED: OnceLock<PrometheusHandle> = OnceLock::new();
    let handle = INSTALLED.get_or_init(|| {
        let handle = builder()
            .install_recorder()
            .expect("nothing else in this process installs a metrics recorder");
        describe_all();
        handle
    });
    handle.clone()
}

fn builder() -> PrometheusBuilder {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
        .expect("there is at least one bucket")
}

fn describe_all() {
    with_recorder(|recorder| {
        for metric in CATALOG {
            let unit = Some(match metric.unit {
                Unit::Count => ::metrics::Unit::Count,
                Unit::Bytes => ::metrics::Unit::Bytes,
                Unit::Seconds => ::metrics::Unit::Seconds,
            });
            let (name, help) = (metric.name.into(), metric.help.into());
            match metric.kind {
                Kind::Counter => recorder.describe_counter(name, unit, help),
                Kind::Gauge => recorder.describe_gauge(name, unit, help),
                Kind::Histogram => recorder.describe_histogram(name, unit, help),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        let mut seen = BTreeSet::new();
        for metric in CATALOG {
            let name = metric.name;
            assert!(seen.insert(name), "{name} is there twice");
            let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(plain(name) && metric.labels.iter().all(|label| plain(label)), "{name}");
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert_eq!(metric.unit == Unit::Seconds, name.ends_with("_seconds"), "{name}");
            assert!(metric.unit != Unit::Bytes || name.contains("_bytes"), "{name}");
            let one_sentence = metric.help.ends_with('.') && metric.help.matches(". ").count() == 0;
            assert!(one_sentence, "{name}: {}", metric.help);
        }
    }

    /// What a scrape shows is what was moved, with the labels in their places and buckets, not
    /// quantiles, for what is timed.
    #[test]
    fn a_scrape_shows_what_was_moved() {
        let recorder = builder().build_recorder();
        let handle = recorder.handle();
        ::metrics::with_local_recorder(&recorder, || {
            describe_all();
            REQUESTS.add(["SendMessage", "OK"], 2);
            REQUESTS.add(["SendMessage", "OK"], 1);
            LOG_APPENDS.set_total(["g"], 7);
            RAFT_TERM.set(["g"], 5);
            REQUEST_SECONDS.record(["SendMessage"], Duration::from_millis(3));
            LOG_SYNC_SECONDS.record_many(["g"], Duration::from_micros(60), 2);
        });
        let text = handle.render();
        for line in [
            "# TYPE raftmq_requests_total counter",
            "raftmq_requests_total{rpc=\"SendMessage\",code=\"OK\"} 3",
            "raftmq_log_append_total{broker_group=\"g\"} 7",
            "raftmq_raft_term{broker_group=\"g\"} 5",
            "raftmq_request_seconds_bucket{rpc=\"SendMessage\",le=\"0.002\"} 0",
            "raftmq_request_seconds_bucket{rpc=\"SendMessage\",le=\"0.005\"} 1",
            "raftmq_log_sync_seconds_count{broker_group=\"g\"} 2",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("# HELP raftmq_raft_term "), "{text}");
    }
}
