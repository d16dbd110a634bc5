//! The asking side: what the others say of themselves and of this node.

use std::sync::Arc;

use futures::future::join_all;
use tokio::time::{Duration, Instant, timeout};
use tonic::Status;

use crate::base::{ClusterId, Durability, LogIndex};
use crate::commit_log::Identity;
use crate::raft::bootstrap::{ROUND, StartError};
use crate::raft::group::Shared;
use crate::raft::options::Member;
use crate::raft::peers::Lane;
use crate::wire::raftmq as wire;

/// One question may take so long.
const ANSWER: Duration = Duration::from_secs(1);
/// How often a node that waits for others says so.
const REMIND: Duration = Duration::from_secs(5);

/// What the answering node takes the caller for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Stranger,
    Learner,
    Voter,
}

/// One node's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) cluster: Option<ClusterId>,
    /// It has entries, had some, or has voted.
    pub(crate) initialised: bool,
    pub(crate) standing: Standing,
    /// It leads, and the standing is committed.
    pub(crate) certain: bool,
    /// The caller has acknowledged entries to it.
    pub(crate) had_log: bool,
    pub(crate) membership: Option<LogIndex>,
    pub(crate) durability: Durability,
}

pub(crate) type Answer = (Member, Result<Told, Status>);

fn told(answer: &wire::HelloAnswer) -> Result<Told, Status> {
    let durability = u8::try_from(answer.durability).ok().and_then(Durability::of_number);
    Ok(Told {
        cluster: read_cluster(&answer.cluster),
        initialised: answer.initialised,
        standing: match answer.role() {
            wire::Role::None => Standing::Stranger,
            wire::Role::Learner => Standing::Learner,
            wire::Role::Voter => Standing::Voter,
        },
        certain: answer.certain,
        had_log: answer.caller_had_log,
        membership: answer.membership_index.map(LogIndex::new),
        durability: durability.ok_or_else(|| {
            let text = format!("durability {} is not known here", answer.durability);
            Status::failed_precondition(text)
        })?,
    })
}

/// Asks these nodes at once, this one left out.
pub(crate) async fn hello_all(shared: &Shared, members: &[Member]) -> Vec<Answer> {
    let others = members.iter().filter(|member| member.node != shared.options.node);
    join_all(others.map(async |member| (member.clone(), hello(shared, member).await))).await
}

pub(crate) async fn hello(shared: &Shared, member: &Member) -> Result<Told, Status> {
    let request = wire::HelloRequest {
        from: shared.options.node.get(),
        to: member.node.get(),
        group: shared.options.group.get(),
    };
    let answer = call(shared, member, async |mut client| {
        client.hello(request).await.map(tonic::Response::into_inner)
    });
    told(&answer.await?)
}

/// Asks until the member has the group's identity on its disk or says no.
pub(super) async fn adopt(
    shared: &Shared,
    member: &Member,
    identity: &Identity,
) -> Result<(), StartError> {
    let request = wire::AdoptRequest {
        from: shared.options.node.get(),
        to: member.node.get(),
        group: shared.options.group.get(),
        cluster: identity.cluster.get().to_be_bytes().to_vec().into(),
        durability: u32::from(identity.durability.number()),
    };
    let mut patience = Patience::new();
    loop {
        let answer = call(shared, member, async |mut client| {
            client.adopt(request.clone()).await.map(tonic::Response::into_inner)
        });
        match answer.await {
            Ok(answer) if answer.refusal.is_empty() => return Ok(()),
            Ok(answer) => {
                return Err(StartError::Refused { node: member.node, reason: answer.refusal });
            }
            Err(status) => patience.remind_one(member, &status),
        }
        tokio::time::sleep(ROUND).await;
    }
}

/// Tells one member where this node is reached now.
pub(crate) async fn announce(shared: &Shared, to: &Member, own: &Member) -> Result<(), Status> {
    let running = shared.running().ok_or_else(|| Status::unavailable("not started"))?;
    let message = wire::AnnounceRequest { peer: own.peer.clone(), grpc: own.grpc.clone() };
    let request = running.peers.request(to.node, message);
    call(shared, to, async |mut client| client.announce(request).await.map(|_| ())).await
}

type PeerClient = wire::peer_client::PeerClient<tonic::transport::Channel>;

async fn call<T>(
    shared: &Shared,
    member: &Member,
    ask: impl AsyncFnOnce(PeerClient) -> Result<T, Status>,
) -> Result<T, Status> {
    let client = shared.channels.client(member.node, &member.peer, Lane::Ask)?;
    let answer = timeout(ANSWER, ask(client)).await;
    answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))
}

/// Says now and then whom this node waits for.
pub(super) struct Patience {
    since: Instant,
    said: Option<Instant>,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), said: None }
    }

    fn due(&mut self) -> bool {
        let due = self.said.unwrap_or(self.since).elapsed() >= REMIND;
        if due {
            self.said = Some(Instant::now());
        }
        due
    }

    pub(super) fn remind(&mut self, answers: &[Answer], what: &str) {
        if !self.due() {
            return;
        }
        for (member, answer) in answers {
            if let Err(status) = answer {
                let (node, peer, waited) = (member.node, &member.peer, self.since.elapsed());
                tracing::warn!(%node, peer, ?waited, reason = status.message(), "{what}");
            }
        }
    }

    fn remind_one(&mut self, member: &Member, status: &Status) {
        if self.due() {
            let (node, peer, waited) = (member.node, &member.peer, self.since.elapsed());
            let reason = status.message();
            tracing::warn!(%node, peer, ?waited, reason, "waiting for a member to join");
        }
    }

    /// The first time at once: whoever starts a new node looks at its log for this.
    pub(super) fn remind_of(&mut self, shared: &Arc<Shared>, why: &str) {
        if self.said.is_none() || self.due() {
            self.said = Some(Instant::now());
            let (node, broker_group) = (shared.options.node, shared.options.group);
            tracing::warn!(%node, %broker_group, waited = ?self.since.elapsed(), "{why}");
        }
    }
}

pub(super) fn read_cluster(bytes: &[u8]) -> Option<ClusterId> {
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    Some(ClusterId::new(u128::from_be_bytes(bytes)))
}
