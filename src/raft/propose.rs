//! Commands on their way into the log, and requests to other nodes.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use openraft::errors::{ClientWriteError, RaftError};
use tokio::time::{Duration, Instant, timeout_at};
use tonic::{Code, Status};

use crate::base::{ByteSize, Millis, NodeId};
use crate::command::{Command, Delivery, Reply};
use crate::raft::admission::{Busy, Class};
use crate::raft::group::{Running, Shared};
use crate::raft::options::COMMAND_MAX;
use crate::raft::peers::Lane;
use crate::raft::room::Full;
use crate::raft::types::Proposal;
use crate::wire::raftmq as wire;

/// Pause before a refused proposal is tried again; a new leader takes up to one heartbeat until
/// it may take one.
pub(crate) const RETRY: Duration = Duration::from_millis(10);

/// An old leader's answer to what it had taken may still come for so long after another leads.
const LAST_ANSWER: Duration = Duration::from_millis(200);

/// Why a command has no reply (rule R20).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was appended: asking again is safe.
    #[error("not sent: {reason}")]
    NotSent { reason: String },
    /// It may be in the log, now or later, or not at all.
    #[error("the outcome is not known: {reason}")]
    Unknown { reason: String },
    /// Nothing was appended: too much is under way already.
    #[error("node {node} has {under_way} of requests under way; try again in {retry_after}")]
    Busy { node: NodeId, under_way: ByteSize, retry_after: Millis },
    /// Nothing was appended: disks are full.
    #[error(
        "node {node}: the disks of a majority have {room} left for the log, and {needed} are needed \
         to take this; free space on them, or wait until old messages leave"
    )]
    DiskFull { node: NodeId, room: ByteSize, needed: ByteSize },
    /// This replica ended; the outcome is not known.
    #[error("this replica ended: {reason}")]
    Ended { reason: String },
}

/// Why another node did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("node {node} is not a member of the group")]
    NoMember { node: NodeId },
    #[error("node {node} did not answer in time")]
    Timeout { node: NodeId },
    #[error("node {node} cannot be asked: {reason}")]
    Unreachable { node: NodeId, reason: String },
}

/// What came of one attempt at one leader.
#[derive(Debug)]
pub(crate) enum Outcome {
    Applied(Reply),
    /// Definite: nothing was appended.
    Refused(String),
    /// The same, because too much is under way there.
    Busy(Busy),
    /// The same, because the disks are full.
    Full(Full),
    Unknown(String),
}

/// Whether proposing it a second time does no harm and gets the same answer.
fn is_idempotent(command: &Command) -> bool {
    match command {
        Command::Publish(publish) => publish.dedup,
        Command::Schedule(schedule) => schedule.dedup,
        // Asked again, the log still says how the message in this place ended. By an id alone, the
        // second time would take back the next message of that id.
        Command::Recall(timer) => timer.position.is_some(),
        Command::Deliveries(deliveries) => deliveries.iter().all(|delivery| match delivery {
            Delivery::Checkout(checkout) => checkout.attempt_id.is_some(),
            Delivery::Ack(_) | Delivery::Hold(_) | Delivery::Renew(_) => true,
            // A repeated return meets deliveries that are over already. A repeated release can
            // only take more from a client that is gone, and costs a redelivery at most.
            Delivery::Release(_) | Delivery::Return(_) | Delivery::GiveUp(_) => true,
        }),
        Command::Found(_)
        | Command::CreateTopic(_)
        | Command::CreateGroup(_)
        | Command::Subscribe(_)
        | Command::Retain(_)
        | Command::PurgeIntent { .. }
        | Command::Relocate(_)
        | Command::PurgeTo { .. }
        | Command::Trim(_)
        | Command::GrowTopic { .. }
        | Command::Prepare(_)
        | Command::End(_)
        | Command::Check(_)
        | Command::Resume(_)
        | Command::UpdateGroup(_)
        | Command::Position(_)
        | Command::Leave(_)
        | Command::Start(_)
        | Command::MembersDiffer { .. }
        | Command::Pause { .. } => true,
        // Put there twice, a group gets again what it got in between.
        Command::Reset(_) => true,
        // Another reader may have moved on in between: the second time would put the group back.
        Command::StoreOffset(_) => false,
        // The second time, what the first one sent back is not found.
        Command::Redrive(_)
        | Command::DeleteTopic { .. }
        | Command::DeleteGroup { .. }
        | Command::Unsubscribe(_)
        | Command::Tick { .. }
        | Command::ResumeLines { .. }
        | Command::Reschedule { .. }
        | Command::Audit => false,
    }
}

pub(crate) fn class_of(command: &Command) -> Class {
    match command {
        Command::Publish(_) | Command::Prepare(_) | Command::Schedule(_) => Class::Message,
        Command::Deliveries(deliveries) => {
            let hands_out = |delivery: &Delivery| matches!(delivery, Delivery::Checkout(_));
            if deliveries.iter().any(hands_out) { Class::Checkout } else { Class::Other }
        }
        Command::Found(_)
        | Command::CreateTopic(_)
        | Command::DeleteTopic { .. }
        | Command::CreateGroup(_)
        | Command::DeleteGroup { .. }
        | Command::Subscribe(_)
        | Command::Unsubscribe(_)
        | Command::Tick { .. }
        | Command::GrowTopic { .. }
        | Command::ResumeLines { .. }
        | Command::Recall(_)
        | Command::Reschedule { .. }
        | Command::Audit
        | Command::End(_)
        | Command::Check(_)
        | Command::Resume(_)
        | Command::Redrive(_)
        | Command::UpdateGroup(_)
        | Command::Position(_)
        | Command::Leave(_)
        | Command::Start(_)
        | Command::Reset(_)
        | Command::Pause { .. }
        | Command::StoreOffset(_)
        | Command::MembersDiffer { .. } => Class::Other,
        Command::Relocate(_) => Class::Relocate,
        Command::Retain(_)
        | Command::PurgeIntent { .. }
        | Command::PurgeTo { .. }
        | Command::Trim(_) => Class::Purge,
    }
}

impl Full {
    pub(crate) fn of(self, node: NodeId) -> ProposeError {
        let Self { room, needed } = self;
        ProposeError::DiskFull { node, room, needed }
    }
}

impl Busy {
    pub(crate) fn of(self, node: NodeId) -> ProposeError {
        let Self { under_way, retry_after } = self;
        ProposeError::Busy { node, under_way, retry_after }
    }
}

impl Shared {
    pub(crate) async fn propose(
        self: &Arc<Self>,
        command: Command,
        deadline: Instant,
    ) -> Result<Reply, ProposeError> {
        let (idempotent, class) = (is_idempotent(&command), class_of(&command));
        let bytes = command.encode();
        drop(command);
        let standing = self.vitals.standing();
        standing.check(class, bytes.len()).map_err(|full| full.of(self.options.node))?;
        let permit = self.admission.admit(class, bytes.len());
        let _permit = permit.map_err(|busy| busy.of(self.options.node))?;
        let mut refused = "no leader is known".to_owned();
        let mut unknown: Option<String> = None;
        loop {
            if let Some(reason) = self.ending.reason() {
                return Err(ProposeError::Ended { reason });
            }
            let Some((running, leader)) = self.leader(deadline).await else {
                return Err(give_up(unknown, refused));
            };
            let attempt = async {
                if leader == self.options.node {
                    self.propose_here(running, bytes.clone(), deadline).await
                } else {
                    // In a box, since it is large and the other way is the usual one.
                    Box::pin(self.forward(running, leader, bytes.clone(), deadline)).await
                }
            };
            let outcome = tokio::select! {
                biased;
                outcome = attempt => outcome,
                () = self.left_behind(leader) => {
                    Outcome::Unknown(format!("node {leader} does not lead any more"))
                }
            };
            match outcome {
                Outcome::Applied(reply) => return Ok(reply),
                Outcome::Refused(reason) => refused = reason,
                // What an earlier attempt left open stays open.
                Outcome::Busy(busy) => {
                    return Err(match unknown {
                        Some(reason) => ProposeError::Unknown { reason },
                        None => busy.of(leader),
                    });
                }
                Outcome::Full(full) => {
                    return Err(match unknown {
                        Some(reason) => ProposeError::Unknown { reason },
                        None => full.of(leader),
                    });
                }
                Outcome::Unknown(reason) if idempotent => unknown = Some(reason),
                Outcome::Unknown(reason) => {
                    let ended = self.ending.reason();
                    return Err(ended.map_or(ProposeError::Unknown { reason }, |reason| {
                        ProposeError::Ended { reason }
                    }));
                }
            }
            if Instant::now() + RETRY >= deadline {
                return Err(give_up(unknown, refused));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// The leader, once one is known; `None` when none was by the deadline.
    async fn leader(&self, deadline: Instant) -> Option<(&Running, NodeId)> {
        // Almost always, and without the cost of a subscription.
        let known = self.leadership.borrow().leader;
        if let (Some(running), Some(leader)) = (self.running(), known) {
            return Some((running, leader));
        }
        let mut leadership = self.leadership.subscribe();
        let mut ending = self.ending.watch();
        loop {
            let known = leadership.borrow_and_update().leader;
            if let (Some(running), Some(leader)) = (self.running(), known) {
                return Some((running, leader));
            }
            if ending.borrow_and_update().is_some() {
                return None;
            }
            let changed = async {
                tokio::select! {
                    changed = leadership.changed() => changed,
                    changed = ending.changed() => changed,
                }
            };
            match timeout_at(deadline, changed).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return None,
            }
        }
    }

    /// Returns when somebody else leads, and an answer of the old leader is overdue. A leader that
    /// hangs or is cut off would be waited for until the deadline otherwise.
    async fn left_behind(&self, leader: NodeId) {
        let mut leadership = self.leadership.subscribe();
        let moved = leadership.wait_for(|now| now.leader.is_some_and(|now| now != leader));
        if moved.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(LAST_ANSWER).await;
    }

    /// Proposes here, where the leader is thought to be. The caller has been admitted.
    pub(crate) async fn propose_here(
        &self,
        running: &Running,
        command: Bytes,
        deadline: Instant,
    ) -> Outcome {
        if let Err(refusal) = self.admissible(running, &command) {
            return Outcome::Refused(refusal);
        }
        if Instant::now() >= deadline {
            return Outcome::Refused("its time was over before its turn came".to_owned());
        }
        let write = running.raft.client_write(Proposal(command));
        match timeout_at(deadline, write).await {
            Ok(Ok(response)) => Outcome::Applied(response.data),
            Ok(Err(RaftError::APIError(error))) => refusal(&error),
            Ok(Err(RaftError::Fatal(fatal))) => Outcome::Unknown(fatal.to_string()),
            Err(_) => Outcome::Unknown("the entry was not applied in time".to_owned()),
        }
    }

    /// What another node's broker wants to be proposed. Its bytes are not known to be a command.
    pub(crate) async fn propose_for_peer(
        &self,
        running: &Running,
        bytes: Bytes,
        deadline: Instant,
    ) -> Outcome {
        if bytes.len() > COMMAND_MAX {
            return Outcome::Refused(too_long(bytes.len()));
        }
        let class = match Command::decode(&bytes) {
            Ok(command) => class_of(&command),
            Err(error) => return Outcome::Refused(format!("not a command: {error}")),
        };
        if let Err(full) = self.vitals.standing().check(class, bytes.len()) {
            return Outcome::Full(full);
        }
        match self.admission.admit(class, bytes.len()) {
            Ok(_permit) => self.propose_here(running, bytes, deadline).await,
            Err(busy) => Outcome::Busy(busy),
        }
    }

    /// A command that some replica could not read or apply would stop that replica. Its bytes are
    /// a command: this process wrote them, or has read them.
    fn admissible(&self, running: &Running, command: &Bytes) -> Result<(), String> {
        if command.len() > COMMAND_MAX {
            return Err(too_long(command.len()));
        }
        let version = command.first().copied().unwrap_or_default();
        let me = self.options.node;
        let others = || running.raft.voter_ids().map(NodeId::new).filter(move |node| *node != me);
        running.peers.versions.check(version, others).map_err(|error| error.to_string())
    }

    async fn forward(
        &self,
        running: &Running,
        leader: NodeId,
        command: Bytes,
        deadline: Instant,
    ) -> Outcome {
        use wire::propose_answer::Outcome as Answer;
        let Some(member) = self.member(leader) else {
            return Outcome::Refused(format!("the address of leader {leader} is not known"));
        };
        let client = running.peers.client(leader, &member.peer, Lane::Ask);
        let mut client = match client {
            Ok(client) => client,
            Err(status) => return Outcome::Refused(status.message().to_owned()),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout_millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let message = wire::ProposeRequest { command, timeout_millis };
        let request = running.peers.request(leader, message);
        let answer = match timeout_at(deadline, client.propose(request)).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) if is_definite(&status) => {
                return Outcome::Refused(format!("node {leader}: {}", status.message()));
            }
            Ok(Err(status)) => {
                return Outcome::Unknown(format!("node {leader}: {}", status.message()));
            }
            Err(_) => return Outcome::Unknown(format!("node {leader} did not answer in time")),
        };
        match answer.outcome {
            Some(Answer::Reply(reply)) => match Reply::decode(&reply) {
                Ok(reply) => Outcome::Applied(reply),
                Err(error) => Outcome::Unknown(format!("the leader's reply: {error}")),
            },
            Some(Answer::Refused(reason)) => Outcome::Refused(reason),
            Some(Answer::Busy(busy)) => Outcome::Busy(Busy {
                under_way: ByteSize::new(busy.under_way_bytes),
                retry_after: Millis::new(busy.retry_after_millis),
            }),
            Some(Answer::Full(full)) => Outcome::Full(Full {
                room: ByteSize::new(full.room_bytes),
                needed: ByteSize::new(full.needed_bytes),
            }),
            Some(Answer::Unknown(reason)) => Outcome::Unknown(reason),
            None => Outcome::Unknown(format!("node {leader} answered nothing")),
        }
    }

    pub(crate) async fn ask(
        &self,
        node: NodeId,
        request: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, AskError> {
        if node == self.options.node {
            let answer = self.asked.answer(node, request);
            return timeout_at(deadline, answer).await.map_err(|_| AskError::Timeout { node });
        }
        let unreachable = |reason: &str| AskError::Unreachable { node, reason: reason.to_owned() };
        let running = self.running().ok_or_else(|| unreachable("this node has not joined yet"))?;
        let member = self.member(node).ok_or(AskError::NoMember { node })?;
        let client = running.peers.client(node, &member.peer, Lane::Ask);
        let mut client = client.map_err(|status| unreachable(status.message()))?;
        let request = running.peers.request(node, wire::AskRequest { request });
        match timeout_at(deadline, client.ask(request)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().answer),
            Ok(Err(status)) => Err(unreachable(status.message())),
            Err(_) => Err(AskError::Timeout { node }),
        }
    }
}

fn too_long(len: usize) -> String {
    format!("the command has {len} bytes; {COMMAND_MAX} is the limit")
}

fn give_up(unknown: Option<String>, refused: String) -> ProposeError {
    match unknown {
        Some(reason) => ProposeError::Unknown { reason },
        None => ProposeError::NotSent { reason: refused },
    }
}

fn refusal(error: &ClientWriteError<crate::raft::types::Types>) -> Outcome {
    match error {
        ClientWriteError::LogEntryDiscarded(_) => Outcome::Unknown(error.to_string()),
        ClientWriteError::ForwardToLeader(forward) => {
            let leader =
                forward.leader_id.map_or_else(|| "not known".to_owned(), |id| id.to_string());
            Outcome::Refused(format!("{:?}; the leader is {leader}", forward.reason))
        }
        ClientWriteError::ChangeMembershipError(_) | ClientWriteError::PreconditionFailed(_) => {
            Outcome::Refused(error.to_string())
        }
    }
}

/// The call never reached the leader's raft: the handshake was refused, or no connection was made.
fn is_definite(status: &Status) -> bool {
    if status.code() == Code::FailedPrecondition {
        return true;
    }
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{LogPosition, TopicId};
    use crate::command::TimerKey;
    use crate::message::MessageIdHash;

    #[test]
    fn a_recall_by_id_is_not_proposed_twice() {
        let (topic, id_hash) = (TopicId::new(1), MessageIdHash::new(5));
        let recall = |position| Command::Recall(TimerKey { topic, id_hash, position });
        assert!(!is_idempotent(&recall(None)), "two messages may have one id");
        assert!(is_idempotent(&recall(Some(LogPosition::new(7)))));
    }
}
