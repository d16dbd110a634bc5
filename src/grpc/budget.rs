//! How many bytes of requests are held at a time, over all connections: what a connection may send
//! ahead is bounded by its window, and what all of them together have sent by this.
//!
//! A request counts with the bytes that have come of it, until it is answered. Of streams only what
//! comes before their first answer counts; they are bounded by their own rules.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

/// A service whose requests share a budget. Clones share it too.
#[derive(Clone, Debug)]
pub(super) struct Budgeted<S> {
    inner: S,
    budget: Budget,
}

#[derive(Clone, Debug)]
struct Budget {
    held: Arc<AtomicUsize>,
    max: usize,
}

impl Budget {
    fn spent(&self) -> Option<Status> {
        let held = self.held.load(Ordering::Relaxed);
        (held > self.max).then(|| {
            let max = self.max;
            let text = format!("requests of {held} bytes are under way, {max} may; try again");
            Status::resource_exhausted(text)
        })
    }
}

impl<S> Budgeted<S> {
    pub(super) fn new(inner: S, max: usize) -> Self {
        Self { inner, budget: Budget { held: Arc::default(), max } }
    }
}

impl<S: NamedService> NamedService for Budgeted<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Budgeted<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if let Some(status) = self.budget.spent() {
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        let share = Arc::new(Share { budget: self.budget.clone(), held: Mutex::new(Some(0)) });
        let metered = |body| Body::new(Metered { body, share: Arc::clone(&share) });
        let answer = self.inner.call(request.map(metered));
        Box::pin(async move {
            let answer = answer.await;
            share.close();
            answer
        })
    }
}

/// What one request holds of the budget; `None` once it was given back.
struct Share {
    budget: Budget,
    held: Mutex<Option<usize>>,
}

impl Share {
    fn take(&self, bytes: usize) -> Result<(), Status> {
        if let Some(held) = &mut *self.held.lock() {
            *held += bytes;
            self.budget.held.fetch_add(bytes, Ordering::Relaxed);
        }
        self.budget.spent().map_or(Ok(()), Err)
    }

    fn close(&self) {
        if let Some(held) = self.held.lock().take() {
            self.budget.held.fetch_sub(held, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.close();
    }
}

/// A request's body that takes from the budget what comes.
struct Metered {
    body: Body,
    share: Arc<Share>,
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
            && let Err(status) = self.share.take(data.remaining())
        {
            return Poll::Ready(Some(Err(status)));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    /// Answers once it is told to, having read what came.
    #[derive(Clone)]
    struct Slow(watch::Receiver<bool>);

    impl Service<http::Request<Body>> for Slow {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<Self::Response, Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let mut go = self.0.clone();
            Box::pin(async move {
                let mut body = request.into_body();
                while let Some(frame) =
                    std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
                {
                    if let Err(status) = frame {
                        return Ok(status.into_http());
                    }
                }
                go.wait_for(|go| *go).await.unwrap();
                Ok(http::Response::new(Body::empty()))
            })
        }
    }

    struct Whole(Option<Bytes>);

    impl HttpBody for Whole {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
        }
    }

    fn request(len: usize) -> http::Request<Body> {
        http::Request::new(Body::new(Whole(Some(vec![0; len].into()))))
    }

    fn refused(answer: &Result<http::Response<Body>, Infallible>) -> bool {
        answer.as_ref().unwrap().headers().contains_key("grpc-status")
    }

    #[tokio::test]
    async fn bytes_are_held_until_the_answer_and_too_many_are_refused() {
        let (go, told) = watch::channel(false);
        let mut service = Budgeted::new(Slow(told), 100);
        let held = service.budget.held.clone();
        let first = tokio::spawn(service.call(request(90)));
        while held.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        let second = service.call(request(90)).await;
        assert!(refused(&second), "while it was read");
        assert_eq!(held.load(Ordering::Relaxed), 90, "what was refused is given back");
        let third = tokio::spawn(service.call(request(10)));
        while held.load(Ordering::Relaxed) == 90 {
            tokio::task::yield_now().await;
        }
        go.send_replace(true);
        assert!(!refused(&first.await.unwrap()) && !refused(&third.await.unwrap()));
        assert_eq!(held.load(Ordering::Relaxed), 0);
        held.store(101, Ordering::Relaxed);
        assert!(refused(&service.call(request(1)).await), "before it was read");
    }
}
