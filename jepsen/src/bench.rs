//! What `raftmq bench … --output json` says.

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Measured {
    pub(crate) bench: String,
    pub(crate) size: u32,
    pub(crate) in_flight: u32,
    pub(crate) batch: u32,
    pub(crate) durability: String,
    pub(crate) messages: u64,
    pub(crate) messages_per_second: f64,
    pub(crate) mb_per_second: f64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) p999_us: u64,
    pub(crate) fdatasync_p50_us: u64,
    pub(crate) fdatasync_p99_us: u64,
    pub(crate) fdatasync_per_second: f64,
    /// Of `produce` alone.
    #[serde(default)]
    pub(crate) refused: u64,
    /// Of `consume` alone: received, though handed out before.
    #[serde(default)]
    pub(crate) repeated: u64,
    #[serde(default)]
    pub(crate) refused_p99_us: u64,
}

impl Measured {
    pub(crate) const HEAD: &str = "| bench | size | in flight | batch | msg/s | MB/s | p50 us | \
         p99 us | p99.9 us | fdatasync/s | its p50 us | its p99 us |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|";

    pub(crate) fn row(&self) -> String {
        format!(
            "| {} | {} | {} | {} | {:.0} | {:.1} | {} | {} | {} | {:.0} | {} | {} |",
            self.bench,
            self.size,
            self.in_flight,
            self.batch,
            self.messages_per_second,
            self.mb_per_second,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.fdatasync_per_second,
            self.fdatasync_p50_us,
            self.fdatasync_p99_us,
        )
    }
}
