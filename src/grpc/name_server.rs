//! A name server without a broker: it hears registrations and answers where topics are.
//!
//! Which nodes live is its own knowledge; what a topic looks like it asks one of them. Everything
//! else a client does at the nodes of the route, so it is refused here.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::broker::{Assignment, BrokerNode, Nodes, Route};
use crate::name_server::Registration;
use crate::wire::raftmq as v1;
use crate::wire::raftmq::name_server_server::{NameServer, NameServerServer};
use crate::wire::rocketmq as v2;
use crate::wire::rocketmq::Code;
use crate::wire::rocketmq::messaging_service_client::MessagingServiceClient;
use crate::wire::rocketmq::messaging_service_server::{MessagingService, MessagingServiceServer};

use super::metadata::Caller;
use super::service::unary;
use super::status::{Answer, Refused, ok};
use super::{Options, convert, limits, listener, route};

/// How long one node may take to say what a topic looks like, before another one is asked.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Takes registrations in.
pub trait Registry: Send + Sync {
    fn register(&self, registration: Registration);
}

/// Serves clients until `shutdown`.
pub async fn serve_names(
    listener: TcpListener,
    nodes: Arc<dyn Nodes>,
    options: Options,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let names = Names { nodes, channels: Mutex::default() };
    let connections = listener::admitted(listener, options.admission, options.tls);
    let served = Server::builder()
        .http2_keepalive_interval(Some(super::PING_INTERVAL))
        .http2_keepalive_timeout(Some(super::PING_TIMEOUT))
        .http2_max_header_list_size(super::HEADERS_MAX)
        .max_concurrent_streams(super::STREAMS_MAX)
        .add_service(MessagingServiceServer::new(names))
        .serve_with_incoming_shutdown(connections, shutdown);
    served.await.map_err(io::Error::other)
}

/// Serves brokers until `shutdown`.
pub async fn serve_registrations(
    listener: TcpListener,
    registry: Arc<dyn Registry>,
    options: Options,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let connections = listener::admitted(listener, options.admission, None);
    let served = Server::builder()
        .http2_keepalive_interval(Some(super::PING_INTERVAL))
        .http2_keepalive_timeout(Some(super::PING_TIMEOUT))
        .add_service(NameServerServer::new(Registrations { registry }))
        .serve_with_incoming_shutdown(connections, shutdown);
    served.await.map_err(io::Error::other)
}

struct Registrations {
    registry: Arc<dyn Registry>,
}

#[tonic::async_trait]
impl NameServer for Registrations {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterAnswer>, Status> {
        let registration = Registration::decode(&request.into_inner().registration);
        let registration =
            registration.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.registry.register(registration);
        Ok(Response::new(v1::RegisterAnswer {}))
    }
}

#[derive(Debug)]
struct Names {
    nodes: Arc<dyn Nodes>,
    /// By `host:port`; lazily connected.
    channels: Mutex<HashMap<String, Channel>>,
}

impl Names {
    /// The topic's queues and kinds as a live node tells them, on the nodes that live.
    async fn find(&self, caller: &Caller, topic: &v2::Resource) -> Result<Route, Refused> {
        limits::topic(Some(topic))?;
        let nodes = self.nodes.live();
        let mut reason = "no broker has registered with this name server".to_owned();
        for node in &nodes {
            match self.ask(caller, node, topic).await {
                Ok(answer) => {
                    let status = answer.status.unwrap_or_default();
                    if status.code() != Code::Ok {
                        return Err(Refused::new(status.code(), status.message));
                    }
                    let (queues, kinds) = shape(&answer.message_queues);
                    if queues == 0 || kinds.is_empty() {
                        reason = format!("{} answered a route without queues", node.name);
                        continue;
                    }
                    return Ok(Route { nodes, queues, kinds });
                }
                Err(error) => reason = format!("{}: {}", node.name, error.message()),
            }
        }
        Err(Refused::new(Code::HaNotAvailable, reason))
    }

    async fn ask(
        &self,
        caller: &Caller,
        node: &BrokerNode,
        topic: &v2::Resource,
    ) -> Result<v2::QueryRouteResponse, Status> {
        let address = format!("{}:{}", node.host, node.port);
        let channel = self.channel(&address)?;
        let message = v2::QueryRouteRequest { topic: Some(topic.clone()), endpoints: None };
        let mut request = Request::new(message);
        request.set_timeout(caller.remaining().min(ASK_TIMEOUT));
        let id = caller.client.as_str().parse();
        let id = id.map_err(|_| Status::invalid_argument("the client id is no header value"))?;
        request.metadata_mut().insert("x-mq-client-id", id);
        let answer = MessagingServiceClient::new(channel).query_route(request).await?;
        Ok(answer.into_inner())
    }

    fn channel(&self, address: &str) -> Result<Channel, Status> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| Status::unavailable(error.to_string()))?;
        let channel = endpoint.connect_timeout(ASK_TIMEOUT).connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// How many queues a route names, and what they take.
fn shape(queues: &[v2::MessageQueue]) -> (u32, Vec<crate::message::MessageKind>) {
    let count = queues.iter().map(|queue| queue.id.saturating_add(1)).max().unwrap_or_default();
    let accepted = queues.first().map(|queue| &queue.accept_message_types[..]);
    (u32::try_from(count).unwrap_or_default(), convert::kinds(accepted.unwrap_or_default()))
}

fn elsewhere(rpc: &'static str) -> Refused {
    Refused::new(
        Code::NotImplemented,
        format_args!("{rpc} is for brokers, and this is a name server; ask it for a route"),
    )
}

async fn refuse<Q, A: Answer>(
    rpc: &'static str,
    request: Request<Q>,
) -> Result<Response<A>, Status> {
    unary(rpc, request, |_, _| std::future::ready(Err(elsewhere(rpc)))).await
}

type Nothing<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl MessagingService for Names {
    async fn query_route(
        &self,
        request: Request<v2::QueryRouteRequest>,
    ) -> Result<Response<v2::QueryRouteResponse>, Status> {
        unary("QueryRoute", request, |caller, message| async move {
            let topic = message.topic.unwrap_or_default();
            let found = self.find(&caller, &topic).await?;
            let message_queues = route::queues(found, &topic);
            Ok(v2::QueryRouteResponse { status: Some(ok()), message_queues })
        })
        .await
    }

    async fn query_assignment(
        &self,
        request: Request<v2::QueryAssignmentRequest>,
    ) -> Result<Response<v2::QueryAssignmentResponse>, Status> {
        unary("QueryAssignment", request, |caller, message| async move {
            limits::group(message.group.as_ref())?;
            let topic = message.topic.unwrap_or_default();
            let Route { nodes, kinds, .. } = self.find(&caller, &topic).await?;
            let assignments = route::assignments(Assignment { nodes, kinds }, &topic);
            Ok(v2::QueryAssignmentResponse { status: Some(ok()), assignments })
        })
        .await
    }

    async fn heartbeat(
        &self,
        request: Request<v2::HeartbeatRequest>,
    ) -> Result<Response<v2::HeartbeatResponse>, Status> {
        refuse("Heartbeat", request).await
    }

    async fn send_message(
        &self,
        request: Request<v2::SendMessageRequest>,
    ) -> Result<Response<v2::SendMessageResponse>, Status> {
        refuse("SendMessage", request).await
    }

    type ReceiveMessageStream = Nothing<v2::ReceiveMessageResponse>;

    async fn receive_message(
        &self,
        _: Request<v2::ReceiveMessageRequest>,
    ) -> Result<Response<Self::ReceiveMessageStream>, Status> {
        Err(Status::unimplemented(elsewhere("ReceiveMessage").text))
    }

    async fn ack_message(
        &self,
        request: Request<v2::AckMessageRequest>,
    ) -> Result<Response<v2::AckMessageResponse>, Status> {
        refuse("AckMessage", request).await
    }

    async fn forward_message_to_dead_letter_queue(
        &self,
        request: Request<v2::ForwardMessageToDeadLetterQueueRequest>,
    ) -> Result<Response<v2::ForwardMessageToDeadLetterQueueResponse>, Status> {
        refuse("ForwardMessageToDeadLetterQueue", request).await
    }

    type PullMessageStream = Nothing<v2::PullMessageResponse>;

    async fn pull_message(
        &self,
        _: Request<v2::PullMessageRequest>,
    ) -> Result<Response<Self::PullMessageStream>, Status> {
        Err(Status::unimplemented(elsewhere("PullMessage").text))
    }

    async fn update_offset(
        &self,
        request: Request<v2::UpdateOffsetRequest>,
    ) -> Result<Response<v2::UpdateOffsetResponse>, Status> {
        refuse("UpdateOffset", request).await
    }

    async fn get_offset(
        &self,
        request: Request<v2::GetOffsetRequest>,
    ) -> Result<Response<v2::GetOffsetResponse>, Status> {
        refuse("GetOffset", request).await
    }

    async fn query_offset(
        &self,
        request: Request<v2::QueryOffsetRequest>,
    ) -> Result<Response<v2::QueryOffsetResponse>, Status> {
        refuse("QueryOffset", request).await
    }

    async fn end_transaction(
        &self,
        request: Request<v2::EndTransactionRequest>,
    ) -> Result<Response<v2::EndTransactionResponse>, Status> {
        refuse("EndTransaction", request).await
    }

    type TelemetryStream = Nothing<v2::TelemetryCommand>;

    async fn telemetry(
        &self,
        _: Request<Streaming<v2::TelemetryCommand>>,
    ) -> Result<Response<Self::TelemetryStream>, Status> {
        Err(Status::unimplemented(elsewhere("Telemetry").text))
    }

    async fn notify_client_termination(
        &self,
        request: Request<v2::NotifyClientTerminationRequest>,
    ) -> Result<Response<v2::NotifyClientTerminationResponse>, Status> {
        refuse("NotifyClientTermination", request).await
    }

    async fn change_invisible_duration(
        &self,
        request: Request<v2::ChangeInvisibleDurationRequest>,
    ) -> Result<Response<v2::ChangeInvisibleDurationResponse>, Status> {
        refuse("ChangeInvisibleDuration", request).await
    }

    async fn recall_message(
        &self,
        request: Request<v2::RecallMessageRequest>,
    ) -> Result<Response<v2::RecallMessageResponse>, Status> {
        refuse("RecallMessage", request).await
    }

    async fn sync_lite_subscription(
        &self,
        request: Request<v2::SyncLiteSubscriptionRequest>,
    ) -> Result<Response<v2::SyncLiteSubscriptionResponse>, Status> {
        refuse("SyncLiteSubscription", request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topics_shape_is_read_from_a_route() {
        let queue = |id| v2::MessageQueue {
            id,
            accept_message_types: vec![1, 3],
            ..v2::MessageQueue::default()
        };
        let (queues, kinds) = shape(&[queue(0), queue(0), queue(7), queue(3)]);
        assert_eq!((queues, kinds.len()), (8, 2));
        assert_eq!(shape(&[]), (0, Vec::new()));
    }
}
