//! `raftmq.v1.Admin`: what an operator asks. By default only from the same host.

use std::net::SocketAddr;

use tonic::{Request, Response, Status};

use crate::base::{
    BrokerGroupName, DELAY_LEVELS, GroupName, Millis, NameError, NodeId, TopicName, UtcMillis,
};
use crate::broker::{
    Broker, Exhausted, GroupInfo, GroupPart, GroupStatus, NewGroup, NewTopic, NodeStatus, Order,
    OrderRule, TimerChange, TimerRequest, TopicInfo, TopicPart,
};
use crate::message::MessageKind;
use crate::wire::raftmq as v1;

use super::status::{group_status, timer_status, topic_status, unavailable};
use super::{cursors, dead_letters, find, members, recall, transactions};

/// What a request without its own values gets.
const QUEUES_DEFAULT: u32 = 8;
const ATTEMPTS_DEFAULT: u32 = 17;
const PAGE_DEFAULT: u32 = 100;
/// One less than the broker lists at once, so that the next name tells whether more follow.
const PAGE_MAX: u32 = 999;
/// How long a delayed message's entry may take.
const TIMER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Admin {
    pub(super) broker: Broker,
    pub(super) from_anywhere: bool,
}

impl Admin {
    fn allow<T>(&self, request: Request<T>) -> Result<T, Status> {
        if self.from_anywhere || request.remote_addr().is_some_and(is_here) {
            return Ok(request.into_inner());
        }
        let peer = request.remote_addr().map_or_else(|| "unknown".into(), |peer| peer.to_string());
        Err(Status::permission_denied(format!(
            "administration is for callers on this host only, and this one is {peer}; \
             allow others in the configuration (admin.from_anywhere)"
        )))
    }
}

impl Admin {
    async fn change_timer(
        &self,
        message: v1::DelayedMessage,
        change: TimerChange,
    ) -> Result<Response<v1::DelayedAnswer>, Status> {
        let (topic, which) = (topic_name(&message.topic)?, recall::which(message.name)?);
        let deadline = tokio::time::Instant::now() + TIMER_TIMEOUT;
        let request = TimerRequest { topic, which, change, deadline };
        let answer = self.broker.change_timer(request).await;
        Ok(Response::new(recall::answer(answer.map_err(|error| timer_status(&error))?)))
    }
}

fn is_here(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

#[tonic::async_trait]
impl v1::admin_server::Admin for Admin {
    async fn create_topic(
        &self,
        request: Request<v1::CreateTopicRequest>,
    ) -> Result<Response<v1::Topic>, Status> {
        let request = self.allow(request)?;
        let new = NewTopic {
            name: topic_name(&request.name)?,
            queues: if request.queues == 0 { QUEUES_DEFAULT } else { request.queues },
            kinds: kinds(&request.kinds)?,
            broker_groups: broker_groups(&request.broker_groups)?,
            keep: (request.keep_millis > 0).then(|| Millis::new(request.keep_millis)),
        };
        let info = self.broker.create_topic(new).await.map_err(|error| topic_status(&error))?;
        Ok(Response::new(topic(info)))
    }

    async fn delete_topic(
        &self,
        request: Request<v1::DeleteTopicRequest>,
    ) -> Result<Response<v1::DeleteTopicResponse>, Status> {
        let name = topic_name(&self.allow(request)?.name)?;
        self.broker.delete_topic(&name).await.map_err(|error| topic_status(&error))?;
        Ok(Response::new(v1::DeleteTopicResponse {}))
    }

    async fn list_topics(
        &self,
        request: Request<v1::ListTopicsRequest>,
    ) -> Result<Response<v1::ListTopicsResponse>, Status> {
        let request = self.allow(request)?;
        let after = request.after.as_deref().map(topic_name).transpose()?;
        let limit = page(request.limit);
        let found = self.broker.topics(after.as_ref(), limit + 1).await;
        let mut topics = found.map_err(|error| unavailable(&error))?;
        let more = topics.len() > limit;
        topics.truncate(limit);
        let topics = topics.into_iter().map(topic).collect();
        Ok(Response::new(v1::ListTopicsResponse { topics, more }))
    }

    async fn describe_topic(
        &self,
        request: Request<v1::DescribeTopicRequest>,
    ) -> Result<Response<v1::Topic>, Status> {
        let name = topic_name(&self.allow(request)?.name)?;
        let info = self.broker.topic(&name).await.map_err(|error| topic_status(&error))?;
        Ok(Response::new(topic(info)))
    }

    async fn create_group(
        &self,
        request: Request<v1::CreateGroupRequest>,
    ) -> Result<Response<v1::Group>, Status> {
        let new = new_group(self.allow(request)?)?;
        let info = self.broker.create_group(new).await.map_err(|error| group_status(&error))?;
        Ok(Response::new(group(info)))
    }

    async fn delete_group(
        &self,
        request: Request<v1::DeleteGroupRequest>,
    ) -> Result<Response<v1::DeleteGroupResponse>, Status> {
        let name = group_name(&self.allow(request)?.name)?;
        self.broker.delete_group(&name).await.map_err(|error| group_status(&error))?;
        Ok(Response::new(v1::DeleteGroupResponse {}))
    }

    async fn list_groups(
        &self,
        request: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        let request = self.allow(request)?;
        let after = request.after.as_deref().map(group_name).transpose()?;
        let limit = page(request.limit);
        let found = self.broker.groups(after.as_ref(), limit + 1).await;
        let mut groups = found.map_err(|error| unavailable(&error))?;
        let more = groups.len() > limit;
        groups.truncate(limit);
        let groups = groups.into_iter().map(group).collect();
        Ok(Response::new(v1::ListGroupsResponse { groups, more }))
    }

    async fn describe_group(
        &self,
        request: Request<v1::DescribeGroupRequest>,
    ) -> Result<Response<v1::Group>, Status> {
        let name = group_name(&self.allow(request)?.name)?;
        let info = self.broker.group_info(&name).await.map_err(|error| group_status(&error))?;
        Ok(Response::new(group(info)))
    }

    async fn grow_topic(
        &self,
        request: Request<v1::GrowTopicRequest>,
    ) -> Result<Response<v1::Topic>, Status> {
        let request = self.allow(request)?;
        let name = topic_name(&request.name)?;
        let grown = self.broker.grow_topic(&name, request.queues).await;
        Ok(Response::new(topic(grown.map_err(|error| topic_status(&error))?)))
    }

    async fn resume_group(
        &self,
        request: Request<v1::ResumeGroupRequest>,
    ) -> Result<Response<v1::Group>, Status> {
        let request = self.allow(request)?;
        let (name, topic) = (group_name(&request.name)?, topic_name(&request.topic)?);
        let resumed = self.broker.resume_group(&name, &topic).await;
        Ok(Response::new(group(resumed.map_err(|error| group_status(&error))?)))
    }

    async fn recall_delayed(
        &self,
        request: Request<v1::RecallDelayedRequest>,
    ) -> Result<Response<v1::DelayedAnswer>, Status> {
        let message = self.allow(request)?.message.unwrap_or_default();
        self.change_timer(message, TimerChange::Recall).await
    }

    async fn reschedule_delayed(
        &self,
        request: Request<v1::RescheduleDelayedRequest>,
    ) -> Result<Response<v1::DelayedAnswer>, Status> {
        let request = self.allow(request)?;
        let message = request.message.unwrap_or_default();
        self.change_timer(message, recall::deliver_at(request.deliver_at)).await
    }

    async fn cluster_status(
        &self,
        request: Request<v1::ClusterStatusRequest>,
    ) -> Result<Response<v1::ClusterStatusResponse>, Status> {
        let request = self.allow(request)?;
        let groups = self.broker.cluster_status(request.units).await;
        let groups = groups.into_iter().map(broker_group).collect();
        Ok(Response::new(v1::ClusterStatusResponse { groups }))
    }

    async fn change_members(
        &self,
        request: Request<v1::ChangeMembersRequest>,
    ) -> Result<Response<v1::ChangeMembersResponse>, Status> {
        let change = members::change(self.allow(request)?)?;
        let steps = self.broker.change_members(&change).await;
        Ok(Response::new(members::steps(steps)))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeadershipRequest>,
    ) -> Result<Response<v1::ChangeMembersResponse>, Status> {
        let request = self.allow(request)?;
        let chosen = broker_groups(&request.broker_groups)?;
        let steps = self.broker.lead_by(&chosen, NodeId::new(request.to)).await;
        let steps = steps.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(members::steps(steps)))
    }

    async fn list_transactions(
        &self,
        request: Request<v1::ListTransactionsRequest>,
    ) -> Result<Response<v1::ListTransactionsResponse>, Status> {
        transactions::list(&self.broker, self.allow(request)?).await.map(Response::new)
    }

    async fn decide_transaction(
        &self,
        request: Request<v1::DecideTransactionRequest>,
    ) -> Result<Response<v1::DecideTransactionResponse>, Status> {
        transactions::decide(&self.broker, self.allow(request)?).await.map(Response::new)
    }

    async fn update_group(
        &self,
        request: Request<v1::UpdateGroupRequest>,
    ) -> Result<Response<v1::Group>, Status> {
        let updated = dead_letters::update_group(&self.broker, self.allow(request)?).await?;
        Ok(Response::new(group(updated)))
    }

    async fn list_dead_letters(
        &self,
        request: Request<v1::ListDeadLettersRequest>,
    ) -> Result<Response<v1::ListDeadLettersResponse>, Status> {
        dead_letters::list(&self.broker, self.allow(request)?).await.map(Response::new)
    }

    async fn redrive_dead_letters(
        &self,
        request: Request<v1::RedriveDeadLettersRequest>,
    ) -> Result<Response<v1::RedriveDeadLettersResponse>, Status> {
        dead_letters::redrive(&self.broker, self.allow(request)?).await.map(Response::new)
    }

    async fn reset_group(
        &self,
        request: Request<v1::ResetGroupRequest>,
    ) -> Result<Response<v1::ResetGroupResponse>, Status> {
        cursors::reset(&self.broker, self.allow(request)?).await.map(Response::new)
    }

    async fn pause_group(
        &self,
        request: Request<v1::PauseGroupRequest>,
    ) -> Result<Response<v1::Group>, Status> {
        let request = self.allow(request)?;
        let name = group_name(&request.name)?;
        let paused = self.broker.pause_group(&name, request.paused).await;
        Ok(Response::new(group(paused.map_err(|error| group_status(&error))?)))
    }

    async fn query_messages(
        &self,
        request: Request<v1::QueryMessagesRequest>,
    ) -> Result<Response<v1::QueryMessagesResponse>, Status> {
        find::query(&self.broker, self.allow(request)?).await.map(Response::new)
    }
}

fn bad_name(error: NameError) -> Status {
    Status::invalid_argument(error.to_string())
}

pub(super) fn topic_name(name: &str) -> Result<TopicName, Status> {
    TopicName::new(name).map_err(bad_name)
}

pub(super) fn group_name(name: &str) -> Result<GroupName, Status> {
    GroupName::new(name).map_err(bad_name)
}

pub(super) fn broker_groups(names: &[String]) -> Result<Vec<BrokerGroupName>, Status> {
    names.iter().map(|name| BrokerGroupName::new(name).map_err(bad_name)).collect()
}

pub(super) fn page(limit: u32) -> usize {
    let limit = if limit == 0 { PAGE_DEFAULT } else { limit.min(PAGE_MAX) };
    usize::try_from(limit).expect("a page is small")
}

fn kinds(names: &[String]) -> Result<Vec<MessageKind>, Status> {
    if names.is_empty() {
        return Ok(vec![MessageKind::Normal]);
    }
    let mut kinds = Vec::new();
    for name in names {
        let kind =
            MessageKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
                let all = MessageKind::ALL.map(MessageKind::name).join(", ");
                Status::invalid_argument(format!("the message kind is {name:?}; there are {all}"))
            })?;
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.sort_unstable();
    Ok(kinds)
}

fn new_group(request: v1::CreateGroupRequest) -> Result<NewGroup, Status> {
    let begin = cursors::begin(&request);
    let backoff = if request.backoff.is_empty() && request.curve.is_none() {
        DELAY_LEVELS.to_vec().into()
    } else {
        dead_letters::backoff(request.backoff, request.curve)?
    };
    Ok(NewGroup {
        name: group_name(&request.name)?,
        attempts_max: if request.attempts_max == 0 {
            ATTEMPTS_DEFAULT
        } else {
            request.attempts_max
        },
        backoff,
        rule: rule(&request.order, &request.exhausted)?,
        broker_groups: broker_groups(&request.broker_groups)?,
        dead_keep: (request.dead_keep_millis > 0).then(|| Millis::new(request.dead_keep_millis)),
        begin,
    })
}

fn rule(order: &str, exhausted: &str) -> Result<OrderRule, Status> {
    let odd = |what: &str, name: &str, known: String| {
        Status::invalid_argument(format!("the {what} is {name:?}; there are {known}"))
    };
    let orders = [Order::Single, Order::Batch, Order::Off];
    let found = orders.into_iter().find(|known| known.name() == order || order.is_empty());
    let known = orders.map(Order::name).join(", ");
    let order = found.ok_or_else(|| odd("order", order, known))?;
    let rules = [Exhausted::Dead, Exhausted::Stop];
    let found = rules.into_iter().find(|known| known.name() == exhausted || exhausted.is_empty());
    let known = rules.map(Exhausted::name).join(", ");
    let exhausted = found.ok_or_else(|| odd("rule after a last attempt", exhausted, known))?;
    Ok(OrderRule { order, exhausted })
}

fn topic(info: TopicInfo) -> v1::Topic {
    let queue = |queue: crate::broker::QueueInfo| v1::Queue {
        queue: queue.queue.get(),
        start: queue.start.get(),
        end: queue.end.get(),
    };
    let part = |part: TopicPart| v1::TopicPart {
        broker_group: part.broker_group.to_string(),
        id: part.id.get(),
        kinds: part.kinds.into_iter().map(|kind| kind.name().to_owned()).collect(),
        created: part.created.get(),
        queues: part.queues.into_iter().map(queue).collect(),
    };
    v1::Topic {
        name: info.name.to_string(),
        parts: info.parts.into_iter().map(part).collect(),
        differences: info.differences,
    }
}

fn group(info: GroupInfo) -> v1::Group {
    let topic = |topic: crate::broker::GroupTopic| v1::GroupTopic {
        topic: topic.topic.to_string(),
        ready: topic.ready,
        in_flight: topic.in_flight,
        expired: topic.expired,
        dead: topic.dead,
        stopped: topic.stopped,
        dead_letters: topic.dead_letters,
        epoch: topic.epoch,
        filters: topic.filters,
        differ_since: topic.differ_since.map(|since| since.get()),
        conflicts: topic.conflicts,
    };
    let instance = |one: crate::broker::GroupInstance| v1::GroupInstance {
        topic: one.topic.to_string(),
        instance: one.instance.to_string(),
        behind: one.behind,
        lease_until: one.lease_until.get(),
        lost: one.lost,
    };
    let part = |part: GroupPart| {
        let (backoff, curve) = dead_letters::told(part.backoff);
        v1::GroupPart {
            broker_group: part.broker_group.to_string(),
            id: part.id.get(),
            attempts_max: part.attempts_max,
            backoff,
            created: part.created.get(),
            topics: part.topics.into_iter().map(topic).collect(),
            order: part.rule.order.name().to_owned(),
            exhausted: part.rule.exhausted.name().to_owned(),
            curve,
            dead_keep_millis: part.dead_keep.map_or(0, Millis::get),
            instances: part.instances.into_iter().map(instance).collect(),
            start: part.start.map(UtcMillis::get),
            paused: part.paused,
        }
    };
    v1::Group {
        name: info.name.to_string(),
        parts: info.parts.into_iter().map(part).collect(),
        differences: info.differences,
    }
}

fn broker_group(status: GroupStatus) -> v1::BrokerGroup {
    v1::BrokerGroup {
        group: status.group.to_string(),
        nodes: status.nodes.into_iter().map(node).collect(),
        audit_index: status.audit.map(crate::base::LogIndex::get),
        durability: status.durability.name().to_owned(),
    }
}

fn node(status: NodeStatus) -> v1::Node {
    v1::Node {
        node: status.node.get(),
        role: status.role,
        term: status.term,
        last: status.last,
        committed: status.committed,
        applied: status.applied,
        state_hash: status.state_hash,
        grpc: status.grpc,
        error: status.error,
        units_hash: status.units_hash,
        voter: status.voter,
        first: status.first,
        floor: status.floor,
        behind_entries: status.behind.map(|(entries, _)| entries),
        behind_bytes: status.behind.map(|(_, bytes)| bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_administers() {
        for here in ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(is_here(here.parse().unwrap()), "{here}");
        }
        for elsewhere in ["10.0.0.1:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1", "0.0.0.0:1"] {
            assert!(!is_here(elsewhere.parse().unwrap()), "{elsewhere}");
        }
    }

    #[test]
    fn kinds_are_named() {
        let named = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            kinds(&names)
        };
        assert_eq!(named(&[]).unwrap(), [MessageKind::Normal]);
        assert_eq!(
            named(&["delay", "normal", "delay"]).unwrap(),
            [MessageKind::Normal, MessageKind::Delay]
        );
        let status = named(&["fifos"]).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().contains("fifos") && status.message().contains("transaction"));
    }

    #[test]
    fn absent_values_have_defaults() {
        let request = v1::CreateGroupRequest { name: "g".into(), ..Default::default() };
        let group = new_group(request).unwrap();
        assert_eq!((group.attempts_max, group.backoff), (17, DELAY_LEVELS.to_vec().into()));
        assert_eq!([page(0), page(5), page(5000)], [100, 5, 999]);
    }
}
