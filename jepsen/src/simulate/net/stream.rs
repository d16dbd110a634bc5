//! One end of a connection, as a program holds it.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::{Net, Segment, wake};

/// Bytes that one direction holds before its writer waits.
const WINDOW: usize = 256 << 10;
/// Most bytes of one write.
const SEGMENT_MAX: usize = 64 << 10;

/// Closed when it is dropped.
pub(crate) struct End {
    net: Net,
    id: u64,
    side: usize,
}

impl End {
    pub(super) fn new(net: Net, id: u64, side: usize) -> Self {
        Self { net, id, side }
    }

    /// Returns when the other side has let the connection in, or refused it.
    pub(super) async fn connected(&mut self) -> io::Result<()> {
        poll_fn(|context| {
            let inner = &mut *self.net.0.lock();
            let connection = inner.connections.get_mut(&self.id).ok_or(io::ErrorKind::NotFound)?;
            if !connection.established {
                connection.connecting = Some(context.waker().clone());
                return Poll::Pending;
            }
            let refused = connection.flows[self.side].reset;
            Poll::Ready(if refused { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(()) })
        })
        .await
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let inner = &mut *self.net.0.lock();
        let Some(connection) = inner.connections.get_mut(&self.id) else { return };
        let dangling = std::mem::replace(&mut connection.closed[self.side], true);
        if !dangling {
            inner.send(self.id, self.side, Segment::Fin);
        }
    }
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let inner = &mut *self.net.0.lock();
        let connection = inner.connections.get_mut(&self.id).ok_or(io::ErrorKind::NotConnected)?;
        let flow = &mut connection.flows[1 - self.side];
        let mut read = false;
        while let Some(bytes) = flow.ready.front_mut() {
            let len = bytes.len().min(buffer.remaining());
            if len == 0 {
                break;
            }
            buffer.put_slice(&bytes[..len]);
            bytes.advance(len);
            flow.size -= len;
            read = true;
            if flow.ready.front().is_some_and(Bytes::is_empty) {
                flow.ready.pop_front();
            }
        }
        if read {
            wake(&mut flow.writer);
            return Poll::Ready(Ok(()));
        }
        if flow.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if flow.ended {
            return Poll::Ready(Ok(()));
        }
        flow.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.net.0.lock();
        let connection = inner.connections.get_mut(&self.id).ok_or(io::ErrorKind::NotConnected)?;
        let flow = &mut connection.flows[self.side];
        if flow.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let len = bytes.len().min(SEGMENT_MAX).min(WINDOW.saturating_sub(flow.size));
        if len == 0 && !bytes.is_empty() {
            flow.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        inner.send(self.id, self.side, Segment::Data(Bytes::copy_from_slice(&bytes[..len])));
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.net.0.lock().send(self.id, self.side, Segment::Fin);
        Poll::Ready(Ok(()))
    }
}

impl Connected for End {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
