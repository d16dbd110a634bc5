//! Any command survives its bytes; no bytes make decoding panic.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::base::{
    CheckoutId, ClientId, ClusterId, GroupName, LogIndex, LogPosition, Millis, QueueId,
    QueueOffset, TopicName, UtcMillis,
};
use crate::message::{MessageIdHash, MessageKind};

fn kind() -> impl Strategy<Value = MessageKind> {
    (1u8..=5).prop_map(|byte| MessageKind::from_byte(byte).unwrap())
}

fn client() -> impl Strategy<Value = ClientId> {
    "[a-z@#\u{e4}]{1,20}".prop_map(|name| ClientId::new(&name).unwrap())
}

fn unit() -> impl Strategy<Value = Unit> {
    any::<(u64, u32, u32, u64, u64)>().prop_map(
        |(position, size, tag_hash, group_hash, visible)| Unit {
            position: LogPosition::new(position),
            size,
            tag_hash,
            group_hash,
            visible: UtcMillis::new(visible),
        },
    )
}

fn handle() -> impl Strategy<Value = Handle> {
    any::<(u64, u64, u32, u64, u64, u32)>().prop_map(
        |(group, topic, queue, offset, checkout, attempt)| Handle {
            group: GroupId::new(group),
            topic: TopicId::new(topic),
            queue: QueueId::new(queue),
            offset: QueueOffset::new(offset),
            checkout: CheckoutId::new(checkout),
            attempt,
        },
    )
}

fn item() -> impl Strategy<Value = PublishItem> {
    (any::<(u32, u128, u32, u32, u64)>(), kind(), vec(any::<u8>(), 0..40)).prop_map(
        |((queue, id, body_crc, tag_hash, group_hash), kind, record)| PublishItem {
            queue: QueueId::new(queue),
            kind,
            id_hash: MessageIdHash::new(id),
            body_crc,
            tag_hash,
            group_hash,
            record: record.into(),
            record_at: 0,
        },
    )
}

fn take() -> impl Strategy<Value = Take> {
    let skip = any::<(u64, u64)>()
        .prop_map(|(from, to)| Skip { from: QueueOffset::new(from), to: QueueOffset::new(to) });
    let grant = (any::<u64>(), unit())
        .prop_map(|(offset, unit)| Grant { offset: QueueOffset::new(offset), unit });
    (any::<u32>(), vec(skip, 0..3), vec(grant, 0..3)).prop_map(|(queue, skips, grants)| Take {
        queue: QueueId::new(queue),
        skips,
        grants,
    })
}

fn checkout() -> impl Strategy<Value = Checkout> {
    let numbers = any::<(u64, u64, u64, bool, u32, u32)>();
    (numbers, client(), any::<Option<String>>(), vec(take(), 0..3)).prop_map(
        |((group, topic, invisible, auto_renew, version, epoch), consumer, attempt_id, takes)| {
            Checkout {
                group: GroupId::new(group),
                topic: TopicId::new(topic),
                consumer,
                attempt_id,
                invisible: Millis::new(invisible),
                auto_renew,
                subscription_version: version,
                takes,
                epoch,
            }
        },
    )
}

fn delivery() -> impl Strategy<Value = Delivery> {
    let millis = || any::<u64>().prop_map(Millis::new);
    prop_oneof![
        checkout().prop_map(Delivery::Checkout),
        handle().prop_map(|handle| Delivery::Ack(Ack { handle })),
        (handle(), millis())
            .prop_map(|(handle, invisible)| Delivery::Hold(Hold { handle, invisible })),
        (vec(any::<u64>().prop_map(CheckoutId::new), 0..4), millis())
            .prop_map(|(checkouts, invisible)| Delivery::Renew(Renew { checkouts, invisible })),
        (any::<u64>().prop_map(GroupId::new), client(), millis()).prop_map(
            |(group, consumer, invisible)| Delivery::Release(Release {
                group,
                consumer,
                invisible
            })
        ),
        (vec(handle(), 0..4), millis())
            .prop_map(|(handles, invisible)| Delivery::Return(Return { handles, invisible })),
        (handle(), millis())
            .prop_map(|(handle, otherwise)| Delivery::GiveUp(GiveUp { handle, otherwise })),
    ]
}

fn rule() -> impl Strategy<Value = OrderRule> {
    let orders = prop::sample::select(vec![Order::Single, Order::Batch, Order::Off]);
    let rules = prop::sample::select(vec![Exhausted::Dead, Exhausted::Stop]);
    (orders, rules).prop_map(|(order, exhausted)| OrderRule { order, exhausted })
}

fn subscribe() -> impl Strategy<Value = Subscribe> {
    any::<(u64, u64, String)>().prop_map(|(group, topic, expression)| Subscribe {
        group: GroupId::new(group),
        topic: TopicId::new(topic),
        expression,
    })
}

fn retention() -> impl Strategy<Value = Command> {
    let relocation = (any::<u64>(), vec(any::<u8>(), 0..40)).prop_map(|(original, record)| {
        let original = LogPosition::new(original);
        Relocation { original, record: record.into(), record_at: 0 }
    });
    prop_oneof![
        any::<(u64, u64, u64, u64)>().prop_map(|(stride, time, bytes, moved_max)| {
            Command::Retain(Retention { stride, time: Millis::new(time), bytes, moved_max })
        }),
        any::<u64>().prop_map(|mark| Command::PurgeIntent { mark: LogIndex::new(mark) }),
        any::<u64>().prop_map(|mark| Command::PurgeTo { mark: LogIndex::new(mark) }),
        vec(relocation, 0..4).prop_map(Command::Relocate),
        any::<(u64, u64)>().prop_map(|(topic, mark)| {
            Command::Trim(Trim { topic: TopicId::new(topic), mark: LogIndex::new(mark) })
        }),
    ]
}

fn delay() -> impl Strategy<Value = Command> {
    let one = (any::<u64>(), item())
        .prop_map(|(due, item)| ScheduleItem { due: UtcMillis::new(due), item });
    let timer = || {
        any::<(u64, u128, Option<u64>)>().prop_map(|(topic, id, position)| TimerKey {
            topic: TopicId::new(topic),
            id_hash: MessageIdHash::new(id),
            position: position.map(LogPosition::new),
        })
    };
    prop_oneof![
        (any::<(u64, bool)>(), vec(one, 0..4)).prop_map(|((topic, dedup), items)| {
            Command::Schedule(Schedule { topic: TopicId::new(topic), dedup, items })
        }),
        timer().prop_map(Command::Recall),
        (timer(), any::<u64>())
            .prop_map(|(timer, due)| Command::Reschedule { timer, due: UtcMillis::new(due) }),
    ]
}

fn transactions() -> impl Strategy<Value = Command> {
    let transaction = || {
        any::<(u64, u64)>().prop_map(|(topic, at)| Transaction {
            topic: TopicId::new(topic),
            at: LogPosition::new(at),
        })
    };
    let half = (item(), any::<u64>())
        .prop_map(|(item, first)| HalfItem { item, first_check: Millis::new(first) });
    let prepare = (any::<(u64, u64, u32)>(), "[a-z]{1,60}", vec(half, 0..4)).prop_map(
        |((topic, interval, checks_max), producer, halves)| {
            Command::Prepare(Prepare {
                topic: TopicId::new(topic),
                producer: ClientId::new(&producer).unwrap(),
                interval: Millis::new(interval),
                checks_max,
                halves,
            })
        },
    );
    let checked = (transaction(), any::<u32>())
        .prop_map(|(transaction, number)| Checked { transaction, number });
    prop_oneof![
        prepare,
        (transaction(), decision(), decider()).prop_map(|(transaction, decision, by)| {
            Command::End(End { transaction, decision, by })
        }),
        vec(checked, 0..4).prop_map(Command::Check),
        transaction().prop_map(Command::Resume),
    ]
}

fn positions() -> impl Strategy<Value = Vec<(QueueId, QueueOffset)>> {
    let one = |(queue, offset)| (QueueId::new(queue), QueueOffset::new(offset));
    vec(any::<(u32, u64)>().prop_map(one), 0..4)
}

fn broadcast() -> impl Strategy<Value = Command> {
    let position = (any::<(u64, u64, u64, u64, Option<u64>, bool, bool)>(), client(), positions())
        .prop_map(|(numbers, instance, positions)| {
            let (group, topic, lease, attempt, incarnation, seek, earliest) = numbers;
            Command::Position(Position {
                group: GroupId::new(group),
                topic: TopicId::new(topic),
                instance,
                lease: Millis::new(lease),
                begin: if earliest { JoinAt::Earliest } else { JoinAt::Latest },
                attempt,
                incarnation: incarnation.map(LogIndex::new),
                seek,
                positions,
            })
        });
    let leave =
        (any::<(u64, u64, u64)>(), client()).prop_map(|((group, topic, incarnation), instance)| {
            let (group, topic) = (GroupId::new(group), TopicId::new(topic));
            let incarnation = LogIndex::new(incarnation);
            Command::Leave(Leave { group, topic, instance, incarnation })
        });
    prop_oneof![position, leave]
}

fn decision() -> impl Strategy<Value = Decision> {
    prop_oneof![Just(Decision::Commit), Just(Decision::RollBack)]
}

fn decider() -> impl Strategy<Value = Decider> {
    prop_oneof![Just(Decider::Producer), Just(Decider::Check), Just(Decider::Operator)]
}

fn decided() -> impl Strategy<Value = Decided> {
    (decision(), decider(), any::<u64>(), any::<Option<(u32, u64)>>()).prop_map(
        |(decision, by, stamp, place)| {
            let place = place.map(|(queue, at)| (QueueId::new(queue), QueueOffset::new(at)));
            Decided { decision, by, stamp: UtcMillis::new(stamp), place }
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        any::<(u128, [u8; 32])>().prop_map(|(cluster, handle_key)| Command::Found(Found {
            cluster: ClusterId::new(cluster),
            handle_key
        })),
        (any::<(u64, bool)>(), vec(item(), 0..4)).prop_map(|((topic, dedup), items)| {
            Command::Publish(Publish { topic: TopicId::new(topic), dedup, items })
        }),
        vec(delivery(), 0..6).prop_map(Command::Deliveries),
        ("[a-z]{1,127}", any::<u32>(), vec(kind(), 0..4), any::<Option<u64>>()).prop_map(
            |(name, queues, kinds, keep)| Command::CreateTopic(CreateTopic {
                name: TopicName::new(&name).unwrap(),
                queues,
                kinds,
                keep: keep.map(Millis::new),
            })
        ),
        retention(),
        delay(),
        transactions(),
        any::<u64>().prop_map(|topic| Command::DeleteTopic { topic: TopicId::new(topic) }),
        ("[a-z]{1,120}", any::<u32>(), backoff(), (rule(), begin()), any::<Option<u64>>())
            .prop_map(|(name, attempts_max, backoff, (rule, begin), keep)| {
                Command::CreateGroup(CreateGroup {
                    name: GroupName::new(&name).unwrap(),
                    attempts_max,
                    backoff,
                    rule,
                    dead_keep: keep.map(Millis::new),
                    begin,
                })
            }),
        retries(),
        any::<(u64, u32)>().prop_map(|(topic, queues)| {
            Command::GrowTopic { topic: TopicId::new(topic), queues }
        }),
        any::<(u64, u64)>().prop_map(|(group, topic)| Command::ResumeLines {
            group: GroupId::new(group),
            topic: TopicId::new(topic),
        }),
        any::<u64>().prop_map(|group| Command::DeleteGroup { group: GroupId::new(group) }),
        subscribe().prop_map(Command::Subscribe),
        subscribe().prop_map(Command::Unsubscribe),
        any::<u32>().prop_map(|limit| Command::Tick { limit }),
        Just(Command::Audit),
        broadcast(),
    ]
}

fn backoff() -> impl Strategy<Value = Backoff> {
    prop_oneof![
        vec(any::<u64>().prop_map(Millis::new), 0..18).prop_map(Backoff::Listed),
        any::<(u64, u64, u32)>().prop_map(|(initial, max, growth)| {
            let (initial, max) = (Millis::new(initial), Millis::new(max));
            Backoff::Exponential(Curve { initial, max, growth })
        }),
    ]
}

fn retries() -> impl Strategy<Value = Command> {
    prop_oneof![
        (any::<(u64, Option<u32>, Option<u64>)>(), proptest::option::of(backoff())).prop_map(
            |((group, attempts_max, keep), backoff)| Command::UpdateGroup(UpdateGroup {
                group: GroupId::new(group),
                attempts_max,
                backoff,
                dead_keep: keep.map(Millis::new),
            })
        ),
        (any::<(u64, u64)>(), vec(any::<u64>().prop_map(QueueOffset::new), 0..5)).prop_map(
            |((group, topic), letters)| Command::Redrive(Redrive {
                group: GroupId::new(group),
                topic: TopicId::new(topic),
                letters,
            })
        ),
        cursors(),
    ]
}

fn begin() -> impl Strategy<Value = Begin> {
    let start = prop_oneof![
        Just(StartAt::Earliest),
        Just(StartAt::Latest),
        any::<u64>().prop_map(|time| StartAt::Time(UtcMillis::new(time))),
    ];
    (start, any::<bool>()).prop_map(|(start, paused)| Begin { start, paused })
}

fn cursors() -> impl Strategy<Value = Command> {
    let offset = || any::<u64>().prop_map(QueueOffset::new);
    let queue = || any::<u32>().prop_map(QueueId::new);
    let ids = || any::<(u64, u64)>().prop_map(|(g, t)| (GroupId::new(g), TopicId::new(t)));
    prop_oneof![
        (ids(), vec(offset(), 0..4)).prop_map(|((group, topic), offsets)| {
            Command::Start(Start { group, topic, offsets })
        }),
        (ids(), vec((queue(), offset()), 0..4)).prop_map(|((group, topic), offsets)| {
            Command::Reset(Reset { group, topic, offsets })
        }),
        any::<(u64, bool)>()
            .prop_map(|(group, paused)| Command::Pause { group: GroupId::new(group), paused }),
        (ids(), queue(), offset()).prop_map(|((group, topic), queue, offset)| {
            Command::StoreOffset(StoreOffset { group, topic, queue, offset })
        }),
        any::<(u64, u64)>().prop_map(|(group, topic)| Command::MembersDiffer {
            group: GroupId::new(group),
            topic: TopicId::new(topic),
        }),
    ]
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        any::<u64>().prop_map(|topic| Refusal::NoTopic { topic: TopicId::new(topic) }),
        any::<u64>().prop_map(|group| Refusal::NoGroup { group: GroupId::new(group) }),
        any::<(u32, u32)>()
            .prop_map(|(queue, queues)| Refusal::NoQueue { queue: QueueId::new(queue), queues }),
        any::<(String, String)>()
            .prop_map(|(exists, asked)| Refusal::TopicDiffers { exists, asked }),
        any::<(String, u64)>().prop_map(|(what, limit)| Refusal::Limit { what, limit }),
        any::<(u64, u64)>().prop_map(|(bytes, limit)| Refusal::DelayedFull { bytes, limit }),
        any::<(u64, u64, u64)>()
            .prop_map(|(count, visible, limit)| { Refusal::TimersFull { count, visible, limit } }),
        any::<u64>().prop_map(|at| Refusal::NoTransaction { at: LogPosition::new(at) }),
        decided().prop_map(|decided| Refusal::Decided { decided }),
        any::<(u64, u64)>().prop_map(|(bytes, limit)| Refusal::HalvesFull { bytes, limit }),
        any::<String>().prop_map(|name| Refusal::NoOwner { name }),
        any::<u64>().prop_map(|topic| Refusal::DeadLettersOnly { topic: TopicId::new(topic) }),
        any::<(u64, u64)>().prop_map(|(group, topic)| Refusal::NotBegun {
            group: GroupId::new(group),
            topic: TopicId::new(topic),
        }),
    ]
}

fn outcome() -> impl Strategy<Value = DeliveryOutcome> {
    let granted = (any::<(u32, u64, u32, u64)>(), unit()).prop_map(
        |((queue, offset, attempt, checkout), unit)| Granted {
            queue: QueueId::new(queue),
            offset: QueueOffset::new(offset),
            attempt,
            unit,
            checkout: CheckoutId::new(checkout),
        },
    );
    prop_oneof![
        (any::<u64>(), vec(granted, 0..4)).prop_map(|(checkout, granted)| {
            let checkout = CheckoutId::new(checkout);
            DeliveryOutcome::CheckedOut(CheckedOut { checkout, granted })
        }),
        Just(DeliveryOutcome::Done),
        Just(DeliveryOutcome::Stale),
        refusal().prop_map(DeliveryOutcome::Refused),
    ]
}

fn redriven() -> impl Strategy<Value = Redriven> {
    use Redriven::{Done, Full, NotFound, TargetGone};
    proptest::sample::select(&[Done, TargetGone, NotFound, Full][..])
}

fn reply() -> impl Strategy<Value = Reply> {
    let published =
        any::<(u32, u64, u64, bool)>().prop_map(|(queue, offset, visible, repeated)| Published {
            queue: QueueId::new(queue),
            offset: QueueOffset::new(offset),
            visible: UtcMillis::new(visible),
            repeated,
        });
    prop_oneof![
        Just(Reply::Done),
        vec(published, 0..4).prop_map(Reply::Published),
        vec(outcome(), 0..4).prop_map(Reply::Deliveries),
        any::<(u64, bool)>().prop_map(|(topic, existed)| Reply::TopicCreated {
            topic: TopicId::new(topic),
            existed
        }),
        any::<(u64, bool)>().prop_map(|(group, existed)| Reply::GroupCreated {
            group: GroupId::new(group),
            existed
        }),
        any::<u32>().prop_map(|version| Reply::Subscribed { version }),
        any::<u32>().prop_map(|fired| Reply::Ticked { fired }),
        vec(redriven(), 0..4).prop_map(Reply::Redriven),
        vec(any::<(u64, bool)>(), 0..4).prop_map(|prepared| {
            let one = |(at, repeated)| Prepared { at: LogPosition::new(at), repeated };
            Reply::Prepared(prepared.into_iter().map(one).collect())
        }),
        (decided(), any::<bool>())
            .prop_map(|(decided, repeated)| Reply::Ended { decided, repeated }),
        any::<u32>().prop_map(|counted| Reply::Checked { counted }),
        any::<bool>().prop_map(|first| Reply::MembersDiffer { first }),
        any::<(u64, u64)>().prop_map(|(index, state_hash)| Reply::Audited {
            index: LogIndex::new(index),
            state_hash
        }),
        refusal().prop_map(Reply::Refused),
        vec(any::<(u64, bool)>(), 0..4).prop_map(|all| {
            let one =
                |(position, repeated)| Scheduled { position: LogPosition::new(position), repeated };
            Reply::Scheduled(all.into_iter().map(one).collect())
        }),
        prop_oneof![
            Just(TimerOutcome::Recalled),
            Just(TimerOutcome::Rescheduled),
            Just(TimerOutcome::AlreadyFired),
            Just(TimerOutcome::NotFound),
        ]
        .prop_map(Reply::Timer),
        (any::<(u64, bool, u64, u64)>(), positions()).prop_map(
            |((incarnation, known, until, lost), positions)| Reply::Placed(Placed {
                incarnation: LogIndex::new(incarnation),
                known,
                until: UtcMillis::new(until),
                lost,
                positions,
            })
        ),
        any::<u32>().prop_map(|epoch| Reply::Reset { epoch }),
    ]
}

/// Where records lie is found by decoding; the rest must be equal.
fn forget_places(mut command: Command) -> Command {
    if let Command::Publish(publish) = &mut command {
        for item in &mut publish.items {
            item.record_at = 0;
        }
    }
    if let Command::Schedule(schedule) = &mut command {
        for one in &mut schedule.items {
            one.item.record_at = 0;
        }
    }
    if let Command::Prepare(prepare) = &mut command {
        for half in &mut prepare.halves {
            half.item.record_at = 0;
        }
    }
    if let Command::Relocate(relocations) = &mut command {
        for relocation in relocations {
            relocation.record_at = 0;
        }
    }
    command
}

proptest! {
    #[test]
    fn commands_survive_their_bytes(command in command()) {
        let bytes = command.encode();
        let decoded = Command::decode(&bytes).unwrap();
        prop_assert_eq!(decoded.encode(), bytes);
        prop_assert_eq!(forget_places(decoded), command);
    }

    #[test]
    fn replies_survive_their_bytes(reply in reply()) {
        prop_assert_eq!(Reply::decode(&reply.encode()).unwrap(), reply);
    }

    /// Every prefix is refused, so a command that lost its end is never taken for a shorter one.
    #[test]
    fn truncated_commands_are_refused(command in command(), cut in any::<prop::sample::Index>()) {
        let bytes = command.encode();
        prop_assert!(Command::decode(&bytes.slice(..cut.index(bytes.len()))).is_err());
    }

    #[test]
    fn truncated_replies_are_refused(reply in reply(), cut in any::<prop::sample::Index>()) {
        let bytes = reply.encode();
        prop_assert!(Reply::decode(&bytes.slice(..cut.index(bytes.len()))).is_err());
    }

    /// What is accepted has that one form in bytes only.
    #[test]
    fn damaged_commands_never_panic(
        command in command(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = command.encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let bytes = Bytes::from(bytes);
        if let Ok(decoded) = Command::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn garbage_never_panics(
        version in 0u8..6,
        kind in 0u8..96,
        tail in vec(any::<u8>(), 0..300),
    ) {
        let bytes: Bytes = [&[version, kind], tail.as_slice()].concat().into();
        let _ = Command::decode(&bytes);
        let _ = Reply::decode(&bytes);
        let _ = Command::decode(&bytes.slice(1..));
    }
}
