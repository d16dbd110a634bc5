//! Which producers are connected to this node, and how they are asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::TransactionCheck;
use super::parcel::{Living, Wanted};
use crate::base::{ClientId, TopicName};

/// Questions on their way to one stream; a stream that does not take them is passed by.
const QUESTIONS: usize = 64;
/// How long a stream may take to say that it has written a question.
const WRITTEN: Duration = Duration::from_secs(1);
/// Topics of one stream that are remembered. For those beyond, only what the producer itself has
/// prepared is asked of it.
pub const PUBLISHED_MAX: usize = 1024;
/// Streams that are tried for one question, so that an answer comes while a leader waits for it.
const STREAMS_MAX: usize = 2;

/// A question on its way to a producer.
#[derive(Debug)]
pub struct PendingCheck {
    pub check: TransactionCheck,
    written: oneshot::Sender<()>,
}

impl PendingCheck {
    /// It was written to the producer's stream: only then does the check count. Dropping it instead
    /// says that it was not.
    pub fn written(self) {
        // Whoever asked may have stopped waiting: then it counts as not asked.
        let _ = self.written.send(());
    }

    /// Nobody waits for it any more.
    fn is_void(&self) -> bool {
        self.written.is_closed()
    }

    /// One for tests, and what tells that it was written.
    #[cfg(test)]
    pub fn example() -> (Self, oneshot::Receiver<()>) {
        let (written, told) = oneshot::channel();
        (Self { check: tests::question("t"), written }, told)
    }
}

#[derive(Debug)]
struct Stream {
    number: u64,
    /// Topics that the producer sends to, as it has said or shown.
    topics: BTreeSet<TopicName>,
    questions: mpsc::Sender<PendingCheck>,
}

#[derive(Debug, Default)]
struct Inner {
    by_client: BTreeMap<ClientId, Vec<Stream>>,
    next_number: u64,
    /// Spreads questions over the producers of a topic.
    turn: usize,
}

/// The producers of this node. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub(in crate::broker) struct Producers(Arc<Mutex<Inner>>);

/// A producer's stream, on which it can be asked; it is forgotten when this is dropped.
#[derive(Debug)]
pub struct ProducerStream {
    producers: Producers,
    client: ClientId,
    number: u64,
    questions: mpsc::Receiver<PendingCheck>,
}

impl Producers {
    pub(in crate::broker) fn enter(&self, client: &ClientId) -> ProducerStream {
        let (sender, questions) = mpsc::channel(QUESTIONS);
        let mut inner = self.0.lock();
        inner.next_number += 1;
        let number = inner.next_number;
        let stream = Stream { number, topics: BTreeSet::new(), questions: sender };
        inner.by_client.entry(client.clone()).or_default().push(stream);
        ProducerStream { producers: self.clone(), client: client.clone(), number, questions }
    }

    /// A client that sends to a topic is a producer of it, whatever its settings said.
    pub(in crate::broker) fn sent(&self, client: &ClientId, topic: &TopicName) {
        let mut inner = self.0.lock();
        for stream in inner.by_client.get_mut(client).into_iter().flatten() {
            if !stream.publishes(topic) && stream.topics.len() < PUBLISHED_MAX {
                stream.topics.insert(topic.clone());
            }
        }
    }

    /// What of the wanted lives here, in the same order.
    pub(in crate::broker) fn living(&self, wanted: &[Wanted]) -> Vec<Living> {
        let inner = self.0.lock();
        let living = |wanted: &Wanted| {
            let clients = wanted.clients.iter();
            Living {
                clients: clients.filter(|id| inner.by_client.contains_key(*id)).cloned().collect(),
                any: inner.by_client.values().flatten().any(|one| one.publishes(&wanted.topic)),
            }
        };
        wanted.iter().map(living).collect()
    }

    /// Asks this client, or any producer of the topic; true once the question was written to a
    /// stream that lives.
    pub(in crate::broker) async fn ask(
        &self,
        client: Option<&ClientId>,
        check: &TransactionCheck,
    ) -> bool {
        for questions in self.streams(client, &check.message.topic).into_iter().take(STREAMS_MAX) {
            let (written, told) = oneshot::channel();
            let asked = PendingCheck { check: check.clone(), written };
            if questions.try_send(asked).is_ok()
                && matches!(timeout(WRITTEN, told).await, Ok(Ok(())))
            {
                return true;
            }
        }
        false
    }

    /// Those that may be asked, in turn.
    fn streams(
        &self,
        client: Option<&ClientId>,
        topic: &TopicName,
    ) -> Vec<mpsc::Sender<PendingCheck>> {
        let mut inner = self.0.lock();
        let mut streams: Vec<_> = match client {
            Some(client) => {
                let streams = inner.by_client.get(client).into_iter().flatten();
                streams.map(|stream| stream.questions.clone()).collect()
            }
            None => {
                let all = inner.by_client.values().flatten();
                let publishing = all.filter(|stream| stream.publishes(topic));
                publishing.map(|stream| stream.questions.clone()).collect()
            }
        };
        if !streams.is_empty() {
            inner.turn = inner.turn.wrapping_add(1);
            let turn = inner.turn % streams.len();
            streams.rotate_left(turn);
        }
        streams
    }
}

impl Stream {
    fn publishes(&self, topic: &TopicName) -> bool {
        self.topics.contains(topic)
    }
}

impl ProducerStream {
    /// The topics that the producer says it sends to, from now on; what it said before is void, and
    /// so is what it has shown, until it does again.
    pub fn publishes(&self, topics: impl IntoIterator<Item = TopicName>) {
        let mut inner = self.producers.0.lock();
        let mut streams = inner.by_client.get_mut(&self.client).into_iter().flatten();
        if let Some(stream) = streams.find(|stream| stream.number == self.number) {
            stream.topics = topics.into_iter().take(PUBLISHED_MAX).collect();
        }
    }

    /// The next question. Cancel safe. What the leader has stopped waiting for was asked of others,
    /// or will be, and is dropped.
    pub async fn next(&mut self) -> PendingCheck {
        loop {
            match self.questions.recv().await {
                Some(pending) if pending.is_void() => {}
                Some(pending) => return pending,
                // The registry holds the other end for as long as this lives.
                None => std::future::pending().await,
            }
        }
    }
}

impl Drop for ProducerStream {
    fn drop(&mut self) {
        let mut inner = self.producers.0.lock();
        let Some(streams) = inner.by_client.get_mut(&self.client) else { return };
        streams.retain(|stream| stream.number != self.number);
        if streams.is_empty() {
            inner.by_client.remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{QueueId, UtcMillis};
    use crate::message::{BodyEncoding, Message, MessageKind};

    fn client(name: &str) -> ClientId {
        ClientId::new(name).unwrap()
    }

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    pub(super) fn question(of: &str) -> TransactionCheck {
        TransactionCheck {
            transaction: "t".into(),
            message: Message {
                topic: topic(of),
                body: "b".into(),
                encoding: BodyEncoding::Identity,
                message_id: "m".into(),
                kind: MessageKind::Transaction,
                tag: None,
                keys: Vec::new(),
                properties: Vec::new(),
                message_group: None,
                born: UtcMillis::ZERO,
                born_host: String::new(),
                trace_context: None,
                deliver_at: None,
                priority: None,
            },
            queue: QueueId::new(0),
            prepared: UtcMillis::ZERO,
            store_host: String::new(),
        }
    }

    fn living(producers: &Producers, of: &str) -> (bool, usize) {
        let clients = vec![client("one"), client("two")];
        let living = producers.living(&[Wanted { topic: topic(of), clients }]);
        (living[0].any, living[0].clients.len())
    }

    #[test]
    fn a_producer_lives_as_long_as_one_of_its_streams() {
        let producers = Producers::default();
        let first = producers.enter(&client("one"));
        let second = producers.enter(&client("one"));
        assert_eq!(living(&producers, "t"), (false, 1), "it has not said what it sends to");
        first.publishes([topic("t")]);
        assert_eq!(living(&producers, "t"), (true, 1));
        drop(first);
        assert_eq!(living(&producers, "t"), (false, 1));
        producers.sent(&client("one"), &topic("t"));
        producers.sent(&client("two"), &topic("t"));
        assert_eq!(living(&producers, "t"), (true, 1), "who has no stream cannot be asked");
        drop(second);
        assert_eq!(living(&producers, "t"), (false, 0));
    }

    #[test]
    fn what_a_producer_says_holds_until_it_says_it_anew_and_is_bounded() {
        let producers = Producers::default();
        let stream = producers.enter(&client("one"));
        stream.publishes([topic("a"), topic("b")]);
        stream.publishes([topic("b")]);
        assert_eq!(["a", "b"].map(|of| living(&producers, of).0), [false, true]);
        stream.publishes((0..2 * PUBLISHED_MAX).map(|number| topic(&format!("t{number}"))));
        for number in 0..PUBLISHED_MAX {
            producers.sent(&client("one"), &topic(&format!("sent{number}")));
        }
        let known: usize =
            producers.0.lock().by_client.values().flatten().map(|one| one.topics.len()).sum();
        assert_eq!(known, PUBLISHED_MAX);
    }

    #[tokio::test]
    async fn only_what_was_written_counts() {
        let producers = Producers::default();
        assert!(!producers.ask(None, &question("t")).await, "nobody is there");
        let mut stream = producers.enter(&client("one"));
        stream.publishes([topic("t")]);
        for wrote in [true, false] {
            let check = question("t");
            let (asked, pending) = tokio::join!(producers.ask(None, &check), async {
                let pending = stream.next().await;
                let seen = pending.check.clone();
                if wrote {
                    pending.written();
                }
                seen
            });
            assert_eq!((asked, pending), (wrote, question("t")));
        }
        assert!(!producers.ask(None, &question("other")).await);
        assert!(!producers.ask(Some(&client("two")), &question("t")).await);
        let check = question("other");
        let one = client("one");
        let seen = async { stream.next().await.written() };
        let (asked, ()) = tokio::join!(producers.ask(Some(&one), &check), seen);
        assert!(asked, "the one that prepared it is asked whatever it says it sends to");
    }
}
