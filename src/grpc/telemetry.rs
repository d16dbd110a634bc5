//! Telemetry: one long stream for each client and connection. It is never closed in normal
//! operation, because some clients never open it again.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::base::{ClientId, TopicName};
use crate::broker::{
    Broker, ClientKind, PUBLISHED_MAX, PendingCheck, ProducerStream, TransactionCheck,
};
use crate::wire::rocketmq::{self as v2, Code, telemetry_command::Command};

use super::ending::Ending;
use super::metadata::Caller;
use super::observed::Observed;
use super::settings::Stated;
use super::settings::{self, Unfit};
use super::status::{Refused, ok};
use super::transaction;

/// Commands on their way to one client: one place, which is free again when its command was taken
/// to be written. A client that does not read stops being read.
const OUTBOX: usize = 1;

type Item = Result<v2::TelemetryCommand, Status>;
pub(super) type Commands = ReceiverStream<Item>;

/// The open streams of every client. A client may have several and drop any of them at any time,
/// so a stream is forgotten only when it is closed itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams(Arc<Mutex<HashMap<ClientId, usize>>>);

/// One stream in the set; leaves it when dropped.
#[derive(Debug)]
struct Place {
    streams: Streams,
    client: ClientId,
}

impl Streams {
    fn enter(&self, client: &ClientId) -> Place {
        *self.0.lock().entry(client.clone()).or_default() += 1;
        Place { streams: self.clone(), client: client.clone() }
    }

    fn has(&self, client: &ClientId) -> bool {
        self.0.lock().contains_key(client)
    }

    /// Clients with at least one stream.
    pub(super) fn clients(&self) -> usize {
        self.0.lock().len()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut streams = self.streams.0.lock();
        let count = streams.get_mut(&self.client).expect("entered before it leaves");
        *count -= 1;
        if *count == 0 {
            streams.remove(&self.client);
        }
    }
}

pub(super) fn telemetry(
    broker: Broker,
    streams: &Streams,
    caller: Result<Caller, Refused>,
    inbound: Streaming<v2::TelemetryCommand>,
    ending: Ending,
) -> Commands {
    let (outbox, commands) = mpsc::channel(OUTBOX);
    match caller {
        Ok(caller) => {
            let place = streams.enter(&caller.client);
            let publishing = Publishing::default();
            let conversation = Conversation { broker, caller, outbox, publishing, _place: place };
            tokio::spawn(converse(conversation, streams.clone(), (inbound, ending)));
        }
        Err(refused) => {
            let command = status_only(refused.status());
            outbox.try_send(Ok(command)).expect("the channel is new and has room");
        }
    }
    ReceiverStream::new(commands)
}

async fn converse(
    conversation: Conversation,
    streams: Streams,
    (inbound, ending): (Streaming<v2::TelemetryCommand>, Ending),
) {
    let (broker, client) = (conversation.broker.clone(), conversation.caller.client.clone());
    conversation.run(inbound, ending).await;
    if !streams.has(&client) {
        broker.client_hung_up(&client);
    }
}

struct Conversation {
    broker: Broker,
    caller: Caller,
    outbox: mpsc::Sender<Item>,
    publishing: Publishing,
    _place: Place,
}

/// What a producer has said, once it has.
#[derive(Default)]
struct Publishing {
    stream: Option<ProducerStream>,
    /// The topics that it said last, under the names that they go by there.
    topics: HashMap<TopicName, v2::Resource>,
}

impl Publishing {
    fn state(&mut self, broker: &Broker, client: &ClientId, stated: &Stated) {
        if stated.kind != ClientKind::Producer {
            return;
        }
        let stream = self.stream.get_or_insert_with(|| broker.producer_stream(client));
        stream.publishes(stated.topics.iter().map(|(topic, _)| topic.clone()));
        self.topics = stated.topics.iter().take(PUBLISHED_MAX).cloned().collect();
    }

    /// The next question to this producer. Cancel safe.
    async fn next(&mut self) -> PendingCheck {
        match &mut self.stream {
            Some(stream) => stream.next().await,
            None => std::future::pending().await,
        }
    }

    /// As the producer is asked.
    fn question(&self, check: TransactionCheck) -> v2::TelemetryCommand {
        let topic = &check.message.topic;
        let named = self.topics.get(topic).cloned().unwrap_or_else(|| transaction::plain(topic));
        transaction::question(check, named)
    }
}

impl Conversation {
    /// Ends when the client does, or the node.
    async fn run(mut self, mut inbound: Streaming<v2::TelemetryCommand>, mut ending: Ending) {
        loop {
            let command = tokio::select! {
                command = inbound.next() => command,
                pending = self.publishing.next() => {
                    let question = self.publishing.question(pending.check.clone());
                    tokio::select! {
                        gone = ask(&self.outbox, pending, question) => match gone {
                            Ok(()) => continue,
                            Err(Gone) => return,
                        },
                        () = ending.comes() => return,
                    }
                }
                () = self.outbox.closed() => return,
                () = ending.comes() => return,
            };
            // A broken stream ends like one that the client closed.
            let Some(Ok(command)) = command else { return };
            for answer in self.answer(command) {
                let ends = answer.is_err();
                tokio::select! {
                    sent = self.outbox.send(answer) => if sent.is_err() || ends { return },
                    () = ending.comes() => return,
                }
            }
        }
    }

    /// Results of commands are not awaited by anything yet, and unknown commands are ignored.
    fn answer(&mut self, command: v2::TelemetryCommand) -> Vec<Item> {
        let Some(Command::Settings(settings)) = command.command else { return Vec::new() };
        let observed = Observed::begin("Telemetry");
        let merged = settings::merge(settings, |group| self.broker.group_settings(group));
        observed.end(match &merged {
            Ok(_) => Code::Ok,
            Err(Unfit::Refused(refused)) => refused.code,
            Err(Unfit::Protocol(_)) => Code::BadRequest,
        });
        match merged {
            Ok((settings, stated)) => {
                let client = &self.caller.client;
                self.broker.client_seen(client, stated.kind, stated.group.as_ref());
                self.publishing.state(&self.broker, client, &stated);
                let command = Some(Command::Settings(settings));
                vec![Ok(v2::TelemetryCommand { status: Some(ok()), command })]
            }
            // Node fails to start by the first, and the others pass over it; Java and Go fail by the
            // second, and would wait for settings without it, Go for ever.
            Err(Unfit::Refused(refused)) => {
                let end = Status::invalid_argument(refused.text.clone());
                vec![Ok(status_only(refused.status())), Err(end)]
            }
            Err(Unfit::Protocol(status)) => vec![Err(status)],
        }
    }
}

/// The client left.
#[derive(Debug)]
struct Gone;

/// A question counts once it was taken to be written, as an answer to a poll does: what only lies
/// in the outbox of a client that does not read has asked nobody.
async fn ask(
    outbox: &mpsc::Sender<Item>,
    pending: PendingCheck,
    question: v2::TelemetryCommand,
) -> Result<(), Gone> {
    outbox.send(Ok(question)).await.map_err(|_| Gone)?;
    // The only place is free again when the question was taken.
    drop(outbox.reserve().await.map_err(|_| Gone)?);
    pending.written();
    Ok(())
}

fn status_only(status: v2::Status) -> v2::TelemetryCommand {
    v2::TelemetryCommand { status: Some(status), command: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_known_until_its_last_stream_is_closed() {
        let streams = Streams::default();
        let client = ClientId::new("rust@1#2").unwrap();
        let first = streams.enter(&client);
        let second = streams.enter(&client);
        assert_eq!(streams.clients(), 1);
        drop(first);
        assert!(streams.clients() == 1 && streams.has(&client));
        drop(second);
        assert!(streams.clients() == 0 && !streams.has(&client));
    }

    #[tokio::test]
    async fn a_question_counts_once_it_was_taken_to_be_written() {
        let (outbox, mut commands) = mpsc::channel(OUTBOX);
        let (pending, mut written) = PendingCheck::example();
        let question = status_only(ok());
        let asking = tokio::spawn(async move { ask(&outbox, pending, question).await });
        // The question lies there, and nobody takes it.
        while commands.is_empty() {
            tokio::task::yield_now().await;
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(written.try_recv().is_err() && !asking.is_finished());
        assert!(commands.recv().await.is_some());
        assert_eq!(written.await, Ok(()));
        asking.await.unwrap().unwrap();
        // The client goes away with the question untaken.
        let (outbox, commands) = mpsc::channel(OUTBOX);
        let (pending, written) = PendingCheck::example();
        let question = status_only(ok());
        let asking = tokio::spawn(async move { ask(&outbox, pending, question).await });
        while commands.is_empty() {
            tokio::task::yield_now().await;
        }
        drop(commands);
        assert!(written.await.is_err() && asking.await.unwrap().is_err());
    }
}
