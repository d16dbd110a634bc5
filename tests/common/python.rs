//! Scripts that run the official Python client, unmodified, and write down what they saw.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::cluster::print_tail;
use super::{clients, until};

/// Enough for the client's own shutdown, which waits for its polls.
const END_PATIENCE: Duration = Duration::from_secs(40);

/// A running script. It ends when its standard input closes; it is killed when dropped.
pub(crate) struct Script {
    name: String,
    child: Child,
    out: PathBuf,
    read_to: u64,
    lines: Vec<Value>,
}

impl Script {
    /// Runs `tests/clients/python/<name>.py`; its output goes to a file named `label` in `folder`.
    pub(crate) fn start(name: &str, folder: &Path, label: &str, words: &[&str]) -> Self {
        let out = folder.join(format!("{label}.jsonl"));
        let home = folder.join(format!("{label}.home"));
        fs::create_dir_all(&home).unwrap();
        let output = File::create(folder.join(format!("{label}.log"))).unwrap();
        let child = Command::new(clients::python())
            .arg("-B")
            .arg(clients::python_script(&format!("{name}.py")))
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
    pub(crate) fn lines(&mut self) -> &[Value] {
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
    pub(crate) fn wait(&mut self, what: &str, within: Duration, enough: impl Fn(&[Value]) -> bool) {
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
    pub(crate) fn finish(mut self) -> Vec<Value> {
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
            print_tail(&self.out.with_extension("log"));
        }
    }
}

/// Runs a program that ends by itself; what it printed.
pub(crate) fn run(file: &Path, home: &Path) -> String {
    let mut command = Command::new(clients::python());
    let child = command.arg("-B").arg(file).env("HOME", home).env("PYTHONIOENCODING", "utf-8");
    let output = child.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} ended with {}: {said}", file.display(), output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A send that `produce.py` noted.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) id: String,
    pub(crate) producer: u64,
    pub(crate) offset: Option<i64>,
    pub(crate) error: Option<String>,
    pub(crate) content: Content,
    /// Seconds since 1970 at the end of the call.
    pub(crate) to: f64,
}

/// A delivery that `consume.py` noted.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) id: String,
    pub(crate) attempt: u64,
    pub(crate) asked: f64,
    pub(crate) corrupted: bool,
    pub(crate) content: Content,
}

/// What must come out as it went in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) body: String,
    pub(crate) tag: String,
    pub(crate) keys: Value,
    pub(crate) properties: Value,
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
pub(crate) fn sends(lines: &[Value]) -> Vec<Sent> {
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

pub(crate) fn deliveries(lines: &[Value]) -> Vec<Got> {
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
pub(crate) fn acks(lines: &[Value]) -> BTreeMap<String, (u64, f64)> {
    let acked = lines.iter().filter(|line| line["event"] == "acked");
    acked
        .map(|line| {
            (text(line, "id"), (line["attempt"].as_u64().unwrap(), line["at"].as_f64().unwrap()))
        })
        .collect()
}

/// How many lines tell of this event.
pub(crate) fn count(lines: &[Value], event: &str) -> usize {
    lines.iter().filter(|line| line["event"] == event).count()
}
