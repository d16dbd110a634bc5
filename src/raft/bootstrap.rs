//! How a group comes into being, how a node finds out that it already has, and how it gets in.
//!
//! A node without an identity asks the nodes in its options who they are. If all answer that they
//! are new, the lowest id draws the cluster's id, keeps it, tells everybody, and only when
//! everybody has it on disk puts the first entry into its own log. So whoever is killed at whatever
//! moment, a restart goes on from what is on disk:
//!
//! | on disk          | the lowest id                          | another                        |
//! |------------------|----------------------------------------|--------------------------------|
//! | nothing          | asks all, then founds                  | waits to be told               |
//! | identity         | asks all; nobody has a log: founds     | waits for the leader's entries |
//! | identity and log | takes part                             | takes part                     |
//!
//! If one of them has a log, the group runs already and nobody founds. A node that it knows as a
//! voter had a log too and lost it: it must not vote under its old id, so it refuses to start. One
//! that it does not know waits until an operator has added it. One that its leader knows as a
//! learner keeps the cluster's id and starts with an empty log. It has no voice before its log
//! reaches the entry that took it in ([`Shared::has_voice`]): older entries may name its id among
//! the voters of a time when another disk had it.

mod answer;
mod ask;

use std::sync::Arc;

use tokio::time::{Duration, timeout};

use crate::base::{ClusterId, Durability, Mutant, NodeId};
use crate::commit_log::Identity;
use crate::raft::belonging::Belonging;
use crate::raft::group::Shared;

pub(crate) use answer::moved;
pub(crate) use ask::{Answer, Standing, announce, hello_all};
use ask::{Patience, Told, adopt};

/// Pause between two rounds of questions.
const ROUND: Duration = Duration::from_millis(100);

/// Why a replica does not join its group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error(
        "node {node} has no data here, but node {witness} knows it as a voter: its disk was wiped \
         or another directory is configured. It must not vote under its old id. Give it the old \
         directory again, or start it under a new node id and put that in its place: raftmq \
         cluster replace-node --old {node} --new ID --peer HOST:PORT --grpc HOST:PORT"
    )]
    Wiped { node: NodeId, witness: NodeId },
    #[error(
        "node {node} is a learner that had entries, as its leader, node {witness}, knows, but they \
         are gone from its directory. Take it out, raftmq cluster remove-node --node {node}, and \
         add it again, best under a new node id"
    )]
    LearnerLost { node: NodeId, witness: NodeId },
    #[error(
        "the log of node {node} is empty, but node {witness} has entries that only it can have \
         started: its log was lost. Start it under a new node id with an empty directory and \
         replace node {node} by it: raftmq cluster replace-node --old {node} --new ID --peer \
         HOST:PORT --grpc HOST:PORT"
    )]
    LogLost { node: NodeId, witness: NodeId },
    #[error(
        "there is a log but no identity file in the directory of node {node}: a file was lost. \
         Bring it back, or start under a new node id with an empty directory and replace node \
         {node} by it: raftmq cluster replace-node --old {node} --new ID --peer HOST:PORT --grpc \
         HOST:PORT"
    )]
    IdentityLost { node: NodeId },
    #[error(
        "the configuration says durability {configured}, but the broker group was created with \
         {stored}, which cannot be changed; correct or remove broker.durability"
    )]
    OtherDurability { configured: Durability, stored: Durability },
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
    pub(crate) identity: Identity,
    /// This node puts the first entry into the log.
    pub(crate) initialise: bool,
}

impl Joined {
    fn part_of(identity: Identity) -> Self {
        Self { identity, initialise: false }
    }
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
        Some(identity) if shared.has_log() => Ok(Joined::part_of(identity)),
        Some(identity) if identity.joined.is_some() => start_as_learner(shared, identity).await,
        Some(identity) if shared.options.founder() != node => Ok(Joined::part_of(identity)),
        Some(identity) => found_again(shared, identity).await,
    }
}

async fn join_without_identity(shared: &Arc<Shared>) -> Result<Joined, StartError> {
    let node = shared.options.node;
    let mut adopted = shared.adopted.subscribe();
    let mut patience = Patience::new();
    loop {
        if let Some(identity) = *adopted.borrow_and_update() {
            return Ok(Joined::part_of(identity));
        }
        let answers = hello_all(shared, &shared.options.members).await;
        // Told meanwhile: then those who have a log by now had it after this node belonged.
        if adopted.borrow().is_some() {
            continue;
        }
        if Mutant::WipedNodeVotes.is_on()
            && let Some(identity) = as_if_nothing_happened(shared, &answers)
        {
            keep(shared, identity)?;
            continue;
        }
        refuse_wiped(node, &answers)?;
        if told(&answers).any(|(_, told)| told.initialised) {
            match place(shared, &answers)? {
                // Keeping it is as good as being told.
                Some(identity) => keep(shared, identity)?,
                None => wait_to_be_added(shared, &mut patience),
            }
        } else if shared.options.founder() == node && everybody(&answers) {
            return found(shared, choose(shared, &answers)).await;
        } else if shared.options.founder() == node {
            patience.remind(&answers, "waiting for all members before the group is founded");
        } else {
            patience.remind(&answers, "waiting to be told the cluster");
        }
        let _ = timeout(ROUND, adopted.changed()).await;
    }
}

fn told(answers: &[Answer]) -> impl Iterator<Item = (NodeId, &Told)> {
    answers.iter().filter_map(|(member, told)| Some((member.node, told.as_ref().ok()?)))
}

fn everybody(answers: &[Answer]) -> bool {
    answers.iter().all(|(_, answer)| answer.is_ok())
}

/// A voter with nothing on its disk. One that says so is enough: refusing does no harm.
fn refuse_wiped(node: NodeId, answers: &[Answer]) -> Result<(), StartError> {
    let voter = told(answers).find(|(_, told)| told.standing == Standing::Voter);
    voter.map_or(Ok(()), |(witness, _)| Err(StartError::Wiped { node, witness }))
}

/// What a [`Mutant`] takes for its own.
fn as_if_nothing_happened(shared: &Shared, answers: &[Answer]) -> Option<Identity> {
    let (node, group) = (shared.options.node, shared.options.group);
    let (_, told) = told(answers).find(|(_, told)| told.standing == Standing::Voter)?;
    let (cluster, durability) = (told.cluster?, told.durability);
    Some(Identity { cluster, group, node, durability, joined: None })
}

/// What the leader says of this node, if it is a learner there.
fn learner(answers: &[Answer]) -> Option<(NodeId, &Told)> {
    told(answers).find(|(_, told)| told.certain && told.standing == Standing::Learner)
}

/// The identity of this node as a learner, once the group's leader knows it as one.
fn place(shared: &Shared, answers: &[Answer]) -> Result<Option<Identity>, StartError> {
    let (node, group) = (shared.options.node, shared.options.group);
    let Some((witness, told)) = learner(answers) else { return Ok(None) };
    if told.had_log {
        return Err(StartError::LearnerLost { node, witness });
    }
    let (Some(cluster), Some(joined)) = (told.cluster, told.membership) else { return Ok(None) };
    let durability = told.durability;
    if let Some(configured) = shared.options.durability.filter(|mode| *mode != durability) {
        return Err(StartError::OtherDurability { configured, stored: durability });
    }
    Ok(Some(Identity { cluster, group, node, durability, joined: Some(joined) }))
}

fn wait_to_be_added(shared: &Arc<Shared>, patience: &mut Patience) {
    let own = shared.options.own();
    let why = format!(
        "the broker group runs already and does not know this node; add it there: raftmq cluster \
         add-node --node {} --peer {} --grpc {}",
        own.node, own.peer, own.grpc
    );
    patience.remind_of(shared, &why);
    shared.belonging.send_replace(Belonging::Waiting { why });
}

/// A learner that was stopped before its first entry came.
async fn start_as_learner(shared: &Arc<Shared>, identity: Identity) -> Result<Joined, StartError> {
    let node = shared.options.node;
    let mut patience = Patience::new();
    loop {
        let answers = hello_all(shared, &shared.options.members).await;
        if let Some((witness, _)) =
            told(&answers).find(|(_, told)| told.standing == Standing::Voter)
        {
            return Err(StartError::LogLost { node, witness });
        }
        match learner(&answers) {
            // With another durability an acknowledged entry may be gone.
            Some((witness, told))
                if told.had_log && identity.durability == Durability::MajorityFsync =>
            {
                return Err(StartError::LearnerLost { node, witness });
            }
            Some(_) => return Ok(Joined::part_of(identity)),
            None if everybody(&answers) => wait_to_be_added(shared, &mut patience),
            None => patience.remind(&answers, "waiting for the leader"),
        }
        tokio::time::sleep(ROUND).await;
    }
}

/// The lowest id was stopped between keeping the identity and the first entry.
async fn found_again(shared: &Arc<Shared>, identity: Identity) -> Result<Joined, StartError> {
    let node = shared.options.node;
    let mut patience = Patience::new();
    loop {
        let answers = hello_all(shared, &shared.options.members).await;
        if let Some((witness, _)) = told(&answers).find(|(_, told)| told.initialised) {
            return Err(StartError::LogLost { node, witness });
        }
        if everybody(&answers) {
            return found(shared, identity).await;
        }
        patience.remind(&answers, "waiting for all members before the group is founded");
        tokio::time::sleep(ROUND).await;
    }
}

/// Everybody has answered and nobody has a log: everybody adopts.
async fn found(shared: &Arc<Shared>, identity: Identity) -> Result<Joined, StartError> {
    keep(shared, identity)?;
    for member in shared.options.others() {
        adopt(shared, member, &identity).await?;
    }
    Ok(Joined { identity, initialise: true })
}

fn keep(shared: &Shared, identity: Identity) -> Result<(), StartError> {
    shared.keep_identity(identity).map_err(StartError::Store)
}

/// A new cluster, or the one that an earlier attempt has told somebody already.
fn choose(shared: &Shared, answers: &[Answer]) -> Identity {
    let earlier =
        told(answers).find_map(|(_, told)| told.cluster.map(|cluster| (cluster, told.durability)));
    let (cluster, durability) = earlier.unwrap_or_else(|| {
        let mut drawn = [0; 16];
        shared.env.entropy.fill(&mut drawn);
        (ClusterId::new(u128::from_be_bytes(drawn)), shared.options.durability.unwrap_or_default())
    });
    let (group, node) = (shared.options.group, shared.options.node);
    Identity { cluster, group, node, durability, joined: None }
}
