//! ReceiveMessage: a long poll whose answer is a short stream.
//!
//! The stream is handed back at once, because a client's deadline also covers the headers; a task
//! fills it. It has a status first, then the messages, then the time.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use crate::base::{GroupName, Millis, TopicName};
use crate::broker::{Broker, ClientKind, Delivered, ReceiveError, ReceiveRequest};
use crate::wire::rocketmq::{self as v2, Code, receive_message_response::Content};

use super::ending::Ending;
use super::metadata::Caller;
use super::status::{Refused, ok};
use super::{convert, limits};

/// No poll waits longer, whatever the client asks; RocketMQ's proxy has the same limit.
pub(super) const POLL_MAX: Duration = Duration::from_secs(20);
/// A poll ends this long before the client's deadline.
const POLL_MARGIN: Duration = Duration::from_millis(500);
/// What a client that names no polling time keeps for itself: half of its request timeout.
const CLIENT_SHARE: Duration = Duration::from_millis(1500);
/// How long past its polling time the broker may take before the client is told that nothing came.
const BROKER_GRACE: Duration = Duration::from_millis(400);
const BATCH_MAX: u32 = 32;

pub(super) type Item = Result<v2::ReceiveMessageResponse, tonic::Status>;
pub(super) type Items = ReceiverStream<Item>;

pub(super) fn receive(
    broker: Broker,
    caller: Result<Caller, Refused>,
    request: v2::ReceiveMessageRequest,
    ending: Ending,
) -> Items {
    // One place only: when a send waits for it, the item before has been taken.
    let (items, stream) = mpsc::channel(1);
    let resource = request.message_queue.as_ref().and_then(|queue| queue.topic.clone());
    let asked = caller.and_then(|caller| ask(&caller, request));
    tokio::spawn(async move {
        match asked {
            Ok(asked) => {
                broker.client_seen(&asked.client, client_kind(&asked), Some(&asked.group));
                let poll = Poll { broker, items, topic: resource.unwrap_or_default(), ending };
                poll.run(asked).await;
            }
            Err(refused) => {
                // A client that went away needs no reason.
                drop(tell(&items, refused.status()).await);
            }
        }
    });
    ReceiverStream::new(stream)
}

fn client_kind(request: &ReceiveRequest) -> ClientKind {
    if request.auto_renew { ClientKind::PushConsumer } else { ClientKind::SimpleConsumer }
}

/// Checks a request. The queue's id is not looked at: clients go round the ids, and a poll that
/// waited at one empty queue would hide the messages of the others.
fn ask(caller: &Caller, request: v2::ReceiveMessageRequest) -> Result<ReceiveRequest, Refused> {
    let queue = request.message_queue.unwrap_or_default();
    let topic = limits::topic(queue.topic.as_ref())?;
    let group = limits::group(request.group.as_ref())?;
    let invisible = if request.auto_renew {
        Millis::ZERO
    } else {
        limits::invisible_on_receive(request.invisible_duration.as_ref())?
    };
    limits::attempt_id(request.attempt_id.as_deref())?;
    let remaining = caller.has_deadline.then(|| caller.remaining());
    Ok(ReceiveRequest {
        topic,
        group,
        client: caller.client.clone(),
        filter: filter(request.filter_expression)?,
        batch: u32::try_from(request.batch_size).unwrap_or_default().clamp(1, BATCH_MAX),
        invisible,
        auto_renew: request.auto_renew,
        attempt_id: request.attempt_id.filter(|id| !id.is_empty()),
        poll: polling_time(request.long_polling_timeout.as_ref(), remaining)?,
    })
}

fn filter(expression: Option<v2::FilterExpression>) -> Result<String, Refused> {
    let expression = expression.unwrap_or_default();
    let illegal = |text: String| Err(Refused::new(Code::IllegalFilterExpression, text));
    match v2::FilterType::try_from(expression.r#type) {
        Ok(v2::FilterType::Unspecified | v2::FilterType::Tag) => Ok(expression.expression),
        Ok(v2::FilterType::Sql) if expression.expression.trim().is_empty() => {
            illegal("the SQL filter expression is blank; it must not be".into())
        }
        Ok(v2::FilterType::Sql) => Err(Refused::not_yet("filtering with SQL")),
        Err(_) => illegal(format!(
            "the filter type is {}; 1 (TAG) and 2 (SQL) are known",
            expression.r#type
        )),
    }
}

/// What the client asks for, or what its deadline leaves, and never beyond either limit.
fn polling_time(
    asked: Option<&prost_types::Duration>,
    remaining: Option<Duration>,
) -> Result<Duration, Refused> {
    let wanted = match asked {
        Some(asked) => convert::millis(asked).map(Millis::duration).ok_or_else(|| {
            let text = format!(
                "the long polling timeout is {} s and {} ns; it must not be negative",
                asked.seconds, asked.nanos
            );
            Refused::new(Code::IllegalPollingTime, text)
        })?,
        None => remaining.map_or(POLL_MAX, |remaining| remaining.saturating_sub(CLIENT_SHARE)),
    };
    let left = remaining.map_or(POLL_MAX, |remaining| remaining.saturating_sub(POLL_MARGIN));
    Ok(wanted.min(left).min(POLL_MAX))
}

struct Poll {
    broker: Broker,
    items: mpsc::Sender<Item>,
    /// As the client wrote it.
    topic: v2::Resource,
    ending: Ending,
}

impl Poll {
    /// Once asked, the broker is heard to the end: what it hands out for a client that is gone
    /// must be given back (rule R22).
    async fn run(mut self, request: ReceiveRequest) {
        let give_up = Instant::now() + request.poll + BROKER_GRACE;
        let (topic, group) = (request.topic.clone(), request.group.clone());
        let broker = self.broker.clone();
        let mut receiving = Box::pin(broker.receive(request));
        let outcome = tokio::select! {
            biased;
            outcome = &mut receiving => outcome,
            () = self.items.closed() => return self.abandon(receiving.await, &topic, &group).await,
            () = tokio::time::sleep_until(give_up) => {
                // Whether the client hears of it or not, the messages below go back.
                drop(tell(&self.items, nothing()).await);
                let Self { broker, topic: resource, ending, .. } = self;
                // The stream ends here, so that the client can go on.
                let poll = Self { broker, items: mpsc::channel(1).0, topic: resource, ending };
                return poll.abandon(receiving.await, &topic, &group).await;
            }
            () = self.ending.comes() => {
                drop(tell(&self.items, nothing()).await);
                return self.abandon(receiving.await, &topic, &group).await;
            }
        };
        match outcome {
            Ok(messages) if messages.is_empty() => drop(tell(&self.items, nothing()).await),
            Ok(messages) => {
                if self.deliver(&messages).await.is_err() {
                    self.broker.undelivered(&topic, &group, messages).await;
                }
            }
            Err(error) => drop(tell(&self.items, Refused::from(error).status()).await),
        }
    }

    async fn abandon(
        self,
        outcome: Result<Vec<Delivered>, ReceiveError>,
        topic: &TopicName,
        group: &GroupName,
    ) {
        if let Ok(messages) = outcome
            && !messages.is_empty()
        {
            self.broker.undelivered(topic, group, messages).await;
        }
    }

    /// `Err` when the client went away before everything was taken. Clients use a batch only when
    /// its stream ended well, so all of it counts as not delivered then.
    async fn deliver(&self, messages: &[Delivered]) -> Result<(), Gone> {
        put(&self.items, Content::Status(ok())).await?;
        for message in messages {
            let message = convert::delivered(message.clone(), self.topic.clone());
            put(&self.items, Content::Message(message)).await?;
        }
        put(&self.items, Content::DeliveryTimestamp(convert::timestamp(convert::now()))).await?;
        // The only place is free again when the last item was taken.
        self.items.reserve().await.map(drop).map_err(|_| Gone)
    }
}

/// The client does not listen any more.
#[derive(Debug)]
struct Gone;

async fn put(items: &mpsc::Sender<Item>, content: Content) -> Result<(), Gone> {
    let item = v2::ReceiveMessageResponse { content: Some(content) };
    items.send(Ok(item)).await.map_err(|_| Gone)
}

async fn tell(items: &mpsc::Sender<Item>, status: v2::Status) -> Result<(), Gone> {
    put(items, Content::Status(status)).await?;
    put(items, Content::DeliveryTimestamp(convert::timestamp(convert::now()))).await
}

/// Never OK without a message: one client takes that for a broken server.
fn nothing() -> v2::Status {
    Refused::new(Code::MessageNotFound, "no message came within the polling time").status()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: i64) -> prost_types::Duration {
        prost_types::Duration { seconds, nanos: 0 }
    }

    #[test]
    fn a_poll_ends_before_the_clients_deadline() {
        let time = |asked: Option<i64>, remaining: Option<u64>| {
            let remaining = remaining.map(Duration::from_millis);
            polling_time(asked.map(seconds).as_ref(), remaining).unwrap().as_millis()
        };
        assert_eq!(time(Some(5), Some(8000)), 5000);
        assert_eq!(time(Some(0), Some(8000)), 0);
        assert_eq!(time(Some(40), Some(40_000)), 20_000);
        // The Rust client's deadline is its polling time.
        assert_eq!(time(Some(10), Some(10_000)), 9500);
        assert_eq!(time(Some(5), Some(300)), 0);
        // Go's simple consumer and C++ name none.
        assert_eq!(time(None, Some(8000)), 6500);
        assert_eq!(time(None, Some(1000)), 0);
        assert_eq!(time(None, None), 20_000);
        assert_eq!(time(Some(7), None), 7000);
        let refused = polling_time(Some(&seconds(-1)), None).unwrap_err();
        assert_eq!(refused.code, Code::IllegalPollingTime);
        assert!(refused.text.contains("-1 s"), "{}", refused.text);
    }

    #[test]
    fn filters_are_tags_until_there_is_sql() {
        let filter = |r#type, expression: &str| {
            let expression = v2::FilterExpression { r#type, expression: expression.into() };
            super::filter(Some(expression)).map_err(|refused| refused.code)
        };
        assert_eq!(super::filter(None), Ok(String::new()));
        assert_eq!(filter(0, "a||b"), Ok("a||b".into()));
        assert_eq!(filter(1, "*"), Ok("*".into()));
        assert_eq!(filter(2, " "), Err(Code::IllegalFilterExpression));
        assert_eq!(filter(2, "a > 1"), Err(Code::NotImplemented));
        assert_eq!(filter(3, "a"), Err(Code::IllegalFilterExpression));
    }

    fn caller() -> Caller {
        let mut request = tonic::Request::new(());
        request.metadata_mut().insert("x-mq-client-id", "c".parse().unwrap());
        Caller::of(&request).unwrap()
    }

    fn request() -> v2::ReceiveMessageRequest {
        let name = |name: &str| Some(v2::Resource { name: name.into(), ..Default::default() });
        v2::ReceiveMessageRequest {
            group: name("g"),
            message_queue: Some(v2::MessageQueue { topic: name("t"), id: 7, ..Default::default() }),
            batch_size: 16,
            invisible_duration: Some(seconds(15)),
            ..Default::default()
        }
    }

    #[test]
    fn requests_are_checked_and_batches_lowered() {
        let asked = ask(&caller(), request()).unwrap();
        assert_eq!((asked.batch, asked.invisible), (16, Millis::from_secs(15)));
        assert_eq!(asked.poll, POLL_MAX);
        let batch = |size| {
            ask(&caller(), v2::ReceiveMessageRequest { batch_size: size, ..request() }).unwrap().batch
        };
        assert_eq!([batch(1000), batch(0), batch(-1)], [32, 1, 1]);
        let code = |request| ask(&caller(), request).unwrap_err().code;
        assert_eq!(
            code(v2::ReceiveMessageRequest { message_queue: None, ..request() }),
            Code::IllegalTopic
        );
        assert_eq!(
            code(v2::ReceiveMessageRequest { group: None, ..request() }),
            Code::IllegalConsumerGroup
        );
        assert_eq!(
            code(v2::ReceiveMessageRequest { invisible_duration: None, ..request() }),
            Code::IllegalInvisibleTime
        );
        let renewed = v2::ReceiveMessageRequest {
            invisible_duration: None,
            auto_renew: true,
            attempt_id: Some(String::new()),
            ..request()
        };
        let renewed = ask(&caller(), renewed).unwrap();
        assert!(renewed.auto_renew && renewed.attempt_id.is_none());
    }
}
