//! Drives the official Rust client. `tests/common/driver.rs` tells commands, fields and events.
//!
//! Version 5.0.0 has no push consumer, cannot change an invisible duration, and does not tell the
//! recall handle of a message.

use std::collections::HashMap;
use std::future::Future;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const BATCH: i32 = 32;
/// The client gives its poll as long as it asks the server to wait, so this is its deadline too.
const POLL: Duration = Duration::from_secs(3);
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
struct Config {
    endpoint: String,
    topic: String,
    group: String,
    count: u64,
    pace_ms: u64,
    start_ms: u64,
    invisible_ms: u64,
    lines: u64,
    delay_ms: u64,
    outcomes: String,
    gate: String,
    filter: String,
    sql: bool,
    fails: String,
    failures: i32,
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("milliseconds fit")
}

fn note(event: &str, fields: Value) {
    let mut line = Map::new();
    line.insert("event".to_owned(), event.into());
    line.insert("at_ms".to_owned(), now_ms().into());
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", Value::Object(line)).and_then(|()| out.flush());
    if written.is_err() {
        std::process::exit(1);
    }
}

fn note_error(what: &str, text: &str, mut fields: Value) {
    fields["what"] = what.into();
    fields["text"] = text.into();
    note("error", fields);
}

/// In a task of its own, since the client panics where it cannot reach a broker of its route.
async fn guarded<T: Send + 'static>(
    call: impl Future<Output = Result<T, ClientError>> + Send + 'static,
) -> Result<T, String> {
    match tokio::spawn(call).await {
        Ok(answer) => answer.map_err(|error| format!("{error:?}")),
        Err(panic) => Err(panic.to_string()),
    }
}

struct Stop(watch::Receiver<bool>);

impl Stop {
    fn on_end_of_input() -> Self {
        let (stop, stopped) = watch::channel(false);
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.send_replace(true);
        });
        Self(stopped)
    }

    fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    async fn pause(&mut self, length: Duration) {
        tokio::select! {
            () = sleep(length) => (),
            _ = self.0.wait_for(|stopped| *stopped) => (),
        }
    }
}

fn client_option(config: &Config) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(&config.endpoint);
    option.set_long_polling_timeout(POLL);
    option
}

/// A client that does not start must not hang its test.
async fn start<C>(config: &Config, starting: impl Future<Output = Result<C, ClientError>>) -> C {
    let text = match timeout(Duration::from_millis(config.start_ms), starting).await {
        Ok(Ok(client)) => {
            note("started", json!({}));
            return client;
        }
        Ok(Err(error)) => format!("{error:?}"),
        Err(_) => format!("not started within {} ms", config.start_ms),
    };
    note_error("start", &text, json!({}));
    std::process::exit(1);
}

/// When it is due, 0 for at once, and the message.
fn message_of(
    config: &Config,
    number: u64,
    transactional: bool,
) -> (u64, Result<impl Message + use<>, ClientError>) {
    let length = 1 + number * 37 % 1024;
    let body = (0..length).map(|i| (number * 31 + i * 7).to_be_bytes()[7]).collect();
    let properties = [
        ("number", number.to_string()),
        ("town", "Zürich 東京".to_owned()),
        ("a=b", " spaced; \"quoted\" \\ ".to_owned()),
    ];
    let mut message = MessageBuilder::builder()
        .set_topic(&config.topic)
        .set_body(body)
        .set_tag(format!("tag-{}", number % 5))
        .set_keys(vec![format!("key-{number}"), format!("ten-{}", number / 10)])
        .set_properties(properties.into_iter().collect());
    if config.lines > 0 {
        message = message.set_message_group(format!("line-{}", number % config.lines));
    }
    let mut due_ms = 0;
    if config.delay_ms > 0 {
        // The client sends whole seconds.
        let due = (now_ms() + config.delay_ms).div_ceil(1000);
        message = message.set_delivery_timestamp(i64::try_from(due).expect("seconds fit"));
        due_ms = due * 1000;
    }
    if transactional {
        message = message.enable_transaction();
    }
    (due_ms, message.build())
}

async fn send(config: &Config, mut stop: Stop) {
    let producer = start(config, async {
        let mut option = ProducerOption::default();
        option.set_topics(vec![config.topic.as_str()]);
        let mut producer = Producer::new(option, client_option(config))?;
        producer.start().await.map(|()| producer)
    });
    let producer = Arc::new(producer.await);
    let mut number = 0;
    while !stop.is_set() && (config.count == 0 || number < config.count) {
        let (sender, from_ms) = (producer.clone(), now_ms());
        let (due_ms, message) = message_of(config, number, false);
        match guarded(async move { sender.send(message?).await }).await {
            Ok(receipt) => note_sent(receipt.message_id(), number, from_ms, due_ms),
            Err(text) => {
                note_error("send", &text, json!({ "number": number, "from_ms": from_ms }));
                stop.pause(PAUSE_AFTER_ERROR).await;
                if config.lines > 0 {
                    continue;
                }
            }
        }
        number += 1;
        stop.pause(Duration::from_millis(config.pace_ms)).await;
    }
    if let Some(producer) = Arc::into_inner(producer) {
        note_stop(producer.shutdown().await);
    }
}

fn note_sent(id: &str, number: u64, from_ms: u64, due_ms: u64) {
    let line = json!({ "id": id, "number": number, "from_ms": from_ms, "due_ms": due_ms });
    note("sent", line);
}

async fn wait_for_gate(gate: &str, stop: &mut Stop) {
    while !gate.is_empty() && !Path::new(gate).exists() && !stop.is_set() {
        stop.pause(Duration::from_millis(20)).await;
    }
}

/// What the application has decided, by message id.
type Decided = Arc<Mutex<HashMap<String, String>>>;

fn check(decided: &Decided, id: &str) -> TransactionResolution {
    let decided = decided.lock().expect("nobody panics with it");
    let said = decided.get(id).map_or("unknown", String::as_str);
    note("asked", json!({ "id": id, "said": said }));
    match said {
        "commit" => TransactionResolution::COMMIT,
        "rollback" => TransactionResolution::ROLLBACK,
        _ => TransactionResolution::UNKNOWN,
    }
}

async fn transact(config: &Config, mut stop: Stop) {
    let decided = Decided::default();
    let asked = decided.clone();
    let producer = start(config, async {
        let mut option = ProducerOption::default();
        option.set_topics(vec![config.topic.as_str()]);
        let checker = move |_, message: MessageView| check(&asked, message.message_id());
        let (client, checker) = (client_option(config), Box::new(checker));
        let mut producer = Producer::new_transaction_producer(option, client, checker)?;
        producer.start().await.map(|()| producer)
    });
    // The client's transactions borrow it.
    let producer: &'static Producer = Box::leak(Box::new(producer.await));
    let mut halves = Vec::new();
    for (number, outcome) in (0..).zip(config.outcomes.split(' ')) {
        let ((_, message), from_ms) = (message_of(config, number, true), now_ms());
        let sending = async move { producer.send_transaction_message(message?).await };
        match guarded(sending).await {
            Ok(transaction) => {
                let id = transaction.message_id().to_owned();
                note_sent(&id, number, from_ms, 0);
                halves.push((id, transaction, outcome));
            }
            Err(text) => note_error("send", &text, json!({ "number": number, "from_ms": from_ms })),
        }
    }
    wait_for_gate(&config.gate, &mut stop).await;
    for (id, transaction, outcome) in halves {
        let said = if outcome == "open" { "commit" } else { outcome };
        decided.lock().expect("nobody panics with it").insert(id.clone(), said.to_owned());
        let ended = match outcome {
            "open" => continue,
            "commit" => guarded(async move { transaction.commit().await }).await,
            _ => guarded(async move { transaction.rollback().await }).await,
        };
        // Not to be repeated: the attempt has consumed the transaction. A check finds out.
        match ended {
            Ok(()) => note("ended", json!({ "id": id })),
            Err(text) => note_error("end", &text, json!({ "id": id })),
        }
    }
    let _ = stop.0.wait_for(|stopped| *stopped).await;
}

fn note_stop(stopped: Result<(), ClientError>) {
    if let Err(error) = stopped {
        note_error("stop", &format!("{error:?}"), json!({}));
    }
}

fn note_received(message: &MessageView, asked_ms: u64) {
    let mut keys = message.keys().to_vec();
    keys.sort();
    let body: String = message.body().iter().map(|byte| format!("{byte:02x}")).collect();
    let line = json!({
        "id": message.message_id(),
        "attempt": message.delivery_attempt(),
        "asked_ms": asked_ms,
        "body": body,
        "tag": message.tag(),
        "keys": keys,
        "properties": message.properties(),
        // The client does not look at the digest.
        "corrupted": false,
    });
    note("received", line);
}

fn fails(config: &Config, message: &MessageView) -> bool {
    let (id, attempt) = (message.message_id(), message.delivery_attempt());
    let number = message.properties().get("number");
    let named = number.is_some_and(|number| config.fails.split(' ').any(|fails| fails == number));
    let failed = named && attempt <= config.failures;
    if failed {
        note("failed", json!({ "id": id, "attempt": attempt }));
    }
    failed
}

async fn simple(config: &Config, mut stop: Stop) {
    let consumer = start(config, async {
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(&config.group);
        option.set_topics(vec![config.topic.as_str()]);
        let mut consumer = SimpleConsumer::new(option, client_option(config))?;
        consumer.start().await.map(|()| consumer)
    });
    let consumer = Arc::new(consumer.await);
    while !stop.is_set() {
        let (asked_ms, invisible) = (now_ms(), Duration::from_millis(config.invisible_ms));
        let (receiver, topic) = (consumer.clone(), config.topic.clone());
        let kind = if config.sql { FilterType::Sql } else { FilterType::Tag };
        let wanted = FilterExpression::new(kind, &config.filter);
        let received = guarded(async move {
            receiver.receive_with(topic, &wanted, BATCH, invisible).await
        });
        match received.await {
            Ok(mut messages) => {
                messages.iter().for_each(|message| note_received(message, asked_ms));
                messages.retain(|message| !fails(config, message));
                acknowledge(&consumer, messages).await;
            }
            Err(text) => {
                note_error("receive", &text, json!({}));
                stop.pause(PAUSE_AFTER_ERROR).await;
            }
        }
    }
    if let Some(consumer) = Arc::into_inner(consumer) {
        note_stop(consumer.shutdown().await);
    }
}

async fn acknowledge(consumer: &Arc<SimpleConsumer>, messages: Vec<MessageView>) {
    for message in messages {
        let (id, attempt) = (message.message_id().to_owned(), message.delivery_attempt());
        let acker = consumer.clone();
        match guarded(async move { acker.ack(&message).await }).await {
            Ok(()) => note("acked", json!({ "id": id, "attempt": attempt })),
            Err(text) => note_error("ack", &text, json!({ "id": id })),
        }
    }
}

#[tokio::main]
async fn main() {
    let mut words = std::env::args().skip(1);
    let (command, config) = (words.next().expect("a command"), words.next().expect("its fields"));
    let config: Config = serde_json::from_str(&config).expect("the fields of every command");
    let stop = Stop::on_end_of_input();
    match command.as_str() {
        "send" => send(&config, stop).await,
        "simple" => simple(&config, stop).await,
        "transact" => transact(&config, stop).await,
        other => panic!("this client cannot {other}"),
    }
    note("done", json!({}));
    std::process::exit(0);
}
