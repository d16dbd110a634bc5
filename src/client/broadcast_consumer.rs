//! One instance of a consumer group that sees every message of a topic.
//!
//! It reads by position and acknowledges nothing: what was handed out counts as handled when the
//! next messages are asked for, and is told to the cluster once a second. Whoever comes back under
//! the same name within the lease goes on behind what was told last; what it had been handed since
//! comes again.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::{ClientId, GroupName, TopicName};
use crate::wire::raftmq as v1;
use crate::wire::raftmq::broadcast_client::BroadcastClient;

use super::error::ClientError;
use super::values::Received;
use super::{ANSWER_BYTES_MAX, CALL_TIMEOUT, Client, random};

/// How often positions that moved are told.
const COMMIT_EVERY: Duration = Duration::from_secs(1);
/// No poll waits longer, by the protocol.
const POLL_MAX: Duration = Duration::from_secs(20);

/// What an instance reads, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BroadcastTake {
    pub topic: TopicName,
    pub group: GroupName,
    /// Whoever comes back under this name is the same instance; no two at a time.
    pub instance: ClientId,
    /// A tag expression; `*` is everything.
    pub filter: String,
    /// Messages of one receive, 1 to 256.
    pub max: u32,
    /// How long to wait for a first message.
    pub wait: Duration,
    /// How long its positions are kept after it was last heard of; 1 s to 30 days.
    pub lease: Duration,
    /// Where it begins if nothing is known of it: the first message of each queue, or what is sent
    /// from now on.
    pub from_earliest: bool,
    /// Names the start: joining once more after an error is told the same as the first time. See
    /// [`Self::draw_attempt`].
    pub attempt: u64,
}

impl BroadcastTake {
    /// A number that differs from start to start.
    pub fn draw_attempt() -> u64 {
        random()
    }
}

/// What a receive brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    pub messages: Vec<Received>,
    /// Broker groups in which it began anew, because its lease was over before it was heard of.
    pub anew: Vec<String>,
    /// Messages that retention took before they were read.
    pub lost: u64,
}

/// Where the instance is in one broker group.
#[derive(Clone, Debug, Default)]
struct Place {
    incarnation: u64,
    /// The next message of each queue: to read, …
    read: BTreeMap<u32, u64>,
    /// … to go on with after a crash, as far as this program knows, …
    handled: BTreeMap<u32, u64>,
    /// … and as the cluster knows.
    committed: BTreeMap<u32, u64>,
}

/// An instance that has joined. Whoever drops it without [`Self::leave`] can come back within the
/// lease.
#[derive(Debug)]
pub struct BroadcastConsumer {
    client: Client,
    take: BroadcastTake,
    places: BTreeMap<String, Place>,
    /// Broker groups that knew nothing of it when it joined.
    began_anew: Vec<String>,
    /// When the cluster last heard of it.
    told: Instant,
    /// Messages that were handed out are not told yet.
    is_behind: bool,
    /// What the next receive has to say beside messages: an error may come before it can.
    untold: Polled,
}

impl BroadcastConsumer {
    /// Asks the cluster where this instance goes on.
    pub async fn join(client: Client, take: BroadcastTake) -> Result<Self, ClientError> {
        let told = Instant::now();
        let attempt = take.attempt;
        let mut joined = Self {
            client,
            take,
            places: BTreeMap::new(),
            began_anew: Vec::new(),
            told,
            is_behind: false,
            untold: Polled::default(),
        };
        joined.began_anew = joined.place(false, attempt).await?;
        Ok(joined)
    }

    /// Goes on over another connection, since the node behind the one before is gone.
    pub fn move_to(&mut self, client: Client) {
        self.client = client;
    }

    /// The next receives bring at most so many messages, if the take does not say less.
    pub fn limit(&mut self, max: u32) {
        self.take.max = self.take.max.min(max);
    }

    /// The broker groups in which nothing was known of it when it joined: it was never there, it had
    /// left, or its lease was over.
    pub fn began_anew(&self) -> &[String] {
        &self.began_anew
    }

    /// Up to as many messages as the take says; none when nothing came in time. What the receive
    /// before brought counts as handled from here on. After an error nothing was taken: call again.
    pub async fn receive(&mut self) -> Result<Polled, ClientError> {
        self.handle_all();
        let until = Instant::now() + self.take.wait;
        loop {
            if Instant::now() >= self.due() {
                let anew = self.place(false, 0).await?;
                self.untold.anew.extend(anew);
            }
            let left = until.min(self.due()).saturating_duration_since(Instant::now());
            let messages = self.fetch(left.min(POLL_MAX)).await?;
            if !messages.is_empty() || Instant::now() >= until {
                return Ok(Polled { messages, ..std::mem::take(&mut self.untold) });
            }
        }
    }

    /// Everything that was handed out is handled: tells the cluster. The broker groups in which it
    /// began anew, because its lease was over before.
    pub async fn commit(&mut self) -> Result<Vec<String>, ClientError> {
        self.handle_all();
        self.place(false, 0).await
    }

    /// Goes on at these offsets, by broker group and queue, which may lie before.
    pub async fn seek(
        &mut self,
        to: &BTreeMap<String, BTreeMap<u32, u64>>,
    ) -> Result<Vec<String>, ClientError> {
        for (name, place) in &mut self.places {
            place.handled.extend(to.get(name).into_iter().flatten());
        }
        let anew = self.place(true, 0).await?;
        for place in self.places.values_mut() {
            place.read.clone_from(&place.committed);
            place.handled.clone_from(&place.committed);
        }
        Ok(anew)
    }

    /// Commits nothing and does not come back: its positions are forgotten at once.
    pub async fn leave(self) -> Result<(), ClientError> {
        let place = |(name, place): (&String, &Place)| v1::broadcast_leave_request::Place {
            broker_group: name.clone(),
            incarnation: place.incarnation,
        };
        let request = v1::BroadcastLeaveRequest {
            topic: self.take.topic.to_string(),
            group: self.take.group.to_string(),
            instance: self.take.instance.to_string(),
            places: self.places.iter().map(place).collect(),
        };
        let request = self.client.request(request, CALL_TIMEOUT);
        self.client.broadcast().leave(request).await?;
        Ok(())
    }

    /// The next message of each queue that it has not handled, by broker group.
    pub fn positions(&self) -> BTreeMap<String, BTreeMap<u32, u64>> {
        let one = |(name, place): (&String, &Place)| (name.clone(), place.handled.clone());
        self.places.iter().map(one).collect()
    }

    fn handle_all(&mut self) {
        for place in self.places.values_mut() {
            place.handled.clone_from(&place.read);
        }
    }

    /// When the cluster is to hear of it: soon when there is something to tell, else when a third of
    /// the lease is over.
    fn due(&self) -> Instant {
        let renewal = self.take.lease / 3;
        self.told + if self.is_behind { renewal.min(COMMIT_EVERY) } else { renewal }
    }

    /// Tells how far it is and takes over what it is answered; asks where it stands if it does not
    /// know. The broker groups in which it begins anew.
    async fn place(&mut self, seek: bool, attempt: u64) -> Result<Vec<String>, ClientError> {
        let told = Instant::now();
        let moved = |place: &Place| {
            let moved =
                place.handled.iter().filter(|(queue, at)| place.committed.get(queue) != Some(at));
            moved
                .map(|(queue, offset)| v1::QueuePosition { queue: *queue, offset: *offset })
                .collect()
        };
        let place = |(name, place): (&String, &Place)| v1::broadcast_commit_request::Place {
            broker_group: name.clone(),
            incarnation: place.incarnation,
            positions: moved(place),
        };
        let request = v1::BroadcastCommitRequest {
            topic: self.take.topic.to_string(),
            group: self.take.group.to_string(),
            instance: self.take.instance.to_string(),
            lease: u64::try_from(self.take.lease.as_millis()).unwrap_or(u64::MAX),
            from_earliest: self.take.from_earliest,
            attempt,
            seek,
            places: self.places.iter().map(place).collect(),
        };
        let request = self.client.request(request, CALL_TIMEOUT);
        let answer = self.client.broadcast().commit(request).await?.into_inner();
        self.told = told;
        self.is_behind = false;
        let joins = self.places.is_empty();
        let mut anew = Vec::new();
        for placed in answer.places {
            let is_new = !self.places.contains_key(&placed.broker_group);
            let known = self.places.entry(placed.broker_group.clone()).or_default();
            let committed = placed.positions.iter().map(|at| (at.queue, at.offset)).collect();
            if known.incarnation != placed.incarnation {
                known.read.clone_from(&committed);
                known.handled.clone_from(&committed);
            }
            known.incarnation = placed.incarnation;
            known.committed = committed;
            // Where the topic came to meanwhile, it reads everything.
            if !placed.known && (joins || !is_new) {
                anew.push(placed.broker_group);
            }
        }
        Ok(anew)
    }

    /// Reads on.
    async fn fetch(&mut self, poll: Duration) -> Result<Vec<Received>, ClientError> {
        let place = |(name, place): (&String, &Place)| v1::broadcast_fetch_request::Place {
            broker_group: name.clone(),
            positions: place
                .read
                .iter()
                .map(|(queue, offset)| v1::QueuePosition { queue: *queue, offset: *offset })
                .collect(),
        };
        let request = v1::BroadcastFetchRequest {
            topic: self.take.topic.to_string(),
            group: self.take.group.to_string(),
            filter: self.take.filter.clone(),
            max: self.take.max,
            poll: u64::try_from(poll.as_millis()).unwrap_or(u64::MAX),
            places: self.places.iter().map(place).collect(),
        };
        let request = self.client.request(request, poll + CALL_TIMEOUT);
        let answer = self.client.broadcast().fetch(request).await?.into_inner();
        let mut messages = Vec::new();
        for part in answer.parts {
            let missing = ClientError::Incomplete { what: "a broker group that was asked" };
            let place = self.places.get_mut(&part.broker_group).ok_or(missing)?;
            place.read = part.next.iter().map(|at| (at.queue, at.offset)).collect();
            self.untold.lost += part.lost;
            if part.messages.is_empty() {
                // What the filter passed by is told with the next renewal, and is no reason for one.
                place.handled.clone_from(&place.read);
            } else {
                self.is_behind = true;
            }
            let topic = self.take.topic.as_str();
            messages.extend(part.messages.into_iter().map(|message| received(topic, message)));
        }
        Ok(messages)
    }
}

fn received(topic: &str, message: v1::BroadcastMessage) -> Received {
    Received {
        message_id: message.message_id,
        topic: topic.to_owned(),
        tag: message.tag,
        message_group: message.message_group,
        priority: message.priority,
        keys: message.keys,
        properties: message.properties.into_iter().collect(),
        body: message.body,
        queue: i32::try_from(message.queue).unwrap_or(i32::MAX),
        offset: i64::try_from(message.offset).unwrap_or(i64::MAX),
        attempt: 1,
        stored: message.stored,
        handle: String::new(),
    }
}

impl Client {
    fn broadcast(&self) -> BroadcastClient<tonic::transport::Channel> {
        BroadcastClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }
}
