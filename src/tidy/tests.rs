//! The tidy tests must be able to fail: planted violations, and what only looks like one.

use super::*;

fn found(file: &str, text: &str) -> Vec<String> {
    violations(file, text)
}

#[test]
fn a_forbidden_arrow_is_found_with_its_line() {
    assert_eq!(
        found("machine/topics.rs", "//! x\n\nuse crate::base::Term;\nuse crate::raft::Group;\n"),
        ["machine/topics.rs:4: machine must not know raft"]
    );
    assert_eq!(
        found("machine/mod.rs", "use crate::{base::{Term, TopicId}, command,\n  raft::Group};"),
        ["machine/mod.rs:2: machine must not know raft"]
    );
    assert_eq!(
        found("commit_log/a/b.rs", "fn f() -> super::super::super::message::Message {}"),
        ["commit_log/a/b.rs:1: commit_log must not know message"]
    );
    assert_eq!(found("wire.rs", "use crate::base;"), ["wire.rs:1: wire must not know base"]);
    assert_eq!(found("main.rs", "raftmq::node::run()"), ["main.rs:1: main must not know node"]);
    assert_eq!(found("main.rs", "raftmq::cli::run()"), [""; 0]);
}

#[test]
fn only_some_files_have_the_exceptions() {
    assert_eq!(found("raft/peer_service.rs", "use crate::wire::peer;"), [""; 0]);
    assert_eq!(
        found("raft/log_store.rs", "use crate::wire::peer;"),
        ["raft/log_store.rs:1: raft must not know wire"]
    );
    assert_eq!(found("cli/inspect.rs", "use crate::commit_log::CommitLog;"), [""; 0]);
    assert_eq!(found("cli/topic.rs", "use crate::commit_log::CommitLog;").len(), 1);
}

#[test]
fn doors_to_the_world_are_found() {
    let lines = "use std::{io, fs::File};\nlet now = std::time::Instant::now();\n\
                 SystemTime::now();\nuse std::net::TcpStream;\nrand::random()\n";
    let all = found("commit_log/segment.rs", lines);
    let at: Vec<&str> = all.iter().map(|line| line.split(" here").next().unwrap()).collect();
    assert_eq!(
        at,
        [
            "commit_log/segment.rs:1: std::fs",
            "commit_log/segment.rs:2: Instant::now",
            "commit_log/segment.rs:3: SystemTime",
            "commit_log/segment.rs:4: net::TcpStream",
            "commit_log/segment.rs:5: rand",
        ]
    );
    assert_eq!(found("env/os.rs", lines), [""; 0]);
    assert_eq!(found("node/mod.rs", lines), [""; 0]);
    assert_eq!(found("broker/send.rs", "use openraft::Raft;").len(), 1);
    assert_eq!(found("raft/types.rs", "use openraft::Raft;"), [""; 0]);
    assert_eq!(found("broker/send.rs", "fn f(status: tonic::Status) {}").len(), 1);
}

#[test]
fn tests_may_use_the_real_world_but_no_other_arrows() {
    let text = "use std::fs;\n#[cfg(test)]\nmod tests {\n    use std::fs;\n    \
                use crate::raft::Group;\n}\nuse std::fs;\n";
    let lines: Vec<String> = found("machine/mod.rs", text);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("machine/mod.rs:1: std::fs"));
    assert!(lines[1].starts_with("machine/mod.rs:5: machine must not know raft"));
    assert!(lines[2].starts_with("machine/mod.rs:7: std::fs"));
    assert_eq!(found("machine/tests.rs", "use std::fs;"), [""; 0]);
}

#[test]
fn comments_and_literals_are_no_arrows() {
    let text = r###"
//! [`crate::raft`]
/* crate::raft /* crate::raft */ crate::raft */
const A: &str = "crate::raft \" crate::raft";
const B: &str = r#"crate::raft " crate::raft"#;
const C: &[u8] = b"crate::raft \\";
const D: char = '"'; const E: char = '\''; fn f<'a>(x: &'a str) {} // crate::raft
use ::metrics::counter; use other::raft; struct raft;
"###;
    assert_eq!(found("base/ids.rs", text), [""; 0]);
    let behind = format!("{text}use crate::raft;\n");
    assert_eq!(found("base/ids.rs", &behind), ["base/ids.rs:9: base must not know raft"]);
}

#[test]
fn only_code_lines_count() {
    let text = "//! doc\n\n// more\nfn f() {\n    g(); // call\n}\n/*\n\n*/\n";
    assert_eq!(Source::read(text).code_lines(), 3);
}
