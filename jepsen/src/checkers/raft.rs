//! What must hold of a Raft group at every moment, fed with looks at its replicas.
//!
//! One leader of each term. What is applied is committed, what is committed is in the log. A
//! committed entry is on the disks of a majority when it is first seen, is the same everywhere for
//! ever, and every later leader has it. Votes and terms never go back, not over a restart either.

use std::collections::BTreeMap;

use super::Violation;

/// One replica at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) life: u64,
    pub(crate) leads: bool,
    pub(crate) serves: bool,
    pub(crate) term: u64,
    /// The last vote on disk: term, for whom, and whether it is of a leader.
    pub(crate) vote: Option<(u64, u64, bool)>,
    pub(crate) first: Option<u64>,
    pub(crate) last: Option<u64>,
    pub(crate) committed: Option<u64>,
    pub(crate) applied: Option<u64>,
    pub(crate) flushed: Option<u64>,
}

/// What tells entries apart: term and checksum.
pub(crate) type EntryMark = (u64, u32);

#[derive(Debug, Default)]
struct Replica {
    look: Look,
    /// Committed entries below this were compared in this life.
    compared: u64,
    /// Durable as far as was ever claimed, over all lives.
    durable: Option<u64>,
    vote: Option<(u64, u64, bool)>,
    /// It lost its disk, and with it the right to take part under its id.
    wiped: bool,
}

/// All that was seen of one group.
#[derive(Debug)]
pub(crate) struct RaftChecker {
    replicas: Vec<Replica>,
    leaders: BTreeMap<u64, usize>,
    committed: BTreeMap<u64, EntryMark>,
    pub(crate) violations: Vec<Violation>,
    pub(crate) terms: u64,
}

impl RaftChecker {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            replicas: (0..nodes).map(|_| Replica::default()).collect(),
            leaders: BTreeMap::new(),
            committed: BTreeMap::new(),
            violations: Vec::new(),
            terms: 0,
        }
    }

    fn violated(&mut self, check: &'static str, what: String) {
        self.violations.push(Violation { check, what });
    }

    pub(crate) fn last_committed(&self) -> Option<u64> {
        self.committed.last_key_value().map(|(index, _)| *index)
    }

    /// What a replica says it has on disk. All replicas are asked before one of them is looked at,
    /// since a follower's sync is part of a leader's commit.
    pub(crate) fn flushed(&mut self, node: usize, flushed: Option<u64>) {
        let replica = &mut self.replicas[node];
        replica.durable = replica.durable.max(flushed);
    }

    /// A replica lost its disk.
    pub(crate) fn wiped(&mut self, node: usize) {
        // What it had confirmed before may still be told as committed.
        let durable = self.replicas[node].durable;
        self.replicas[node] = Replica { wiped: true, durable, ..Replica::default() };
    }

    /// Takes a look at one replica. `entry` reads its log; `None` is an entry that it does not
    /// hold any more.
    pub(crate) fn observe(
        &mut self,
        node: usize,
        look: Look,
        mut entry: impl FnMut(u64) -> Option<EntryMark>,
    ) {
        if self.replicas[node].wiped {
            if look.last.is_some() || look.vote.is_some() {
                let what = format!("node {node} lost its disk, and then: {look:?}");
                self.violated("wiped-takes-part", what);
                self.replicas[node].wiped = false;
            }
            return;
        }
        let before = self.replicas[node].look;
        if before.life != look.life {
            self.replicas[node].compared = 0;
        } else {
            self.check_monotonic(node, before, look);
        }
        self.check_order(node, look);
        self.check_vote(node, look);
        self.replicas[node].look = look;
        self.flushed(node, look.flushed);
        self.check_leader(node, look, &mut entry);
        self.check_committed(node, look, &mut entry);
    }

    fn check_monotonic(&mut self, node: usize, before: Look, look: Look) {
        let pairs = [
            ("term", Some(before.term), Some(look.term)),
            ("committed", before.committed, look.committed),
            ("applied", before.applied, look.applied),
        ];
        for (what, was, is) in pairs {
            if is < was {
                self.violated("monotonic", format!("{what} of node {node}: {was:?}, then {is:?}"));
            }
        }
    }

    fn check_order(&mut self, node: usize, look: Look) {
        // What is applied counts as committed here, whatever the replica's metrics say so far: they
        // follow later, and much later in a program that stands still.
        let Look { applied, committed, last, flushed, .. } = look;
        if applied > last || committed > last || flushed > last {
            self.violated("within-log", format!("node {node}: {look:?}"));
        }
    }

    /// A vote on disk outlives everything.
    fn check_vote(&mut self, node: usize, look: Look) {
        let known = self.replicas[node].vote;
        let term = |vote: Option<(u64, u64, bool)>| vote.map(|(term, ..)| term);
        let went_back = term(look.vote) < term(known);
        let changed = match (known, look.vote) {
            // Who voted and then learns that another was elected notes that one.
            (Some((before, voted, was)), Some((now, votes, elected))) => {
                before == now && voted != votes && (was || !elected)
            }
            _ => false,
        };
        if went_back || changed {
            let what = format!("node {node} voted {known:?}, and then {:?}", look.vote);
            self.violated("vote-kept", what);
        }
        self.replicas[node].vote = look.vote;
    }

    fn check_leader(
        &mut self,
        node: usize,
        look: Look,
        entry: &mut impl FnMut(u64) -> Option<EntryMark>,
    ) {
        if !look.leads {
            return;
        }
        match self.leaders.insert(look.term, node) {
            None => {
                self.terms += 1;
                // All that was committed before it was elected is in its log.
                let Some((index, mark)) = self.committed.last_key_value() else { return };
                let (index, mark) = (*index, *mark);
                if mark.0 >= look.term {
                    return;
                }
                let has = entry(index);
                let purged = look.first.is_some_and(|first| index < first);
                // It is there, but cannot be read: rot.
                let unreadable = has.is_none() && look.last >= Some(index);
                if has != Some(mark) && !purged && !unreadable {
                    let term = look.term;
                    let what = format!(
                        "node {node} leads term {term}: its entry {index} is {has:?}, committed \
                         is {mark:?}"
                    );
                    self.violated("leader-complete", what);
                }
            }
            Some(other) if other != node => {
                let what = format!("nodes {other} and {node} lead term {}", look.term);
                self.violated("one-leader", what);
            }
            Some(_) => {}
        }
    }

    fn check_committed(
        &mut self,
        node: usize,
        look: Look,
        entry: &mut impl FnMut(u64) -> Option<EntryMark>,
    ) {
        let Some(to) = look.committed.max(look.applied).min(look.last) else { return };
        let from = self.replicas[node].compared.max(look.first.unwrap_or(0));
        for index in from..=to {
            let Some(mark) = entry(index) else { continue };
            match self.committed.get(&index) {
                None => {
                    self.committed.insert(index, mark);
                    self.check_quorum(index, node);
                }
                Some(known) if *known != mark => {
                    let what =
                        format!("entry {index} is {known:?}, but at node {node} it is {mark:?}");
                    self.violated("committed-same", what);
                }
                Some(_) => {}
            }
        }
        self.replicas[node].compared = self.replicas[node].compared.max(to + 1);
    }

    /// A majority said that it has the entry on disk.
    fn check_quorum(&mut self, index: u64, node: usize) {
        let durable = self.replicas.iter().filter(|replica| replica.durable >= Some(index));
        let durable = durable.count();
        if durable * 2 <= self.replicas.len() {
            let what = format!(
                "entry {index} is committed at node {node}, and on the disks of {durable} of {}",
                self.replicas.len()
            );
            self.violated("durable-quorum", what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(term: u64, committed: u64) -> Look {
        Look {
            life: 1,
            term,
            vote: Some((term, 1, true)),
            first: Some(0),
            last: Some(committed),
            committed: Some(committed),
            applied: Some(committed),
            flushed: Some(committed),
            ..Look::default()
        }
    }

    fn checks(checker: &RaftChecker) -> Vec<&'static str> {
        checker.violations.iter().map(|violation| violation.check).collect()
    }

    /// Two nodes have entries 0 to 5 of term 1, and one of them leads.
    fn healthy() -> RaftChecker {
        let mut checker = RaftChecker::new(3);
        let before = Look { committed: None, applied: None, ..look(1, 5) };
        checker.observe(1, before, |_| Some((1, 7)));
        checker.observe(0, Look { leads: true, ..look(1, 5) }, |_| Some((1, 7)));
        checker.observe(1, look(1, 5), |_| Some((1, 7)));
        checker
    }

    #[test]
    fn a_healthy_group_is_let_through() {
        let mut checker = healthy();
        checker.observe(2, Look { last: Some(2), ..look(1, 2) }, |_| Some((1, 7)));
        let later = Look { life: 2, leads: true, ..look(2, 5) };
        checker.observe(1, later, |_| Some((1, 7)));
        assert_eq!(checks(&checker), [""; 0]);
        assert_eq!(checker.last_committed(), Some(5));
    }

    #[test]
    fn two_leaders_of_a_term_are_seen() {
        let mut checker = healthy();
        checker.observe(1, Look { leads: true, ..look(1, 5) }, |_| Some((1, 7)));
        assert_eq!(checks(&checker), ["one-leader"]);
    }

    #[test]
    fn a_leader_without_a_committed_entry_is_seen() {
        let mut checker = healthy();
        let empty = Look { leads: true, last: None, ..look(2, 0) };
        let empty = Look { committed: None, applied: None, flushed: None, ..empty };
        checker.observe(2, empty, |_| None);
        assert_eq!(checks(&checker), ["leader-complete"]);
    }

    #[test]
    fn an_entry_that_changes_after_its_commit_is_seen() {
        let mut checker = healthy();
        checker.observe(2, look(1, 5), |index| Some((1, if index == 3 { 8 } else { 7 })));
        assert_eq!(checks(&checker), ["committed-same"]);
    }

    #[test]
    fn a_commit_without_a_majority_of_disks_is_seen() {
        let mut checker = RaftChecker::new(3);
        checker.observe(0, look(1, 0), |_| Some((1, 7)));
        assert_eq!(checks(&checker), ["durable-quorum"]);
    }

    #[test]
    fn a_vote_that_is_forgotten_or_changed_is_seen() {
        let mut checker = healthy();
        let forgot = Look { life: 2, vote: None, ..look(1, 5) };
        checker.observe(1, forgot, |_| Some((1, 7)));
        assert_eq!(checks(&checker), ["vote-kept"]);
        let mut checker = healthy();
        let elected = Look { vote: Some((2, 2, false)), ..look(2, 5) };
        checker.observe(1, elected, |_| Some((1, 7)));
        let elected = Look { vote: Some((2, 0, true)), ..look(2, 5) };
        checker.observe(1, elected, |_| Some((1, 7)));
        assert_eq!(checks(&checker), [""; 0]);
        let mut checker = healthy();
        let changed = Look { vote: Some((1, 2, false)), ..look(1, 5) };
        checker.observe(1, changed, |_| Some((1, 7)));
        assert_eq!(checks(&checker), ["vote-kept"]);
    }

    #[test]
    fn a_node_without_its_disk_that_takes_part_is_seen() {
        let mut checker = healthy();
        checker.wiped(1);
        checker.observe(1, Look { life: 2, ..Look::default() }, |_| None);
        assert_eq!(checks(&checker), [""; 0]);
        checker.observe(1, Look { life: 2, ..look(1, 5) }, |_| Some((1, 7)));
        assert_eq!(checks(&checker), ["wiped-takes-part"]);
    }

    #[test]
    fn numbers_that_go_back_within_a_life_are_seen() {
        let mut checker = healthy();
        let back = Look { applied: Some(4), committed: Some(4), ..look(1, 5) };
        checker.observe(1, back, |_| Some((1, 7)));
        assert_eq!(checks(&checker), ["monotonic", "monotonic"]);
    }

    #[test]
    fn an_applied_entry_behind_the_log_is_seen() {
        let mut checker = healthy();
        checker.observe(1, Look { last: Some(3), ..look(1, 5) }, |_| Some((1, 7)));
        assert_eq!(checks(&checker), ["within-log"]);
    }
}
