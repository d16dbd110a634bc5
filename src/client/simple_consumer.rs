//! Receiving for one group from one topic, without asking for the way each time.

use std::time::Duration;

use crate::wire::rocketmq as v2;

use super::Client;
use super::error::ClientError;
use super::values::{Received, Take};

/// Cheap to clone; calls may run side by side.
#[derive(Clone, Debug)]
pub struct SimpleConsumer {
    client: Client,
    take: Take,
    /// Names the topic to a receive; any of its queues does.
    queue: v2::MessageQueue,
}

impl SimpleConsumer {
    /// Finds the topic; may create it, where the broker's profile says so.
    pub async fn new(client: Client, take: Take) -> Result<Self, ClientError> {
        let queue = client.any_queue(&take.topic).await?;
        Ok(Self { client, take, queue })
    }

    /// Up to as many messages as the take says; none when nothing came in time.
    pub async fn receive(&self) -> Result<Vec<Received>, ClientError> {
        self.client.receive_from(&self.take, self.queue.clone()).await
    }

    /// As [`Self::receive`], with another number of messages and another wait than the take says.
    pub async fn receive_up_to(
        &self,
        max: u32,
        wait: Duration,
    ) -> Result<Vec<Received>, ClientError> {
        let take = Take { max, wait, ..self.take.clone() };
        self.client.receive_from(&take, self.queue.clone()).await
    }

    /// These messages never come to the group again.
    pub async fn ack(&self, messages: &[Received]) -> Result<(), ClientError> {
        self.client.ack(&self.take.topic, &self.take.group, messages).await
    }

    /// Keeps a message hidden for `invisible` from now on; answers the handle that is valid now.
    pub async fn change_invisible(
        &self,
        message: &Received,
        invisible: Duration,
    ) -> Result<String, ClientError> {
        self.client.change_invisible(&self.take.group, message, invisible).await
    }
}
