//! Sends messages that are told apart by their bodies.

use std::time::Duration;

use bytes::Bytes;
use raftmq::base::UtcMillis;
use raftmq::broker::{SendError, SendRequest, Sent};
use raftmq::message::{BodyEncoding, Message, MessageKind};
use tokio::time::{Instant, sleep};

use super::{Called, Clients, outcome_of, topic_name};
use crate::history::{Answer, Outcome, Place, Value, Wanted, What};
use crate::simulate::random::Random;

/// How long a producer listens, and how long the broker tries.
const PATIENCE: Duration = Duration::from_secs(4);
/// A message whose outcome is not known is sent again so often at most.
pub(super) const AGAIN: u32 = 3;

/// Body: producer, count, then bytes that both decide.
pub(crate) fn encode(value: Value, len: u64) -> Bytes {
    let mut body = Vec::with_capacity(usize::try_from(len).unwrap_or_default() + 12);
    body.extend_from_slice(&value.producer.to_be_bytes());
    body.extend_from_slice(&value.count.to_be_bytes());
    for at in 0..len {
        body.push(u8::try_from((u64::from(value.count) * 31 + at) & 0xff).unwrap_or_default());
    }
    let sum = crc32c::crc32c(&body);
    body.extend_from_slice(&sum.to_be_bytes());
    body.into()
}

/// `None` when the body is none that was made by [`encode`].
pub(crate) fn decode(body: &[u8]) -> Option<Value> {
    let (body, sum) = body.split_last_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_be_bytes(*sum) {
        return None;
    }
    let (producer, rest) = body.split_first_chunk::<4>()?;
    let (count, _) = rest.split_first_chunk::<4>()?;
    let (producer, count) = (u32::from_be_bytes(*producer), u32::from_be_bytes(*count));
    Some(Value { producer, count })
}

pub(super) async fn run(clients: Clients, producer: u32) {
    let random = clients.random(&format!("producer {producer}"));
    let workload = clients.0.workload.clone();
    let mut count = 0;
    while !clients.is_quiet() {
        sleep(Duration::from_millis(random.between(1, workload.send_pause_millis + 1))).await;
        let topic = u32::try_from(random.between(0, workload.topics.into())).unwrap_or_default();
        let value = Value { producer, count };
        count += 1;
        let len = random.between(0, workload.body_max + 1);
        let message = message(topic, value, len, workload.tagged);
        let mut left = AGAIN;
        loop {
            let unknown = send(&clients, &random, (topic, value), &message).await;
            // Now and then a client that knows the outcome sends again all the same.
            let again = if unknown { random.percent(60) } else { random.percent(3) };
            if !again || left == 0 {
                break;
            }
            left -= 1;
        }
    }
}

pub(super) fn message(topic: u32, value: Value, len: u64, tagged: bool) -> Message {
    let tag = if Wanted::Even.has(value) { Wanted::Even } else { Wanted::Odd };
    Message {
        topic: topic_name(topic),
        body: encode(value, len),
        encoding: BodyEncoding::Identity,
        message_id: format!("message-{value}"),
        kind: MessageKind::Normal,
        tag: tagged.then(|| tag.filter().to_owned()),
        keys: Vec::new(),
        properties: Vec::new(),
        message_group: None,
        born: UtcMillis::new(1_700_000_000_000),
        born_host: "127.0.0.1:1".to_owned(),
        trace_context: None,
        deliver_at: None,
        priority: None,
    }
}

/// Sends once; true when nobody knows what came of it.
pub(super) async fn send(
    clients: &Clients,
    random: &Random,
    (topic, value): (u32, Value),
    message: &Message,
) -> bool {
    let call = clients.invoke(value.producer, What::Send { topic, value });
    let message = message.clone();
    let sent = clients.call(random, PATIENCE, move |broker| async move {
        let request = SendRequest {
            topic: message.topic.clone(),
            messages: vec![message],
            deadline: Instant::now() + PATIENCE,
        };
        broker.send(request).await
    });
    let outcome = match sent.await {
        Called::Answered(Ok(sent)) => match &sent[..] {
            [Sent { queue, offset, .. }] => {
                let (queue, offset) = (queue.get(), offset.get());
                Outcome::Ok(Answer::Sent(Place { topic, queue, offset }))
            }
            other => Outcome::Unknown(format!("{} answers to one message", other.len())),
        },
        Called::Answered(Err(SendError::Unavailable(error))) => outcome_of(&error),
        Called::Answered(Err(error)) => Outcome::Fail(error.to_string()),
        Called::Refused => Outcome::Fail("refused".to_owned()),
        Called::Lost => Outcome::Unknown("no answer".to_owned()),
    };
    let unknown = matches!(outcome, Outcome::Unknown(_));
    clients.complete(call, outcome);
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_name_their_value_or_nobody() {
        let value = Value { producer: 3, count: 77 };
        let body = encode(value, 40);
        assert_eq!(decode(&body), Some(value));
        for at in 0..body.len() {
            let mut bad = body.to_vec();
            bad[at] ^= 4;
            assert_eq!(decode(&bad), None);
        }
        assert_eq!(decode(&body[..body.len() - 1]), None);
    }
}
