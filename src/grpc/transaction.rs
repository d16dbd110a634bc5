//! Transactions: half messages, EndTransaction, and the question to a producer.

use crate::base::{ClientId, Millis, QueueOffset, TopicName};
use crate::broker::{
    Broker, Decider, Decision, Delivered, EndRequest, PrepareRequest, PreparedMessage, SendRequest,
    TransactionCheck,
};
use crate::message::{Message, MessageKind};
use crate::wire::rocketmq::{
    self as v2, Code, TransactionResolution, TransactionSource, telemetry_command::Command,
};

use super::metadata::Caller;
use super::status::{Refused, ok};
use super::{convert, limits};

/// Half messages stand in a request of their own: none of them is sent, each is prepared.
pub(super) fn is_transactional(messages: &[Message]) -> Result<bool, Refused> {
    let halves = messages.iter().filter(|message| message.kind == MessageKind::Transaction).count();
    if halves > 0 && halves < messages.len() {
        return Err(Refused::new(
            Code::MessageCorrupted,
            format_args!(
                "{halves} of {} messages are transactional; a request holds only such ones, or none",
                messages.len()
            ),
        ));
    }
    Ok(halves > 0)
}

/// How long to wait before somebody is asked, if the message says so. Its limits were checked.
pub(super) fn first_check(system: Option<&v2::SystemProperties>) -> Option<Millis> {
    convert::millis(system?.orphaned_transaction_recovery_duration.as_ref()?)
}

pub(super) async fn prepare(
    broker: &Broker,
    producer: ClientId,
    send: SendRequest,
    first_checks: Vec<Option<Millis>>,
) -> Result<v2::SendMessageResponse, Refused> {
    let prepared = broker.prepare(PrepareRequest { send, producer, first_checks }).await?;
    let entry = |PreparedMessage { message_id, transaction }| v2::SendResultEntry {
        status: Some(ok()),
        message_id,
        transaction_id: transaction,
        ..v2::SendResultEntry::default()
    };
    let entries = prepared.into_iter().map(entry).collect();
    Ok(v2::SendMessageResponse { status: Some(ok()), entries })
}

pub(super) async fn end(
    broker: &Broker,
    caller: Caller,
    request: v2::EndTransactionRequest,
) -> Result<v2::EndTransactionResponse, Refused> {
    let topic = limits::topic(request.topic.as_ref())?;
    if request.transaction_id.trim().is_empty() {
        let text = "the transaction id is blank; sending the message answered one";
        return Err(Refused::new(Code::InvalidTransactionId, text));
    }
    // Some clients never say it, and nothing depends on it.
    let by = match request.source() {
        TransactionSource::SourceServerCheck => Decider::Check,
        TransactionSource::SourceClient | TransactionSource::SourceUnspecified => Decider::Producer,
    };
    let decision = match TransactionResolution::try_from(request.resolution) {
        Ok(TransactionResolution::Commit) => Some(Decision::Commit),
        Ok(TransactionResolution::Rollback) => Some(Decision::RollBack),
        Ok(TransactionResolution::Unspecified) => None,
        Err(_) => {
            let found = request.resolution;
            return Err(Refused::new(
                Code::BadRequest,
                format_args!(
                    "the resolution is {found}; 0 (open), 1 (commit), 2 (rollback) are known"
                ),
            ));
        }
    };
    broker.client_seen(&caller.client, crate::broker::ClientKind::Producer, None);
    let end = EndRequest {
        transaction: request.transaction_id,
        topic: Some(topic),
        message_id: Some(request.message_id).filter(|id| !id.is_empty()),
        // Of no matter where there is none.
        decision: decision.unwrap_or(Decision::RollBack),
        by,
        deadline: caller.answer_by(),
    };
    match decision {
        Some(_) => broker.end_transaction(end).await.map(|_| ())?,
        // It stays open, and is asked about again.
        None => broker.check_transaction(&end)?,
    }
    Ok(v2::EndTransactionResponse { status: Some(ok()) })
}

/// What a producer is asked. `topic` is the message's, under the name that it goes by there.
pub(super) fn question(check: TransactionCheck, topic: v2::Resource) -> v2::TelemetryCommand {
    let message = Delivered {
        message: check.message,
        queue: check.queue,
        offset: QueueOffset::ZERO,
        stored: check.prepared,
        store_host: check.store_host,
        attempt: 1,
        handle: String::new(),
        death: None,
    };
    let command = v2::RecoverOrphanedTransactionCommand {
        message: Some(convert::delivered(message, topic)),
        transaction_id: check.transaction,
    };
    let command = Command::RecoverOrphanedTransactionCommand(command);
    v2::TelemetryCommand { status: None, command: Some(command) }
}

/// As a topic is called that a producer never named.
pub(super) fn plain(topic: &TopicName) -> v2::Resource {
    v2::Resource { resource_namespace: String::new(), name: topic.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{QueueId, UtcMillis};
    use crate::message::BodyEncoding;

    fn message(kind: MessageKind) -> Message {
        Message {
            topic: TopicName::new("t").unwrap(),
            body: "b".into(),
            encoding: BodyEncoding::Identity,
            message_id: "m".into(),
            kind,
            tag: None,
            keys: Vec::new(),
            properties: Vec::new(),
            message_group: None,
            born: UtcMillis::new(5),
            born_host: "h".into(),
            trace_context: None,
            deliver_at: None,
            priority: None,
        }
    }

    #[test]
    fn half_messages_are_not_mixed_with_others() {
        let of = |kinds: &[MessageKind]| {
            let messages: Vec<_> = kinds.iter().map(|kind| message(*kind)).collect();
            is_transactional(&messages)
        };
        use MessageKind::{Normal, Transaction};
        assert_eq!(of(&[Normal, Normal]), Ok(false));
        assert_eq!(of(&[Transaction, Transaction]), Ok(true));
        let refused = of(&[Normal, Transaction]).unwrap_err();
        assert_eq!(refused.code, Code::MessageCorrupted);
        assert!(refused.text.contains("1 of 2"), "{}", refused.text);
    }

    #[test]
    fn a_question_holds_a_message_as_it_is_delivered() {
        let check = TransactionCheck {
            transaction: "54".into(),
            message: message(MessageKind::Transaction),
            queue: QueueId::new(3),
            prepared: UtcMillis::new(9),
            store_host: "s".into(),
        };
        let topic = v2::Resource { resource_namespace: "ns".into(), name: "t".into() };
        let Some(Command::RecoverOrphanedTransactionCommand(asked)) =
            question(check, topic.clone()).command
        else {
            panic!("another command")
        };
        assert_eq!(asked.transaction_id, "54");
        let message = asked.message.unwrap();
        assert_eq!(message.topic, Some(topic));
        let system = message.system_properties.unwrap();
        assert_eq!(system.message_id, "m");
        assert_eq!(system.message_type, i32::from(v2::MessageType::Transaction));
        assert!(system.body_digest.is_some() && system.born_timestamp.is_some());
        assert_eq!(system.delivery_attempt, Some(1));
    }
}
