//! How a group comes into being, and how a node finds out that it already has.
//!
//! All members are in everybody's options. A node without an identity asks the others who they
//! are. If one of them has a log, this node had one too and lost it: it must not vote under its old
//! id, so it refuses to start. If all answer that they are new, the lowest id draws the cluster's
//! id, keeps it, tells everybody, and only when everybody has it on disk puts the first entry into
//! its own log. So whoever is killed at whatever moment, a restart goes on from what is on disk:
//!
//! | on disk          | the lowest id                          | another                        |
//! |------------------|----------------------------------------|--------------------------------|
//! | nothing          | asks all, then founds                  | waits to be told               |
//! | identity         | asks all; nobody has a log: founds     | waits for the leader's entries |
//! | identity and log | takes part                             | takes part                     |

use std::sync::Arc;

use futures::future::join_all;
use tokio::time::{Duration, Instant, timeout};
use tonic::Status;

use crate::base::{ClusterId, NodeId};
use crate::command::COMMAND_VERSION;
use crate::commit_log::Identity;
use crate::raft::group::Shared;
use crate::raft::options::Member;
use crate::raft::peers::Lane;
use crate::wire::raftmq as wire;

/// Pause between two rounds of questions.
const ROUND: Duration = Duration::from_millis(100);
/// One question may take so long.
const ANSWER: Duration = Duration::from_secs(1);
/// How often a node that waits for others says so.
const REMIND: Duration = Duration::from_secs(5);

/// Why a replica does not join its group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error(
        "node {node} has no data here, but node {witness} knows it as a member with data: its disk \
         was wiped or another directory is configured. It must not vote under its old id. Give it \
         the old directory again, or start it under a new node id and put that into the group \
         (replace node {node} by the new one)"
    )]
    Wiped { node: NodeId, witness: NodeId },
    #[error(
        "the log of node {node} is empty, but node {witness} has entries that only it can have \
         started: its log was lost. Start it under a new node id with an empty directory and \
         replace node {node} by it"
    )]
    LogLost { node: NodeId, witness: NodeId },
    #[error(
        "there is a log but no identity file in the directory of node {node}: a file was lost. \
         Bring it back, or start under a new node id with an empty directory and replace node \
         {node} by it"
    )]
    IdentityLost { node: NodeId },
    #[error("the group runs already and does not know node {node}: add it there first")]
    NotAMember { node: NodeId },
    #[error("node {node} does not join: {reason}")]
    Refused { node: NodeId, reason: String },
    #[error("the identity cannot be stored: {0}")]
    Store(String),
    #[error("raft does not start: {0}")]
    Raft(String),
    #[error("this replica was started before")]
    Again,
}

/// What the start goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) cluster: ClusterId,
    /// This node puts the first entry into the log.
    pub(crate) initialise: bool,
}

/// Who says hello, and whom it means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) group: u32,
}

/// Finds out which cluster this node belongs to; waits for the other members where it must.
pub(crate) async fn join(shared: &Arc<Shared>) -> Result<Joined, StartError> {
    let node = shared.options.node;
    let known = *shared.identity.lock();
    match known {
        None if shared.has_log() => Err(StartError::IdentityLost { node }),
        None => join_without_identity(shared).await,
        Some(cluster) if shared.has_log() || shared.options.founder() != node => {
            Ok(Joined { cluster, initialise: false })
        }
        Some(cluster) => found(shared, Some(cluster)).await,
    }
}

async fn join_without_identity(shared: &Arc<Shared>) -> Result<Joined, StartError> {
    let node = shared.options.node;
    if shared.options.founder() == node {
        return found(shared, None).await;
    }
    let mut adopted = shared.adopted.subscribe();
    let mut patience = Patience::new();
    loop {
        if let Some(cluster) = *adopted.borrow_and_update() {
            return Ok(Joined { cluster, initialise: false });
        }
        let answers = hello_all(shared).await;
        // Told meanwhile: then those who have a log by now had it after this node belonged.
        if adopted.borrow().is_some() {
            continue;
        }
        for (member, answer) in &answers {
            let Ok(answer) = answer else { continue };
            refuse_late(node, member, answer)?;
        }
        patience.remind(&answers, "waiting to be told the cluster");
        let _ = timeout(ROUND, adopted.changed()).await;
    }
}

/// A new node among members that have a log.
fn refuse_late(
    node: NodeId,
    member: &Member,
    answer: &wire::HelloAnswer,
) -> Result<(), StartError> {
    match (answer.initialised, answer.knows_caller) {
        (true, true) => Err(StartError::Wiped { node, witness: member.node }),
        (true, false) => Err(StartError::NotAMember { node }),
        (false, _) => Ok(()),
    }
}

/// The lowest id's part: everybody answers, nobody has a log, everybody adopts.
async fn found(shared: &Arc<Shared>, known: Option<ClusterId>) -> Result<Joined, StartError> {
    let node = shared.options.node;
    let mut patience = Patience::new();
    let answers = loop {
        let answers = hello_all(shared).await;
        for (member, answer) in &answers {
            let Ok(answer) = answer else { continue };
            match known {
                None => refuse_late(node, member, answer)?,
                Some(_) if answer.initialised => {
                    return Err(StartError::LogLost { node, witness: member.node });
                }
                Some(_) => {}
            }
        }
        if answers.iter().all(|(_, answer)| answer.is_ok()) {
            break answers;
        }
        patience.remind(&answers, "waiting for all members before the group is founded");
        tokio::time::sleep(ROUND).await;
    };
    let cluster = match known {
        Some(cluster) => cluster,
        None => choose_cluster(shared, &answers),
    };
    shared.keep_identity(cluster).map_err(StartError::Store)?;
    for member in shared.options.others() {
        adopt(shared, member, cluster).await?;
    }
    Ok(Joined { cluster, initialise: true })
}

/// A new id, or the one that an earlier attempt has told somebody already.
fn choose_cluster(
    shared: &Shared,
    answers: &[(Member, Result<wire::HelloAnswer, Status>)],
) -> ClusterId {
    let told = answers.iter().find_map(|(_, answer)| {
        let cluster = &answer.as_ref().ok()?.cluster;
        read_cluster(cluster)
    });
    told.unwrap_or_else(|| {
        let mut drawn = [0; 16];
        shared.env.entropy.fill(&mut drawn);
        ClusterId::new(u128::from_be_bytes(drawn))
    })
}

/// Asks until the member has it on its disk or says no.
async fn adopt(shared: &Shared, member: &Member, cluster: ClusterId) -> Result<(), StartError> {
    let request = wire::AdoptRequest {
        from: shared.options.node.get(),
        to: member.node.get(),
        group: shared.options.group.get(),
        cluster: cluster.get().to_be_bytes().to_vec().into(),
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

async fn hello_all(shared: &Shared) -> Vec<(Member, Result<wire::HelloAnswer, Status>)> {
    let asked = shared.options.others().map(async |member| {
        let request = wire::HelloRequest {
            from: shared.options.node.get(),
            to: member.node.get(),
            group: shared.options.group.get(),
        };
        let answer = call(shared, member, async |mut client| {
            client.hello(request).await.map(tonic::Response::into_inner)
        });
        (member.clone(), answer.await)
    });
    join_all(asked).await
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
struct Patience {
    since: Instant,
    said: Instant,
}

impl Patience {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, said: now }
    }

    fn due(&mut self) -> bool {
        let due = self.said.elapsed() >= REMIND;
        if due {
            self.said = Instant::now();
        }
        due
    }

    fn remind(&mut self, answers: &[(Member, Result<wire::HelloAnswer, Status>)], what: &str) {
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
}

fn read_cluster(bytes: &[u8]) -> Option<ClusterId> {
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    Some(ClusterId::new(u128::from_be_bytes(bytes)))
}

/// The answering side.
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

    pub(crate) fn hello(&self, caller: &Caller) -> Result<wire::HelloAnswer, Status> {
        self.check_caller(caller)?;
        let cluster = *self.identity.lock();
        let initialised = self.has_log();
        let from = NodeId::new(caller.from);
        Ok(wire::HelloAnswer {
            node: self.options.node.get(),
            group: self.options.group.get(),
            cluster: cluster
                .map(|cluster| cluster.get().to_be_bytes().to_vec())
                .unwrap_or_default()
                .into(),
            initialised,
            knows_caller: initialised && self.member(from).is_some(),
            command_version: u32::from(COMMAND_VERSION),
        })
    }

    /// The inner error is a refusal that the founder is told.
    pub(crate) fn adopt(
        &self,
        caller: &Caller,
        cluster: &[u8],
    ) -> Result<Result<(), String>, Status> {
        self.check_caller(caller)?;
        let cluster = read_cluster(cluster)
            .ok_or_else(|| Status::invalid_argument("a cluster id has 16 bytes"))?;
        let founder = self.options.founder();
        if NodeId::new(caller.from) != founder {
            return Ok(Err(format!("node {} may not found: {founder} does", caller.from)));
        }
        Ok(self.keep_identity(cluster))
    }

    /// Durable when it returns. A node belongs to one cluster for ever.
    pub(crate) fn keep_identity(&self, cluster: ClusterId) -> Result<(), String> {
        let mut identity = self.identity.lock();
        match *identity {
            Some(known) if known == cluster => return Ok(()),
            Some(known) => return Err(format!("it belongs to cluster {known} already")),
            None if self.has_log() => {
                return Err("it has a log but lost its identity file".to_owned());
            }
            None => {}
        }
        let Self { env, options, .. } = self;
        let kept = Identity { cluster, group: options.group, node: options.node };
        let stored = kept.store(&*env.disk, &options.dir);
        stored.map_err(|error| self.ending.because(&error).to_string())?;
        *identity = Some(cluster);
        drop(identity);
        self.adopted.send_replace(Some(cluster));
        Ok(())
    }
}
