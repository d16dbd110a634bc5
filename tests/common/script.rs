//! A program that writes down what it sees, one JSON object a line.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use super::cluster::print_tail;
use super::until;

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
    /// `child` writes its lines to `out`, and what else it says to the file beside it that ends
    /// in `.log`.
    pub(crate) fn watch(label: &str, child: Child, out: PathBuf) -> Self {
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
                (false, Some(status)) => {
                    let last = lines.last();
                    panic!("{what}: the script ended with {status}; its last line: {last:?}");
                }
            }
        });
    }

    /// Ends it now, with what it was in the middle of; all that it wrote.
    pub(crate) fn cut(mut self) -> Vec<Value> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.lines();
        std::mem::take(&mut self.lines)
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
