//! The bytes of retries and dead letters.

use super::{Coded, CommandError, Reader, Writer};
use crate::base::{Millis, QueueOffset};
use crate::command::{
    Backoff, Begin, CreateGroup, Curve, DeathReason, OrderRule, Redrive, Redriven, UpdateGroup,
};

// Forms of a back-off. Persisted: never change one, never use one again.
const LISTED: u8 = 1;
const EXPONENTIAL: u8 = 2;

/// Whether the kinds of before say all of a group.
pub(super) fn is_plain(create: &CreateGroup) -> bool {
    matches!(create.backoff, Backoff::Listed(_)) && create.dead_keep.is_none()
}

/// All settings of a group: what a kind that says more begins with.
pub(super) fn write_group(writer: &mut Writer, create: &CreateGroup) {
    create.name.write(writer);
    writer.u32(create.attempts_max);
    create.rule.write(writer);
    create.backoff.write(writer);
    writer.option(create.dead_keep.as_ref(), |w, keep| keep.write(w));
}

pub(super) fn read_group(reader: &mut Reader) -> Result<CreateGroup, CommandError> {
    Ok(CreateGroup {
        name: reader.get()?,
        attempts_max: reader.u32()?,
        rule: OrderRule::read(reader)?,
        backoff: reader.get()?,
        dead_keep: reader.option(Millis::read)?,
        begin: Begin::default(),
    })
}

impl Coded for Backoff {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Listed(times) => {
                writer.u8(LISTED);
                writer.list(times, |w, time| time.write(w));
            }
            Self::Exponential(curve) => {
                writer.u8(EXPONENTIAL);
                curve.initial.write(writer);
                curve.max.write(writer);
                writer.u32(curve.growth);
            }
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        match reader.u8()? {
            LISTED => Ok(Self::Listed(reader.list(Millis::read)?)),
            EXPONENTIAL => {
                let (initial, max) = (reader.get()?, reader.get()?);
                Ok(Self::Exponential(Curve { initial, max, growth: reader.u32()? }))
            }
            found => Err(CommandError::Kind { what: "the form of a back-off", found }),
        }
    }
}

impl Coded for UpdateGroup {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        writer.option(self.attempts_max.as_ref(), |w, attempts| w.u32(*attempts));
        writer.option(self.backoff.as_ref(), |w, backoff| backoff.write(w));
        writer.option(self.dead_keep.as_ref(), |w, keep| keep.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            group: reader.get()?,
            attempts_max: reader.option(Reader::u32)?,
            backoff: reader.option(Backoff::read)?,
            dead_keep: reader.option(Millis::read)?,
        })
    }
}

impl Coded for DeathReason {
    fn write(&self, writer: &mut Writer) {
        writer.u8(*self as u8);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let found = reader.u8()?;
        Self::from_byte(found).ok_or(CommandError::Kind { what: "why a message died", found })
    }
}

impl Coded for Redrive {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.topic.write(writer);
        writer.list(&self.letters, |w, offset| offset.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let (group, topic) = (reader.get()?, reader.get()?);
        Ok(Self { group, topic, letters: reader.list(QueueOffset::read)? })
    }
}

impl Coded for Redriven {
    fn write(&self, writer: &mut Writer) {
        writer.u8(*self as u8);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let found = reader.u8()?;
        Self::from_byte(found).ok_or(CommandError::Kind { what: "what came of a redrive", found })
    }
}
