//! The answering side of hello and adopt.

use std::sync::Arc;

use openraft::async_runtime::watch::WatchReceiver;
use tonic::Status;

use crate::base::{Durability, LogIndex, NodeId};
use crate::command::COMMAND_VERSION;
use crate::commit_log::Identity;
use crate::raft::bootstrap::Caller;
use crate::raft::bootstrap::ask::{self, Standing, read_cluster};
use crate::raft::group::{Running, Shared};
use crate::raft::members::{self, MemberChange};
use crate::raft::options::Member;
use crate::raft::types::{Membership, decode_membership};
use crate::wire::raftmq as wire;

/// What a membership makes of a node.
pub(crate) fn standing_in(membership: &Membership, node: NodeId) -> Standing {
    let node = node.get();
    if membership.voter_ids().any(|voter| voter == node) {
        Standing::Voter
    } else if membership.get_node(&node).is_some() {
        Standing::Learner
    } else {
        Standing::Stranger
    }
}

impl Shared {
    /// This replica took part in the group: it has entries, had some, or has voted.
    pub(crate) fn has_log(&self) -> bool {
        let bounds = self.log.bounds();
        bounds.last.is_some() || bounds.purged.is_some() || self.log.vote().is_some()
    }

    fn check_caller(&self, caller: &Caller) -> Result<(), Status> {
        let (me, group) = (self.options.node.get(), self.options.group.get());
        if caller.to != me || caller.group != group {
            return Err(Status::failed_precondition(format!(
                "the call is for node {} of broker group {}, but this is node {me} of {group}; \
                 check peer addresses",
                caller.to, caller.group
            )));
        }
        Ok(())
    }

    pub(crate) async fn hello(&self, caller: &Caller) -> Result<wire::HelloAnswer, Status> {
        self.check_caller(caller)?;
        let identity = *self.identity.lock();
        let initialised = self.has_log();
        let from = NodeId::new(caller.from);
        let known = self.known(from).filter(|_| initialised);
        let Known { standing, committed, had_log, membership } = known.unwrap_or_default();
        // Last, so that the leader it vouches for is the one that all above was read from.
        let certain = match self.running().filter(|_| committed) {
            Some(running) => running.leads() && running.read_index().await.is_ok(),
            None => false,
        };
        let role = match standing {
            Standing::Stranger => wire::Role::None,
            Standing::Learner => wire::Role::Learner,
            Standing::Voter => wire::Role::Voter,
        };
        Ok(wire::HelloAnswer {
            node: self.options.node.get(),
            group: self.options.group.get(),
            cluster: identity
                .map(|identity| identity.cluster.get().to_be_bytes().to_vec())
                .unwrap_or_default()
                .into(),
            initialised,
            knows_caller: standing != Standing::Stranger,
            command_version: u32::from(COMMAND_VERSION),
            role: role.into(),
            certain,
            caller_had_log: had_log,
            membership_index: membership.map(LogIndex::get),
            durability: u32::from(self.durability().number()),
        })
    }

    /// What the log here says of a node. What only an entry says that is not committed may be
    /// taken back; so of two standings the one that allows less to an empty disk counts, and it
    /// counts as not committed.
    fn known(&self, node: NodeId) -> Option<Known> {
        let running = self.running()?;
        let applied = {
            let machine = self.machine.read();
            let (index, _, bytes) = machine.state().membership()?;
            (index, decode_membership(bytes).ok()?)
        };
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let effective = metrics.membership_config.membership();
        let [now, soon] = [&applied.1, effective].map(|members| standing_in(members, node));
        let standing = match (now, soon) {
            (Standing::Voter, _) | (_, Standing::Voter) => Standing::Voter,
            (Standing::Learner, _) | (_, Standing::Learner) => Standing::Learner,
            (Standing::Stranger, Standing::Stranger) => Standing::Stranger,
        };
        let matched = metrics.replication.as_ref().and_then(|all| all.get(&node.get()));
        Some(Known {
            standing,
            committed: now == soon,
            had_log: matched.is_some_and(Option::is_some),
            membership: Some(applied.0),
        })
    }

    /// The inner error is a refusal that the founder is told.
    pub(crate) fn adopt(
        &self,
        caller: &Caller,
        cluster: &[u8],
        durability: u32,
    ) -> Result<Result<(), String>, Status> {
        self.check_caller(caller)?;
        let cluster = read_cluster(cluster)
            .ok_or_else(|| Status::invalid_argument("a cluster id has 16 bytes"))?;
        let durability = u8::try_from(durability).ok().and_then(Durability::of_number);
        let durability = durability
            .ok_or_else(|| Status::invalid_argument("that durability is not known here"))?;
        let founder = self.options.founder();
        if NodeId::new(caller.from) != founder {
            return Ok(Err(format!("node {} may not found: {founder} does", caller.from)));
        }
        let (group, node) = (self.options.group, self.options.node);
        let identity = Identity { cluster, group, node, durability, joined: None };
        Ok(self.keep_identity(identity))
    }

    /// Durable when it returns. A node belongs to one cluster for ever.
    pub(crate) fn keep_identity(&self, offered: Identity) -> Result<(), String> {
        let mut identity = self.identity.lock();
        match *identity {
            Some(known) if known.cluster == offered.cluster => return Ok(()),
            Some(known) => return Err(format!("it belongs to cluster {} already", known.cluster)),
            None if self.has_log() => {
                return Err("it has a log but lost its identity file".to_owned());
            }
            None => {}
        }
        let configured = self.options.durability;
        if let Some(configured) = configured.filter(|mode| *mode != offered.durability) {
            return Err(format!(
                "its configuration says {configured}, but the broker group is {}; correct or \
                 remove broker.durability there",
                offered.durability
            ));
        }
        let Self { env, options, .. } = self;
        let stored = offered.store(&*env.disk, &options.dir);
        stored.map_err(|error| self.ending.because(&error).to_string())?;
        *identity = Some(offered);
        drop(identity);
        self.adopted.send_replace(Some(offered));
        Ok(())
    }

    /// What the broker group was created with, or would be by this node.
    pub(crate) fn durability(&self) -> Durability {
        let kept = self.identity.lock().map(|identity| identity.durability);
        kept.or(self.options.durability).unwrap_or_default()
    }

    /// Whether this replica may vote and stand for election: its log has reached the entry that
    /// took it in. Before that, old entries may name its id among the voters.
    pub(crate) fn has_voice(&self) -> bool {
        let joined = self.identity.lock().and_then(|identity| identity.joined);
        let bounds = self.log.bounds();
        let reached = bounds.last.max(bounds.purged).map(|(index, _)| index);
        joined.is_none() || reached >= joined
    }
}

struct Known {
    standing: Standing,
    committed: bool,
    had_log: bool,
    membership: Option<LogIndex>,
}

impl Default for Known {
    fn default() -> Self {
        Self { standing: Standing::Stranger, committed: false, had_log: false, membership: None }
    }
}

impl Running {
    pub(crate) fn leads(&self) -> bool {
        self.raft.server_metrics().borrow_watched().state == openraft::ServerState::Leader
    }
}

/// An announcement is believed after its node was met where it says it is.
pub(crate) async fn moved(
    shared: Arc<Shared>,
    node: NodeId,
    address: wire::AnnounceRequest,
) -> Result<(), Status> {
    let wire::AnnounceRequest { peer, grpc } = address;
    let member = Member { node, peer, grpc };
    let known = shared.member(node).ok_or_else(|| {
        Status::failed_precondition(format!("node {node} is no member of this broker group"))
    })?;
    if known.peer != member.peer {
        shared.channels.moved(node, &known.peer, &member.peer);
    }
    let running = shared.running().ok_or_else(|| Status::unavailable("not started"))?;
    if running.leads() && known != member {
        let told = ask::hello(&shared, &member).await?;
        if told.cluster != Some(running.cluster) {
            let text = format!("whoever answers at {} is of another cluster", member.peer);
            return Err(Status::failed_precondition(text));
        }
        let change = MemberChange::Move(member);
        let changed = members::change(&shared, change).await;
        changed.map_err(|error| Status::unavailable(error.to_string()))?;
    }
    Ok(())
}
