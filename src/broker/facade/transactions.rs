//! Transactions: a transaction id names its broker group.

use tokio::time::Instant;

use super::send::{SEND_TIME_MAX, is_definite};
use crate::base::{ClientId, LogPosition};
use crate::broker::error::{BadTransactionId, EndError, NoTopic, SendError};
use crate::broker::transactions::{
    self, EndRequest, PrepareRequest, PreparedMessage, ProducerStream, TransactionFilter,
    TransactionInfo, TransactionName,
};
use crate::broker::{Broker, Replica};
use crate::command::Decided;

impl Broker {
    /// Takes half messages in: nobody sees one before it is committed. As with a send, another
    /// broker group is tried only where the one before did certainly not take them.
    pub async fn prepare(
        &self,
        mut request: PrepareRequest,
    ) -> Result<Vec<PreparedMessage>, SendError> {
        let send = &mut request.send;
        assert!(!send.messages.is_empty(), "the protocol refuses empty requests");
        send.deadline = send.deadline.min(Instant::now() + SEND_TIME_MAX.duration());
        let (topic, deadline) = (send.topic.clone(), send.deadline);
        self.resolve_topic(&topic, deadline).await?;
        self.0.producers.sent(&request.producer, &topic);
        let mut refused = NoTopic { topic: topic.clone() }.into();
        for replica in self.takers(&topic) {
            match replica.prepare(&request).await {
                Err(error) if is_definite(&error) => refused = error,
                outcome => return outcome,
            }
        }
        Err(refused)
    }

    /// The first decision counts: repeating it is good, another one is told what was decided.
    pub async fn end_transaction(&self, request: EndRequest) -> Result<Decided, EndError> {
        self.transacting(&request.transaction)?.end_transaction(&request).await
    }

    /// Whether an id is one, of this topic and message, without deciding anything.
    pub fn check_transaction(&self, request: &EndRequest) -> Result<(), EndError> {
        self.transacting(&request.transaction)?.open_transaction(request).map(|_| ())
    }

    /// Asks about it begin anew, from the first check on.
    pub async fn resume_transaction(&self, text: &str) -> Result<(), EndError> {
        self.transacting(text)?.resume_transaction(text).await
    }

    /// Transactions that nobody has decided, by broker group and then from the oldest on.
    pub async fn transactions(
        &self,
        filter: &TransactionFilter,
    ) -> Result<Vec<TransactionInfo>, EndError> {
        let after = match &filter.after {
            Some(text) => Some(self.place(text)?),
            None => None,
        };
        let mut found = Vec::new();
        for replica in &self.0.replicas {
            let behind = match after {
                Some((name, _)) if replica.name < *name => continue,
                Some((name, at)) if replica.name == *name => Some(at),
                _ => None,
            };
            let limit = filter.limit - found.len();
            found.extend(replica.transactions(filter, behind, limit).await?);
        }
        Ok(found)
    }

    /// A producer is connected to this node: it can be asked until the stream is dropped.
    pub fn producer_stream(&self, client: &ClientId) -> ProducerStream {
        self.0.producers.enter(client)
    }

    fn transacting(&self, text: &str) -> Result<&Replica, BadTransactionId> {
        let stranger = BadTransactionId { why: "was not issued by this cluster" };
        self.replica(transactions::broker_group(text)?).ok_or(stranger)
    }

    fn place(&self, text: &str) -> Result<(&crate::base::BrokerGroupName, LogPosition), EndError> {
        let replica = self.transacting(text)?;
        let name = TransactionName::open(replica.id, text, &replica.signing_key()?)?;
        Ok((&replica.name, name.transaction.at))
    }
}
