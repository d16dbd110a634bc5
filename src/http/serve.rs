//! Connections: how many, how slow, how long.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Open connections at once; further ones wait in the kernel's queue.
    pub connections_max: u32,
    /// How long a connection may take to send a request's header, keep-alive pauses included.
    pub header_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { connections_max: 1024, header_timeout: Duration::from_secs(10) }
    }
}

/// How long a connection may last. A peer that asks and never reads would otherwise hold it.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// Bytes of one request's header.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Pause after the process ran out of descriptors, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` ends. Open connections are dropped then: every answer is short.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let permits = options.connections_max.try_into().unwrap_or(Semaphore::MAX_PERMITS);
    let permits = Arc::new(Semaphore::new(permits));
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (stream, permit) = accept(&listener, &permits) => {
                connections.spawn(converse(stream, router.clone(), options, permit));
            }
        }
    }
    connections.shutdown().await;
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let permit = Arc::clone(permits).acquire_owned().await;
    let permit = permit.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            // The peer left before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "http: cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(
    stream: TcpStream,
    router: Router,
    options: Options,
    permit: OwnedSemaphorePermit,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_LIFE, connection).await {
        tracing::debug!(%error, "http: connection ended");
    }
    drop(permit);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::http::{Readiness, router};

    #[derive(Default)]
    struct Switch(AtomicBool);

    impl Readiness for Switch {
        fn obstacles(&self) -> Vec<String> {
            if self.0.load(Ordering::Relaxed) { vec![] } else { vec!["no leader".into()] }
        }
    }

    async fn start(connections_max: u32) -> (std::net::SocketAddr, Arc<Switch>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Arc::new(Switch::default());
        let router =
            router(PrometheusBuilder::new().build_recorder().handle(), Arc::clone(&readiness) as _);
        let options = Options { connections_max, header_timeout: Duration::from_millis(100) };
        tokio::spawn(serve(listener, router, options, std::future::pending()));
        (address, readiness)
    }

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn readyz_says_what_is_missing() {
        let (address, readiness) = start(16).await;
        let answer = get(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("no leader\n"), "{answer}");
        readiness.0.store(true, Ordering::Relaxed);
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200 "));
        assert!(get(address, "/healthz").await.ends_with("ok\n"));
        assert!(get(address, "/metrics").await.starts_with("HTTP/1.1 200 "));
        assert!(get(address, "/").await.starts_with("HTTP/1.1 404 "));
    }

    #[tokio::test]
    async fn garbage_and_giant_headers_are_answered_and_closed() {
        let (address, _) = start(16).await;
        for bytes in [b"\0\0\0\0garbage\r\n\r\n".to_vec(), vec![b'a'; 1 << 20]] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // The server may close before it read all; that is what is asked for.
            let _ = stream.write_all(&bytes).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
        }
        assert!(get(address, "/healthz").await.ends_with("ok\n"));
    }

    #[tokio::test]
    async fn a_silent_connection_gives_its_place_back() {
        let (address, _) = start(1).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut nothing = Vec::new();
        silent.read_to_end(&mut nothing).await.unwrap();
        assert!(get(address, "/healthz").await.ends_with("ok\n"));
    }
}
