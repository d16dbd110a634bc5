//! ReceiveMessage: a long poll whose answer is a short stream.
//!
//! The stream is handed back at once, because a client's deadline also covers the headers; a task
//! fills it. It has a status first, then the messages, then the time.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use crate::base::Millis;
use crate::broker::{Broker, ClientKind, Delivered, ReceiveRequest, leaving};
use crate::wire::rocketmq::{self as v2, Code, receive_message_response::Content};

use super::ending::Ending;
use super::metadata::Caller;
use super::observed::Observed;
use super::status::{Refused, ok};
use super::{convert, limits};

pub(super) const RPC: &str = "ReceiveMessage";
/// No poll waits longer, whatever the client asks; RocketMQ's proxy has the same limit.
pub(super) const POLL_MAX: Duration = Duration::from_secs(20);
/// A poll ends this long before the client's deadline.
const POLL_MARGIN: Duration = Duration::from_millis(500);
/// What a client that names no polling time keeps for itself: half of its request timeout.
const CLIENT_SHARE: Duration = Duration::from_millis(1500);
/// How long past its polling time the broker may take before the client is told that nothing came.
const BROKER_GRACE: Duration = Duration::from_millis(400);

/// How long a hand-out that is under way is waited for when the node ends.
const END_GRACE: Duration = Duration::from_millis(500);

pub(super) type Item = Result<v2::ReceiveMessageResponse, tonic::Status>;
pub(super) type Items = ReceiverStream<Item>;

pub(super) fn receive(
    broker: Broker,
    caller: Result<Caller, Refused>,
    request: v2::ReceiveMessageRequest,
    ending: Ending,
) -> Items {
    let observed = Observed::begin(RPC);
    // One place only: when a send waits for it, the item before has been taken.
    let (items, stream) = mpsc::channel(1);
    let resource = request.message_queue.as_ref().and_then(|queue| queue.topic.clone());
    let asked = caller.and_then(|caller| ask(&caller, request));
    let reply = Reply { items, topic: resource.unwrap_or_default() };
    tokio::spawn(async move {
        let code = match asked {
            Ok(asked) => poll(&broker, asked, reply, ending).await,
            Err(refused) => reply.refuse(refused).await,
        };
        observed.end(code);
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
        filter: limits::filter(request.filter_expression.as_ref())?,
        batch: limits::batch(request.batch_size)?,
        invisible,
        auto_renew: request.auto_renew,
        attempt_id: request.attempt_id.filter(|id| !id.is_empty()),
        poll: polling_time(request.long_polling_timeout.as_ref(), remaining)?,
    })
}

/// What the client asks for, or what its deadline leaves, and never beyond either limit.
pub(super) fn polling_time(
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

/// Once asked, the broker is heard to the end: what it hands out for a client that is gone must be
/// given back (rule R22).
async fn poll(broker: &Broker, request: ReceiveRequest, reply: Reply, mut ending: Ending) -> Code {
    broker.client_seen(&request.client, client_kind(&request), Some(&request.group));
    let give_up = Instant::now() + request.poll + BROKER_GRACE;
    let (topic, group) = (request.topic.clone(), request.group.clone());
    let auto_renew = request.auto_renew;
    let (asker, gone) = leaving();
    let mut receiving = Box::pin(broker.receive(request, &gone));
    let listens = tokio::select! {
        biased;
        outcome = &mut receiving => {
            return match outcome {
                Ok(messages) if messages.is_empty() => reply.refuse(nothing()).await,
                Ok(messages) => {
                    if reply.deliver(&messages).await.is_ok() {
                        if auto_renew {
                            broker.delivered(&topic, &group, &messages);
                        }
                        return Code::Ok;
                    }
                    broker.undelivered(&topic, &group, messages).await;
                    CANCELLED
                }
                Err(error) => reply.refuse(error.into()).await,
            };
        }
        () = reply.items.closed() => false,
        () = tokio::time::sleep_until(give_up) => true,
        () = ending.comes() => true,
    };
    // The client is told before the broker is done, or does not listen any more.
    asker.leave();
    let code = if listens { reply.refuse(nothing()).await } else { CANCELLED };
    let outcome = tokio::select! {
        outcome = receiving => outcome,
        // What is handed out later than this comes back when its time is over.
        () = ending.came(END_GRACE) => return code,
    };
    match outcome {
        Ok(messages) if !messages.is_empty() => {
            broker.undelivered(&topic, &group, messages).await;
        }
        // Nothing was handed out, so nothing has to go back.
        Ok(_) | Err(_) => {}
    }
    code
}

/// What is counted for a client that went away; the protocol has no code of its own.
const CANCELLED: Code = Code::RequestTimeout;

/// The client does not listen any more.
#[derive(Debug)]
struct Gone;

/// The stream as its writer sees it; it ends when this is dropped.
struct Reply {
    items: mpsc::Sender<Item>,
    /// As the client wrote it.
    topic: v2::Resource,
}

impl Reply {
    /// `Err` when the client went away before everything was taken. Clients use a batch only when
    /// its stream ended well, so all of it counts as not delivered then.
    async fn deliver(self, messages: &[Delivered]) -> Result<(), Gone> {
        self.put(Content::Status(ok())).await?;
        for message in messages {
            let message = convert::delivered(message.clone(), self.topic.clone());
            self.put(Content::Message(message)).await?;
        }
        self.put(Content::DeliveryTimestamp(convert::timestamp(convert::now()))).await?;
        // The only place is free again when the last item was taken.
        self.items.reserve().await.map(drop).map_err(|_| Gone)
    }

    async fn refuse(self, refused: Refused) -> Code {
        let code = refused.code;
        if self.put(Content::Status(refused.status())).await.is_ok() {
            // A client that goes away now has what it needs.
            drop(self.put(Content::DeliveryTimestamp(convert::timestamp(convert::now()))).await);
        }
        code
    }

    async fn put(&self, content: Content) -> Result<(), Gone> {
        let item = v2::ReceiveMessageResponse { content: Some(content) };
        self.items.send(Ok(item)).await.map_err(|_| Gone)
    }
}

/// Never OK without a message: one client takes that for a broken server.
fn nothing() -> Refused {
    Refused::new(Code::MessageNotFound, "no message came within the polling time")
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

    fn handed_out(count: u64) -> Vec<Delivered> {
        let message = crate::message::Message {
            topic: crate::base::TopicName::new("t").unwrap(),
            body: bytes::Bytes::from_static(b"x"),
            encoding: crate::message::BodyEncoding::Identity,
            message_id: "id".into(),
            kind: crate::message::MessageKind::Normal,
            tag: None,
            keys: Vec::new(),
            properties: Vec::new(),
            message_group: None,
            born: crate::base::UtcMillis::ZERO,
            born_host: "h".into(),
            trace_context: None,
            deliver_at: None,
            priority: None,
        };
        let one = |offset| Delivered {
            message: message.clone(),
            queue: crate::base::QueueId::new(0),
            offset: crate::base::QueueOffset::new(offset),
            stored: crate::base::UtcMillis::ZERO,
            store_host: "s".into(),
            attempt: 1,
            handle: offset.to_string(),
            death: None,
        };
        (0..count).map(one).collect()
    }

    fn reply() -> (Reply, mpsc::Receiver<Item>) {
        let (items, stream) = mpsc::channel(1);
        (Reply { items, topic: v2::Resource::default() }, stream)
    }

    #[tokio::test]
    async fn a_stream_has_a_status_then_messages_then_the_time() {
        let (reply, mut stream) = reply();
        let delivering = tokio::spawn(async move { reply.deliver(&handed_out(2)).await.is_ok() });
        let mut kinds = Vec::new();
        while let Some(item) = stream.recv().await {
            kinds.push(match item.unwrap().content.unwrap() {
                Content::Status(status) => format!("status {}", status.code),
                Content::Message(message) => {
                    message.system_properties.unwrap().receipt_handle.unwrap()
                }
                Content::DeliveryTimestamp(_) => "time".into(),
            });
        }
        assert_eq!(kinds, ["status 20000", "0", "1", "time"]);
        assert!(delivering.await.unwrap());
    }

    /// Rule R22: whoever wrote must know that it was for nobody, up to the last item.
    #[tokio::test]
    async fn a_client_that_goes_away_before_the_last_item_got_nothing() {
        for taken in 0..4 {
            let (reply, mut stream) = reply();
            let delivering = tokio::spawn(async move { reply.deliver(&handed_out(2)).await });
            for _ in 0..taken {
                stream.recv().await.unwrap().unwrap();
            }
            drop(stream);
            assert!(delivering.await.unwrap().is_err(), "{taken} of 4 items were taken");
        }
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
            ask(&caller(), v2::ReceiveMessageRequest { batch_size: size, ..request() })
                .unwrap()
                .batch
        };
        assert_eq!([batch(1), batch(1000)], [1, 32]);
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
