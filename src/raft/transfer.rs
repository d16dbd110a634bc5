//! Handing the leadership over.

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{Duration, timeout};

use crate::base::NodeId;
use crate::raft::group::{Group, Running, Shared};

/// A handed-over leadership shows within this time, or not at all.
const TRANSFER_DEADLINE: Duration = Duration::from_secs(2);

/// Why the leadership was not handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("this node does not lead")]
    NotLeader,
    #[error("no other replica can take the leadership")]
    NobodyElse,
    #[error("node {to} did not take the leadership over within {TRANSFER_DEADLINE:?}")]
    NotTaken { to: NodeId },
    #[error("this replica ended: {reason}")]
    Ended { reason: String },
}

impl Group {
    /// Hands the leadership to the replica that has most of the log.
    pub async fn transfer_leadership(&self) -> Result<(), TransferError> {
        self.shared().transfer_leadership().await
    }

    /// Hands the leadership to this voter, which openraft lets have all of the log first.
    pub async fn transfer_leadership_to(&self, to: NodeId) -> Result<(), TransferError> {
        let running = self.shared().running().ok_or(TransferError::NotLeader)?;
        let (leads, known) = {
            let metrics = running.raft.metrics();
            let metrics = metrics.borrow_watched();
            let known = metrics.membership_config.voter_ids().any(|voter| voter == to.get());
            (metrics.state == ServerState::Leader, known)
        };
        match (leads, known && to != self.shared().options.node) {
            (false, _) => Err(TransferError::NotLeader),
            (true, false) => Err(TransferError::NobodyElse),
            (true, true) => {
                self.shared().transfer(running, to).await?;
                let leader = self.shared().leadership.borrow().leader;
                if leader == Some(to) { Ok(()) } else { Err(TransferError::NotTaken { to }) }
            }
        }
    }
}

impl Shared {
    pub(crate) async fn transfer_leadership(&self) -> Result<(), TransferError> {
        let running = self.running().ok_or(TransferError::NotLeader)?;
        self.transfer(running, successor(running, self.options.node)?).await
    }

    async fn transfer(&self, running: &Running, to: NodeId) -> Result<(), TransferError> {
        let mut leadership = self.leadership.subscribe();
        let triggered = running.raft.trigger().transfer_leader(to.get()).await;
        triggered.map_err(|fatal| TransferError::Ended { reason: fatal.to_string() })?;
        let me = Some(self.options.node);
        let moved = leadership.wait_for(|now| now.leader.is_some() && now.leader != me);
        match timeout(TRANSFER_DEADLINE, moved).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(TransferError::NotTaken { to }),
        }
    }
}

/// The voter other than `me` that has most of the log.
fn successor(running: &Running, me: NodeId) -> Result<NodeId, TransferError> {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    if metrics.state != ServerState::Leader {
        return Err(TransferError::NotLeader);
    }
    let replication = metrics.replication.as_ref();
    let voters = metrics.membership_config.voter_ids().filter(|voter| *voter != me.get());
    let matched = |voter: &u64| {
        let matched = replication.and_then(|all| all.get(voter)).copied().flatten();
        matched.map(|id| id.index)
    };
    let best = voters.max_by_key(matched);
    best.map(NodeId::new).ok_or(TransferError::NobodyElse)
}
