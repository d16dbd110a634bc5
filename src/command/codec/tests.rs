use super::*;
use crate::command::{
    Ack, CheckedOut, Checkout, Decided, Decider, Decision, DeliveryOutcome, End, GiveUp, Grant,
    Granted, HalfItem, Handle, Hold, Prepare, Prepared, Published, Refusal, Release, Renew, Reply,
    Return, Skip, Take, Transaction, Unit,
};
use crate::command::{
    Backoff, Curve, DeathReason, Redrive, Redriven, Reset, Start, StartAt, StoreOffset, UpdateGroup,
};
use crate::command::{Schedule, Scheduled, TimerKey, TimerOutcome};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unit() -> Unit {
    Unit {
        position: LogPosition::new(0x0102_0304_0506_0708),
        size: 0x64,
        tag_hash: 2_598_919,
        group_hash: 0xaabb_ccdd_eeff_0011,
        visible: UtcMillis::new(1_700_000_000_000),
    }
}

fn handle() -> Handle {
    Handle {
        group: GroupId::new(2),
        topic: TopicId::new(1),
        queue: QueueId::new(3),
        offset: QueueOffset::new(4),
        checkout: CheckoutId::new(5),
        attempt: 6,
    }
}

/// The bytes of the fixed parts above, as they stand inside other things.
const UNIT: &str = "0102030405060708000000640027a807aabbccddeeff00110000018bcfe56800";
const HANDLE: &str =
    "00000000000000020000000000000001000000030000000000000004000000000000000500000006";

/// Bytes in the log live for ever: a difference here is a broken promise, not an outdated test.
fn golden(command: &Command, expected: &str) {
    let bytes = command.encode();
    assert_eq!(hex(&bytes), expected.replace(' ', ""));
    assert_eq!(&Command::decode(&bytes).unwrap(), command);
}

fn golden_reply(reply: &Reply, expected: &str) {
    let bytes = reply.encode();
    assert_eq!(hex(&bytes), expected.replace(' ', ""));
    assert_eq!(&Reply::decode(&bytes).unwrap(), reply);
}

#[test]
fn retention_commands_keep_their_bytes() {
    let retention = Retention {
        stride: 0x10_0000,
        time: Millis::from_secs(60),
        bytes: 0x4000_0000,
        moved_max: 0x1000_0000,
    };
    golden(
        &Command::Retain(retention),
        "02 0c 0000000000100000 000000000000ea60 0000000040000000 0000000010000000",
    );
    let mark = LogIndex::new(0x77);
    golden(&Command::PurgeIntent { mark }, "02 0d 0000000000000077");
    golden(&Command::PurgeTo { mark }, "02 0f 0000000000000077");
    golden(
        &Command::Trim(Trim { topic: TopicId::new(3), mark }),
        "02 10 0000000000000003 0000000000000077",
    );
    // The record starts behind version, kind, count, position and its length: 1 + 1 + 4 + 8 + 4.
    let original = LogPosition::new(0x0a0b);
    let relocation = Relocation { original, record: Bytes::from_static(b"xyz"), record_at: 18 };
    golden(&Command::Relocate(vec![relocation]), "02 0e 00000001 0000000000000a0b 00000003 78797a");
    // A kind has one version only.
    assert!(Command::decode(&Bytes::from_static(&[1, 13, 0, 0, 0, 0, 0, 0, 0, 7])).is_err());
    golden_reply(&Reply::Refused(Refusal::NoMark { mark }), "01 09 06 0000000000000077");
    golden_reply(
        &Reply::Refused(Refusal::UnderWay { mark, count: 2 }),
        "01 09 07 0000000000000077 0000000000000002",
    );
    golden_reply(
        &Reply::Refused(Refusal::MovedFull { bytes: 3, limit: 2 }),
        "01 09 08 0000000000000003 0000000000000002",
    );
}

#[test]
fn retries_keep_their_bytes() {
    let rule = OrderRule { order: Order::Off, exhausted: Exhausted::Dead };
    let curve = Curve { initial: Millis::from_secs(1), max: Millis::from_secs(600), growth: 2000 };
    let create = CreateGroup {
        name: GroupName::new("g").unwrap(),
        attempts_max: 3,
        backoff: Backoff::Exponential(curve),
        rule,
        dead_keep: None,
        begin: Begin::default(),
    };
    golden(
        &Command::CreateGroup(create.clone()),
        "04 33 00000001 67 00000003 03 01 02 00000000000003e8 00000000000927c0 000007d0 00",
    );
    let (backoff, dead_keep) = (vec![Millis::from_secs(1)].into(), Some(Millis::from_secs(60)));
    golden(
        &Command::CreateGroup(CreateGroup { backoff, dead_keep, ..create }),
        "04 33 00000001 67 00000003 03 01 01 00000001 00000000000003e8 01 000000000000ea60",
    );
    // What an older kind can say has no other form.
    let plain = "0433 00000001 67 00000003 03 01 01 00000001 00000000000003e8 00".replace(' ', "");
    let plain: Vec<u8> = (0..plain.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&plain[at..at + 2], 16).unwrap())
        .collect();
    assert!(Command::decode(&plain.into()).is_err());
    let update = UpdateGroup {
        group: GroupId::new(2),
        attempts_max: Some(5),
        backoff: None,
        dead_keep: Some(Millis::ZERO),
    };
    golden(
        &Command::UpdateGroup(update),
        "04 34 0000000000000002 01 00000005 00 01 0000000000000000",
    );
    let redrive = Redrive {
        group: GroupId::new(2),
        topic: TopicId::new(7),
        letters: vec![QueueOffset::new(3), QueueOffset::new(9)],
    };
    golden(
        &Command::Redrive(redrive),
        "04 32 0000000000000002 0000000000000007 00000002 0000000000000003 0000000000000009",
    );
    golden_reply(
        &Reply::Redriven(vec![
            Redriven::Done,
            Redriven::TargetGone,
            Redriven::NotFound,
            Redriven::Full,
        ]),
        "01 32 00000004 01 02 03 04",
    );
    let name = "%DLQ%g".to_owned();
    golden_reply(&Reply::Refused(Refusal::NoOwner { name }), "01 09 33 00000006 25444c512567");
    let topic = TopicId::new(7);
    golden_reply(&Reply::Refused(Refusal::DeadLettersOnly { topic }), "01 09 34 0000000000000007");
    for (reason, byte) in DeathReason::ALL.into_iter().zip(1..) {
        let mut writer = Writer::new();
        writer.put(&reason);
        assert_eq!(writer.finish()[..], [byte]);
    }
}

#[test]
fn delayed_messages_keep_their_bytes() {
    // The record starts behind 2 + 8 + 1 + 4 + 8 + 4 + 1 + 16 + 4 + 4 + 8 + 4 bytes.
    let item = PublishItem {
        queue: QueueId::new(1),
        kind: MessageKind::Delay,
        id_hash: MessageIdHash::new(0x11),
        body_crc: 2,
        tag_hash: 3,
        group_hash: 4,
        record: Bytes::from_static(b"xyz"),
        record_at: 64,
    };
    let due = UtcMillis::new(0x0a0b_0c0d);
    let items = vec![ScheduleItem { due, item }];
    golden(
        &Command::Schedule(Schedule { topic: TopicId::new(7), dedup: true, items }),
        "03 19 0000000000000007 01 00000001 000000000a0b0c0d 00000001 03 \
         00000000000000000000000000000011 00000002 00000003 0000000000000004 00000003 78797a",
    );
    let timer = TimerKey {
        topic: TopicId::new(7),
        id_hash: MessageIdHash::new(0x11),
        position: Some(LogPosition::new(0x99)),
    };
    golden(
        &Command::Recall(timer),
        "03 1a 0000000000000007 00000000000000000000000000000011 01 0000000000000099",
    );
    let timer = TimerKey { position: None, ..timer };
    golden(
        &Command::Reschedule { timer, due },
        "03 1b 0000000000000007 00000000000000000000000000000011 00 000000000a0b0c0d",
    );
    let scheduled = Scheduled { position: LogPosition::new(0x99), repeated: true };
    golden_reply(&Reply::Scheduled(vec![scheduled]), "01 1e 00000001 0000000000000099 01");
    for (outcome, byte) in [
        (TimerOutcome::Recalled, "01"),
        (TimerOutcome::Rescheduled, "02"),
        (TimerOutcome::AlreadyFired, "03"),
        (TimerOutcome::NotFound, "04"),
    ] {
        golden_reply(&Reply::Timer(outcome), &format!("01 1f {byte}"));
    }
    golden_reply(
        &Reply::Refused(Refusal::DelayedFull { bytes: 3, limit: 2 }),
        "01 09 1e 0000000000000003 0000000000000002",
    );
    golden_reply(
        &Reply::Refused(Refusal::TimersFull { count: 4, visible: 3, limit: 2 }),
        "01 09 32 0000000000000004 0000000000000003 0000000000000002",
    );
}

#[test]
fn transactions_keep_their_bytes() {
    let transaction = Transaction { topic: TopicId::new(3), at: LogPosition::new(0x0a0b) };
    const NAME: &str = "0000000000000003 0000000000000a0b";
    let item = PublishItem {
        queue: QueueId::new(2),
        kind: MessageKind::Transaction,
        id_hash: MessageIdHash::new(0x11),
        body_crc: 5,
        tag_hash: 6,
        group_hash: 0,
        record: Bytes::from_static(b"xyz"),
        // Version, kind; topic, producer, interval, checks, count; first check; the item's fields.
        record_at: 2 + 8 + 5 + 8 + 4 + 4 + 8 + 41,
    };
    let prepare = Prepare {
        topic: TopicId::new(3),
        producer: ClientId::new("p").unwrap(),
        interval: Millis::from_secs(30),
        checks_max: 15,
        halves: vec![HalfItem { item, first_check: Millis::from_secs(6) }],
    };
    golden(
        &Command::Prepare(prepare),
        "03 23 0000000000000003 00000001 70 0000000000007530 0000000f 00000001 0000000000001770 \
         00000002 04 00000000000000000000000000000011 00000005 00000006 0000000000000000 \
         00000003 78797a",
    );
    let end = End { transaction, decision: Decision::RollBack, by: Decider::Check };
    golden(&Command::End(end), &format!("03 24 {NAME} 02 02"));
    let checked = Checked { transaction, number: 4 };
    golden(&Command::Check(vec![checked]), &format!("03 25 00000001 {NAME} 00000004"));
    golden(&Command::Resume(transaction), &format!("03 26 {NAME}"));
    let decided = Decided {
        decision: Decision::Commit,
        by: Decider::Operator,
        stamp: UtcMillis::new(0x77),
        place: Some((QueueId::new(2), QueueOffset::new(9))),
    };
    const COMMITTED: &str = "01 03 0000000000000077 01 00000002 0000000000000009";
    let prepared = Prepared { at: LogPosition::new(0x0a0b), repeated: true };
    golden_reply(&Reply::Prepared(vec![prepared]), "01 28 00000001 0000000000000a0b 01");
    let ended = Reply::Ended { decided, repeated: false };
    golden_reply(&ended, &format!("01 29 {COMMITTED} 00"));
    golden_reply(&Reply::Checked { counted: 3 }, "01 2a 00000003");
    let gone = Refusal::NoTransaction { at: LogPosition::new(0x0a0b) };
    golden_reply(&Reply::Refused(gone), "01 09 28 0000000000000a0b");
    let otherwise = Refusal::Decided { decided };
    golden_reply(&Reply::Refused(otherwise), &format!("01 09 29 {COMMITTED}"));
    let full = Refusal::HalvesFull { bytes: 3, limit: 2 };
    golden_reply(&Reply::Refused(full), "01 09 2a 0000000000000003 0000000000000002");
}

#[test]
fn schema_commands_keep_their_bytes() {
    let cluster = ClusterId::new(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00);
    golden(
        &Command::Found(Found { cluster, handle_key: [7; 32] }),
        &format!("01 01 112233445566778899aabbccddeeff00 {}", "07".repeat(32)),
    );
    golden(
        &Command::CreateTopic(CreateTopic {
            name: TopicName::new("orders").unwrap(),
            queues: 8,
            kinds: vec![MessageKind::Normal, MessageKind::Transaction],
            keep: None,
        }),
        "01 04 00000006 6f7264657273 00000008 00000002 01 04",
    );
    golden(
        &Command::CreateTopic(CreateTopic {
            name: TopicName::new("orders").unwrap(),
            queues: 8,
            kinds: vec![MessageKind::Normal],
            keep: Some(Millis::from_secs(60)),
        }),
        "02 11 00000006 6f7264657273 00000008 00000001 01 000000000000ea60",
    );
    golden(&Command::DeleteTopic { topic: TopicId::new(9) }, "01 05 0000000000000009");
    golden(
        &Command::CreateGroup(CreateGroup {
            name: GroupName::new("g").unwrap(),
            attempts_max: 16,
            backoff: vec![Millis::from_secs(1), Millis::from_secs(5)].into(),
            rule: OrderRule::default(),
            dead_keep: None,
            begin: Begin::default(),
        }),
        "01 06 00000001 67 00000010 00000002 00000000000003e8 0000000000001388",
    );
    golden(
        &Command::CreateGroup(CreateGroup {
            name: GroupName::new("g").unwrap(),
            attempts_max: 3,
            backoff: vec![Millis::from_secs(1)].into(),
            rule: OrderRule { order: Order::Batch, exhausted: Exhausted::Stop },
            dead_keep: None,
            begin: Begin::default(),
        }),
        "03 14 00000001 67 00000003 00000001 00000000000003e8 02 02",
    );
    golden(
        &Command::GrowTopic { topic: TopicId::new(9), queues: 16 },
        "03 15 0000000000000009 00000010",
    );
    golden(
        &Command::ResumeLines { group: GroupId::new(2), topic: TopicId::new(1) },
        "03 16 0000000000000002 0000000000000001",
    );
    golden(&Command::DeleteGroup { group: GroupId::new(9) }, "01 07 0000000000000009");
    let subscribe =
        Subscribe { group: GroupId::new(2), topic: TopicId::new(1), expression: "a||b".to_owned() };
    let fields = "0000000000000002 0000000000000001 00000004 617c7c62";
    golden(&Command::Subscribe(subscribe.clone()), &format!("01 08 {fields}"));
    golden(&Command::Unsubscribe(subscribe), &format!("01 09 {fields}"));
    golden(&Command::Tick { limit: 512 }, "01 0a 00000200");
    golden(&Command::Audit, "01 0b");
    golden(
        &Command::MembersDiffer { group: GroupId::new(2), topic: TopicId::new(1) },
        "04 3c 0000000000000002 0000000000000001",
    );
}

#[test]
fn publish_keeps_its_bytes_and_lends_its_records() {
    let item = |record: &'static [u8], record_at| PublishItem {
        queue: QueueId::new(3),
        kind: MessageKind::Fifo,
        id_hash: MessageIdHash::new(0x0f),
        body_crc: 0xdead_beef,
        tag_hash: 2_598_919,
        group_hash: 0x11,
        record: Bytes::from_static(record),
        record_at,
    };
    let fields = "00000003 02 0000000000000000000000000000000f deadbeef 0027a807 0000000000000011";
    let publish = Publish {
        topic: TopicId::new(1),
        dedup: true,
        items: vec![item(b"abc", 56), item(b"de", 100)],
    };
    let command = Command::Publish(publish);
    let expected = format!(
        "01 02 0000000000000001 01 00000002 {fields} 00000003 616263 {fields} 00000002 6465"
    );
    golden(&command, &expected);

    // Apply adds `record_at` to the command's place in the log: it must be where the bytes are.
    let bytes = command.encode();
    assert_eq!(bytes.len(), size_hint(&command), "publishing must not grow its buffer");
    let Command::Publish(publish) = Command::decode(&bytes).unwrap() else {
        panic!("not a publish");
    };
    for item in &publish.items {
        let at = item.record_at as usize;
        assert_eq!(bytes[at..at + item.record.len()], item.record);
        assert!(bytes.as_ptr_range().contains(&item.record.as_ptr()), "a copy, not a slice");
    }
}

#[test]
fn deliveries_keep_their_bytes() {
    let consumer = ClientId::new("c@1").unwrap();
    let ids = "0000000000000002 0000000000000001";
    let checkout = Checkout {
        group: GroupId::new(2),
        topic: TopicId::new(1),
        consumer: consumer.clone(),
        attempt_id: Some("try".to_owned()),
        invisible: Millis::new(30_000),
        auto_renew: true,
        subscription_version: 7,
        takes: vec![Take {
            queue: QueueId::new(3),
            skips: vec![Skip { from: QueueOffset::new(1), to: QueueOffset::new(4) }],
            grants: vec![Grant { offset: QueueOffset::new(4), unit: unit() }],
        }],
        epoch: 0,
    };
    let deliveries = vec![
        Delivery::Checkout(checkout),
        Delivery::Ack(Ack { handle: handle() }),
        Delivery::Hold(Hold { handle: handle(), invisible: Millis::ZERO }),
        Delivery::Renew(Renew {
            checkouts: vec![CheckoutId::new(5)],
            invisible: Millis::new(60_000),
        }),
        Delivery::Release(Release {
            group: GroupId::new(2),
            consumer,
            invisible: Millis::new(1000),
        }),
        Delivery::Return(Return { handles: vec![handle()], invisible: Millis::new(1000) }),
    ];
    let expected = format!(
        "01 03 00000006 \
         01 {ids} 00000003 634031 01 00000003 747279 0000000000007530 01 00000007 00000001 \
            00000003 00000001 0000000000000001 0000000000000004 00000001 0000000000000004 {UNIT} \
         02 {HANDLE} \
         03 {HANDLE} 0000000000000000 \
         04 00000001 0000000000000005 000000000000ea60 \
         05 0000000000000002 00000003 634031 00000000000003e8 \
         06 00000001 {HANDLE} 00000000000003e8"
    );
    golden(&Command::Deliveries(deliveries), &expected);
    // What an older program does not know makes the whole entry a newer one.
    let given = GiveUp { handle: handle(), otherwise: Millis::from_secs(60) };
    let deliveries = vec![Delivery::Ack(Ack { handle: handle() }), Delivery::GiveUp(given)];
    let expected = format!("03 03 00000002 02 {HANDLE} 14 {HANDLE} 000000000000ea60");
    golden(&Command::Deliveries(deliveries), &expected);
}

#[test]
fn replies_keep_their_bytes() {
    golden_reply(&Reply::Done, "01 01");
    let published = Published {
        queue: QueueId::new(3),
        offset: QueueOffset::new(4),
        visible: UtcMillis::new(5),
        repeated: true,
    };
    golden_reply(
        &Reply::Published(vec![published]),
        "01 02 00000001 00000003 0000000000000004 0000000000000005 01",
    );
    let granted = Granted {
        queue: QueueId::new(3),
        offset: QueueOffset::new(4),
        attempt: 2,
        unit: unit(),
        checkout: CheckoutId::new(5),
    };
    let checked_out = CheckedOut { checkout: CheckoutId::new(5), granted: vec![granted] };
    golden_reply(
        &Reply::Deliveries(vec![
            DeliveryOutcome::CheckedOut(checked_out),
            DeliveryOutcome::Done,
            DeliveryOutcome::Stale,
            DeliveryOutcome::Refused(Refusal::NoGroup { group: GroupId::new(8) }),
        ]),
        &format!(
            "01 03 00000004 \
             01 0000000000000005 00000001 00000003 0000000000000004 00000002 {UNIT} 0000000000000005 \
             02 03 04 02 0000000000000008"
        ),
    );
    golden_reply(
        &Reply::TopicCreated { topic: TopicId::new(1), existed: false },
        "01 04 0000000000000001 00",
    );
    golden_reply(
        &Reply::GroupCreated { group: GroupId::new(1), existed: true },
        "01 05 0000000000000001 01",
    );
    golden_reply(&Reply::Subscribed { version: 3 }, "01 06 00000003");
    golden_reply(&Reply::Ticked { fired: 3 }, "01 07 00000003");
    golden_reply(&Reply::MembersDiffer { first: true }, "01 3c 01");
    golden_reply(
        &Reply::Audited { index: LogIndex::new(9), state_hash: 0xab },
        "01 08 0000000000000009 00000000000000ab",
    );
    golden_reply(
        &Reply::Refused(Refusal::NoQueue { queue: QueueId::new(9), queues: 8 }),
        "01 09 03 00000009 00000008",
    );
    golden_reply(
        &Reply::Refused(Refusal::Limit { what: "x".to_owned(), limit: 4 }),
        "01 09 05 00000001 78 0000000000000004",
    );
}

#[test]
fn refusals_of_bytes_name_what_is_wrong() {
    let decode = |bytes: &'static [u8]| Command::decode(&Bytes::from_static(bytes)).unwrap_err();
    assert_eq!(decode(b""), CommandError::Truncated { at: 0, needed: 1, left: 0 });
    assert_eq!(
        decode(&[5, AUDIT]),
        CommandError::Version { what: "a command", found: 5, known: 4 }
    );
    assert_eq!(decode(&[1, 200]), CommandError::Kind { what: "the kind of a command", found: 200 });
    assert_eq!(decode(&[1, AUDIT, 0, 0]), CommandError::Trailing { at: 2, left: 2 });
    assert_eq!(decode(&[1, TICK, 0]), CommandError::Truncated { at: 2, needed: 4, left: 1 });
    // A count of 2^32 - 1 must not allocate anything.
    assert_eq!(
        decode(&[1, DELIVERIES, 255, 255, 255, 255, 2]),
        CommandError::Count { at: 2, count: u32::MAX, left: 1 }
    );
    assert_eq!(
        decode(&[1, PUBLISH, 0, 0, 0, 0, 0, 0, 0, 1, 2]),
        CommandError::Bool { at: 10, found: 2 }
    );
    assert_eq!(
        decode(&[1, CREATE_TOPIC, 0, 0, 0, 2, b'a', 0xff]),
        CommandError::Utf8 { at: 6, valid: 1 }
    );
    assert_eq!(
        decode(&[1, CREATE_TOPIC, 0, 0, 0, 1, b' ']),
        CommandError::Name { at: 7, source: NameError::Blank { kind: "topic" } }
    );
}

#[test]
fn what_places_groups_keeps_its_bytes() {
    let create = CreateGroup {
        name: GroupName::new("g").unwrap(),
        attempts_max: 16,
        backoff: Vec::new().into(),
        rule: OrderRule::default(),
        dead_keep: None,
        begin: Begin { start: StartAt::Latest, paused: true },
    };
    golden(&Command::CreateGroup(create.clone()), "04 46 02 01 06 00000001 67 00000010 00000000");
    let rule = OrderRule { order: Order::Batch, exhausted: Exhausted::Stop };
    let begin = Begin { start: StartAt::Time(UtcMillis::new(9)), paused: false };
    golden(
        &Command::CreateGroup(CreateGroup { rule, begin, ..create }),
        "04 46 03 0000000000000009 00 14 00000001 67 00000010 00000000 02 02",
    );
    let (group, topic) = (GroupId::new(2), TopicId::new(1));
    let (queue, offset) = (QueueId::new(3), QueueOffset::new(4));
    let ids = "0000000000000002 0000000000000001";
    golden(
        &Command::Start(Start { group, topic, offsets: vec![offset] }),
        &format!("04 47 {ids} 00000001 0000000000000004"),
    );
    golden(
        &Command::Reset(Reset { group, topic, offsets: vec![(queue, offset)] }),
        &format!("04 48 {ids} 00000001 00000003 0000000000000004"),
    );
    golden(&Command::Pause { group, paused: true }, "04 49 0000000000000002 01");
    golden(
        &Command::StoreOffset(StoreOffset { group, topic, queue, offset }),
        &format!("04 4a {ids} 00000003 0000000000000004"),
    );
    let checkout = Checkout {
        group,
        topic,
        consumer: ClientId::new("c").unwrap(),
        attempt_id: None,
        invisible: Millis::new(1),
        auto_renew: false,
        subscription_version: 7,
        takes: Vec::new(),
        epoch: 5,
    };
    golden(
        &Command::Deliveries(vec![Delivery::Checkout(checkout)]),
        &format!(
            "04 03 00000001 46 {ids} 00000001 63 00 0000000000000001 00 00000007 00000000 00000005"
        ),
    );
    golden_reply(&Reply::Reset { epoch: 5 }, "01 46 00000005");
    golden_reply(&Reply::Refused(Refusal::NotBegun { group, topic }), &format!("01 09 46 {ids}"));
}
