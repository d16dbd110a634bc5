//! `raftmq bench …`: how fast, and next to it what the disk can do.
//!
//! `produce`, `consume` and `e2e` drive a running cluster over gRPC as clients do. `raft` starts
//! three nodes of its own and proposes inside the leader. All are closed loops: as many requests
//! are under way as `--in-flight` says, and the next one goes when one is answered; only `produce`
//! with a rate offers so many a second. Nothing is counted during a warm-up of one second.
//! `consumers` is the opposite: many clients that do nothing, and what that costs.

mod consumers;
mod delayed;
mod disk;
mod drive;
mod query;
mod report;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::base::{GroupName, TopicName};
use crate::node::Load;

use super::Ask;
use super::failure::Failure;
use super::group::group_name;
use super::output::Output;
use super::topic::topic_name;
use super::up;

use drive::Course;
use report::{Bar, Report};

#[derive(Debug, Subcommand)]
pub(super) enum Bench {
    /// Send messages.
    Produce(Produce),
    /// Receive up to 32 messages and acknowledge them, again and again; or pull them.
    Consume(Consume),
    /// Send messages, and time them until they are received.
    E2e(E2e),
    /// Many push consumers that have nothing to do: what they cost, and how soon a message that
    /// comes at last reaches its consumer.
    Consumers(consumers::Consumers),
    /// Send messages for later, and tell how soon after their time they were visible.
    Delayed(delayed::DelayedLoad),
    /// Find messages by random keys, one after the other.
    Query(query::Query),
    /// Log and machine alone: propose inside the leader of three nodes that are started for it.
    Raft(Raft),
}

#[derive(Clone, Debug, Args)]
struct Shape {
    /// Bytes of each body.
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(16..=4_194_304))]
    size: u32,
    /// Requests under way at a time; for e2e, messages that were not received yet.
    #[arg(long, value_name = "N", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    in_flight: u32,
    /// Messages in one request; one request is one entry of the log.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=128))]
    batch: u32,
    /// How long to count, after a second of warm-up.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Where the disk is measured before, so on the disk of the nodes' data; with raft also where
    /// its nodes live.
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
}

/// Where the load goes.
#[derive(Debug, Args)]
struct Way {
    #[command(flatten)]
    ask: Ask,
    /// Stay at the endpoint, which forwards what only the leader can do. By default the load goes
    /// to the leader that the endpoint names.
    #[arg(long)]
    stay: bool,
}

#[derive(Debug, Args)]
pub(super) struct Produce {
    #[arg(long, default_value = "bench", value_parser = topic_name)]
    topic: TopicName,
    /// Offer so many requests a second instead of the next one when one is answered. Never more than
    /// --in-flight are under way, and what was refused is not offered again before the told time.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// What is sent; the topic has to take that type of messages. Each place of the window has a
    /// message group of its own, what is delayed is due an hour later, and what is transactional is
    /// committed.
    #[arg(long, value_enum, default_value_t = Sort::Normal)]
    kind: Sort,
    /// Give each message a key of its own: k-0, k-1 and so on.
    #[arg(long)]
    keys: bool,
    /// The number of the first key, so that a later run goes on where an earlier one ended.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "keys")]
    keys_from: u64,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    way: Way,
}

/// What `bench produce` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    Normal,
    Ordered,
    Delayed,
    Transactional,
}

#[derive(Debug, Args)]
pub(super) struct Consume {
    #[arg(long, default_value = "bench", value_parser = topic_name)]
    topic: TopicName,
    /// By default a new one, which starts at the topic's beginning.
    #[arg(long, value_parser = group_name)]
    group: Option<GroupName>,
    /// Messages that are sent before, so that there is enough to receive. When all are received
    /// early, the time until then counts.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    prefill: u64,
    /// Messages that one receive asks for.
    #[arg(long, value_name = "N", default_value_t = drive::RECEIVE)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=32))]
    receive: u32,
    /// Read each queue by offset from its start instead, as many at a time as --receive says: no
    /// message is handed out, and none is acknowledged.
    #[arg(long)]
    pull: bool,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    way: Way,
}

#[derive(Debug, Args)]
pub(super) struct E2e {
    /// By default a new one.
    #[arg(long, value_parser = topic_name)]
    topic: Option<TopicName>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    way: Way,
}

#[derive(Debug, Args)]
pub(super) struct Raft {
    #[command(flatten)]
    shape: Shape,
}

impl Bench {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let report = match self {
            Self::Produce(produce) => produce.run().await?,
            Self::Consume(consume) => consume.run().await?,
            Self::E2e(e2e) => e2e.run().await?,
            Self::Raft(raft) => raft.run().await?,
            Self::Consumers(consumers) => {
                let report = consumers.run().await?;
                output.show(&report, consumers::table);
                return Ok(());
            }
            Self::Query(query) => {
                output.show(&query.run().await?, query::table);
                return Ok(());
            }
            Self::Delayed(delayed) => {
                delayed::show(output, &delayed.run().await?);
                return Ok(());
            }
        };
        output.show(&report, report::table);
        Ok(())
    }
}

impl Shape {
    fn time(&self) -> Duration {
        Duration::from_secs(u64::from(self.seconds))
    }

    fn load(&self) -> Load {
        let count = |number: u32| usize::try_from(number).expect("the limits fit");
        Load {
            size: count(self.size),
            in_flight: count(self.in_flight),
            batch: count(self.batch),
            seconds: u64::from(self.seconds),
        }
    }
}

impl Way {
    async fn end(&self) -> Result<End, Failure> {
        let groups = self.ask.client().await?.cluster_status(false).await?;
        let durability: BTreeSet<_> = groups.iter().map(|group| group.durability.clone()).collect();
        let durability = durability.into_iter().collect::<Vec<_>>().join(", ");
        let mut nodes = groups.into_iter().flat_map(|group| group.nodes);
        let leader = nodes.find(|node| node.role == "leader").filter(|_| !self.stay);
        let endpoint = leader.map_or_else(|| self.ask.endpoint.clone(), |node| node.grpc);
        Ok(End { endpoint, durability })
    }
}

/// Where a load goes to.
struct End {
    /// The node that leads, as far as one is known and the load need not stay where it is.
    endpoint: String,
    /// Of all broker groups.
    durability: String,
}

impl Produce {
    async fn run(self) -> Result<Report, Failure> {
        let disk = disk::measure(&self.shape.data).await?;
        let End { endpoint, durability } = self.way.end().await?;
        let course = Course::new(endpoint, self.topic, self.shape.clone());
        let keys = self.keys.then_some(self.keys_from);
        let (figures, refusals) = course.produce(self.rate, self.kind, keys).await?;
        let (bench, latency_of) = match self.kind {
            Sort::Normal => ("produce", "a send, until it is answered OK"),
            Sort::Ordered => ("ordered", "a send, until it is answered OK"),
            Sort::Delayed => ("delayed", "a send, until it is answered OK"),
            Sort::Transactional => {
                ("transactional", "a send and its commit, until both are answered OK")
            }
        };
        let mut report = Report::new(bench, latency_of, &self.shape, figures, disk);
        report.refusals = Some(refusals);
        report.keys = self.keys.then(|| course.keys());
        report.durability = durability;
        Ok(report)
    }
}

impl Consume {
    async fn run(self) -> Result<Report, Failure> {
        let group = self.group.unwrap_or_else(|| fresh("bench-readers"));
        let mut shape = self.shape;
        let End { endpoint, durability } = self.way.end().await?;
        let course = Course::new(endpoint, self.topic, shape.clone());
        course.prefill(self.prefill).await?;
        let disk = disk::measure(&shape.data).await?;
        shape.batch = self.receive;
        let (bench, latency_of) = match self.pull {
            true => ("pull", "a pull"),
            false => ("consume", "a receive and its acknowledgement"),
        };
        let figures = match self.pull {
            true => course.pull(&group, self.receive).await?,
            false => course.consume(group, self.receive).await?,
        };
        let mut report = Report::new(bench, latency_of, &shape, figures, disk);
        report.repeated = Some(course.repeated());
        report.durability = durability;
        Ok(report)
    }
}

impl E2e {
    async fn run(self) -> Result<Report, Failure> {
        let disk = disk::measure(&self.shape.data).await?;
        let topic = self.topic.unwrap_or_else(|| {
            let name = fresh("bench-e2e").to_string();
            TopicName::new(&name).expect("a group's name is a topic's name")
        });
        let End { endpoint, durability } = self.way.end().await?;
        let course = Course::new(endpoint, topic, self.shape.clone());
        let figures = course.end_to_end(fresh("bench-readers")).await?;
        let latency_of = "a message, from its send to its receive";
        let mut report = Report::new("e2e", latency_of, &self.shape, figures, disk);
        report.durability = durability;
        Ok(report)
    }
}

impl Raft {
    async fn run(self) -> Result<Report, Failure> {
        let disk = disk::measure(&self.shape.data).await?;
        let bar = Bar::new("raft", self.shape.time() + Duration::from_secs(3));
        let watched = bar.watch(|| 0);
        let figures = tokio::select! {
            figures = up::measure(&self.shape.data, self.shape.load()) => figures?,
            never = watched => never,
        };
        Ok(Report::new("raft", "a proposal, until it is applied", &self.shape, figures, disk))
    }
}

/// A name that no other run has.
fn fresh(start: &str) -> GroupName {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = now.map_or(0, |since| since.as_millis());
    let name = format!("{start}-{millis}-{}", std::process::id());
    GroupName::new(&name).expect("letters, dashes and digits are a name")
}
