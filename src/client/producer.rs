//! Sending with a window: many requests under way, never more than asked for.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{Stream, StreamExt};
use tokio::sync::Semaphore;

use super::error::ClientError;
use super::values::{Draft, SentMessage};
use super::{CHANNELS, Client};

/// Sends over several connections, since one HTTP/2 connection is served by one thread at a time.
#[derive(Debug)]
pub struct Producer {
    clients: Vec<Client>,
    turn: AtomicUsize,
    places: Semaphore,
    in_flight: usize,
}

impl Producer {
    /// Connects to `host:port`, plaintext. At most `in_flight` requests are under way at a time.
    pub async fn connect(endpoint: &str, in_flight: usize) -> Result<Self, ClientError> {
        assert!(in_flight > 0, "a window has room for one request");
        let mut clients = Vec::new();
        for _ in 0..CHANNELS.min(in_flight) {
            clients.push(Client::connect(endpoint).await?);
        }
        let places = Semaphore::new(in_flight);
        Ok(Self { clients, turn: AtomicUsize::new(0), places, in_flight })
    }

    /// Sends drafts of one topic as one request, once there is room for it. Callers may be many.
    pub async fn send(&self, drafts: &[Draft]) -> Result<Vec<SentMessage>, ClientError> {
        self.send_at(drafts, None).await
    }

    /// The same, visible not before `deliver_at`, in milliseconds since 1970-01-01T00:00:00Z.
    pub async fn send_at(
        &self,
        drafts: &[Draft],
        deliver_at: Option<u64>,
    ) -> Result<Vec<SentMessage>, ClientError> {
        let place = self.places.acquire().await;
        let _place = place.expect("the window is never closed");
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let client = &self.clients[turn % self.clients.len()];
        match deliver_at {
            Some(at) => client.send_delayed(drafts, at).await,
            None => client.send(drafts).await,
        }
    }

    /// Sends drafts of one topic as transactional messages, once there is room for the request, and
    /// commits each.
    pub async fn transact(&self, drafts: &[Draft]) -> Result<(), ClientError> {
        let place = self.places.acquire().await;
        let _place = place.expect("the window is never closed");
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let client = &self.clients[turn % self.clients.len()];
        for (draft, half) in drafts.iter().zip(client.prepare(drafts).await?) {
            client.end_transaction(&draft.topic, &half, true).await?;
        }
        Ok(())
    }

    /// Sends each item as one request, a full window of them at a time; the answers come in the
    /// order of the requests. Which of two neighbours is stored first is not said.
    pub fn pipeline<'a>(
        &'a self,
        requests: impl Stream<Item = Vec<Draft>> + 'a,
    ) -> impl Stream<Item = Result<Vec<SentMessage>, ClientError>> + 'a {
        self.pipeline_at(requests, None)
    }

    /// The same, visible not before `deliver_at`.
    pub fn pipeline_at<'a>(
        &'a self,
        requests: impl Stream<Item = Vec<Draft>> + 'a,
        deliver_at: Option<u64>,
    ) -> impl Stream<Item = Result<Vec<SentMessage>, ClientError>> + 'a {
        let send = move |drafts: Vec<Draft>| async move { self.send_at(&drafts, deliver_at).await };
        requests.map(send).buffered(self.in_flight)
    }
}
