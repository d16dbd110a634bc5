//! Messages for later: when, and what may be done to one until then.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::base::{DELAY_LEVELS, Millis, TopicName, delay_level};
use crate::client::{Delayed, DelayedOutcome};

use super::Ask;
use super::failure::Failure;
use super::output::{Output, Table};
use super::topic::topic_name;

/// At most one of them.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct When {
    /// Deliver after this time: a number with ms, s, m, h or d, up to what the brokers allow (730d).
    /// The topic must take the kind delay.
    #[arg(long, value_name = "TIME", value_parser = length)]
    delay: Option<Millis>,
    /// Deliver after the time of one of RocketMQ's levels, 1 (1 s) to 18 (2 h).
    #[arg(long, value_name = "LEVEL")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=18))]
    delay_level: Option<u32>,
    /// Deliver at this instant, in milliseconds since 1970-01-01T00:00:00Z.
    #[arg(long, value_name = "MILLIS")]
    deliver_at: Option<u64>,
}

const _: () = assert!(DELAY_LEVELS.len() == 18);

fn length(text: &str) -> Result<Millis, String> {
    text.parse().map_err(|error: crate::base::MillisError| error.to_string())
}

impl When {
    /// The instant, if there is one; lengths count from `now`.
    fn instant(&self, now: u64) -> Option<u64> {
        let delay = self.delay.or_else(|| self.delay_level.and_then(delay_level));
        let after = delay.map(|delay| now.saturating_add(delay.get()));
        after.or(self.deliver_at)
    }

    pub(super) fn deliver_at(&self) -> Option<u64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.instant(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}

/// One of the two.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct Which {
    /// As sending the message answered.
    #[arg(long)]
    handle: Option<String>,
    /// The message id; of several messages the oldest that is still to come.
    #[arg(long)]
    id: Option<String>,
}

impl Which {
    fn named(self) -> Delayed {
        match (self.handle, self.id) {
            (Some(handle), _) => Delayed::Handle(handle),
            (None, id) => Delayed::Id(id.unwrap_or_default()),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Recall {
    #[arg(long, value_parser = topic_name)]
    topic: TopicName,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Debug, Args)]
pub(super) struct Reschedule {
    #[arg(long, value_parser = topic_name)]
    topic: TopicName,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    ask: Ask,
}

impl Recall {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let client = self.ask.client().await?;
        let outcome = client.recall_delayed(&self.topic, self.which.named()).await?;
        output.show(&outcome, table);
        Ok(())
    }
}

impl Reschedule {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let client = self.ask.client().await?;
        // Without a time it is delivered now.
        let at = self.when.deliver_at().unwrap_or(0);
        let outcome = client.reschedule_delayed(&self.topic, self.which.named(), at).await?;
        output.show(&outcome, table);
        Ok(())
    }
}

fn table(outcome: &DelayedOutcome) -> Table {
    let row = [outcome.message_id.clone(), outcome.outcome.to_owned()];
    Table::new(["MESSAGE ID", "OUTCOME"], std::iter::once(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_length_a_level_or_an_instant() {
        let when = |delay: Option<&str>, delay_level, deliver_at| When {
            delay: delay.map(|text| length(text).unwrap()),
            delay_level,
            deliver_at,
        };
        assert_eq!(when(None, None, None).instant(1000), None);
        assert_eq!(when(Some("5s"), None, None).instant(1000), Some(6000));
        assert_eq!(when(None, Some(3), None).instant(1000), Some(11_000));
        assert_eq!(when(None, None, Some(7)).instant(1000), Some(7));
        assert_eq!(when(Some("730d"), None, None).instant(u64::MAX), Some(u64::MAX));
    }
}
