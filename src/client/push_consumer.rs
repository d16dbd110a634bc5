//! A push consumer that keeps to the manners of the official ones: a telemetry stream and a
//! heartbeat to every node, the assignment asked for again and again, one poll waiting at each
//! node. It does not follow a change of nodes: it goes on with those of its start.

mod handling;

use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::wire::rocketmq as v2;

use super::error::ClientError;
use super::messages::{accepted, receive_request, resource};
use super::values::{Received, Take};
use super::{CALL_TIMEOUT, Client};

/// The periods of the official clients (grpc-behaviour.md, sections 7 and 8).
const HEARTBEAT: Duration = Duration::from_secs(10);
const ASSIGNMENT: Duration = Duration::from_secs(5);
/// Before what failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// A node tells its settings within this time.
const SETTINGS: Duration = Duration::from_secs(10);

/// What a running consumer tells its owner.
#[derive(Debug)]
pub enum Pushed {
    /// A message, which is acknowledged when the owner has seen it.
    Message(Received),
    /// A call failed; it is tried again.
    Failed(ClientError),
}

/// One consumer under an id of its own, connected and not yet consuming.
#[derive(Clone, Debug)]
pub struct PushConsumer {
    take: Take,
    nodes: Vec<Node>,
}

/// A connection to a node, and what names the topic to it.
#[derive(Clone, Debug)]
struct Node {
    client: Client,
    queue: v2::MessageQueue,
}

impl PushConsumer {
    /// Connects to `host:port` and from there to every node that serves the topic.
    pub async fn connect(endpoint: &str, take: Take) -> Result<Self, ClientError> {
        let access = Client::connect(endpoint).await?;
        let mut nodes = Vec::new();
        for queue in access.assignment(&take).await? {
            let address = address(&queue)?;
            let client = if address == endpoint {
                access.clone()
            } else {
                Client { id: access.id.clone(), ..Client::connect(&address).await? }
            };
            nodes.push(Node { client, queue });
        }
        Ok(Self { take, nodes })
    }

    /// Another consumer, under another id, over the same connections.
    pub fn beside(&self, take: Take) -> Self {
        let id = Client::fresh_id();
        let topic = Some(resource(take.topic.as_str()));
        let node = |node: &Node| Node {
            client: Client { id: id.clone(), ..node.client.clone() },
            queue: v2::MessageQueue { topic: topic.clone(), ..node.queue.clone() },
        };
        Self { nodes: self.nodes.iter().map(node).collect(), take }
    }

    pub fn connections(&self) -> usize {
        self.nodes.len()
    }

    /// Consumes until dropped.
    pub async fn run(&self, on: impl Fn(Pushed)) {
        let on = &on;
        let serve = |node| async move {
            futures::join!(self.telemetry(node, on), self.heartbeat(node, on), self.poll(node, on));
        };
        futures::join!(join_all(self.nodes.iter().map(serve)), self.ask_assignment(on));
    }

    /// One stream for as long as it lasts, then another.
    async fn telemetry(&self, node: &Node, on: &impl Fn(Pushed)) {
        loop {
            if let Err(error) = self.converse(node).await {
                on(Pushed::Failed(error));
            }
            sleep(PAUSE).await;
        }
    }

    /// Tells the own settings, waits for the node's, and reads until the stream ends.
    async fn converse(&self, node: &Node) -> Result<(), ClientError> {
        let settings = v2::TelemetryCommand {
            status: None,
            command: Some(v2::telemetry_command::Command::Settings(self.settings())),
        };
        // The stream stays open: the client has no more to say, and listens. It ends with this call,
        // which a stream that never ends by itself would outlive together with its connection.
        let (open, commands) = mpsc::channel(1);
        open.try_send(settings).expect("the channel is new and has room");
        let request = node.client.request_without_end(ReceiverStream::new(commands));
        let mut stream = node.client.messaging().telemetry(request).await?.into_inner();
        let first = timeout(SETTINGS, stream.message()).await;
        let missing = ClientError::Incomplete { what: "the settings of a node" };
        let first = first.map_err(|_| missing)??;
        accepted(first.and_then(|command| command.status))?;
        while stream.message().await?.is_some() {}
        Ok(())
    }

    fn settings(&self) -> v2::Settings {
        let subscription = v2::Subscription {
            group: Some(resource(self.take.group.as_str())),
            subscriptions: vec![v2::SubscriptionEntry {
                topic: Some(resource(self.take.topic.as_str())),
                expression: Some(super::messages::filter(&self.take.filter)),
            }],
            ..Default::default()
        };
        v2::Settings {
            client_type: Some(v2::ClientType::PushConsumer.into()),
            pub_sub: Some(v2::settings::PubSub::Subscription(subscription)),
            ..Default::default()
        }
    }

    async fn heartbeat(&self, node: &Node, on: &impl Fn(Pushed)) {
        loop {
            sleep(HEARTBEAT).await;
            let request = v2::HeartbeatRequest {
                client_type: v2::ClientType::PushConsumer.into(),
                group: Some(resource(self.take.group.as_str())),
            };
            let request = node.client.request(request, CALL_TIMEOUT);
            let answer = node.client.messaging().heartbeat(request).await;
            let answer = answer.map_err(ClientError::from);
            if let Err(error) = answer.and_then(|answer| accepted(answer.into_inner().status)) {
                on(Pushed::Failed(error));
            }
        }
    }

    async fn ask_assignment(&self, on: &impl Fn(Pushed)) {
        let Some(access) = self.nodes.first() else { return };
        loop {
            sleep(ASSIGNMENT).await;
            if let Err(error) = access.client.assignment(&self.take).await {
                on(Pushed::Failed(error));
            }
        }
    }

    async fn poll(&self, node: &Node, on: &impl Fn(Pushed)) {
        loop {
            let request = receive_request(&self.take, node.queue.clone(), true);
            // On the heap: there are many of these, and each is large for as long as it waits.
            let received = node.client.receive(request, self.take.wait).boxed().await;
            let result = match received {
                Ok(received) if received.is_empty() => Ok(()),
                Ok(received) => {
                    received.iter().for_each(|message| on(Pushed::Message(message.clone())));
                    let Take { topic, group, .. } = &self.take;
                    node.client.ack(topic, group, &received).await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                on(Pushed::Failed(error));
                sleep(PAUSE).await;
            }
        }
    }
}

impl Client {
    /// What a consumer is to poll: one queue for each node.
    async fn assignment(&self, take: &Take) -> Result<Vec<v2::MessageQueue>, ClientError> {
        let request = v2::QueryAssignmentRequest {
            topic: Some(resource(take.topic.as_str())),
            group: Some(resource(take.group.as_str())),
            endpoints: None,
        };
        let request = self.request(request, CALL_TIMEOUT);
        let answer = self.messaging().query_assignment(request).await?.into_inner();
        accepted(answer.status)?;
        let queue = |assignment: v2::Assignment| {
            let missing = ClientError::Incomplete { what: "the queue of an assignment" };
            assignment.message_queue.ok_or(missing)
        };
        answer.assignments.into_iter().map(queue).collect()
    }
}

fn address(queue: &v2::MessageQueue) -> Result<String, ClientError> {
    let endpoints = queue.broker.as_ref().and_then(|broker| broker.endpoints.as_ref());
    let first = endpoints.and_then(|endpoints| endpoints.addresses.first());
    let missing = ClientError::Incomplete { what: "the address of a node" };
    first.map(|address| format!("{}:{}", address.host, address.port)).ok_or(missing)
}
