//! Sends to the topic in order: a few message groups, in each one message after the other.

use std::time::Duration;

use raftmq::message::{Message, MessageKind};
use tokio::time::sleep;

use super::Clients;
use super::producer::{AGAIN, message, send};
use crate::history::Value;

/// The numbers of such producers begin here.
pub(crate) const FIRST: u32 = 200;
/// Message groups of one producer.
const LINES: u32 = 3;

/// The message group of a value; `None` for one that has none.
pub(crate) fn line_of(value: Value) -> Option<u64> {
    let line = u64::from(value.producer) * u64::from(LINES) + u64::from(value.count % LINES);
    (FIRST..FIRST + 100).contains(&value.producer).then_some(line)
}

pub(super) async fn run(clients: Clients, producer: u32) {
    let random = clients.random(&format!("ordered producer {producer}"));
    let workload = clients.0.workload.clone();
    let topic = workload.ordered_topic();
    let mut count = 0;
    while !clients.is_quiet() {
        // Each message group waits for its acks, so that it takes fewer.
        let pause = random.between(1, 4 * workload.send_pause_millis);
        sleep(Duration::from_millis(pause)).await;
        let value = Value { producer, count };
        count += 1;
        let plain = message(topic, value, random.between(0, workload.body_max + 1), false);
        let line = line_of(value).map(|line| format!("line-{line}"));
        let message = Message { kind: MessageKind::Fifo, message_group: line, ..plain };
        let mut left = AGAIN;
        while send(&clients, &random, (topic, value), &message).await && left > 0 {
            left -= 1;
        }
    }
}
