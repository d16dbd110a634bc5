//! What the operating system may tell a process.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::NodeError;

/// Listens from its making on, so that nothing is missed while the node starts.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, NodeError> {
        let listen = |kind| signal(kind).map_err(NodeError::Signals);
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Returns when the process is told to stop. Cancel safe.
    pub(super) async fn stop(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
