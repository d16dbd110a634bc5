//! Which nodes live: what this one tells the others, and what it heard of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::base::{BrokerGroupId, LogIndex, NodeId};
use crate::broker::{BrokerNode, Nodes};
use crate::config::Config;
use crate::env::Clock;
use crate::name_server::{EXPIRY, Registration, RouteTable, Standing};
use crate::raft::{Leadership, Status};

use super::broker_name;
use super::names::node;

/// The name server inside this node, with what it says of itself.
#[derive(Debug)]
pub(super) struct Live {
    clock: Arc<dyn Clock>,
    own: BrokerNode,
    table: Mutex<RouteTable>,
    leaving: AtomicBool,
}

impl Live {
    pub(super) fn new(config: &Config, clock: Arc<dyn Clock>) -> Self {
        let own = BrokerNode {
            node: config.node,
            name: broker_name(config),
            host: config.advertise.grpc.host().to_owned(),
            port: config.advertise.grpc.port(),
        };
        let table = Mutex::new(RouteTable::new(EXPIRY));
        Self { clock, own, table, leaving: AtomicBool::new(false) }
    }

    pub(super) fn node(&self) -> NodeId {
        self.own.node
    }

    /// What this node says of itself now.
    pub(super) fn registration(
        &self,
        group: BrokerGroupId,
        leadership: Leadership,
        status: &Status,
    ) -> Registration {
        Registration {
            node: self.own.node,
            said: u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX),
            name: self.own.name.clone(),
            host: self.own.host.clone(),
            port: self.own.port,
            group,
            term: leadership.term,
            standing: match leadership.serving {
                _ if self.is_leaving() => Standing::Leaves,
                true => Standing::Leads,
                false => Standing::Follows,
            },
            committed: count(status.committed),
        }
    }

    /// From now on this node says that it leaves.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Whether a node that is not about to leave was heard lately, this one aside.
    pub(super) fn somebody_stays(&self) -> bool {
        !self.others().is_empty()
    }

    fn others(&self) -> Vec<BrokerNode> {
        let now = self.clock.monotonic();
        let table = self.table.lock();
        let others = table
            .nodes(now)
            .into_iter()
            .filter(|told| told.node != self.own.node && told.standing != Standing::Leaves);
        others.map(node).collect()
    }

    pub(super) fn register(&self, registration: Registration) {
        let now = self.clock.monotonic();
        let mut table = self.table.lock();
        table.register(registration, now);
        table.expire(now);
    }

    /// How many entries the leader said were committed; `None` when it said nothing lately.
    pub(super) fn committed_by(&self, group: BrokerGroupId, leader: NodeId) -> Option<u64> {
        let now = self.clock.monotonic();
        let table = self.table.lock();
        let live = table.live(group, now);
        live.into_iter().find(|told| told.node == leader).map(|told| told.committed)
    }
}

/// Who could lead a group, and how many groups each of them leads already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaders {
    /// Live members of the group that are not about to leave, with the count.
    pub(super) candidates: Vec<(NodeId, usize)>,
}

impl Live {
    /// As far as was heard of these groups.
    pub(super) fn leaders(&self, group: BrokerGroupId, all: &[BrokerGroupId]) -> Leaders {
        let now = self.clock.monotonic();
        let table = self.table.lock();
        let leads = |node: NodeId| {
            let led = |group: &&BrokerGroupId| {
                table.leader(**group, now).is_some_and(|leader| leader.node == node)
            };
            all.iter().filter(led).count()
        };
        let live = table.live(group, now).into_iter();
        let stays = live.filter(|told| told.standing != Standing::Leaves);
        Leaders { candidates: stays.map(|told| (told.node, leads(told.node))).collect() }
    }
}

/// Entries from the first to `last`.
pub(super) fn count(last: Option<LogIndex>) -> u64 {
    last.map_or(0, |index| index.next().get())
}

impl Nodes for Live {
    fn live(&self) -> Vec<BrokerNode> {
        let mut nodes = self.others();
        // Whoever asks this node can reach it, whatever was heard.
        if nodes.is_empty() || !self.is_leaving() {
            nodes.push(self.own.clone());
        }
        nodes.sort_by_key(|node| node.node);
        nodes
    }
}

/// What stored records carry as their host: four bytes and a port, so a name becomes the address
/// that is bound, as far as that says something.
pub(super) fn store_host(config: &Config) -> SocketAddrV4 {
    let advertised = &config.advertise.grpc;
    let literal = advertised.host().parse::<Ipv4Addr>().ok();
    let bound = match config.listen.grpc.ip() {
        IpAddr::V4(ip) if !ip.is_unspecified() => Some(ip),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    };
    let ip = literal.or(bound).unwrap_or(Ipv4Addr::LOCALHOST);
    SocketAddrV4::new(ip, advertised.port())
}
