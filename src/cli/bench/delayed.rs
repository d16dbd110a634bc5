//! `raftmq bench delayed`: how soon delayed messages become visible when many are due together.

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use clap::Args;
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::base::{Millis, TopicName};
use crate::client::{Client, Draft, Producer, SimpleConsumer, Take, TopicShape};

use super::super::failure::Failure;
use super::super::output::{Output, Table};
use super::super::topic::topic_name;
use super::{End, Way, fresh};

/// Requests under way, and consumers.
const WINDOW: usize = 64;
const CONSUMERS: usize = 16;
/// A consumer that got nothing for so long has seen all there is.
const QUIET: Duration = Duration::from_secs(10);
/// Bytes of a body that say when it is due, and which of all it is.
const HEAD: usize = 16;

#[derive(Debug, Args)]
pub(in crate::cli) struct DelayedLoad {
    /// By default a new one, which takes delayed messages.
    #[arg(long, value_parser = topic_name)]
    topic: Option<TopicName>,
    /// How many messages.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    count: u64,
    /// When the first is due, counted from the start; sending must be over by then.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = length)]
    after: Millis,
    /// From the first that is due to the last, evenly.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = length)]
    spread: Millis,
    /// Only send: nothing is received, so what is sent stays pending until --after.
    #[arg(long)]
    hold: bool,
    /// Bytes of each body.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(HEAD as i64..=65_536))]
    size: u32,
    /// Messages in one request; all of one request are due together.
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=128))]
    batch: u32,
    #[command(flatten)]
    way: Way,
}

fn length(text: &str) -> Result<Millis, String> {
    text.parse().map_err(|error: crate::base::MillisError| error.to_string())
}

/// The keys are those of `--output json`.
#[derive(Debug, Serialize)]
pub(super) struct Delays {
    topic: String,
    sent: u64,
    sent_per_second: f64,
    /// Different ones.
    received: u64,
    /// Messages that came again.
    repeated: u64,
    /// Messages that were made visible or came before their time: none, or the broker is wrong.
    early: u64,
    /// From when the first was due to when the last one was visible.
    fired_within_ms: u64,
    fired_per_second: f64,
    /// From when a message was due to when it was visible.
    late_p50_ms: u64,
    late_p99_ms: u64,
    late_max_ms: u64,
    durability: String,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl DelayedLoad {
    pub(super) async fn run(self) -> Result<Delays, Failure> {
        let End { endpoint, durability } = self.way.end().await?;
        let topic = match &self.topic {
            Some(topic) => topic.clone(),
            None => TopicName::new(fresh("bench-delayed").as_str()).expect("a name is a name"),
        };
        let shape =
            TopicShape { queues: 8, kinds: &["delay".to_owned()], broker_groups: &[], keep: 0 };
        Client::connect(&endpoint).await?.create_topic(&topic, shape).await?;
        let begins = now().saturating_add(self.after.get());
        let start = Instant::now();
        self.send(&endpoint, &topic, begins).await?;
        let took = start.elapsed();
        let mut report = Delays {
            topic: topic.to_string(),
            sent: self.count,
            sent_per_second: self.count as f64 / took.as_secs_f64(),
            received: 0,
            repeated: 0,
            early: 0,
            fired_within_ms: 0,
            fired_per_second: 0.0,
            late_p50_ms: 0,
            late_p99_ms: 0,
            late_max_ms: 0,
            durability,
        };
        if self.hold {
            return Ok(report);
        }
        if now() >= begins {
            return Err(Failure::SentTooLate {
                took: took.as_secs(),
                after: self.after.get() / 1000,
            });
        }
        let seen = self.receive(&endpoint, &topic, begins).await?;
        report.count(&seen, begins);
        Ok(report)
    }

    fn due(&self, request: u64, requests: u64, begins: u64) -> u64 {
        begins.saturating_add(self.spread.get().saturating_mul(request) / requests.max(1))
    }

    async fn send(&self, endpoint: &str, topic: &TopicName, begins: u64) -> Result<(), Failure> {
        let producer = Producer::connect(endpoint, WINDOW).await?;
        let batch = u64::from(self.batch);
        let requests = self.count.div_ceil(batch);
        let sends = (0..requests).map(|request| {
            let due = self.due(request, requests, begins);
            let count = batch.min(self.count - request * batch);
            let draft = |number: u64| {
                let mut body = BytesMut::with_capacity(self.size as usize);
                body.put_u64(due);
                body.put_u64(request * batch + number);
                body.resize(self.size as usize, b'x');
                Draft::new(topic.clone(), body.freeze())
            };
            let drafts: Vec<Draft> = (0..count).map(draft).collect();
            let producer = &producer;
            async move { producer.send_at(&drafts, Some(due)).await }
        });
        let sends = futures::stream::iter(sends).buffered(WINDOW);
        sends.try_for_each(|_| std::future::ready(Ok(()))).await?;
        Ok(())
    }

    async fn receive(
        &self,
        endpoint: &str,
        topic: &TopicName,
        begins: u64,
    ) -> Result<Vec<Seen>, Failure> {
        tokio::time::sleep(Duration::from_millis(begins.saturating_sub(now()))).await;
        let take = Take {
            topic: topic.clone(),
            group: fresh("bench-readers"),
            filter: "*".to_owned(),
            max: 32,
            invisible: Duration::from_secs(60),
            wait: QUIET,
        };
        let mut loops = Vec::new();
        for _ in 0..CONSUMERS {
            let client = Client::connect(endpoint).await?;
            loops.push(drain(SimpleConsumer::new(client, take.clone()).await?));
        }
        let all = futures::future::try_join_all(loops).await?;
        Ok(all.into_iter().flatten().collect())
    }
}

/// One delivery; times are milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Which of all messages.
    number: u64,
    due: u64,
    visible: u64,
    /// By the consumer's clock.
    came: u64,
}

async fn drain(consumer: SimpleConsumer) -> Result<Vec<Seen>, Failure> {
    let mut seen = Vec::new();
    loop {
        let messages = consumer.receive().await?;
        if messages.is_empty() {
            return Ok(seen);
        }
        let came = now();
        seen.extend(messages.iter().map(|message| {
            let (due, number) = head(&message.body);
            Seen { number, due, visible: message.stored, came }
        }));
        consumer.ack(&messages).await?;
    }
}

/// Other people's messages count as due in 1970, and are the first one.
fn head(body: &Bytes) -> (u64, u64) {
    let head = body.first_chunk::<HEAD>().map_or(0, |head| u128::from_be_bytes(*head));
    (u64::try_from(head >> 64).expect("half of it"), head as u64)
}

impl Delays {
    fn count(&mut self, seen: &[Seen], begins: u64) {
        let mut late: Vec<u64> =
            seen.iter().map(|one| one.visible.saturating_sub(one.due)).collect();
        late.sort_unstable();
        let at = |share: usize| late.get(late.len().saturating_sub(1) * share / 100);
        let last = seen.iter().map(|one| one.visible).max().unwrap_or(begins);
        let different: HashSet<u64> = seen.iter().map(|one| one.number).collect();
        self.received = different.len() as u64;
        self.repeated = seen.len() as u64 - self.received;
        self.early = seen.iter().filter(|one| one.visible.min(one.came) < one.due).count() as u64;
        self.fired_within_ms = last.saturating_sub(begins);
        self.fired_per_second = self.received as f64 * 1000.0 / self.fired_within_ms.max(1) as f64;
        self.late_p50_ms = at(50).copied().unwrap_or_default();
        self.late_p99_ms = at(99).copied().unwrap_or_default();
        self.late_max_ms = at(100).copied().unwrap_or_default();
    }
}

pub(super) fn show(output: &Output, delays: &Delays) {
    output.show(delays, |delays| {
        let head = ["SENT", "SENT/S", "RECEIVED", "FIRED/S", "LATE P50", "P99", "MAX", "EARLY"];
        let ms = |millis: u64| format!("{millis} ms");
        let row = [
            delays.sent.to_string(),
            format!("{:.0}", delays.sent_per_second),
            delays.received.to_string(),
            format!("{:.0}", delays.fired_per_second),
            ms(delays.late_p50_ms),
            ms(delays.late_p99_ms),
            ms(delays.late_max_ms),
            delays.early.to_string(),
        ];
        Table::new(head, std::iter::once(row))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_counts_from_the_due_time() {
        let mut delays = Delays {
            topic: String::new(),
            sent: 3,
            sent_per_second: 0.0,
            received: 0,
            repeated: 0,
            early: 0,
            fired_within_ms: 0,
            fired_per_second: 0.0,
            late_p50_ms: 0,
            late_p99_ms: 0,
            late_max_ms: 0,
            durability: String::new(),
        };
        let seen = |number, due, visible, came| Seen { number, due, visible, came };
        let all = [
            seen(0, 1_000, 1_005, 1_006),
            seen(0, 1_000, 1_005, 1_400),
            seen(1, 1_000, 1_500, 1_501),
            seen(2, 2_000, 1_999, 2_001),
            seen(3, 2_000, 2_000, 1_998),
        ];
        delays.count(&all, 1_000);
        assert_eq!((delays.received, delays.repeated, delays.early), (4, 1, 2));
        assert_eq!((delays.late_p50_ms, delays.late_max_ms), (5, 500));
        assert_eq!(delays.fired_within_ms, 1_000);
    }

    #[test]
    fn a_body_says_which_it_is() {
        let mut body = BytesMut::new();
        body.put_u64(7);
        body.put_u64(9);
        assert_eq!(head(&body.freeze()), (7, 9));
        assert_eq!(head(&Bytes::from_static(b"x")), (0, 0));
    }
}
