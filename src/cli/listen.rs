//! `raftmq message listen`: one instance of a group that sees everything.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::base::{ClientId, GroupName, TopicName};
use crate::client::{BroadcastConsumer, BroadcastTake, Polled};

use super::Ask;
use super::failure::Failure;
use super::group::{group_name, millis};
use super::message::{Shown, table};
use super::output::Output;
use super::topic::topic_name;

#[derive(Debug, Args)]
pub(super) struct Listen {
    #[arg(long, value_parser = topic_name)]
    topic: TopicName,
    #[arg(long, value_parser = group_name)]
    group: GroupName,
    /// The name of this instance. Whoever comes back under it within --lease goes on where it was.
    #[arg(long, value_name = "NAME", value_parser = instance_name)]
    instance: ClientId,
    /// Where an instance begins of which nothing is known.
    #[arg(long, value_enum, default_value_t = From::Latest)]
    from: From,
    /// How long the instance is remembered while nobody listens; 1s to 720h.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = millis)]
    lease: u64,
    /// Tags to receive, such as "red || blue"; * is everything.
    #[arg(long, value_name = "TAGS", default_value = "*")]
    filter: String,
    /// End after so many messages.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max: Option<u32>,
    /// End when nothing came for so long. Without it, listen until interrupted.
    #[arg(long, value_name = "TIME", value_parser = millis)]
    idle: Option<u64>,
    /// Forget the instance at the end.
    #[arg(long)]
    leave: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum From {
    /// With what is sent from now on.
    Latest,
    /// With the first message that is still there.
    Earliest,
}

/// Messages of one poll.
const BATCH: u32 = 64;
/// How long one poll waits; interrupts and --idle end it earlier.
const POLL: Duration = Duration::from_secs(5);

fn instance_name(text: &str) -> Result<ClientId, String> {
    ClientId::new(text).map_err(|error| error.to_string())
}

impl Listen {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let idle = self.idle.map(Duration::from_millis);
        let take = BroadcastTake {
            topic: self.topic,
            group: self.group,
            instance: self.instance,
            filter: self.filter,
            max: BATCH.min(self.max.unwrap_or(BATCH)),
            wait: POLL.min(idle.unwrap_or(POLL)),
            lease: Duration::from_millis(self.lease),
            from_earliest: self.from == From::Earliest,
            attempt: BroadcastTake::draw_attempt(),
        };
        let client = self.ask.client().await?;
        let mut consumer = BroadcastConsumer::join(client, take).await?;
        if !consumer.began_anew().is_empty() {
            output.note("nothing was known of this instance: it begins anew");
        }
        let mut pages = output.pages();
        let mut left = self.max.unwrap_or(u32::MAX);
        let mut last = Instant::now();
        while left > 0 && idle.is_none_or(|idle| last.elapsed() < idle) {
            consumer.limit(left);
            let polled = tokio::select! {
                polled = consumer.receive() => polled?,
                interrupt = tokio::signal::ctrl_c() => {
                    interrupt.map_err(Failure::Signals)?;
                    break;
                }
            };
            tell(output, &polled);
            if polled.messages.is_empty() {
                continue;
            }
            last = Instant::now();
            left = left.saturating_sub(u32::try_from(polled.messages.len()).unwrap_or(u32::MAX));
            let shown: Vec<Shown<'_>> = polled.messages.iter().map(Shown::from).collect();
            pages.add(&shown, table(&shown));
        }
        pages.end();
        if self.leave {
            consumer.leave().await?;
        } else {
            consumer.commit().await?;
        }
        Ok(())
    }
}

fn tell(output: &Output, polled: &Polled) {
    for broker_group in &polled.anew {
        output.note(format_args!("{broker_group}: the lease was over, so it begins anew there"));
    }
    if polled.lost > 0 {
        output.note(format_args!("{} messages were lost to retention", polled.lost));
    }
}
