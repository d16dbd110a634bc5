//! Scripts that run the official Python client, unmodified, and write down what they saw.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::clients;
pub(crate) use super::script::Script;

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
        Self::watch(label, child, out)
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
