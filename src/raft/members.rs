//! Who belongs to a group, and changing that: one change at a time, learners first.
//!
//! Every call looks at the membership as it is now and makes at most one change, so that repeating
//! what half happened goes on from there. What a change would leave must have a majority that
//! answers; otherwise the group could not even take the change back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, Instant as _};
use tokio::time::{Duration, timeout};

use crate::base::{LogIndex, NodeId};
use crate::raft::group::{Group, Running, Shared};
use crate::raft::options::Member;
use crate::raft::types::{Address, Types, index_of, members_of};

/// A change commits in less than that, or its outcome is looked for in the membership later.
const CHANGE_DEADLINE: Duration = Duration::from_secs(5);

/// The members as the log of this replica has them, committed or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Sorted by id, learners among them.
    pub members: Vec<Member>,
    pub voters: BTreeSet<NodeId>,
    /// A change is half done or not committed yet.
    pub changing: bool,
}

impl Roster {
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    pub fn votes(&self, node: NodeId) -> bool {
        self.voters.contains(&node)
    }
}

/// One step from one membership to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    AddLearner(Member),
    /// A learner becomes a voter; another voter may leave with the same change.
    Promote {
        node: NodeId,
        instead_of: Option<NodeId>,
    },
    Remove(NodeId),
    /// The member is reached elsewhere.
    Move(Member),
    /// Ends a change that its leader left half done.
    Settle,
}

/// Why a membership was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error("this node does not lead")]
    NotLeader,
    #[error("another change of the members is under way")]
    UnderWay,
    #[error(
        "of the voters {} only {} answer, which is no majority; bring one of the others back first",
        list(voters),
        list(heard)
    )]
    NoMajority { voters: Vec<NodeId>, heard: Vec<NodeId> },
    #[error("node {node} is the last voter; add another one before it is taken out")]
    LastVoter { node: NodeId },
    #[error("{address} is already the address of node {node}")]
    AddressTaken { address: String, node: NodeId },
    #[error("the change was refused: {reason}")]
    Refused { reason: String },
    #[error("it is not known whether the members were changed: {reason}")]
    Unknown { reason: String },
}

fn list(nodes: &[NodeId]) -> String {
    let texts: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

impl Group {
    pub fn roster(&self) -> Roster {
        self.shared().roster()
    }

    /// Whether this node's log has it among the voters.
    pub fn is_voter(&self, node: NodeId) -> bool {
        let Some(running) = self.shared().running() else { return false };
        let server = running.raft.server_metrics();
        let server = server.borrow_watched();
        server.membership_config.membership().voter_ids().any(|voter| voter == node.get())
    }

    /// The last entry that this leader knows to be on the disk of another node. `None` elsewhere
    /// and for a node that has none yet.
    pub fn matched(&self, node: NodeId) -> Option<LogIndex> {
        let running = self.shared().running()?;
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics.replication.as_ref()?.get(&node.get())?.as_ref();
        matched.map(index_of)
    }

    /// Whether the node answered this leader a moment ago.
    pub fn answers(&self, node: NodeId) -> bool {
        self.shared().running().is_some_and(|running| running.answers(self.shared(), node))
    }

    /// Makes one change, if this node leads and no other is under way. Returns when it is
    /// committed.
    pub async fn change_members(&self, change: MemberChange) -> Result<(), ChangeError> {
        self::change(self.shared(), change).await
    }
}

impl Shared {
    pub(crate) fn roster(&self) -> Roster {
        let Some(running) = self.running() else { return Roster::default() };
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let (stored, committed) =
            (&metrics.membership_config, &metrics.committed_membership_config);
        let membership = stored.membership();
        Roster {
            members: members_of(membership),
            voters: membership.voter_ids().map(NodeId::new).collect(),
            changing: membership.get_joint_config().len() > 1
                || stored.log_id() != committed.log_id(),
        }
    }
}

/// As [`Group::change_members`]. The work goes on if the caller stops waiting, since a change of
/// voters is two entries.
pub(crate) async fn change(shared: &Arc<Shared>, change: MemberChange) -> Result<(), ChangeError> {
    let shared = shared.clone();
    let work = tokio::spawn(async move {
        let _turn = shared.changing.try_lock().map_err(|_| ChangeError::UnderWay)?;
        let running = shared.running().ok_or(ChangeError::NotLeader)?;
        change_now(&shared, running, change).await
    });
    let unknown = |reason: String| Err(ChangeError::Unknown { reason });
    match timeout(CHANGE_DEADLINE, work).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => unknown(error.to_string()),
        Err(_) => unknown(format!("it is not committed after {CHANGE_DEADLINE:?}")),
    }
}

async fn change_now(
    shared: &Shared,
    running: &Running,
    change: MemberChange,
) -> Result<(), ChangeError> {
    if !running.leads() {
        return Err(ChangeError::NotLeader);
    }
    let roster = shared.roster();
    if roster.changing && change != MemberChange::Settle {
        return Err(ChangeError::UnderWay);
    }
    let wanted = wanted(shared, running, &roster, &change)?;
    tracing::info!(broker_group = %shared.options.group, ?change, "the members are changed");
    let written = running.raft.change_membership(wanted, false).await;
    match written {
        Ok(_) => Ok(()),
        Err(RaftError::APIError(error)) => Err(refusal(&error)),
        Err(RaftError::Fatal(fatal)) => Err(ChangeError::Unknown { reason: fatal.to_string() }),
    }
}

/// The change in openraft's words, after looking at what it would leave.
fn wanted(
    shared: &Shared,
    running: &Running,
    roster: &Roster,
    change: &MemberChange,
) -> Result<ChangeMembers<u64, Address>, ChangeError> {
    let one = |node: NodeId| BTreeSet::from([node.get()]);
    let address = |member: &Member| {
        let Member { node, peer, grpc } = member.clone();
        BTreeMap::from([(node.get(), Address { peer, grpc })])
    };
    Ok(match change {
        MemberChange::AddLearner(member) => {
            free(roster, member)?;
            ChangeMembers::AddNodes(address(member))
        }
        MemberChange::Move(member) => {
            free(roster, member)?;
            ChangeMembers::SetNodes(address(member))
        }
        MemberChange::Promote { node, instead_of } => {
            let mut voters = roster.voters.clone();
            voters.insert(*node);
            let mut steps = vec![ChangeMembers::AddVoterIds(one(*node))];
            if let Some(old) = instead_of {
                voters.remove(old);
                steps.push(ChangeMembers::RemoveVoters(one(*old)));
            }
            enough(shared, running, &voters)?;
            ChangeMembers::Batch(steps)
        }
        MemberChange::Remove(node) if roster.votes(*node) => {
            let mut voters = roster.voters.clone();
            voters.remove(node);
            if voters.is_empty() {
                return Err(ChangeError::LastVoter { node: *node });
            }
            enough(shared, running, &voters)?;
            ChangeMembers::RemoveVoters(one(*node))
        }
        MemberChange::Remove(node) => ChangeMembers::RemoveNodes(one(*node)),
        MemberChange::Settle => ChangeMembers::AddVoterIds(BTreeSet::new()),
    })
}

/// Two nodes at one address would be taken for each other.
fn free(roster: &Roster, member: &Member) -> Result<(), ChangeError> {
    let others = roster.members.iter().filter(|other| other.node != member.node);
    let taken = |other: &&Member| other.peer == member.peer || other.grpc == member.grpc;
    match others.into_iter().find(taken) {
        Some(Member { node, peer, grpc }) => {
            let address = if *peer == member.peer { peer } else { grpc };
            Err(ChangeError::AddressTaken { address: address.clone(), node: *node })
        }
        None => Ok(()),
    }
}

/// A majority of these answered this leader a moment ago, or the change could never be committed
/// and no later one either.
fn enough(
    shared: &Shared,
    running: &Running,
    voters: &BTreeSet<NodeId>,
) -> Result<(), ChangeError> {
    let heard: Vec<NodeId> =
        voters.iter().copied().filter(|node| running.answers(shared, *node)).collect();
    if heard.len() * 2 > voters.len() {
        return Ok(());
    }
    Err(ChangeError::NoMajority { voters: voters.iter().copied().collect(), heard })
}

fn refusal(error: &ClientWriteError<Types>) -> ChangeError {
    match error {
        ClientWriteError::ForwardToLeader(_) => ChangeError::NotLeader,
        ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_)) => {
            ChangeError::UnderWay
        }
        ClientWriteError::LogEntryDiscarded(_) => {
            ChangeError::Unknown { reason: error.to_string() }
        }
        ClientWriteError::ChangeMembershipError(_) | ClientWriteError::PreconditionFailed(_) => {
            ChangeError::Refused { reason: error.to_string() }
        }
    }
}

impl Running {
    fn answers(&self, shared: &Shared, node: NodeId) -> bool {
        let lately = Duration::from_millis(shared.options.timing.election_max.get());
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let heard = metrics.heartbeat.as_ref().and_then(|all| all.get(&node.get()).copied());
        let heard = heard.flatten().is_some_and(|heard| heard.elapsed() < lately);
        node == shared.options.node || heard
    }

    /// A change of voters stands between its two entries.
    pub(crate) fn half_changed(&self) -> bool {
        let server = self.raft.server_metrics();
        server.borrow_watched().membership_config.membership().get_joint_config().len() > 1
    }
}
