//! Why a command failed: one sentence for a person.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::client::ClientError;
use crate::config::{ConfigError, OverlayError};
use crate::node::NodeError;

use super::inspect::InspectError;
use super::up::UpError;

#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("topic {name}: {source} ({before} of the topics before it exist)")]
    TopicOfMany { name: String, before: usize, source: ClientError },
    #[error("line {line} of {}: {why}", path.display())]
    Line { path: PathBuf, line: usize, why: String },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Up(#[from] UpError),
    #[error(transparent)]
    Inspect(#[from] InspectError),
    #[error("{broker_group}: {why}")]
    MembersRefused { broker_group: String, why: String },
    #[error(
        "not done after {after:?}: {at}. What was reached stays (a learner that has not caught up \
         stays a learner); the same command goes on from there"
    )]
    MembersLate { after: Duration, at: String },
    #[error("no request was answered within {seconds} s: {last}")]
    NothingMeasured { seconds: u64, last: String },
    #[error(
        "sending took {took} s, but the first was due after {after} s; ask for a later --after"
    )]
    SentTooLate { took: u64, after: u64 },
    #[error("cannot measure the disk of {}: {source}", path.display())]
    Disk { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("nothing was found, but the answer is INCOMPLETE: {why}")]
    FoundNothingYet { why: String },
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
}
