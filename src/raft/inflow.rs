//! What a follower takes of the entries that are sent to it while its disk is full (rule R10). A
//! write that fails for want of room ends the node, so what may fail is refused before it comes to
//! the log: the leader sends it again later, and the group goes on with the others meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::Status;

use crate::base::{ByteSize, LogIndex};
use crate::raft::group::Shared;
use crate::raft::room::Watermarks;

/// The entries of one stream on their way to the log.
pub(crate) struct Inflow {
    shared: Arc<Shared>,
    /// Let in and not seen in the log yet: the last entry of each request, and its bytes.
    under_way: VecDeque<(LogIndex, u64)>,
}

/// Whether this replica refused entries when it last was sent some; a change is said once.
#[derive(Debug, Default)]
pub(crate) struct Refusing(AtomicBool);

impl Inflow {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, under_way: VecDeque::new() }
    }

    /// Lets so many bytes of entries in, the last of them at `last`.
    pub(crate) fn admit(&mut self, last: LogIndex, bytes: u64) -> Result<(), Status> {
        let shared = &self.shared;
        let written = shared.log.bounds().last.map(|(written, _)| written);
        while self.under_way.front().is_some_and(|(index, _)| Some(*index) <= written) {
            self.under_way.pop_front();
        }
        let before: u64 = self.under_way.iter().map(|(_, bytes)| bytes).sum();
        let room = shared.room().saturating_sub(before);
        let marks = Watermarks::of(shared.options.reserve, shared.options.log.segment_bytes);
        let takes = marks.follower_takes(room, bytes, shared.vitals.standing().pressure);
        let refused = shared.refusing.0.swap(!takes, Ordering::Relaxed);
        let (room, bytes_in) = (ByteSize::new(room), ByteSize::new(bytes));
        if takes {
            if refused {
                tracing::info!(%room, "entries of the leader are taken again");
            }
            self.under_way.push_back((last, bytes));
            return Ok(());
        }
        if !refused {
            tracing::warn!(
                %room, bytes = %bytes_in,
                "this node's disk has too little room for the leader's entries, and the group goes \
                 on without it; free space"
            );
        }
        let node = shared.options.node;
        let text = format!("node {node} has {room} left on its disk and was sent {bytes_in}");
        Err(Status::resource_exhausted(text))
    }
}
