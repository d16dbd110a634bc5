//! What handing out and acknowledging costs in the log; the figures of `ARCHITECTURE.md`.

use super::*;
use crate::command::{Ack, Checkout, Grant, Handle, Take, Unit};

/// Bytes before each entry's own; `commit_log` pins them.
const FRAME_HEADER: usize = 40;

/// As our own client and the official ones have them, about: `host@pid@number@random`.
const CLIENT: &str = "raftmq@1234567@0123456789abcdef0";
/// Made up by the node where a client sends none.
const ATTEMPT: &str = "0123456789abcdef0123456789abcdef";

fn unit() -> Unit {
    let (position, visible) = (LogPosition::new(1 << 40), UtcMillis::new(1_700_000_000_000));
    Unit { position, size: 200, tag_hash: 0, group_hash: 0, visible }
}

/// One checkout of so many messages from one queue.
fn checkout(messages: u64) -> Delivery {
    let grant = |offset| Grant { offset: QueueOffset::new(offset), unit: unit() };
    let grants = (0..messages).map(grant).collect();
    Delivery::Checkout(Checkout {
        group: GroupId::new(1),
        topic: TopicId::new(1),
        consumer: ClientId::new(CLIENT).unwrap(),
        attempt_id: Some(ATTEMPT.to_owned()),
        invisible: Millis::from_secs(60),
        auto_renew: true,
        subscription_version: 1,
        takes: vec![Take { queue: QueueId::new(0), skips: Vec::new(), grants }],
        epoch: 0,
    })
}

fn acks(messages: u64) -> Vec<Delivery> {
    let handle = |offset| Handle {
        group: GroupId::new(1),
        topic: TopicId::new(1),
        queue: QueueId::new(0),
        offset: QueueOffset::new(offset),
        checkout: CheckoutId::new(1),
        attempt: 1,
    };
    (0..messages).map(|offset| Delivery::Ack(Ack { handle: handle(offset) })).collect()
}

/// Frame and all.
fn entry(deliveries: Vec<Delivery>) -> usize {
    FRAME_HEADER + Command::Deliveries(deliveries).encode().len()
}

/// A checkout and its acknowledgements, each as an entry of its own: what one consumer causes that
/// waits for one before it asks for the other.
fn one_by_one(messages: u64) -> (usize, usize) {
    (entry(vec![checkout(messages)]), entry(acks(messages)))
}

/// The text says these numbers; change both or none.
#[test]
fn a_thousand_messages_cost_what_the_text_says() {
    assert_eq!(one_by_one(1), (205, 87));
    assert_eq!(one_by_one(16), (805, 702));
    assert_eq!(one_by_one(32), (1445, 1358));
    // Steps that share an entry save its frame, version, kind and count.
    let shared = entry(vec![checkout(1), checkout(1)]);
    assert_eq!(shared, 2 * entry(vec![checkout(1)]) - entry(Vec::new()));
    assert_eq!(entry(Vec::new()), 46);
    let per_thousand = |messages: u64| {
        let (out, back) = one_by_one(messages);
        1000 * (out + back) / usize::try_from(messages).unwrap()
    };
    assert_eq!([1, 16, 32].map(per_thousand), [292_000, 94_187, 87_593]);
}
