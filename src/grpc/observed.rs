//! Counts every request by rpc and code, and times it.

use tokio::time::Instant;

use crate::metrics::{REQUEST_SECONDS, REQUESTS};
use crate::wire::rocketmq::Code;

/// One request under way.
#[derive(Debug)]
pub(super) struct Observed {
    rpc: &'static str,
    since: Instant,
}

impl Observed {
    pub(super) fn begin(rpc: &'static str) -> Self {
        Self { rpc, since: Instant::now() }
    }

    pub(super) fn end(self, code: Code) {
        self.end_with(code.as_str_name());
    }

    /// For what ends with a gRPC error instead of an answer.
    pub(super) fn end_with(self, code: &str) {
        REQUESTS.add([self.rpc, code], 1);
        REQUEST_SECONDS.record([self.rpc], self.since.elapsed());
    }
}
