//! Calls of `raftmq.v1.Admin`.

use crate::base::{GroupName, TopicName};
use crate::wire::raftmq as v1;

use super::error::ClientError;
use super::values::{
    BrokerGroupStatus, GroupInfo, GroupPart, GroupTopic, NodeStatus, QueueInfo, TopicInfo,
    TopicPart,
};
use super::{CALL_TIMEOUT, Client};

/// Names in one page of a list.
const PAGE: u32 = 1000;

impl Client {
    /// Creates a topic; `queues` 0 and no kinds stand for the broker's own choice, no broker groups
    /// for all.
    pub async fn create_topic(
        &self,
        name: &TopicName,
        queues: u32,
        kinds: &[String],
        broker_groups: &[String],
    ) -> Result<TopicInfo, ClientError> {
        let request = v1::CreateTopicRequest {
            name: name.to_string(),
            queues,
            kinds: kinds.to_vec(),
            broker_groups: broker_groups.to_vec(),
        };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(topic(self.admin().create_topic(request).await?.into_inner()))
    }

    pub async fn delete_topic(&self, name: &TopicName) -> Result<(), ClientError> {
        let request = v1::DeleteTopicRequest { name: name.to_string() };
        self.admin().delete_topic(self.request(request, CALL_TIMEOUT)).await?;
        Ok(())
    }

    /// All topics, sorted by name.
    pub async fn topics(&self) -> Result<Vec<TopicInfo>, ClientError> {
        let mut topics: Vec<TopicInfo> = Vec::new();
        loop {
            let after = topics.last().map(|topic| topic.name.clone());
            let request = v1::ListTopicsRequest { after, limit: PAGE };
            let request = self.request(request, CALL_TIMEOUT);
            let page = self.admin().list_topics(request).await?.into_inner();
            let more = page.more && !page.topics.is_empty();
            topics.extend(page.topics.into_iter().map(topic));
            if !more {
                return Ok(topics);
            }
        }
    }

    pub async fn topic(&self, name: &TopicName) -> Result<TopicInfo, ClientError> {
        let request = v1::DescribeTopicRequest { name: name.to_string() };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(topic(self.admin().describe_topic(request).await?.into_inner()))
    }

    /// Creates a consumer group; `attempts_max` 0 and no back-off stand for the broker's own
    /// choice, no broker groups for all. Back-off in milliseconds.
    pub async fn create_group(
        &self,
        name: &GroupName,
        attempts_max: u32,
        backoff: &[u64],
        broker_groups: &[String],
    ) -> Result<GroupInfo, ClientError> {
        let request = v1::CreateGroupRequest {
            name: name.to_string(),
            attempts_max,
            backoff: backoff.to_vec(),
            broker_groups: broker_groups.to_vec(),
        };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(group(self.admin().create_group(request).await?.into_inner()))
    }

    pub async fn delete_group(&self, name: &GroupName) -> Result<(), ClientError> {
        let request = v1::DeleteGroupRequest { name: name.to_string() };
        self.admin().delete_group(self.request(request, CALL_TIMEOUT)).await?;
        Ok(())
    }

    /// All consumer groups, sorted by name.
    pub async fn groups(&self) -> Result<Vec<GroupInfo>, ClientError> {
        let mut groups: Vec<GroupInfo> = Vec::new();
        loop {
            let after = groups.last().map(|group| group.name.clone());
            let request = v1::ListGroupsRequest { after, limit: PAGE };
            let request = self.request(request, CALL_TIMEOUT);
            let page = self.admin().list_groups(request).await?.into_inner();
            let more = page.more && !page.groups.is_empty();
            groups.extend(page.groups.into_iter().map(group));
            if !more {
                return Ok(groups);
            }
        }
    }

    pub async fn group(&self, name: &GroupName) -> Result<GroupInfo, ClientError> {
        let request = v1::DescribeGroupRequest { name: name.to_string() };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(group(self.admin().describe_group(request).await?.into_inner()))
    }

    /// What every node says of its replica, asked now. With `units` every queue unit is read and
    /// hashed as well, which takes time where there are many.
    pub async fn cluster_status(&self, units: bool) -> Result<Vec<BrokerGroupStatus>, ClientError> {
        let request = self.request(v1::ClusterStatusRequest { units }, CALL_TIMEOUT);
        let answer = self.admin().cluster_status(request).await?.into_inner();
        Ok(answer.groups.into_iter().map(broker_group).collect())
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

fn group(group: v1::Group) -> GroupInfo {
    let topic = |topic: v1::GroupTopic| GroupTopic {
        topic: topic.topic,
        ready: topic.ready,
        in_flight: topic.in_flight,
    };
    let part = |part: v1::GroupPart| GroupPart {
        broker_group: part.broker_group,
        id: part.id,
        attempts_max: part.attempts_max,
        backoff: part.backoff,
        created: part.created,
        topics: part.topics.into_iter().map(topic).collect(),
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
        nodes: group.nodes.into_iter().map(node).collect(),
    }
}

fn node(node: v1::Node) -> NodeStatus {
    let digits = |hash: u64| format!("{hash:016x}");
    NodeStatus {
        node: node.node,
        role: node.role,
        term: node.term,
        last: node.last,
        committed: node.committed,
        applied: node.applied,
        state_hash: node.state_hash.map(digits),
        units_hash: node.units_hash.map(digits),
        grpc: node.grpc,
        error: node.error,
    }
}
