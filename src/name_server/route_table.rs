//! The table itself: register, expire, look up. Pure; time is passed in.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::{BrokerGroupId, NodeId, Term};

use super::registration::{Registration, Standing};

/// How long a registration counts: three times the interval at which nodes repeat it.
pub const EXPIRY: Duration = Duration::from_secs(3);

/// What one node heard of all nodes. `now` is the caller's monotonic clock, see
/// [`crate::env::Clock::monotonic`]; it must not go back between calls.
#[derive(Clone, Debug)]
pub struct RouteTable {
    expiry: Duration,
    heard: BTreeMap<(BrokerGroupId, NodeId), Heard>,
    leaders: BTreeMap<BrokerGroupId, Leader>,
}

#[derive(Clone, Debug)]
struct Heard {
    registration: Registration,
    at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leader {
    term: Term,
    node: NodeId,
}

impl RouteTable {
    pub fn new(expiry: Duration) -> Self {
        Self { expiry, heard: BTreeMap::new(), leaders: BTreeMap::new() }
    }

    /// Takes a registration in. One that was overtaken on its way by a later one of the same node
    /// is dropped, as long as the later one counts: a machine that starts again counts anew.
    pub fn register(&mut self, registration: Registration, now: Duration) {
        let Registration { node, said, group, term, standing, .. } = registration;
        let overtaken =
            |heard: &Heard| heard.registration.said > said && now < heard.at + self.expiry;
        if self.heard.get(&(group, node)).is_some_and(overtaken) {
            return;
        }
        self.note_leader(group, Leader { term, node }, standing == Standing::Leads);
        self.heard.insert((group, node), Heard { registration, at: now });
    }

    fn note_leader(&mut self, group: BrokerGroupId, said: Leader, leads: bool) {
        let known = self.leaders.get(&group).copied();
        if leads && known.is_none_or(|known| known.term <= said.term) {
            self.leaders.insert(group, said);
        }
        // It stepped down, and says so in the term in which it led or a later one.
        let stepped_down =
            |known: Leader| !leads && known.node == said.node && known.term <= said.term;
        if known.is_some_and(stepped_down) {
            self.leaders.remove(&group);
        }
    }

    /// The nodes of a group that were heard within the expiry, sorted by node, those that are
    /// about to leave included.
    pub fn live(&self, group: BrokerGroupId, now: Duration) -> Vec<&Registration> {
        let of_group = (group, NodeId::new(0))..=(group, NodeId::new(u64::MAX));
        let fresh = |heard: &&Heard| now < heard.at + self.expiry;
        self.heard.range(of_group).map(|(_, heard)| heard).filter(fresh).map(told).collect()
    }

    /// The nodes that were heard within the expiry, each once, sorted, with what it said of the
    /// first of its groups that does not leave, or else of its first group.
    pub fn nodes(&self, now: Duration) -> Vec<&Registration> {
        let mut nodes: BTreeMap<NodeId, &Registration> = BTreeMap::new();
        let fresh = self.heard.values().filter(|heard| now < heard.at + self.expiry).map(told);
        for registration in fresh {
            let known = nodes.entry(registration.node).or_insert(registration);
            if known.standing == Standing::Leaves {
                *known = registration;
            }
        }
        nodes.into_values().collect()
    }

    /// Who leads a group, as far as was heard: the highest term that a live node claimed.
    pub fn leader(&self, group: BrokerGroupId, now: Duration) -> Option<&Registration> {
        let leader = self.leaders.get(&group)?;
        self.live(group, now).into_iter().find(|told| told.node == leader.node)
    }

    /// Forgets what expired. Terms of leaders stay, so that an old one is still told apart.
    pub fn expire(&mut self, now: Duration) {
        let expiry = self.expiry;
        self.heard.retain(|_, heard| now < heard.at + expiry);
    }
}

fn told(heard: &Heard) -> &Registration {
    &heard.registration
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: BrokerGroupId = BrokerGroupId::new(0);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn says(node: u64, term: u64, leads: bool) -> Registration {
        Registration {
            node: NodeId::new(node),
            said: term,
            name: format!("broker-{node}"),
            host: "h".into(),
            port: 1,
            group: GROUP,
            term: Term::new(term),
            standing: if leads { Standing::Leads } else { Standing::Follows },
            committed: 0,
        }
    }

    fn live(table: &RouteTable, now: u64) -> Vec<u64> {
        table.live(GROUP, at(now)).iter().map(|told| told.node.get()).collect()
    }

    fn leader(table: &RouteTable, now: u64) -> Option<u64> {
        table.leader(GROUP, at(now)).map(|told| told.node.get())
    }

    #[test]
    fn a_node_is_live_until_it_was_silent_for_the_expiry() {
        let mut table = RouteTable::new(EXPIRY);
        table.register(says(2, 1, false), at(0));
        table.register(says(1, 1, true), at(1000));
        assert_eq!(live(&table, 2999), [1, 2]);
        assert_eq!(live(&table, 3000), [1]);
        table.register(says(2, 1, false), at(3500));
        assert_eq!(live(&table, 3500), [1, 2]);
        table.expire(at(4000));
        assert_eq!(live(&table, 0), [2], "what expired is gone, not only hidden");
    }

    #[test]
    fn a_node_of_several_groups_is_told_once() {
        let mut table = RouteTable::new(EXPIRY);
        let in_group = |group, standing| Registration {
            group: BrokerGroupId::new(group),
            standing,
            ..says(1, 1, false)
        };
        table.register(in_group(7, Standing::Leaves), at(0));
        table.register(in_group(8, Standing::Leads), at(0));
        table.register(says(2, 1, false), at(0));
        let told: Vec<_> =
            table.nodes(at(0)).iter().map(|told| (told.node.get(), told.standing)).collect();
        assert_eq!(told, [(1, Standing::Leads), (2, Standing::Follows)]);
        assert!(table.nodes(at(3000)).is_empty());
    }

    #[test]
    fn an_old_leader_never_replaces_a_newer_one() {
        let mut table = RouteTable::new(EXPIRY);
        table.register(says(1, 4, true), at(0));
        assert_eq!(leader(&table, 0), Some(1));
        table.register(says(2, 5, true), at(10));
        assert_eq!(leader(&table, 10), Some(2));
        table.register(says(1, 4, true), at(20));
        assert_eq!(leader(&table, 20), Some(2), "term 4 comes late");
        table.register(says(1, 6, true), at(30));
        assert_eq!(leader(&table, 30), Some(1));
    }

    #[test]
    fn an_old_term_stays_old_after_the_newer_leader_fell_silent() {
        let mut table = RouteTable::new(EXPIRY);
        table.register(says(2, 5, true), at(0));
        table.expire(at(5000));
        table.register(says(1, 4, true), at(5000));
        assert_eq!(leader(&table, 5000), None);
        assert_eq!(live(&table, 5000), [1], "it is a live node all the same");
    }

    #[test]
    fn a_leader_may_step_down_without_a_successor() {
        let mut table = RouteTable::new(EXPIRY);
        table.register(says(1, 4, true), at(0));
        table.register(says(1, 5, false), at(1));
        assert_eq!(leader(&table, 1), None);
    }

    #[test]
    fn what_was_overtaken_on_its_way_is_dropped() {
        let mut table = RouteTable::new(EXPIRY);
        table.register(says(1, 5, false), at(0));
        table.register(says(1, 4, true), at(1));
        assert_eq!(leader(&table, 1), None);
        // Its machine started again, and its clock with it.
        table.register(says(1, 3, false), at(4000));
        assert_eq!(live(&table, 4000), [1]);
    }
}
