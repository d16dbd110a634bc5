//! A connection that says exactly what a test wants said, right or wrong.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use prost_types::{Duration as ProtoDuration, Timestamp};
use raftmq::wire::rocketmq as v2;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tonic::{Request, Status, Streaming};
use v2::messaging_service_client::MessagingServiceClient;
use v2::receive_message_response::Content;

/// Larger than anything a test sends on purpose within the limits.
const MESSAGE_MAX: usize = 256 << 20;
const RPC_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of `apache.rocketmq.v2` without any checks of its own.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    rpc: MessagingServiceClient<Channel>,
    client_id: Option<&'static str>,
}

/// An open Telemetry stream.
pub(crate) struct Talk {
    _commands: mpsc::Sender<v2::TelemetryCommand>,
    inbound: Streaming<v2::TelemetryCommand>,
}

impl Talk {
    /// What the server says next; an error when it says nothing for so long, or ends the stream.
    pub(crate) async fn next(&mut self, within: Duration) -> Result<v2::TelemetryCommand, Status> {
        match timeout(within, self.inbound.message()).await {
            Ok(Ok(Some(command))) => Ok(command),
            Ok(Ok(None)) => Err(Status::aborted("the server ended the stream")),
            Ok(Err(status)) => Err(status),
            Err(_) => Err(Status::deadline_exceeded(format!("nothing within {within:?}"))),
        }
    }

    /// What it has said already.
    pub(crate) async fn try_next(&mut self) -> Option<v2::TelemetryCommand> {
        self.next(Duration::ZERO).await.ok()
    }
}

/// Code and text of an answer that is carried inside the response.
pub(crate) type Answer = (i32, String);

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).unwrap().timeout(RPC_TIMEOUT)
}

pub(crate) fn answer(status: Option<v2::Status>) -> Answer {
    let status = status.expect("every response carries a status");
    (status.code, status.message)
}

macro_rules! unary {
    ($($name:ident($request:ident) -> $response:ident;)*) => {
        $(pub(crate) async fn $name(&mut self, request: v2::$request) -> Result<v2::$response, Status> {
            let request = self.request(request);
            Ok(self.rpc.$name(request).await?.into_inner())
        })*
    };
}

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(endpoint(address).connect().await.unwrap())
    }

    /// Verifies the server, with the certificate in this PEM as the one root.
    pub(crate) async fn connect_tls(address: SocketAddr, root: &[u8]) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(root).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let connect = tower::service_fn(move |_: Uri| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let stream = connector.connect(ServerName::from(address.ip()), stream).await?;
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        });
        Ok(Self::over(endpoint(address).connect_with_connector(connect).await?))
    }

    fn over(channel: Channel) -> Self {
        let rpc = MessagingServiceClient::new(channel)
            .max_encoding_message_size(MESSAGE_MAX)
            .max_decoding_message_size(MESSAGE_MAX);
        Self { rpc, client_id: Some("raw@1@0@test") }
    }

    /// The same connection under another client id, or none.
    pub(crate) fn named(&self, client_id: Option<&'static str>) -> Self {
        Self { rpc: self.rpc.clone(), client_id }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(id) = self.client_id {
            request.metadata_mut().insert("x-mq-client-id", id.parse().unwrap());
        }
        request
    }

    unary! {
        query_route(QueryRouteRequest) -> QueryRouteResponse;
        heartbeat(HeartbeatRequest) -> HeartbeatResponse;
        send_message(SendMessageRequest) -> SendMessageResponse;
        query_assignment(QueryAssignmentRequest) -> QueryAssignmentResponse;
        ack_message(AckMessageRequest) -> AckMessageResponse;
        change_invisible_duration(ChangeInvisibleDurationRequest)
            -> ChangeInvisibleDurationResponse;
        notify_client_termination(NotifyClientTerminationRequest)
            -> NotifyClientTerminationResponse;
        end_transaction(EndTransactionRequest) -> EndTransactionResponse;
    }

    /// The whole stream of one receive.
    pub(crate) async fn receive(
        &mut self,
        request: v2::ReceiveMessageRequest,
    ) -> Result<(Answer, Vec<v2::Message>), Status> {
        let request = self.request(request);
        let mut stream = self.rpc.receive_message(request).await?.into_inner();
        let mut status = None;
        let mut messages = Vec::new();
        while let Some(item) = stream.message().await? {
            match item.content.expect("every item has its content set") {
                Content::Status(found) => status = Some(found),
                Content::Message(message) => messages.push(message),
                Content::DeliveryTimestamp(_) => {}
            }
        }
        Ok((answer(status), messages))
    }

    /// What the server says first when these commands are all that the client says.
    pub(crate) async fn telemetry(
        &mut self,
        commands: Vec<v2::TelemetryCommand>,
    ) -> Result<Option<v2::TelemetryCommand>, Status> {
        let request = self.request(tokio_stream::iter(commands));
        let mut stream = self.rpc.telemetry(request).await?.into_inner();
        stream.message().await
    }

    /// A stream of commands that stays open until it is dropped.
    pub(crate) async fn talk(&mut self, first: v2::TelemetryCommand) -> Result<Talk, Status> {
        let (commands, outbound) = mpsc::channel(4);
        commands.send(first).await.expect("the channel is new");
        let mut request = self.request(ReceiverStream::new(outbound));
        // Longer than a test; the connection's own time is for single calls.
        request.set_timeout(Duration::from_secs(600));
        let inbound = self.rpc.telemetry(request).await?.into_inner();
        Ok(Talk { _commands: commands, inbound })
    }

    /// Sends and expects it to be refused or taken as a whole.
    pub(crate) async fn send(&mut self, messages: Vec<v2::Message>) -> Answer {
        answer(self.send_message(v2::SendMessageRequest { messages }).await.unwrap().status)
    }
}

pub(crate) fn resource(name: &str) -> Option<v2::Resource> {
    Some(v2::Resource { name: name.to_owned(), ..Default::default() })
}

pub(crate) fn seconds(seconds: i64) -> Option<ProtoDuration> {
    Some(ProtoDuration { seconds, nanos: 0 })
}

pub(crate) fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// A normal message that breaks no rule.
pub(crate) fn message(topic: &str, id: &str, body: impl Into<Bytes>) -> v2::Message {
    v2::Message {
        topic: resource(topic),
        user_properties: HashMap::new(),
        system_properties: Some(v2::SystemProperties {
            message_id: id.to_owned(),
            body_encoding: v2::Encoding::Identity.into(),
            message_type: v2::MessageType::Normal.into(),
            born_timestamp: Some(now()),
            born_host: "127.0.0.1".to_owned(),
            ..Default::default()
        }),
        body: body.into(),
    }
}

/// A receive that breaks no rule and waits only briefly.
pub(crate) fn receive(topic: &str, group: &str) -> v2::ReceiveMessageRequest {
    v2::ReceiveMessageRequest {
        group: resource(group),
        message_queue: Some(v2::MessageQueue { topic: resource(topic), ..Default::default() }),
        filter_expression: Some(v2::FilterExpression {
            r#type: v2::FilterType::Tag.into(),
            expression: "*".to_owned(),
        }),
        batch_size: 32,
        invisible_duration: seconds(30),
        auto_renew: false,
        long_polling_timeout: seconds(1),
        attempt_id: None,
    }
}
