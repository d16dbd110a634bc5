//! `raftmq group …`

use clap::{Subcommand, ValueEnum};
use serde_json::json;

use crate::base::{GroupName, UtcMillis};

use crate::client::{BackoffCurve, GroupChange, GroupInfo, GroupPart, GroupShape, ResetTo};

use super::Ask;
use super::failure::Failure;
use super::output::{Output, Table};
use super::pages::{self, Part};
use super::place::{STARTS, start};
use super::reset::{Pause, Reset, Resume};

#[derive(Debug, Subcommand)]
pub(super) enum Group {
    /// Create a consumer group. One that exists keeps its values.
    Create {
        #[arg(value_parser = group_name)]
        name: GroupName,
        /// How often a message is handed out before it becomes a dead letter, and what push consumers
        /// are told; 1 to 1000.
        #[arg(long, value_name = "N", default_value_t = 17)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
        attempts: u32,
        /// Waiting times between attempts: a list such as 1s,5s,10s, the last one of which repeats, or
        /// exponential:1s,2,10m (1s, then twice as long each time, 10m at most). By default RocketMQ's
        /// table of delay levels.
        #[arg(long, value_name = "TIMES", value_parser = backoff)]
        backoff: Option<Backoff>,
        /// How long its dead letters can be read. By default as long as the log is kept.
        #[arg(long, value_name = "TIME", value_parser = millis)]
        dead_keep: Option<u64>,
        /// For consumers that process one message after the other: several of one message group are
        /// handed out at once, in order. By default one at a time, on fifo topics.
        #[arg(long, conflicts_with = "unordered")]
        ordered: bool,
        /// Take message groups for nothing.
        #[arg(long)]
        unordered: bool,
        /// What follows the last attempt of a message in order: dead letter, and the next one comes; or
        /// stop, and its message group stands still until `group resume`.
        #[arg(long, value_enum, default_value_t = Exhausted::Dead)]
        exhausted: Exhausted,
        /// Where to create it: broker groups, separated by commas. By default in all.
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        broker_groups: Vec<String>,
        /// Where it begins in a topic that it uses for the first time: at the first message there is,
        /// at messages from now on, or at the first one of a time: 10m for ten minutes ago,
        /// 2026-11-30T18:00:00Z, or @ and milliseconds since 1970.
        #[arg(long, value_name = STARTS, default_value = "earliest", value_parser = start)]
        start: ResetTo,
        /// Hand nothing out before `group resume`.
        #[arg(long)]
        paused: bool,
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
    /// Hand messages out again to a group that was paused; with --topic, let message groups go on that
    /// stood still after a last attempt.
    Resume(Resume),
    /// Change how a consumer group's messages fail. What is not named stays.
    Update {
        #[arg(value_parser = group_name)]
        name: GroupName,
        /// How often a message is handed out before it becomes a dead letter; 1 to 1000.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
        attempts: Option<u32>,
        /// Waiting times between attempts, as for create.
        #[arg(long, value_name = "TIMES", value_parser = backoff)]
        backoff: Option<Backoff>,
        /// How long its dead letters can be read; 0 for as long as the log is kept.
        #[arg(long, value_name = "TIME", value_parser = millis)]
        dead_keep: Option<u64>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Delete a consumer group, its progress and its dead letters.
    Delete {
        #[arg(value_parser = group_name)]
        name: GroupName,
        #[command(flatten)]
        ask: Ask,
    },
    /// Put a consumer group elsewhere in a topic, members connected or not. What was received before
    /// can no longer be acknowledged.
    Reset(Reset),
    /// Hand nothing out to a consumer group. What it has received it may go on with.
    Pause(Pause),
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

/// As [`millis`] reads it.
fn time(millis: u64) -> String {
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let fits = units.into_iter().find(|(_, unit)| millis > 0 && millis.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{millis}ms"), |(name, unit)| format!("{}{name}", millis / unit))
}

/// Waiting times between attempts: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    listed: Vec<u64>,
    curve: Option<BackoffCurve>,
}

impl Backoff {
    /// What a group is to do from now on.
    fn change(&self, attempts_max: Option<u32>, dead_keep: Option<u64>) -> GroupChange<'_> {
        GroupChange { attempts_max, backoff: &self.listed, curve: self.curve, dead_keep }
    }
}

fn backoff(text: &str) -> Result<Backoff, String> {
    let Some(curve) = text.strip_prefix("exponential:") else {
        let listed = text.split(',').map(millis).collect::<Result<_, _>>()?;
        return Ok(Backoff { listed, curve: None });
    };
    let [initial, growth, max] = curve.split(',').collect::<Vec<_>>()[..] else {
        return Err(format!("{text:?} is no curve; write exponential:1s,2,10m"));
    };
    let (initial, max, growth) = (millis(initial)?, millis(max)?, thousandths(growth)?);
    if initial == 0 || max < initial {
        return Err(format!("{text:?} does not grow from a first time above 0 to a longer one"));
    }
    Ok(Backoff { listed: Vec::new(), curve: Some(BackoffCurve { initial, max, growth }) })
}

/// A factor from 1 to 100 with at most three decimals.
fn thousandths(text: &str) -> Result<u32, String> {
    let parse = || {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let part: u32 = format!("{part:0<3}").parse().ok().filter(|_| part.len() <= 3)?;
        whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(part)
    };
    let factor = parse().filter(|factor| (1000..=100_000).contains(factor));
    factor.ok_or_else(|| format!("{text:?} is no factor; write 1 to 100, such as 2 or 1.5"))
}

impl Group {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        match self {
            Self::Create {
                name,
                attempts,
                backoff,
                dead_keep,
                ordered,
                unordered,
                exhausted,
                broker_groups,
                start,
                paused,
                ask,
            } => {
                let client = ask.client().await?;
                let backoff = backoff.unwrap_or_default();
                let shape = GroupShape {
                    attempts_max: attempts,
                    backoff: &backoff.listed,
                    curve: backoff.curve,
                    dead_keep: dead_keep.unwrap_or(0),
                    broker_groups: &broker_groups,
                    order: match (ordered, unordered) {
                        (true, _) => "batch",
                        (false, true) => "off",
                        (false, false) => "single",
                    },
                    exhausted: exhausted.name(),
                    start: Some(start),
                    paused,
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
                describe(output, &group);
            }
            Self::Resume(resume) => resume.run(output, progress).await?,
            Self::Update { name, attempts, backoff, dead_keep, ask } => {
                let backoff = backoff.unwrap_or_default();
                let change = backoff.change(attempts, dead_keep);
                let group = ask.client().await?.update_group(&name, change).await?;
                output.show(&group, settings);
                output.differences(&group.differences);
            }
            Self::Reset(reset) => reset.run(output).await?,
            Self::Pause(pause) => pause.run(output).await?,
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

/// All that is known of it.
fn describe(output: &Output, group: &GroupInfo) {
    output.show(group, progress);
    if !output.is_json() {
        output.line("");
        output.show(group, settings);
    }
    let with = group.parts.iter().any(|part| !part.instances.is_empty());
    if with && !output.is_json() {
        output.line(format_args!("\n{}", instances(group)));
    }
    tell_begin(output, group);
    output.differences(&group.differences);
    output.remarks(filters(group));
}

/// What the table of topics has no room for.
fn tell_begin(output: &Output, group: &GroupInfo) {
    if output.is_json() {
        return;
    }
    if let Some(start) = group.parts.iter().filter_map(|part| part.start).min() {
        output.note(format_args!("begins in each topic at the first message since {start} ms"));
    }
    if group.parts.iter().any(|part| part.paused) {
        output.note("paused: nothing is handed out until `group resume`");
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
            topic.dead_letters.to_string(),
            topic.stopped.to_string(),
            topic.epoch.to_string(),
        ]
    });
    let head = [
        "GROUP",
        "BROKER GROUP",
        "TOPIC",
        "READY",
        "IN FLIGHT",
        "EXPIRED",
        "DEAD",
        "DEAD LETTERS",
        "STOPPED",
        "EPOCH",
    ];
    Table::new(head, rows)
}

/// How messages of the group fail, in each broker group.
fn settings(group: &GroupInfo) -> Table {
    let row = |part: &GroupPart| {
        let kept = if part.dead_keep == 0 { "as the log".to_owned() } else { time(part.dead_keep) };
        [
            group.name.clone(),
            part.broker_group.clone(),
            part.attempts_max.to_string(),
            waits(part),
            part.exhausted.clone(),
            kept,
        ]
    };
    let head = [
        "GROUP",
        "BROKER GROUP",
        "ATTEMPTS",
        "BACK-OFF",
        "EXHAUSTED IN ORDER",
        "DEAD LETTERS KEPT",
    ];
    Table::new(head, group.parts.iter().map(row))
}

/// As [`backoff`] reads it.
fn waits(part: &GroupPart) -> String {
    match part.curve {
        Some(BackoffCurve { initial, max, growth }) => {
            let growth = format!("{}.{:03}", growth / 1000, growth % 1000);
            let growth = growth.trim_end_matches('0').trim_end_matches('.');
            format!("exponential:{},{growth},{}", time(initial), time(max))
        }
        None => part.backoff.iter().map(|wait| time(*wait)).collect::<Vec<_>>().join(","),
    }
}

/// Those that each see everything.
fn instances(group: &GroupInfo) -> Table {
    let all = group.parts.iter().flat_map(|part| part.instances.iter().map(move |one| (part, one)));
    let rows = all.map(|(part, one)| {
        [
            one.instance.clone(),
            part.broker_group.clone(),
            one.topic.clone(),
            one.behind.to_string(),
            one.lost.to_string(),
            one.lease_until.to_string(),
        ]
    });
    Table::new(["INSTANCE", "BROKER GROUP", "TOPIC", "BEHIND", "LOST", "LEASE UNTIL"], rows)
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
    fn a_back_off_is_a_list_or_grows() {
        let listed = backoff("1s,250ms").unwrap();
        assert_eq!((listed.listed, listed.curve), (vec![1000, 250], None));
        let curve = |text| backoff(text).map(|backoff| backoff.curve.unwrap());
        let grown = BackoffCurve { initial: 1000, max: 600_000, growth: 2000 };
        assert_eq!(curve("exponential:1s,2,10m"), Ok(grown));
        assert_eq!(curve("exponential:1s,1.25,10m").unwrap().growth, 1250);
        for odd in [
            "exponential:",
            "exponential:1s,2",
            "exponential:1s,0.9,1m",
            "1s;2s",
            "",
            "exponential:1s,1.2345,1m",
            "exponential:0s,2,1m",
            "exponential:1s,101,1m",
        ] {
            assert!(backoff(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, value) in
            [("250ms", 250), ("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000), ("3", 3000)]
        {
            assert_eq!(millis(text), Ok(value));
            assert_eq!(millis(&time(value)), Ok(value));
        }
        assert!(millis("1d").is_err());
        assert!(millis("").is_err());
        assert!(millis("18446744073709551615h").is_err());
    }
}
