//! Replicas at rest: all alike, and each holds what clients were told.

use std::collections::BTreeMap;

use super::Findings;
use crate::history::{Answer, History, Place, Value};

/// One replica after the faults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replica {
    pub(crate) node: usize,
    pub(crate) applied: Option<u64>,
    pub(crate) state_hash: u64,
    /// Of all queue units; `None` when they could not be read.
    pub(crate) units_hash: Option<u64>,
    /// Topic and queue, with their bounds.
    pub(crate) queues: BTreeMap<(u32, u32), (u64, u64)>,
    /// What lies in the queues; `None` for a record that is nobody's.
    pub(crate) values: BTreeMap<Place, Option<Value>>,
    /// What a group has not considered or not acknowledged, over all topics.
    pub(crate) lag: BTreeMap<u32, u64>,
    /// What a group lost of a topic to retention.
    pub(crate) expired: BTreeMap<(u32, u32), u64>,
}

/// `drained` says that all groups had taken everything.
pub(crate) fn check(history: &History, replicas: &[Replica], drained: bool) -> Findings {
    let mut findings = Findings::default();
    let Some(first) = replicas.first() else {
        findings.unknown.push("no replica could be looked at".to_owned());
        return findings;
    };
    for other in &replicas[1..] {
        check_equal(first, other, &mut findings);
    }
    for replica in replicas {
        check_content(history, replica, &mut findings);
        if drained {
            for (group, lag) in replica.lag.iter().filter(|(_, lag)| **lag > 0) {
                let what = format!("node {}: {lag} are left for group {group}", replica.node);
                findings.violated("lag-after-drain", what);
            }
        }
    }
    findings
}

fn check_equal(one: &Replica, other: &Replica, findings: &mut Findings) {
    let at = format!("nodes {} and {}", one.node, other.node);
    if one.applied != other.applied {
        let what = format!("{at} applied {:?} and {:?}", one.applied, other.applied);
        findings.unknown.push(what);
        return;
    }
    if one.state_hash != other.state_hash {
        let what = format!("{at} differ in their state at {:?}", one.applied);
        findings.violated("state-equal", what);
    }
    if one.units_hash != other.units_hash {
        let what = format!("{at}: {:?} and {:?}", one.units_hash, other.units_hash);
        findings.violated("units-equal", what);
    }
    if one.queues != other.queues {
        findings.violated("bounds-equal", format!("{at}: {:?} and {:?}", one.queues, other.queues));
    }
    if one.expired != other.expired {
        let what = format!("{at}: {:?} and {:?}", one.expired, other.expired);
        findings.violated("expired-equal", what);
    }
    for (place, value) in &one.values {
        let there = other.values.get(place);
        if there != Some(value) {
            let what = format!("{at}: {place} is {value:?} and {there:?}");
            findings.violated("content-equal", what);
        }
    }
}

/// Every offset within the bounds has a value, and what was told is there.
fn check_content(history: &History, replica: &Replica, findings: &mut Findings) {
    let node = replica.node;
    for ((topic, queue), (start, end)) in &replica.queues {
        for offset in *start..*end {
            let place = Place { topic: *topic, queue: *queue, offset };
            match replica.values.get(&place) {
                Some(Some(_)) => {}
                Some(None) => {
                    findings.violated("corrupt-record", format!("node {node}: {place}"));
                }
                None => findings.violated("dense", format!("node {node} has nothing at {place}")),
            }
        }
    }
    let mut at = BTreeMap::new();
    for (place, value) in &replica.values {
        let Some(value) = value else { continue };
        if let Some(other) = at.insert(*value, *place) {
            let what = format!("node {node}: {value} is at {other} and at {place}");
            findings.violated("stored-once", what);
        }
    }
    for operation in &history.operations {
        let Some(value) = operation.what.shows() else { continue };
        let Some(Answer::Sent(place)) = operation.answer() else { continue };
        let start = replica.queues.get(&(place.topic, place.queue)).map_or(0, |bounds| bounds.0);
        if place.offset < start {
            continue;
        }
        let stored = replica.values.get(place).copied().flatten();
        if stored != Some(value) {
            let what = format!("node {node}: {value} was acknowledged at {place}: {stored:?}");
            findings.violated("lost-on-node", what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::scenes::{Scene, checks, place, value};
    use super::*;

    fn replica(node: usize, counts: &[u32]) -> Replica {
        let values = counts.iter().zip(0..).map(|(count, at)| (place(at), Some(value(*count))));
        Replica {
            node,
            applied: Some(9),
            units_hash: Some(1),
            queues: BTreeMap::from([((0, 0), (0, counts.len() as u64))]),
            values: values.collect(),
            ..Replica::default()
        }
    }

    fn history() -> History {
        Scene::default().sent(1, 0, (0, 5)).sent(2, 1, (6, 9)).history
    }

    fn look(replicas: &[Replica]) -> Findings {
        check(&history(), replicas, true)
    }

    #[test]
    fn equal_replicas_with_all_that_was_told_are_fine() {
        assert_eq!(look(&[replica(0, &[1, 2]), replica(1, &[1, 2])]).verdict(), Verdict::True);
        assert_eq!(look(&[]).verdict(), Verdict::Unknown);
        let behind = Replica { applied: Some(8), ..replica(1, &[1, 2]) };
        assert_eq!(look(&[replica(0, &[1, 2]), behind]).verdict(), Verdict::Unknown);
    }

    #[test]
    fn differences_are_seen() {
        let good = || replica(0, &[1, 2]);
        let state = Replica { state_hash: 3, ..replica(1, &[1, 2]) };
        assert_eq!(checks(&look(&[good(), state])), ["state-equal"]);
        let units = Replica { units_hash: Some(2), ..replica(1, &[1, 2]) };
        assert_eq!(checks(&look(&[good(), units])), ["units-equal"]);
        let mut other = replica(1, &[1, 2]);
        other.values.insert(place(1), Some(value(3)));
        assert_eq!(checks(&look(&[good(), other])), ["content-equal", "lost-on-node"]);
        let mut bounds = replica(1, &[1, 2]);
        bounds.queues.insert((0, 1), (0, 0));
        assert_eq!(checks(&look(&[good(), bounds])), ["bounds-equal"]);
    }

    #[test]
    fn holes_rubbish_and_copies_are_seen() {
        let mut hole = replica(0, &[1, 2, 3]);
        hole.values.remove(&place(2));
        assert_eq!(checks(&look(&[hole])), ["dense"]);
        let mut rubbish = replica(0, &[1, 2, 3]);
        rubbish.values.insert(place(2), None);
        assert_eq!(checks(&look(&[rubbish])), ["corrupt-record"]);
        assert_eq!(checks(&look(&[replica(0, &[1, 2, 1])])), ["stored-once"]);
        assert_eq!(checks(&look(&[replica(0, &[1])])), ["lost-on-node"]);
        let behind = Replica { lag: BTreeMap::from([(0, 2)]), ..replica(0, &[1, 2]) };
        assert_eq!(checks(&look(&[behind])), ["lag-after-drain"]);
    }
}
