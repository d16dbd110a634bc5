//! Where clients are sent.

use crate::base::{GroupName, TopicName};
use crate::broker::Broker;
use crate::broker::api::{Assignment, Route};
use crate::broker::error::RouteError;

impl Broker {
    /// Where a topic can be reached. Creates the topic where the profile says so.
    pub async fn route(&self, topic: &TopicName) -> Result<Route, RouteError> {
        self.resolve_topic(topic, self.default_deadline()).await?;
        let (queues, kinds) = self
            .group
            .read(|state| state.topic(topic).map(|topic| (topic.queues, topic.kinds.clone())))
            .ok_or_else(|| crate::broker::NoTopic { topic: topic.clone() })?;
        let nodes = self.nodes.live();
        assert!(!nodes.is_empty(), "a node that answers is live itself");
        Ok(Route { group: self.options.group.clone(), nodes, queues, kinds })
    }

    /// What a push consumer is to poll: any queue, on every live node.
    pub async fn assignment(
        &self,
        topic: &TopicName,
        _group: &GroupName,
    ) -> Result<Assignment, RouteError> {
        // The group need not exist before its first receive.
        let route = self.route(topic).await?;
        Ok(Assignment { nodes: route.nodes, kinds: route.kinds })
    }
}
