//! Where every replica stands, compared at one log index.

use bytes::Bytes;
use futures::future::join_all;
use tokio::time::Instant;

use crate::base::{LogIndex, LogPosition, Millis, NodeId};
use crate::broker::Replica;
use crate::broker::api::{GroupStatus, NodeStatus};
use crate::broker::remote::Question;
use crate::broker::replica::Inner;
use crate::command::{Command, CommandError, Reader, Reply, Writer};
use crate::raft::Member;

/// How long a replica may take to apply the audit entry before it answers with what it has.
const CATCH_UP: Millis = Millis::from_secs(1);
/// How long a peer may take to answer.
const PEER_TIMEOUT: Millis = Millis::from_secs(3);

/// One replica's own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnStatus {
    role: String,
    term: u64,
    first: Option<u64>,
    last: Option<u64>,
    /// Where its log ends, in bytes.
    end: u64,
    /// The entry up to which the log has left, by its state.
    floor: Option<u64>,
    committed: Option<u64>,
    applied: Option<u64>,
    /// The newest audit entry it applied, and the state hash there.
    audit: Option<(u64, u64)>,
    units_hash: Option<u64>,
}

/// How far a learner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) applied: Option<LogIndex>,
    pub(super) end: LogPosition,
    pub(super) floor: Option<LogIndex>,
}

impl Replica {
    /// Writes an audit entry, so that all state hashes are those of one index. Without a leader
    /// the replicas are still asked, and the hashes are left out. `units` also reads and hashes
    /// every queue unit.
    pub(super) async fn status(&self, units: bool) -> GroupStatus {
        let audit = match self.group.propose(Command::Audit, self.default_deadline()).await {
            Ok(Reply::Audited { index, .. }) => Some(index),
            _ => None,
        };
        let members = self.group.members();
        let asked = members.iter().map(|member| self.member_status(member, audit, units));
        let mut told = join_all(asked).await;
        let front = told.iter().find(|(node, _)| node.role == "leader");
        if let Some((last, end)) = front.map(|(node, end)| (node.last, *end)) {
            for (node, its_end) in &mut told {
                let entries = last.zip(node.applied).map(|(last, has)| last.saturating_sub(has));
                node.behind = entries.map(|entries| (entries, end.saturating_sub(*its_end)));
            }
        }
        let nodes = told.into_iter().map(|(node, _)| node).collect();
        let durability = self.group.durability();
        GroupStatus { group: self.name.clone(), durability, audit, nodes }
    }
}

impl Inner {
    async fn member_status(
        &self,
        member: &Member,
        audit: Option<LogIndex>,
        units: bool,
    ) -> (NodeStatus, u64) {
        let voter = self.group.is_voter(member.node);
        let own = if member.node == self.node() {
            Ok(self.own_status(audit, units).await)
        } else {
            self.peer_status(member.node, audit, units).await
        };
        match own {
            Ok(own) => {
                let same_index = |(index, _): &(u64, u64)| Some(LogIndex::new(*index)) == audit;
                let status = NodeStatus {
                    node: member.node,
                    role: own.role,
                    voter,
                    term: own.term,
                    first: own.first,
                    floor: own.floor,
                    last: own.last,
                    committed: own.committed,
                    applied: own.applied,
                    behind: None,
                    state_hash: own.audit.filter(same_index).map(|(_, hash)| hash),
                    units_hash: own.units_hash,
                    grpc: member.grpc.clone(),
                    error: None,
                };
                (status, own.end)
            }
            Err(error) => (unreachable(member, voter, error), 0),
        }
    }

    /// How far a node is, if it can be asked.
    pub(super) async fn reached_by(&self, node: NodeId) -> Option<Reached> {
        let own = self.peer_status(node, None, false).await.ok()?;
        Some(Reached {
            applied: own.applied.map(LogIndex::new),
            end: LogPosition::new(own.end),
            floor: own.floor.map(LogIndex::new),
        })
    }

    async fn peer_status(
        &self,
        node: NodeId,
        at_least: Option<LogIndex>,
        units: bool,
    ) -> Result<OwnStatus, String> {
        let deadline = Instant::now() + PEER_TIMEOUT.duration();
        let question = Question::Status { at_least, units }.encode();
        let answer = self.ask(node, question, deadline).await.map_err(|e| e.to_string())?;
        OwnStatus::decode(answer).map_err(|error| error.to_string())
    }

    pub(super) async fn own_status(&self, at_least: Option<LogIndex>, units: bool) -> OwnStatus {
        if let Some(index) = at_least {
            // One that stays behind answers with what it has.
            self.group.wait_applied(index, Instant::now() + CATCH_UP.duration()).await;
        }
        let (status, bounds) = (self.group.status(), self.group.log().bounds());
        let (audit, floor, units_hash) = self.group.read(|state| {
            // Units are hashed as they are now, which can be compared only if nothing came since.
            let at_audit = state.applied().map(|(index, _)| index) == at_least;
            let hash = (units && at_audit).then(|| state.units_hash()).transpose();
            (state.audit(), state.floor(), hash)
        });
        let units_hash = units_hash.unwrap_or_else(|error| {
            self.group.units_failed(&error);
            None
        });
        OwnStatus {
            role: status.role.name().to_owned(),
            term: status.term.get(),
            first: bounds.first.map(LogIndex::get),
            last: status.last.map(LogIndex::get),
            end: bounds.end.get(),
            floor: floor.map(|front| front.index.get()),
            committed: status.committed.map(LogIndex::get),
            applied: status.applied.map(LogIndex::get),
            audit: audit.map(|(index, hash)| (index.get(), hash)),
            units_hash,
        }
    }
}

fn unreachable(member: &Member, voter: bool, error: String) -> NodeStatus {
    NodeStatus {
        node: member.node,
        role: "unreachable".into(),
        voter,
        term: 0,
        first: None,
        floor: None,
        last: None,
        committed: None,
        applied: None,
        behind: None,
        state_hash: None,
        units_hash: None,
        grpc: member.grpc.clone(),
        error: Some(error),
    }
}

impl OwnStatus {
    pub(super) fn encode(&self) -> Bytes {
        let number = |writer: &mut Writer, value: &u64| writer.u64(*value);
        let mut writer = Writer::new();
        writer.string(&self.role);
        writer.u64(self.term);
        writer.option(self.first.as_ref(), number);
        writer.option(self.last.as_ref(), number);
        writer.u64(self.end);
        writer.option(self.floor.as_ref(), number);
        writer.option(self.committed.as_ref(), number);
        writer.option(self.applied.as_ref(), number);
        writer.option(self.audit.as_ref(), |writer, (index, hash)| {
            writer.u64(*index);
            writer.u64(*hash);
        });
        writer.option(self.units_hash.as_ref(), number);
        writer.finish()
    }

    fn decode(bytes: Bytes) -> Result<Self, CommandError> {
        let mut reader = Reader::new(bytes);
        let own = Self {
            role: reader.string()?,
            term: reader.u64()?,
            first: reader.option(Reader::u64)?,
            last: reader.option(Reader::u64)?,
            end: reader.u64()?,
            floor: reader.option(Reader::u64)?,
            committed: reader.option(Reader::u64)?,
            applied: reader.option(Reader::u64)?,
            audit: reader.option(|reader| Ok((reader.u64()?, reader.u64()?)))?,
            units_hash: reader.option(Reader::u64)?,
        };
        reader.end()?;
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_the_wire() {
        let own = OwnStatus {
            role: "follower".into(),
            term: 3,
            first: Some(2),
            last: Some(9),
            end: 4_711,
            floor: Some(1),
            committed: Some(8),
            applied: None,
            audit: Some((7, 0xfeed)),
            units_hash: None,
        };
        assert_eq!(OwnStatus::decode(own.encode()), Ok(own));
    }
}
