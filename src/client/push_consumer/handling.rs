//! Handling one message after the other, as an official push consumer with one thread does.
//!
//! What waits for the handler is bounded: the consumer asks each node for as many messages as it has
//! room for, and for none without room. So it holds what it can handle soon, and the rest of the
//! queue is there for others.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::sleep;

use crate::wire::rocketmq as v2;

use super::super::error::ClientError;
use super::super::messages::{accepted, receive_request, resource};
use super::super::values::{Received, Take};
use super::super::{CALL_TIMEOUT, Client};
use super::{Node, PAUSE, PushConsumer, Pushed};

/// Acknowledgements that one call carries at most.
const ACKS_MAX: usize = 32;
/// What is handled in this time shares a call.
const ACK_PAUSE: Duration = Duration::from_millis(50);

/// A message that waits for the handler.
struct Held {
    message: Received,
    /// Its place among those that wait; without one it is more than was asked for.
    place: Option<OwnedSemaphorePermit>,
}

impl PushConsumer {
    /// Hands one message after the other to `handle` and acknowledges those that it came back from,
    /// until `leaves` is over; then finishes the acknowledgements and says goodbye to every node, so
    /// that others get what waits here at once. What is handled at that moment is left unfinished, and
    /// goes to others, too. At most `take.max` messages wait here, and at least one of each node.
    /// Dropping this instead is what a crash is: nobody is told.
    pub async fn handle_each(
        &self,
        handle: impl AsyncFn(&Received),
        on: impl Fn(Pushed),
        leaves: impl Future<Output = ()>,
    ) {
        let on = &on;
        let (acks, handled) = mpsc::unbounded_channel();
        let (hand, mut held) = mpsc::unbounded_channel::<Held>();
        let acknowledging = self.acknowledge(handled, on);
        let handling = async move {
            while let Some(Held { message, place }) = held.recv().await {
                handle(&message).await;
                on(Pushed::Message(message.clone()));
                // Who acknowledges ends after this.
                drop(acks.send(message));
                drop(place);
            }
        };
        let serve = |node| {
            let fetch = self.fetch(node, hand.clone(), on);
            async move { futures::join!(self.telemetry(node, on), self.heartbeat(node, on), fetch) }
        };
        let serving = join_all(self.nodes.iter().map(serve));
        tokio::pin!(acknowledging);
        tokio::select! {
            () = &mut acknowledging => unreachable!("there is somebody to tell what is handled"),
            _ = futures::future::join3(serving, self.ask_assignment(on), handling) => {}
            () = leaves => {}
        }
        // Nothing more is handled: what is on its way goes first.
        acknowledging.await;
        for left in join_all(self.nodes.iter().map(|node| self.goodbye(node))).await {
            if let Err(error) = left {
                on(Pushed::Failed(error));
            }
        }
    }

    /// Keeps messages of one node waiting for the handler, at most its share of them.
    async fn fetch(&self, node: &Node, hand: mpsc::UnboundedSender<Held>, on: &impl Fn(Pushed)) {
        let share = usize::try_from(self.take.max).unwrap_or(usize::MAX);
        let share = (share / self.nodes.len()).max(1);
        let room = Arc::new(Semaphore::new(share));
        let never_closed = "nobody closes it";
        loop {
            // For half of it at least, so that a call is worth its while.
            let half = u32::try_from(share.div_ceil(2)).unwrap_or(u32::MAX);
            let mut places = room.clone().acquire_many_owned(half).await.expect(never_closed);
            while let Ok(more) = room.clone().try_acquire_owned() {
                places.merge(more);
            }
            let max = u32::try_from(places.num_permits()).unwrap_or(u32::MAX);
            let take = Take { max, ..self.take.clone() };
            let request = receive_request(&take, node.queue.clone(), true);
            match node.client.receive(request, take.wait).boxed().await {
                Ok(received) => {
                    for message in received {
                        let place = places.split(1);
                        // The handler is gone only when this is, too.
                        drop(hand.send(Held { message, place }));
                    }
                }
                Err(error) => {
                    on(Pushed::Failed(error));
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Acknowledges what was handled, several in one call, until nobody can tell of more. Any node
    /// takes any acknowledgement.
    async fn acknowledge(
        &self,
        mut handled: mpsc::UnboundedReceiver<Received>,
        on: &impl Fn(Pushed),
    ) {
        let Take { topic, group, .. } = &self.take;
        let mut nodes = self.nodes.iter().cycle();
        let mut messages = Vec::with_capacity(ACKS_MAX);
        while handled.recv_many(&mut messages, ACKS_MAX).await > 0 {
            let Some(node) = nodes.next() else { return };
            if let Err(error) = node.client.ack(topic, group, &messages).boxed().await {
                on(Pushed::Failed(error));
                // Whatever failed, each of them has to be heard of by itself.
                for message in &messages {
                    self.acknowledge_one(message, on).await;
                }
            }
            messages.clear();
            sleep(ACK_PAUSE).await;
        }
    }

    /// Tries again for as long as it may help: what is not acknowledged comes again only when this
    /// consumer is gone. Repeating an acknowledgement is harmless.
    async fn acknowledge_one(&self, message: &Received, on: &impl Fn(Pushed)) {
        const TRIES: usize = 40;
        let Take { topic, group, .. } = &self.take;
        for node in self.nodes.iter().cycle().take(TRIES) {
            let one = std::slice::from_ref(message);
            match node.client.ack(topic, group, one).boxed().await {
                Ok(()) => return,
                Err(error) if error.is_over() => return on(Pushed::Failed(error)),
                Err(error) => on(Pushed::Failed(error)),
            }
            sleep(PAUSE / 4).await;
        }
    }

    async fn goodbye(&self, node: &Node) -> Result<(), ClientError> {
        node.client.say_goodbye(self.take.group.as_str()).await
    }
}

impl Client {
    /// What this client holds in the group goes to others.
    async fn say_goodbye(&self, group: &str) -> Result<(), ClientError> {
        let request = v2::NotifyClientTerminationRequest { group: Some(resource(group)) };
        let request = self.request(request, CALL_TIMEOUT);
        let answer = self.messaging().notify_client_termination(request).await?;
        accepted(answer.into_inner().status)
    }
}
