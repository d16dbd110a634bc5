//! The bytes of a command: a version byte, a kind byte, then the fields in the order of the
//! struct, big-endian, lengths and counts as u32.
//!
//! Every number here is persisted: a kind is given once and never reused, a field is never
//! reinterpreted. New fields come as a new kind or a new version.

mod broadcast;
mod cursor;
#[cfg(test)]
mod cost;
mod delay;
mod delivery;
mod fields;
mod reply;
mod retry;
#[cfg(test)]
mod tests;
mod transaction;

use bytes::Bytes;

use super::{
    Backoff, Begin, Checked, Command, CreateGroup, CreateTopic, Delivery, Exhausted, Found, Order,
    OrderRule, Publish, PublishItem, Relocation, Retention, ScheduleItem, Subscribe, Trim,
};
use crate::base::{
    CheckoutId, ClientId, ClusterId, GroupId, GroupName, LogIndex, LogPosition, Millis, NameError,
    QueueId, QueueOffset, Term, TopicId, TopicName, UtcMillis,
};
use crate::message::{MessageIdHash, MessageKind};

pub use self::fields::{Reader, Writer};
pub(super) use self::reply::{decode as decode_reply, encode as encode_reply};

/// The newest version of a command, its first byte, that this program reads and writes. Version 2
/// came with retention, 3 with the kinds of messages, 4 with what consumers can ask for; what was there
/// before is still written as version 1, so that a replica of an older program stops only at what it
/// cannot know.
pub const COMMAND_VERSION: u8 = 4;
const FIRST_VERSION: u8 = 1;

/// Bytes of the version and the kind, before the first field.
const HEAD: usize = 2;

// The second byte of a command. Persisted: never change one, never use one again.
const FOUND: u8 = 1;
const PUBLISH: u8 = 2;
const DELIVERIES: u8 = 3;
const CREATE_TOPIC: u8 = 4;
const DELETE_TOPIC: u8 = 5;
const CREATE_GROUP: u8 = 6;
const DELETE_GROUP: u8 = 7;
const SUBSCRIBE: u8 = 8;
const UNSUBSCRIBE: u8 = 9;
const TICK: u8 = 10;
const AUDIT: u8 = 11;
const RETAIN: u8 = 12;
const PURGE_INTENT: u8 = 13;
const RELOCATE: u8 = 14;
const PURGE_TO: u8 = 15;
const TRIM: u8 = 16;
/// A topic with a retention of its own; without one it is still [`CREATE_TOPIC`].
const CREATE_KEPT_TOPIC: u8 = 17;
/// A group with an order rule of its own; without one it is still [`CREATE_GROUP`].
const CREATE_RULED_GROUP: u8 = 20;
const GROW_TOPIC: u8 = 21;
const RESUME_LINES: u8 = 22;
const SCHEDULE: u8 = 25;
const RECALL: u8 = 26;
const RESCHEDULE: u8 = 27;
const PREPARE: u8 = 35;
const END: u8 = 36;
const CHECK: u8 = 37;
const RESUME: u8 = 38;
const REDRIVE: u8 = 50;
/// A group with a curve, or with a retention of its own for dead letters; without it is still one of
/// the kinds above. A kind that says even more begins with what this one has.
const CREATE_RETRIED_GROUP: u8 = 51;
const UPDATE_GROUP: u8 = 52;
const POSITION: u8 = 80;
const LEAVE: u8 = 81;
/// A group that begins elsewhere than at the first message, or paused; then the kind and the fields
/// that it would have without that.
const CREATE_PLACED_GROUP: u8 = 70;
const START: u8 = 71;
const RESET: u8 = 72;
const PAUSE: u8 = 73;
const STORE_OFFSET: u8 = 74;
const MEMBERS_DIFFER: u8 = 60;

/// Why bytes are not what they should be. Positions count from the first byte that the reader got.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("{needed} bytes are needed at byte {at}, but only {left} are left")]
    Truncated { at: usize, needed: usize, left: usize },
    #[error("{left} bytes are left over behind the last field, which ends at byte {at}")]
    Trailing { at: usize, left: usize },
    #[error("{what} has version {found}; this program knows {known}: run a newer one")]
    Version { what: &'static str, found: u8, known: u8 },
    #[error("{what} cannot be {found}: damaged, or written by a newer program")]
    Kind { what: &'static str, found: u8 },
    #[error("byte {at} says yes or no with 1 or 0, but is {found}")]
    Bool { at: usize, found: u8 },
    #[error("the text at byte {at} is not UTF-8 after {valid} bytes")]
    Utf8 { at: usize, valid: usize },
    #[error("a list at byte {at} claims {count} items, but only {left} bytes are left")]
    Count { at: usize, count: u32, left: usize },
    #[error("the name before byte {at} is not one: {source}")]
    Name { at: usize, source: NameError },
}

/// A value with one form in bytes. What `write` wrote, `read` reads; nothing else is accepted.
pub trait Coded: Sized {
    fn write(&self, writer: &mut Writer);
    fn read(reader: &mut Reader) -> Result<Self, CommandError>;
}

pub(super) fn encode(command: &Command) -> Bytes {
    let mut writer = Writer::with_capacity(size_hint(command));
    writer.u8(version(command));
    match command {
        Command::Found(found) => writer.kind(FOUND, found),
        Command::Publish(publish) => writer.kind(PUBLISH, publish),
        Command::Deliveries(deliveries) => {
            writer.u8(DELIVERIES);
            writer.list(deliveries, |w, delivery| delivery.write(w));
        }
        Command::CreateTopic(create) => match create.keep {
            None => writer.kind(CREATE_TOPIC, create),
            Some(keep) => {
                writer.kind(CREATE_KEPT_TOPIC, create);
                keep.write(&mut writer);
            }
        },
        Command::DeleteTopic { topic } => writer.kind(DELETE_TOPIC, topic),
        Command::CreateGroup(create) => {
            if create.begin != Begin::default() {
                writer.kind(CREATE_PLACED_GROUP, &create.begin);
            }
            write_group(&mut writer, create);
        }
        Command::DeleteGroup { group } => writer.kind(DELETE_GROUP, group),
        Command::Subscribe(subscribe) => writer.kind(SUBSCRIBE, subscribe),
        Command::Unsubscribe(subscribe) => writer.kind(UNSUBSCRIBE, subscribe),
        Command::Tick { limit } => {
            writer.u8(TICK);
            writer.u32(*limit);
        }
        Command::Audit => writer.u8(AUDIT),
        Command::Retain(retention) => writer.kind(RETAIN, retention),
        Command::PurgeIntent { mark } => writer.kind(PURGE_INTENT, mark),
        Command::Relocate(relocations) => {
            writer.u8(RELOCATE);
            writer.list(relocations, |w, relocation| relocation.write(w));
        }
        Command::PurgeTo { mark } => writer.kind(PURGE_TO, mark),
        Command::Trim(trim) => writer.kind(TRIM, trim),
        Command::GrowTopic { topic, queues } => {
            writer.kind(GROW_TOPIC, topic);
            writer.u32(*queues);
        }
        Command::Schedule(schedule) => writer.kind(SCHEDULE, schedule),
        Command::Recall(timer) => writer.kind(RECALL, timer),
        Command::Reschedule { timer, due } => {
            writer.kind(RESCHEDULE, timer);
            due.write(&mut writer);
        }
        Command::Prepare(prepare) => writer.kind(PREPARE, prepare),
        Command::End(end) => writer.kind(END, end),
        Command::Check(checks) => {
            writer.u8(CHECK);
            writer.list(checks, |w, checked| checked.write(w));
        }
        Command::Resume(transaction) => writer.kind(RESUME, transaction),
        Command::ResumeLines { .. }
        | Command::Redrive(_)
        | Command::UpdateGroup(_)
        | Command::Position(_)
        | Command::Leave(_)
        | Command::Start(_)
        | Command::Reset(_)
        | Command::Pause { .. }
        | Command::StoreOffset(_)
        | Command::MembersDiffer { .. } => write_asked(&mut writer, command),
    }
    writer.finish()
}

/// What consumers and their operators ask for.
fn write_asked(writer: &mut Writer, command: &Command) {
    match command {
        Command::ResumeLines { group, topic } => {
            writer.kind(RESUME_LINES, group);
            topic.write(writer);
        }
        Command::Redrive(redrive) => writer.kind(REDRIVE, redrive),
        Command::UpdateGroup(update) => writer.kind(UPDATE_GROUP, update),
        Command::Position(position) => writer.kind(POSITION, position),
        Command::Leave(leave) => writer.kind(LEAVE, leave),
        Command::Start(start) => writer.kind(START, start),
        Command::Reset(reset) => writer.kind(RESET, reset),
        Command::Pause { group, paused } => {
            writer.kind(PAUSE, group);
            writer.bool(*paused);
        }
        Command::StoreOffset(store) => writer.kind(STORE_OFFSET, store),
        Command::MembersDiffer { group, topic } => {
            writer.kind(MEMBERS_DIFFER, group);
            topic.write(writer);
        }
        other => unreachable!("{other:?} is written with the others"),
    }
}

/// The kind and the fields of a group, but for where it begins.
fn write_group(writer: &mut Writer, create: &CreateGroup) {
    if !retry::is_plain(create) {
        writer.u8(CREATE_RETRIED_GROUP);
        retry::write_group(writer, create);
    } else if create.rule == OrderRule::default() {
        writer.kind(CREATE_GROUP, create);
    } else {
        writer.kind(CREATE_RULED_GROUP, create);
        create.rule.write(writer);
    }
}

/// What [`write_group`] wrote, behind its kind.
fn read_group(kind: u8, reader: &mut Reader) -> Result<CreateGroup, CommandError> {
    match kind {
        CREATE_GROUP => reader.get(),
        CREATE_RULED_GROUP => {
            let create: CreateGroup = reader.get()?;
            Ok(CreateGroup { rule: reader.get()?, ..create })
        }
        CREATE_RETRIED_GROUP => retry::read_group(reader),
        found => Err(CommandError::Kind { what: "the kind of a new group", found }),
    }
}

/// The version from which a program reads this command.
fn version(command: &Command) -> u8 {
    match command {
        Command::Deliveries(deliveries) if deliveries.iter().any(delivery::has_epoch) => 4,
        Command::CreateGroup(create) if create.begin != Begin::default() => 4,
        // An older program would take it for a damaged one, which stops it as well.
        Command::Deliveries(deliveries)
            if deliveries.iter().any(|one| matches!(one, Delivery::GiveUp(_))) =>
        {
            3
        }
        Command::CreateGroup(create) if !retry::is_plain(create) => 4,
        Command::CreateGroup(create) if create.rule != OrderRule::default() => 3,
        Command::GrowTopic { .. } | Command::ResumeLines { .. } => 3,
        Command::Found(_)
        | Command::Publish(_)
        | Command::Deliveries(_)
        | Command::CreateTopic(CreateTopic { keep: None, .. })
        | Command::DeleteTopic { .. }
        | Command::CreateGroup(_)
        | Command::DeleteGroup { .. }
        | Command::Subscribe(_)
        | Command::Unsubscribe(_)
        | Command::Tick { .. }
        | Command::Audit => FIRST_VERSION,
        Command::CreateTopic(CreateTopic { keep: Some(_), .. })
        | Command::Retain(_)
        | Command::PurgeIntent { .. }
        | Command::Relocate(_)
        | Command::PurgeTo { .. }
        | Command::Trim(_) => 2,
        Command::Schedule(_) | Command::Recall(_) | Command::Reschedule { .. } => 3,
        Command::Prepare(_) | Command::End(_) | Command::Check(_) | Command::Resume(_) => 3,
        Command::Redrive(_) | Command::UpdateGroup(_) => 4,
        Command::Position(_) | Command::Leave(_) => 4,
        Command::Start(_) | Command::Reset(_) => 4,
        Command::Pause { .. } | Command::StoreOffset(_) => 4,
        Command::MembersDiffer { .. } => 4,
    }
}

pub(super) fn decode(bytes: &Bytes) -> Result<Command, CommandError> {
    let mut reader = Reader::new(bytes.clone());
    let found = reader.u8()?;
    if !(FIRST_VERSION..=COMMAND_VERSION).contains(&found) {
        return Err(CommandError::Version { what: "a command", found, known: COMMAND_VERSION });
    }
    let command = match reader.u8()? {
        FOUND => Command::Found(reader.get()?),
        PUBLISH => Command::Publish(reader.get()?),
        DELIVERIES => Command::Deliveries(reader.list(Delivery::read)?),
        CREATE_TOPIC => Command::CreateTopic(reader.get()?),
        DELETE_TOPIC => Command::DeleteTopic { topic: reader.get()? },
        kind @ (CREATE_GROUP | CREATE_RULED_GROUP | CREATE_RETRIED_GROUP) => {
            Command::CreateGroup(read_group(kind, &mut reader)?)
        }
        DELETE_GROUP => Command::DeleteGroup { group: reader.get()? },
        SUBSCRIBE => Command::Subscribe(reader.get()?),
        UNSUBSCRIBE => Command::Unsubscribe(reader.get()?),
        TICK => Command::Tick { limit: reader.u32()? },
        AUDIT => Command::Audit,
        RETAIN => Command::Retain(reader.get()?),
        PURGE_INTENT => Command::PurgeIntent { mark: reader.get()? },
        RELOCATE => Command::Relocate(reader.list(Relocation::read)?),
        PURGE_TO => Command::PurgeTo { mark: reader.get()? },
        TRIM => Command::Trim(reader.get()?),
        GROW_TOPIC => Command::GrowTopic { topic: reader.get()?, queues: reader.u32()? },
        RESUME_LINES => Command::ResumeLines { group: reader.get()?, topic: reader.get()? },
        PREPARE => Command::Prepare(reader.get()?),
        END => Command::End(reader.get()?),
        CHECK => Command::Check(reader.list(Checked::read)?),
        RESUME => Command::Resume(reader.get()?),
        MEMBERS_DIFFER => Command::MembersDiffer { group: reader.get()?, topic: reader.get()? },
        CREATE_KEPT_TOPIC => {
            let create: CreateTopic = reader.get()?;
            Command::CreateTopic(CreateTopic { keep: Some(reader.get()?), ..create })
        }
        SCHEDULE => Command::Schedule(reader.get()?),
        RECALL => Command::Recall(reader.get()?),
        RESCHEDULE => Command::Reschedule { timer: reader.get()?, due: reader.get()? },
        REDRIVE => Command::Redrive(reader.get()?),
        UPDATE_GROUP => Command::UpdateGroup(reader.get()?),
        POSITION => Command::Position(reader.get()?),
        LEAVE => Command::Leave(reader.get()?),
        CREATE_PLACED_GROUP => {
            let (begin, kind) = (reader.get()?, reader.u8()?);
            Command::CreateGroup(CreateGroup { begin, ..read_group(kind, &mut reader)? })
        }
        START => Command::Start(reader.get()?),
        RESET => Command::Reset(reader.get()?),
        PAUSE => Command::Pause { group: reader.get()?, paused: reader.bool()? },
        STORE_OFFSET => Command::StoreOffset(reader.get()?),
        found => return Err(CommandError::Kind { what: "the kind of a command", found }),
    };
    reader.end()?;
    // One form for each command: the version is what the kind came with.
    let known = version(&command);
    if found == known {
        return Ok(command);
    }
    Err(CommandError::Version { what: "a command of this kind", found, known })
}

/// Publishing is what must not grow its buffer step by step; the rest is small.
fn size_hint(command: &Command) -> usize {
    const ITEM: usize = 4 + 1 + 16 + 4 + 4 + 8 + 4;
    match command {
        Command::Publish(publish) => {
            let items = publish.items.iter().map(|item| ITEM + item.record.len()).sum::<usize>();
            HEAD + 8 + 1 + 4 + items
        }
        Command::Schedule(schedule) => {
            let item = |one: &ScheduleItem| 8 + ITEM + one.item.record.len();
            HEAD + 8 + 1 + 4 + schedule.items.iter().map(item).sum::<usize>()
        }
        Command::Prepare(prepare) => {
            let halves = prepare.halves.iter().map(|half| 8 + ITEM + half.item.record.len());
            HEAD + 8 + 4 + prepare.producer.as_str().len() + 8 + 4 + 4 + halves.sum::<usize>()
        }
        Command::Relocate(relocations) => {
            let items = relocations.iter().map(|one| 8 + 4 + one.record.len()).sum::<usize>();
            HEAD + 4 + items
        }
        _ => 128,
    }
}

macro_rules! coded_numbers {
    ($($name:ident: $method:ident,)+) => {
        $(impl Coded for $name {
            fn write(&self, writer: &mut Writer) {
                writer.$method(self.get());
            }

            fn read(reader: &mut Reader) -> Result<Self, CommandError> {
                reader.$method().map(Self::new)
            }
        })+
    };
}

coded_numbers! {
    LogIndex: u64,
    LogPosition: u64,
    QueueOffset: u64,
    Term: u64,
    TopicId: u64,
    GroupId: u64,
    QueueId: u32,
    CheckoutId: u64,
    ClusterId: u128,
    UtcMillis: u64,
    Millis: u64,
    MessageIdHash: u128,
}

macro_rules! coded_names {
    ($($name:ident,)+) => {
        $(impl Coded for $name {
            fn write(&self, writer: &mut Writer) {
                writer.string(self.as_str());
            }

            fn read(reader: &mut Reader) -> Result<Self, CommandError> {
                let name = reader.string()?;
                Self::new(&name).map_err(|source| CommandError::Name { at: reader.at(), source })
            }
        })+
    };
}

coded_names! {
    TopicName,
    GroupName,
    ClientId,
}

impl Coded for MessageKind {
    fn write(&self, writer: &mut Writer) {
        writer.u8(self.byte());
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let found = reader.u8()?;
        Self::from_byte(found).ok_or(CommandError::Kind { what: "the kind of a message", found })
    }
}

impl Coded for Found {
    fn write(&self, writer: &mut Writer) {
        self.cluster.write(writer);
        writer.raw(&self.handle_key);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { cluster: reader.get()?, handle_key: reader.array()? })
    }
}

impl Coded for Publish {
    fn write(&self, writer: &mut Writer) {
        self.topic.write(writer);
        writer.bool(self.dedup);
        writer.list(&self.items, |w, item| item.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            topic: reader.get()?,
            dedup: reader.bool()?,
            items: reader.list(PublishItem::read)?,
        })
    }
}

impl Coded for PublishItem {
    /// `record_at` is not written: it is where the record turns out to be.
    fn write(&self, writer: &mut Writer) {
        self.queue.write(writer);
        self.kind.write(writer);
        self.id_hash.write(writer);
        writer.u32(self.body_crc);
        writer.u32(self.tag_hash);
        writer.u64(self.group_hash);
        writer.bytes(&self.record);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let queue = reader.get()?;
        let kind = reader.get()?;
        let id_hash = reader.get()?;
        let body_crc = reader.u32()?;
        let tag_hash = reader.u32()?;
        let group_hash = reader.u64()?;
        let record = reader.bytes()?;
        let record_at = record_at(reader, &record);
        Ok(Self { queue, kind, id_hash, body_crc, tag_hash, group_hash, record, record_at })
    }
}

/// Where the bytes that were just read start in the command.
fn record_at(reader: &Reader, record: &Bytes) -> u32 {
    u32::try_from(reader.at() - record.len())
        .expect("a command is far shorter than 4 GiB: frames count their bytes in a u32")
}

impl Coded for CreateTopic {
    /// Without `keep`, which only one of the two kinds has.
    fn write(&self, writer: &mut Writer) {
        self.name.write(writer);
        writer.u32(self.queues);
        writer.list(&self.kinds, |w, kind| kind.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            name: reader.get()?,
            queues: reader.u32()?,
            kinds: reader.list(MessageKind::read)?,
            keep: None,
        })
    }
}

impl Coded for Retention {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.stride);
        self.time.write(writer);
        writer.u64(self.bytes);
        writer.u64(self.moved_max);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            stride: reader.u64()?,
            time: reader.get()?,
            bytes: reader.u64()?,
            moved_max: reader.u64()?,
        })
    }
}

impl Coded for Relocation {
    /// `record_at` is not written: it is where the record turns out to be.
    fn write(&self, writer: &mut Writer) {
        self.original.write(writer);
        writer.bytes(&self.record);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let original = reader.get()?;
        let record = reader.bytes()?;
        Ok(Self { original, record_at: record_at(reader, &record), record })
    }
}

impl Coded for Trim {
    fn write(&self, writer: &mut Writer) {
        self.topic.write(writer);
        self.mark.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { topic: reader.get()?, mark: reader.get()? })
    }
}

impl Coded for CreateGroup {
    /// Without `rule`, which only one of the two first kinds has, and what only later kinds have.
    fn write(&self, writer: &mut Writer) {
        let Backoff::Listed(times) = &self.backoff else {
            unreachable!("a curve is written by a kind of its own")
        };
        self.name.write(writer);
        writer.u32(self.attempts_max);
        writer.list(times, |w, wait| wait.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            name: reader.get()?,
            attempts_max: reader.u32()?,
            backoff: Backoff::Listed(reader.list(Millis::read)?),
            rule: OrderRule::default(),
            dead_keep: None,
            begin: Begin::default(),
        })
    }
}

impl Coded for OrderRule {
    fn write(&self, writer: &mut Writer) {
        writer.u8(self.order as u8);
        writer.u8(self.exhausted as u8);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let (order, exhausted) = (reader.u8()?, reader.u8()?);
        let odd = |what, found| CommandError::Kind { what, found };
        Ok(Self {
            order: Order::from_byte(order).ok_or_else(|| odd("the order of a group", order))?,
            exhausted: Exhausted::from_byte(exhausted)
                .ok_or_else(|| odd("what follows a last attempt", exhausted))?,
        })
    }
}

impl Coded for Subscribe {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.topic.write(writer);
        writer.string(&self.expression);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { group: reader.get()?, topic: reader.get()?, expression: reader.string()? })
    }
}
