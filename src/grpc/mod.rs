//! `apache.rocketmq.v2`, `raftmq.v1.Admin` and `raftmq.v1.Broadcast` on one port.
//!
//! What it is: thin. It reads who calls, checks what a request may hold, asks
//! [`Broker`], and writes the answer in the form that official clients
//! expect: business errors inside the response, gRPC errors for the transport alone.
//! Promises: no byte from outside panics; every refusal names the limit and the value; a connection
//! that is silent, dead or not HTTP/2 (plaintext or inside TLS) is closed; handed-out messages whose
//! reply could not be written go back.
//! Never: stored state, the log, the machine, or a decision about messages.
//! Start reading at `service`, then `limits`, `status`, `receive`.

mod ack;
mod admin;
mod broadcast;
mod budget;
mod convert;
mod dead_letters;
mod cursors;
mod ending;
mod find;
mod heartbeat;
mod limits;
pub mod listener;
mod members;
mod metadata;
pub mod name_server;
mod observed;
mod pull;
mod recall;
mod receive;
mod route;
mod send;
mod service;
mod settings;
mod status;
mod telemetry;
pub mod tls;
mod transaction;
mod transactions;

use std::io;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::transport::Server;

use crate::broker::Broker;
use crate::wire::raftmq::admin_server::AdminServer;
use crate::wire::raftmq::broadcast_server::BroadcastServer;
use crate::wire::rocketmq::messaging_service_server::MessagingServiceServer;

use self::budget::Budgeted;
use self::listener::Admission;
use self::service::Messaging;
use self::telemetry::Streams;
use self::tls::Acceptor;

/// Bytes of one request. Far more than may be in one, so that a body which is too large is refused
/// by its own code; beyond, gRPC's OUT_OF_RANGE says so before anything is read.
const REQUEST_BYTES_MAX: usize = 32 << 20;
/// Longest time to the headers of an answer; above every deadline that is kept for a request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(65);
/// A connection whose other side does not answer pings is closed after both together.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Rpcs at once on one connection: a client has one for all its consumers' polls. It may take all
/// of them back at once, before a busy node has looked at them.
const STREAMS_MAX: u32 = 1024;
/// Bytes a client may send ahead, so that a body of 4 MiB takes few round trips.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Bytes of requests that are held at once, over all connections.
const HELD_BYTES_MAX: usize = 256 << 20;
/// Bytes of a request's headers.
const HEADERS_MAX: u32 = 16 << 10;
/// How long the end of the server waits for streams and connections to end.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// How the port behaves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub admission: Admission,
    /// Serves TLS beside plaintext on the same port.
    pub tls: Option<Acceptor>,
    /// Administration also from other hosts.
    pub admin_from_anywhere: bool,
}

/// Serves until `shutdown`, then ends every stream and waits a little for connections to close.
pub async fn serve(
    listener: TcpListener,
    broker: Broker,
    options: Options,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let (ender, ending) = ending::ending();
    let streams = Streams::default();
    let messaging =
        Messaging { broker: broker.clone(), streams: streams.clone(), ending: ending.clone() };
    let broadcast = broadcast::Broadcast { broker: broker.clone(), ending: ending.clone() };
    let admin = admin::Admin { broker, from_anywhere: options.admin_from_anywhere };
    let router = Server::builder()
        .timeout(RESPONSE_TIMEOUT)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .http2_max_header_list_size(HEADERS_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_pending_accept_reset_streams(Some(STREAMS_MAX as usize))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_service(Budgeted::new(
            MessagingServiceServer::new(messaging).max_decoding_message_size(REQUEST_BYTES_MAX),
            HELD_BYTES_MAX,
        ))
        .add_service(AdminServer::new(admin))
        .add_service(BroadcastServer::new(broadcast));
    let connections = listener::admitted(listener, options.admission, options.tls);
    let mut stop = ending;
    let serving =
        router.serve_with_incoming_shutdown(connections, async move { stop.comes().await });
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        result = &mut serving => return result.map_err(io::Error::other),
        () = shutdown => {
            tracing::info!(clients = streams.clients(), "ending the streams of connected clients");
            ender.begin();
        }
    }
    match tokio::time::timeout(END_PATIENCE, serving).await {
        Ok(result) => result.map_err(io::Error::other)?,
        Err(_) => tracing::info!("clients kept their connections open; they are cut"),
    }
    if !ender.over(END_PATIENCE).await {
        tracing::info!("polls under way were left to the broker");
    }
    Ok(())
}
