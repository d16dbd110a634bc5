//! The bytes of replies. They travel between nodes of one cluster and are not stored.

use bytes::Bytes;

use super::{Coded, CommandError, Reader, Writer};
use crate::command::{
    CheckedOut, DeliveryOutcome, Granted, Placed, Prepared, Published, Redriven, Refusal, Reply,
    Scheduled,
};

/// The first byte of every reply.
const REPLY_VERSION: u8 = 1;

// The second byte of a reply. Nodes of different versions talk: never use one again.
const DONE: u8 = 1;
const PUBLISHED: u8 = 2;
const DELIVERIES: u8 = 3;
const TOPIC_CREATED: u8 = 4;
const GROUP_CREATED: u8 = 5;
const SUBSCRIBED: u8 = 6;
const TICKED: u8 = 7;
const AUDITED: u8 = 8;
const REFUSED: u8 = 9;
const SCHEDULED: u8 = 30;
const TIMER: u8 = 31;
const PREPARED: u8 = 40;
const ENDED: u8 = 41;
const CHECKED: u8 = 42;
const REDRIVEN: u8 = 50;
const PLACED: u8 = 80;
const RESET: u8 = 70;
const MEMBERS_DIFFER: u8 = 60;

// Kinds of delivery outcomes, under the same rule.
const OUTCOME_CHECKED_OUT: u8 = 1;
const OUTCOME_DONE: u8 = 2;
const OUTCOME_STALE: u8 = 3;
const OUTCOME_REFUSED: u8 = 4;
// 20 was given once.

// Kinds of refusals, under the same rule.
const NO_TOPIC: u8 = 1;
const NO_GROUP: u8 = 2;
const NO_QUEUE: u8 = 3;
const TOPIC_DIFFERS: u8 = 4;
const LIMIT: u8 = 5;
const NO_MARK: u8 = 6;
const UNDER_WAY: u8 = 7;
const MOVED_FULL: u8 = 8;
const DELAYED_FULL: u8 = 30;
const NO_TRANSACTION: u8 = 40;
const DECIDED: u8 = 41;
const HALVES_FULL: u8 = 42;
const TIMERS_FULL: u8 = 50;
const NO_OWNER: u8 = 51;
const DEAD_LETTERS_ONLY: u8 = 52;
const NOT_BEGUN: u8 = 70;

pub(in crate::command) fn encode(reply: &Reply) -> Bytes {
    let mut writer = Writer::new();
    writer.u8(REPLY_VERSION);
    reply.write(&mut writer);
    writer.finish()
}

pub(in crate::command) fn decode(bytes: &Bytes) -> Result<Reply, CommandError> {
    let mut reader = Reader::new(bytes.clone());
    let found = reader.u8()?;
    if found != REPLY_VERSION {
        return Err(CommandError::Version { what: "a reply", found, known: REPLY_VERSION });
    }
    let reply = reader.get()?;
    reader.end()?;
    Ok(reply)
}

impl Coded for Reply {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Done => writer.u8(DONE),
            Self::Published(published) => {
                writer.u8(PUBLISHED);
                writer.list(published, |w, one| one.write(w));
            }
            Self::Deliveries(outcomes) => {
                writer.u8(DELIVERIES);
                writer.list(outcomes, |w, outcome| outcome.write(w));
            }
            Self::TopicCreated { topic, existed } => {
                writer.kind(TOPIC_CREATED, topic);
                writer.bool(*existed);
            }
            Self::GroupCreated { group, existed } => {
                writer.kind(GROUP_CREATED, group);
                writer.bool(*existed);
            }
            Self::Subscribed { version } => {
                writer.u8(SUBSCRIBED);
                writer.u32(*version);
            }
            Self::Ticked { fired } => {
                writer.u8(TICKED);
                writer.u32(*fired);
            }
            Self::Audited { index, state_hash } => {
                writer.kind(AUDITED, index);
                writer.u64(*state_hash);
            }
            Self::Prepared(prepared) => {
                writer.u8(PREPARED);
                writer.list(prepared, |w, one| one.write(w));
            }
            Self::Ended { decided, repeated } => {
                writer.kind(ENDED, decided);
                writer.bool(*repeated);
            }
            Self::Checked { counted } => {
                writer.u8(CHECKED);
                writer.u32(*counted);
            }
            Self::Refused(refusal) => writer.kind(REFUSED, refusal),
            Self::Scheduled(scheduled) => {
                writer.u8(SCHEDULED);
                writer.list(scheduled, |w, one| one.write(w));
            }
            Self::Timer(outcome) => writer.kind(TIMER, outcome),
            Self::Redriven(outcomes) => {
                writer.u8(REDRIVEN);
                writer.list(outcomes, |w, one| one.write(w));
            }
            Self::Placed(placed) => writer.kind(PLACED, placed),
            Self::Reset { epoch } => {
                writer.u8(RESET);
                writer.u32(*epoch);
            }
            Self::MembersDiffer { first } => {
                writer.u8(MEMBERS_DIFFER);
                writer.bool(*first);
            }
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(match reader.u8()? {
            DONE => Self::Done,
            PUBLISHED => Self::Published(reader.list(Published::read)?),
            DELIVERIES => Self::Deliveries(reader.list(DeliveryOutcome::read)?),
            TOPIC_CREATED => Self::TopicCreated { topic: reader.get()?, existed: reader.bool()? },
            GROUP_CREATED => Self::GroupCreated { group: reader.get()?, existed: reader.bool()? },
            SUBSCRIBED => Self::Subscribed { version: reader.u32()? },
            TICKED => Self::Ticked { fired: reader.u32()? },
            AUDITED => Self::Audited { index: reader.get()?, state_hash: reader.u64()? },
            PREPARED => Self::Prepared(reader.list(Prepared::read)?),
            ENDED => Self::Ended { decided: reader.get()?, repeated: reader.bool()? },
            CHECKED => Self::Checked { counted: reader.u32()? },
            REFUSED => Self::Refused(reader.get()?),
            SCHEDULED => Self::Scheduled(reader.list(Scheduled::read)?),
            TIMER => Self::Timer(reader.get()?),
            REDRIVEN => Self::Redriven(reader.list(Redriven::read)?),
            PLACED => reader.get::<Placed>().map(Self::Placed)?,
            RESET => Self::Reset { epoch: reader.u32()? },
            MEMBERS_DIFFER => Self::MembersDiffer { first: reader.bool()? },
            found => return Err(CommandError::Kind { what: "the kind of a reply", found }),
        })
    }
}

impl Coded for Published {
    fn write(&self, writer: &mut Writer) {
        self.queue.write(writer);
        self.offset.write(writer);
        self.visible.write(writer);
        writer.bool(self.repeated);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            queue: reader.get()?,
            offset: reader.get()?,
            visible: reader.get()?,
            repeated: reader.bool()?,
        })
    }
}

impl Coded for Prepared {
    fn write(&self, writer: &mut Writer) {
        self.at.write(writer);
        writer.bool(self.repeated);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { at: reader.get()?, repeated: reader.bool()? })
    }
}

impl Coded for DeliveryOutcome {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::CheckedOut(checked_out) => writer.kind(OUTCOME_CHECKED_OUT, checked_out),
            Self::Done => writer.u8(OUTCOME_DONE),
            Self::Stale => writer.u8(OUTCOME_STALE),
            Self::Refused(refusal) => writer.kind(OUTCOME_REFUSED, refusal),
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        match reader.u8()? {
            OUTCOME_CHECKED_OUT => reader.get().map(Self::CheckedOut),
            OUTCOME_DONE => Ok(Self::Done),
            OUTCOME_STALE => Ok(Self::Stale),
            OUTCOME_REFUSED => reader.get().map(Self::Refused),
            found => Err(CommandError::Kind { what: "the kind of a delivery's outcome", found }),
        }
    }
}

impl Coded for CheckedOut {
    fn write(&self, writer: &mut Writer) {
        self.checkout.write(writer);
        writer.list(&self.granted, |w, granted| granted.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { checkout: reader.get()?, granted: reader.list(Granted::read)? })
    }
}

impl Coded for Granted {
    fn write(&self, writer: &mut Writer) {
        self.queue.write(writer);
        self.offset.write(writer);
        writer.u32(self.attempt);
        self.unit.write(writer);
        self.checkout.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            queue: reader.get()?,
            offset: reader.get()?,
            attempt: reader.u32()?,
            unit: reader.get()?,
            checkout: reader.get()?,
        })
    }
}

impl Coded for Refusal {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::NoTopic { topic } => writer.kind(NO_TOPIC, topic),
            Self::NoGroup { group } => writer.kind(NO_GROUP, group),
            Self::NoQueue { queue, queues } => {
                writer.kind(NO_QUEUE, queue);
                writer.u32(*queues);
            }
            Self::TopicDiffers { exists, asked } => {
                writer.u8(TOPIC_DIFFERS);
                writer.string(exists);
                writer.string(asked);
            }
            Self::Limit { what, limit } => {
                writer.u8(LIMIT);
                writer.string(what);
                writer.u64(*limit);
            }
            Self::NoMark { mark } => writer.kind(NO_MARK, mark),
            Self::UnderWay { mark, count } => {
                writer.kind(UNDER_WAY, mark);
                writer.u64(*count);
            }
            Self::MovedFull { bytes, limit } => {
                writer.u8(MOVED_FULL);
                writer.u64(*bytes);
                writer.u64(*limit);
            }
            Self::DelayedFull { bytes, limit } => {
                writer.u8(DELAYED_FULL);
                writer.u64(*bytes);
                writer.u64(*limit);
            }
            Self::TimersFull { count, visible, limit } => {
                writer.u8(TIMERS_FULL);
                writer.u64(*count);
                writer.u64(*visible);
                writer.u64(*limit);
            }
            Self::NoTransaction { at } => writer.kind(NO_TRANSACTION, at),
            Self::Decided { decided } => writer.kind(DECIDED, decided),
            Self::HalvesFull { bytes, limit } => {
                writer.u8(HALVES_FULL);
                writer.u64(*bytes);
                writer.u64(*limit);
            }
            Self::NoOwner { name } => {
                writer.u8(NO_OWNER);
                writer.string(name);
            }
            Self::DeadLettersOnly { topic } => writer.kind(DEAD_LETTERS_ONLY, topic),
            Self::NotBegun { group, topic } => {
                writer.kind(NOT_BEGUN, group);
                topic.write(writer);
            }
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(match reader.u8()? {
            NO_TOPIC => Self::NoTopic { topic: reader.get()? },
            NO_GROUP => Self::NoGroup { group: reader.get()? },
            NO_QUEUE => Self::NoQueue { queue: reader.get()?, queues: reader.u32()? },
            TOPIC_DIFFERS => {
                Self::TopicDiffers { exists: reader.string()?, asked: reader.string()? }
            }
            LIMIT => Self::Limit { what: reader.string()?, limit: reader.u64()? },
            NO_MARK => Self::NoMark { mark: reader.get()? },
            UNDER_WAY => Self::UnderWay { mark: reader.get()?, count: reader.u64()? },
            MOVED_FULL => Self::MovedFull { bytes: reader.u64()?, limit: reader.u64()? },
            DELAYED_FULL => Self::DelayedFull { bytes: reader.u64()?, limit: reader.u64()? },
            TIMERS_FULL => {
                let (count, visible) = (reader.u64()?, reader.u64()?);
                Self::TimersFull { count, visible, limit: reader.u64()? }
            }
            NO_TRANSACTION => Self::NoTransaction { at: reader.get()? },
            DECIDED => Self::Decided { decided: reader.get()? },
            HALVES_FULL => Self::HalvesFull { bytes: reader.u64()?, limit: reader.u64()? },
            NO_OWNER => Self::NoOwner { name: reader.string()? },
            DEAD_LETTERS_ONLY => Self::DeadLettersOnly { topic: reader.get()? },
            NOT_BEGUN => Self::NotBegun { group: reader.get()?, topic: reader.get()? },
            found => return Err(CommandError::Kind { what: "the kind of a refusal", found }),
        })
    }
}
