//! Calls of `raftmq.v1.Admin`.

use std::time::Duration;

use futures::{Stream, StreamExt};

use crate::base::{GroupName, TopicName};
use crate::wire::raftmq as v1;

use super::cursors;
use super::error::ClientError;
use super::values::{
    BackoffCurve, BrokerGroupStatus, Delayed, DelayedOutcome, GroupInfo, GroupInstance, GroupPart,
    GroupShape, GroupTopic, MembersChange, MembersStep, NewMember, NodeStatus, Page, QueueInfo,
    TopicInfo, TopicPart, TopicShape,
};
use super::{CALL_TIMEOUT, Client};

/// Creations under way at a time. Each is one entry of the log; together they share its syncs.
const CREATIONS: usize = 64;
/// A step waits for a leader, asks it, and waits until its entry is committed.
const STEP_TIMEOUT: Duration = Duration::from_secs(15);

impl Client {
    /// Creates a topic; `queues` 0 and no kinds stand for the broker's own choice, no broker groups
    /// for all.
    pub async fn create_topic(
        &self,
        name: &TopicName,
        shape: TopicShape<'_>,
    ) -> Result<TopicInfo, ClientError> {
        let request = v1::CreateTopicRequest {
            name: name.to_string(),
            queues: shape.queues,
            kinds: shape.kinds.to_vec(),
            broker_groups: shape.broker_groups.to_vec(),
            keep_millis: shape.keep,
        };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(topic(self.admin().create_topic(request).await?.into_inner()))
    }

    /// Creates topics of one shape, many at a time over this connection; the answers come in the
    /// order of the names, each with its name.
    pub fn create_topics<'a>(
        &'a self,
        names: impl Stream<Item = TopicName> + 'a,
        shape: TopicShape<'a>,
    ) -> impl Stream<Item = (TopicName, Result<TopicInfo, ClientError>)> + 'a {
        let create = move |name: TopicName| async move {
            let created = self.create_topic(&name, shape).await;
            (name, created)
        };
        names.map(create).buffered(CREATIONS)
    }

    /// More queues for a topic, wherever it is.
    pub async fn grow_topic(
        &self,
        name: &TopicName,
        queues: u32,
    ) -> Result<TopicInfo, ClientError> {
        let request = v1::GrowTopicRequest { name: name.to_string(), queues };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(topic(self.admin().grow_topic(request).await?.into_inner()))
    }

    /// Message groups go on that stood still after a last attempt.
    pub async fn resume_group(
        &self,
        name: &GroupName,
        topic: &TopicName,
    ) -> Result<GroupInfo, ClientError> {
        let (name, topic) = (name.to_string(), topic.to_string());
        let request = self.request(v1::ResumeGroupRequest { name, topic }, CALL_TIMEOUT);
        Ok(group(self.admin().resume_group(request).await?.into_inner()))
    }

    pub async fn delete_topic(&self, name: &TopicName) -> Result<(), ClientError> {
        let request = v1::DeleteTopicRequest { name: name.to_string() };
        self.admin().delete_topic(self.request(request, CALL_TIMEOUT)).await?;
        Ok(())
    }

    /// Topics sorted by name, from the one behind `after`; at most `limit`, and at most what the
    /// broker puts into one page.
    pub async fn topics(
        &self,
        after: Option<String>,
        limit: u32,
    ) -> Result<Page<TopicInfo>, ClientError> {
        let request = self.request(v1::ListTopicsRequest { after, limit }, CALL_TIMEOUT);
        let page = self.admin().list_topics(request).await?.into_inner();
        Ok(Page { items: page.topics.into_iter().map(topic).collect(), more: page.more })
    }

    pub async fn topic(&self, name: &TopicName) -> Result<TopicInfo, ClientError> {
        let request = v1::DescribeTopicRequest { name: name.to_string() };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(topic(self.admin().describe_topic(request).await?.into_inner()))
    }

    /// Creates a consumer group; one that exists keeps its values.
    pub async fn create_group(
        &self,
        name: &GroupName,
        shape: GroupShape<'_>,
    ) -> Result<GroupInfo, ClientError> {
        let request = v1::CreateGroupRequest {
            name: name.to_string(),
            attempts_max: shape.attempts_max,
            backoff: shape.backoff.to_vec(),
            broker_groups: shape.broker_groups.to_vec(),
            order: shape.order.to_owned(),
            exhausted: shape.exhausted.to_owned(),
            curve: shape.curve.map(BackoffCurve::wire),
            dead_keep_millis: shape.dead_keep,
            start: shape.start.and_then(cursors::start),
            paused: shape.paused,
        };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(group(self.admin().create_group(request).await?.into_inner()))
    }

    pub async fn delete_group(&self, name: &GroupName) -> Result<(), ClientError> {
        let request = v1::DeleteGroupRequest { name: name.to_string() };
        self.admin().delete_group(self.request(request, CALL_TIMEOUT)).await?;
        Ok(())
    }

    /// Consumer groups sorted by name, as [`Self::topics`].
    pub async fn groups(
        &self,
        after: Option<String>,
        limit: u32,
    ) -> Result<Page<GroupInfo>, ClientError> {
        let request = self.request(v1::ListGroupsRequest { after, limit }, CALL_TIMEOUT);
        let page = self.admin().list_groups(request).await?.into_inner();
        Ok(Page { items: page.groups.into_iter().map(group).collect(), more: page.more })
    }

    pub async fn group(&self, name: &GroupName) -> Result<GroupInfo, ClientError> {
        let request = v1::DescribeGroupRequest { name: name.to_string() };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(group(self.admin().describe_group(request).await?.into_inner()))
    }

    /// A delayed message shall not be delivered.
    pub async fn recall_delayed(
        &self,
        topic: &TopicName,
        which: Delayed,
    ) -> Result<DelayedOutcome, ClientError> {
        let request = v1::RecallDelayedRequest { message: Some(delayed_message(topic, which)) };
        let request = self.request(request, STEP_TIMEOUT);
        Ok(delayed_outcome(self.admin().recall_delayed(request).await?.into_inner()))
    }

    /// A delayed message shall be delivered at another time, in milliseconds since
    /// 1970-01-01T00:00:00Z.
    pub async fn reschedule_delayed(
        &self,
        topic: &TopicName,
        which: Delayed,
        deliver_at: u64,
    ) -> Result<DelayedOutcome, ClientError> {
        let message = Some(delayed_message(topic, which));
        let request = v1::RescheduleDelayedRequest { message, deliver_at };
        let request = self.request(request, STEP_TIMEOUT);
        Ok(delayed_outcome(self.admin().reschedule_delayed(request).await?.into_inner()))
    }

    /// What every node says of its replica, asked now. With `units` every queue unit is read and
    /// hashed as well, which takes time where there are many.
    pub async fn cluster_status(&self, units: bool) -> Result<Vec<BrokerGroupStatus>, ClientError> {
        let request = self.request(v1::ClusterStatusRequest { units }, CALL_TIMEOUT);
        let answer = self.admin().cluster_status(request).await?.into_inner();
        Ok(answer.groups.into_iter().map(broker_group).collect())
    }
}

impl Client {
    /// One step towards another set of nodes; to be repeated until all broker groups are done.
    pub async fn change_members(
        &self,
        change: &MembersChange,
    ) -> Result<Vec<MembersStep>, ClientError> {
        use v1::change_members_request::Change;
        let member = |member: &NewMember| v1::Member {
            node: member.node,
            peer: member.peer.clone(),
            grpc: member.grpc.clone(),
        };
        let change = match change {
            MembersChange::Add(new) => Change::Add(member(new)),
            MembersChange::Remove(node) => Change::Remove(*node),
            MembersChange::Replace { old, new } => {
                Change::Replace(v1::Replacement { old: *old, new: Some(member(new)) })
            }
        };
        let request = v1::ChangeMembersRequest { change: Some(change) };
        let answer = self.admin().change_members(self.request(request, STEP_TIMEOUT)).await?;
        Ok(answer.into_inner().steps.into_iter().map(step).collect())
    }

    /// One attempt to hand the leadership of these broker groups, or of all, to a node.
    pub async fn transfer_leader(
        &self,
        to: u64,
        broker_groups: &[String],
    ) -> Result<Vec<MembersStep>, ClientError> {
        let broker_groups = broker_groups.to_vec();
        let request = v1::TransferLeadershipRequest { to, broker_groups };
        let answer = self.admin().transfer_leader(self.request(request, STEP_TIMEOUT)).await?;
        Ok(answer.into_inner().steps.into_iter().map(step).collect())
    }
}

fn delayed_message(topic: &TopicName, which: Delayed) -> v1::DelayedMessage {
    use v1::delayed_message::Name;
    let name = match which {
        Delayed::Handle(handle) => Name::RecallHandle(handle),
        Delayed::Id(id) => Name::MessageId(id),
    };
    v1::DelayedMessage { topic: topic.to_string(), name: Some(name) }
}

fn delayed_outcome(answer: v1::DelayedAnswer) -> DelayedOutcome {
    use v1::delayed_answer::Outcome;
    let outcome = match answer.outcome() {
        Outcome::Recalled => "RECALLED",
        Outcome::Rescheduled => "RESCHEDULED",
        Outcome::AlreadyFired => "ALREADY_FIRED",
        Outcome::NotFound => "NOT_FOUND",
        Outcome::Unspecified => "UNSPECIFIED",
    };
    DelayedOutcome { message_id: answer.message_id, outcome }
}

fn step(step: v1::MembersStep) -> MembersStep {
    use v1::members_step::State;
    let state = match step.state() {
        State::Done => "done",
        State::Refused => "refused",
        State::CatchingUp => "catching-up",
        State::Waiting | State::Unspecified => "waiting",
    };
    let catching_up = step.state() == State::CatchingUp;
    MembersStep {
        broker_group: step.broker_group,
        state,
        text: step.text,
        has: step.has.filter(|_| catching_up),
        goal: catching_up.then_some(step.goal),
        bytes_left: step.bytes_left,
    }
}

fn topic(topic: v1::Topic) -> TopicInfo {
    let queue =
        |queue: v1::Queue| QueueInfo { queue: queue.queue, start: queue.start, end: queue.end };
    let part = |part: v1::TopicPart| TopicPart {
        broker_group: part.broker_group,
        id: part.id,
        kinds: part.kinds,
        created: part.created,
        queues: part.queues.into_iter().map(queue).collect(),
    };
    TopicInfo {
        name: topic.name,
        parts: topic.parts.into_iter().map(part).collect(),
        differences: topic.differences,
    }
}

pub(super) fn group(group: v1::Group) -> GroupInfo {
    let topic = |topic: v1::GroupTopic| GroupTopic {
        topic: topic.topic,
        ready: topic.ready,
        in_flight: topic.in_flight,
        expired: topic.expired,
        dead: topic.dead,
        stopped: topic.stopped,
        dead_letters: topic.dead_letters,
        epoch: topic.epoch,
        filters: topic.filters,
        differ_since: topic.differ_since,
        conflicts: topic.conflicts,
    };
    let instance = |one: v1::GroupInstance| GroupInstance {
        topic: one.topic,
        instance: one.instance,
        behind: one.behind,
        lease_until: one.lease_until,
        lost: one.lost,
    };
    let part = |part: v1::GroupPart| GroupPart {
        broker_group: part.broker_group,
        id: part.id,
        attempts_max: part.attempts_max,
        backoff: part.backoff,
        order: part.order,
        exhausted: part.exhausted,
        created: part.created,
        topics: part.topics.into_iter().map(topic).collect(),
        curve: part.curve.map(BackoffCurve::told),
        dead_keep: part.dead_keep_millis,
        instances: part.instances.into_iter().map(instance).collect(),
        start: part.start,
        paused: part.paused,
    };
    GroupInfo {
        name: group.name,
        parts: group.parts.into_iter().map(part).collect(),
        differences: group.differences,
    }
}

fn broker_group(group: v1::BrokerGroup) -> BrokerGroupStatus {
    BrokerGroupStatus {
        group: group.group,
        audit_index: group.audit_index,
        durability: group.durability,
        nodes: group.nodes.into_iter().map(node).collect(),
    }
}

fn node(node: v1::Node) -> NodeStatus {
    let digits = |hash: u64| format!("{hash:016x}");
    NodeStatus {
        node: node.node,
        role: node.role,
        voter: node.voter,
        term: node.term,
        first: node.first,
        floor: node.floor,
        last: node.last,
        committed: node.committed,
        applied: node.applied,
        behind_entries: node.behind_entries,
        behind_bytes: node.behind_bytes,
        state_hash: node.state_hash.map(digits),
        units_hash: node.units_hash.map(digits),
        grpc: node.grpc,
        error: node.error,
    }
}
