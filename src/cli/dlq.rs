//! `raftmq dlq …`

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use crate::base::{GroupName, TopicName};
use crate::client::{Client, DeadLetter, DeadLetterFilter, RedrivenLetter};

use super::Ask;
use super::failure::Failure;
use super::group::group_name;
use super::output::{Output, Table, or_dash};
use super::pages::{self, Part};
use super::topic::topic_name;

/// Dead letters that are sent back at a time when no rate is asked for.
const PAGE: u32 = 500;
/// A rate is kept second by second.
const TURN: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub(super) enum Dlq {
    /// List messages of a consumer group that became dead letters, the first to die first.
    List {
        #[arg(value_parser = group_name)]
        group: GroupName,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        part: Part,
        #[command(flatten)]
        ask: Ask,
    },
    /// Show dead letters with their bodies and properties. Nothing is taken.
    Read {
        #[arg(value_parser = group_name)]
        group: GroupName,
        /// As list shows it; several separated by commas.
        #[arg(long = "offset", value_name = "N", value_delimiter = ',', required = true)]
        offsets: Vec<u64>,
        /// Of these broker groups only, each of which counts its own.
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        broker_groups: Vec<String>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Send dead letters back to their group, which gets each again from where it came, in order,
    /// with no attempts. Each is listed with what came of it.
    Redrive {
        #[arg(value_parser = group_name)]
        group: GroupName,
        #[command(flatten)]
        which: Which,
        /// Only these, as list shows them.
        #[arg(long = "offset", value_name = "N", value_delimiter = ',')]
        offsets: Vec<u64>,
        /// Only these message ids.
        #[arg(long = "id", value_name = "ID", value_delimiter = ',')]
        ids: Vec<String>,
        /// So many in each second, at most.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        rate: Option<u32>,
        /// So many in all, at most.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
        /// Only say which they are.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        ask: Ask,
    },
}

#[derive(Debug, Args)]
pub(super) struct Which {
    /// Only those that came from this topic.
    #[arg(long, value_parser = topic_name)]
    topic: Option<TopicName>,
    /// Only those that died at this time or later, in milliseconds since 1970-01-01T00:00:00Z.
    #[arg(long, value_name = "MILLIS")]
    from: Option<u64>,
    /// Only those that died before this time.
    #[arg(long = "to", value_name = "MILLIS")]
    until: Option<u64>,
    /// Of these broker groups only.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    broker_groups: Vec<String>,
}

impl Which {
    fn filter(self, offsets: Vec<u64>, message_ids: Vec<String>) -> DeadLetterFilter {
        DeadLetterFilter {
            topic: self.topic.map(|topic| topic.to_string()),
            from: self.from,
            until: self.until,
            offsets,
            message_ids,
            broker_groups: self.broker_groups,
        }
    }
}

impl Dlq {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        match self {
            Self::List { group, which, part, ask } => {
                let client = ask.client().await?;
                let filter = which.filter(Vec::new(), Vec::new());
                let page = async |after, limit| {
                    client.dead_letters(&group, &filter, (after, limit), false).await
                };
                let at = |letter: &DeadLetter| letter.at.clone();
                pages::list(output, part, page, (list, at)).await
            }
            Self::Read { group, offsets, broker_groups, ask } => {
                let client = ask.client().await?;
                let filter = DeadLetterFilter { offsets, broker_groups, ..Default::default() };
                let letters = read(&client, &group, &filter).await?;
                let shown: Vec<Shown<'_>> = letters.iter().map(Shown::from).collect();
                output.show(shown.as_slice(), table);
                Ok(())
            }
            Self::Redrive { group, which, offsets, ids, rate, limit, dry_run, ask } => {
                let client = ask.client().await?;
                let filter = which.filter(offsets, ids);
                let most = Most { rate, limit: limit.unwrap_or(u32::MAX) };
                redrive(&client, (&group, &filter), most, dry_run, output).await
            }
        }
    }
}

async fn read(
    client: &Client,
    group: &GroupName,
    filter: &DeadLetterFilter,
) -> Result<Vec<DeadLetter>, Failure> {
    let (mut letters, mut after) = (Vec::<DeadLetter>::new(), None);
    loop {
        let page = client.dead_letters(group, filter, (after, PAGE), true).await?;
        letters.extend(page.items);
        after = letters.last().map(|letter| letter.at.clone());
        if !page.more {
            return Ok(letters);
        }
    }
}

#[derive(Clone, Copy)]
struct Most {
    /// In each second.
    rate: Option<u32>,
    limit: u32,
}

/// Page after page, each printed when it is done.
async fn redrive(
    client: &Client,
    (group, filter): (&GroupName, &DeadLetterFilter),
    Most { rate, limit }: Most,
    dry_run: bool,
    output: &Output,
) -> Result<(), Failure> {
    let mut pages = output.pages();
    let (mut after, mut left, mut failed) = (None, limit, 0);
    loop {
        let turn = Instant::now() + TURN;
        // What a second may have may take several pages.
        let mut of_turn = rate.filter(|_| !dry_run).unwrap_or(u32::MAX);
        loop {
            let wanted = left.min(of_turn).min(PAGE);
            let page = client.redrive(group, filter, (after.clone(), wanted), dry_run).await?;
            let count = u32::try_from(page.items.len()).unwrap_or(u32::MAX);
            let sent = |letter: &&RedrivenLetter| matches!(letter.outcome, "REDRIVEN" | "DRY_RUN");
            failed += page.items.len() - page.items.iter().filter(sent).count();
            pages.add(&page.items, outcomes(&page.items));
            after = page.items.last().map(|one| one.letter.at.clone()).or(after);
            left = left.saturating_sub(count);
            of_turn = of_turn.saturating_sub(count);
            if !page.more || count == 0 || left == 0 {
                pages.end();
                if failed > 0 {
                    output.note(format_args!("{failed} were not sent back, see their outcomes"));
                }
                return Ok(());
            }
            if of_turn == 0 {
                break;
            }
        }
        sleep_until(turn).await;
    }
}

/// A dead letter with its body as far as it is text.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    letter: &'a DeadLetter,
    /// The body when it is UTF-8, otherwise absent.
    body: Option<&'a str>,
    /// The body in hexadecimal when it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_hex: Option<String>,
}

impl<'a> From<&'a DeadLetter> for Shown<'a> {
    fn from(letter: &'a DeadLetter) -> Self {
        let body = std::str::from_utf8(&letter.body).ok();
        let hex = || letter.body.iter().map(|byte| format!("{byte:02x}")).collect();
        let body_hex = body.is_none().then(hex);
        Self { letter, body, body_hex }
    }
}

fn cells(letter: &DeadLetter) -> [String; 7] {
    [
        letter.at.clone(),
        letter.topic.clone(),
        format!("{}/{}", letter.queue, letter.origin_offset),
        letter.message_id.clone(),
        letter.attempts.to_string(),
        letter.reason.clone(),
        letter.died.to_string(),
    ]
}

const HEAD: [&str; 7] = ["AT", "TOPIC", "QUEUE/OFFSET", "MESSAGE ID", "ATTEMPTS", "REASON", "DIED"];

fn list(letters: &[DeadLetter]) -> Table {
    Table::new(HEAD, letters.iter().map(cells))
}

fn outcomes(letters: &[RedrivenLetter]) -> Table {
    let row = |one: &RedrivenLetter| {
        let mut row = cells(&one.letter).to_vec();
        row.push(one.outcome.to_owned());
        row
    };
    let head = HEAD.into_iter().chain(["OUTCOME"]).collect();
    Table::of(head, letters.iter().map(row).collect())
}

fn table(letters: &[Shown<'_>]) -> Table {
    let row = |shown: &Shown<'_>| {
        let letter = shown.letter;
        let properties = letter.properties.iter().map(|(name, value)| format!("{name}={value}"));
        let mut row = cells(letter).to_vec();
        row.push(or_dash(letter.tag.as_ref()));
        row.push(letter.keys.join(" "));
        row.push(properties.collect::<Vec<_>>().join(" "));
        row.push(shown.body.map_or_else(|| format!("{} bytes", letter.body.len()), str::to_owned));
        row
    };
    let head = HEAD.into_iter().chain(["TAG", "KEYS", "PROPERTIES", "BODY"]).collect();
    Table::of(head, letters.iter().map(row).collect())
}
