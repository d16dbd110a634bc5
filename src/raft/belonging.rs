//! Whether this replica still belongs to its group, and where the others find it.
//!
//! A node that was taken out hears nothing any more: what removed it may never have reached it. So
//! one that hears no leader asks the others, and believes only a leader that a majority has just
//! confirmed. A node that was started at another address tells the others until the log has it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio::time::{Duration, sleep};

use crate::base::NodeId;
use crate::raft::bootstrap::{Standing, announce, hello_all};
use crate::raft::group::{Group, Role, Running, Shared};
use crate::raft::members::{self, ChangeError, MemberChange};
use crate::raft::options::Member;

/// How often this is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What this replica is to its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Belonging {
    /// It has not found out yet.
    Starting,
    /// The group does not know it yet, or not as what it could start as.
    Waiting {
        why: String,
    },
    Member,
    /// The group went on without it.
    Removed,
}

impl Group {
    pub fn belonging(&self) -> watch::Receiver<Belonging> {
        self.shared().belonging.subscribe()
    }
}

impl Shared {
    /// A leader called.
    pub(crate) fn hear(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }
}

/// Keeps the watch true until the replica ends.
pub(crate) async fn watch(shared: Arc<Shared>) {
    let Some(running) = shared.running() else { return };
    let mut ending = shared.ending.watch();
    let mut silent = 0;
    while ending.borrow_and_update().is_none() {
        let heard = shared.heard.swap(false, Ordering::Relaxed);
        silent = if heard || running.leads() { 0 } else { silent + 1 };
        if silent == 0 {
            turn(&shared, Belonging::Member);
        } else if silent > 1 {
            // The first round without a call may have begun just behind one.
            ask(&shared).await;
        }
        tell_progress(&shared);
        tell(&shared, running).await;
        settle(&shared, running).await;
        tokio::select! {
            () = sleep(LOOK) => {}
            _ = ending.changed() => {}
        }
    }
}

fn turn(shared: &Shared, now: Belonging) {
    shared.belonging.send_if_modified(|known| {
        let changed = *known != now;
        if changed && now == Belonging::Removed {
            let (node, broker_group) = (shared.options.node, shared.options.group);
            tracing::warn!(
                %node, %broker_group,
                "the broker group does not know this node any more: it was removed. Stop it; its \
                 data is not needed"
            );
        }
        *known = now;
        changed
    });
}

async fn ask(shared: &Shared) {
    let answers = hello_all(shared, &shared.members()).await;
    let told = answers.into_iter().filter_map(|(_, told)| told.ok());
    let sure = told.filter(|told| told.certain).map(|told| told.standing).next();
    match sure {
        Some(Standing::Stranger) => turn(shared, Belonging::Removed),
        Some(Standing::Learner | Standing::Voter) => turn(shared, Belonging::Member),
        // Nobody knows better at the moment.
        None => {}
    }
}

/// A replica that is this far behind says each second how far it is.
const BEHIND: u64 = 10_000;

fn tell_progress(shared: &Shared) {
    let status = shared.status();
    let Some(goal) = status.group_committed else { return };
    let has = status.applied.map_or(0, |index| index.next().get());
    let behind = goal.next().get().saturating_sub(has);
    let learns = status.role == Role::Learner && behind > 0;
    if learns || behind > BEHIND {
        let (node, broker_group) = (shared.options.node, shared.options.group);
        tracing::info!(%node, %broker_group, has, of = goal.next().get(), behind, "catching up");
    }
}

/// Tells where this node is, while the log says something else, or nothing yet: one that was stopped
/// before its first entry came is waited for where it was.
async fn tell(shared: &Arc<Shared>, running: &Running) {
    let own = shared.options.own();
    let known = shared.roster();
    match known.member(own.node) {
        Some(listed) if listed == own => return,
        Some(listed) => tracing::info!(
            node = %own.node, peer = own.peer, grpc = own.grpc, old_peer = listed.peer,
            old_grpc = listed.grpc, "this node moved; the broker group is told"
        ),
        None if known.members.is_empty() => {}
        // It was taken out.
        None => return,
    }
    if running.leads() {
        match members::change(shared, MemberChange::Move(own.clone())).await {
            Ok(()) | Err(ChangeError::UnderWay | ChangeError::NotLeader) => {}
            Err(error) => tracing::warn!(%error, "the new address is not in the log yet"),
        }
        return;
    }
    for member in places(&known.members, &shared.options.members, own.node) {
        if let Err(status) = announce(shared, member, own).await {
            let (node, peer) = (member.node, &member.peer);
            tracing::debug!(%node, peer, reason = status.message(), "not told of the new address");
        }
    }
}

/// Where the others are: by the log, and by the configuration, which may know of their own moves.
fn places<'a>(logged: &'a [Member], configured: &'a [Member], own: NodeId) -> Vec<&'a Member> {
    let mut places: Vec<&Member> = logged.iter().filter(|member| member.node != own).collect();
    let differs = |member: &&Member| {
        let moved = |known: &Member| known.node == member.node && known.peer != member.peer;
        logged.is_empty() || logged.iter().any(moved)
    };
    places.extend(configured.iter().filter(|member| member.node != own).filter(differs));
    places
}

/// A leader that ended between the two entries of a change leaves both majorities in force, which
/// would need more nodes than either.
async fn settle(shared: &Arc<Shared>, running: &Running) {
    if !running.leads() || !running.half_changed() {
        return;
    }
    match members::change(shared, MemberChange::Settle).await {
        Ok(()) | Err(ChangeError::UnderWay | ChangeError::NotLeader) => {}
        Err(error) => tracing::warn!(%error, "a change of the members is still half done"),
    }
}
