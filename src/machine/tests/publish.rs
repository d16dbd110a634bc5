//! Messages become units, once.

use super::bench::{Bench, names};
use crate::base::{QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{Command, Publish, PublishItem, Published, Refusal, Reply};
use crate::machine::Effect;

fn publish(dedup: bool, items: Vec<PublishItem>) -> Command {
    Command::Publish(Publish { topic: names::TOPIC, dedup, items })
}

fn published(reply: Reply) -> Vec<Published> {
    match reply {
        Reply::Published(published) => published,
        other => panic!("published, not {other:?}"),
    }
}

#[test]
fn offsets_are_dense_and_units_point_at_records() {
    let mut bench = Bench::with_topic(2);
    let items = vec![names::item(1, 1), names::item(0, 2), names::item(1, 3)];
    let applied = bench.apply(publish(true, items));
    let at = |queue, offset| Published {
        queue: QueueId::new(queue),
        offset: QueueOffset::new(offset),
        visible: UtcMillis::new(1_000_000),
        repeated: false,
    };
    assert_eq!(published(applied.reply), [at(1, 0), at(0, 0), at(1, 1)]);
    let arrived =
        |queue, count| Effect::Arrived { topic: names::TOPIC, queue: QueueId::new(queue), count };
    assert_eq!(applied.effects, [arrived(0, 1), arrived(1, 2)]);
    let entry = bench.log.last().unwrap();
    for (queue, offset) in [(1, 0), (0, 0), (1, 1)] {
        let unit = bench.unit(queue, offset);
        let from = usize::try_from(unit.position.since(entry.position)).unwrap();
        assert_eq!(&entry.command[from..from + unit.size as usize], b"a record");
        assert_eq!((unit.tag_hash, unit.group_hash), (11, 13));
        assert_eq!(unit.visible, entry.stamp);
    }
}

#[test]
fn all_messages_of_a_request_or_none() {
    let mut bench = Bench::with_topic(2);
    let before = bench.machine.state().queue_end(names::TOPIC, QueueId::new(0));
    let reply = bench.reply(publish(true, vec![names::item(0, 1), names::item(2, 2)]));
    let refusal = Refusal::NoQueue { queue: QueueId::new(2), queues: 2 };
    assert_eq!(reply, Reply::Refused(refusal));
    assert_eq!(bench.machine.state().queue_end(names::TOPIC, QueueId::new(0)), before);
    // Nothing of it was remembered either.
    let again = published(bench.reply(publish(true, vec![names::item(0, 1)])));
    assert!(!again[0].repeated);

    let nowhere = Publish { topic: TopicId::new(9), dedup: true, items: vec![names::item(0, 1)] };
    let refused = Reply::Refused(Refusal::NoTopic { topic: TopicId::new(9) });
    assert_eq!(bench.reply(Command::Publish(nowhere)), refused);
}

#[test]
fn a_repeated_message_gets_its_first_outcome_and_no_unit() {
    let mut bench = Bench::with_topic(2);
    let first = published(bench.reply(publish(true, vec![names::item(0, 1), names::item(0, 1)])));
    assert!(!first[0].repeated && first[1].repeated, "also within one request");
    assert_eq!(first[0].offset, first[1].offset);
    bench.stamp += 30_000;
    // To another queue, in another batch, half a minute later: the same message still.
    let later = bench.apply(publish(true, vec![names::item(1, 1), names::item(1, 2)]));
    let outcomes = published(later.reply);
    assert_eq!((outcomes[0].queue, outcomes[0].offset), (first[0].queue, first[0].offset));
    assert_eq!(outcomes[0].visible, first[0].visible);
    assert!(outcomes[0].repeated && !outcomes[1].repeated);
    assert_eq!(later.effects.len(), 1);
    assert_eq!(bench.machine.state().queue_end(names::TOPIC, QueueId::new(0)).get(), 1);
    // A producer that re-uses ids on purpose says so.
    let free = published(bench.reply(publish(false, vec![names::item(0, 1)])));
    assert!(!free[0].repeated);
}

#[test]
fn units_are_found_again_across_extents_and_files() {
    let mut bench = Bench::with_topic(3);
    // Interleaved, so that extents of the queues alternate; batches straddle their borders.
    for round in 0..40 {
        for queue in 0..3 {
            bench.stamp += 1;
            bench.publish(queue, 1 + (round * 7 + queue as usize) % 40);
        }
    }
    let state = bench.machine.state();
    for queue in (0..3).map(QueueId::new) {
        let end = state.queue_end(names::TOPIC, queue);
        assert!(end.get() > 512, "several extents each");
        let all = state.units(names::TOPIC, queue, QueueOffset::ZERO, usize::MAX).unwrap();
        assert_eq!(all.len() as u64, end.get());
        assert!(all.is_sorted_by_key(|unit| (unit.position, unit.visible)));
        let some = state.units(names::TOPIC, queue, QueueOffset::new(120), 20).unwrap();
        assert_eq!(some, all[120..140]);
        assert_eq!(state.units(names::TOPIC, queue, end, 5).unwrap(), []);
    }
    state.units_hash().unwrap();
}

#[test]
fn idle_queues_cost_neither_files_nor_much_memory() {
    let mut bench = Bench::new();
    for number in 0..200 {
        bench.apply(names::topic(&format!("topic-{number}"), 100));
    }
    let names = bench.sim.env().disk.list(&super::bench::dir()).unwrap();
    assert_eq!(names, Vec::<String>::new(), "no message, no file");
    let row = crate::machine::consume_queue::ConsumeQueues::BYTES_PER_IDLE_QUEUE;
    assert!(row <= 128, "{row} bytes for an idle queue");
}
