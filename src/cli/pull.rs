//! `raftmq message pull`: a queue from an offset on.

use std::time::Duration;

use clap::Args;

use crate::base::{GroupName, TopicName};
use crate::client::{PullConsumer, ResetTo};

use super::Ask;
use super::failure::Failure;
use super::group::{group_name, millis};
use super::message::show;
use super::output::Output;
use super::place::{PLACES, place};
use super::topic::topic_name;

#[derive(Debug, Args)]
pub(super) struct Pull {
    #[arg(long, value_parser = topic_name)]
    topic: TopicName,
    /// With several broker groups, those of the second one by name begin at 1024, and so on.
    #[arg(long, value_name = "N")]
    queue: u32,
    /// Where to begin; see `group reset --help` for times.
    #[arg(long, value_name = PLACES, value_parser = place)]
    offset: ResetTo,
    /// How many messages at most.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Tags to read, such as "red || blue"; * is everything.
    #[arg(long, value_name = "TAGS", default_value = "*")]
    filter: String,
    /// How long to wait until there is something.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = millis)]
    wait: u64,
    /// Who reads, for the metrics; nothing is kept of it.
    #[arg(long, value_parser = group_name, default_value = "raftmq-pull")]
    group: GroupName,
    #[command(flatten)]
    ask: Ask,
}

/// One pull asks for at most so many, by the protocol.
const BATCH_MAX: u32 = 32;

impl Pull {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let client = self.ask.client().await?;
        let consumer = PullConsumer::new(client, self.group, self.topic, &self.filter);
        let mut at = consumer.find(self.queue, self.offset).await?;
        let mut left = self.count;
        let mut messages = Vec::new();
        while left > 0 {
            // Once there is something, only what is there is wanted.
            let wait = if messages.is_empty() { self.wait } else { 0 };
            let wait = Duration::from_millis(wait);
            let pulled = consumer.pull(self.queue, at, left.min(BATCH_MAX), wait).await?;
            if pulled.out_of_range {
                output.note(format_args!(
                    "offset {at} is not in queue {}; the nearest one is {}",
                    self.queue, pulled.next
                ));
            } else if pulled.messages.is_empty() {
                break;
            }
            if pulled.out_of_range && pulled.next < at {
                // Nothing is behind the end.
                break;
            }
            at = pulled.next;
            left -= u32::try_from(pulled.messages.len()).unwrap_or(left);
            messages.extend(pulled.messages);
        }
        show(output, &messages);
        Ok(())
    }
}
