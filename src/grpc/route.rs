//! Where a topic is: every live node, each under its own name.

use std::collections::BTreeSet;

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
    if caller.blocks_on_dial {
        share_addresses(message_queues.iter_mut());
    }
    Ok(v2::QueryRouteResponse { status: Some(ok()), message_queues })
}

pub(super) async fn query_assignment(
    broker: &Broker,
    caller: Caller,
    request: v2::QueryAssignmentRequest,
) -> Result<v2::QueryAssignmentResponse, Refused> {
    let topic = limits::topic(request.topic.as_ref())?;
    let group = limits::group(request.group.as_ref())?;
    let assignment = broker.assignment(&topic, &group).await?;
    let mut assignments = assignments(assignment, &request.topic.unwrap_or_default());
    if caller.blocks_on_dial {
        share_addresses(assignments.iter_mut().filter_map(|entry| entry.message_queue.as_mut()));
    }
    Ok(v2::QueryAssignmentResponse { status: Some(ok()), assignments })
}

/// Every queue on every node. Neighbours in the list are on different nodes, so that a client that
/// goes through it spreads its requests and retries elsewhere.
fn queues(route: Route, topic: &v2::Resource) -> Vec<v2::MessageQueue> {
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
fn assignments(assignment: Assignment, topic: &v2::Resource) -> Vec<v2::Assignment> {
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

/// Gives every broker the addresses of all of them, if all are IPv4: each node serves every request,
/// and the client's connection goes on to the next address when a node is gone. The Go client does
/// not do that between brokers: it sends all attempts of a send to one, and dials one that is gone
/// for 5 s each time, in which even its question for a newer route waits, and times out.
///
/// The order is the one into which that client sorts the list in place, since it also compares
/// lists and takes their printed form for a key.
fn share_addresses<'a>(queues: impl Iterator<Item = &'a mut v2::MessageQueue>) {
    let brokers = queues.filter_map(|queue| queue.broker.as_mut());
    let mut lists: Vec<_> = brokers.filter_map(|broker| broker.endpoints.as_mut()).collect();
    if lists.iter().any(|list| list.scheme() != v2::AddressScheme::IPv4) {
        return;
    }
    let addresses = lists.iter().flat_map(|list| &list.addresses);
    let sorted: BTreeSet<_> =
        addresses.map(|address| (address.host.clone(), address.port)).collect();
    let all: Vec<_> = sorted.into_iter().map(|(host, port)| v2::Address { host, port }).collect();
    for list in &mut lists {
        list.addresses.clone_from(&all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{BrokerGroupName, NodeId};
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
            group: BrokerGroupName::new("default").unwrap(),
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
    fn shared(nodes: Vec<BrokerNode>) -> Vec<Vec<String>> {
        let kinds = vec![MessageKind::Normal];
        let mut entries = assignments(Assignment { nodes, kinds }, &topic());
        share_addresses(entries.iter_mut().filter_map(|entry| entry.message_queue.as_mut()));
        let list = |entry: v2::Assignment| {
            let addresses =
                entry.message_queue.unwrap().broker.unwrap().endpoints.unwrap().addresses;
            addresses.iter().map(|address| format!("{}:{}", address.host, address.port)).collect()
        };
        entries.into_iter().map(list).collect()
    }

    #[test]
    fn shared_addresses_are_sorted_as_the_go_client_sorts_them() {
        let mut nodes = nodes();
        nodes[0].host = "10.0.0.9".into();
        nodes[1].host = "10.0.0.10".into();
        nodes[2].host = "10.0.0.10".into();
        nodes[2].port = 8081;
        let all = ["10.0.0.10:8081", "10.0.0.10:8091", "10.0.0.9:8081"];
        assert_eq!(shared(nodes), [all, all, all]);
    }

    #[test]
    fn a_host_name_is_never_one_of_several_addresses() {
        let mut nodes = nodes();
        nodes[2].host = "localhost".into();
        assert_eq!(shared(nodes), [["127.0.0.1:8081"], ["127.0.0.1:8091"], ["localhost:8101"]]);
    }
}
