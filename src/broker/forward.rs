//! The leader's part of delayed messages, beside the tick: it brings records forward.
//!
//! A message that fires far from its record costs a row in memory until retention is over
//! (`machine/timers/ahead.rs`). So what is due in a few seconds, and lies before the newest mark, is
//! written again. This is never needed: what does not come in time keeps its row.

use std::time::Duration;

use tokio::time::timeout;

use super::retention::relocation;
use crate::base::Millis;
use crate::broker::Replica;
use crate::command::Reply;
use crate::commit_log::ReadError;
use crate::machine::Ahead;
use crate::raft::Pressure;

/// How far ahead. A mark that comes in between makes the work void, so it is not long.
const AHEAD: Millis = Millis::from_secs(5);
/// How often the leader looks.
const LOOK: Duration = Duration::from_millis(200);
/// What is due for longer than this waits for ticks, which are not to be held up.
const OVERDUE: Millis = Millis::new(500);

/// Bytes of records that one entry writes again, unless one alone has more: they are read while
/// deliveries and ticks wait for their turn.
const AT_ONCE: usize = 64 << 10;

/// Runs until dropped.
pub(super) async fn keep(replica: &Replica) {
    let mut ahead = Ahead::default();
    loop {
        if replica.serving() {
            step(replica, &mut ahead).await;
        } else {
            ahead = Ahead::default();
        }
        let mut leadership = replica.group.leadership();
        // Both ends of the wait mean the same: look again.
        drop(timeout(LOOK, leadership.changed()).await);
    }
}

/// Writes again what is to be written again now, one entry after the other.
async fn step(replica: &Replica, ahead: &mut Ahead) {
    loop {
        let health = replica.group.health();
        if !replica.serving() || health.clock_suspect || health.pressure != Pressure::None {
            return;
        }
        let now = replica.group.wall();
        let (found, all) = replica.group.read(|state| {
            let waits = state.next_due().is_some_and(|due| due.plus(OVERDUE) < now);
            if waits {
                return (Vec::new(), true);
            }
            state.delayed_ahead(ahead, now.plus(AHEAD), AT_ONCE)
        });
        if !found.is_empty() {
            let command = match relocation(replica, found) {
                Ok(command) => command,
                // The front has just passed a record, which was written again before.
                Err(ReadError::PurgedPosition { .. }) => return,
                Err(error) => return replica.group.storage_failed(&error),
            };
            match replica.group.propose(command, replica.default_deadline()).await {
                Ok(Reply::Done) => {}
                Ok(reply) => return tracing::debug!(?reply, "nothing is brought forward"),
                Err(error) => return tracing::debug!(%error, "nothing is brought forward"),
            }
        }
        if all {
            return;
        }
        tokio::task::yield_now().await;
    }
}
