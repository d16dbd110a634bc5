//! The loads of `bench produce`, `consume` and `e2e`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::base::{GroupName, TopicName};
use crate::client::{
    CHANNELS, Client, ClientError, Draft, Producer, PullConsumer, SimpleConsumer, Take,
};
use crate::node::{Figures, Tally};

use super::super::failure::Failure;
use super::report::{Bar, Refusals};
use super::{Shape, Sort};

/// Messages that one receive asks for; the protocol allows no more.
pub(super) const RECEIVE: u32 = 32;
/// Receives of `consume` under way; each is for 32 messages, so that more only wait.
const CONSUMERS_MAX: u32 = 16;
const WARM_UP: Duration = Duration::from_secs(1);
/// After a request that failed; the broker may ask for less, or have no leader.
const PAUSE: Duration = Duration::from_millis(10);
const INVISIBLE: Duration = Duration::from_secs(60);
/// What goes before a measurement: messages of one request, and requests under way.
const FILL: (usize, usize) = (32, 64);

/// In milliseconds since 1970.
fn in_an_hour() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from((since + Duration::from_secs(3600)).as_millis()).unwrap_or(u64::MAX)
}

/// One run, as all its loops see it. Everything runs on one thread.
pub(super) struct Course {
    endpoint: String,
    topic: TopicName,
    shape: Shape,
    tally: Tally,
    /// Sends that the broker refused for its load.
    refused: Tally,
    /// Messages received that had been handed out before.
    repeated: Cell<u64>,
    last_error: RefCell<Option<ClientError>>,
    /// Keys that were given to messages.
    keys: Cell<u64>,
}

/// What the loops of `produce` send.
struct Load {
    producer: Rc<Producer>,
    kind: Sort,
    drafts: Vec<Draft>,
    /// Each message has a key of its own.
    keys: bool,
}

/// When counting begins and when everything ends.
#[derive(Clone, Copy)]
struct Times {
    counted: Instant,
    end: Instant,
}

impl Times {
    fn new(shape: &Shape) -> Self {
        let counted = Instant::now() + WARM_UP;
        Self { counted, end: counted + shape.time() }
    }

    fn counts(&self, begun: Instant, now: Instant) -> bool {
        begun >= self.counted && now <= self.end
    }
}

impl Course {
    pub(super) fn new(endpoint: String, topic: TopicName, shape: Shape) -> Rc<Self> {
        let (tally, refused, last_error) = (Tally::new(), Tally::new(), RefCell::new(None));
        let (repeated, keys) = (Cell::new(0), Cell::new(0));
        Rc::new(Self { endpoint, topic, shape, tally, refused, repeated, last_error, keys })
    }

    pub(super) fn repeated(&self) -> u64 {
        self.repeated.get()
    }

    /// The number of the next key.
    pub(super) fn keys(&self) -> u64 {
        self.keys.get()
    }

    fn next_key(&self) -> String {
        let number = self.keys.get();
        self.keys.set(number + 1);
        format!("k-{number}")
    }

    fn draft(&self, body: Bytes) -> Draft {
        let topic = self.topic.clone();
        Draft::new(topic, body)
    }

    fn drafts(&self, count: usize) -> Vec<Draft> {
        let body = Bytes::from(vec![b'x'; self.size()]);
        vec![self.draft(body); count]
    }

    /// What one place of the window sends, again and again.
    fn drafts_of(&self, place: u32, kind: Sort) -> Vec<Draft> {
        let mut drafts = self.drafts(usize::try_from(self.shape.batch).expect("at most 128"));
        if kind == Sort::Ordered {
            let message_group = format!("place-{place}");
            drafts.iter_mut().for_each(|one| one.message_group = Some(message_group.clone()));
        }
        drafts
    }

    fn size(&self) -> usize {
        usize::try_from(self.shape.size).expect("at most 4 MiB")
    }

    async fn failed(&self, error: ClientError) {
        *self.last_error.borrow_mut() = Some(error);
        tokio::time::sleep(PAUSE).await;
    }

    fn figures(&self, time: Duration) -> Result<Figures, Failure> {
        if self.tally.messages() == 0 {
            let last = self.last_error.borrow().as_ref().map(ToString::to_string);
            let last = last.unwrap_or_else(|| "there was nothing to receive".to_owned());
            return Err(Failure::NothingMeasured { seconds: time.as_secs(), last });
        }
        Ok(self.tally.figures(self.size(), time))
    }

    async fn take(&self, group: &GroupName, max: u32) -> Result<Vec<SimpleConsumer>, Failure> {
        let take = Take {
            topic: self.topic.clone(),
            group: group.clone(),
            filter: "*".to_owned(),
            max,
            invisible: INVISIBLE,
            wait: Duration::from_secs(1),
        };
        let mut consumers = Vec::new();
        for _ in 0..CHANNELS {
            let client = Client::connect(&self.endpoint).await?;
            consumers.push(SimpleConsumer::new(client, take.clone()).await?);
        }
        Ok(consumers)
    }

    /// Loops end by themselves at the end of the course.
    async fn run(&self, bench: &'static str, loops: LocalSet) {
        let bar = Bar::new(bench, WARM_UP + self.shape.time());
        tokio::select! {
            () = loops => {}
            () = bar.watch(|| self.tally.messages()) => {}
        }
    }

    /// With a rate, so many requests a second are offered, as long as the window has room. A place
    /// of the window whose request was refused rests for the time that the broker told, as official
    /// clients do.
    pub(super) async fn produce(
        self: &Rc<Self>,
        rate: Option<u32>,
        kind: Sort,
        keys_from: Option<u64>,
    ) -> Result<(Figures, Refusals), Failure> {
        let keys = keys_from.is_some();
        self.keys.set(keys_from.unwrap_or_default());
        let in_flight = usize::try_from(self.shape.in_flight).expect("at most 65536");
        let producer = Rc::new(Producer::connect(&self.endpoint, in_flight).await?);
        let (loops, times) = (LocalSet::new(), Times::new(&self.shape));
        let interval = rate
            .map(|rate| Duration::from_secs_f64(f64::from(self.shape.in_flight) / f64::from(rate)));
        let start = Instant::now();
        for place in 0..self.shape.in_flight {
            let pace = interval.map(|interval| {
                let share = f64::from(place) / f64::from(self.shape.in_flight);
                Pace { next: start + interval.mul_f64(share), interval }
            });
            let drafts = self.drafts_of(place, kind);
            let load = Load { producer: Rc::clone(&producer), kind, drafts, keys };
            loops.spawn_local(Rc::clone(self).produce_loop(load, times, pace));
        }
        self.run("produce", loops).await;
        let refused = self.refused.figures(0, self.shape.time());
        let refusals = Refusals {
            refused: refused.messages,
            refused_p50_us: refused.p50_us,
            refused_p99_us: refused.p99_us,
            refused_max_us: refused.max_us,
        };
        Ok((self.figures(self.shape.time())?, refusals))
    }

    async fn produce_loop(self: Rc<Self>, load: Load, times: Times, mut pace: Option<Pace>) {
        let Load { producer, kind, mut drafts, keys } = load;
        let mut fresh = keys;
        loop {
            if let Some(pace) = &mut pace {
                pace.wait().await;
            }
            let begun = Instant::now();
            if begun >= times.end {
                return;
            }
            // What failed goes again with the keys that it had, so that no key is left out.
            if std::mem::take(&mut fresh) {
                drafts.iter_mut().for_each(|draft| draft.keys = vec![self.next_key()]);
            }
            let sent = match kind {
                Sort::Normal | Sort::Ordered => producer.send(&drafts).await.map(drop),
                Sort::Delayed => producer.send_at(&drafts, Some(in_an_hour())).await.map(drop),
                Sort::Transactional => producer.transact(&drafts).await,
            };
            let now = Instant::now();
            let tally = match sent {
                Ok(()) => {
                    fresh = keys;
                    &self.tally
                }
                Err(error) => {
                    let overload = error.is_overload();
                    let pause = error.retry_after().unwrap_or(PAUSE);
                    *self.last_error.borrow_mut() = Some(error);
                    tokio::time::sleep(pause).await;
                    if !overload {
                        continue;
                    }
                    &self.refused
                }
            };
            if times.counts(begun, now) {
                tally.note(now - begun, u64::from(self.shape.batch));
            }
        }
    }

    /// Sends what is to be received.
    pub(super) async fn prefill(&self, messages: u64) -> Result<(), Failure> {
        let (batch, window) = FILL;
        let requests = usize::try_from(messages).unwrap_or(usize::MAX).div_ceil(batch);
        let producer = Producer::connect(&self.endpoint, window).await?;
        let drafts = self.drafts(batch);
        let requests = futures::stream::repeat(drafts).take(requests);
        producer.pipeline(requests).try_for_each(|_| std::future::ready(Ok(()))).await?;
        Ok(())
    }

    pub(super) async fn consume(
        self: &Rc<Self>,
        group: GroupName,
        max: u32,
    ) -> Result<Figures, Failure> {
        let consumers = self.take(&group, max).await?;
        let (loops, start) = (LocalSet::new(), Instant::now());
        let end = start + self.shape.time();
        let last = Rc::new(RefCell::new(start));
        let count = usize::try_from(self.shape.in_flight.min(CONSUMERS_MAX)).expect("at most 16");
        for consumer in consumers.iter().cycle().take(count) {
            let (course, consumer) = (Rc::clone(self), consumer.clone());
            loops.spawn_local(course.consume_loop(consumer, Rc::clone(&last), end));
        }
        self.run("consume", loops).await;
        let time = *last.borrow() - start;
        self.figures(time)
    }

    /// Ends early when nothing is left; `last` is when a last message was acknowledged.
    async fn consume_loop(
        self: Rc<Self>,
        consumer: SimpleConsumer,
        last: Rc<RefCell<Instant>>,
        end: Instant,
    ) {
        loop {
            let begun = Instant::now();
            if begun >= end {
                return;
            }
            let received = match consumer.receive().await {
                Ok(received) if received.is_empty() => return,
                Ok(received) => received,
                Err(error) => {
                    self.failed(error).await;
                    continue;
                }
            };
            if let Err(error) = consumer.ack(&received).await {
                self.failed(error).await;
                continue;
            }
            let now = Instant::now();
            self.tally.note(now - begun, received.len() as u64);
            let repeated = received.iter().filter(|message| message.attempt > 1).count() as u64;
            self.repeated.set(self.repeated.get() + repeated);
            *last.borrow_mut() = now;
        }
    }

    /// All queues side by side, each from its start to its end, or until the time is over.
    pub(super) async fn pull(
        self: &Rc<Self>,
        group: &GroupName,
        max: u32,
    ) -> Result<Figures, Failure> {
        let mut readers = Vec::new();
        for channel in 0..CHANNELS {
            let client = Client::connect(&self.endpoint).await?;
            let reader =
                || PullConsumer::new(client.clone(), group.clone(), self.topic.clone(), "*");
            let queues = reader().queues().await?;
            for queue in queues.into_iter().skip(channel).step_by(CHANNELS) {
                readers.push((reader(), queue));
            }
        }
        let (loops, start) = (LocalSet::new(), Instant::now());
        let end = start + self.shape.time();
        let last = Rc::new(RefCell::new(start));
        for (reader, queue) in readers {
            let (course, last) = (Rc::clone(self), Rc::clone(&last));
            loops.spawn_local(course.pull_loop(reader, (queue, max), last, end));
        }
        self.run("pull", loops).await;
        let time = *last.borrow() - start;
        self.figures(time)
    }

    async fn pull_loop(
        self: Rc<Self>,
        reader: PullConsumer,
        (queue, max): (u32, u32),
        last: Rc<RefCell<Instant>>,
        end: Instant,
    ) {
        let mut at = 0;
        loop {
            let begun = Instant::now();
            if begun >= end {
                return;
            }
            let read = match reader.pull(queue, at, max, Duration::ZERO).await {
                Ok(read) if read.messages.is_empty() && read.next == at => return,
                Ok(read) => read,
                Err(error) => {
                    self.failed(error).await;
                    continue;
                }
            };
            let now = Instant::now();
            at = read.next;
            self.tally.note(now - begun, read.messages.len() as u64);
            *last.borrow_mut() = now;
        }
    }

    pub(super) async fn end_to_end(self: &Rc<Self>, group: GroupName) -> Result<Figures, Failure> {
        let in_flight = usize::try_from(self.shape.in_flight).expect("at most 65536");
        let consumers = self.take(&group, RECEIVE).await?;
        let producer = Rc::new(Producer::connect(&self.endpoint, in_flight).await?);
        let trip = Rc::new(Trip::new(in_flight, &self.shape));
        let loops = LocalSet::new();
        let count = usize::try_from(self.shape.in_flight.min(CONSUMERS_MAX)).expect("at most 16");
        for consumer in consumers.iter().cycle().take(count) {
            let (course, trip) = (Rc::clone(self), Rc::clone(&trip));
            loops.spawn_local(course.arrive(consumer.clone(), trip));
        }
        let senders = in_flight.div_ceil(usize::try_from(self.shape.batch).expect("at most 128"));
        for _ in 0..senders {
            let (course, trip) = (Rc::clone(self), Rc::clone(&trip));
            loops.spawn_local(course.depart(Rc::clone(&producer), trip));
        }
        self.run("e2e", loops).await;
        self.figures(self.shape.time())
    }

    async fn depart(self: Rc<Self>, producer: Rc<Producer>, trip: Rc<Trip>) {
        while let Some(bodies) = trip.bodies(self.size(), self.shape.batch).await {
            let drafts: Vec<Draft> = bodies.into_iter().map(|body| self.draft(body)).collect();
            if let Err(error) = producer.send(&drafts).await {
                // What came of it is not known, so its places are not given back by this run.
                self.failed(error).await;
            }
        }
        trip.over.store(true, Ordering::Relaxed);
    }

    async fn arrive(self: Rc<Self>, consumer: SimpleConsumer, trip: Rc<Trip>) {
        while !trip.over.load(Ordering::Relaxed) && Instant::now() < trip.times.end {
            let received = match consumer.receive().await {
                Ok(received) => received,
                Err(error) => {
                    self.failed(error).await;
                    continue;
                }
            };
            let now = Instant::now();
            for message in &received {
                let Some(begun) = trip.begun(&message.body) else { continue };
                if trip.times.counts(begun, now) {
                    self.tally.note(now - begun, 1);
                }
                trip.places.add_permits(1);
            }
            if !received.is_empty()
                && let Err(error) = consumer.ack(&received).await
            {
                self.failed(error).await;
            }
        }
    }
}

/// When one place of the window offers its next request.
struct Pace {
    next: Instant,
    interval: Duration,
}

impl Pace {
    /// Who is late offers at once, and does not make up for what was missed.
    async fn wait(&mut self) {
        tokio::time::sleep_until(self.next).await;
        self.next = (self.next + self.interval).max(Instant::now());
    }
}

/// Messages between their send and their receive.
struct Trip {
    /// Of this run's messages; others in the topic are passed over.
    run: u64,
    start: Instant,
    times: Times,
    places: Semaphore,
    over: AtomicBool,
}

impl Trip {
    fn new(in_flight: usize, shape: &Shape) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let run = now.map_or(0, |since| u64::from(since.subsec_nanos()) ^ (since.as_secs() << 30));
        Self {
            run,
            start: Instant::now(),
            times: Times::new(shape),
            places: Semaphore::new(in_flight.max(shape.batch.try_into().unwrap_or(0))),
            over: AtomicBool::new(false),
        }
    }

    /// Bodies that say when they were made, once there is room for them; `None` at the end.
    async fn bodies(&self, size: usize, batch: u32) -> Option<Vec<Bytes>> {
        let room = tokio::time::timeout_at(self.times.end, self.places.acquire_many(batch)).await;
        room.ok()?.ok()?.forget();
        let body = |_| {
            let mut body = BytesMut::with_capacity(size);
            body.put_u64(self.run);
            body.put_u64(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(0));
            body.resize(size, b'x');
            body.freeze()
        };
        Some((0..batch).map(body).collect())
    }

    fn begun(&self, body: &Bytes) -> Option<Instant> {
        let number = |from: usize| {
            let bytes = body.get(from..from + 8)?;
            Some(u64::from_be_bytes(bytes.try_into().ok()?))
        };
        let micros = number(8).filter(|_| number(0) == Some(self.run))?;
        Some(self.start + Duration::from_micros(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_says_when_it_was_made_and_by_which_run() {
        let shape =
            Shape { size: 16, in_flight: 2, batch: 2, seconds: 1, data: std::path::PathBuf::new() };
        let trip = Trip::new(2, &shape);
        let bodies = trip.bodies(20, 2).await.unwrap();
        assert!(bodies.iter().all(|body| body.len() == 20 && trip.begun(body).is_some()));
        assert_eq!(trip.places.available_permits(), 0);
        let other = Trip { run: trip.run + 1, ..Trip::new(2, &shape) };
        assert_eq!(other.begun(&bodies[0]), None);
        assert_eq!(trip.begun(&Bytes::from_static(b"short")), None);
    }
}
