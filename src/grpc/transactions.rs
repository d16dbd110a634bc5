//! What an operator asks about transactions.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use crate::broker::{Broker, Decider, Decision, EndRequest, TransactionFilter, TransactionInfo};
use crate::wire::raftmq as v1;
use crate::wire::raftmq::decide_transaction_request::Action;

use super::admin::{page, topic_name};
use super::status::end_status;

/// How long a decision may take: a change of leader is waited for.
const TIMEOUT: Duration = Duration::from_secs(8);

pub(super) async fn list(
    broker: &Broker,
    request: v1::ListTransactionsRequest,
) -> Result<v1::ListTransactionsResponse, Status> {
    let limit = page(request.limit);
    let topic = (!request.topic.is_empty()).then(|| topic_name(&request.topic)).transpose()?;
    let filter = TransactionFilter {
        topic,
        parked: request.parked,
        after: request.after,
        // One more tells whether a further page follows.
        limit: limit + 1,
    };
    let found = broker.transactions(&filter).await;
    let mut found = found.map_err(|error| end_status(&error))?;
    let more = found.len() > limit;
    found.truncate(limit);
    let transactions = found.into_iter().map(transaction).collect();
    Ok(v1::ListTransactionsResponse { transactions, more })
}

pub(super) async fn decide(
    broker: &Broker,
    request: v1::DecideTransactionRequest,
) -> Result<v1::DecideTransactionResponse, Status> {
    let decision = match request.action() {
        Action::Commit => Decision::Commit,
        Action::RollBack => Decision::RollBack,
        Action::Resume => {
            let resumed = broker.resume_transaction(&request.transaction_id).await;
            resumed.map_err(|error| end_status(&error))?;
            return Ok(v1::DecideTransactionResponse::default());
        }
        Action::Unspecified => {
            let text = format!(
                "the action is {}; 1 (commit), 2 (roll back) and 3 (resume) are known",
                request.action
            );
            return Err(Status::invalid_argument(text));
        }
    };
    let end = EndRequest {
        transaction: request.transaction_id,
        topic: None,
        message_id: None,
        decision,
        by: Decider::Operator,
        deadline: Instant::now() + TIMEOUT,
    };
    let decided = broker.end_transaction(end).await.map_err(|error| end_status(&error))?;
    Ok(v1::DecideTransactionResponse {
        queue: decided.place.map(|(queue, _)| queue.get()),
        offset: decided.place.map(|(_, offset)| offset.get()),
        decided: Some(decided.stamp.get()),
    })
}

fn transaction(info: TransactionInfo) -> v1::Transaction {
    v1::Transaction {
        transaction_id: info.transaction,
        broker_group: info.broker_group.to_string(),
        topic: info.topic.to_string(),
        message_id: info.message_id,
        producer: info.producer.to_string(),
        bytes: info.bytes,
        prepared: info.prepared.get(),
        checks: info.checks,
        checks_max: info.checks_max,
        next_check: info.next_check.map(crate::base::UtcMillis::get),
    }
}
