//! The part of `raftmq.v1.Admin` that is about who belongs to the cluster.

use tonic::Status;

use crate::base::{LogIndex, NodeId};
use crate::broker::{Member, MembersChange, MembersStep, StepOutcome};
use crate::wire::raftmq as v1;
use crate::wire::raftmq::members_step::State;

pub(super) fn change(request: v1::ChangeMembersRequest) -> Result<MembersChange, Status> {
    use v1::change_members_request::Change;
    Ok(match request.change.ok_or_else(|| Status::invalid_argument("no change is named"))? {
        Change::Add(new) => MembersChange::Add(member(new)?),
        Change::Remove(node) => MembersChange::Remove(node_id(node)?),
        Change::Replace(v1::Replacement { old, new }) => {
            let new = new.ok_or_else(|| Status::invalid_argument("no new node is named"))?;
            MembersChange::Replace { old: node_id(old)?, new: member(new)? }
        }
    })
}

fn node_id(node: u64) -> Result<NodeId, Status> {
    if node == 0 {
        return Err(Status::invalid_argument("the node is 0; ids count from 1"));
    }
    Ok(NodeId::new(node))
}

/// Longest host name in bytes, by RFC 1035 section 2.3.4, with a port behind it.
const ADDRESS_MAX: usize = 259;

fn member(member: v1::Member) -> Result<Member, Status> {
    let v1::Member { node, peer, grpc } = member;
    for (what, address) in [("peer", &peer), ("grpc", &grpc)] {
        let parts = address.rsplit_once(':');
        let sound = parts.is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !sound || address.len() > ADDRESS_MAX {
            let text = format!("the {what} address is {address:?}; write HOST:PORT");
            return Err(Status::invalid_argument(text));
        }
    }
    Ok(Member { node: node_id(node)?, peer, grpc })
}

pub(super) fn steps(steps: Vec<MembersStep>) -> v1::ChangeMembersResponse {
    v1::ChangeMembersResponse { steps: steps.into_iter().map(step).collect() }
}

fn step(step: MembersStep) -> v1::MembersStep {
    let mut told =
        v1::MembersStep { broker_group: step.broker_group.to_string(), ..Default::default() };
    match step.outcome {
        StepOutcome::Done(text) => {
            told.set_state(State::Done);
            told.text = text;
        }
        StepOutcome::Waiting(text) => {
            told.set_state(State::Waiting);
            told.text = text;
        }
        StepOutcome::Refused(text) => {
            told.set_state(State::Refused);
            told.text = text;
        }
        StepOutcome::CatchingUp(learner) => {
            told.set_state(State::CatchingUp);
            told.text = format!("node {} is catching up", learner.node);
            told.node = learner.node.get();
            told.has = learner.has.map(LogIndex::get);
            told.goal = learner.goal.get();
            told.bytes_left = learner.bytes_left;
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_ids_are_checked_before_anything_is_asked() {
        let asked = |node, peer: &str| {
            let new = v1::Member { node, peer: peer.into(), grpc: "h:2".into() };
            let add = Some(v1::change_members_request::Change::Add(new));
            change(v1::ChangeMembersRequest { change: add })
        };
        assert!(matches!(asked(4, "h:1"), Ok(MembersChange::Add(_))));
        for (node, peer) in [(0, "h:1"), (4, ""), (4, "h"), (4, ":1"), (4, "h:0"), (4, "h:66000")] {
            let status = asked(node, peer).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{node} {peer}");
        }
        assert!(change(v1::ChangeMembersRequest::default()).is_err());
    }
}
