//! Whether this node can do its part.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::base::{BrokerGroupId, BrokerGroupName};
use crate::http;
use crate::raft::{Belonging, Group, Leadership};

use super::live::{Live, count};

/// Entries that a ready node may be behind the leader. Under load a follower is always a little
/// behind; this is a fraction of a second of it.
const REACH: u64 = 1000;

/// What is known about the way to being ready.
#[derive(Debug)]
pub(super) struct Readiness {
    live: Arc<Live>,
    groups: Mutex<Vec<(BrokerGroupName, BrokerGroupId, Group)>>,
    /// What the node is doing instead of serving; `None` while it serves.
    stage: Mutex<Option<&'static str>>,
}

impl Readiness {
    pub(super) fn new(live: Arc<Live>) -> Self {
        Self { live, groups: Mutex::default(), stage: Mutex::new(Some("it is starting")) }
    }

    pub(super) fn opened(&self, name: BrokerGroupName, id: BrokerGroupId, group: Group) {
        let mut groups = self.groups.lock();
        assert!(groups.iter().all(|(_, known, _)| *known != id), "a replica is opened once");
        groups.push((name, id, group));
    }

    pub(super) fn stage(&self, stage: &'static str) {
        tracing::debug!(stage, "not ready");
        *self.stage.lock() = Some(stage);
    }

    pub(super) fn serving(&self) {
        *self.stage.lock() = None;
    }
}

impl http::Readiness for Readiness {
    fn obstacles(&self) -> Vec<String> {
        let groups = self.groups.lock();
        if let Some(stage) = *self.stage.lock() {
            let told = groups.iter().filter_map(|(name, _, group)| belongs_not(name, group));
            return std::iter::once(stage.to_owned()).chain(told).collect();
        }
        assert!(!groups.is_empty(), "a node serves with its replicas open");
        let of = |(name, id, group): &(BrokerGroupName, BrokerGroupId, Group)| {
            if let Some(obstacle) = belongs_not(name, group) {
                return Some(obstacle);
            }
            let leadership = *group.leadership().borrow();
            let applied = count(group.status().applied);
            let told = leadership.leader.and_then(|leader| self.live.committed_by(*id, leader));
            let own = group.node() == leadership.leader.unwrap_or_default();
            let obstacle = obstacle(leadership, own, applied, told).or_else(|| {
                let learns = !group.is_voter(group.node());
                learns.then(|| "this node is a learner, whose vote does not count yet".to_owned())
            })?;
            Some(format!("broker group {name}: {obstacle}"))
        };
        groups.iter().filter_map(of).collect()
    }
}

fn belongs_not(name: &BrokerGroupName, group: &Group) -> Option<String> {
    match &*group.belonging().borrow() {
        Belonging::Starting | Belonging::Member => None,
        Belonging::Waiting { why } => Some(format!("broker group {name}: {why}")),
        Belonging::Removed => Some(format!(
            "broker group {name}: this node was removed from it; stop it, its data is not needed"
        )),
    }
}

/// `told` is what the leader said was committed.
fn obstacle(leadership: Leadership, own: bool, applied: u64, told: Option<u64>) -> Option<String> {
    let Some(leader) = leadership.leader else {
        return Some(format!("no leader is known in term {}", leadership.term));
    };
    if own {
        let waiting = || "it leads, but its first entry is not applied yet".to_owned();
        return (!leadership.serving).then(waiting);
    }
    let Some(told) = told else {
        return Some(format!("node {leader} leads, but has not told yet how far it is"));
    };
    let behind = told.saturating_sub(applied);
    (behind > REACH).then(|| {
        format!("{behind} entries behind the leader, node {leader}; {REACH} or less is ready")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{NodeId, Term};

    fn led_by(leader: Option<u64>, serving: bool) -> Leadership {
        Leadership { term: Term::new(3), leader: leader.map(NodeId::new), serving }
    }

    #[test]
    fn a_node_is_ready_when_it_is_in_reach_of_a_leader() {
        let said = |leadership, own, applied, told| obstacle(leadership, own, applied, told);
        assert!(said(led_by(None, false), false, 9, Some(9)).unwrap().contains("term 3"));
        assert!(said(led_by(Some(1), false), true, 9, None).unwrap().contains("first entry"));
        assert_eq!(said(led_by(Some(1), true), true, 9, None), None);
        assert!(said(led_by(Some(1), false), false, 9, None).unwrap().contains("node 1"));
        assert_eq!(said(led_by(Some(1), false), false, 9, Some(9 + REACH)), None);
        let behind = said(led_by(Some(1), false), false, 9, Some(10 + REACH)).unwrap();
        assert!(behind.contains("1001 entries"), "{behind}");
    }
}
