//! The bytes of delayed messages and of what is done to them.

use super::{Coded, CommandError, Reader, Writer};
use crate::command::{PublishItem, Schedule, ScheduleItem, Scheduled, TimerKey, TimerOutcome};

// Persisted as far as replies are: never use one again.
const RECALLED: u8 = 1;
const RESCHEDULED: u8 = 2;
const ALREADY_FIRED: u8 = 3;
const NOT_FOUND: u8 = 4;

impl Coded for Schedule {
    fn write(&self, writer: &mut Writer) {
        self.topic.write(writer);
        writer.bool(self.dedup);
        writer.list(&self.items, |w, item| item.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let (topic, dedup) = (reader.get()?, reader.bool()?);
        Ok(Self { topic, dedup, items: reader.list(ScheduleItem::read)? })
    }
}

impl Coded for ScheduleItem {
    fn write(&self, writer: &mut Writer) {
        self.due.write(writer);
        self.item.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { due: reader.get()?, item: PublishItem::read(reader)? })
    }
}

impl Coded for TimerKey {
    fn write(&self, writer: &mut Writer) {
        self.topic.write(writer);
        self.id_hash.write(writer);
        writer.option(self.position.as_ref(), |w, position| position.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let (topic, id_hash) = (reader.get()?, reader.get()?);
        Ok(Self { topic, id_hash, position: reader.option(Reader::get)? })
    }
}

impl Coded for Scheduled {
    fn write(&self, writer: &mut Writer) {
        self.position.write(writer);
        writer.bool(self.repeated);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { position: reader.get()?, repeated: reader.bool()? })
    }
}

impl Coded for TimerOutcome {
    fn write(&self, writer: &mut Writer) {
        writer.u8(match self {
            Self::Recalled => RECALLED,
            Self::Rescheduled => RESCHEDULED,
            Self::AlreadyFired => ALREADY_FIRED,
            Self::NotFound => NOT_FOUND,
        });
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        match reader.u8()? {
            RECALLED => Ok(Self::Recalled),
            RESCHEDULED => Ok(Self::Rescheduled),
            ALREADY_FIRED => Ok(Self::AlreadyFired),
            NOT_FOUND => Ok(Self::NotFound),
            found => Err(CommandError::Kind { what: "the outcome for a delayed message", found }),
        }
    }
}
