//! What the drivers of the official clients have in common, in every language.
//!
//! A driver is called with a command and one JSON object, and prints one JSON object a line. It
//! goes on until its standard input ends (`send` and `invisible` also end when `count` is done),
//! shuts its client down, prints `done` and exits with 0. A client that does not start is an
//! `error` and exit code 1, within `start_ms`.
//!
//! Commands:
//! - `send`: messages 0, 1, 2, … of `Content::of`, `count` of them or (0) until the end of input,
//!   `pace_ms` apart. It does not repeat what failed: what the client lets through is the finding.
//! - `simple`: a simple consumer that receives for `invisible_ms` and acknowledges, or leaves what
//!   fails until that time is over.
//! - `push`: a push consumer whose listener succeeds, or fails.
//! - `invisible`: a simple consumer that receives for `invisible_ms`, gives each message
//!   `hide_first_ms` (unless 0) and at once `hide_ms` instead, and acknowledges it when it comes
//!   again, until `count` are acknowledged.
//! - `transact`: sends the half of one transaction for each word of `outcomes`, waits until the
//!   file `gate` exists, and then ends them one after the other: `commit`, `rollback`, or `open`,
//!   which only its checker commits. Until then the checker does not know. It repeats an end until
//!   it is answered OK, where the client lets it.
//! - `recall`: sends `count` messages and one that is due a second later, waits for `gate`, and
//!   recalls each but the last twice, repeating until it is answered OK. After the end of input it
//!   tries to recall the last, once.
//!
//! Consumers want what `filter` says: tags, or with `sql` an SQL expression. The messages whose
//! numbers are in `fails`, separated by spaces, fail in their first `failures` attempts.
//!
//! With `lines`, message n belongs to the message group `line-(n mod lines)`, and `send` repeats it
//! until it is taken, for the sake of its order; with `delay_ms` it is due so much after it was made;
//! with `priorities`, where the client knows them, it has priority 1 + (n mod priorities).
//!
//! Lines have `event` and `at_ms` (since 1970):
//! - `started`
//! - `sent`: `id`, `number`, `from_ms`, `due_ms` (0: at once): the client has a receipt.
//! - `received`: `id`, `attempt`, `asked_ms` (start of the call that brought it), `body` (hex),
//!   `tag`, `keys` (sorted), `properties`, `corrupted`, `priority` (of clients that know it)
//! - `failed`: `id`, `attempt`: what was received fails now.
//! - `hidden`, `acked`: `id`, `attempt`: the client was told OK. `hidden` also has `asked_ms`, the
//!   start of the first call.
//! - `asked`: `id`, `said` (`commit`, `rollback`, `unknown`): the checker was asked.
//! - `ended`: `id`: the end of its transaction was answered OK.
//! - `recalled`: `id` as the answer tells it, `attempt`.
//! - `error`: `what` (`start`, `send`, `receive`, `ack`, `hide`, `end`, `recall`, `late`, `stop`)
//!   and `text`; with `number` and `from_ms` or `id` where it has them.
//! - `done`

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::official::Client;
use super::script::Script;

/// A Java client takes 3 s on an idle machine with two cores, and ten times that on a busy one.
const START_MS: u64 = 60_000;
/// The least that a receive may ask for.
const INVISIBLE_MS: u64 = 10_000;

/// What a driver is told.
#[derive(Clone, Debug)]
pub(crate) struct Task<'a> {
    pub(crate) command: &'a str,
    pub(crate) endpoint: SocketAddr,
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) count: u64,
    pub(crate) pace_ms: u64,
    pub(crate) invisible_ms: u64,
    pub(crate) hide_ms: u64,
    pub(crate) hide_first_ms: u64,
    pub(crate) filter: &'a str,
    pub(crate) sql: bool,
    pub(crate) fails: &'a str,
    pub(crate) failures: u64,
    pub(crate) lines: u64,
    pub(crate) delay_ms: u64,
    pub(crate) priorities: u64,
    pub(crate) outcomes: &'a str,
    /// What waits for it does not wait without.
    pub(crate) gate: Option<&'a Path>,
    /// The certificate to trust, for a client that looks at it.
    pub(crate) tls: Option<&'a Path>,
}

impl<'a> Task<'a> {
    pub(crate) fn of(command: &'a str, endpoint: SocketAddr, topic: &'a str) -> Self {
        Self {
            command,
            endpoint,
            topic,
            group: "",
            count: 0,
            pace_ms: 0,
            invisible_ms: INVISIBLE_MS,
            hide_ms: 0,
            hide_first_ms: 0,
            filter: "*",
            sql: false,
            fails: "",
            failures: 0,
            lines: 0,
            delay_ms: 0,
            priorities: 0,
            outcomes: "",
            gate: None,
            tls: None,
        }
    }

    /// Starts the client's driver on it; its files have names that begin with `label`.
    pub(crate) fn start(&self, client: Client, folder: &Path, label: &str) -> Script {
        let home = folder.join(format!("{label}.home"));
        fs::create_dir_all(&home).unwrap();
        let out = folder.join(format!("{label}.jsonl"));
        let fields = json!({
            "endpoint": self.endpoint.to_string(),
            "topic": self.topic,
            "group": self.group,
            "count": self.count,
            "pace_ms": self.pace_ms,
            "tls": self.tls.is_some(),
            "start_ms": START_MS,
            "invisible_ms": self.invisible_ms,
            "hide_ms": self.hide_ms,
            "hide_first_ms": self.hide_first_ms,
            "filter": self.filter,
            "sql": self.sql,
            "fails": self.fails,
            "failures": self.failures,
            "lines": self.lines,
            "delay_ms": self.delay_ms,
            "priorities": self.priorities,
            "outcomes": self.outcomes,
            "gate": self.gate.map_or("", |gate| gate.to_str().unwrap()),
        });
        let mut command = client.driver(&home);
        if let Some(certificate) = self.tls.filter(|_| client.verifies_tls()) {
            command.env("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", certificate);
        }
        command
            .args([self.command, &fields.to_string()])
            .stdin(Stdio::piped())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(out.with_extension("log")).unwrap());
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Script::watch(label, child, out)
    }
}

/// What a message holds, decided by its number alone, so that a driver cannot lose a field on
/// both of its ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) body: String,
    pub(crate) tag: String,
    pub(crate) keys: Vec<String>,
    pub(crate) properties: BTreeMap<String, String>,
}

impl Content {
    pub(crate) fn of(number: u64) -> Self {
        let length = 1 + number * 37 % 1024;
        let properties = [
            ("number", &*number.to_string()),
            ("town", "Zürich 東京"),
            ("a=b", " spaced; \"quoted\" \\ "),
        ];
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        Self {
            body: (0..length).map(|i| format!("{:02x}", (number * 31 + i * 7) & 255)).collect(),
            tag: format!("tag-{}", number % 5),
            keys: vec![format!("key-{number}"), format!("ten-{}", number / 10)],
            properties: properties.map(owned).into(),
        }
    }

    fn read(line: &Value) -> Self {
        let field = |name: &str| line[name].clone();
        Self {
            body: text(line, "body"),
            tag: serde_json::from_value(field("tag")).unwrap(),
            keys: serde_json::from_value(field("keys")).unwrap(),
            properties: serde_json::from_value(field("properties")).unwrap(),
        }
    }
}

/// A receipt.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) id: String,
    pub(crate) number: u64,
    pub(crate) at_ms: u64,
    pub(crate) due_ms: u64,
}

/// A delivery.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) id: String,
    pub(crate) attempt: u64,
    pub(crate) asked_ms: u64,
    pub(crate) at_ms: u64,
    pub(crate) corrupted: bool,
    pub(crate) content: Content,
}

/// An acknowledgement, or a changed invisible duration, that was answered OK; or a failure.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) id: String,
    pub(crate) attempt: u64,
    /// The start of the call, where the driver tells it.
    pub(crate) asked_ms: Option<u64>,
    pub(crate) at_ms: u64,
}

fn of<'l>(lines: &'l [Value], event: &str) -> impl Iterator<Item = &'l Value> {
    lines.iter().filter(move |line| line["event"] == event)
}

fn text(line: &Value, name: &str) -> String {
    line[name].as_str().unwrap_or_else(|| panic!("no {name} in {line}")).to_owned()
}

fn number(line: &Value, name: &str) -> u64 {
    line[name].as_u64().unwrap_or_else(|| panic!("no {name} in {line}"))
}

pub(crate) fn count(lines: &[Value], event: &str) -> usize {
    of(lines, event).count()
}

pub(crate) fn sent(lines: &[Value]) -> Vec<Sent> {
    let read = |line| Sent {
        id: text(line, "id"),
        number: number(line, "number"),
        at_ms: number(line, "at_ms"),
        due_ms: number(line, "due_ms"),
    };
    of(lines, "sent").map(read).collect()
}

pub(crate) fn received(lines: &[Value]) -> Vec<Received> {
    let read = |line: &Value| Received {
        id: text(line, "id"),
        attempt: number(line, "attempt"),
        asked_ms: number(line, "asked_ms"),
        at_ms: number(line, "at_ms"),
        corrupted: line["corrupted"].as_bool().unwrap(),
        content: Content::read(line),
    };
    of(lines, "received").map(read).collect()
}

/// Lines of `acked`, `hidden` or `failed`, in their order.
pub(crate) fn all_told(lines: &[Value], event: &str) -> Vec<Told> {
    let read = |line: &Value| Told {
        id: text(line, "id"),
        attempt: number(line, "attempt"),
        asked_ms: line["asked_ms"].as_u64(),
        at_ms: number(line, "at_ms"),
    };
    of(lines, event).map(read).collect()
}

/// The first of each id.
pub(crate) fn told(lines: &[Value], event: &str) -> BTreeMap<String, Told> {
    let mut told = BTreeMap::new();
    for read in all_told(lines, event) {
        told.entry(read.id.clone()).or_insert(read);
    }
    told
}

/// Ids of `asked` with this answer, of `ended` or of `recalled`, as often as they came.
pub(crate) fn ids(lines: &[Value], event: &str, said: Option<&str>) -> Vec<String> {
    let lines = of(lines, event).filter(|line| said.is_none_or(|said| line["said"] == said));
    lines.map(|line| text(line, "id")).collect()
}

/// The errors of one kind, as the client told them.
pub(crate) fn errors(lines: &[Value], what: &str) -> Vec<String> {
    of(lines, "error").filter(|line| line["what"] == what).map(|line| text(line, "text")).collect()
}

/// Ids of what was received so far.
pub(crate) fn received_ids(lines: &[Value]) -> BTreeSet<&str> {
    of(lines, "received").filter_map(|line| line["id"].as_str()).collect()
}
