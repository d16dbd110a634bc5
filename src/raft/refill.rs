//! Putting back what a disk has lost, from the other members, before this replica takes part again
//! (rule R16). Until it is done it answers no vote and takes no entry.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use crate::base::{LogIndex, NodeId, Term};
use crate::commit_log::{self, CommitLog, Frame, Identity, IdentityError, Vote};
use crate::env::Env;
use crate::raft::Options;
use crate::raft::options::Member;
use crate::raft::peer_service::read_frames;
use crate::raft::peers::{Channels, Lane, Peers};
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
    if options.others().next().is_none() {
        return Err(RefillError::Alone);
    }
    let channels = std::sync::Arc::new(Channels::new(options.net.clone()));
    let peers = Peers::new(identity.cluster, options.group, node, channels);
    let asking = Asking { peers, options, said: Instant::now() };
    asking.mend(env, &dir).await
}

struct Asking<'a> {
    peers: Peers,
    options: &'a Options,
    said: Instant,
}

impl Asking<'_> {
    async fn mend(mut self, env: &Env, dir: &std::path::Path) -> Result<(), RefillError> {
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
                    let (node, frames) = self.fetch_range(hole.from, through).await;
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
    /// replica has acknowledged lies before.
    async fn append_end(&mut self, env: &Env, dir: &std::path::Path) -> Result<(), RefillError> {
        let (leader, needed) = self.read_index().await;
        let (log, flusher) = CommitLog::open_unfilled(env.clone(), dir, self.options.log)?;
        let mut next = log.bounds().last.map_or(LogIndex::ZERO, |(last, _)| last.next());
        next = next.max(log.bounds().purged.map_or(LogIndex::ZERO, |(index, _)| index.next()));
        while next <= needed {
            let (_, frames) = self.fetch(leader, next, needed).await;
            let Some(last) = frames.last() else { continue };
            next = last.index.next();
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

    fn say(&mut self, at: LogIndex, of: LogIndex) {
        if self.said.elapsed() >= SAY {
            self.said = Instant::now();
            tracing::info!(entry = %at, %of, "putting the log back");
        }
    }

    async fn fetch_range(&mut self, from: LogIndex, through: LogIndex) -> (NodeId, Vec<Frame>) {
        let mut frames: Vec<Frame> = Vec::new();
        let mut who = self.options.node;
        let mut next = from;
        while next <= through {
            let (node, more) = self.fetch(self.options.node, next, through).await;
            let Some(last) = more.last() else { continue };
            next = last.index.next();
            who = node;
            frames.extend(more);
            self.say(next, through);
        }
        (who, frames)
    }

    /// Some entries from `from` on that a member knows to be committed; `first` is asked first.
    async fn fetch(
        &mut self,
        first: NodeId,
        from: LogIndex,
        through: LogIndex,
    ) -> (NodeId, Vec<Frame>) {
        let mut members: Vec<Member> = self.options.others().cloned().collect();
        members.sort_by_key(|member| (member.node != first, member.node));
        loop {
            for member in &members {
                match self.fetch_from(member, from, through).await {
                    Ok(frames) => return (member.node, frames),
                    Err(reason) => self.waiting(member, &reason),
                }
            }
            sleep(ROUND).await;
        }
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
    ) -> Result<Vec<Frame>, String> {
        let request =
            wire::FetchRequest { from: from.get(), through: through.get(), bytes_max: PART };
        let client = self.peers.client(member.node, &member.peer, Lane::State);
        let mut client = client.map_err(|status| status.message().to_owned())?;
        let request = self.peers.request(member.node, request);
        let answer = timeout(ANSWER, client.fetch(request)).await;
        let answer = answer.map_err(|_| "no answer in time".to_owned())?;
        let answer = answer.map_err(|status| status.message().to_owned())?.into_inner();
        let entries = read_frames(answer.frames, from);
        let entries = entries.map_err(|status| status.message().to_owned())?;
        let frames: Vec<Frame> = entries.into_iter().map(|entry| entry.into_frame()).collect();
        if frames.is_empty() {
            return Err(format!("it does not have entry {from} as a committed one"));
        }
        assert!(frames.iter().all(|frame| frame.seal.is_some()), "decoded frames are sealed");
        Ok(frames)
    }

    /// How far the leader is, which a majority confirmed after this node's restart.
    async fn read_index(&mut self) -> (NodeId, LogIndex) {
        use wire::read_index_answer::Outcome;
        let members: Vec<Member> = self.options.others().cloned().collect();
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
        let members: Vec<Member> = self.options.others().cloned().collect();
        let mut term = Term::ZERO;
        for member in &members {
            term = term.max(self.term_of(member).await);
        }
        Vote { term, node: NodeId::new(u64::MAX), committed: false }
    }

    /// Every member has to answer.
    async fn term_of(&mut self, member: &Member) -> Term {
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
                Ok(answer) => return Term::new(answer.into_inner().term),
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
) -> Result<Bytes, String> {
    let from = LogIndex::new(request.from);
    let last = committed.map(|committed| committed.min(LogIndex::new(request.through)));
    let Some(last) = last.filter(|last| *last >= from) else { return Ok(Bytes::new()) };
    let max = usize::try_from(request.bytes_max.min(PART)).expect("a few megabytes");
    let frames = log.read(from, last.next(), max).map_err(|error| error.to_string())?;
    let mut bytes = bytes::BytesMut::new();
    for frame in &frames {
        frame.encode(&mut bytes);
    }
    Ok(bytes.freeze())
}
