//! Where a topic is: every live node, each under its own name.

use crate::broker::{Assignment, Broker, Route};
use crate::wire::rocketmq as v2;

use super::metadata::Caller;
use super::status::{Refused, ok};
use super::{convert, limits};

/// Stands for any queue of a broker; RocketMQ's proxy says so too.
const ANY_QUEUE: i32 = -1;

pub(super) async fn query_route(
    broker: &Broker,
    caller: Caller,
    request: v2::QueryRouteRequest,
) -> Result<v2::QueryRouteResponse, Refused> {
    let topic = limits::topic(request.topic.as_ref())?;
    let route = broker.route(&topic).await?;
    let mut message_queues = queues(route, &request.topic.unwrap_or_default());
    if topic.is_for_dead_letters() {
        // Producers look here before they send.
        for queue in &mut message_queues {
            queue.permission = v2::Permission::Read.into();
        }
    }
    if caller.blocks_on_dial {
        point_at(request.endpoints.as_ref(), message_queues.iter_mut());
    }
    Ok(v2::QueryRouteResponse { status: Some(ok()), message_queues })
}

pub(super) async fn query_assignment(
    broker: &Broker,
    caller: Caller,
    request: v2::QueryAssignmentRequest,
) -> Result<v2::QueryAssignmentResponse, Refused> {
    let topic = limits::topic(request.topic.as_ref())?;
    limits::group(request.group.as_ref())?;
    let assignment = broker.assignment(&topic).await?;
    let mut assignments = assignments(assignment, &request.topic.unwrap_or_default());
    if caller.blocks_on_dial {
        let queues = assignments.iter_mut().filter_map(|entry| entry.message_queue.as_mut());
        point_at(request.endpoints.as_ref(), queues);
    }
    Ok(v2::QueryAssignmentResponse { status: Some(ok()), assignments })
}

/// Every queue on every node. Neighbours in the list are on different nodes, so that a client that
/// goes through it spreads its requests and retries elsewhere.
pub(super) fn queues(route: Route, topic: &v2::Resource) -> Vec<v2::MessageQueue> {
    assert!(!route.nodes.is_empty(), "the node that answers lives");
    let accept_message_types = convert::accepted(&route.kinds);
    let brokers: Vec<_> = route.nodes.into_iter().map(convert::broker).collect();
    let queue = |id, broker: &v2::Broker| v2::MessageQueue {
        topic: Some(topic.clone()),
        id,
        permission: v2::Permission::ReadWrite.into(),
        broker: Some(broker.clone()),
        accept_message_types: accept_message_types.clone(),
    };
    let count = i32::try_from(route.queues).unwrap_or(i32::MAX);
    (0..count).flat_map(|id| brokers.iter().map(move |broker| queue(id, broker))).collect()
}

/// One entry for each node: any member may take from any queue through any of them.
pub(super) fn assignments(assignment: Assignment, topic: &v2::Resource) -> Vec<v2::Assignment> {
    assert!(!assignment.nodes.is_empty(), "the node that answers lives");
    let accept_message_types = convert::accepted(&assignment.kinds);
    let entry = |node| v2::Assignment {
        message_queue: Some(v2::MessageQueue {
            topic: Some(topic.clone()),
            id: ANY_QUEUE,
            permission: v2::Permission::ReadWrite.into(),
            broker: Some(convert::broker(node)),
            accept_message_types: accept_message_types.clone(),
        }),
    };
    assignment.nodes.into_iter().map(entry).collect()
}

/// Sends the client to where it asked, whatever broker it picks, as RocketMQ's own proxy does. Each
/// node serves every request, and the Go client cannot leave a broker that is gone: it sends all
/// attempts of a send to one, dials that for 5 s each time, and meanwhile even its question for a
/// newer route waits until it times out. What it asked at is what it needs alive anyway.
///
/// Several addresses in one list do not help it: it joins them to one `:authority`, which is not
/// one, and which our HTTP/2 refuses.
fn point_at<'a>(
    asked: Option<&v2::Endpoints>,
    queues: impl Iterator<Item = &'a mut v2::MessageQueue>,
) {
    let Some(asked) = asked.filter(|asked| !asked.addresses.is_empty()) else { return };
    for broker in queues.filter_map(|queue| queue.broker.as_mut()) {
        broker.endpoints = Some(asked.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::NodeId;
    use crate::broker::BrokerNode;
    use crate::message::MessageKind;

    fn nodes() -> Vec<BrokerNode> {
        let node = |id: u16| BrokerNode {
            node: NodeId::new(id.into()),
            name: format!("node-{id}"),
            host: "127.0.0.1".into(),
            port: 8071 + 10 * id,
        };
        (1..=3).map(node).collect()
    }

    fn topic() -> v2::Resource {
        v2::Resource { resource_namespace: "ns".into(), name: "t".into() }
    }

    #[test]
    fn a_route_lists_every_queue_on_every_node() {
        let route = Route {
            nodes: nodes(),
            queues: 2,
            kinds: vec![MessageKind::Normal, MessageKind::Fifo],
        };
        let queues = queues(route.clone(), &topic());
        let places: Vec<_> =
            queues.iter().map(|q| (q.id, q.broker.as_ref().unwrap().name.as_str())).collect();
        let expected = [
            (0, "node-1"),
            (0, "node-2"),
            (0, "node-3"),
            (1, "node-1"),
            (1, "node-2"),
            (1, "node-3"),
        ];
        assert_eq!(places, expected);
        for queue in &queues {
            assert_eq!(queue.topic, Some(topic()), "the resource comes back unchanged");
            assert_eq!(queue.permission(), v2::Permission::ReadWrite);
            assert_eq!(queue.accept_message_types, [1, 2]);
            assert_eq!(queue.broker.as_ref().unwrap().id, 0);
        }
        assert_eq!(queues, super::queues(route, &topic()), "clients compare routes as lists");
    }

    #[test]
    fn an_assignment_is_any_queue_of_each_node() {
        let kinds = vec![MessageKind::Normal];
        let entries = assignments(Assignment { nodes: nodes(), kinds }, &topic());
        assert_eq!(entries.len(), 3);
        for entry in entries {
            let queue = entry.message_queue.unwrap();
            assert_eq!((queue.id, queue.topic), (-1, Some(topic())));
        }
    }
    #[test]
    fn every_broker_can_be_where_the_client_asked() {
        let route = Route { nodes: nodes(), queues: 1, kinds: vec![MessageKind::Normal] };
        let listed = queues(route, &topic());
        let mut pointed = listed.clone();
        point_at(None, pointed.iter_mut());
        point_at(Some(&v2::Endpoints::default()), pointed.iter_mut());
        assert_eq!(
            pointed, listed,
            "a client that does not say where it asked is told of all nodes"
        );

        let address = v2::Address { host: "mq.example".into(), port: 8081 };
        let scheme = v2::AddressScheme::DomainName.into();
        let asked = v2::Endpoints { scheme, addresses: vec![address] };
        point_at(Some(&asked), pointed.iter_mut());
        let brokers: Vec<_> = pointed.into_iter().map(|queue| queue.broker.unwrap()).collect();
        assert!(brokers.iter().all(|broker| broker.endpoints.as_ref() == Some(&asked)));
        let names: Vec<_> = brokers.iter().map(|broker| &*broker.name).collect();
        assert_eq!(names, ["node-1", "node-2", "node-3"]);
    }
}
