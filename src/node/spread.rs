//! Spreads the leaders of several broker groups over the nodes.
//!
//! A leader costs more than a follower, and a node serves sends from the groups it leads without a
//! way over the network. So a node that leads at least two groups more than another live one hands
//! one of them over. With one group nothing is ever moved.

use std::sync::Arc;
use std::time::Duration;

use crate::base::{BrokerGroupId, NodeId};
use crate::raft::Group;

use super::hosted::Hosted;
use super::live::{Leaders, Live};

/// How often a node looks at what it leads.
const INTERVAL: Duration = Duration::from_secs(2);
/// Looks in a row that must say the same, so that a cluster which has just lost a node or won one
/// comes to rest first.
const LOOKS: u32 = 3;

/// Never ends.
pub(super) async fn keep(live: Arc<Live>, groups: Vec<(BrokerGroupId, Group)>) {
    let all: Vec<BrokerGroupId> = groups.iter().map(|(id, _)| *id).collect();
    let (mut wanted, mut looks) = (None, 0);
    loop {
        tokio::time::sleep(INTERVAL).await;
        let own = live.node();
        let led = groups.iter().filter(|(_, group)| group.leadership().borrow().serving);
        let moves =
            led.filter_map(|(id, _)| target(own, &live.leaders(*id, &all)).map(|to| (*id, to)));
        let next = moves.min();
        looks =
            if next.is_some() && next == wanted { looks + 1 } else { u32::from(next.is_some()) };
        wanted = next;
        if looks < LOOKS {
            continue;
        }
        looks = 0;
        let Some((id, to)) = wanted.take() else { continue };
        let Some((_, group)) = groups.iter().find(|(known, _)| *known == id) else { continue };
        match group.transfer_leadership_to(to).await {
            Ok(()) => tracing::info!(broker_group = %id, %to, "handed over, to spread leaders"),
            Err(error) => tracing::info!(broker_group = %id, %to, %error, "not handed over"),
        }
    }
}

pub(super) fn of(hosted: &[Hosted]) -> Vec<(BrokerGroupId, Group)> {
    hosted.iter().map(|hosted| (hosted.id, hosted.group.clone())).collect()
}

/// The member that leads least, if this node leads at least two groups more.
fn target(own: NodeId, leaders: &Leaders) -> Option<NodeId> {
    let count = |node: NodeId| leaders.candidates.iter().find(|(known, _)| *known == node);
    let (_, mine) = *count(own)?;
    let (least, theirs) = *leaders.candidates.iter().min_by_key(|(node, leads)| (*leads, *node))?;
    (mine >= theirs + 2).then_some(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target_of(own: u64, leads: &[(u64, usize)]) -> Option<u64> {
        let candidates = leads.iter().map(|(node, leads)| (NodeId::new(*node), *leads)).collect();
        target(NodeId::new(own), &Leaders { candidates }).map(NodeId::get)
    }

    #[test]
    fn one_group_stays_where_it_is() {
        assert_eq!(target_of(1, &[(1, 1), (2, 0), (3, 0)]), None);
    }

    #[test]
    fn who_leads_two_more_gives_to_who_leads_least() {
        assert_eq!(target_of(1, &[(1, 2), (2, 0), (3, 0)]), Some(2));
        assert_eq!(target_of(1, &[(1, 3), (2, 1), (3, 0)]), Some(3));
        assert_eq!(target_of(2, &[(1, 2), (2, 1), (3, 0)]), None, "node 1 gives, not node 2");
        assert_eq!(target_of(1, &[(2, 0), (3, 0)]), None, "it is about to leave");
    }
}
