//! `raftmq bench consumers`: what many push consumers cost that have nothing to do, and how soon a
//! message that comes at last reaches its consumer.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use crate::base::{GroupName, TopicName};
use crate::client::{Client, Draft, GroupShape, PushConsumer, Pushed, Take, TopicShape};
use crate::node::{Tally, take_all_handles};

use super::super::Ask;
use super::super::failure::Failure;
use super::super::output::Table;
use super::report::Bar;

const QUEUES: u32 = 4;
/// Calls under way while consumers are started and cleared away.
const AT_ONCE: usize = 32;
/// From the last consumer's start until counting: every poll waits and first uses are written.
const SETTLE: Duration = Duration::from_secs(3);
/// A message that takes longer counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);
const BODY_BYTES: usize = 1024;
/// What the broker tells push consumers to wait for; see the settings of `grpc`.
const POLL: Duration = Duration::from_secs(20);
const INVISIBLE: Duration = Duration::from_secs(60);
/// Linux counts CPU time in these for programs, whatever its own clock.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Args)]
pub(in crate::cli) struct Consumers {
    /// How many.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Topics that they are spread over; those on one topic are one group. By default each has its
    /// own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    topics: Option<u32>,
    /// Consumers that share their connections. Those of official clients have one to each node.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    sharing: u32,
    /// How long they idle.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Messages sent afterwards, each when the one before was received.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,
    /// A process on this machine, such as a node, whose CPU time and memory is told. Several times.
    #[arg(long = "process", value_name = "PID")]
    processes: Vec<u32>,
    #[command(flatten)]
    ask: Ask,
}

/// The keys of `--output json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    bench: &'static str,
    consumers: u32,
    topics: u32,
    connections: usize,
    idle_seconds: f64,
    /// Entries that came into the logs of all broker groups meanwhile, whoever wrote them.
    entries_while_idle: u64,
    processes: Vec<Process>,
    /// Calls that failed, of all consumers.
    failed_calls: u64,
    last_failure: Option<String>,
    messages: u32,
    lost: u32,
    /// From the send to the consumer.
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    /// Of one core, while the consumers idled.
    cpu_percent: f64,
    /// Without what files back, so without the mapped log.
    anonymous_bytes: u64,
}

/// What the consumers tell.
struct Told {
    arrivals: mpsc::UnboundedSender<(u64, Instant)>,
    failed: Cell<u64>,
    last_failure: RefCell<Option<String>>,
}

impl Told {
    fn hear(&self, pushed: Pushed) {
        match pushed {
            Pushed::Message(message) => {
                let number = message.body.get(..8).and_then(|bytes| bytes.try_into().ok());
                let number = number.map(u64::from_be_bytes);
                if let Some(number) = number {
                    // Whoever waited for it may have given up.
                    let _ = self.arrivals.send((number, Instant::now()));
                }
            }
            Pushed::Failed(error) => {
                self.failed.set(self.failed.get() + 1);
                *self.last_failure.borrow_mut() = Some(error.to_string());
            }
        }
    }
}

impl Consumers {
    pub(super) async fn run(self) -> Result<Report, Failure> {
        take_all_handles();
        let client = self.ask.client().await?;
        let names = self.names();
        let kinds = ["normal".to_owned()];
        let topics = futures::stream::iter(names.clone());
        let shape = TopicShape { queues: QUEUES, kinds: &kinds, broker_groups: &[], keep: 0 };
        let created = client.create_topics(topics, shape);
        created.map(|(_, created)| created).try_for_each(async |_| Ok(())).await?;
        for_all(&names, async |name| {
            client.create_group(&group(name), GroupShape::default()).await
        })
        .await?;
        let report = self.measure(&client, &names).await;
        // What was made for this is cleared away also when it failed; why it failed is told first.
        let cleared = clear(&client, &names).await;
        let report = report?;
        cleared?;
        Ok(report)
    }

    /// The topics; their groups have the same names.
    fn names(&self) -> Vec<TopicName> {
        let run = super::fresh("bench-idle");
        let count = self.topics.unwrap_or(self.count).min(self.count);
        let name = |number| TopicName::new(&format!("{run}-{number}"));
        (0..count).map(|number| name(number).expect("letters, dashes and digits")).collect()
    }

    async fn measure(&self, client: &Client, names: &[TopicName]) -> Result<Report, Failure> {
        let (arrivals, mut arrived) = mpsc::unbounded_channel();
        let told = Told { arrivals, failed: Cell::new(0), last_failure: RefCell::new(None) };
        let told = Rc::new(told);
        let consumers = LocalSet::new();
        let work = async {
            let connections = self.start(names, &told).await?;
            tokio::time::sleep(SETTLE).await;
            let idle = self.idle(client).await?;
            let tally = Tally::new();
            let lost = self.deliver(client, names, &mut arrived, &tally).await?;
            let figures = tally.figures(BODY_BYTES, Duration::from_secs(1));
            Ok(Report {
                bench: "consumers",
                consumers: self.count,
                topics: u32::try_from(names.len()).unwrap_or(u32::MAX),
                connections,
                idle_seconds: idle.seconds,
                entries_while_idle: idle.entries,
                processes: idle.processes,
                failed_calls: told.failed.get(),
                last_failure: told.last_failure.borrow().clone(),
                messages: self.messages,
                lost,
                p50_us: figures.p50_us,
                p99_us: figures.p99_us,
                max_us: figures.max_us,
            })
        };
        // Consumers end with the set.
        consumers.run_until(work).await
    }

    /// Answers how many connections they have together.
    async fn start(&self, names: &[TopicName], told: &Rc<Told>) -> Result<usize, Failure> {
        let count = usize::try_from(self.count).expect("at most 100000");
        let sharing = usize::try_from(self.sharing).expect("at most 100");
        let takes: Vec<Take> = names.iter().cycle().take(count).map(take).collect();
        let connect = |takes: &[Take]| {
            let (first, others) = (takes[0].clone(), takes[1..].to_vec());
            async move {
                let first = PushConsumer::connect(&self.ask.endpoint, first).await?;
                let others: Vec<_> = others.into_iter().map(|take| first.beside(take)).collect();
                Ok::<_, Failure>((first, others))
            }
        };
        let starts = takes.chunks(sharing).map(connect);
        let mut started = futures::stream::iter(starts).buffer_unordered(AT_ONCE);
        let mut connections = 0;
        while let Some((first, others)) = started.try_next().await? {
            connections += first.connections();
            for consumer in others.into_iter().chain([first]) {
                let told = Rc::clone(told);
                tokio::task::spawn_local(async move {
                    consumer.run(move |pushed| told.hear(pushed)).await;
                });
            }
        }
        Ok(connections)
    }

    async fn idle(&self, client: &Client) -> Result<Idle, Failure> {
        let (audits, groups) = last_entries(client).await?;
        let used = self.cpu_ticks()?;
        let start = Instant::now();
        let length = Duration::from_secs(u64::from(self.seconds));
        let bar = Bar::new("idle", length);
        tokio::select! {
            () = tokio::time::sleep(length) => {}
            () = bar.watch(|| 0) => {}
        }
        let seconds = start.elapsed().as_secs_f64();
        let now = self.cpu_ticks()?;
        // The second question is itself one entry in each group.
        let (now_audits, _) = last_entries(client).await?;
        let entries = now_audits.saturating_sub(audits).saturating_sub(groups);
        let process = |(pid, (before, now)): (&u32, (u64, u64))| {
            let cpu_percent = (now - before) as f64 / TICKS_PER_SECOND / seconds * 100.0;
            let anonymous_bytes = anonymous_bytes(*pid)?;
            Ok(Process { pid: *pid, cpu_percent, anonymous_bytes })
        };
        let processes = self.processes.iter().zip(used.into_iter().zip(now)).map(process);
        Ok(Idle { seconds, entries, processes: processes.collect::<Result<_, Failure>>()? })
    }

    fn cpu_ticks(&self) -> Result<Vec<u64>, Failure> {
        self.processes.iter().map(|pid| cpu_ticks(*pid)).collect()
    }

    /// Answers how many did not arrive.
    async fn deliver(
        &self,
        client: &Client,
        names: &[TopicName],
        arrived: &mut mpsc::UnboundedReceiver<(u64, Instant)>,
        tally: &Tally,
    ) -> Result<u32, Failure> {
        let mut lost = 0;
        for (number, topic) in (0..self.messages).zip(names.iter().cycle()) {
            let number = u64::from(number);
            let mut body = vec![b'x'; BODY_BYTES];
            body[..8].copy_from_slice(&number.to_be_bytes());
            let (topic, body) = (topic.clone(), Bytes::from(body));
            let draft = Draft::new(topic, body);
            let begun = Instant::now();
            client.send(&[draft]).await?;
            let arrival = async {
                loop {
                    match arrived.recv().await {
                        Some((of, at)) if of == number => return at,
                        // A late one, which was counted as lost.
                        Some(_) => {}
                        None => std::future::pending().await,
                    }
                }
            };
            match timeout(PATIENCE, arrival).await {
                Ok(at) => tally.note(at - begun, 1),
                Err(_) => lost += 1,
            }
        }
        Ok(lost)
    }
}

struct Idle {
    seconds: f64,
    entries: u64,
    processes: Vec<Process>,
}

fn group(topic: &TopicName) -> GroupName {
    GroupName::new(topic.as_str()).expect("letters, dashes and digits are a group's name")
}

fn take(topic: &TopicName) -> Take {
    let (topic, group) = (topic.clone(), group(topic));
    Take { topic, group, filter: "*".to_owned(), max: 32, invisible: INVISIBLE, wait: POLL }
}

async fn clear(client: &Client, names: &[TopicName]) -> Result<(), Failure> {
    for_all(names, async |name| client.delete_topic(name).await).await?;
    for_all(names, async |name| client.delete_group(&group(name)).await).await
}

async fn for_all<T>(
    names: &[TopicName],
    call: impl AsyncFn(&TopicName) -> Result<T, crate::client::ClientError>,
) -> Result<(), Failure> {
    let calls = names.iter().map(|name| call(name));
    let mut calls = futures::stream::iter(calls).buffer_unordered(AT_ONCE);
    while calls.try_next().await?.is_some() {}
    Ok(())
}

/// The last entries of all broker groups, added up, and how many groups there are. The question
/// writes an entry into each, which is the one that is told.
async fn last_entries(client: &Client) -> Result<(u64, u64), Failure> {
    let groups = client.cluster_status(false).await?;
    let audits: Option<Vec<u64>> = groups.iter().map(|group| group.audit_index).collect();
    let seconds = 0;
    let last = "no leader answered".to_owned();
    let audits = audits.ok_or(Failure::NothingMeasured { seconds, last })?;
    Ok((audits.iter().sum(), audits.len() as u64))
}

fn read(path: String) -> Result<String, Failure> {
    fs::read_to_string(&path).map_err(|source| Failure::Read { path: PathBuf::from(path), source })
}

/// User and system time, fields 14 and 15 of proc(5); the name before them may have spaces.
fn cpu_ticks(pid: u32) -> Result<u64, Failure> {
    let stat = read(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    Ok(fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum())
}

fn anonymous_bytes(pid: u32) -> Result<u64, Failure> {
    let status = read(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.unwrap_or(0) * 1024)
}

pub(super) fn table(report: &Report) -> Table {
    let row = |name: &str, value: String| [name.to_owned(), value];
    let micros = |value: u64| format!("{value} us");
    let mut rows = vec![
        row("consumers", report.consumers.to_string()),
        row("topics and groups", report.topics.to_string()),
        row("connections", report.connections.to_string()),
        row("idle", format!("{:.1} s", report.idle_seconds)),
        row("  entries written", report.entries_while_idle.to_string()),
    ];
    for process in &report.processes {
        let mib = process.anonymous_bytes as f64 / f64::from(1 << 20);
        let value = format!("{:.1} % of a core, {mib:.0} MiB anonymous", process.cpu_percent);
        rows.push(row(&format!("  process {}", process.pid), value));
    }
    rows.extend([
        row("failed calls", report.failed_calls.to_string()),
        row("  the last one", report.last_failure.clone().unwrap_or_else(|| "-".to_owned())),
        row("messages", report.messages.to_string()),
        row("  lost", report.lost.to_string()),
        row("  p50", micros(report.p50_us)),
        row("  p99", micros(report.p99_us)),
        row("  max", micros(report.max_us)),
    ]);
    Table::new(["BENCH", report.bench], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_its_time_and_memory() {
        let own = std::process::id();
        assert!(anonymous_bytes(own).unwrap() > 0);
        let before = cpu_ticks(own).unwrap();
        assert!(cpu_ticks(own).unwrap() >= before);
        assert!(cpu_ticks(u32::MAX).is_err());
    }
}
