//! `raftmq group …`

use clap::{Subcommand, ValueEnum};
use serde_json::json;

use crate::base::{GroupName, TopicName, UtcMillis};
use crate::client::{GroupInfo, GroupShape};

use super::Ask;
use super::failure::Failure;
use super::output::{Output, Table};
use super::pages::{self, Part};
use super::topic::topic_name;

#[derive(Debug, Subcommand)]
pub(super) enum Group {
    /// Create a consumer group. One that exists keeps its values.
    Create {
        #[arg(value_parser = group_name)]
        name: GroupName,
        /// How often a message in order is handed out before it counts as dead, and what push
        /// consumers are told; 1 to 1000. What is not in order comes again for as long as it is kept.
        #[arg(long, value_name = "N", default_value_t = 17)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
        attempts: u32,
        /// Waiting times between attempts, such as 1s,5s,10s; the last one repeats. By default
        /// RocketMQ's table of delay levels.
        #[arg(long, value_name = "TIMES", value_delimiter = ',', value_parser = millis)]
        backoff: Vec<u64>,
        /// For consumers that process one message after the other: several of one message group are
        /// handed out at once, in order. By default one at a time, on fifo topics.
        #[arg(long, conflicts_with = "unordered")]
        ordered: bool,
        /// Take message groups for nothing.
        #[arg(long)]
        unordered: bool,
        /// What follows the last attempt of a message in order: dead, and the next one comes; or
        /// stop, and its message group stands still until `group resume`.
        #[arg(long, value_enum, default_value_t = Exhausted::Dead)]
        exhausted: Exhausted,
        /// Where to create it: broker groups, separated by commas. By default in all.
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        broker_groups: Vec<String>,
        #[command(flatten)]
        ask: Ask,
    },
    /// List consumer groups, sorted by name.
    List {
        #[command(flatten)]
        part: Part,
        #[command(flatten)]
        ask: Ask,
    },
    /// Show how far a consumer group is in each broker group, and how the broker groups differ.
    Describe {
        #[arg(value_parser = group_name)]
        name: GroupName,
        #[command(flatten)]
        ask: Ask,
    },
    /// Let message groups go on that stood still after a last attempt.
    Resume {
        #[arg(value_parser = group_name)]
        name: GroupName,
        #[arg(long, value_parser = topic_name)]
        topic: TopicName,
        #[command(flatten)]
        ask: Ask,
    },
    /// Delete a consumer group and its progress.
    Delete {
        #[arg(value_parser = group_name)]
        name: GroupName,
        #[command(flatten)]
        ask: Ask,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Exhausted {
    Dead,
    Stop,
}

impl Exhausted {
    fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Stop => "stop",
        }
    }
}

pub(super) fn group_name(text: &str) -> Result<GroupName, String> {
    GroupName::new(text).map_err(|error| error.to_string())
}

/// `250ms`, `10s`, `5m`, `2h`, or seconds without a unit; in milliseconds.
pub(super) fn millis(text: &str) -> Result<u64, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| text.strip_suffix(name).map(|digits| (digits, *unit)))
        .unwrap_or((text, 1000));
    let count: Option<u64> = digits.parse().ok();
    count
        .and_then(|count| count.checked_mul(unit))
        .ok_or_else(|| format!("{text:?} is not a time; write 250ms, 10s, 5m or 2h"))
}

impl Group {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        match self {
            Self::Create {
                name,
                attempts,
                backoff,
                ordered,
                unordered,
                exhausted,
                broker_groups,
                ask,
            } => {
                let client = ask.client().await?;
                let shape = GroupShape {
                    attempts_max: attempts,
                    backoff: &backoff,
                    broker_groups: &broker_groups,
                    order: match (ordered, unordered) {
                        (true, _) => "batch",
                        (false, true) => "off",
                        (false, false) => "single",
                    },
                    exhausted: exhausted.name(),
                };
                let group = client.create_group(&name, shape).await?;
                output.show(&group, |group| list(std::slice::from_ref(group)));
                output.differences(&group.differences);
            }
            Self::List { part, ask } => {
                let client = ask.client().await?;
                let page = async |after, limit| client.groups(after, limit).await;
                let name = |group: &GroupInfo| group.name.clone();
                pages::list(output, part, page, (list, name)).await?;
            }
            Self::Describe { name, ask } => {
                let group = ask.client().await?.group(&name).await?;
                output.show(&group, progress);
                output.differences(&group.differences);
                output.remarks(filters(&group));
            }
            Self::Resume { name, topic, ask } => {
                let group = ask.client().await?.resume_group(&name, &topic).await?;
                output.show(&group, progress);
                output.differences(&group.differences);
            }
            Self::Delete { name, ask } => {
                ask.client().await?.delete_group(&name).await?;
                output.done(
                    &json!({ "deleted": name.as_str() }),
                    format_args!("consumer group {name} is deleted"),
                );
            }
        }
        Ok(())
    }
}

fn list(groups: &[GroupInfo]) -> Table {
    let row = |group: &GroupInfo| {
        let topics = || group.parts.iter().flat_map(|part| &part.topics);
        let ready: u64 = topics().map(|topic| topic.ready).sum();
        let in_flight: u64 = topics().map(|topic| topic.in_flight).sum();
        let expired: u64 = topics().map(|topic| topic.expired).sum();
        let attempts = group.parts.iter().map(|part| part.attempts_max).max().unwrap_or_default();
        let places: Vec<_> = group.parts.iter().map(|part| part.broker_group.as_str()).collect();
        [
            group.name.clone(),
            attempts.to_string(),
            ready.to_string(),
            in_flight.to_string(),
            expired.to_string(),
            places.join(","),
        ]
    };
    let head = ["GROUP", "ATTEMPTS", "READY", "IN FLIGHT", "EXPIRED", "BROKER GROUPS"];
    Table::new(head, groups.iter().map(row))
}

fn progress(group: &GroupInfo) -> Table {
    let all =
        group.parts.iter().flat_map(|part| part.topics.iter().map(move |topic| (part, topic)));
    let rows = all.map(|(part, topic)| {
        [
            group.name.clone(),
            part.broker_group.clone(),
            topic.topic.clone(),
            topic.ready.to_string(),
            topic.in_flight.to_string(),
            topic.expired.to_string(),
            topic.dead.to_string(),
            topic.stopped.to_string(),
        ]
    });
    let head =
        ["GROUP", "BROKER GROUP", "TOPIC", "READY", "IN FLIGHT", "EXPIRED", "DEAD", "STOPPED"];
    Table::new(head, rows)
}

/// What members use where it is not everything.
fn filters(group: &GroupInfo) -> impl Iterator<Item = String> {
    let all = group.parts.iter().flat_map(|part| &part.topics);
    all.filter(|topic| topic.filters.iter().any(|filter| filter != "*")).map(|topic| {
        let differ = match topic.differ_since.map(UtcMillis::new) {
            Some(since) => format!("; members differ since {since}"),
            None => String::new(),
        };
        format!("filters on topic {}: {}{differ}", topic.topic, topic.filters.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, value) in
            [("250ms", 250), ("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000), ("3", 3000)]
        {
            assert_eq!(millis(text), Ok(value));
        }
        assert!(millis("1d").is_err());
        assert!(millis("").is_err());
        assert!(millis("18446744073709551615h").is_err());
    }
}
