//! How openraft sees this log: its type parameters, all in one place.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use openraft::entry::{RaftEntry, RaftPayload};
use openraft::impls::TokioRuntime;
use openraft::type_config::alias;
use openraft::vote::{RaftVote, leader_id_std};

use crate::base::{LogIndex, NodeId, Term};
use crate::command::{CommandError, Reader, Reply, Writer};
use crate::commit_log::{Frame, FrameKind, Vote};
use crate::raft::Member;

/// What openraft spawns, sleeps and measures time with. The simulator swaps it here.
type Runtime = TokioRuntime;

openraft::declare_raft_types!(
    /// Everything openraft is generic over.
    pub(crate) Types:
        D = Proposal,
        R = Reply,
        NodeId = u64,
        Node = Address,
        Term = u64,
        // Only one leader per term: an entry's id is then term and index, as a frame has them.
        LeaderId = leader_id_std::LeaderId<u64, u64>,
        Vote = openraft::impls::Vote<Self::LeaderId>,
        Payload = Payload,
        Entry = Entry,
        AsyncRuntime = Runtime,
);

pub(crate) type EntryId = alias::LogIdOf<Types>;
pub(crate) type RaftVoteOf = alias::VoteOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, Address>;
pub(crate) type StoredMembership = alias::StoredMembershipOf<Types>;
pub(crate) type SnapshotMeta = alias::SnapshotMetaOf<Types>;

/// The encoded command that a proposal carries.
pub(crate) struct Proposal(pub(crate) Bytes);

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a command of {} bytes", self.0.len())
    }
}

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where a member is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) peer: String,
    pub(crate) grpc: String,
}

/// What an entry says, before it has a place in the log.
#[derive(Debug)]
pub(crate) enum Payload {
    Blank,
    Command(Bytes),
    Membership(Membership),
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("blank"),
            Self::Command(bytes) => write!(f, "a command of {} bytes", bytes.len()),
            Self::Membership(membership) => write!(f, "membership {membership}"),
        }
    }
}

impl RaftPayload for Payload {
    type D = Proposal;
    type NodeId = u64;
    type Node = Address;

    fn blank() -> Self {
        Self::Blank
    }

    fn with_normal(self, data: Proposal) -> Self {
        Self::Command(data.0)
    }

    fn with_membership(self, membership: Membership) -> Self {
        Self::Membership(membership)
    }

    fn get_membership(&self) -> Option<Membership> {
        match self {
            Self::Membership(membership) => Some(membership.clone()),
            Self::Blank | Self::Command(_) => None,
        }
    }
}

/// One entry: a frame of the log. Its bytes are fixed where it gets its id, and only carried
/// along from there on.
#[derive(Clone)]
pub(crate) struct Entry {
    frame: Frame,
    /// The frame's term once more: openraft wants it by reference and in its own type.
    leader: CommittedLeader,
}

type CommittedLeader = leader_id_std::CommittedLeaderId<u64>;

impl Entry {
    /// An entry from the disk or the wire. A membership is checked here, once, so that reading it
    /// later cannot fail.
    pub(crate) fn from_frame(frame: Frame) -> Result<Self, BadMembership> {
        if frame.kind == FrameKind::Membership {
            let source = decode_membership(&frame.body).err();
            if let Some(source) = source {
                return Err(BadMembership { index: frame.index, source });
            }
        }
        Ok(Self::of(frame))
    }

    fn of(frame: Frame) -> Self {
        let leader = CommittedLeader::new(frame.term.get());
        Self { frame, leader }
    }

    pub(crate) fn frame(&self) -> &Frame {
        &self.frame
    }

    pub(crate) fn into_frame(self) -> Frame {
        self.frame
    }
}

/// A membership entry whose body is not a membership.
#[derive(Debug, thiserror::Error)]
#[error("the membership in entry {index} cannot be read: {source}")]
pub(crate) struct BadMembership {
    index: LogIndex,
    source: CommandError,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Frame { index, term, kind, body, .. } = &self.frame;
        write!(f, "entry {index} of term {term}: {kind:?}, {} bytes", body.len())
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl RaftEntry for Entry {
    type CommittedLeaderId = CommittedLeader;
    type Payload = Payload;

    fn new(id: EntryId, payload: Payload) -> Self {
        let (kind, body) = match payload {
            Payload::Blank => (FrameKind::Blank, Bytes::new()),
            Payload::Command(bytes) => (FrameKind::Command, bytes),
            Payload::Membership(membership) => {
                (FrameKind::Membership, encode_membership(&membership))
            }
        };
        Self::of(Frame::unsealed(index_of(&id), term_of(&id), kind, body))
    }

    fn log_id_parts(&self) -> (&Self::CommittedLeaderId, u64) {
        (&self.leader, self.frame.index.get())
    }

    fn set_log_id(&mut self, id: EntryId) {
        assert!(self.frame.seal.is_none(), "a sealed entry keeps its place");
        self.frame.index = index_of(&id);
        self.frame.term = term_of(&id);
        self.leader = id.leader_id;
    }

    fn get_membership(&self) -> Option<Membership> {
        if self.frame.kind != FrameKind::Membership {
            return None;
        }
        let membership = decode_membership(&self.frame.body);
        Some(membership.expect("a membership entry is checked where it is read or made"))
    }
}

pub(crate) fn entry_id(index: LogIndex, term: Term) -> EntryId {
    EntryId::new(CommittedLeader::new(term.get()), index.get())
}

pub(crate) fn index_of(id: &EntryId) -> LogIndex {
    LogIndex::new(id.index)
}

pub(crate) fn term_of(id: &EntryId) -> Term {
    Term::new(id.leader_id.term)
}

pub(crate) fn to_raft_vote(vote: Vote) -> RaftVoteOf {
    let leader = leader_id_std::LeaderId { term: vote.term.get(), voted_for: vote.node.get() };
    RaftVoteOf::from_leader_id(leader, vote.committed)
}

pub(crate) fn from_raft_vote(vote: &RaftVoteOf) -> Vote {
    let leader = vote.leader_id();
    Vote {
        term: Term::new(leader.term),
        node: NodeId::new(leader.voted_for),
        committed: vote.is_committed(),
    }
}

/// The first byte of a membership.
const MEMBERSHIP_VERSION: u8 = 1;

/// Layout: version u8, the voter sets (count u32, each: count u32, ids u64), then all nodes with
/// their addresses (count u32, each: id u64, peer address, client address). A set more than one
/// stands for the time of a change. Texts are length u32 and UTF-8.
pub(crate) fn encode_membership(membership: &Membership) -> Bytes {
    let mut writer = Writer::new();
    writer.u8(MEMBERSHIP_VERSION);
    writer.list(membership.get_joint_config(), |writer, voters| {
        let voters: Vec<u64> = voters.iter().copied().collect();
        writer.list(&voters, |writer, node| writer.u64(*node));
    });
    let nodes: Vec<(&u64, &Address)> = membership.nodes().collect();
    writer.list(&nodes, |writer, (node, address)| {
        writer.u64(**node);
        writer.string(&address.peer);
        writer.string(&address.grpc);
    });
    writer.finish()
}

pub(crate) fn decode_membership(bytes: &Bytes) -> Result<Membership, CommandError> {
    let mut reader = Reader::new(bytes.clone());
    let found = reader.u8()?;
    if found != MEMBERSHIP_VERSION {
        let known = MEMBERSHIP_VERSION;
        return Err(CommandError::Version { what: "a membership", found, known });
    }
    let configs = reader.list(|reader| reader.list(Reader::u64))?;
    let nodes = reader.list(|reader| {
        let node = reader.u64()?;
        Ok((node, Address { peer: reader.string()?, grpc: reader.string()? }))
    })?;
    reader.end()?;
    let configs = configs.into_iter().map(|voters| voters.into_iter().collect()).collect();
    let nodes: BTreeMap<u64, Address> = nodes.into_iter().collect();
    membership_of(configs, nodes)
}

fn membership_of(
    configs: Vec<BTreeSet<u64>>,
    nodes: BTreeMap<u64, Address>,
) -> Result<Membership, CommandError> {
    Membership::new(configs, nodes)
        .map_err(|_| CommandError::Kind { what: "the voters of a membership", found: 0 })
}

pub(crate) fn members_of(membership: &Membership) -> Vec<Member> {
    let member = |(node, address): (&u64, &Address)| Member {
        node: NodeId::new(*node),
        peer: address.peer.clone(),
        grpc: address.grpc.clone(),
    };
    membership.nodes().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(peer: &str, grpc: &str) -> Address {
        Address { peer: peer.to_owned(), grpc: grpc.to_owned() }
    }

    fn membership() -> Membership {
        let nodes = BTreeMap::from([(1, address("a:1", "b:2")), (2, address("c:3", ""))]);
        Membership::new(vec![BTreeSet::from([1]), BTreeSet::from([1, 2])], nodes).unwrap()
    }

    #[test]
    fn a_membership_has_golden_bytes() {
        let golden = "01\
            00000002\
            00000001 0000000000000001\
            00000002 0000000000000001 0000000000000002\
            00000002\
            0000000000000001 00000003 613a31 00000003 623a32\
            0000000000000002 00000003 633a33 00000000";
        let bytes = encode_membership(&membership());
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.replace(' ', ""));
        assert_eq!(decode_membership(&bytes).unwrap(), membership());
    }

    #[test]
    fn what_is_no_membership_is_refused_where_it_is_read() {
        let bytes = encode_membership(&membership());
        for len in 0..bytes.len() {
            assert!(decode_membership(&bytes.slice(..len)).is_err(), "{len} bytes were enough");
        }
        // A voter without an address.
        let mut voters = bytes.to_vec();
        voters[16] = 9;
        let body = Bytes::from(voters);
        assert!(decode_membership(&body).is_err());
        let frame = Frame::unsealed(LogIndex::ZERO, Term::ZERO, FrameKind::Membership, body);
        assert!(Entry::from_frame(frame).is_err());
    }

    #[test]
    fn votes_and_ids_keep_their_values() {
        let vote = Vote { term: Term::new(3), node: NodeId::new(9), committed: true };
        assert_eq!(from_raft_vote(&to_raft_vote(vote)), vote);
        let id = entry_id(LogIndex::new(5), Term::new(2));
        assert_eq!((index_of(&id), term_of(&id)), (LogIndex::new(5), Term::new(2)));
        let entry = Entry::new(id, Payload::Command(Bytes::from_static(b"x")));
        assert_eq!(entry.log_id(), id);
    }
}
