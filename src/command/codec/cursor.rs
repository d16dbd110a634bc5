//! The bytes of what says where groups stand.

use super::{Coded, CommandError, Reader, Writer};
use crate::base::UtcMillis;
use crate::command::{Begin, Reset, Start, StartAt, StoreOffset};

// Persisted: never change one, never use one again.
const EARLIEST: u8 = 1;
const LATEST: u8 = 2;
const TIME: u8 = 3;

impl Coded for StartAt {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Earliest => writer.u8(EARLIEST),
            Self::Latest => writer.u8(LATEST),
            Self::Time(time) => writer.kind(TIME, time),
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(match reader.u8()? {
            EARLIEST => Self::Earliest,
            LATEST => Self::Latest,
            TIME => Self::Time(UtcMillis::read(reader)?),
            found => return Err(CommandError::Kind { what: "where a group begins", found }),
        })
    }
}

impl Coded for Begin {
    fn write(&self, writer: &mut Writer) {
        self.start.write(writer);
        writer.bool(self.paused);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { start: reader.get()?, paused: reader.bool()? })
    }
}

impl Coded for Start {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.topic.write(writer);
        writer.list(&self.offsets, |w, offset| offset.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { group: reader.get()?, topic: reader.get()?, offsets: reader.list(Reader::get)? })
    }
}

impl Coded for Reset {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.topic.write(writer);
        writer.list(&self.offsets, |w, (queue, offset)| {
            queue.write(w);
            offset.write(w);
        });
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            group: reader.get()?,
            topic: reader.get()?,
            offsets: reader.list(|r| Ok((r.get()?, r.get()?)))?,
        })
    }
}

impl Coded for StoreOffset {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.topic.write(writer);
        self.queue.write(writer);
        self.offset.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            group: reader.get()?,
            topic: reader.get()?,
            queue: reader.get()?,
            offset: reader.get()?,
        })
    }
}
