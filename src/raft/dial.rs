//! How other replicas are reached: over TCP, or over what a simulation gives.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// One connection, as bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A network that is not the machine's own.
pub trait Dial: Send + Sync {
    /// Connects to `host:port`. The caller sets a limit to the time it may take.
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>>;
}

/// Where connections to other replicas go.
#[derive(Clone, Default)]
pub enum Net {
    #[default]
    Tcp,
    Through(Arc<dyn Dial>),
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Through(_) => "a network of its own",
        })
    }
}

/// A [`Dial`] as gRPC wants it.
pub(crate) struct Connector(pub(crate) Arc<dyn Dial>);

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let address = uri.authority().map(ToString::to_string).unwrap_or_default();
        let dialed = self.0.dial(address);
        Box::pin(async move { dialed.await.map(TokioIo::new) })
    }
}
