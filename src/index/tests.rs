//! Stories about the whole index.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::*;
use crate::base::{ClientId, Millis, QueueId, TopicId, TopicName};
use crate::command::{
    Command, HalfItem, Prepare, Publish, PublishItem, Relocation, Schedule, ScheduleItem,
};
use crate::env::sim::{Sim, SimEntropy};
use crate::message::{BodyEncoding, Message, MessageIdHash, MessageKind, encode_record};

const DIR: &str = "/node/group/index";
const SMALL: Options =
    Options { entries_in_memory: 6, log_in_memory: 4 << 10, merged: 3, entries_max: 400 };
const TOPIC: TopicId = TopicId::new(7);

fn record(id: &str, keys: &[String]) -> Bytes {
    let message = Message {
        topic: TopicName::new("t").unwrap(),
        body: Bytes::from_static(b"body"),
        encoding: BodyEncoding::Identity,
        message_id: id.to_owned(),
        kind: MessageKind::Normal,
        tag: None,
        keys: keys.to_vec(),
        properties: vec![],
        message_group: None,
        born: UtcMillis::new(5),
        born_host: "127.0.0.1:1".to_owned(),
        trace_context: None,
        deliver_at: None,
        priority: None,
    };
    encode_record(&message, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1)).unwrap()
}

fn item(queue: u32, id: &str, keys: &[String]) -> PublishItem {
    PublishItem {
        queue: QueueId::new(queue),
        kind: MessageKind::Normal,
        id_hash: MessageIdHash::of(id),
        body_crc: 0,
        tag_hash: 0,
        group_hash: 0,
        record: record(id, keys),
        record_at: 0,
    }
}

/// The log that is indexed: what the commands of its entries leave, and where each begins.
struct Log {
    entries: Vec<(Applied, Command)>,
}

impl Log {
    /// Some entries with messages, some without, all of them by `seed`.
    fn new(count: u64, seed: u64) -> Self {
        let random = SimEntropy::new(seed);
        let mut entries = Vec::new();
        let mut at = LogPosition::ZERO;
        for index in 0..count {
            let command = match random.below(5) {
                0 => Command::Audit,
                kind => Self::messages(kind, index, &random),
            };
            let bytes = command.encode();
            let command = Command::decode(&bytes).unwrap();
            let body = at.plus(40);
            let end = body.plus(bytes.len() as u64);
            let (index, term) = (LogIndex::new(index), Term::new(1 + index / 9));
            let stamp = UtcMillis::new(1000 + index.get());
            entries.push((Applied { index, term, stamp, body, end }, command));
            at = end;
        }
        Self { entries }
    }

    fn messages(kind: u64, index: u64, random: &SimEntropy) -> Command {
        let count = 1 + random.below(3);
        let mut items: Vec<PublishItem> = Vec::new();
        for n in 0..count {
            let keys = [format!("k{}", random.below(40)), format!("only-{index}-{n}")];
            items.push(item(u32::try_from(n).unwrap(), &format!("id-{index}-{n}"), &keys));
        }
        match kind {
            1 => {
                let due = UtcMillis::new(9_000);
                let items = items.into_iter().map(|item| ScheduleItem { due, item }).collect();
                Command::Schedule(Schedule { topic: TOPIC, dedup: true, items })
            }
            2 => {
                let half = |item| HalfItem { item, first_check: Millis::ZERO };
                Command::Prepare(Prepare {
                    topic: TOPIC,
                    producer: ClientId::new("p").unwrap(),
                    interval: Millis::ZERO,
                    checks_max: 1,
                    halves: items.into_iter().map(half).collect(),
                })
            }
            3 => {
                let original = LogPosition::new(index);
                let again =
                    |item: PublishItem| Relocation { original, record: item.record, record_at: 0 };
                Command::Relocate(items.into_iter().map(again).collect())
            }
            _ => Command::Publish(Publish { topic: TOPIC, dedup: true, items }),
        }
    }

    fn start(&self, index: LogIndex) -> LogPosition {
        let number = usize::try_from(index.get()).unwrap();
        number.checked_sub(1).map_or(LogPosition::ZERO, |last| self.entries[last].0.end)
    }

    fn span<R>(&self, first: u64, read: impl FnOnce(&LogSpan<'_>) -> R) -> R {
        let first = LogIndex::new(first);
        let term_of = |index: LogIndex| {
            let number = usize::try_from(index.get()).unwrap();
            self.entries.get(number).map(|(applied, _)| applied.term)
        };
        let end = self.entries.last().map_or(LogPosition::ZERO, |(applied, _)| applied.end);
        read(&LogSpan { first, start: self.start(first), end, term_of: &term_of })
    }

    /// All entries of the index from `first` to before `end`, by asking nothing of the index.
    fn all(&self, first: u64, end: u64) -> Vec<Entry> {
        let range = usize::try_from(first).unwrap()..usize::try_from(end).unwrap();
        let of = |(applied, command): &(Applied, Command)| {
            entry::entries_of(applied, command, &mut |_, _| Some(TOPIC))
        };
        self.entries[range].iter().flat_map(of).collect()
    }
}

/// An index of a log on a simulated disk.
struct Rig {
    sim: Sim,
    log: Log,
    index: Index,
}

fn open(sim: &Sim, log: &Log, first: u64) -> Result<Index, RunError> {
    log.span(first, |span| Index::open(sim.env().disk, Path::new(DIR), SMALL, span))
}

/// Adds what is missing up to before entry `end`, with all that a task does on the way.
fn follow(index: &Index, log: &Log, end: u64) -> Result<(), RunError> {
    while index.reached().next.get() < end {
        let number = usize::try_from(index.reached().next.get()).unwrap();
        let (applied, command) = &log.entries[number];
        index.add(applied, Some(command), |_, _| Some(TOPIC));
        if index.is_full() {
            index.flush()?;
            while index.merge()? {}
        }
    }
    Ok(())
}

impl Rig {
    fn new(count: u64, seed: u64) -> Self {
        let (sim, log) = (Sim::new(seed), Log::new(count, seed));
        let index = open(&sim, &log, 0).unwrap();
        Self { sim, log, index }
    }

    /// What was asked for is what the log has from `first` on, for every hash of it.
    fn assert_all(&self, first: u64, end: u64) {
        let all = self.log.all(first, end);
        for entry in &all {
            let mut same: Vec<_> =
                all.iter().filter(|other| other.hash == entry.hash).copied().collect();
            same.dedup();
            let found = self.index.find(entry.hash).unwrap();
            let start = self.log.start(LogIndex::new(first));
            let inside = |found: &&Entry| found.position >= start;
            let kept: Vec<_> = found.entries.iter().filter(inside).copied().collect();
            assert_eq!(kept, same);
            assert_eq!(found.until, self.index.reached());
            assert!(found.from <= start);
        }
        assert_eq!(self.index.find(id_hash("nobody")).unwrap().entries, []);
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = self.sim.disk.files();
        files.into_iter().map(|(path, _)| path).filter(|path| path.starts_with(DIR)).collect()
    }
}

#[test]
fn every_record_is_found_by_its_id_and_by_its_keys() {
    let rig = Rig::new(200, 3);
    follow(&rig.index, &rig.log, 200).unwrap();
    rig.assert_all(0, 200);
    let stats = rig.index.stats();
    assert!(stats.files > 1 && stats.files < 20, "{stats:?}");
    assert_eq!(stats.files, rig.files().len());
    assert_eq!(stats.entries, rig.log.all(0, 200).len() as u64);
    let of_topic = |topic| rig.index.find(key_hash(TopicId::new(topic), "k1")).unwrap().entries;
    assert!(!of_topic(7).is_empty());
    assert_eq!(of_topic(8), [], "another incarnation has none of it");
}

#[test]
fn an_index_that_was_closed_goes_on() {
    let mut rig = Rig::new(120, 4);
    follow(&rig.index, &rig.log, 100).unwrap();
    let before = rig.index.reached();
    rig.sim.disk.kill();
    rig.index = open(&rig.sim, &rig.log, 0).unwrap();
    assert!(rig.index.reached().next <= before.next);
    assert!(rig.index.reached().next.get() > 80, "{:?}", rig.index.reached());
    follow(&rig.index, &rig.log, 120).unwrap();
    rig.assert_all(0, 120);
}

/// Wherever the power goes, what is found afterwards is what the log has.
#[test]
fn a_power_cut_at_any_point_takes_nothing_and_adds_nothing() {
    let count = 60;
    let whole = Rig::new(count, 5);
    let made = whole.sim.disk.changes();
    follow(&whole.index, &whole.log, count).unwrap();
    let changes = whole.sim.disk.changes() - made;
    assert!(changes > 50, "{changes}");
    for stop in 0..changes {
        let mut rig = Rig::new(count, 5);
        rig.sim.disk.stop_after(stop);
        let followed = follow(&rig.index, &rig.log, count);
        assert!(followed.is_err(), "the power goes before the end");
        rig.sim.disk.power_cut(stop);
        rig.index = open(&rig.sim, &rig.log, 0).unwrap();
        follow(&rig.index, &rig.log, count).unwrap();
        rig.assert_all(0, count);
        assert!(!rig.index.is_doubted());
    }
}

#[test]
fn a_full_disk_costs_no_answer() {
    let rig = Rig::new(60, 6);
    rig.sim.disk.set_capacity(Some(4_000));
    assert!(follow(&rig.index, &rig.log, 60).is_err());
    rig.sim.disk.set_capacity(None);
    let unfinished = |path: &PathBuf| path.extension().is_some_and(|end| end == "tmp");
    assert!(!rig.files().iter().any(unfinished), "{:?}", rig.files());
    rig.index.flush().unwrap();
    follow(&rig.index, &rig.log, 60).unwrap();
    rig.assert_all(0, 60);
}

#[test]
fn files_leave_with_the_front_of_the_log() {
    let mut rig = Rig::new(150, 7);
    follow(&rig.index, &rig.log, 150).unwrap();
    let before = rig.index.stats();
    let front = 100;
    rig.index.trim(rig.log.start(LogIndex::new(front))).unwrap();
    assert!(rig.index.stats().files < before.files);
    rig.assert_all(front, 150);
    rig.sim.disk.kill();
    rig.index = open(&rig.sim, &rig.log, front).unwrap();
    follow(&rig.index, &rig.log, 150).unwrap();
    rig.assert_all(front, 150);
    // All of it has left: a snapshot was installed.
    rig.index.restart(LogIndex::new(140), rig.log.start(LogIndex::new(140))).unwrap();
    assert_eq!(rig.files(), Vec::<PathBuf>::new());
    follow(&rig.index, &rig.log, 150).unwrap();
    rig.assert_all(140, 150);
}

/// A log that lost its end and got another one, as a weaker durability allows.
#[test]
fn what_the_log_does_not_say_any_more_is_dropped() {
    let rig = Rig::new(100, 8);
    follow(&rig.index, &rig.log, 100).unwrap();
    let mut shorter = Log::new(100, 8);
    shorter.entries.truncate(50);
    rig.sim.disk.kill();
    let index = open(&rig.sim, &shorter, 0).unwrap();
    assert!(index.reached().next.get() <= 50);
    let mut other = Log::new(100, 8);
    for (applied, _) in &mut other.entries[50..] {
        applied.term = Term::new(77);
    }
    rig.sim.disk.kill();
    let index = open(&rig.sim, &other, 0).unwrap();
    assert!(index.reached().next.get() <= 50);
    follow(&index, &other, 100).unwrap();
    Rig { index, log: other, ..rig }.assert_all(0, 100);
}

/// A flipped bit is found, by the start or by the question that meets it, and then the index
/// begins anew; no answer is wrong.
#[test]
fn damage_is_found_and_what_was_lost_is_written_anew() {
    let random = SimEntropy::new(9);
    for round in 0..150 {
        let mut rig = Rig::new(60, 9);
        follow(&rig.index, &rig.log, 60).unwrap();
        let files = rig.sim.disk.files();
        let files: Vec<_> = files.iter().filter(|(path, _)| path.starts_with(DIR)).collect();
        let pick = usize::try_from(random.below(files.len() as u64)).unwrap();
        let (path, len) = files[pick];
        let at = usize::try_from(random.below(*len as u64)).unwrap();
        rig.sim.disk.kill();
        rig.sim.disk.flip_bit(path, at, u8::try_from(round % 8).unwrap());
        rig.index = open(&rig.sim, &rig.log, 0).unwrap();
        let met = |index: &Index| {
            let all = rig.log.all(0, 60);
            all.iter().any(|entry| index.find(entry.hash).is_err())
        };
        if follow(&rig.index, &rig.log, 60).is_err() || met(&rig.index) {
            assert!(rig.index.is_doubted());
            rig.index.restart(LogIndex::ZERO, LogPosition::ZERO).unwrap();
            follow(&rig.index, &rig.log, 60).unwrap();
        }
        rig.assert_all(0, 60);
        assert!(!rig.index.is_doubted());
    }
}

#[test]
fn a_file_has_these_bytes() {
    let sim = Sim::new(1);
    let log = Log { entries: vec![] };
    let index = open(&sim, &log, 0).unwrap();
    let bytes = Command::Publish(Publish {
        topic: TOPIC,
        dedup: false,
        items: vec![item(3, "id", &["key".to_owned()])],
    })
    .encode();
    let command = Command::decode(&bytes).unwrap();
    let applied = Applied {
        index: LogIndex::ZERO,
        term: Term::new(2),
        stamp: UtcMillis::new(0x0102_0304),
        body: LogPosition::new(40),
        end: LogPosition::new(400),
    };
    index.add(&applied, Some(&command), |_, _| None);
    index.flush().unwrap();
    let path = Path::new(DIR).join("00000000000000000000-00000000000000000400.index");
    let written = sim.env().disk.read(&path).unwrap();
    let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN);
}

const GOLDEN: &str = concat!(
    // Magic, version, bits, level.
    "524d514901000000",
    // From, until, next, term, stamp.
    "00000000000000000000000000000190000000000000000100000000000000020000000001020304",
    // Entries.
    "0000000000000002",
    // Checksums of the directory and of the header.
    "0c1987b70a5f4f43",
    // The only bucket.
    "0000000054e0dcaf",
    // The id's entry.
    "ce6bcf145db0d7380000000000000060000000000102030400000000000000000000008c0000000301",
    // The key's entry.
    "e2beac453cd4390d0000000000000060000000000102030400000000000000000000008c0000000301",
);

#[test]
fn hashes_keep_their_values() {
    assert_eq!(id_hash(""), 16_009_954_647_084_518_184);
    assert!(GOLDEN.contains(&format!("{:016x}", id_hash("id"))));
    assert!(GOLDEN.contains(&format!("{:016x}", key_hash(TOPIC, "key"))));
    assert_ne!(key_hash(TopicId::default(), "k"), id_hash("k"));
}
