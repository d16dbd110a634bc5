//! Putting back what a disk has lost, from the other members, before this replica takes part again
//! (rule R16). Until it is done it answers no vote and takes no entry.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use crate::base::{LogIndex, NodeId, Term};
use crate::commit_log::{self, CommitLog, Frame, Identity, IdentityError, ReadError, Vote};
use crate::env::Env;
use crate::raft::Options;
use crate::raft::opening::open_machine;
use crate::raft::options::Member;
use crate::raft::peer_service::read_frames;
use crate::raft::peers::{Channels, Lane, Peers};
use crate::raft::types::{Entry, decode_membership, members_of};
use crate::wire::raftmq as wire;

/// Pause before members that did not help are asked again.
const ROUND: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(10);
/// How often progress, or whom this node waits for, is said.
const SAY: Duration = Duration::from_secs(1);
/// Bytes of frames asked for at once.
const PART: u32 = 1 << 20;

/// Why a replica cannot be repaired.
#[derive(Debug, thiserror::Error)]
pub enum RefillError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "there is no identity in the directory of node {node}: it cannot say to the others who it \
         is. Start under a new node id with an empty directory and replace node {node} by it"
    )]
    NoIdentity { node: NodeId },
    #[error("the log cannot be opened: {0}")]
    Log(#[from] commit_log::OpenError),
    #[error("what was fetched from node {node} cannot be used: {source}")]
    Fill { node: NodeId, source: commit_log::FillError },
    #[error("the node is alone: nobody has what is lost here")]
    Alone,
    #[error(
        "the logs of all other members begin behind entry {from}, which is lost here: start under a \
         new node id with an empty directory and replace this node by it"
    )]
    Gone { from: LogIndex },
    #[error("what nobody is known to have agreed on cannot be cut: {0}")]
    Cut(#[from] commit_log::TruncateError),
    #[error("the log cannot be written: {0}")]
    Io(#[from] std::io::Error),
    #[error("what was fetched cannot be appended: {0}")]
    Append(#[from] commit_log::AppendError),
}

/// Whether an error of opening a replica is one that [`refill`] can mend.
pub(crate) fn is_mendable(error: &commit_log::OpenError) -> bool {
    use commit_log::OpenError;
    match error {
        OpenError::Rot(_) | OpenError::Unfilled | OpenError::Doubtful | OpenError::Vote(_) => true,
        OpenError::SmallFile(_) | OpenError::Io { .. } | OpenError::SegmentBytes { .. } => false,
    }
}

/// Waits for members where it must, for as long as it takes.
pub async fn refill(env: &Env, options: &Options) -> Result<(), RefillError> {
    let dir = options.dir.join("log");
    let node = options.node;
    let identity = Identity::load(&*env.disk, &options.dir)?;
    let identity = identity.ok_or(RefillError::NoIdentity { node })?;
    let members = known_members(env, options);
    if members.is_empty() {
        let whole = !commit_log::vote_is_damaged(&*env.disk, &dir)?
            && commit_log::survey(&*env.disk, &dir)?.is_none()
            && !commit_log::is_unfilled(&*env.disk, &dir);
        return if whole {
            Ok(commit_log::note_whole(&*env.disk, &dir)?)
        } else {
            Err(RefillError::Alone)
        };
    }
    let channels = Arc::new(Channels::new(options.net.clone()));
    let peers = Peers::new(identity.cluster, options.group, node, channels);
    let asking = Asking { peers, options, members, said: Instant::now() };
    asking.mend(env, &dir).await
}

/// The other members as the newest state here knows them, or as they are configured.
fn known_members(env: &Env, options: &Options) -> Vec<Member> {
    let machine = open_machine(env, options).ok();
    let membership = machine.as_ref().and_then(|machine| machine.state().membership());
    let membership = membership.and_then(|(_, _, bytes)| decode_membership(bytes).ok());
    let members = membership.map_or_else(|| options.members.clone(), |known| members_of(&known));
    members.into_iter().filter(|member| member.node != options.node).collect()
}

struct Asking<'a> {
    peers: Peers,
    options: &'a Options,
    /// All others.
    members: Vec<Member>,
    said: Instant,
}

/// Why a member did not give entries.
enum NoEntries {
    /// It does not have them any more.
    Purged,
    Other(String),
}

impl Asking<'_> {
    async fn mend(mut self, env: &Env, dir: &Path) -> Result<(), RefillError> {
        let disk = &*env.disk;
        if commit_log::vote_is_damaged(disk, dir)? {
            let vote = self.safe_vote().await;
            tracing::warn!(term = %vote.term, "the vote was damaged; this node votes behind the term");
            commit_log::replace_vote(disk, dir, vote)?;
        }
        while let Some(hole) = commit_log::survey(disk, dir)? {
            tracing::error!(damage = %hole.damage, from = %hole.from, through = ?hole.through,
                "the log is damaged; it is put back from other members");
            match hole.through {
                Some(through) => {
                    let (node, frames) = self.fetch_range(hole.from, through).await?;
                    let filled = hole.fill(disk, dir, &frames);
                    filled.map_err(|source| RefillError::Fill { node, source })?;
                    tracing::info!(%node, entries = frames.len(), "the hole is filled");
                }
                None => hole.cut(disk, dir)?,
            }
        }
        if commit_log::is_unfilled(disk, dir) {
            self.append_end(env, dir).await?;
        }
        Ok(commit_log::note_whole(disk, dir)?)
    }

    /// Fetches behind the end at least as far as a leader was when this began: whatever this
    /// replica has acknowledged lies before. What is here and not known to be committed may differ
    /// from what the group has agreed on since, so it is fetched again.
    async fn append_end(&mut self, env: &Env, dir: &Path) -> Result<(), RefillError> {
        let (log, flusher) = CommitLog::open_unfilled(env.clone(), dir, self.options.log)?;
        let bounds = log.bounds();
        let purged = bounds.purged.map(|(index, _)| index);
        let agreed = log.committed().map(|(index, _)| index).max(purged);
        if bounds.last.map(|(last, _)| last) > agreed {
            log.truncate_after(agreed)?;
        }
        let mut next = agreed.map_or(LogIndex::ZERO, LogIndex::next);
        let (mut leader, mut needed) = self.reach().await;
        while next <= needed {
            let Some((_, frames)) = self.try_fetch(leader, next, needed).await? else {
                // The last entries of a leader that is gone may never be committed.
                sleep(ROUND).await;
                (leader, needed) = self.reach().await;
                continue;
            };
            next = frames.last().map_or(next, |last| last.index.next());
            log.append(frames, Box::new(|_| {}))?;
            while flusher.step() {}
            self.say(next, needed);
        }
        while flusher.step() {}
        let flushed = log.bounds().flushed;
        assert!(flushed.is_none_or(|flushed| flushed.next() >= next), "what was fetched is synced");
        tracing::info!(through = %needed, "the log's end is put back");
        Ok(())
    }

    /// How far a leader that a majority has confirmed is: to the end of its log, since it may still
    /// count what this replica once acknowledged and has lost.
    async fn reach(&mut self) -> (NodeId, LogIndex) {
        let (leader, index) = self.read_index().await;
        let member = self.members.iter().find(|member| member.node == leader).cloned();
        let member = member.expect("a member answered");
        let vitals = self.vitals_of(&member).await;
        let last = vitals.entries.checked_sub(1).map(LogIndex::new);
        (leader, last.map_or(index, |last| index.max(last)))
    }

    fn say(&mut self, at: LogIndex, of: LogIndex) {
        if self.said.elapsed() >= SAY {
            self.said = Instant::now();
            tracing::info!(entry = %at, %of, "putting the log back");
        }
    }

    async fn fetch_range(
        &mut self,
        from: LogIndex,
        through: LogIndex,
    ) -> Result<(NodeId, Vec<Frame>), RefillError> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut who = self.options.node;
        let mut next = from;
        while next <= through {
            let Some((node, more)) = self.try_fetch(who, next, through).await? else {
                sleep(ROUND).await;
                continue;
            };
            next = more.last().map_or(next, |last| last.index.next());
            who = node;
            frames.extend(more);
            self.say(next, through);
        }
        Ok((who, frames))
    }

    /// Some entries from `from` on that a member knows to be committed; `first` is asked first.
    async fn try_fetch(
        &mut self,
        first: NodeId,
        from: LogIndex,
        through: LogIndex,
    ) -> Result<Option<(NodeId, Vec<Frame>)>, RefillError> {
        let mut members = self.members.clone();
        members.sort_by_key(|member| (member.node != first, member.node));
        let mut purged = 0;
        for member in &members {
            match self.fetch_from(member, from, through).await {
                Ok(frames) => return Ok(Some((member.node, frames))),
                Err(NoEntries::Purged) => purged += 1,
                Err(NoEntries::Other(reason)) => self.waiting(member, &reason),
            }
        }
        if purged == members.len() { Err(RefillError::Gone { from }) } else { Ok(None) }
    }

    fn waiting(&mut self, member: &Member, reason: &str) {
        if self.said.elapsed() >= SAY {
            self.said = Instant::now();
            tracing::warn!(node = %member.node, reason, "waiting for members that can help");
        }
    }

    async fn fetch_from(
        &self,
        member: &Member,
        from: LogIndex,
        through: LogIndex,
    ) -> Result<Vec<Frame>, NoEntries> {
        let other = |status: Status| match status.code() {
            tonic::Code::OutOfRange => NoEntries::Purged,
            _ => NoEntries::Other(status.message().to_owned()),
        };
        let request =
            wire::FetchRequest { from: from.get(), through: through.get(), bytes_max: PART };
        let client = self.peers.client(member.node, &member.peer, Lane::State);
        let mut client = client.map_err(other)?;
        let request = self.peers.request(member.node, request);
        let answer = timeout(ANSWER, client.fetch(request)).await;
        let answer = answer.map_err(|_| NoEntries::Other("no answer in time".to_owned()))?;
        let answer = answer.map_err(other)?.into_inner();
        let entries = read_frames(answer.frames, from).map_err(other)?;
        let frames: Vec<Frame> = entries.into_iter().map(Entry::into_frame).collect();
        if frames.is_empty() {
            let text = format!("it does not have entry {from} as a committed one");
            return Err(NoEntries::Other(text));
        }
        assert!(frames.iter().all(|frame| frame.seal.is_some()), "decoded frames are sealed");
        Ok(frames)
    }

    /// How far the leader is, which a majority confirmed after this node's restart.
    async fn read_index(&mut self) -> (NodeId, LogIndex) {
        use wire::read_index_answer::Outcome;
        let members = self.members.clone();
        loop {
            for member in &members {
                let asked = async {
                    let client = self.peers.client(member.node, &member.peer, Lane::Ask);
                    let mut client = client.map_err(|status| status.message().to_owned())?;
                    let request = self.peers.request(member.node, wire::ReadIndexRequest {});
                    let answer = timeout(ANSWER, client.read_index(request)).await;
                    let answer = answer.map_err(|_| "no answer in time".to_owned())?;
                    answer.map_err(|status| status.message().to_owned())
                };
                match asked.await.map(|answer| answer.into_inner().outcome) {
                    Ok(Some(Outcome::Index(index))) => {
                        return (member.node, LogIndex::new(index));
                    }
                    Ok(Some(Outcome::Refused(reason))) | Err(reason) => {
                        self.waiting(member, &reason);
                    }
                    Ok(None) => self.waiting(member, "it answered nothing"),
                }
            }
            sleep(ROUND).await;
        }
    }

    /// A vote for nobody in the newest term that any member has. This node may have voted in that
    /// term, and in no later one: who stood for election in a term has it on its own disk.
    async fn safe_vote(&mut self) -> Vote {
        let members = self.members.clone();
        let mut term = Term::ZERO;
        for member in &members {
            term = term.max(Term::new(self.vitals_of(member).await.term));
        }
        Vote { term, node: NodeId::new(u64::MAX), committed: false }
    }

    /// Asks until it answers.
    async fn vitals_of(&mut self, member: &Member) -> wire::VitalsAnswer {
        loop {
            let asked = async {
                let client = self.peers.client(member.node, &member.peer, Lane::Pulse);
                let mut client = client.map_err(|status| status.message().to_owned())?;
                let request = self.peers.request(member.node, wire::VitalsRequest {});
                let answer = timeout(ANSWER, client.vitals(request)).await;
                let answer = answer.map_err(|_| "no answer in time".to_owned())?;
                answer.map_err(|status| status.message().to_owned())
            };
            match asked.await {
                Ok(answer) => return answer.into_inner(),
                Err(reason) => self.waiting(member, &reason),
            }
            sleep(ROUND).await;
        }
    }
}

/// The frames of `from..=through` that are in `log` and committed, as bytes.
pub(crate) fn committed_frames(
    log: &CommitLog,
    committed: Option<LogIndex>,
    request: &wire::FetchRequest,
) -> Result<Bytes, Status> {
    let from = LogIndex::new(request.from);
    let last = committed.map(|committed| committed.min(LogIndex::new(request.through)));
    let Some(last) = last.filter(|last| *last >= from) else { return Ok(Bytes::new()) };
    let max = usize::try_from(request.bytes_max.min(PART)).expect("a few megabytes");
    let frames = log.read(from, last.next(), max).map_err(|error| match error {
        ReadError::Purged { .. } => Status::out_of_range(error.to_string()),
        _ => Status::unavailable(error.to_string()),
    })?;
    let mut bytes = bytes::BytesMut::new();
    for frame in &frames {
        frame.encode(&mut bytes);
    }
    Ok(bytes.freeze())
}
