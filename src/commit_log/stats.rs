//! Counters of the log; `node` turns them into metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the sync latency buckets in microseconds; one more bucket takes the rest.
pub const SYNC_BUCKETS_MICROS: [u64; 12] =
    [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000];

/// Counts since the log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Append calls.
    pub appends: u64,
    /// Entries appended.
    pub frames: u64,
    /// Bytes appended, headers included.
    pub bytes: u64,
    /// Group syncs that succeeded.
    pub syncs: u64,
    pub votes: u64,
    /// Segments started in a file that no spare was ready for.
    pub rolls_without_spare: u64,
    pub rolls: u64,
    pub sync_micros: u64,
    /// Syncs by latency, see [`SYNC_BUCKETS_MICROS`].
    pub sync_buckets: [u64; SYNC_BUCKETS_MICROS.len() + 1],
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) appends: AtomicU64,
    pub(super) frames: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) votes: AtomicU64,
    pub(super) rolls: AtomicU64,
    pub(super) rolls_without_spare: AtomicU64,
    syncs: AtomicU64,
    sync_micros: AtomicU64,
    sync_buckets: [AtomicU64; SYNC_BUCKETS_MICROS.len() + 1],
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn synced(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        add(&self.syncs, 1);
        add(&self.sync_micros, micros);
        let bucket = SYNC_BUCKETS_MICROS.partition_point(|bound| *bound < micros);
        add(&self.sync_buckets[bucket], 1);
    }

    pub(super) fn get(&self) -> LogStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut sync_buckets = [0; SYNC_BUCKETS_MICROS.len() + 1];
        for (bucket, counter) in sync_buckets.iter_mut().zip(&self.sync_buckets) {
            *bucket = read(counter);
        }
        LogStats {
            appends: read(&self.appends),
            frames: read(&self.frames),
            bytes: read(&self.bytes),
            syncs: read(&self.syncs),
            votes: read(&self.votes),
            rolls: read(&self.rolls),
            rolls_without_spare: read(&self.rolls_without_spare),
            sync_micros: read(&self.sync_micros),
            sync_buckets,
        }
    }
}
