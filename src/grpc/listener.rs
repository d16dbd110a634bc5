//! Connections, before they are anyone's: what does not begin as HTTP/2 is closed, and there is
//! never more than a fixed number. For the client port and for the peer port.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// What an HTTP/2 client says first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long accepting rests after an error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How connections are admitted.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Open at once, those that have not said anything included; one more is closed at once.
    pub connections_max: usize,
    /// How long a connection may take to say what it is.
    pub preface_timeout: Duration,
}

impl Default for Admission {
    fn default() -> Self {
        Self { connections_max: 4096, preface_timeout: Duration::from_secs(10) }
    }
}

/// HTTP/2 connections as they come; the stream does not end. Dropping it closes the listener.
pub fn admitted(
    listener: TcpListener,
    admission: Admission,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let door = Door {
        listener,
        places: Arc::new(Semaphore::new(admission.connections_max)),
        preface_timeout: admission.preface_timeout,
        opening: FuturesUnordered::new(),
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
    /// Accepted, and not yet known to speak HTTP/2.
    opening: FuturesUnordered<BoxFuture<'static, Option<Connection>>>,
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
                Some(opened) = self.opening.next() => if let Some(connection) = opened {
                    return connection;
                },
            }
        }
    }

    fn begin(&self, stream: TcpStream, peer: SocketAddr) {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            tracing::debug!(%peer, "connection closed: there are as many as may be");
            return;
        };
        let opening = open(stream, peer, place, self.preface_timeout);
        self.opening.push(Box::pin(opening));
    }
}

async fn open(
    mut stream: TcpStream,
    peer: SocketAddr,
    place: OwnedSemaphorePermit,
    timeout: Duration,
) -> Option<Connection> {
    // Answers are small and awaited; waiting for more to send only delays them.
    stream.set_nodelay(true).ok()?;
    match tokio::time::timeout(timeout, read_preface(&mut stream)).await {
        Ok(Ok(())) => Some(Connection { stream, said: PREFACE.as_slice(), _place: place }),
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

/// Reads no further than the first byte that differs.
async fn read_preface(stream: &mut TcpStream) -> io::Result<()> {
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
    stream: TcpStream,
    said: &'static [u8],
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.said.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, into);
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
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    async fn door(
        admission: Admission,
    ) -> (SocketAddr, impl Stream<Item = io::Result<Connection>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (listener.local_addr().unwrap(), admitted(listener, admission))
    }

    /// Reads to the end, whether it comes as a close or as a reset.
    async fn is_closed(stream: &mut TcpStream) -> bool {
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        let end = tokio::time::timeout(Duration::from_secs(5), end).await;
        rest.is_empty() && end.is_ok()
    }

    #[tokio::test]
    async fn what_was_read_is_read_again() {
        let (address, connections) = door(Admission::default()).await;
        let mut connections = std::pin::pin!(connections);
        let client = tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // In two pieces, with something behind.
            stream.write_all(&PREFACE[..5]).await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(&PREFACE[5..]).await.unwrap();
            stream.write_all(b"more").await.unwrap();
            stream
        });
        let mut connection = connections.next().await.unwrap().unwrap();
        let mut said = [0; 28];
        connection.read_exact(&mut said).await.unwrap();
        assert_eq!(&said[..24], PREFACE);
        assert_eq!(&said[24..], b"more");
        assert_eq!(
            connection.connect_info().remote_addr,
            Some(client.await.unwrap().local_addr().unwrap())
        );
    }

    #[tokio::test]
    async fn garbage_is_closed_and_others_get_in() {
        let (address, connections) = door(Admission::default()).await;
        let mut connections = std::pin::pin!(connections);
        let mut garbage = TcpStream::connect(address).await.unwrap();
        garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut good = TcpStream::connect(address).await.unwrap();
        good.write_all(PREFACE).await.unwrap();
        connections.next().await.unwrap().unwrap();
        assert!(is_closed(&mut garbage).await);
    }

    #[tokio::test]
    async fn silence_is_closed() {
        let admission =
            Admission { preface_timeout: Duration::from_millis(50), ..Admission::default() };
        let (address, connections) = door(admission).await;
        let serving =
            tokio::spawn(async move { std::pin::pin!(connections).next().await.is_some() });
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(&PREFACE[..10]).await.unwrap();
        assert!(is_closed(&mut silent).await && is_closed(&mut half).await);
        serving.abort();
    }

    #[tokio::test]
    async fn there_are_never_more_than_allowed() {
        let (address, connections) =
            door(Admission { connections_max: 1, ..Admission::default() }).await;
        let mut connections = std::pin::pin!(connections);
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(PREFACE).await.unwrap();
        let held = connections.next().await.unwrap().unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        let closed = async { is_closed(&mut second).await };
        tokio::select! {
            closed = closed => assert!(closed),
            _ = connections.next() => panic!("one more than allowed"),
        }
        drop(held);
        let mut third = TcpStream::connect(address).await.unwrap();
        third.write_all(PREFACE).await.unwrap();
        connections.next().await.unwrap().unwrap();
    }
}
