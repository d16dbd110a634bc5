//! Who leads, and since when this node may serve as leader.

use std::sync::Arc;

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};

use crate::base::{NodeId, Term};
use crate::command::{Command, Found};
use crate::raft::group::{Running, Shared};
use crate::raft::propose::{Outcome, RETRY};

/// How long one attempt to put the group's first command into the log may take.
const FOUND_DEADLINE: Duration = Duration::from_secs(5);

/// What this replica knows of the group's leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    pub term: Term,
    /// `None` while an election is under way or the leader cannot be told.
    pub leader: Option<NodeId>,
    /// This node leads, its first own entry of this term is applied here, and the group is
    /// founded: the state holds everything that was ever answered.
    pub serving: bool,
}

/// Keeps the [`Leadership`] watch true until the replica ends.
pub(crate) async fn watch(shared: Arc<Shared>) {
    let Some(running) = shared.running() else { return };
    let mut server = running.raft.server_metrics();
    let mut milestone = shared.watched.milestone.subscribe();
    let mut ending = shared.ending.watch();
    let mut founding: Option<JoinHandle<()>> = None;
    loop {
        let ended = ending.borrow_and_update().is_some();
        let now = if ended { Leadership::default() } else { read(&shared, running) };
        shared.leadership.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
        if ended {
            return;
        }
        let leads = now.leader == Some(shared.options.node) && !now.serving;
        if leads && founding.as_ref().is_none_or(JoinHandle::is_finished) {
            founding = Some(tokio::spawn(found(shared.clone(), now.term)));
        }
        tokio::select! {
            changed = server.changed() => if changed.is_err() { break },
            changed = milestone.changed() => if changed.is_err() { break },
            changed = ending.changed() => if changed.is_err() { break },
        }
    }
    shared.leadership.send_replace(Leadership::default());
}

fn read(shared: &Shared, running: &Running) -> Leadership {
    let server = running.raft.server_metrics();
    let server = server.borrow_watched();
    let term = Term::new(server.vote.leader_id.term);
    let leads = server.state == ServerState::Leader;
    let milestone = *shared.watched.milestone.borrow();
    Leadership {
        term,
        leader: server.current_leader.map(NodeId::new),
        serving: leads && milestone.term == term && milestone.founded,
    }
}

/// The group's first leader gives it its secrets. Whoever leads does it if it was not done yet; a
/// second time changes nothing.
async fn found(shared: Arc<Shared>, term: Term) {
    let Some(running) = shared.running() else { return };
    let mut milestone = shared.watched.milestone.subscribe();
    // Before the first entry of the own term is applied it is not known whether it was done.
    let known = milestone.wait_for(|milestone| milestone.term >= term);
    let Ok(founded) = known.await.map(|milestone| milestone.founded) else { return };
    if founded {
        return;
    }
    let mut handle_key = [0; 32];
    shared.env.entropy.fill(&mut handle_key);
    let command = Command::Found(Found { cluster: running.cluster, handle_key }).encode();
    while shared.leadership.borrow().term == term {
        let deadline = Instant::now() + FOUND_DEADLINE;
        match shared.propose_here(running, command.clone(), deadline).await {
            Outcome::Applied(_) => {
                tracing::info!(cluster = %running.cluster, "the broker group is founded");
                return;
            }
            Outcome::Refused(reason) | Outcome::Unknown(reason) => {
                tracing::debug!(reason, "the broker group is not founded yet");
            }
            Outcome::Busy(_) | Outcome::Full(_) => {
                unreachable!("this proposal asks nobody to be admitted")
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}
