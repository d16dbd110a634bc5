//! What other replicas call here.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::base::{BrokerGroupId, LogIndex, NodeId};
use crate::commit_log::Frame;
use crate::raft::bootstrap::{Caller, moved};
use crate::raft::group::{Group, Running, Shared};
use crate::raft::inflow::Inflow;
use crate::raft::network::{read_id, read_vote, write_id, write_vote};
use crate::raft::peers::{Handshake, HandshakeError, MESSAGE_MAX};
use crate::raft::propose::Outcome;
use crate::raft::refill::committed_frames;
use crate::raft::snapshot::{Contents, Snapshot};
use crate::raft::types::{Entry, Types, index_of};
use crate::wire::raftmq as wire;
use crate::wire::raftmq::peer_server::{Peer, PeerServer};

/// An append stream on which nothing comes for so long is ended; the other side opens a new one
/// before (network.rs, `LINK_AGE`).
const STREAM_IDLE: Duration = Duration::from_secs(60);
/// A state on its way in is given up when its next part does not come in this time.
const STATE_IDLE: Duration = Duration::from_secs(5);
/// A state from a peer is at most so large; more is not a state.
const STATE_MAX: u64 = 4 << 30;
/// No forwarded proposal waits longer, whatever the bytes say.
const PROPOSAL_MAX: Duration = Duration::from_secs(120);

/// What other replicas call, for all replicas of this node; to be served on its peer address.
pub fn peer_service(groups: &[Group]) -> Routes {
    let replicas = groups.iter().map(|group| group.shared().clone()).collect();
    let port = PeerServer::new(PeerPort { replicas })
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    Routes::new(port)
}

/// The peer port of one node.
struct PeerPort {
    replicas: Vec<Arc<Shared>>,
}

/// A call that was let in: the replica it is for, and who calls.
struct Met<'a> {
    shared: &'a Arc<Shared>,
    running: &'a Running,
    from: NodeId,
}

impl PeerPort {
    fn replica(&self, group: BrokerGroupId) -> Result<&Arc<Shared>, Status> {
        let found = self.replicas.iter().find(|shared| shared.options.group == group);
        found.ok_or_else(|| {
            let text = format!("this node takes no part in broker group {group}");
            Status::failed_precondition(text)
        })
    }

    /// Who calls whom, once that replica runs.
    fn meet(&self, metadata: &MetadataMap) -> Result<Met<'_>, Status> {
        let refused = |error: HandshakeError| Status::failed_precondition(error.to_string());
        let shared = self.replica(Handshake::read(metadata).map_err(refused)?.group)?;
        let running = shared.running().ok_or_else(|| {
            Status::unavailable("this node has not joined its group yet; try again")
        })?;
        let from = running.peers.meet(metadata).map_err(refused)?;
        Ok(Met { shared, running, from })
    }

    fn answer<T>(running: &Running, to: NodeId, message: T) -> Response<T> {
        let mut response = Response::new(message);
        running.peers.handshake(to).insert(response.metadata_mut());
        response
    }
}

type AnswerStream<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Peer for PeerPort {
    type AppendStream = AnswerStream<wire::AppendAnswer>;

    async fn append(
        &self,
        request: Request<Streaming<wire::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let Met { shared, running, from } = self.meet(request.metadata())?;
        let problem = Arc::new(Mutex::new(None));
        let input = append_requests(request.into_inner(), shared.clone(), problem.clone());
        let answers = running.raft.stream_append(input).map(|result| match result {
            Ok(result) => Ok(append_answer(result)),
            Err(fatal) => Err(Status::unavailable(fatal.to_string())),
        });
        let last = futures::stream::once(async move { problem.lock().take() });
        let last = last.filter_map(|problem| async { problem.map(Err) });
        let answers: Self::AppendStream = Box::pin(answers.chain(last));
        Ok(Self::answer(running, from, answers))
    }

    async fn vote(
        &self,
        request: Request<wire::Ballot>,
    ) -> Result<Response<wire::BallotAnswer>, Status> {
        let Met { shared, running, from } = self.meet(request.metadata())?;
        may_vote(shared)?;
        let answer = running.raft.vote(read_ballot(request.into_inner())?).await;
        let answer = answer.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Self::answer(running, from, ballot_answer(&answer)))
    }

    async fn pre_vote(
        &self,
        request: Request<wire::Ballot>,
    ) -> Result<Response<wire::BallotAnswer>, Status> {
        let Met { shared, running, from } = self.meet(request.metadata())?;
        may_vote(shared)?;
        let answer = running.raft.pre_vote(read_ballot(request.into_inner())?).await;
        let answer = answer.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Self::answer(running, from, ballot_answer(&answer)))
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Result<Response<wire::TransferLeaderAnswer>, Status> {
        let Met { shared, running, from } = self.meet(request.metadata())?;
        if shared.vitals.is_suspect() {
            let refusal = "its clock is far from the majority's".to_owned();
            return Ok(Self::answer(running, from, wire::TransferLeaderAnswer { refusal }));
        }
        let message = request.into_inner();
        let vote = message.from.ok_or_else(|| missing("from"))?;
        let last = message.last.as_ref().map(read_id);
        let call = TransferLeaderRequest::new(read_vote(&vote), message.to, last);
        let answer = running.raft.handle_transfer_leader(call).await;
        let answer = answer.map_err(|error| Status::unavailable(error.to_string()))?;
        let refusal = answer.err().map(|error| error.to_string()).unwrap_or_default();
        Ok(Self::answer(running, from, wire::TransferLeaderAnswer { refusal }))
    }

    async fn install_state(
        &self,
        request: Request<Streaming<wire::StatePart>>,
    ) -> Result<Response<wire::InstallStateAnswer>, Status> {
        let Met { running, from, .. } = self.meet(request.metadata())?;
        let (vote, snapshot) = receive_state(request.into_inner()).await?;
        let answer = running.raft.install_full_snapshot(read_vote(&vote), snapshot).await;
        let answer = answer.map_err(|error| Status::unavailable(error.to_string()))?;
        let vote = Some(write_vote(&answer.vote));
        Ok(Self::answer(running, from, wire::InstallStateAnswer { vote }))
    }

    async fn propose(
        &self,
        request: Request<wire::ProposeRequest>,
    ) -> Result<Response<wire::ProposeAnswer>, Status> {
        use wire::propose_answer::Outcome as Answer;
        let Met { shared, running, from } = self.meet(request.metadata())?;
        let wire::ProposeRequest { command, timeout_millis } = request.into_inner();
        let wait = Duration::from_millis(timeout_millis).min(PROPOSAL_MAX);
        let deadline = Instant::now() + wait;
        let answer = match shared.propose_for_peer(running, command, deadline).await {
            Outcome::Applied(reply) => Answer::Reply(reply.encode()),
            Outcome::Refused(reason) => Answer::Refused(reason),
            Outcome::Busy(busy) => Answer::Busy(wire::Busy {
                under_way_bytes: busy.under_way.get(),
                retry_after_millis: busy.retry_after.get(),
            }),
            Outcome::Full(full) => Answer::Full(wire::Full {
                room_bytes: full.room.get(),
                needed_bytes: full.needed.get(),
            }),
            Outcome::Unknown(reason) => Answer::Unknown(reason),
        };
        Ok(Self::answer(running, from, wire::ProposeAnswer { outcome: Some(answer) }))
    }

    async fn read_index(
        &self,
        request: Request<wire::ReadIndexRequest>,
    ) -> Result<Response<wire::ReadIndexAnswer>, Status> {
        use wire::read_index_answer::Outcome as Answer;
        let Met { shared, running, from } = self.meet(request.metadata())?;
        let answer = match shared.own_read_index(running).await {
            Ok(index) => Answer::Index(index.get()),
            Err(reason) => Answer::Refused(reason),
        };
        Ok(Self::answer(running, from, wire::ReadIndexAnswer { outcome: Some(answer) }))
    }

    async fn fetch(
        &self,
        request: Request<wire::FetchRequest>,
    ) -> Result<Response<wire::FetchAnswer>, Status> {
        let Met { shared, running, from } = self.meet(request.metadata())?;
        let committed = shared.committed();
        let frames = committed_frames(&shared.log, committed, request.get_ref());
        Ok(Self::answer(running, from, wire::FetchAnswer { frames: frames? }))
    }

    async fn vitals(
        &self,
        request: Request<wire::VitalsRequest>,
    ) -> Result<Response<wire::VitalsAnswer>, Status> {
        let Met { shared, running, from } = self.meet(request.metadata())?;
        let vitals = shared.vitals();
        let answer = wire::VitalsAnswer {
            wall_millis: vitals.wall.get(),
            room_bytes: vitals.room,
            sync_micros: vitals.sync_micros,
            entries: shared.log.bounds().last.map_or(0, |(last, _)| last.next().get()),
            term: shared.log.vote().map_or(0, |vote| vote.term.get()),
        };
        Ok(Self::answer(running, from, answer))
    }

    async fn ask(
        &self,
        request: Request<wire::AskRequest>,
    ) -> Result<Response<wire::AskAnswer>, Status> {
        let Met { shared, running, from } = self.meet(request.metadata())?;
        let answer = shared.asked.answer(from, request.into_inner().request).await;
        Ok(Self::answer(running, from, wire::AskAnswer { answer }))
    }

    async fn hello(
        &self,
        request: Request<wire::HelloRequest>,
    ) -> Result<Response<wire::HelloAnswer>, Status> {
        let wire::HelloRequest { from, to, group } = request.into_inner();
        let caller = Caller { from, to, group };
        self.replica(BrokerGroupId::new(group))?.hello(&caller).await.map(Response::new)
    }

    async fn adopt(
        &self,
        request: Request<wire::AdoptRequest>,
    ) -> Result<Response<wire::AdoptAnswer>, Status> {
        let wire::AdoptRequest { from, to, group, cluster, durability } = request.into_inner();
        let caller = Caller { from, to, group };
        let replica = self.replica(BrokerGroupId::new(group))?;
        let refusal = replica.adopt(&caller, &cluster, durability)?.err().unwrap_or_default();
        Ok(Response::new(wire::AdoptAnswer { refusal }))
    }

    async fn announce(
        &self,
        request: Request<wire::AnnounceRequest>,
    ) -> Result<Response<wire::AnnounceAnswer>, Status> {
        let Met { shared, running, from } = self.meet(request.metadata())?;
        moved(shared.clone(), from, request.into_inner()).await?;
        Ok(Self::answer(running, from, wire::AnnounceAnswer {}))
    }
}

/// A new node that has not got as far as the entry that took it in.
fn may_vote(shared: &Shared) -> Result<(), Status> {
    if shared.has_voice() {
        return Ok(());
    }
    Err(Status::unavailable("this node is new and has no voice yet"))
}

fn missing(field: &str) -> Status {
    Status::invalid_argument(format!("the field {field:?} is missing"))
}

/// The requests of a stream as openraft takes them. Ends at the first one that cannot be read or
/// has no room, and leaves the reason in `problem`.
fn append_requests(
    stream: Streaming<wire::AppendRequest>,
    shared: Arc<Shared>,
    problem: Arc<Mutex<Option<Status>>>,
) -> impl Stream<Item = AppendEntriesRequest<Types>> + Send + 'static {
    let inflow = Inflow::new(shared.clone());
    let state = (stream, shared, inflow, problem);
    futures::stream::unfold(state, |(mut stream, shared, mut inflow, problem)| async move {
        let message = match timeout(STREAM_IDLE, stream.message()).await {
            Ok(Ok(message)) => message?,
            // The caller is gone or silent: there is nobody to tell.
            Ok(Err(_)) | Err(_) => return None,
        };
        shared.hear();
        match take_append(message, &mut inflow) {
            Ok(request) => Some((request, (stream, shared, inflow, problem))),
            Err(status) => {
                *problem.lock() = Some(status);
                None
            }
        }
    })
}

/// Heartbeats have no entries, and always come in.
fn take_append(
    message: wire::AppendRequest,
    inflow: &mut Inflow,
) -> Result<AppendEntriesRequest<Types>, Status> {
    let bytes = message.frames.len() as u64;
    let request = read_append(message)?;
    if let Some(last) = request.entries.last() {
        inflow.admit(last.frame().index, bytes)?;
    }
    Ok(request)
}

fn read_append(message: wire::AppendRequest) -> Result<AppendEntriesRequest<Types>, Status> {
    let vote = message.vote.ok_or_else(|| missing("vote"))?;
    let prev_log_id = message.previous.as_ref().map(read_id);
    let next = prev_log_id.as_ref().map_or(LogIndex::ZERO, |id| index_of(id).next());
    Ok(AppendEntriesRequest {
        vote: read_vote(&vote),
        prev_log_id,
        entries: read_frames(message.frames, next)?,
        leader_commit: message.committed.as_ref().map(read_id),
    })
}

/// Checks every frame, and that their indexes follow each other from `next`.
pub(crate) fn read_frames(mut bytes: Bytes, mut next: LogIndex) -> Result<Vec<Entry>, Status> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let read = Frame::decode(&bytes);
        let (frame, len) = read.map_err(|error| Status::data_loss(error.to_string()))?;
        if frame.index != next {
            let text = format!("entry {} came where {next} is due", frame.index);
            return Err(Status::invalid_argument(text));
        }
        assert!(len > 0 && frame.seal.is_some(), "a decoded frame has bytes and a seal");
        bytes.advance(len);
        next = next.next();
        let entry = Entry::from_frame(frame);
        entries.push(entry.map_err(|error| Status::invalid_argument(error.to_string()))?);
    }
    Ok(entries)
}

fn append_answer(result: StreamAppendResult<Types>) -> wire::AppendAnswer {
    use wire::append_answer::Outcome;
    let outcome = match result {
        Ok(last) => Outcome::Matched(wire::Matched { last: last.as_ref().map(write_id) }),
        Err(StreamAppendError::Conflict(at)) => Outcome::Conflict(write_id(&at)),
        Err(StreamAppendError::HigherVote(vote)) => Outcome::Higher(write_vote(&vote)),
    };
    wire::AppendAnswer { outcome: Some(outcome) }
}

fn read_ballot(message: wire::Ballot) -> Result<VoteRequest<Types>, Status> {
    let vote = message.vote.ok_or_else(|| missing("vote"))?;
    Ok(VoteRequest {
        vote: read_vote(&vote),
        last_log_id: message.last.as_ref().map(read_id),
        leadership_transfer: message.leadership_transfer,
    })
}

fn ballot_answer(answer: &VoteResponse<Types>) -> wire::BallotAnswer {
    wire::BallotAnswer {
        vote: Some(write_vote(&answer.vote)),
        granted: answer.vote_granted,
        last: answer.last_log_id.as_ref().map(write_id),
    }
}

async fn receive_state(
    mut stream: Streaming<wire::StatePart>,
) -> Result<(wire::RaftVote, Snapshot), Status> {
    use wire::state_part::Part;
    let Some(Part::Head(head)) = next_part(&mut stream).await? else {
        return Err(missing("head"));
    };
    let vote = head.vote.ok_or_else(|| missing("vote"))?;
    if head.size > STATE_MAX {
        let text = format!("a state of {} bytes; {STATE_MAX} is the limit", head.size);
        return Err(Status::resource_exhausted(text));
    }
    let size = usize::try_from(head.size)
        .map_err(|_| Status::resource_exhausted("the state does not fit into memory"))?;
    let mut state = BytesMut::new();
    while state.len() < size {
        let Some(Part::Bytes(part)) = next_part(&mut stream).await? else {
            let text = format!("the state ended after {} of {size} bytes", state.len());
            return Err(Status::data_loss(text));
        };
        if part.is_empty() || state.len() + part.len() > size {
            return Err(Status::data_loss("a part of the state that does not fit"));
        }
        state.extend_from_slice(&part);
    }
    let snapshot = state.freeze();
    let contents =
        Contents::decode(&snapshot).map_err(|error| Status::data_loss(error.to_string()))?;
    Ok((vote, Snapshot { meta: contents.meta(), snapshot }))
}

async fn next_part(
    stream: &mut Streaming<wire::StatePart>,
) -> Result<Option<wire::state_part::Part>, Status> {
    let message = timeout(STATE_IDLE, stream.message()).await;
    let message = message.map_err(|_| Status::deadline_exceeded("the state stopped coming"))??;
    Ok(message.and_then(|message| message.part))
}
