//! SendMessage: all messages of a request become visible, or none.

use crate::broker::{Broker, ClientKind, SendRequest, Sent};
use crate::wire::rocketmq::{self as v2, Code};

use super::convert::{self, Asked};
use super::limits;
use super::metadata::Caller;
use super::status::{Refused, ok};
use super::transaction;

pub(super) async fn send(
    broker: &Broker,
    caller: Caller,
    request: v2::SendMessageRequest,
) -> Result<v2::SendMessageResponse, Refused> {
    broker.has_room(request.messages.iter().map(|message| message.body.len()).sum())?;
    let topic = limits::messages(&request.messages)?;
    let mut messages = Vec::with_capacity(request.messages.len());
    let mut first_checks = Vec::with_capacity(request.messages.len());
    for message in request.messages {
        limits::message(&message).map_err(|refused| known_to(&caller, refused))?;
        match convert::asked(message.system_properties.as_ref()) {
            Asked::Kind(kind) => {
                first_checks.push(transaction::first_check(message.system_properties.as_ref()));
                messages.push(convert::message(message, &topic, kind, caller.peer)?);
            }
            Asked::Foreign(kind) => {
                // A topic that does not exist is said first, as for any other kind.
                let route = broker.route(&topic).await?;
                let takes: Vec<_> = route.kinds.iter().map(|kind| kind.name()).collect();
                let takes = takes.join(", ");
                return Err(Refused::new(
                    Code::MessagePropertyConflictWithType,
                    format_args!("the message is of kind {kind}, but topic {topic} takes {takes}"),
                ));
            }
        }
    }
    broker.client_seen(&caller.client, ClientKind::Producer, None);
    let send = SendRequest { topic, messages, deadline: caller.answer_by() };
    if transaction::is_transactional(&send.messages)? {
        return transaction::prepare(broker, caller.client, send, first_checks).await;
    }
    let sent = broker.send(send).await?;
    let entries = sent.into_iter().map(entry).collect();
    Ok(v2::SendMessageResponse { status: Some(ok()), entries })
}

fn entry(sent: Sent) -> v2::SendResultEntry {
    v2::SendResultEntry {
        status: Some(ok()),
        message_id: sent.message_id,
        offset: convert::signed(sent.offset.get()),
        recall_handle: sent.recall_handle.unwrap_or_default(),
        ..v2::SendResultEntry::default()
    }
}

/// The crate `rocketmq` 5.0.0 is older than the code for empty bodies and panics at it.
fn known_to(caller: &Caller, refused: Refused) -> Refused {
    if caller.old_rust && refused.code == Code::MessageBodyEmpty {
        return Refused { code: Code::MessageCorrupted, ..refused };
    }
    refused
}
