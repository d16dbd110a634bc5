//! Transactional messages: sending and ending them, and what an operator does about them.

use serde::Serialize;

use super::error::ClientError;
use super::messages::{accepted, message, resource};
use super::values::{Draft, Page};
use super::{CALL_TIMEOUT, Client};
use crate::base::TopicName;
use crate::wire::raftmq as v1;
use crate::wire::raftmq::decide_transaction_request::Action;
use crate::wire::rocketmq as v2;

/// A message that nobody sees before it is committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HalfMessage {
    pub message_id: String,
    pub transaction_id: String,
}

/// A transactional message that nobody has committed or rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenTransaction {
    pub transaction_id: String,
    pub broker_group: String,
    pub topic: String,
    pub message_id: String,
    /// The client that sent it.
    pub producer: String,
    pub bytes: u32,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub prepared: u64,
    /// How often a producer was reached with the question what became of it.
    pub checks: u32,
    pub checks_max: u32,
    /// Nobody is asked any more.
    pub parked: bool,
    pub next_check: Option<u64>,
}

/// What an operator decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionAction {
    Commit,
    RollBack,
    /// Producers are asked again, from the first check on.
    Resume,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndedTransaction {
    /// Where the message came to, when it is committed.
    pub queue: Option<u32>,
    pub offset: Option<u64>,
    /// Milliseconds since 1970-01-01T00:00:00Z; `None` when it was resumed.
    pub decided: Option<u64>,
}

impl Client {
    /// Sends drafts of one topic as transactional messages, each a transaction of its own.
    pub async fn prepare(&self, drafts: &[Draft]) -> Result<Vec<HalfMessage>, ClientError> {
        let half = |draft: &Draft| {
            let mut message = message(draft);
            let system = message.system_properties.get_or_insert_default();
            system.message_type = v2::MessageType::Transaction.into();
            message
        };
        let messages = drafts.iter().map(half).collect();
        let request = self.request(v2::SendMessageRequest { messages }, CALL_TIMEOUT);
        let answer = self.messaging().send_message(request).await?.into_inner();
        accepted(answer.status)?;
        let sent = |entry: v2::SendResultEntry| {
            accepted(entry.status)?;
            let v2::SendResultEntry { message_id, transaction_id, .. } = entry;
            Ok(HalfMessage { message_id, transaction_id })
        };
        answer.entries.into_iter().map(sent).collect()
    }

    /// Commits a transaction, or rolls it back.
    pub async fn end_transaction(
        &self,
        topic: &TopicName,
        half: &HalfMessage,
        commit: bool,
    ) -> Result<(), ClientError> {
        let resolution = if commit {
            v2::TransactionResolution::Commit
        } else {
            v2::TransactionResolution::Rollback
        };
        let request = v2::EndTransactionRequest {
            topic: Some(resource(topic.as_str())),
            message_id: half.message_id.clone(),
            transaction_id: half.transaction_id.clone(),
            resolution: resolution.into(),
            source: v2::TransactionSource::SourceClient.into(),
            ..Default::default()
        };
        let request = self.request(request, CALL_TIMEOUT);
        accepted(self.messaging().end_transaction(request).await?.into_inner().status)
    }

    /// Transactions that nobody has decided, from the one behind `after`; at most `limit`, and at
    /// most what the broker puts into one page.
    pub async fn transactions(
        &self,
        topic: Option<&TopicName>,
        parked: bool,
        after: Option<String>,
        limit: u32,
    ) -> Result<Page<OpenTransaction>, ClientError> {
        let topic = topic.map(ToString::to_string).unwrap_or_default();
        let request = v1::ListTransactionsRequest { topic, parked, after, limit };
        let request = self.request(request, CALL_TIMEOUT);
        let page = self.admin().list_transactions(request).await?.into_inner();
        Ok(Page { items: page.transactions.into_iter().map(open).collect(), more: page.more })
    }

    /// Decides as an operator. The first decision counts.
    pub async fn decide_transaction(
        &self,
        transaction_id: &str,
        action: TransactionAction,
    ) -> Result<EndedTransaction, ClientError> {
        let action = match action {
            TransactionAction::Commit => Action::Commit,
            TransactionAction::RollBack => Action::RollBack,
            TransactionAction::Resume => Action::Resume,
        };
        let request = v1::DecideTransactionRequest {
            transaction_id: transaction_id.to_owned(),
            action: action.into(),
        };
        let request = self.request(request, CALL_TIMEOUT);
        let answer = self.admin().decide_transaction(request).await?.into_inner();
        let v1::DecideTransactionResponse { queue, offset, decided } = answer;
        Ok(EndedTransaction { queue, offset, decided })
    }
}

fn open(transaction: v1::Transaction) -> OpenTransaction {
    OpenTransaction {
        transaction_id: transaction.transaction_id,
        broker_group: transaction.broker_group,
        topic: transaction.topic,
        message_id: transaction.message_id,
        producer: transaction.producer,
        bytes: transaction.bytes,
        prepared: transaction.prepared,
        checks: transaction.checks,
        checks_max: transaction.checks_max,
        parked: transaction.next_check.is_none(),
        next_check: transaction.next_check,
    }
}
