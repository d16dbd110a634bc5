//! Topics, groups, subscriptions; and what stops a replica.

use super::bench::{Bench, names};
use crate::base::{
    ClusterId, GroupId, GroupName, LogIndex, QueueId, TopicId, TopicName, UtcMillis,
};
use crate::command::{Command, Found, Refusal, Reply, Subscribe};
use crate::machine::{ApplyError, Conflict, Effect, QUEUES_MAX};
use crate::message::MessageKind;
use bytes::Bytes;

#[test]
fn a_topic_name_has_incarnations() {
    let mut bench = Bench::new();
    let name = TopicName::new("orders").unwrap();
    let first = TopicId::new(1);
    let created = Reply::TopicCreated { topic: first, existed: false };
    assert_eq!(bench.reply(names::topic("orders", 4)), created);
    // Asking for what is there answers the same topic; asking for another one is refused.
    let existed = Reply::TopicCreated { topic: first, existed: true };
    assert_eq!(bench.reply(names::topic("orders", 4)), existed);
    let refusal = Refusal::TopicDiffers {
        exists: "4 queues of normal messages".into(),
        asked: "5 queues of normal messages".into(),
    };
    assert_eq!(bench.reply(names::topic("orders", 5)), Reply::Refused(refusal));
    let topic = bench.machine.state().topic(&name).unwrap();
    assert_eq!((topic.id, topic.queues, topic.created), (first, 4, UtcMillis::new(1_000_000)));
    assert_eq!(topic.kinds, [MessageKind::Normal]);

    // Deleting and creating again starts clean, under another id.
    bench.publish(0, 3);
    let version = bench.machine.state().topics_version();
    let effects = bench.effects(Command::DeleteTopic { topic: first });
    assert_eq!(effects, [Effect::TopicGone { topic: first }]);
    assert!(bench.machine.state().topics_version() > version);
    let again = Reply::Refused(Refusal::NoTopic { topic: first });
    assert_eq!(bench.reply(Command::DeleteTopic { topic: first }), again);
    let second = Reply::TopicCreated { topic: TopicId::new(2), existed: false };
    assert_eq!(bench.reply(names::topic("orders", 4)), second);
    let end = bench.machine.state().queue_end(TopicId::new(2), QueueId::new(0));
    assert_eq!(end.get(), 0);
}

#[test]
fn a_page_begins_behind_a_name_that_need_not_exist() {
    let mut bench = Bench::new();
    for name in ["c", "a", "d", "b"] {
        bench.apply(names::topic(name, 1));
        bench.apply(names::group(name));
    }
    bench.apply(Command::DeleteTopic { topic: TopicId::new(1) });
    let state = bench.machine.state();
    let topics = |after: Option<&str>| {
        let after = after.map(|after| TopicName::new(after).unwrap());
        let page = state.topics_after(after.as_ref());
        page.map(|topic| topic.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(topics(None), ["a", "b", "d"]);
    assert_eq!(topics(Some("a")), ["b", "d"]);
    assert_eq!(topics(Some("c")), ["d"], "it is gone, and its place is known none the less");
    assert!(topics(Some("d")).is_empty());
    let after = GroupName::new("b").unwrap();
    let groups = state.groups_after(Some(&after)).map(|group| group.name.to_string());
    assert_eq!(groups.collect::<Vec<_>>(), ["c", "d"]);
    assert_eq!((state.topics_count(), state.groups_count()), (3, 4));
}

#[test]
fn queues_are_limited() {
    let mut bench = Bench::new();
    let limit = |what: &str, limit| Reply::Refused(Refusal::Limit { what: what.into(), limit });
    let max = u64::from(QUEUES_MAX);
    assert_eq!(bench.reply(names::topic("a", QUEUES_MAX + 1)), limit("queues of a topic", max));
    assert_eq!(bench.reply(names::topic("a", 0)), limit("queues of a topic, at least", 1));
    assert!(matches!(bench.reply(names::topic("a", QUEUES_MAX)), Reply::TopicCreated { .. }));
}

#[test]
fn a_group_is_created_once_and_takes_everything_along_when_it_goes() {
    let mut bench = Bench::with_topic(1);
    let id = names::GROUP;
    let existed = Reply::GroupCreated { group: id, existed: true };
    assert_eq!(bench.reply(names::group("billing")), existed);
    bench.publish(0, 2);
    assert_eq!(bench.take("c", &[0, 1]).len(), 2);
    assert_eq!(
        bench.effects(Command::DeleteGroup { group: id }),
        [Effect::GroupGone { group: id }]
    );
    // Its deadlines are gone with it: nothing fires, nothing is due.
    assert_eq!(bench.machine.state().next_due(), None);
    bench.stamp += 60_000;
    assert_eq!(bench.tick(), []);
    let second = Reply::GroupCreated { group: GroupId::new(2), existed: false };
    assert_eq!(bench.reply(names::group("billing")), second);
    assert!(bench.machine.state().group(&GroupName::new("billing").unwrap()).is_some());
    assert_eq!(bench.machine.state().lag(GroupId::new(2), names::TOPIC).ready, 2);
}

#[test]
fn subscriptions_have_a_version_that_never_comes_again() {
    let mut bench = Bench::with_topic(1);
    let expression = |text: &str| Subscribe {
        group: names::GROUP,
        topic: names::TOPIC,
        expression: text.into(),
    };
    let version = |version| Reply::Subscribed { version };
    assert_eq!(bench.reply(Command::Subscribe(expression("b"))), version(1));
    assert_eq!(bench.reply(Command::Subscribe(expression("a"))), version(2));
    assert_eq!(bench.reply(Command::Subscribe(expression("a"))), version(2));
    let (found, live) = bench.machine.state().subscriptions(names::GROUP, names::TOPIC);
    assert_eq!((found, live), (2, &["a".to_owned(), "b".to_owned()][..]));
    assert_eq!(bench.reply(Command::Unsubscribe(expression("c"))), version(2));
    assert_eq!(bench.reply(Command::Unsubscribe(expression("a"))), version(3));
    assert_eq!(bench.reply(Command::Unsubscribe(expression("b"))), version(4));
    assert_eq!(bench.reply(Command::Subscribe(expression("b"))), version(5));

    let mut stranger = expression("a");
    stranger.group = GroupId::new(9);
    let refused = Reply::Refused(Refusal::NoGroup { group: GroupId::new(9) });
    assert_eq!(bench.reply(Command::Subscribe(stranger)), refused);
}

#[test]
fn members_that_differ_are_one_event_until_they_agree() {
    let mut bench = Bench::with_topic(1);
    let (group, topic) = (names::GROUP, names::TOPIC);
    let expression = |text: &str| Subscribe { group, topic, expression: text.into() };
    let differ = |bench: &mut Bench| match bench.reply(Command::MembersDiffer { group, topic }) {
        Reply::MembersDiffer { first } => first,
        other => panic!("{other:?}"),
    };
    bench.apply(Command::Subscribe(expression("a")));
    assert!(!differ(&mut bench), "one filter alone");
    bench.apply(Command::Subscribe(expression("b")));
    assert!(differ(&mut bench) && !differ(&mut bench));
    bench.apply(Command::Subscribe(expression("sql:c = 1")));
    bench.apply(Command::Unsubscribe(expression("a")));
    let conflict = bench.machine.state().conflict(group, topic);
    assert_eq!(conflict.count, 1);
    assert!(conflict.since.is_some() && !differ(&mut bench), "two of them are left");
    bench.apply(Command::Unsubscribe(expression("b")));
    assert_eq!(bench.machine.state().conflict(group, topic), Conflict { since: None, count: 1 });
    bench.apply(Command::Subscribe(expression("b")));
    assert!(differ(&mut bench));
    bench.apply(Command::DeleteGroup { group });
    assert_eq!(bench.machine.state().conflict(group, topic), Conflict::default());
    let refused = Reply::Refused(Refusal::NoGroup { group });
    assert_eq!(bench.reply(Command::MembersDiffer { group, topic }), refused);
}

#[test]
fn the_first_founding_wins() {
    let mut bench = Bench::new();
    let found = |key| Found { cluster: ClusterId::new(1), handle_key: [key; 32] };
    bench.apply(Command::Found(found(1)));
    bench.apply(Command::Found(found(2)));
    assert_eq!(bench.machine.state().founded(), Some(&found(1)));
}

#[test]
fn an_audit_names_the_state_at_its_own_entry() {
    let mut bench = Bench::with_topic(1);
    assert_eq!(bench.machine.state().audit(), None);
    let Reply::Audited { index, state_hash } = bench.reply(Command::Audit) else {
        panic!("an audit is answered by a hash");
    };
    assert_eq!(index, LogIndex::new(2));
    assert_eq!(state_hash, bench.machine.state().hash());
    assert_eq!(bench.machine.state().audit(), Some((index, state_hash)));
    // The hash covers the entry's own place: one more entry changes it.
    bench.apply(Command::Tick { limit: 1 });
    assert_ne!(bench.machine.state().hash(), state_hash);
}

#[test]
fn what_cannot_be_applied_stops_the_replica() {
    let mut bench = Bench::new();
    bench.apply(names::topic("orders", 1));
    let mut gap = bench.next_entry(Bytes::new());
    gap.index = LogIndex::new(7);
    assert!(matches!(bench.machine.apply(&gap), Err(ApplyError::Gap { .. })));
    // Nothing is applied after a failure, not even what would fit.
    let fits = bench.next_entry(Bytes::new());
    assert!(matches!(bench.machine.apply(&fits), Err(ApplyError::Ended)));

    bench.restart();
    let mut early = bench.next_entry(Bytes::new());
    early.stamp = UtcMillis::new(1);
    assert!(matches!(bench.machine.apply(&early), Err(ApplyError::Stamp { .. })));

    bench.restart();
    let unknown = bench.next_entry(Bytes::from_static(&[1, 250]));
    assert!(matches!(bench.machine.apply(&unknown), Err(ApplyError::Command { .. })));

    bench.restart();
    bench.sim.disk.fail_write_after(0);
    let publish = Command::Publish(crate::command::Publish {
        topic: names::TOPIC,
        dedup: false,
        items: vec![names::item(0, 1)],
    });
    let entry = bench.next_entry(publish.encode());
    assert!(matches!(bench.machine.apply(&entry), Err(ApplyError::Io { .. })));
}
