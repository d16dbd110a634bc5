//! `raftmq transaction …`

use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};

use crate::base::TopicName;
use crate::client::{OpenTransaction, TransactionAction};

use super::Ask;
use super::failure::Failure;
use super::output::{Output, Table};
use super::pages::{self, Part};
use super::topic::topic_name;

#[derive(Debug, Subcommand)]
pub(super) enum Transaction {
    /// List transactional messages that nobody has committed or rolled back, the oldest first.
    List {
        /// Of one topic only.
        #[arg(long, value_parser = topic_name)]
        topic: Option<TopicName>,
        /// Only those about which no producer is asked any more: an operator has to decide.
        #[arg(long)]
        parked: bool,
        #[command(flatten)]
        part: Part,
        #[command(flatten)]
        ask: Ask,
    },
    /// Commit one: consumers get its message. The first decision about a transaction counts.
    Commit(Which),
    /// Roll one back: nobody ever gets its message.
    Rollback(Which),
    /// Have producers asked about one again, from the first check on.
    Resume(Which),
}

#[derive(Debug, Args)]
pub(super) struct Which {
    /// The transaction id, as list shows it.
    #[arg(value_name = "ID")]
    transaction: String,
    #[command(flatten)]
    ask: Ask,
}

impl Transaction {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        match self {
            Self::List { topic, parked, part, ask } => {
                let client = ask.client().await?;
                let page = async |after, limit| {
                    client.transactions(topic.as_ref(), parked, after, limit).await
                };
                let id = |one: &OpenTransaction| one.transaction_id.clone();
                pages::list(output, part, page, (list, id)).await
            }
            Self::Commit(which) => which.decide(TransactionAction::Commit, output).await,
            Self::Rollback(which) => which.decide(TransactionAction::RollBack, output).await,
            Self::Resume(which) => which.decide(TransactionAction::Resume, output).await,
        }
    }
}

impl Which {
    async fn decide(self, action: TransactionAction, output: &Output) -> Result<(), Failure> {
        let client = self.ask.client().await?;
        let ended = client.decide_transaction(&self.transaction, action).await?;
        let sentence = match (action, ended.queue, ended.offset) {
            (TransactionAction::Commit, Some(queue), Some(offset)) => {
                format!("the transaction is committed: queue {queue} has its message at {offset}")
            }
            (TransactionAction::Commit, ..) => "the transaction is committed".to_owned(),
            (TransactionAction::RollBack, ..) => "the transaction is rolled back".to_owned(),
            (TransactionAction::Resume, ..) => "producers are asked again".to_owned(),
        };
        output.done(&ended, sentence);
        Ok(())
    }
}

fn list(transactions: &[OpenTransaction]) -> Table {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = u64::try_from(now).unwrap_or(u64::MAX);
    let row = |one: &OpenTransaction| {
        let age = now.saturating_sub(one.prepared) / 1000;
        [
            one.transaction_id.clone(),
            one.topic.clone(),
            one.message_id.clone(),
            one.producer.clone(),
            format!("{age} s"),
            format!("{} of {}", one.checks, one.checks_max),
            if one.parked { "parked" } else { "asking" }.to_owned(),
        ]
    };
    let head = ["TRANSACTION", "TOPIC", "MESSAGE", "PRODUCER", "AGE", "CHECKS", "STATE"];
    Table::new(head, transactions.iter().map(row))
}
