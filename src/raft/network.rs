//! openraft's calls to other replicas, over the peer port.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError,
    StreamAppendResult, TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::base::{LogIndex, Mutant, NodeId, Term};
use crate::commit_log::Vote;
use crate::raft::peers::{Lane, Peers};
use crate::raft::snapshot::Snapshot;
use crate::raft::types::{
    Address, Entry, EntryId, RaftVoteOf, Types, entry_id, from_raft_vote, index_of, term_of,
    to_raft_vote,
};
use crate::wire::raftmq as wire;

/// Append requests under way to one follower at a time; with at most 1 MiB each this also bounds
/// the memory that a slow follower takes.
const PIPELINE: usize = 16;
/// A link that was not used for so long is opened anew, before the other side closes it.
const LINK_AGE: Duration = Duration::from_secs(20);
/// Bytes of a state that one message carries.
const STATE_PART: usize = 1 << 20;

type RpcError = RPCError<Types>;

/// Makes the clients that openraft asks for.
pub(crate) struct Network {
    pub(crate) peers: Arc<Peers>,
    pub(crate) idle: Duration,
}

impl Network {
    fn client(&self, target: u64, address: &Address, lane: Lane) -> Client {
        Client {
            peers: self.peers.clone(),
            idle: self.idle,
            target: NodeId::new(target),
            address: address.peer.clone(),
            lane,
            link: None,
        }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, node: &Address) -> Client {
        self.client(target, node, Lane::Append)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Address) -> Client {
        self.client(target, node, Lane::Pulse)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Address) -> Client {
        self.client(target, node, Lane::State)
    }
}

/// Pause before a replica that cannot be reached is called again for appends.
const CALL_AGAIN: Duration = Duration::from_millis(100);

/// One replica seen from here, for one kind of traffic.
pub(crate) struct Client {
    peers: Arc<Peers>,
    idle: Duration,
    target: NodeId,
    address: String,
    lane: Lane,
    /// The append stream, kept open between openraft's sessions.
    link: Option<Link>,
}

struct Link {
    requests: mpsc::Sender<wire::AppendRequest>,
    answers: Streaming<wire::AppendAnswer>,
    used: Instant,
}

/// A session of appends on a link that goes back to the client when all is answered.
struct Session<'s, S> {
    slot: &'s mut Option<Link>,
    link: Link,
    input: Option<S>,
    /// The last entry of each request that is not answered yet.
    sent: VecDeque<Option<EntryId>>,
    idle: Duration,
    /// Since when nothing was answered although something is due.
    waiting: Instant,
}

enum Step {
    Answer(StreamAppendResult<Types>),
    Failed(RpcError),
    Over,
}

impl<S: Stream<Item = AppendEntriesRequest<Types>> + Unpin> Session<'_, S> {
    async fn step(&mut self) -> Step {
        loop {
            let more = self.sent.len() < PIPELINE;
            if self.input.is_none() && self.sent.is_empty() {
                return Step::Over;
            }
            tokio::select! {
                biased;
                answer = timeout_at(self.waiting + self.idle, self.link.answers.message()),
                    if !self.sent.is_empty() =>
                {
                    return self.answered(answer);
                }
                request = next(&mut self.input), if more && self.input.is_some() => {
                    let Some(request) = request else {
                        self.input = None;
                        continue;
                    };
                    if self.send(request).is_err() {
                        return Step::Failed(network_error(&"the append stream was closed"));
                    }
                    if Mutant::AckBeforeQuorum.is_on()
                        && let Some(last) = self.sent.pop_back()
                    {
                        return Step::Answer(Ok(last));
                    }
                }
            }
        }
    }

    fn send(&mut self, request: AppendEntriesRequest<Types>) -> Result<(), ()> {
        let last = request.entries.last().map(|entry| {
            let frame = entry.frame();
            entry_id(frame.index, frame.term)
        });
        if self.sent.is_empty() {
            self.waiting = Instant::now();
        }
        self.sent.push_back(last.or(request.prev_log_id));
        // There is room: the channel holds as many as may be under way.
        self.link.requests.try_send(append_request(&request)).map_err(|_| ())
    }

    fn answered(
        &mut self,
        answer: Result<Result<Option<wire::AppendAnswer>, Status>, tokio::time::error::Elapsed>,
    ) -> Step {
        let answer = match answer {
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => return Step::Failed(network_error(&"the append stream ended")),
            Ok(Err(status)) => return Step::Failed(unreachable(&status)),
            Err(_) => {
                let text = format!("no answer to an append for {:?}", self.idle);
                return Step::Failed(network_error(&text));
            }
        };
        let Some(last) = self.sent.pop_front() else {
            return Step::Failed(network_error(&"an answer without a request"));
        };
        self.waiting = Instant::now();
        self.link.used = self.waiting;
        match read_answer(answer) {
            Some(Ok(matched)) if matched <= last => Step::Answer(Ok(matched)),
            Some(Err(refusal)) => Step::Answer(Err(refusal)),
            _ => Step::Failed(network_error(&"an append answer that says nothing of its request")),
        }
    }
}

async fn next<S: Stream + Unpin>(input: &mut Option<S>) -> Option<S::Item> {
    match input {
        Some(input) => input.next().await,
        None => None,
    }
}

impl Client {
    async fn open_link(&self) -> Result<Link, RpcError> {
        let mut client = self.connect(self.lane)?;
        let (requests, outgoing) = mpsc::channel(PIPELINE);
        let request = self.peers.request(self.target, ReceiverStream::new(outgoing));
        let answer = within(self.idle, client.append(request)).await?;
        self.peers.meet(answer.metadata()).map_err(|error| unreachable(&error))?;
        Ok(Link { requests, answers: answer.into_inner(), used: Instant::now() })
    }

    fn connect(
        &self,
        lane: Lane,
    ) -> Result<wire::peer_client::PeerClient<tonic::transport::Channel>, RpcError> {
        self.peers.client(self.target, &self.address, lane).map_err(|error| unreachable(&error))
    }

    async fn ballot(
        &self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
        pre: bool,
    ) -> Result<VoteResponse<Types>, RpcError> {
        let mut client = self.connect(Lane::Pulse)?;
        let request = self.peers.request(
            self.target,
            wire::Ballot {
                vote: Some(write_vote(&rpc.vote)),
                last: rpc.last_log_id.as_ref().map(write_id),
                leadership_transfer: rpc.leadership_transfer,
            },
        );
        let answer = if pre {
            within(option.hard_ttl(), client.pre_vote(request)).await?
        } else {
            within(option.hard_ttl(), client.vote(request)).await?
        };
        self.peers.meet(answer.metadata()).map_err(|error| unreachable(&error))?;
        let answer = answer.into_inner();
        let vote = answer.vote.ok_or_else(|| network_error(&"an answer without a vote"))?;
        Ok(VoteResponse {
            vote: read_vote(&vote),
            vote_granted: answer.granted,
            last_log_id: answer.last.as_ref().map(read_id),
        })
    }
}

impl RaftNetworkV2<Types> for Client {
    type SnapshotData = Bytes;

    /// openraft streams; this is there for completeness and takes the same way.
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RpcError> {
        let input = Box::pin(futures::stream::once(async { rpc }));
        let mut answers = self.stream_append(input, option).await?;
        let answer = answers.next().await;
        let answer = answer.ok_or_else(|| network_error(&"the append stream ended"))??;
        Ok(match answer {
            Ok(matched) => AppendEntriesResponse::PartialSuccess(matched),
            Err(StreamAppendError::Conflict(_)) => AppendEntriesResponse::Conflict,
            Err(StreamAppendError::HigherVote(vote)) => AppendEntriesResponse::HigherVote(vote),
        })
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<Types>, RpcError>>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let kept = self.link.take().filter(|link| link.used.elapsed() < LINK_AGE);
            let link = match kept {
                Some(link) => link,
                None => match self.open_link().await {
                    Ok(link) => link,
                    Err(error) => {
                        // openraft pauses where `input` is read, which without a link nobody
                        // does: it would call again at once, thousands of times a second.
                        tokio::time::sleep(CALL_AGAIN).await;
                        return Err(error);
                    }
                },
            };
            let idle = self.idle;
            let slot = &mut self.link;
            let sent = VecDeque::with_capacity(PIPELINE);
            let waiting = Instant::now();
            let session = Session { slot, link, input: Some(input), sent, idle, waiting };
            let answers = futures::stream::unfold(Some(session), |session| async move {
                let mut session = session?;
                match session.step().await {
                    Step::Answer(Ok(matched)) => Some((Ok(Ok(matched)), Some(session))),
                    // The other side ends the stream behind a refusal, so the link is dropped.
                    Step::Answer(Err(refusal)) => Some((Ok(Err(refusal)), None)),
                    Step::Failed(error) => Some((Err(error), None)),
                    Step::Over => {
                        *session.slot = Some(session.link);
                        None
                    }
                }
            });
            let answers: BoxStream<'s, _> = Box::pin(answers);
            Ok(answers)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        self.ballot(rpc, option, false).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        self.ballot(rpc, option, true).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVoteOf,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let mut client = self.connect(Lane::State)?;
        let parts = futures::stream::iter(state_parts(&vote, snapshot));
        let call = client.install_state(self.peers.request(self.target, parts));
        let answer = tokio::select! {
            answer = within(option.hard_ttl(), call) => answer?,
            closed = cancel => return Err(closed.into()),
        };
        self.peers.meet(answer.metadata()).map_err(|error| unreachable(&error))?;
        let vote = answer.into_inner().vote;
        let vote = vote.ok_or_else(|| network_error(&"an answer without a vote"))?;
        Ok(SnapshotResponse::new(read_vote(&vote)))
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RpcError> {
        let mut client = self.connect(Lane::Pulse)?;
        let request = self.peers.request(
            self.target,
            wire::TransferLeaderRequest {
                from: Some(write_vote(rpc.from_leader())),
                to: *rpc.to_node_id(),
                last: rpc.last_log_id().map(write_id),
            },
        );
        let answer = within(option.hard_ttl(), client.transfer_leader(request)).await?;
        self.peers.meet(answer.metadata()).map_err(|error| unreachable(&error))?;
        let refusal = answer.into_inner().refusal;
        if refusal.is_empty() {
            return Ok(Ok(()));
        }
        tracing::info!(refusal, "the leadership was not taken over");
        let expected = rpc.last_log_id().copied();
        Ok(Err(TransferLeaderError::LogNotFlushed { expected, actual: None }))
    }
}

/// Every wait for another node ends.
async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, RpcError> {
    match timeout(limit, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(unreachable(&status)),
        Err(_) => Err(network_error(&format!("no answer for {limit:?}"))),
    }
}

/// Tried again after a pause.
fn unreachable(error: &(impl std::error::Error + 'static)) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(error))
}

/// Tried again soon.
fn network_error(text: &dyn fmt::Display) -> RpcError {
    RPCError::Network(NetworkError::from_string(text))
}

fn append_request(request: &AppendEntriesRequest<Types>) -> wire::AppendRequest {
    wire::AppendRequest {
        vote: Some(write_vote(&request.vote)),
        previous: request.prev_log_id.as_ref().map(write_id),
        committed: request.leader_commit.as_ref().map(write_id),
        frames: write_frames(&request.entries),
    }
}

/// Frames as they are in the log, checksum and all.
fn write_frames(entries: &[Entry]) -> Bytes {
    let len = entries.iter().map(|entry| entry.frame().encoded_len()).sum();
    let mut frames = BytesMut::with_capacity(len);
    for entry in entries {
        entry.frame().encode(&mut frames);
    }
    frames.freeze()
}

fn state_parts(vote: &RaftVoteOf, snapshot: Snapshot) -> Vec<wire::StatePart> {
    use wire::state_part::Part;
    let mut rest = snapshot.snapshot;
    let head = wire::StateHead { vote: Some(write_vote(vote)), size: rest.len() as u64 };
    let mut parts = vec![wire::StatePart { part: Some(Part::Head(head)) }];
    while !rest.is_empty() {
        let part = rest.split_to(rest.len().min(STATE_PART));
        parts.push(wire::StatePart { part: Some(Part::Bytes(part)) });
    }
    parts
}

fn read_answer(answer: wire::AppendAnswer) -> Option<StreamAppendResult<Types>> {
    use wire::append_answer::Outcome;
    Some(match answer.outcome? {
        Outcome::Matched(matched) => Ok(matched.last.as_ref().map(read_id)),
        Outcome::Conflict(at) => Err(StreamAppendError::Conflict(read_id(&at))),
        Outcome::Higher(vote) => Err(StreamAppendError::HigherVote(read_vote(&vote))),
    })
}

pub(crate) fn write_id(id: &EntryId) -> wire::EntryId {
    wire::EntryId { term: term_of(id).get(), index: index_of(id).get() }
}

pub(crate) fn read_id(id: &wire::EntryId) -> EntryId {
    entry_id(LogIndex::new(id.index), Term::new(id.term))
}

pub(crate) fn write_vote(vote: &RaftVoteOf) -> wire::RaftVote {
    let vote = from_raft_vote(vote);
    wire::RaftVote { term: vote.term.get(), node: vote.node.get(), committed: vote.committed }
}

pub(crate) fn read_vote(vote: &wire::RaftVote) -> RaftVoteOf {
    to_raft_vote(Vote {
        term: Term::new(vote.term),
        node: NodeId::new(vote.node),
        committed: vote.committed,
    })
}
