//! Scripts that run the official Python client, unmodified, and write down what they saw.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{clients, until};

/// Enough for the client's own shutdown, which waits for its polls.
const END_PATIENCE: Duration = Duration::from_secs(40);

/// A running script. It ends when its standard input closes; it is killed when dropped.
pub struct Script {
    name: String,
    child: Child,
    out: PathBuf,
    read_to: u64,
    lines: Vec<Value>,
}

impl Script {
    /// Runs `tests/clients/python/<name>.py`; its output goes to a file named `label` in `folder`.
    pub fn start(name: &str, folder: &Path, label: &str, words: &[&str]) -> Self {
        let out = folder.join(format!("{label}.jsonl"));
        let home = folder.join(format!("{label}.home"));
        fs::create_dir_all(&home).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = File::create(folder.join(format!("{label}.log"))).unwrap();
        let child = Command::new(clients::python())
            .arg("-B")
            .arg(source.join("tests/clients/python").join(name).with_extension("py"))
            .arg("--out")
            .arg(&out)
            .args(words)
            // The client logs into the home folder.
            .env("HOME", &home)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { name: label.to_owned(), child, out, read_to: 0, lines: Vec::new() }
    }

    /// All whole lines so far.
    pub fn lines(&mut self) -> &[Value] {
        let mut text = String::new();
        if let Ok(mut file) = File::open(&self.out) {
            file.seek(SeekFrom::Start(self.read_to)).unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            self.read_to += whole as u64;
            text.push_str(std::str::from_utf8(&bytes[..whole]).unwrap());
        }
        let read = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        self.lines.extend(read);
        &self.lines
    }

    /// Waits until what it wrote makes `enough` true.
    pub fn wait(&mut self, what: &str, within: Duration, enough: impl Fn(&[Value]) -> bool) {
        until(what, within, || {
            let ended = self.child.try_wait().unwrap();
            let lines = self.lines();
            match (enough(lines), ended) {
                (true, _) => Ok(()),
                (false, None) => Err(format!("{} lines", lines.len())),
                (false, Some(status)) => panic!("{what}: the script ended with {status}"),
            }
        });
    }

    /// Closes its input and waits until it has ended; all that it wrote.
    pub fn finish(mut self) -> Vec<Value> {
        drop(self.child.stdin.take());
        let name = self.name.clone();
        let status = until(&format!("{name} ends"), END_PATIENCE, || {
            self.child.try_wait().unwrap().ok_or_else(|| "is running".to_owned())
        });
        assert!(status.success(), "{name} ended with {status}");
        self.lines();
        std::mem::take(&mut self.lines)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.out.with_extension("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            println!("--- the last lines of {} ---", self.name);
            for line in tail.iter().rev() {
                println!("{line}");
            }
        }
    }
}

/// A send that `produce.py` noted.
#[derive(Clone, Debug)]
pub struct Sent {
    pub id: String,
    pub producer: u64,
    pub offset: Option<i64>,
    pub error: Option<String>,
    pub content: Content,
    /// Seconds since 1970 at the end of the call.
    pub to: f64,
}

/// A delivery that `consume.py` noted.
#[derive(Clone, Debug)]
pub struct Got {
    pub id: String,
    pub attempt: u64,
    pub asked: f64,
    pub corrupted: bool,
    pub content: Content,
}

/// What must come out as it went in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub body: String,
    pub tag: String,
    pub keys: Value,
    pub properties: Value,
}

impl Content {
    fn read(line: &Value) -> Self {
        Self {
            body: text(line, "body"),
            tag: text(line, "tag"),
            keys: line["keys"].clone(),
            properties: line["properties"].clone(),
        }
    }
}

fn text(line: &Value, key: &str) -> String {
    line[key].as_str().unwrap_or_else(|| panic!("no {key} in {line}")).to_owned()
}

/// What the producer was told, OK or not.
pub fn sends(lines: &[Value]) -> Vec<Sent> {
    let sends = lines.iter().filter(|line| line.get("number").is_some());
    sends
        .map(|line| Sent {
            id: text(line, "id"),
            producer: line["producer"].as_u64().unwrap(),
            offset: line["offset"].as_i64(),
            error: line["error"].as_str().map(str::to_owned),
            content: Content::read(line),
            to: line["to"].as_f64().unwrap(),
        })
        .collect()
}

pub fn deliveries(lines: &[Value]) -> Vec<Got> {
    let got = lines.iter().filter(|line| line["event"] == "got");
    got.map(|line| Got {
        id: text(line, "id"),
        attempt: line["attempt"].as_u64().unwrap(),
        asked: line["asked"].as_f64().unwrap(),
        corrupted: line["corrupted"].as_bool().unwrap(),
        content: Content::read(line),
    })
    .collect()
}

/// Acknowledgements that were answered OK: message id to (attempt, seconds since 1970).
pub fn acks(lines: &[Value]) -> BTreeMap<String, (u64, f64)> {
    let acked = lines.iter().filter(|line| line["event"] == "acked");
    acked
        .map(|line| {
            (text(line, "id"), (line["attempt"].as_u64().unwrap(), line["at"].as_f64().unwrap()))
        })
        .collect()
}

/// How many lines tell of this event.
pub fn count(lines: &[Value], event: &str) -> usize {
    lines.iter().filter(|line| line["event"] == event).count()
}
