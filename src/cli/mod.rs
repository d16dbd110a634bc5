//! The command tree.
//!
//! What it is: words and flags turned into calls of `client`, or into a running `node`.
//! Promises: every command prints a table, or with `--output json` one JSON value; a failure is
//! one sentence on standard error and a non-zero exit code.
//! Never: knows more about a broker than its network API tells. The one exception is `inspect`,
//! which reads the log of a stopped node.
//! Only this room prints.

mod bench;
mod cluster;
mod config;
mod delayed;
mod dlq;
mod failure;
mod find;
mod group;
mod inspect;
mod listen;
mod instant;
mod members;
mod message;
mod output;
mod pages;
mod place;
mod pull;
mod reset;
mod serve;
mod topic;
mod transaction;
mod up;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::client::Client;

use failure::Failure;
use output::{Format, Output};

/// A message broker whose commit log is the Raft log.
///
/// Start one here with `raftmq up`, then send with `raftmq message send --topic hello --body hi`.
#[derive(Debug, Parser)]
#[command(name = "raftmq", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    /// How to print.
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a ready broker on this machine, with nothing to configure.
    Up(up::Up),
    /// Run one node of a cluster from its configuration file.
    Serve(serve::Serve),
    /// Help with configuration files.
    #[command(subcommand)]
    Config(config::Config),
    /// Create, list, describe and delete topics.
    #[command(subcommand)]
    Topic(topic::Topic),
    /// Create, list, describe and delete consumer groups.
    #[command(subcommand)]
    Group(group::Group),
    /// Send and receive messages, and find them again.
    #[command(subcommand)]
    Message(message::Message),
    /// List transactional messages that wait for a decision, and decide.
    #[command(subcommand)]
    Transaction(transaction::Transaction),
    /// List and read dead letters, and send them back to their consumer group.
    #[command(subcommand)]
    Dlq(dlq::Dlq),
    /// Ask about the cluster; add, remove and replace nodes.
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Measure: throughput and latency, next to what the disk can do.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Look into the files of a stopped node.
    #[command(subcommand)]
    Inspect(inspect::Inspect),
}

/// Whom to ask.
#[derive(Debug, Args)]
struct Ask {
    /// The gRPC address of any node.
    #[arg(long, value_name = "HOST:PORT", env = "RAFTMQ_ENDPOINT")]
    #[arg(default_value = "127.0.0.1:8081")]
    endpoint: String,
}

impl Ask {
    async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.endpoint).await?)
    }
}

/// Parses the process's arguments, does what they say, and tells how it went.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.output);
    match dispatch(cli.command, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command, output: &Output) -> Result<(), Failure> {
    match command {
        Command::Up(up) => up.run(output),
        Command::Serve(serve) => serve.run(output),
        Command::Config(config) => config.run(output),
        Command::Topic(topic) => here(topic.run(output)),
        Command::Group(group) => here(group.run(output)),
        Command::Message(message) => here(message.run(output)),
        Command::Transaction(transaction) => here(transaction.run(output)),
        Command::Dlq(dlq) => here(dlq.run(output)),
        Command::Cluster(cluster) => here(cluster.run(output)),
        Command::Bench(bench) => here(bench.run(output)),
        Command::Inspect(inspect) => inspect.run(output),
    }
}

/// Runs what waits on the calling thread, which is enough for a client and what `up` needs.
fn here(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::Runtime)?.block_on(work)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_documented_commands_are_understood() {
        for line in [
            "up",
            "up --nodes 3 --data d --base-port 9000 --restart --output json",
            "serve --config f --check",
            "serve --role name-server --set listen.grpc=0.0.0.0:1",
            "serve --role node --config f",
            "serve --config f --set node.id=2 --set listen.grpc=0.0.0.0:1",
            "config example",
            "topic create NAME --queues 4 --type normal --endpoint h:1",
            "topic create NAME --type fifo",
            "topic create ONE TWO THREE --from f",
            "topic create --from - --queues 4",
            "topic list --after NAME --limit 100",
            "topic list --output json",
            "topic describe NAME",
            "topic delete NAME",
            "group create NAME --attempts 3 --backoff 1s,10s",
            "group create NAME --backoff exponential:1s,2,10m --dead-keep 12h",
            "group update NAME --attempts 5 --backoff 1s,5s --dead-keep 0",
            "dlq list GROUP --topic t --from 1 --to 2 --after a:1 --limit 5",
            "dlq read GROUP --offset 3 --broker-groups a",
            "dlq redrive GROUP --topic t --rate 100 --limit 1000 --dry-run",
            "dlq redrive GROUP --offset 1,2 --id a,b",
            "group list",
            "group list --after NAME --limit 1",
            "group describe NAME",
            "group delete NAME",
            "message send --topic t --body b --tag x --key a --key b --property k=v --count 3",
            "message send --topic t --body-file f",
            "message receive --topic t --group g --filter a||b --max 10 --ack --wait 3s",
            "message receive --topic t --group g --sql a>1",
            "transaction list --topic t --parked --limit 5",
            "transaction commit ID --endpoint h:1",
            "transaction rollback ID",
            "transaction resume ID",
            "cluster status --output json",
            "cluster add-node --node 4 --peer h:1 --grpc h:2",
            "cluster remove-node --node 1 --timeout 1m",
            "cluster replace-node --old 1 --new 4 --peer h:1 --grpc h:2",
            "cluster transfer-leader --broker-group g --to 2",
            "up --durability majority-memory",
            "bench produce --size 1024 --in-flight 256 --batch 16 --seconds 5 --data d --output json",
            "bench produce --topic t --kind transactional",
            "bench consume --topic t --prefill 0",
            "bench e2e --endpoint h:1 --stay",
            "bench raft --in-flight 1",
            "bench consumers --count 1000 --topics 10 --sharing 5 --process 1 --process 2",
            "message get ID",
            "message get ID --topic t --output json",
            "message get --topic t --queue 3 --offset 17",
            "message query --topic t --key k",
            "message query --topic t --key k --since 10m --limit 5 --oldest-first",
            "message query --topic t --key k --from 2026-11-30T18:00:00Z --to 1796060000000",
            "message at --topic t --time 1h",
            "bench produce --keys --topic t",
            "bench produce --keys --keys-from 7",
            "bench query --topic t --keys 1000 --count 50",
            "inspect log DIR --from 3 --limit 10 --commands",
        ] {
            let words = line.split(' ').map(str::to_owned);
            let parsed = Cli::try_parse_from(["raftmq".to_owned()].into_iter().chain(words));
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_asked() {
        for line in [
            "topic create a/b",
            "topic create NAME --queues 0",
            "topic create",
            "topic list --limit 0",
            "topic create NAME --type odd",
            "message send --topic t",
            "message send --topic t --body b --body-file f",
            "message send --topic t --body b --property novalue",
            "message receive --topic t --group g --max 0",
            "transaction commit",
            "group create NAME --backoff exponential:1s,2",
            "group create NAME --backoff exponential:1s,0.5,10m",
            "group create NAME --backoff exponential:10m,2,1s",
            "dlq read GROUP",
            "dlq redrive GROUP --rate 0",
            "message get",
            "message get ID --queue 1 --offset 1 --topic t",
            "message get --queue 1 --offset 1",
            "message get --topic t --queue 1",
            "message query --topic t --key k --limit 1001",
            "message query --topic t",
            "message at --topic t --time soon",
            "bench query --keys 0",
            "bench produce --keys-from 7",
            "bench produce --in-flight 0",
            "bench produce --batch 129",
            "bench raft --size 4194305",
            "up --nodes 0",
            "up --nodes 10",
        ] {
            let words = line.split(' ').map(str::to_owned);
            let parsed = Cli::try_parse_from(["raftmq".to_owned()].into_iter().chain(words));
            assert!(parsed.is_err(), "{line}");
        }
    }
}
