//! Calls of `raftmq.v1.Admin`.

use crate::base::{GroupName, TopicName};
use crate::wire::raftmq as v1;

use super::error::ClientError;
use super::values::{BrokerGroupStatus, GroupInfo, GroupTopic, NodeStatus, QueueInfo, TopicInfo};
use super::{CALL_TIMEOUT, Client};

/// Names in one page of a list.
const PAGE: u32 = 1000;

impl Client {
    /// Creates a topic; `queues` 0 and no kinds stand for the broker's own choice.
    pub async fn create_topic(
        &self,
        name: &TopicName,
        queues: u32,
        kinds: &[String],
    ) -> Result<TopicInfo, ClientError> {
        let request =
            v1::CreateTopicRequest { name: name.to_string(), queues, kinds: kinds.to_vec() };
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
    /// choice. Back-off in milliseconds.
    pub async fn create_group(
        &self,
        name: &GroupName,
        attempts_max: u32,
        backoff: &[u64],
    ) -> Result<GroupInfo, ClientError> {
        let request = v1::CreateGroupRequest {
            name: name.to_string(),
            attempts_max,
            backoff: backoff.to_vec(),
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
    TopicInfo {
        id: topic.id,
        name: topic.name,
        kinds: topic.kinds,
        created: topic.created,
        queues: topic.queues.into_iter().map(queue).collect(),
    }
}

fn group(group: v1::Group) -> GroupInfo {
    let topic = |topic: v1::GroupTopic| GroupTopic {
        topic: topic.topic,
        ready: topic.ready,
        in_flight: topic.in_flight,
    };
    GroupInfo {
        id: group.id,
        name: group.name,
        attempts_max: group.attempts_max,
        backoff: group.backoff,
        created: group.created,
        topics: group.topics.into_iter().map(topic).collect(),
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
