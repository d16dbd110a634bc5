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

/// What `ARCHITECTURE.md` says of the sizes of a backlog: a group that is at the start of a queue, one
/// that is in the middle, and one that is through have the same bytes of state, and a message under
/// way has under a hundred.
#[test]
fn a_backlog_has_no_state_of_its_own_and_a_message_under_way_little() {
    const HELD: u64 = 1000;
    let mut bench = Bench::with_topic(1);
    bench.publish(0, 1);
    let first = bench.take("a worker", &[0]);
    bench.reply(Command::Deliveries(vec![Delivery::Ack(Ack { handle: first[0] })]));
    let at_start = bench.delivery_bytes();
    for _ in 0..10 {
        bench.publish(0, usize::try_from(BATCH).unwrap());
    }
    assert_eq!(bench.delivery_bytes(), at_start, "what waits is in the queue alone");
    let offsets: Vec<u64> = (1..=HELD).collect();
    let handles = bench.take("a worker", &offsets);
    let held = bench.delivery_bytes() - at_start;
    let each = held / usize::try_from(HELD).unwrap();
    assert!(each < 100, "{each} bytes for each message under way");
    println!("a message under way: {each} bytes of a checkpoint");
    let acks = handles.into_iter().map(|handle| Delivery::Ack(Ack { handle })).collect();
    bench.reply(Command::Deliveries(acks));
    assert_eq!(bench.delivery_bytes(), at_start, "what is done leaves nothing");
}
