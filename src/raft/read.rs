//! Reads that must not be answered from an old state.

use std::sync::Arc;

use openraft::ReadPolicy;
use openraft::raft::linearizable_read::Linearizer;
use tokio::time::{Duration, Instant, timeout_at};

use crate::base::{LogIndex, Mutant, NodeId};
use crate::raft::group::{Running, Shared};
use crate::raft::peers::Lane;
use crate::raft::propose::RETRY;
use crate::raft::types::Types;
use crate::wire::raftmq as wire;

/// A barrier waits at most so long: two elections of the default timing, with some air.
const BARRIER_DEADLINE: Duration = Duration::from_secs(3);

/// Why it is not known whether the state here is current.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    #[error("no leader vouched for the state here: {reason}")]
    NoLeader { reason: String },
    #[error("this replica ended: {reason}")]
    Ended { reason: String },
}

impl Running {
    /// The index that the leader's state stands for now. Under the lease it costs nothing;
    /// without one the followers are asked.
    pub(crate) async fn read_index(&self) -> Result<LogIndex, String> {
        if Mutant::StaleLeaderRead.is_on() {
            return Ok(LogIndex::ZERO);
        }
        let linearizer = self.linearizer().await?;
        Ok(LogIndex::new(linearizer.read_log_id().index()))
    }

    /// A majority still takes this node for the leader.
    pub(crate) async fn confirm_leadership(&self) -> Result<(), String> {
        let linearizer = self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await;
        linearizer.map(|_| ()).map_err(|error| error.to_string())
    }

    async fn linearizer(&self) -> Result<Linearizer<Types>, String> {
        if let Ok(linearizer) = self.raft.get_read_linearizer(ReadPolicy::LeaseRead).await {
            return Ok(linearizer);
        }
        let linearizer = self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await;
        linearizer.map_err(|error| error.to_string())
    }
}

impl Shared {
    pub(crate) async fn read_barrier(self: &Arc<Self>) -> Result<(), BarrierError> {
        let deadline = Instant::now() + BARRIER_DEADLINE;
        loop {
            if let Some(reason) = self.ending.reason() {
                return Err(BarrierError::Ended { reason });
            }
            let reason = match self.current_index(deadline).await {
                Ok(index) if self.wait_applied(index, deadline).await => return Ok(()),
                Ok(index) => format!("entry {index} is not applied here yet"),
                Err(why) => why,
            };
            if Instant::now() + RETRY >= deadline {
                return Err(BarrierError::NoLeader { reason });
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn current_index(&self, deadline: Instant) -> Result<LogIndex, String> {
        let running = self.running().ok_or("this node has not joined its group yet")?;
        let leader = self.leadership.borrow().leader.ok_or("no leader is known")?;
        let index = async {
            if leader == self.options.node {
                self.own_read_index(running).await
            } else {
                self.ask_read_index(running, leader).await
            }
        };
        timeout_at(deadline, index).await.map_err(|_| format!("node {leader} did not answer"))?
    }

    /// The leader's own answer. What was true before a pause of this process says nothing.
    pub(crate) async fn own_read_index(&self, running: &Running) -> Result<LogIndex, String> {
        let index = running.read_index().await?;
        if self.awake.is_awake(&*self.clock) {
            Ok(index)
        } else {
            Err("this process was paused and is not confirmed as the leader again".to_owned())
        }
    }

    async fn ask_read_index(&self, running: &Running, leader: NodeId) -> Result<LogIndex, String> {
        use wire::read_index_answer::Outcome;
        let member = self.member(leader).ok_or("the leader's address is not known")?;
        let client = running.peers.client(leader, &member.peer, Lane::Ask);
        let mut client = client.map_err(|status| status.message().to_owned())?;
        let request = running.peers.request(leader, wire::ReadIndexRequest {});
        let answer = client.read_index(request).await;
        let answer = answer.map_err(|status| format!("node {leader}: {}", status.message()))?;
        match answer.into_inner().outcome {
            Some(Outcome::Index(index)) => Ok(LogIndex::new(index)),
            Some(Outcome::Refused(reason)) => Err(reason),
            None => Err(format!("node {leader} answered nothing")),
        }
    }

    pub(crate) async fn wait_applied(&self, index: LogIndex, deadline: Instant) -> bool {
        let mut progress = self.watched.progress.subscribe();
        let reached = progress.wait_for(|progress| progress.index >= Some(index));
        matches!(timeout_at(deadline, reached).await, Ok(Ok(_)))
    }
}
