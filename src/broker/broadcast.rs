//! Reading for an instance that sees everything: a long poll over the queues of one broker group.
//!
//! It reads the log as it stands and changes nothing, so it may be given up and repeated at any
//! moment. Only the leader answers, and only while it is one: a replica that lags would say that
//! nothing came.

mod parcel;
mod scan;

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::base::{
    BrokerGroupName, ClientId, GroupId, GroupName, LogIndex, Millis, NodeId, QueueId, QueueOffset,
    TopicId, TopicName, UtcMillis,
};
use crate::broker::Replica;
use crate::broker::api::Delivered;
use crate::broker::error::{LimitError, NoGroup, NoTopic, Overloaded, ReceiveError, Unavailable};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::receive::{FORWARD_GRACE, NO_LEADER_PAUSE};
use crate::broker::remote::{Declined, Parcel, Question};
use crate::command::{Command, JoinAt, Leave, Placed, Position, Refusal, Reply};
use crate::filter::Filter;
pub use crate::machine::LEASE_MAX;
use crate::message::{decode_record, record_properties};

pub(super) use self::parcel::{Fetched, Wish, encode_fetched};
use self::scan::{Scan, scan};

/// Messages that one fetch may ask for.
pub const FETCH_MAX: u32 = 256;
/// Long polls of instances that a node holds at once.
const READERS_MAX: usize = 100_000;

/// What an instance wants to read.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    pub topic: TopicName,
    /// Counted for this one; a fetch changes nothing of it.
    pub group: GroupName,
    /// The tag expression as the client wrote it; empty or `*` is everything.
    pub filter: String,
    /// Where it reads on, one for each broker group that it reads from.
    pub places: Vec<FetchPlace>,
    /// 1 to [`FETCH_MAX`].
    pub max: u32,
    /// How long to wait for a message.
    pub poll: Duration,
}

/// The next message of each queue of one broker group. Queues that are left out begin at their
/// first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchPlace {
    pub broker_group: BrokerGroupName,
    pub positions: Vec<(QueueId, QueueOffset)>,
}

/// What one broker group had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedPart {
    pub broker_group: BrokerGroupName,
    /// In the order of queues, and of offsets within each.
    pub messages: Vec<Delivered>,
    /// The next message of every queue, also of those that it had nothing of.
    pub next: Vec<(QueueId, QueueOffset)>,
    /// Messages that were asked for and that retention had taken.
    pub lost: u64,
}

/// An instance says that it lives and how far it is, or asks what is known of it.
#[derive(Clone, Debug)]
pub struct PlaceRequest {
    pub topic: TopicName,
    pub group: GroupName,
    pub instance: ClientId,
    /// How long its positions are kept from now on.
    pub lease: Millis,
    /// Where it begins if nothing is known of it.
    pub begin: JoinAt,
    /// Names a request without places, so that repeating it is answered alike.
    pub attempt: u64,
    /// Positions may also go back.
    pub seek: bool,
    /// What it was answered before, and how far it is; none to ask.
    pub places: Vec<CommitPlace>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitPlace {
    pub broker_group: BrokerGroupName,
    pub incarnation: LogIndex,
    /// Of queues that moved.
    pub positions: Vec<(QueueId, QueueOffset)>,
}

/// Where an instance stands in one broker group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstancePlace {
    pub broker_group: BrokerGroupName,
    pub incarnation: LogIndex,
    /// False when it begins anew there.
    pub known: bool,
    pub until: UtcMillis,
    /// Messages that retention took before it had passed them, ever.
    pub lost: u64,
    pub positions: Vec<(QueueId, QueueOffset)>,
}

/// An instance that does not come back.
#[derive(Clone, Debug)]
pub struct LeaveRequest {
    pub topic: TopicName,
    pub group: GroupName,
    pub instance: ClientId,
    /// What it was answered in each broker group.
    pub incarnations: Vec<(BrokerGroupName, LogIndex)>,
}

/// How far one step of a fetch came.
struct Step {
    parcels: Vec<Parcel>,
    lost: u64,
    /// The scan did not see everything.
    more: bool,
}

impl Replica {
    /// Waits until something is there or the deadline is over.
    pub(super) async fn fetch(
        &self,
        mut wish: Wish,
        filter: &Filter,
        deadline: Instant,
    ) -> Result<FetchedPart, ReceiveError> {
        loop {
            wish.poll = deadline.saturating_duration_since(Instant::now());
            let result = match self.leader() {
                Some(leader) if leader == self.node() => {
                    self.fetch_here(&wish, filter, deadline).await
                }
                Some(leader) => self.fetch_at(leader, &wish).await,
                None => Err(Declined::NotLeader),
            };
            match result {
                Ok(fetched) => return self.open_fetched(fetched, &wish),
                Err(Declined::NotLeader) if Instant::now() < deadline => {
                    self.leader_changed(NO_LEADER_PAUSE).await;
                }
                Err(declined) => return Err(refused(declined, &wish.topic, &wish.group)),
            }
        }
    }

    async fn fetch_at(&self, leader: NodeId, wish: &Wish) -> Result<Fetched, Declined> {
        let deadline = Instant::now() + wish.poll + FORWARD_GRACE.duration();
        let question = Question::Fetch(wish.clone()).encode();
        let answer = tokio::select! {
            biased;
            answer = self.ask(leader, question, deadline) => answer,
            () = self.left_behind(leader) => return Err(Declined::NotLeader),
        };
        // A broken connection, or a broker that has only just come up, is asked again.
        let Some(answer) = answer.ok().filter(|answer| !answer.is_empty()) else {
            return Err(Declined::NotLeader);
        };
        parcel::decode_fetched(answer).unwrap_or_else(|error| {
            Err(Declined::Unavailable { reason: error.to_string(), outcome_unknown: false })
        })
    }

    /// The leader's part; also what a forwarded fetch runs.
    pub(super) async fn fetch_here(
        &self,
        wish: &Wish,
        filter: &Filter,
        deadline: Instant,
    ) -> Result<Fetched, Declined> {
        let readers = self.waiters.readers();
        if readers.waiting() >= READERS_MAX {
            return Err(Declined::Busy);
        }
        // Only a leader's state makes "does not exist" true.
        if !self.serving() {
            return Err(Declined::NotLeader);
        }
        let topic = self.group.read(|state| state.topic(&wish.topic).map(|topic| topic.id));
        let topic = topic.ok_or(Declined::NoTopic)?;
        let reader = readers.join(topic);
        let mut scan =
            Scan::new(wish, self.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let mut lost = 0;
        loop {
            let mut woken = pin!(reader.woken());
            woken.as_mut().enable();
            // Nothing is proposed that would fail at a leader of the past, so it has to be asked for:
            // what it does not have another one may. Under the lease this costs nothing.
            if !self.serving() || self.catch_up().await.is_err() {
                return Err(Declined::NotLeader);
            }
            let step = self.fetch_step(topic, filter, &mut scan)?;
            lost += step.lost;
            let over = Instant::now() >= deadline;
            if !step.parcels.is_empty() || over {
                return Ok(Fetched { parcels: step.parcels, next: scan.next(), lost });
            }
            if step.more {
                tokio::task::yield_now().await;
            } else {
                // Running out of time is the other way to go on: then the loop ends above.
                drop(timeout_at(deadline, woken).await);
            }
        }
    }

    /// One look at the queues: moves the scan on, and answers what the filter wants of it.
    fn fetch_step(
        &self,
        topic: TopicId,
        filter: &Filter,
        progress: &mut Scan,
    ) -> Result<Step, Declined> {
        let found = self.group.read(|state| scan(state, topic, filter, progress));
        let found = found.map_err(|error| self.storage(&error))?.ok_or(Declined::NoTopic)?;
        let mut lost = found.lost;
        let mut parcels = Vec::with_capacity(found.units.len());
        for (queue, offset, unit) in found.units {
            // What has left with the log's front since the scan is lost like what left before.
            let Some(record) = self.record(unit)? else {
                lost += 1;
                continue;
            };
            if !filter.is_all() {
                let properties = record_properties(&record);
                if !filter.matches(&properties.map_err(|error| self.storage(&error))?) {
                    continue;
                }
            }
            let (visible, handle) = (unit.visible, String::new());
            let death = self.facts(topic, offset);
            parcels.push(Parcel { record, queue, offset, visible, attempt: 1, handle, death });
        }
        parcels.sort_by_key(|parcel| (parcel.queue, parcel.offset));
        Ok(Step { parcels, lost, more: found.more })
    }

    fn open_fetched(&self, fetched: Fetched, wish: &Wish) -> Result<FetchedPart, ReceiveError> {
        let labels = [wish.topic.as_str(), wish.group.as_str()];
        crate::metrics::MESSAGES_OUT.add(labels, fetched.parcels.len() as u64);
        let mut messages = Vec::with_capacity(fetched.parcels.len());
        for parcel in fetched.parcels {
            let stored = decode_record(&parcel.record).map_err(|error| Unavailable {
                reason: format!(
                    "the record of {} queue {} offset {} cannot be read: {error}",
                    wish.topic, parcel.queue, parcel.offset
                ),
                outcome_unknown: false,
            })?;
            messages.push(Delivered {
                message: stored.message,
                queue: parcel.queue,
                offset: parcel.offset,
                stored: parcel.visible,
                store_host: stored.store_host.to_string(),
                attempt: parcel.attempt,
                handle: parcel.handle,
                death: parcel.death,
            });
        }
        let broker_group = self.name.clone();
        Ok(FetchedPart { broker_group, messages, next: fetched.next, lost: fetched.lost })
    }

    /// Tells the log that an instance lives, and how far it is here. `place` is `None` when it asks
    /// what is known of it.
    pub(super) async fn place_instance(
        &self,
        request: &PlaceRequest,
        (place, begin): (Option<&CommitPlace>, JoinAt),
    ) -> Result<InstancePlace, ReceiveError> {
        let (topic, group) = self.ids(&request.topic, &request.group).await?;
        let position = Position {
            group,
            topic,
            instance: request.instance.clone(),
            lease: request.lease,
            begin,
            attempt: request.attempt,
            incarnation: place.map(|place| place.incarnation),
            seek: request.seek,
            positions: place.map(|place| place.positions.clone()).unwrap_or_default(),
        };
        let reply = self.group.propose(Command::Position(position), self.default_deadline()).await;
        match reply.map_err(|error| unavailable(&error))? {
            Reply::Placed(placed) => {
                let Placed { incarnation, known, until, lost, positions } = placed;
                let broker_group = self.name.clone();
                Ok(InstancePlace { broker_group, incarnation, known, until, lost, positions })
            }
            Reply::Refused(refusal) => Err(place_error(refusal, request)),
            other => Err(unexpected(&other).into()),
        }
    }

    pub(super) async fn leave_instance(
        &self,
        request: &LeaveRequest,
        incarnation: LogIndex,
    ) -> Result<(), ReceiveError> {
        let (topic, group) = match self.ids(&request.topic, &request.group).await {
            Ok(ids) => ids,
            // Its positions went with the one that is gone.
            Err(ReceiveError::NoTopic(_) | ReceiveError::NoGroup(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let instance = request.instance.clone();
        let leave = Command::Leave(Leave { group, topic, instance, incarnation });
        let reply = self.group.propose(leave, self.default_deadline()).await;
        match reply.map_err(|error| unavailable(&error))? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other).into()),
        }
    }

    /// A follower that lags asks before it says that one of the two does not exist.
    async fn ids(
        &self,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<(TopicId, GroupId), ReceiveError> {
        if !self.knows_topic(topic) || !self.knows_group(group) {
            self.catch_up().await?;
        }
        let (topic_id, group_id) = self.group.read(|state| {
            (state.topic(topic).map(|topic| topic.id), state.group(group).map(|group| group.id))
        });
        let topic_id = topic_id.ok_or_else(|| NoTopic { topic: topic.clone() })?;
        let group_id = group_id.ok_or_else(|| NoGroup { group: group.clone() })?;
        Ok((topic_id, group_id))
    }
}

fn place_error(refusal: Refusal, request: &PlaceRequest) -> ReceiveError {
    match refusal {
        Refusal::NoTopic { .. } => NoTopic { topic: request.topic.clone() }.into(),
        Refusal::NoGroup { .. } => NoGroup { group: request.group.clone() }.into(),
        Refusal::NoQueue { queue, queues } => LimitError {
            what: "queue of a position",
            value: queue.to_string(),
            allowed: format!("below {queues}"),
        }
        .into(),
        Refusal::Limit { what, limit } => LimitError {
            what: "position of an instance",
            value: request.instance.to_string(),
            allowed: format!("{what}, at most {limit}"),
        }
        .into(),
        other => unexpected(&Reply::Refused(other)).into(),
    }
}

fn refused(declined: Declined, topic: &TopicName, group: &GroupName) -> ReceiveError {
    match declined {
        Declined::NoTopic => NoTopic { topic: topic.clone() }.into(),
        Declined::NoGroup => NoGroup { group: group.clone() }.into(),
        Declined::Busy => Overloaded {
            what: format!("{READERS_MAX} polls of instances wait already"),
            retry_after: Millis::from_secs(1),
        }
        .into(),
        Declined::Full { what } => Overloaded { what, retry_after: Millis::from_secs(60) }.into(),
        Declined::NotLeader => Unavailable {
            reason: "the broker group has no leader at the moment".into(),
            outcome_unknown: false,
        }
        .into(),
        Declined::Unavailable { reason, outcome_unknown } => {
            Unavailable { reason, outcome_unknown }.into()
        }
    }
}
