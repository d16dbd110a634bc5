//! What a bench tells: while it runs, and in the end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::base::Durability;
use crate::node::Figures;

use super::super::output::Table;
use super::Shape;
use super::disk::Disk;

/// Messages that the broker refused for its load, and how soon it said so.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Refusals {
    pub(super) refused: u64,
    pub(super) refused_p50_us: u64,
    pub(super) refused_p99_us: u64,
    pub(super) refused_max_us: u64,
}

/// The keys of `--output json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    bench: &'static str,
    latency_of: &'static str,
    size: u32,
    in_flight: u32,
    batch: u32,
    /// What an answer stands for.
    pub(super) durability: String,
    #[serde(flatten)]
    figures: Figures,
    #[serde(flatten)]
    pub(super) refusals: Option<Refusals>,
    /// Messages that had been handed out before, of those received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) repeated: Option<u64>,
    /// How many keys were given to messages, from k-0 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keys: Option<u64>,
    #[serde(flatten)]
    disk: Disk,
    /// Where the disk was measured.
    data: PathBuf,
}

impl Report {
    pub(super) fn new(
        bench: &'static str,
        latency_of: &'static str,
        shape: &Shape,
        figures: Figures,
        disk: Disk,
    ) -> Self {
        let Shape { size, in_flight, batch, ref data, .. } = *shape;
        let (data, durability) = (data.clone(), Durability::default().to_string());
        let (refusals, repeated) = (None, None);
        Self {
            bench,
            latency_of,
            size,
            in_flight,
            batch,
            durability,
            figures,
            refusals,
            repeated,
            keys: None,
            disk,
            data,
        }
    }
}

pub(super) fn table(report: &Report) -> Table {
    let Report { figures, disk, .. } = report;
    let row = |name: &str, value: String| [name.to_owned(), value];
    let micros = |value: u64| format!("{value} us");
    let mut rows = Vec::from([
        row("messages/s", format!("{:.0}", figures.messages_per_second)),
        row("MB/s", format!("{:.1}", figures.mb_per_second)),
        row("latency of", report.latency_of.to_owned()),
        row("  p50", micros(figures.p50_us)),
        row("  p90", micros(figures.p90_us)),
        row("  p95", micros(figures.p95_us)),
        row("  p99", micros(figures.p99_us)),
        row("  p99.9", micros(figures.p999_us)),
        row("  max", micros(figures.max_us)),
        row("messages", format!("{} in {:.1} s", figures.messages, figures.seconds)),
        row("size", format!("{} bytes", report.size)),
        row("in flight", report.in_flight.to_string()),
        row("batch", report.batch.to_string()),
        row("durability", report.durability.clone()),
        row("disk", format!("{}, just before", report.data.display())),
        row("  fdatasync/s", format!("{:.0}", disk.fdatasync_per_second)),
        row("  fdatasync p50", micros(disk.fdatasync_p50_us)),
        row("  fdatasync p99", micros(disk.fdatasync_p99_us)),
    ]);
    if let Some(refusals) = report.refusals.filter(|refusals| refusals.refused > 0) {
        rows.extend([
            row("refused", format!("{} messages: the broker was overloaded", refusals.refused)),
            row("  p99", micros(refusals.refused_p99_us)),
        ]);
    }
    if let Some(repeated) = report.repeated {
        rows.push(row("received again", format!("{repeated} messages")));
    }
    if let Some(keys) = report.keys {
        rows.push(row("keys", format!("{keys}, from k-0 on")));
    }
    Table::new(["BENCH", report.bench], rows)
}

/// Shown on standard error while it is a terminal.
pub(super) struct Bar {
    bar: ProgressBar,
    start: Instant,
}

const TICK: Duration = Duration::from_millis(100);

impl Bar {
    pub(super) fn new(bench: &'static str, time: Duration) -> Self {
        let bar = ProgressBar::new(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {elapsed} {msg}");
        bar.set_style(style.expect("the template is a constant").progress_chars("=> "));
        bar.set_prefix(bench);
        Self { bar, start: Instant::now() }
    }

    /// Keeps the bar moving; never ends.
    pub(super) async fn watch<T>(&self, messages: impl Fn() -> u64) -> T {
        let mut before = 0;
        loop {
            tokio::time::sleep(TICK).await;
            let now = messages();
            let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.bar.set_position(elapsed.min(self.bar.length().unwrap_or(elapsed)));
            if now > before {
                self.bar.set_message(format!("{} messages/s", (now - before) * 10));
                before = now;
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
