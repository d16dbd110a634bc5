//! `raftmq inspect …`: reads the log of a stopped node and changes nothing.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Serialize;

use crate::command::{Command, Delivery, Leave, Position, Redrive, TimerKey};
use crate::commit_log::inspect::{self, Inspected};
use crate::commit_log::{FrameKind, OpenError};
use crate::env::os;

use super::failure::Failure;
use super::output::{Output, Table};

#[derive(Debug, Subcommand)]
pub(super) enum Inspect {
    /// List the entries of a log.
    Log {
        /// The log's directory, or one above it as far as the node's own.
        dir: PathBuf,
        /// The first index to show.
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        from: u64,
        /// How many entries at most.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Show what each entry says.
        #[arg(long)]
        commands: bool,
    },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum InspectError {
    #[error("there is no log in {}, nor where a node keeps it below", dir.display())]
    NoLog { dir: PathBuf },
    #[error("a node runs with {}; stop it first", data.display())]
    Running { data: PathBuf },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Log(#[from] OpenError),
}

/// Where a log may lie below the directory that was named: itself, a broker group's, a node's
/// data, and what `up` keeps of a node.
const PLACES: [&str; 4] = ["", "log", "group-0/log", "data/group-0/log"];
/// How many directories above the log the lock of its node is looked for.
const LOCK_ABOVE: usize = 3;

/// One entry, as it is shown. The field names are keys of `--output json`.
#[derive(Debug, Serialize)]
struct Line {
    index: u64,
    term: u64,
    kind: &'static str,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    stamp: Option<u64>,
    position: u64,
    /// Without the frame's header.
    bytes: usize,
    segment: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

impl Inspect {
    pub(super) fn run(self, output: &Output) -> Result<(), Failure> {
        let Self::Log { dir, from, limit, commands } = self;
        let log = find_log(&dir)?;
        refuse_running(&log)?;
        let entries = inspect::inspect(os::env().disk, &log).map_err(InspectError::from)?;
        let mut lines = Vec::new();
        let mut bad = None;
        for entry in entries {
            match entry {
                Ok(entry) if entry.frame.index.get() < from => {}
                Ok(_) if lines.len() == limit => break,
                Ok(entry) => lines.push(line(&entry, commands)),
                Err(error) => {
                    bad = Some(error);
                    break;
                }
            }
        }
        output.show(lines.as_slice(), |lines| table(lines, commands));
        match bad {
            Some(error) => Err(InspectError::from(error).into()),
            None => Ok(()),
        }
    }
}

fn find_log(dir: &Path) -> Result<PathBuf, InspectError> {
    let places = PLACES.iter().map(|place| dir.join(place));
    let found = places.into_iter().find(|place| holds_segments(place));
    found.ok_or_else(|| InspectError::NoLog { dir: dir.to_owned() })
}

/// A segment is named by the position where it starts, in 20 digits.
fn holds_segments(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        stem.len() == 20 && stem.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn refuse_running(log: &Path) -> Result<(), InspectError> {
    for data in log.ancestors().take(LOCK_ABOVE) {
        let path = data.join("lock");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(InspectError::File { path, source }),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(InspectError::Running { data: data.to_owned() });
            }
            Err(errno) => return Err(InspectError::File { path, source: errno.into() }),
        }
    }
    Ok(())
}

fn line(entry: &Inspected, commands: bool) -> Line {
    let frame = &entry.frame;
    let kind = match frame.kind {
        FrameKind::Blank => "blank",
        FrameKind::Command => "command",
        FrameKind::Membership => "membership",
    };
    let says = || match frame.kind {
        FrameKind::Command => match Command::decode(&frame.body) {
            Ok(command) => describe(&command),
            Err(error) => format!("not readable: {error}"),
        },
        FrameKind::Blank | FrameKind::Membership => String::new(),
    };
    let segment = entry.segment.file_name().map(|name| name.to_string_lossy().into_owned());
    Line {
        index: frame.index.get(),
        term: frame.term.get(),
        kind,
        stamp: frame.seal.map(|seal| seal.stamp.get()),
        position: frame.position.get(),
        bytes: frame.body.len(),
        segment: segment.unwrap_or_default(),
        command: commands.then(says),
    }
}

fn table(lines: &[Line], commands: bool) -> Table {
    let mut head = vec!["INDEX", "TERM", "KIND", "STAMP", "POSITION", "BYTES", "SEGMENT"];
    if commands {
        head.push("SAYS");
    }
    let rows = lines.iter().map(|line| {
        let stamp = line.stamp.map(|stamp| stamp.to_string()).unwrap_or_default();
        let mut row = vec![
            line.index.to_string(),
            line.term.to_string(),
            line.kind.to_owned(),
            stamp,
            line.position.to_string(),
            line.bytes.to_string(),
            line.segment.clone(),
        ];
        row.extend(line.command.clone());
        row
    });
    Table::of(head, rows.collect())
}

fn describe_redrive(redrive: &Redrive) -> String {
    format!("{} dead letters go back to group {}", redrive.letters.len(), redrive.group)
}

/// One line about a command; bodies and secrets are left out.
fn describe(command: &Command) -> String {
    match command {
        Command::Found(found) => format!("found cluster {}", found.cluster),
        Command::Publish(publish) => {
            let bytes: usize = publish.items.iter().map(|item| item.record.len()).sum();
            let queues: Vec<String> =
                publish.items.iter().map(|item| item.queue.to_string()).collect();
            let (count, topic, queues) = (publish.items.len(), publish.topic, queues.join(","));
            format!("publish {count} to topic {topic}, queues {queues}, {bytes} bytes")
        }
        Command::Deliveries(steps) => {
            let steps: Vec<String> = steps.iter().map(describe_delivery).collect();
            steps.join("; ")
        }
        Command::CreateTopic(topic) => {
            format!("create topic {} with {} queues", topic.name, topic.queues)
        }
        Command::DeleteTopic { topic } => format!("delete topic {topic}"),
        Command::CreateGroup(group) => format!("create group {}", group.name),
        Command::DeleteGroup { group } => format!("delete group {group}"),
        Command::Tick { limit } => format!("tick, at most {limit}"),
        Command::Audit => "audit".to_owned(),
        Command::Retain(retention) => format!(
            "keep {} and {} bytes, marks every {} bytes",
            retention.time, retention.bytes, retention.stride
        ),
        Command::PurgeIntent { mark } => format!("nothing new is read up to entry {mark}"),
        Command::Relocate(relocations) => {
            let bytes: usize = relocations.iter().map(|one| one.record.len()).sum();
            format!("{} records under way again, {bytes} bytes", relocations.len())
        }
        Command::PurgeTo { mark } => format!("the log may begin behind entry {mark}"),
        Command::Prepare(prepare) => {
            let (count, topic) = (prepare.halves.len(), prepare.topic);
            format!("{count} half messages of {} for topic {topic}", prepare.producer)
        }
        Command::End(end) => {
            let (at, by) = (end.transaction.at, end.by.name());
            format!("the transaction of {at} is {} by {by}", end.decision.past())
        }
        Command::Check(checks) => format!("{} transactions were asked about", checks.len()),
        Command::Resume(transaction) => {
            format!("the transaction of {} is asked about again", transaction.at)
        }
        Command::Trim(trim) => format!("topic {} is gone up to entry {}", trim.topic, trim.mark),
        Command::GrowTopic { topic, queues } => format!("topic {topic} has {queues} queues now"),
        Command::Schedule(schedule) => {
            let bytes: usize = schedule.items.iter().map(|one| one.item.record.len()).sum();
            let due: Vec<String> = schedule.items.iter().map(|one| one.due.to_string()).collect();
            let (count, topic, due) = (schedule.items.len(), schedule.topic, due.join(","));
            format!("schedule {count} to topic {topic}, due {due}, {bytes} bytes")
        }
        Command::Recall(timer) => format!("recall {}", describe_timer(timer)),
        Command::Reschedule { timer, due } => {
            format!("reschedule {} to {due}", describe_timer(timer))
        }
        Command::Subscribe(_)
        | Command::Unsubscribe(_)
        | Command::ResumeLines { .. }
        | Command::Redrive(_)
        | Command::UpdateGroup(_)
        | Command::Position(_)
        | Command::Leave(_)
        | Command::Start(_)
        | Command::Reset(_)
        | Command::Pause { .. }
        | Command::StoreOffset(_)
        | Command::MembersDiffer { .. } => describe_asked(command),
    }
}

/// What consumers and their operators ask for.
fn describe_asked(command: &Command) -> String {
    match command {
        Command::Subscribe(subscribe) => {
            let (group, topic) = (subscribe.group, subscribe.topic);
            format!("group {group} wants {:?} of topic {topic}", subscribe.expression)
        }
        Command::Unsubscribe(subscribe) => {
            let (group, topic) = (subscribe.group, subscribe.topic);
            format!("group {group} no longer wants {:?} of topic {topic}", subscribe.expression)
        }
        Command::ResumeLines { group, topic } => {
            format!("message groups of topic {topic} go on for group {group}")
        }
        Command::Redrive(redrive) => describe_redrive(redrive),
        Command::UpdateGroup(update) => format!("group {} fails otherwise", update.group),
        Command::Position(position) => describe_position(position),
        Command::Leave(leave) => describe_leave(leave),
        Command::MembersDiffer { group, topic } => {
            format!("members of group {group} use different filters on topic {topic}")
        }
        Command::Start(start) => {
            let (group, topic) = (start.group, start.topic);
            format!("group {group} begins in topic {topic} at {}", join(&start.offsets))
        }
        Command::Reset(reset) => {
            let places = reset.offsets.iter().map(|(queue, offset)| format!("{queue}:{offset}"));
            let (group, topic) = (reset.group, reset.topic);
            format!(
                "group {group} goes on in topic {topic} at {}",
                join(&places.collect::<Vec<_>>())
            )
        }
        Command::Pause { group, paused: true } => format!("group {group} is paused"),
        Command::Pause { group, paused: false } => format!("group {group} is resumed"),
        Command::StoreOffset(store) => {
            let (group, topic) = (store.group, store.topic);
            let (queue, offset) = (store.queue, store.offset);
            format!("group {group} is at {offset} in topic {topic} queue {queue}")
        }
        other => format!("{other:?}"),
    }
}

fn join(all: &[impl ToString]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn describe_leave(leave: &Leave) -> String {
    let Leave { instance, group, topic, .. } = leave;
    format!("instance {instance} of group {group} leaves topic {topic}")
}

fn describe_position(position: &Position) -> String {
    let (instance, group, topic) = (&position.instance, position.group, position.topic);
    let (moves, lease) = (position.positions.len(), position.lease);
    format!(
        "instance {instance} of group {group} on topic {topic} moves on in {moves} queues, \
         lease {lease}"
    )
}

fn describe_timer(timer: &TimerKey) -> String {
    let place = timer.position.map(|position| format!(" at {position}")).unwrap_or_default();
    format!("message {:032x} of topic {}{place}", timer.id_hash.get(), timer.topic)
}

fn describe_delivery(step: &Delivery) -> String {
    match step {
        Delivery::Checkout(checkout) => {
            let grants: usize = checkout.takes.iter().map(|take| take.grants.len()).sum();
            let (group, topic) = (checkout.group, checkout.topic);
            format!("check out {grants} of topic {topic} to {} of group {group}", checkout.consumer)
        }
        Delivery::Ack(ack) => {
            let handle = ack.handle;
            let (group, topic) = (handle.group, handle.topic);
            let (queue, offset) = (handle.queue, handle.offset);
            format!("group {group} acknowledges topic {topic} queue {queue} offset {offset}")
        }
        Delivery::GiveUp(given) => {
            let (queue, offset) = (given.handle.queue, given.handle.offset);
            format!("group {} gives up queue {queue} offset {offset}", given.handle.group)
        }
        Delivery::Hold(hold) => {
            let (queue, offset) = (hold.handle.queue, hold.handle.offset);
            format!("hold queue {queue} offset {offset} for {}", hold.invisible)
        }
        Delivery::Renew(renew) => {
            format!("renew {} checkouts for {}", renew.checkouts.len(), renew.invisible)
        }
        Delivery::Release(release) => {
            format!("release what {} of group {} holds", release.consumer, release.group)
        }
        Delivery::Return(back) => format!("return {} that did not arrive", back.handles.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_found_from_any_directory_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("node-1/data/group-0/log");
        fs::create_dir_all(&log).unwrap();
        assert!(matches!(find_log(&log), Err(InspectError::NoLog { .. })));
        fs::write(log.join("00000000000000000000.log"), b"").unwrap();
        for above in ["node-1", "node-1/data", "node-1/data/group-0", "node-1/data/group-0/log"] {
            let found = find_log(&dir.path().join(above)).unwrap();
            assert_eq!(found.canonicalize().unwrap(), log.canonicalize().unwrap(), "{above}");
        }
    }

    #[test]
    fn a_running_node_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("data/group-0/log");
        fs::create_dir_all(&log).unwrap();
        refuse_running(&log).unwrap();
        let lock = File::create(dir.path().join("data/lock")).unwrap();
        refuse_running(&log).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(matches!(refuse_running(&log), Err(InspectError::Running { .. })));
    }
}
