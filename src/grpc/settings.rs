//! The settings that a client and the broker agree on: the client's own, the broker's filled in.

use tonic::Status;

use crate::base::{GroupName, Millis, TopicName};
use crate::broker::{Backoff, ClientKind, NewGroup, Order};
use crate::wire::rocketmq::{self as v2, ClientType, settings::PubSub};

use super::receive::POLL_MAX;
use super::status::Refused;
use super::{convert, limits};

/// What producers are told about retries: they keep their own count and take the curve.
const SEND_ATTEMPTS: i32 = 3;
const SEND_BACKOFF_INITIAL: Millis = Millis::new(10);
const SEND_BACKOFF_MAX: Millis = Millis::from_secs(1);
const SEND_BACKOFF_MULTIPLIER: f32 = 2.0;
const REQUEST_TIMEOUT: Millis = Millis::from_secs(3);
/// Lite consumers start from these and fail without; RocketMQ 5.5 has the same.
const LITE_SUBSCRIPTION_QUOTA: i32 = 2000;
const LITE_TOPIC_BYTES_MAX: i32 = 64;

/// Why settings are not taken.
#[derive(Debug)]
pub(super) enum Unfit {
    /// Not the protocol: the stream ends with a gRPC error.
    Protocol(Status),
    /// Told in a command's status, and then as a gRPC error that ends the stream.
    Refused(Refused),
}

impl Unfit {
    fn protocol(text: impl Into<String>) -> Self {
        Self::Protocol(Status::invalid_argument(text))
    }
}

/// Who the settings say the client is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stated {
    pub(super) kind: ClientKind,
    pub(super) group: Option<GroupName>,
    /// What a producer says that it sends to, each under the name that it goes by there.
    pub(super) topics: Vec<(TopicName, v2::Resource)>,
}

/// The client's settings with the broker's values in them. Names come back byte for byte: one
/// client takes its namespace from them. `of_group` tells what is configured for a group.
pub(super) fn merge(
    mut settings: v2::Settings,
    of_group: impl FnOnce(&GroupName) -> NewGroup,
) -> Result<(v2::Settings, Stated), Unfit> {
    limits::client_properties(settings.client_properties.iter()).map_err(Unfit::Refused)?;
    let client_type = settings.client_type();
    let stated = match settings.pub_sub.as_mut() {
        Some(PubSub::Publishing(publishing)) => {
            let mut topics = Vec::with_capacity(publishing.topics.len());
            for topic in &publishing.topics {
                let name = limits::topic(Some(topic));
                let name = name.map_err(|refused| Unfit::protocol(refused.text))?;
                topics.push((name, topic.clone()));
            }
            publish(publishing);
            settings.backoff_policy = Some(send_policy());
            Stated { kind: ClientKind::Producer, group: None, topics }
        }
        Some(PubSub::Subscription(subscription)) => {
            let group = limits::group(subscription.group.as_ref())
                .map_err(|refused| Unfit::protocol(refused.text))?;
            for entry in &subscription.subscriptions {
                limits::topic(entry.topic.as_ref())
                    .map_err(|refused| Unfit::protocol(refused.text))?;
                // Each receive names its filter again; told here, the client does not even start.
                limits::filter(entry.expression.as_ref()).map_err(Unfit::Refused)?;
            }
            let configured = of_group(&group);
            subscribe(subscription, client_type);
            // Only they may be given several messages of one message group at once.
            subscription.fifo = Some(configured.rule.order == Order::Batch);
            settings.backoff_policy = Some(receive_policy(&configured));
            let simple =
                matches!(client_type, ClientType::SimpleConsumer | ClientType::LiteSimpleConsumer);
            let kind = if simple { ClientKind::SimpleConsumer } else { ClientKind::PushConsumer };
            Stated { kind, group: Some(group), topics: Vec::new() }
        }
        None => {
            return Err(Unfit::protocol(
                "the settings hold neither publishing nor subscription; one of them is needed",
            ));
        }
    };
    settings.request_timeout.get_or_insert_with(|| convert::duration(REQUEST_TIMEOUT));
    settings.metric = Some(v2::Metric { on: false, endpoints: None });
    Ok((settings, stated))
}

fn publish(publishing: &mut v2::Publishing) {
    publishing.max_body_size = i32::try_from(limits::BODY_MAX).expect("4 MiB");
    publishing.validate_message_type = true;
}

fn subscribe(subscription: &mut v2::Subscription, client_type: ClientType) {
    let poll = Millis::from_secs(POLL_MAX.as_secs());
    subscription.receive_batch_size = i32::try_from(limits::BATCH_MAX).ok();
    subscription.long_polling_timeout = Some(convert::duration(poll));
    if matches!(client_type, ClientType::LitePushConsumer | ClientType::LiteSimpleConsumer) {
        subscription.lite_subscription_quota = Some(LITE_SUBSCRIPTION_QUOTA);
        subscription.max_lite_topic_size = Some(LITE_TOPIC_BYTES_MAX);
    }
}

/// Producers fail to start without an exponential curve.
fn send_policy() -> v2::RetryPolicy {
    v2::RetryPolicy {
        max_attempts: SEND_ATTEMPTS,
        strategy: Some(v2::retry_policy::Strategy::ExponentialBackoff(v2::ExponentialBackoff {
            initial: Some(convert::duration(SEND_BACKOFF_INITIAL)),
            max: Some(convert::duration(SEND_BACKOFF_MAX)),
            multiplier: SEND_BACKOFF_MULTIPLIER,
        })),
    }
}

/// As the group is configured; a list of pauses is what most consumers understand.
fn receive_policy(group: &NewGroup) -> v2::RetryPolicy {
    use v2::retry_policy::Strategy;
    let strategy = match &group.backoff {
        Backoff::Listed(pauses) => {
            let next = pauses.iter().copied().map(convert::duration).collect();
            Strategy::CustomizedBackoff(v2::CustomizedBackoff { next })
        }
        Backoff::Exponential(curve) => Strategy::ExponentialBackoff(v2::ExponentialBackoff {
            initial: Some(convert::duration(curve.initial)),
            max: Some(convert::duration(curve.max)),
            multiplier: thousandths(curve.growth),
        }),
    };
    v2::RetryPolicy {
        max_attempts: i32::try_from(group.attempts_max).unwrap_or(i32::MAX),
        strategy: Some(strategy),
    }
}

/// Exact as far as a float of 32 bits is, which holds all whole factors that there may be.
fn thousandths(number: u32) -> f32 {
    let (whole, part) = (number / 1000, number % 1000);
    let float = |number: u32| u16::try_from(number).map_or(f32::MAX, f32::from);
    float(whole) + float(part) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Curve, OrderRule};
    use crate::wire::rocketmq::Code;
    use std::collections::HashMap;
    use v2::retry_policy::Strategy;

    fn of_group(name: &GroupName) -> NewGroup {
        NewGroup {
            name: name.clone(),
            attempts_max: 17,
            backoff: vec![Millis::from_secs(1), Millis::from_secs(5)].into(),
            rule: OrderRule::default(),
            broker_groups: Vec::new(),
            dead_keep: None,
            begin: crate::broker::Begin::default(),
        }
    }

    fn resource(name: &str) -> v2::Resource {
        v2::Resource { resource_namespace: "ns".into(), name: name.into() }
    }

    fn producer(topics: &[&str]) -> v2::Settings {
        v2::Settings {
            client_type: Some(ClientType::Producer.into()),
            user_agent: Some(v2::Ua { version: "5.1.2".into(), ..Default::default() }),
            pub_sub: Some(PubSub::Publishing(v2::Publishing {
                topics: topics.iter().map(|topic| resource(topic)).collect(),
                ..Default::default()
            })),
            ..Default::default()
        }
    }

    fn consumer(client_type: ClientType) -> v2::Settings {
        v2::Settings {
            client_type: Some(client_type.into()),
            request_timeout: Some(prost_types::Duration { seconds: 7, nanos: 0 }),
            pub_sub: Some(PubSub::Subscription(v2::Subscription {
                group: Some(resource("g")),
                subscriptions: vec![v2::SubscriptionEntry {
                    topic: Some(resource("t")),
                    expression: None,
                }],
                fifo: Some(true),
                ..Default::default()
            })),
            ..Default::default()
        }
    }

    #[test]
    fn a_producer_gets_the_curve_and_the_body_limit() {
        let asked = producer(&["t"]);
        let (settings, stated) = merge(asked.clone(), of_group).unwrap();
        let topics = vec![(TopicName::new("t").unwrap(), resource("t"))];
        assert_eq!(stated, Stated { kind: ClientKind::Producer, group: None, topics });
        assert_eq!(settings.user_agent, asked.user_agent);
        assert_eq!(settings.request_timeout.unwrap().seconds, 3);
        assert_eq!(settings.metric, Some(v2::Metric { on: false, endpoints: None }));
        let policy = settings.backoff_policy.unwrap();
        assert_eq!(policy.max_attempts, 3);
        let Some(Strategy::ExponentialBackoff(curve)) = policy.strategy else {
            panic!("not exponential")
        };
        assert_eq!(curve.initial.unwrap().nanos, 10_000_000);
        assert_eq!(curve.max.unwrap().seconds, 1);
        let Some(PubSub::Publishing(publishing)) = settings.pub_sub else {
            panic!("not a producer")
        };
        assert_eq!(publishing.topics, [resource("t")], "names come back unchanged");
        assert_eq!(publishing.max_body_size, 4_194_304);
        assert!(publishing.validate_message_type);
    }

    #[test]
    fn a_consumer_gets_its_groups_pauses_and_whole_values() {
        let (settings, stated) = merge(consumer(ClientType::PushConsumer), of_group).unwrap();
        let group = Some(GroupName::new("g").unwrap());
        assert_eq!(stated, Stated { kind: ClientKind::PushConsumer, group, topics: Vec::new() });
        assert_eq!(settings.request_timeout.unwrap().seconds, 7, "the client's own stays");
        let policy = settings.backoff_policy.unwrap();
        assert_eq!(policy.max_attempts, 17);
        let Some(Strategy::CustomizedBackoff(pauses)) = policy.strategy else {
            panic!("not customized")
        };
        assert_eq!(pauses.next.iter().map(|pause| pause.seconds).collect::<Vec<_>>(), [1, 5]);
        let Some(PubSub::Subscription(subscription)) = settings.pub_sub else {
            panic!("not a consumer")
        };
        assert_eq!(subscription.group, Some(resource("g")));
        assert_eq!(subscription.receive_batch_size, Some(32));
        assert_eq!(subscription.long_polling_timeout.unwrap().seconds, 20);
        assert_eq!(subscription.fifo, Some(false), "the group decides, not the client");
        assert_eq!(subscription.lite_subscription_quota, None);
        let ordered = |name: &GroupName| {
            let rule = OrderRule { order: Order::Batch, ..OrderRule::default() };
            NewGroup { rule, ..of_group(name) }
        };
        let (settings, _) = merge(consumer(ClientType::PushConsumer), ordered).unwrap();
        let Some(PubSub::Subscription(subscription)) = settings.pub_sub else {
            panic!("not a consumer")
        };
        assert_eq!(subscription.fifo, Some(true));
        let (_, stated) = merge(consumer(ClientType::SimpleConsumer), of_group).unwrap();
        assert_eq!(stated.kind, ClientKind::SimpleConsumer);
    }

    #[test]
    fn a_group_with_a_curve_tells_it() {
        let curved = |name: &GroupName| {
            let (initial, max) = (Millis::from_secs(1), Millis::from_secs(600));
            let backoff = Backoff::Exponential(Curve { initial, max, growth: 1500 });
            NewGroup { backoff, attempts_max: 3, ..of_group(name) }
        };
        let (settings, _) = merge(consumer(ClientType::PushConsumer), curved).unwrap();
        let policy = settings.backoff_policy.unwrap();
        assert_eq!(policy.max_attempts, 3);
        let Some(Strategy::ExponentialBackoff(told)) = policy.strategy else {
            panic!("not exponential")
        };
        assert_eq!((told.initial.unwrap().seconds, told.max.unwrap().seconds), (1, 600));
        assert!((told.multiplier - 1.5).abs() < f32::EPSILON);
    }

    #[test]
    fn what_is_not_the_protocol_ends_the_stream() {
        let mut groupless = consumer(ClientType::PushConsumer);
        if let Some(PubSub::Subscription(subscription)) = groupless.pub_sub.as_mut() {
            subscription.group = None;
        }
        for odd in [v2::Settings::default(), producer(&["a b"]), groupless] {
            match merge(odd, of_group) {
                Err(Unfit::Protocol(status)) => {
                    assert_eq!(status.code(), tonic::Code::InvalidArgument);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_wrong_filter_is_told_in_band() {
        let mut odd = consumer(ClientType::PushConsumer);
        let Some(PubSub::Subscription(subscription)) = odd.pub_sub.as_mut() else {
            panic!("not a consumer")
        };
        let r#type = v2::FilterType::Sql.into();
        let expression = v2::FilterExpression { r#type, expression: "a = ".into() };
        subscription.subscriptions[0].expression = Some(expression);
        match merge(odd, of_group) {
            Err(Unfit::Refused(refused)) => {
                assert_eq!(refused.code, Code::IllegalFilterExpression);
                assert!(refused.text.contains("column 5"), "{}", refused.text);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bad_client_properties_are_told_in_band() {
        let odd = v2::Settings {
            client_properties: HashMap::from([("1".to_owned(), String::new())]),
            ..producer(&["t"])
        };
        match merge(odd, of_group) {
            Err(Unfit::Refused(refused)) => {
                assert_eq!(refused.code, Code::InvalidClientProperties);
            }
            other => panic!("{other:?}"),
        }
    }
}
