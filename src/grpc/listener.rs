//! Connections, before they are anyone's: what does not begin as HTTP/2 is closed, and there is
//! never more than a fixed number. For the client port and for the peer port.
//!
//! One port serves both plaintext and TLS, where there is an [`Acceptor`]: the first byte tells
//! them apart. A handshake counts among the connections, and shares the time that the other side
//! has to say what it is.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::tls::{Acceptor, HANDSHAKE};

/// What an HTTP/2 client says first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long accepting rests after an error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How connections are admitted.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Open at once, those that have not said anything included; one more is closed at once.
    pub connections_max: usize,
    /// How long a connection may take to say what it is, its TLS handshake included.
    pub preface_timeout: Duration,
}

impl Default for Admission {
    fn default() -> Self {
        Self { connections_max: 4096, preface_timeout: Duration::from_secs(10) }
    }
}

/// HTTP/2 connections as they come; the stream does not end. Dropping it closes the listener and
/// what is not yet known to be one. Without `tls` a TLS client is closed like any other garbage.
pub fn admitted(
    listener: TcpListener,
    admission: Admission,
    tls: Option<Acceptor>,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let door = Door {
        listener,
        places: Arc::new(Semaphore::new(admission.connections_max)),
        preface_timeout: admission.preface_timeout,
        tls,
        opening: JoinSet::new(),
    };
    futures::stream::unfold(door, |mut door| async move {
        let connection = door.next().await;
        Some((Ok(connection), door))
    })
}

struct Door {
    listener: TcpListener,
    places: Arc<Semaphore>,
    preface_timeout: Duration,
    tls: Option<Acceptor>,
    /// Accepted, and not yet known to speak HTTP/2. Each is a task, since a handshake computes for
    /// as long as a hundred plaintext connections take to get in.
    opening: JoinSet<Option<Connection>>,
}

impl Door {
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.begin(stream, peer),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections; trying again");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(opened) = self.opening.join_next() => {
                    if let Some(connection) = sound(opened) {
                        return connection;
                    }
                }
            }
        }
    }

    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            tracing::debug!(%peer, "connection closed: there are as many as may be");
            return;
        };
        let (tls, timeout) = (self.tls.clone(), self.preface_timeout);
        self.opening.spawn(open(stream, peer, place, tls, timeout));
    }
}

/// No task here is cancelled while its door stands, so one that gave nothing has panicked, which is
/// a defect of ours and costs that one connection.
fn sound(opened: Result<Option<Connection>, JoinError>) -> Option<Connection> {
    opened.unwrap_or_else(|error| {
        tracing::error!(%error, "a connection failed to open");
        None
    })
}

async fn open(
    stream: TcpStream,
    peer: SocketAddr,
    place: OwnedSemaphorePermit,
    tls: Option<Acceptor>,
    timeout: Duration,
) -> Option<Connection> {
    // Answers are small and awaited; waiting for more to send only delays them.
    stream.set_nodelay(true).ok()?;
    match tokio::time::timeout(timeout, begun(stream, tls)).await {
        Ok(Ok(stream)) => Some(Connection { stream, said: PREFACE.as_slice(), _place: place }),
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "connection closed");
            None
        }
        Err(_) => {
            tracing::debug!(%peer, ?timeout, "connection closed: it did not say what it is");
            None
        }
    }
}

/// Looks at the first byte without taking it, since TLS wants it too.
async fn begun(mut stream: TcpStream, tls: Option<Acceptor>) -> io::Result<Begun> {
    let mut first = [0];
    // At the end there is no first byte; reading says so.
    stream.peek(&mut first).await?;
    match tls {
        Some(tls) if first == [HANDSHAKE] => {
            let mut stream = tls.accept(stream).await?;
            read_preface(&mut stream).await?;
            Ok(Begun::Tls(Box::new(stream)))
        }
        Some(_) | None => {
            read_preface(&mut stream).await?;
            Ok(Begun::Plain(stream))
        }
    }
}

/// Reads no further than the first byte that differs.
async fn read_preface(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut said = [0; PREFACE.len()];
    let mut len = 0;
    while len < said.len() {
        let count = stream.read(&mut said[len..]).await?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the other side"));
        }
        len += count;
        if !PREFACE.starts_with(&said[..len]) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not HTTP/2"));
        }
    }
    Ok(())
}

/// A connection that began as HTTP/2. What was read of it is read again.
#[derive(Debug)]
pub struct Connection {
    stream: Begun,
    said: &'static [u8],
    _place: OwnedSemaphorePermit,
}

/// Beside a plaintext stream a TLS one is large, and most are plaintext.
#[derive(Debug)]
enum Begun {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match &self.stream {
            Begun::Plain(stream) => stream.connect_info(),
            Begun::Tls(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.said.is_empty() {
            return match &mut self.stream {
                Begun::Plain(stream) => Pin::new(stream).poll_read(context, into),
                Begun::Tls(stream) => Pin::new(stream).poll_read(context, into),
            };
        }
        let (now, later) = self.said.split_at(self.said.len().min(into.remaining()));
        into.put_slice(now);
        self.said = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Begun::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Begun::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Begun::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Begun::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Begun::Plain(stream) => stream.is_write_vectored(),
            Begun::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Begun::Plain(stream) => Pin::new(stream).poll_flush(context),
            Begun::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Begun::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Begun::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests;
