//! Nodes come and go: the leader makes one step for each time it is asked, so that repeating a
//! request that half happened goes on from there.

use std::collections::BTreeMap;

use bytes::Bytes;
use tokio::time::{Duration, Instant};

use crate::base::{LogIndex, NodeId};
use crate::broker::Replica;
use crate::broker::api::{CatchUp, MembersChange, MembersStep, StepOutcome};
use crate::broker::remote::Question;
use crate::broker::replica::Inner;
use crate::command::{CommandError, Reader, Writer};
use crate::raft::{ChangeError, Member, MemberChange, Roster, TransferError};

/// How long the leader may take over one step.
const STEP_DEADLINE: Duration = Duration::from_secs(8);
/// How long one that was asked for a step waits for a leader.
const LEADER_DEADLINE: Duration = Duration::from_secs(2);
/// A learner for which nobody asks any more is forgotten after this, and what it must reach is set
/// anew.
const FORGET: Duration = Duration::from_secs(10);

/// What learners must reach before they vote (rule R26): where the leader's log ended when the
/// request came.
#[derive(Debug, Default)]
pub(super) struct Goals(parking_lot::Mutex<BTreeMap<NodeId, Goal>>);

#[derive(Clone, Copy, Debug)]
struct Goal {
    index: LogIndex,
    asked: Instant,
}

impl Goals {
    fn of(&self, node: NodeId, last: LogIndex, now: Instant) -> LogIndex {
        let mut goals = self.0.lock();
        goals.retain(|_, goal| goal.asked + FORGET > now);
        let goal = goals.entry(node).or_insert(Goal { index: last, asked: now });
        goal.asked = now;
        goal.index
    }

    fn reached(&self, node: NodeId) {
        self.0.lock().remove(&node);
    }
}

impl Replica {
    /// One step of a change, made by the leader wherever it is.
    pub(super) async fn change_members(&self, change: &MembersChange) -> MembersStep {
        let leader = self.some_leader().await;
        let outcome = match leader {
            None => waiting("no leader is known at the moment"),
            Some(leader) if leader == self.node() => self.advance(change).await,
            Some(leader) => self.step_at(leader, Question::Members(change.clone())).await,
        };
        MembersStep { broker_group: self.name.clone(), outcome }
    }

    /// Hands the leadership to a node.
    pub(super) async fn lead_by(&self, to: NodeId) -> MembersStep {
        let leader = self.some_leader().await;
        let outcome = match leader {
            None => waiting("no leader is known at the moment"),
            Some(leader) if leader == to => StepOutcome::Done(format!("node {to} leads")),
            Some(leader) if leader == self.node() => self.hand_to(to).await,
            Some(leader) => self.step_at(leader, Question::LeadBy(to)).await,
        };
        MembersStep { broker_group: self.name.clone(), outcome }
    }
}

impl Inner {
    async fn some_leader(&self) -> Option<NodeId> {
        let mut leadership = self.group.leadership();
        let known = leadership.wait_for(|now| now.leader.is_some());
        let known = tokio::time::timeout(LEADER_DEADLINE, known).await;
        known.ok()?.ok()?.leader
    }

    async fn step_at(&self, leader: NodeId, question: Question) -> StepOutcome {
        let deadline = Instant::now() + STEP_DEADLINE;
        match self.ask(leader, question.encode(), deadline).await {
            Ok(answer) => decode_step(answer).unwrap_or_else(|error| {
                StepOutcome::Refused(format!("the answer of node {leader}: {error}"))
            }),
            Err(error) => waiting(&error.to_string()),
        }
    }

    /// The leader's own part.
    pub(super) async fn advance(&self, change: &MembersChange) -> StepOutcome {
        if !self.serving() {
            return waiting("the leader has just changed");
        }
        let roster = self.group.roster();
        if roster.changing {
            return waiting("an earlier change of the members is not committed yet");
        }
        match change {
            MembersChange::Add(member) => match self.bring_in(&roster, member, None).await {
                Some(step) => step,
                None => StepOutcome::Done(format!("node {} is a voter", member.node)),
            },
            MembersChange::Remove(node) => self.take_out(&roster, *node).await,
            MembersChange::Replace { old, new } => {
                match self.bring_in(&roster, new, Some(*old)).await {
                    Some(step) => step,
                    // It may have been a voter before it was asked for.
                    None => self.take_out(&roster, *old).await,
                }
            }
        }
    }

    /// `None` once the member votes.
    async fn bring_in(
        &self,
        roster: &Roster,
        member: &Member,
        instead_of: Option<NodeId>,
    ) -> Option<StepOutcome> {
        let node = member.node;
        if Some(node) == instead_of {
            let text = format!("node {node} cannot take its own place; give the new one a new id");
            return Some(StepOutcome::Refused(text));
        }
        match roster.member(node) {
            None => {
                let change = MemberChange::AddLearner(member.clone());
                let made = self.group.change_members(change).await;
                Some(step(made, &format!("node {node} is taken in as a learner")))
            }
            Some(known) if known != member => Some(StepOutcome::Refused(format!(
                "node {node} is a member already, at {} for nodes and {} for clients; start it \
                     with its new addresses and it tells them itself",
                known.peer, known.grpc
            ))),
            Some(_) if roster.votes(node) => None,
            Some(_) => Some(self.raise(roster, node, instead_of).await),
        }
    }

    /// A learner that has what it needs becomes a voter.
    async fn raise(
        &self,
        roster: &Roster,
        node: NodeId,
        instead_of: Option<NodeId>,
    ) -> StepOutcome {
        let bounds = self.group.log().bounds();
        let Some((last, _)) = bounds.last else { return waiting("the log is empty") };
        let goal = self.goals.of(node, last, Instant::now());
        let Some(there) = self.reached_by(node).await else {
            let text = format!("node {node} is a learner and does not answer (yet); it must run");
            return StepOutcome::Waiting(text);
        };
        // What left since the request must have left there too (rule R26).
        let floor = self.group.read(|state| state.floor().map(|front| front.index));
        let level = there.applied >= Some(goal) && there.floor >= floor;
        if self.group.matched(node) < Some(goal) || !level {
            let bytes_left = Some(bounds.end.get().saturating_sub(there.end.get()));
            return StepOutcome::CatchingUp(CatchUp { node, has: there.applied, goal, bytes_left });
        }
        if instead_of == Some(self.node()) {
            return self.hand_over_before(roster, self.node()).await;
        }
        let instead_of = instead_of.filter(|old| roster.votes(*old));
        let made = self.group.change_members(MemberChange::Promote { node, instead_of }).await;
        if made.is_ok() {
            self.goals.reached(node);
        }
        step(made, &format!("node {node} has caught up and becomes a voter"))
    }

    async fn take_out(&self, roster: &Roster, node: NodeId) -> StepOutcome {
        if roster.member(node).is_none() {
            return StepOutcome::Done(format!("node {node} is no member"));
        }
        if node == self.node() && roster.voters.len() > 1 {
            return self.hand_over_before(roster, node).await;
        }
        let made = self.group.change_members(MemberChange::Remove(node)).await;
        step(made, &format!("node {node} is taken out"))
    }

    /// A leader does not take itself out: another one leads first.
    async fn hand_over_before(&self, roster: &Roster, node: NodeId) -> StepOutcome {
        let others = roster.voters.iter().copied().filter(|voter| *voter != node);
        let able = others.filter(|voter| self.group.answers(*voter));
        match able.max_by_key(|voter| self.group.matched(*voter)) {
            Some(to) => match self.hand_to(to).await {
                // Another one may take it in the next round.
                StepOutcome::Done(text) | StepOutcome::Refused(text) => StepOutcome::Waiting(text),
                other @ (StepOutcome::Waiting(_) | StepOutcome::CatchingUp(_)) => other,
            },
            None => StepOutcome::Refused("no other voter answers that could lead".to_owned()),
        }
    }

    pub(super) async fn hand_to(&self, to: NodeId) -> StepOutcome {
        if to == self.node() && self.serving() {
            return StepOutcome::Done(format!("node {to} leads"));
        }
        if !self.group.is_voter(to) {
            return StepOutcome::Refused(format!("node {to} is no voter of this broker group"));
        }
        match self.group.transfer_leadership_to(to).await {
            Ok(()) => StepOutcome::Done(format!("node {to} leads")),
            Err(error @ TransferError::NotTaken { .. }) => StepOutcome::Refused(error.to_string()),
            Err(error) => waiting(&error.to_string()),
        }
    }
}

fn waiting(why: &str) -> StepOutcome {
    StepOutcome::Waiting(why.to_owned())
}

fn step(made: Result<(), ChangeError>, text: &str) -> StepOutcome {
    match made {
        Ok(()) => waiting(text),
        Err(
            error @ (ChangeError::NotLeader | ChangeError::UnderWay | ChangeError::Unknown { .. }),
        ) => waiting(&error.to_string()),
        Err(error) => StepOutcome::Refused(error.to_string()),
    }
}

/// Numbers are part of the peer protocol.
pub(super) fn encode_step(step: &StepOutcome) -> Bytes {
    let mut writer = Writer::new();
    match step {
        StepOutcome::Done(text) => {
            writer.u8(1);
            writer.string(text);
        }
        StepOutcome::Waiting(text) => {
            writer.u8(2);
            writer.string(text);
        }
        StepOutcome::Refused(text) => {
            writer.u8(3);
            writer.string(text);
        }
        StepOutcome::CatchingUp(CatchUp { node, has, goal, bytes_left }) => {
            writer.u8(4);
            writer.u64(node.get());
            writer.option(has.as_ref(), |writer, index| writer.u64(index.get()));
            writer.u64(goal.get());
            writer.option(bytes_left.as_ref(), |writer, bytes| writer.u64(*bytes));
        }
    }
    writer.finish()
}

fn decode_step(bytes: Bytes) -> Result<StepOutcome, CommandError> {
    let mut reader = Reader::new(bytes);
    let step = match reader.u8()? {
        1 => StepOutcome::Done(reader.string()?),
        2 => StepOutcome::Waiting(reader.string()?),
        3 => StepOutcome::Refused(reader.string()?),
        4 => StepOutcome::CatchingUp(CatchUp {
            node: NodeId::new(reader.u64()?),
            has: reader.option(Reader::u64)?.map(LogIndex::new),
            goal: LogIndex::new(reader.u64()?),
            bytes_left: reader.option(Reader::u64)?,
        }),
        found => return Err(CommandError::Kind { what: "a step of a change of members", found }),
    };
    reader.end()?;
    Ok(step)
}

pub(super) fn write_change(writer: &mut Writer, change: &MembersChange) {
    let member = |writer: &mut Writer, member: &Member| {
        writer.u64(member.node.get());
        writer.string(&member.peer);
        writer.string(&member.grpc);
    };
    match change {
        MembersChange::Add(new) => {
            writer.u8(1);
            member(writer, new);
        }
        MembersChange::Remove(node) => {
            writer.u8(2);
            writer.u64(node.get());
        }
        MembersChange::Replace { old, new } => {
            writer.u8(3);
            writer.u64(old.get());
            member(writer, new);
        }
    }
}

pub(super) fn read_change(reader: &mut Reader) -> Result<MembersChange, CommandError> {
    let member = |reader: &mut Reader| -> Result<Member, CommandError> {
        let node = NodeId::new(reader.u64()?);
        Ok(Member { node, peer: reader.string()?, grpc: reader.string()? })
    };
    Ok(match reader.u8()? {
        1 => MembersChange::Add(member(reader)?),
        2 => MembersChange::Remove(NodeId::new(reader.u64()?)),
        3 => {
            let old = NodeId::new(reader.u64()?);
            MembersChange::Replace { old, new: member(reader)? }
        }
        found => return Err(CommandError::Kind { what: "a change of members", found }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_steps_survive_the_wire() {
        let member = Member { node: NodeId::new(4), peer: "a:1".into(), grpc: "b:2".into() };
        for change in [
            MembersChange::Add(member.clone()),
            MembersChange::Remove(NodeId::new(1)),
            MembersChange::Replace { old: NodeId::new(1), new: member },
        ] {
            let mut writer = Writer::new();
            write_change(&mut writer, &change);
            let mut reader = Reader::new(writer.finish());
            assert_eq!(read_change(&mut reader), Ok(change));
            reader.end().unwrap();
        }
        let (node, goal) = (NodeId::new(4), LogIndex::new(9));
        let has = Some(LogIndex::new(3));
        for step in [
            StepOutcome::Done("a".into()),
            StepOutcome::Waiting("b".into()),
            StepOutcome::Refused("c".into()),
            StepOutcome::CatchingUp(CatchUp { node, has, goal, bytes_left: Some(7) }),
            StepOutcome::CatchingUp(CatchUp { node, has: None, goal, bytes_left: None }),
        ] {
            assert_eq!(decode_step(encode_step(&step)), Ok(step));
        }
    }

    #[test]
    fn a_goal_stays_while_it_is_asked_for() {
        let (goals, node) = (Goals::default(), NodeId::new(4));
        let mut now = Instant::now();
        let first = LogIndex::new(5);
        for last in 5..20 {
            assert_eq!(goals.of(node, LogIndex::new(last), now), first);
            now += Duration::from_secs(1);
        }
        now += FORGET;
        let second = LogIndex::new(30);
        assert_eq!(goals.of(node, second, now), second, "a new request");
        goals.reached(node);
        assert_eq!(goals.of(node, LogIndex::new(40), now), LogIndex::new(40));
    }
}
