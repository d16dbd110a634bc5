//! A state as bytes: what a restart begins with, and what a peer is given.
//!
//! ```text
//!   0 magic u32 "RMQC" | 4 version u8 | 5 reserved, 3 bytes of 0
//!   8 sections: number u8, length u64, bytes; the memory of sent messages comes last
//!     then number 0, state hash u64, crc32c u32 over everything before it
//! ```
//! All big-endian. Section numbers are persisted and never reused. The local section is only in
//! files, never in what a peer is given.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::begins::Begins;
use super::conflicts::Conflicts;
use super::consume_queue::ConsumeQueues;
use super::dead_letters::DeadLetters;
use super::dedup::Dedup;
use super::deliveries::Deliveries;
use super::error::{CheckpointError, SectionError};
use super::extents::{ExtentFile, Extents, Layout};
use super::groups::Groups;
use super::hash::Image;
use super::head::Head;
use super::instances::Instances;
use super::late::LateUnits;
use super::retention::Marks;
use super::state::State;
use super::store::Store;
use super::stored_offsets::StoredOffsets;
use super::subscriptions::Subscriptions;
use super::timers::Timers;
use super::topics::Topics;
use super::transactions::{DecidedMemory, Halves};
use crate::base::{LogIndex, LogPosition, Mutant, Term, UtcMillis};
use crate::command::{Reader, Writer};

const MAGIC: u32 = u32::from_be_bytes(*b"RMQC");
/// 2 came with retention, 3 with the kinds of messages, 4 with what consumers can ask for: a checkpoint
/// of before is passed by, and the log is applied again.
const VERSION: u8 = 4;
const HEADER_BYTES: usize = 8;
const TRAILER_BYTES: usize = 1 + 8 + 4;

// Section numbers. Persisted: never change one, never use one again.
const END: u8 = 0;
const HEAD: u8 = 1;
const TOPICS: u8 = 2;
const GROUPS: u8 = 3;
const QUEUES: u8 = 4;
const SUBSCRIPTIONS: u8 = 5;
pub(super) const CHECKOUTS: u8 = 6;
pub(super) const DELIVERIES: u8 = 7;
const DEDUP: u8 = 8;
const MARKS: u8 = 9;
pub(super) const MOVED: u8 = 10;
const TIMERS: u8 = 14;
const ENDED: u8 = 15;
const HALVES: u8 = 17;
const DECIDED: u8 = 18;
const LATE: u8 = 19;
const DEAD_LETTERS: u8 = 30;
const INSTANCES: u8 = 39;
const BEGINS: u8 = 36;
const RESETS: u8 = 37;
const STORED_OFFSETS: u8 = 38;
const CONFLICTS: u8 = 35;
const LOCAL: u8 = 100;

/// The state after one entry, copied so that applying can go on. Cheap to make; turning it into
/// bytes is work for another thread.
#[derive(Debug)]
pub struct Frozen {
    pub(super) index: LogIndex,
    pub(super) term: Term,
    pub(super) stamp: UtcMillis,
    pub(super) log_end: LogPosition,
    pub(super) image: Image,
}

impl Frozen {
    /// The last entry in it.
    pub fn index(&self) -> LogIndex {
        self.index
    }

    pub fn term(&self) -> Term {
        self.term
    }

    /// The stamp of the last entry in it.
    pub fn stamp(&self) -> UtcMillis {
        self.stamp
    }

    /// Where the log continues behind it.
    pub fn log_end(&self) -> LogPosition {
        self.log_end
    }

    /// Equal on every replica at the same entry.
    pub fn state_hash(&self) -> u64 {
        self.image.hash()
    }

    /// What [`Self::snapshot`] is, one part behind the other. Most of it is shared with the state.
    pub fn snapshot_parts(&self) -> Vec<Bytes> {
        encode(&self.image, None)
    }

    /// What a peer is given: the state without anything local. See [`super::Machine::install`].
    pub fn snapshot(&self) -> Bytes {
        let parts = self.snapshot_parts();
        let mut out = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
        for part in parts {
            out.put_slice(&part);
        }
        out.freeze()
    }
}

/// A state that this replica can begin with again, together with what only its own disk has.
#[derive(Debug)]
pub struct Checkpoint {
    pub(super) frozen: Frozen,
    pub(super) local: Bytes,
    /// Which floor this state was derived on.
    pub(super) floor: Option<LogIndex>,
    /// Files of queue units that have to be synced before this may count on them.
    pub(super) dirty: Vec<Arc<ExtentFile>>,
    /// Freezes are counted.
    pub(super) round: u64,
    pub(super) rounds: Arc<super::extents::Rounds>,
    pub(super) store: Arc<Store>,
}

impl std::ops::Deref for Checkpoint {
    type Target = Frozen;

    fn deref(&self) -> &Frozen {
        &self.frozen
    }
}

impl Checkpoint {
    /// Writes it to disk: first the queue units it counts on, then itself, then older ones go but
    /// one. False when there was nothing to do: a newer one is there, or a peer's state has taken
    /// this one's place. May only be called once the local log has flushed [`Frozen::index`]; a
    /// checkpoint ahead of the durable log would make openraft drop the log after a crash. After
    /// an error the node ends.
    pub fn publish(&self) -> io::Result<bool> {
        let published = self.store.publish(self)?;
        if published {
            self.rounds.published.fetch_max(self.round, Ordering::AcqRel);
        }
        Ok(published)
    }

    pub(super) fn sync_units(&self) -> io::Result<()> {
        self.dirty.iter().try_for_each(|file| file.sync())
    }

    /// What the file holds, one part behind the other. Most of it is shared with the state, so that
    /// a checkpoint takes little memory however large it is.
    pub(super) fn file_parts(&self) -> Vec<Bytes> {
        encode(&self.image, Some(&self.local))
    }
}

/// What a checkpoint file says beside the state.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) floor: Option<LogIndex>,
    pub(super) layout: Layout,
    /// The queues' extents follow.
    rest: Reader,
}

impl State {
    /// Copies every replicated table.
    pub(super) fn image(&self) -> Image {
        let section = |number: u8, write: &dyn Fn(&mut Writer)| {
            let mut writer = Writer::new();
            write(&mut writer);
            (number, writer.finish())
        };
        let sections = vec![
            section(HEAD, &|w| self.head.write(w)),
            section(TOPICS, &|w| self.topics.write(w)),
            section(GROUPS, &|w| self.groups.write(w)),
            section(QUEUES, &|w| self.queues.write(w)),
            section(SUBSCRIPTIONS, &|w| self.subscriptions.write(w)),
            section(CHECKOUTS, &|w| self.deliveries.write_checkouts(w)),
            section(DELIVERIES, &|w| self.deliveries.write_pairs(w)),
            section(MARKS, &|w| self.marks.write(w)),
            section(MOVED, &|w| self.deliveries.write_moved(w)),
            section(ENDED, &|w| self.timers.write_ended(w)),
            section(HALVES, &|w| self.halves.write(w)),
            section(DECIDED, &|w| self.decided.write(w)),
            section(LATE, &|w| self.late.write(w)),
            section(DEAD_LETTERS, &|w| self.dead.write(w)),
            section(INSTANCES, &|w| self.instances.write(w)),
            section(BEGINS, &|w| self.begins.write(w)),
            section(RESETS, &|w| self.deliveries.write_resets(w)),
            section(STORED_OFFSETS, &|w| self.stored.write(w)),
            section(CONFLICTS, &|w| self.conflicts.write(w)),
        ];
        Image { sections, timers: self.timers.image(), dedup: self.dedup.image() }
    }

    /// What a checkpoint holds: everything, but for mutants.
    pub(super) fn kept_image(&self) -> Image {
        let mut image = self.image();
        if Mutant::DedupLeftOut.is_on() {
            image.dedup = Dedup::new(0).image();
        }
        if Mutant::TimersLeftOut.is_on() {
            image.timers = Timers::new(0).image();
        }
        if Mutant::CheckpointPartial.is_on() {
            let mut writer = Writer::new();
            Subscriptions::default().write(&mut writer);
            let empty = writer.finish();
            for (_, bytes) in image.sections.iter_mut().filter(|(at, _)| *at == SUBSCRIPTIONS) {
                *bytes = empty.clone();
            }
        }
        image
    }

    /// What only this replica's own checkpoint file says.
    pub(super) fn local_image(&self, floor: Option<LogIndex>) -> Bytes {
        let mut writer = Writer::new();
        let layout = self.queues.extents().layout();
        writer.option(floor.as_ref(), |w, floor| w.put(floor));
        writer.u64(layout.generation);
        writer.u32(layout.per_file);
        writer.u32(layout.high);
        self.queues.write_local(&mut writer);
        writer.finish()
    }
}

fn encode(image: &Image, local: Option<&Bytes>) -> Vec<Bytes> {
    let mut start = BytesMut::with_capacity(HEADER_BYTES);
    start.put_u32(MAGIC);
    start.put_u8(VERSION);
    start.put_bytes(0, 3);
    let mut parts = vec![start.freeze()];
    let mut section = |number: u8, bytes: Vec<Bytes>| {
        let len: usize = bytes.iter().map(Bytes::len).sum();
        let mut header = BytesMut::with_capacity(1 + 8);
        header.put_u8(number);
        header.put_u64(len as u64);
        parts.push(header.freeze());
        parts.extend(bytes);
    };
    for (number, bytes) in &image.sections {
        section(*number, vec![bytes.clone()]);
    }
    section(TIMERS, image.timers.parts());
    section(DEDUP, image.dedup.parts());
    if let Some(local) = local {
        section(LOCAL, vec![local.clone()]);
    }
    let mut end = BytesMut::with_capacity(TRAILER_BYTES);
    end.put_u8(END);
    end.put_u64(image.hash());
    let before = parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
    end.put_u32(crc32c::crc32c_append(before, &end));
    parts.push(end.freeze());
    parts
}

/// The sections of a checkpoint whose checksum is right.
#[derive(Debug)]
pub(super) struct Sections {
    by_number: Vec<(u8, Bytes)>,
    state_hash: u64,
}

impl Sections {
    pub(super) fn parse(bytes: &Bytes) -> Result<Self, CheckpointError> {
        let len = bytes.len();
        if len < HEADER_BYTES + TRAILER_BYTES {
            return Err(CheckpointError::Short { len });
        }
        let mut rest = bytes.clone();
        let found = rest.get_u32();
        if found != MAGIC {
            return Err(CheckpointError::Magic { found });
        }
        let found = rest.get_u8();
        if found != VERSION {
            return Err(CheckpointError::Version { found, known: VERSION });
        }
        let computed = crc32c::crc32c(&bytes[..len - 4]);
        let found = bytes.slice(len - 4..).get_u32();
        if found != computed {
            return Err(CheckpointError::Checksum { found, computed });
        }
        rest.advance(3);
        let mut by_number = Vec::new();
        loop {
            match rest.try_get_u8() {
                Ok(END) => break,
                Ok(number) => by_number.push((number, section_bytes(&mut rest)?)),
                Err(_) => return Err(CheckpointError::Short { len }),
            }
        }
        if rest.len() != 8 + 4 {
            return Err(CheckpointError::Short { len });
        }
        Ok(Self { by_number, state_hash: rest.get_u64() })
    }

    fn reader(&self, section: u8) -> Result<Reader, CheckpointError> {
        let found = self.by_number.iter().find(|(number, _)| *number == section);
        let (_, bytes) = found.ok_or(CheckpointError::Missing { section })?;
        Ok(Reader::new(bytes.clone()))
    }

    /// One table, which must use up its section.
    fn table<T>(
        &self,
        section: u8,
        read: impl FnOnce(&mut Reader) -> Result<T, SectionError>,
    ) -> Result<T, CheckpointError> {
        let mut reader = self.reader(section)?;
        let table = read(&mut reader).map_err(|error| error.of_section(section))?;
        reader.end().map_err(|source| CheckpointError::Field { section, source })?;
        Ok(table)
    }

    pub(super) fn head(&self) -> Result<Head, CheckpointError> {
        self.table(HEAD, |r| Ok(Head::read(r)?))
    }

    fn timers(&self, seed: u64) -> Result<Timers, CheckpointError> {
        let stamp = self.head()?.stamp;
        let mut ended = self.reader(ENDED)?;
        let timers = self.table(TIMERS, |rows| Timers::read(rows, &mut ended, stamp, seed))?;
        ended.end().map_err(|source| CheckpointError::Field { section: ENDED, source })?;
        Ok(timers)
    }

    pub(super) fn local(&self) -> Result<Local, CheckpointError> {
        let mut rest = self.reader(LOCAL)?;
        let mut read = || {
            let floor = rest.option(Reader::get)?;
            let (generation, per_file, high) = (rest.u64()?, rest.u32()?, rest.u32()?);
            Ok((floor, Layout { generation, per_file, high }))
        };
        let (floor, layout) =
            read().map_err(|source| CheckpointError::Field { section: LOCAL, source })?;
        Ok(Local { floor, layout, rest })
    }

    /// Builds the state. Without `local` it holds no units: they come with the entries behind it.
    pub(super) fn state(
        &self,
        extents: Extents,
        local: Option<Local>,
        seed: u64,
    ) -> Result<State, CheckpointError> {
        let known = [
            HEAD..=MOVED,
            TIMERS..=ENDED,
            HALVES..=LATE,
            DEAD_LETTERS..=DEAD_LETTERS,
            CONFLICTS..=CONFLICTS,
            BEGINS..=STORED_OFFSETS,
            INSTANCES..=INSTANCES,
            LOCAL..=LOCAL,
        ];
        let odd = |number: &u8| !known.iter().any(|known| known.contains(number));
        if let Some(section) = self.by_number.iter().map(|(number, _)| *number).find(odd) {
            return Err(CheckpointError::Section { section });
        }
        let mut deliveries = self.table(CHECKOUTS, Deliveries::read_checkouts)?;
        self.table(DELIVERIES, |r| deliveries.read_pairs(r))?;
        self.table(RESETS, |r| deliveries.read_resets(r))?;
        let halves = self.table(HALVES, |r| Halves::read(r, deliveries.references_mut()))?;
        let late = self.table(LATE, |r| LateUnits::read(r, deliveries.references_mut()))?;
        self.table(MOVED, |r| deliveries.read_moved(r))?;
        let (topics, groups) =
            (self.table(TOPICS, Topics::read)?, self.table(GROUPS, Groups::read)?);
        let rule = |group, topic| Some(groups.get(group).ok()?.rule_on(topics.get(topic).ok()?));
        deliveries.restore_lines(rule).map_err(|error| error.of_section(DELIVERIES))?;
        let mut state = State {
            head: self.head()?,
            topics,
            groups,
            queues: self.table(QUEUES, |r| ConsumeQueues::read_section(r, extents))?,
            subscriptions: self.table(SUBSCRIPTIONS, Subscriptions::read)?,
            deliveries,
            dedup: self.table(DEDUP, |r| Dedup::read(r, seed))?,
            marks: self.table(MARKS, Marks::read)?,
            timers: self.timers(seed)?,
            halves,
            decided: self.table(DECIDED, DecidedMemory::read)?,
            late,
            dead: self.table(DEAD_LETTERS, DeadLetters::read)?,
            instances: self.table(INSTANCES, Instances::read)?,
            begins: self.table(BEGINS, Begins::read)?,
            stored: self.table(STORED_OFFSETS, StoredOffsets::read)?,
            conflicts: self.table(CONFLICTS, Conflicts::read)?,
            audit: None,
        };
        state.check().map_err(|error| error.of_section(END))?;
        if let Some(mut local) = local {
            let read = state.queues.read_local(&mut local.rest);
            read.map_err(|error| error.of_section(LOCAL))?;
            let end = local.rest.end();
            end.map_err(|source| CheckpointError::Field { section: LOCAL, source })?;
        }
        let computed = state.hash();
        if computed != self.state_hash {
            return Err(CheckpointError::StateHash { found: self.state_hash, computed });
        }
        Ok(state)
    }
}

fn section_bytes(rest: &mut Bytes) -> Result<Bytes, CheckpointError> {
    let short = CheckpointError::Short { len: rest.len() };
    let Ok(len) = rest.try_get_u64() else { return Err(short) };
    match usize::try_from(len) {
        Ok(len) if len <= rest.len() => Ok(rest.split_to(len)),
        _ => Err(short),
    }
}

impl State {
    /// Whether the tables agree with each other. Cheap enough for every load and every test step.
    pub(super) fn check(&self) -> Result<(), SectionError> {
        let topics = self.topics.iter_by_id().map(|topic| (topic.id, topic.queues));
        super::codec::require(self.queues.belong_to(topics), "topics and queues differ")?;
        super::codec::require(self.queues.are_ordered(), "a queue starts behind its end")?;
        let front = self.marks.floor().map(|floor| floor.end).unwrap_or_default();
        let bounds = |topic, queue| self.queues.bounds(topic, queue);
        self.halves.check(|topic, queue| bounds(topic, queue).is_some(), &self.decided)?;
        self.late.check(bounds, self.marks.newest_end())?;
        self.begins.check(|group| self.groups.get(group).is_ok())?;
        self.stored.check(|topic, queue| self.queues.end(topic, queue))?;
        self.deliveries.check(bounds, front, self.halves.len() + self.late.len())?;
        self.dead.check(bounds, |topic| self.owner_of(topic), &self.deliveries)?;
        self.instances.check(bounds, |group| self.groups.get(group).is_ok())?;
        self.timers.check(front)
    }
}
