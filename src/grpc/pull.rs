//! PullMessage, and the offsets that readers find, keep and ask for.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::base::{QueueOffset, UtcMillis};
use crate::broker::{Broker, OffsetOf, PullRequest, Pulled, QueueRequest, leaving};
use crate::wire::rocketmq::pull_message_response::Content;
use crate::wire::rocketmq::{self as v2, Code};

use super::ending::Ending;
use super::metadata::Caller;
use super::observed::Observed;
use super::receive::polling_time;
use super::status::{Refused, ok};
use super::{convert, limits};

pub(super) type Item = Result<v2::PullMessageResponse, Status>;

/// A status first, then the messages, then where the reader goes on.
pub(super) fn pull(
    broker: Broker,
    caller: Result<Caller, Refused>,
    request: v2::PullMessageRequest,
    ending: Ending,
) -> ReceiverStream<Item> {
    let observed = Observed::begin("PullMessage");
    let (items, stream) = mpsc::channel(1);
    let named = request.message_queue.clone().unwrap_or_default();
    let asked = caller.and_then(|caller| ask(&caller, request));
    let reply = Reply { items, topic: named.topic.unwrap_or_default(), queue: named.id };
    tokio::spawn(async move {
        let code = match asked {
            Ok(asked) => poll(&broker, asked, reply, ending).await,
            Err(refused) => reply.tell(refused.code, refused.status(), Vec::new(), None).await,
        };
        observed.end(code);
    });
    ReceiverStream::new(stream)
}

fn ask(caller: &Caller, request: v2::PullMessageRequest) -> Result<PullRequest, Refused> {
    let remaining = caller.has_deadline.then(|| caller.remaining());
    Ok(PullRequest {
        at: queue(request.message_queue)?,
        group: limits::group(request.group.as_ref())?,
        offset: offset(request.offset)?,
        batch: limits::batch(request.batch_size)?,
        filter: limits::filter(request.filter_expression.as_ref())?,
        poll: polling_time(request.long_polling_timeout.as_ref(), remaining)?,
    })
}

/// The queue must be a real one: an offset means nothing in any other.
fn queue(queue: Option<v2::MessageQueue>) -> Result<QueueRequest, Refused> {
    let queue = queue.unwrap_or_default();
    let topic = limits::topic(queue.topic.as_ref())?;
    match u32::try_from(queue.id) {
        Ok(queue) => Ok(QueueRequest { topic, queue }),
        Err(_) => {
            let text = format!("the queue is {}; offsets are those of one queue, from 0", queue.id);
            Err(Refused::new(Code::BadRequest, text))
        }
    }
}

fn offset(offset: i64) -> Result<QueueOffset, Refused> {
    let text = || format!("the offset is {offset}; the first one is 0");
    let offset = u64::try_from(offset).map_err(|_| Refused::new(Code::IllegalOffset, text()))?;
    Ok(QueueOffset::new(offset))
}

async fn poll(broker: &Broker, request: PullRequest, reply: Reply, mut ending: Ending) -> Code {
    let (asker, gone) = leaving();
    let from = request.offset;
    let mut pulling = Box::pin(broker.pull(request, &gone));
    let outcome = tokio::select! {
        biased;
        outcome = &mut pulling => outcome,
        () = reply.items.closed() => return Code::RequestTimeout,
        () = ending.comes() => {
            asker.leave();
            pulling.await
        }
    };
    match outcome {
        Ok(Pulled::Found { messages, next }) => {
            reply.tell(Code::Ok, ok(), messages, Some(next)).await
        }
        Ok(Pulled::Nothing { next }) => {
            let none =
                Refused::new(Code::MessageNotFound, "no message came within the polling time");
            reply.tell(none.code, none.status(), Vec::new(), Some(next)).await
        }
        Ok(Pulled::OutOfRange { next }) => {
            let text = format!("offset {from} is not in the queue; the nearest one is {next}");
            let illegal = Refused::new(Code::IllegalOffset, text);
            reply.tell(illegal.code, illegal.status(), Vec::new(), Some(next)).await
        }
        Err(error) => {
            let refused = Refused::from(error);
            reply.tell(refused.code, refused.status(), Vec::new(), None).await
        }
    }
}

/// The stream as its writer sees it; it ends when this is dropped.
struct Reply {
    items: mpsc::Sender<Item>,
    /// Both as the client wrote them.
    topic: v2::Resource,
    queue: i32,
}

impl Reply {
    async fn tell(
        self,
        code: Code,
        status: v2::Status,
        messages: Vec<crate::broker::Delivered>,
        next: Option<QueueOffset>,
    ) -> Code {
        let messages = messages.into_iter().map(|message| {
            let mut message = convert::delivered(message, self.topic.clone());
            if let Some(system) = message.system_properties.as_mut() {
                // Nothing of it is with anybody.
                (system.receipt_handle, system.delivery_attempt) = (None, None);
                system.queue_id = self.queue;
            }
            Content::Message(message)
        });
        let next = next.map(|next| Content::NextOffset(convert::signed(next.get())));
        let all = std::iter::once(Content::Status(status)).chain(messages).chain(next);
        for content in all {
            let item = v2::PullMessageResponse { content: Some(content) };
            if self.items.send(Ok(item)).await.is_err() {
                // The client is gone; nothing was taken for it.
                return Code::RequestTimeout;
            }
        }
        code
    }
}

pub(super) async fn update_offset(
    broker: &Broker,
    request: v2::UpdateOffsetRequest,
) -> Result<v2::UpdateOffsetResponse, Refused> {
    let (at, group) = (queue(request.message_queue)?, limits::group(request.group.as_ref())?);
    broker.store_offset(&group, &at, offset(request.offset)?).await?;
    Ok(v2::UpdateOffsetResponse { status: Some(ok()) })
}

pub(super) async fn get_offset(
    broker: &Broker,
    request: v2::GetOffsetRequest,
) -> Result<v2::GetOffsetResponse, Refused> {
    let (at, group) = (queue(request.message_queue)?, limits::group(request.group.as_ref())?);
    match broker.offset_of_group(&group, &at).await? {
        Some(offset) => {
            let offset = convert::signed(offset.get());
            Ok(v2::GetOffsetResponse { status: Some(ok()), offset })
        }
        None => {
            let text =
                format!("group {group} has no offset in queue {} of {} yet", at.queue, at.topic);
            Err(Refused::new(Code::OffsetNotFound, text))
        }
    }
}

pub(super) async fn query_offset(
    broker: &Broker,
    request: v2::QueryOffsetRequest,
) -> Result<v2::QueryOffsetResponse, Refused> {
    let which = offset_of(&request)?;
    let at = queue(request.message_queue)?;
    let offset = convert::signed(broker.find_offset(&at, which).await?.get());
    Ok(v2::QueryOffsetResponse { status: Some(ok()), offset })
}

fn offset_of(request: &v2::QueryOffsetRequest) -> Result<OffsetOf, Refused> {
    let bad = |text: String| Refused::new(Code::BadRequest, text);
    match v2::QueryOffsetPolicy::try_from(request.query_offset_policy) {
        Ok(v2::QueryOffsetPolicy::Beginning) => Ok(OffsetOf::Earliest),
        Ok(v2::QueryOffsetPolicy::End) => Ok(OffsetOf::Latest),
        Ok(v2::QueryOffsetPolicy::Timestamp) => {
            let text = "the policy is TIMESTAMP, and the timestamp is missing";
            let time = request.timestamp.as_ref().ok_or_else(|| bad(text.to_owned()))?;
            Ok(OffsetOf::Time(at_or_after(time)))
        }
        Err(_) => Err(bad(format!(
            "the policy is {}; 0 (BEGINNING), 1 (END) and 2 (TIMESTAMP) are known",
            request.query_offset_policy
        ))),
    }
}

/// The first millisecond that is not before it; what lies before 1970 is 1970.
fn at_or_after(time: &prost_types::Timestamp) -> UtcMillis {
    let seconds = u64::try_from(time.seconds).unwrap_or_default();
    let nanos = u64::try_from(time.nanos).unwrap_or_default().min(999_999_999);
    UtcMillis::new(seconds.saturating_mul(1000).saturating_add(nanos.div_ceil(1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(id: i32) -> Option<v2::MessageQueue> {
        let topic = Some(v2::Resource { name: "t".into(), ..Default::default() });
        Some(v2::MessageQueue { topic, id, ..Default::default() })
    }

    #[test]
    fn an_offset_needs_its_queue() {
        assert_eq!(queue(queued(3)).unwrap().queue, 3);
        let refused = queue(queued(-1)).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest);
        assert!(refused.text.contains("-1"), "{}", refused.text);
        assert_eq!(offset(-1).unwrap_err().code, Code::IllegalOffset);
        assert_eq!(offset(0).unwrap(), QueueOffset::ZERO);
    }

    #[test]
    fn a_policy_is_one_of_three() {
        let asked = |query_offset_policy, timestamp| {
            let request =
                v2::QueryOffsetRequest { message_queue: None, query_offset_policy, timestamp };
            offset_of(&request).map_err(|refused| refused.code)
        };
        assert_eq!(asked(0, None), Ok(OffsetOf::Earliest));
        assert_eq!(asked(1, None), Ok(OffsetOf::Latest));
        assert_eq!(asked(2, None), Err(Code::BadRequest));
        assert_eq!(asked(3, None), Err(Code::BadRequest));
        let time = prost_types::Timestamp { seconds: 2, nanos: 1 };
        assert_eq!(asked(2, Some(time)), Ok(OffsetOf::Time(UtcMillis::new(2001))));
    }
}
