//! What a group's place in a long queue costs.

use bytes::Bytes;

use super::bench::{Bench, names};
use crate::base::{QueueId, QueueOffset};
use crate::command::{Ack, Command, Delivery, DeliveryOutcome, Reply};

/// Messages of one entry.
const BATCH: u64 = 4096;
const BATCHES: u64 = 1_000_000_u64.div_ceil(BATCH);

/// One message that nobody acknowledges keeps nothing of the million behind it: what is done is two
/// numbers, however much it is (the goal is under 1 MiB a group).
#[test]
fn one_message_in_a_million_that_is_never_acked_costs_nothing() {
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 1);
    assert_eq!(bench.take("a sleeper", &[0]).len(), 1);
    let before = bench.delivery_bytes();
    for batch in 0..BATCHES {
        let first = 1 + batch * BATCH;
        bench.publish(0, usize::try_from(BATCH).unwrap());
        let offsets: Vec<u64> = (first..first + BATCH).collect();
        let acks = bench.take("a worker", &offsets).into_iter();
        let acks: Vec<Delivery> = acks.map(|handle| Delivery::Ack(Ack { handle })).collect();
        assert_eq!(acks.len() as u64, BATCH);
        match bench.reply(Command::Deliveries(acks)) {
            Reply::Deliveries(told) => {
                assert!(told.iter().all(|outcome| *outcome == DeliveryOutcome::Done));
            }
            other => panic!("deliveries are answered one by one, not {other:?}"),
        }
        // Nothing is applied again here.
        bench.log.iter_mut().for_each(|entry| entry.command = Bytes::new());
    }
    let view = bench.machine.state().view(names::GROUP, names::TOPIC, QueueId::new(0));
    assert_eq!(view.next, QueueOffset::new(1 + BATCHES * BATCH));
    assert_eq!((view.pending, view.free.len()), (1, 0));
    assert_eq!(bench.delivery_bytes(), before, "a million that are done are not remembered");
}
