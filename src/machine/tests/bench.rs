//! A machine on a simulated disk, fed with a log that the test makes up.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use crate::base::{
    ClientId, GroupId, GroupName, LogIndex, LogPosition, Millis, QueueId, QueueOffset, Term,
    TopicId, TopicName, UtcMillis,
};
use crate::command::{
    Begin, CheckedOut, Checkout, Command, CreateGroup, CreateTopic, Delivery, DeliveryOutcome,
    Grant, Granted, Handle, OrderRule, Publish, PublishItem, Reply, Skip, Take, Unit,
};
use crate::env::sim::Sim;
use crate::env::{Disk, Env, File, Open};
use crate::machine::checkpoint::{CHECKOUTS, DELIVERIES, MOVED};
use crate::machine::{Applied, Effect, Entry, Machine, Options};
use crate::message::{MessageIdHash, MessageKind};

const FRAME_HEADER: u64 = 40;

/// A disk that panics on every read of file content while it is blind.
#[derive(Clone, Debug)]
struct BlindDisk(Arc<dyn Disk>, Arc<AtomicBool>);

#[derive(Debug)]
struct BlindFile(Arc<dyn File>, Arc<AtomicBool>);

impl Disk for BlindDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir_all(path)
    }

    fn open(&self, path: &Path, open: Open) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(BlindFile(self.0.open(path, open)?, self.1.clone())))
    }

    fn read(&self, path: &Path) -> io::Result<Bytes> {
        assert!(!self.1.load(Ordering::Relaxed), "apply reads {}", path.display());
        self.0.read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.0.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        assert!(!self.1.load(Ordering::Relaxed), "apply syncs {}", path.display());
        self.0.sync_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.0.exists(path)
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        self.0.free(path)
    }
}

impl File for BlindFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        assert!(!self.1.load(Ordering::Relaxed), "apply reads {len} bytes at {offset}");
        self.0.read_at(offset, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        assert!(!self.1.load(Ordering::Relaxed), "apply syncs");
        self.0.sync_data()
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.0.allocate(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn lent(&self) -> bool {
        self.0.lent()
    }
}

pub(in crate::machine) struct Bench {
    pub(in crate::machine) sim: Sim,
    blind: Arc<AtomicBool>,
    pub(in crate::machine) machine: Machine,
    pub(in crate::machine) log: Vec<Entry>,
    pub(in crate::machine) stamp: u64,
}

/// Small files, so that tests cross their borders.
pub(in crate::machine) const OPTIONS: Options =
    Options { checkpoint_bytes: 1 << 20, extents_per_file: 2 };

pub(in crate::machine) fn dir() -> PathBuf {
    PathBuf::from("/node/machine")
}

fn open(sim: &Sim, blind: &Arc<AtomicBool>) -> Machine {
    let mut env: Env = sim.env();
    env.disk = Arc::new(BlindDisk(env.disk, blind.clone()));
    env.disk.create_dir_all(Path::new("/node")).unwrap();
    Machine::open(&env, &dir(), OPTIONS).unwrap()
}

impl Bench {
    pub(in crate::machine) fn new() -> Self {
        let sim = Sim::new(7);
        let blind = Arc::new(AtomicBool::new(false));
        let machine = open(&sim, &blind);
        Self { sim, blind, machine, log: Vec::new(), stamp: 1_000_000 }
    }

    /// A topic with so many queues, and a group.
    pub(in crate::machine) fn with_topic(queues: u32) -> Self {
        let mut bench = Self::new();
        bench.apply(names::topic("orders", queues));
        bench.apply(names::group("billing"));
        bench
    }

    pub(in crate::machine) fn next_entry(&self, command: Bytes) -> Entry {
        let index = LogIndex::new(self.log.len() as u64);
        let start = self.log.last().map_or(LogPosition::ZERO, |entry| entry.end);
        let position = start.plus(FRAME_HEADER);
        let end = position.plus(command.len() as u64);
        let stamp = UtcMillis::new(self.stamp);
        Entry { index, term: Term::new(1), stamp, position, end, command }
    }

    pub(in crate::machine) fn apply(&mut self, command: Command) -> Applied {
        let entry = self.next_entry(command.encode());
        self.log.push(entry.clone());
        self.apply_entry(&entry)
    }

    /// Applies an entry blindly, then looks whether the state is sound.
    pub(in crate::machine) fn apply_entry(&mut self, entry: &Entry) -> Applied {
        self.blind.store(true, Ordering::Relaxed);
        let applied = self.machine.apply(entry).unwrap();
        self.blind.store(false, Ordering::Relaxed);
        self.machine.state().check().unwrap();
        applied
    }

    pub(in crate::machine) fn reply(&mut self, command: Command) -> Reply {
        self.apply(command).reply
    }

    pub(in crate::machine) fn effects(&mut self, command: Command) -> Vec<Effect> {
        self.apply(command).effects
    }

    /// Writes a checkpoint of the state as it is.
    pub(in crate::machine) fn checkpoint(&mut self) -> bool {
        self.machine.freeze().unwrap().publish().unwrap()
    }

    /// Starts the program again, with what the newest checkpoint says.
    pub(in crate::machine) fn reopen(&mut self) {
        self.machine = open(&self.sim, &self.blind);
    }

    /// Starts the program again and applies what the checkpoint lacks.
    pub(in crate::machine) fn restart(&mut self) {
        self.reopen();
        self.catch_up();
    }

    pub(in crate::machine) fn catch_up(&mut self) {
        let from = self.machine.state().applied().map_or(0, |(index, _)| index.get() + 1);
        let entries = self.log[usize::try_from(from).unwrap()..].to_vec();
        for entry in &entries {
            self.apply_entry(entry);
        }
    }

    pub(in crate::machine) fn hashes(&self) -> (u64, u64) {
        (self.machine.state().hash(), self.machine.state().units_hash().unwrap())
    }

    /// Bytes that a checkpoint has of what groups were handed out and are done with.
    pub(in crate::machine) fn delivery_bytes(&self) -> usize {
        let image = self.machine.state().image();
        let of_deliveries = |section: u8| [CHECKOUTS, DELIVERIES, MOVED].contains(&section);
        let sections = image.sections.iter().filter(|(section, _)| of_deliveries(*section));
        sections.map(|(_, bytes)| bytes.len()).sum()
    }

    /// Publishes `count` messages to a queue.
    pub(in crate::machine) fn publish(&mut self, queue: u32, count: usize) -> Reply {
        let items = (0..count).map(|_| names::item(queue, 0)).collect();
        let publish = Publish { topic: names::TOPIC, dedup: false, items };
        self.reply(Command::Publish(publish))
    }

    pub(in crate::machine) fn deliver(&mut self, delivery: Delivery) -> DeliveryOutcome {
        match self.reply(Command::Deliveries(vec![delivery])) {
            Reply::Deliveries(mut outcomes) if outcomes.len() == 1 => outcomes.remove(0),
            other => panic!("one outcome for one delivery, not {other:?}"),
        }
    }

    pub(in crate::machine) fn unit(&self, queue: u32, offset: u64) -> Unit {
        let (queue, offset) = (QueueId::new(queue), QueueOffset::new(offset));
        // One that has left with the log's front has none; apply does not look at it either.
        let units = self.machine.state().units(names::TOPIC, queue, offset, 1).unwrap_or_default();
        units.first().copied().unwrap_or(names::NO_UNIT)
    }

    /// A checkout of these offsets of queue 0 for 10 s.
    pub(in crate::machine) fn checkout(&self, consumer: &str, offsets: &[u64]) -> Checkout {
        let grant =
            |offset: &u64| Grant { offset: QueueOffset::new(*offset), unit: self.unit(0, *offset) };
        let grants = offsets.iter().map(grant).collect();
        Checkout {
            group: names::GROUP,
            topic: names::TOPIC,
            consumer: ClientId::new(consumer).unwrap(),
            attempt_id: None,
            invisible: Millis::from_secs(10),
            auto_renew: false,
            subscription_version: 0,
            takes: vec![Take { queue: QueueId::new(0), skips: Vec::new(), grants }],
            epoch: self.machine.state().epoch(names::GROUP, names::TOPIC),
        }
    }

    pub(in crate::machine) fn check_out(&mut self, checkout: Checkout) -> CheckedOut {
        match self.deliver(Delivery::Checkout(checkout)) {
            DeliveryOutcome::CheckedOut(checked_out) => checked_out,
            other => panic!("a checkout is answered by what it got, not {other:?}"),
        }
    }

    /// Takes these offsets of queue 0; answers the handles of what was granted.
    pub(in crate::machine) fn take(&mut self, consumer: &str, offsets: &[u64]) -> Vec<Handle> {
        let checkout = self.checkout(consumer, offsets);
        self.check_out(checkout).granted.iter().map(names::handle).collect()
    }

    pub(in crate::machine) fn tick(&mut self) -> Vec<Effect> {
        self.effects(Command::Tick { limit: 1000 })
    }
}

/// Values that every test uses.
pub(in crate::machine) mod names {
    use super::*;

    /// The first topic and the first group of a machine.
    pub(in crate::machine) const TOPIC: TopicId = TopicId::new(1);
    pub(in crate::machine) const GROUP: GroupId = GroupId::new(1);
    /// What a faulty leader would send along with an offset that does not exist.
    pub(in crate::machine) const NO_UNIT: Unit = Unit {
        position: LogPosition::ZERO,
        size: 0,
        tag_hash: 0,
        group_hash: 0,
        visible: UtcMillis::ZERO,
    };

    pub(in crate::machine) fn topic(name: &str, queues: u32) -> Command {
        let name = TopicName::new(name).unwrap();
        Command::CreateTopic(CreateTopic {
            name,
            queues,
            kinds: vec![MessageKind::Normal],
            keep: None,
        })
    }

    pub(in crate::machine) fn group(name: &str) -> Command {
        let name = GroupName::new(name).unwrap();
        let backoff = vec![Millis::from_secs(1), Millis::from_secs(5)];
        Command::CreateGroup(CreateGroup {
            name,
            attempts_max: 16,
            backoff: backoff.into(),
            rule: OrderRule::default(),
            dead_keep: None,
            begin: Begin::default(),
        })
    }

    pub(in crate::machine) fn item(queue: u32, id: u128) -> PublishItem {
        PublishItem {
            queue: QueueId::new(queue),
            kind: MessageKind::Normal,
            id_hash: MessageIdHash::new(id),
            body_crc: 7,
            tag_hash: 11,
            group_hash: 13,
            record: Bytes::from_static(b"a record"),
            record_at: 0,
        }
    }

    pub(in crate::machine) fn skip(from: u64, to: u64) -> Skip {
        Skip { from: QueueOffset::new(from), to: QueueOffset::new(to) }
    }

    pub(in crate::machine) fn handle(granted: &Granted) -> Handle {
        handle_of(GROUP, granted)
    }

    pub(in crate::machine) fn handle_of(group: GroupId, granted: &Granted) -> Handle {
        let Granted { queue, offset, attempt, checkout, .. } = *granted;
        Handle { group, topic: TOPIC, queue, offset, checkout, attempt }
    }
}
