//! The bytes of transactions' commands.

use super::{Coded, CommandError, Reader, Writer};
use crate::command::{
    Checked, Decided, Decider, Decision, End, HalfItem, Prepare, PublishItem, Transaction,
};

impl Coded for Transaction {
    fn write(&self, writer: &mut Writer) {
        self.topic.write(writer);
        self.at.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { topic: reader.get()?, at: reader.get()? })
    }
}

impl Coded for Prepare {
    fn write(&self, writer: &mut Writer) {
        self.topic.write(writer);
        self.producer.write(writer);
        self.interval.write(writer);
        writer.u32(self.checks_max);
        writer.list(&self.halves, |w, half| half.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            topic: reader.get()?,
            producer: reader.get()?,
            interval: reader.get()?,
            checks_max: reader.u32()?,
            halves: reader.list(HalfItem::read)?,
        })
    }
}

impl Coded for HalfItem {
    fn write(&self, writer: &mut Writer) {
        self.first_check.write(writer);
        self.item.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let first_check = reader.get()?;
        Ok(Self { item: PublishItem::read(reader)?, first_check })
    }
}

impl Coded for Decision {
    fn write(&self, writer: &mut Writer) {
        writer.u8(*self as u8);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        match reader.u8()? {
            1 => Ok(Self::Commit),
            2 => Ok(Self::RollBack),
            found => Err(CommandError::Kind { what: "a transaction's decision", found }),
        }
    }
}

impl Coded for Decider {
    fn write(&self, writer: &mut Writer) {
        writer.u8(*self as u8);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        match reader.u8()? {
            1 => Ok(Self::Producer),
            2 => Ok(Self::Check),
            3 => Ok(Self::Operator),
            found => Err(CommandError::Kind { what: "who decided a transaction", found }),
        }
    }
}

impl Coded for End {
    fn write(&self, writer: &mut Writer) {
        self.transaction.write(writer);
        self.decision.write(writer);
        self.by.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { transaction: reader.get()?, decision: reader.get()?, by: reader.get()? })
    }
}

impl Coded for Checked {
    fn write(&self, writer: &mut Writer) {
        self.transaction.write(writer);
        writer.u32(self.number);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { transaction: reader.get()?, number: reader.u32()? })
    }
}

impl Coded for Decided {
    fn write(&self, writer: &mut Writer) {
        self.decision.write(writer);
        self.by.write(writer);
        self.stamp.write(writer);
        writer.option(self.place.as_ref(), |w, (queue, offset)| {
            queue.write(w);
            offset.write(w);
        });
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            decision: reader.get()?,
            by: reader.get()?,
            stamp: reader.get()?,
            place: reader.option(|r| Ok((r.get()?, r.get()?)))?,
        })
    }
}
