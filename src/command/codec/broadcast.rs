//! The bytes of instances and their positions.

use super::{Coded, CommandError, Reader, Writer};
use crate::base::{QueueId, QueueOffset};
use crate::command::{Begin, Leave, Placed, Position};

impl Coded for Position {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.topic.write(writer);
        self.instance.write(writer);
        self.lease.write(writer);
        self.begin.write(writer);
        writer.u64(self.attempt);
        writer.option(self.incarnation.as_ref(), |w, incarnation| incarnation.write(w));
        writer.bool(self.seek);
        write_positions(writer, &self.positions);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            group: reader.get()?,
            topic: reader.get()?,
            instance: reader.get()?,
            lease: reader.get()?,
            begin: reader.get()?,
            attempt: reader.u64()?,
            incarnation: reader.option(Reader::get)?,
            seek: reader.bool()?,
            positions: read_positions(reader)?,
        })
    }
}

impl Coded for Begin {
    fn write(&self, writer: &mut Writer) {
        writer.u8(*self as u8);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        let found = reader.u8()?;
        let what = "where an instance begins";
        Self::from_byte(found).ok_or(CommandError::Kind { what, found })
    }
}

impl Coded for Leave {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.topic.write(writer);
        self.instance.write(writer);
        self.incarnation.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            group: reader.get()?,
            topic: reader.get()?,
            instance: reader.get()?,
            incarnation: reader.get()?,
        })
    }
}

impl Coded for Placed {
    fn write(&self, writer: &mut Writer) {
        self.incarnation.write(writer);
        writer.bool(self.known);
        self.until.write(writer);
        writer.u64(self.lost);
        write_positions(writer, &self.positions);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            incarnation: reader.get()?,
            known: reader.bool()?,
            until: reader.get()?,
            lost: reader.u64()?,
            positions: read_positions(reader)?,
        })
    }
}

fn write_positions(writer: &mut Writer, positions: &[(QueueId, QueueOffset)]) {
    writer.list(positions, |w, (queue, offset)| {
        queue.write(w);
        offset.write(w);
    });
}

fn read_positions(reader: &mut Reader) -> Result<Vec<(QueueId, QueueOffset)>, CommandError> {
    reader.list(|r| Ok((r.get()?, r.get()?)))
}

#[cfg(test)]
mod tests {
    use crate::base::{
        ClientId, GroupId, LogIndex, Millis, QueueId, QueueOffset, TopicId, UtcMillis,
    };
    use crate::command::{Begin, Command, Leave, Placed, Position, Reply};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Bytes in the log live for ever.
    #[test]
    fn positions_keep_their_bytes() {
        let golden = |command: Command, expected: &str| {
            let bytes = command.encode();
            assert_eq!(hex(&bytes), expected.replace(' ', ""));
            assert_eq!(Command::decode(&bytes).unwrap(), command);
        };
        let position = Position {
            group: GroupId::new(2),
            topic: TopicId::new(1),
            instance: ClientId::new("i1").unwrap(),
            lease: Millis::from_secs(60),
            begin: Begin::Latest,
            attempt: 0x0102_0304_0506_0708,
            incarnation: Some(LogIndex::new(9)),
            seek: true,
            positions: vec![(QueueId::new(3), QueueOffset::new(4))],
        };
        golden(
            Command::Position(position.clone()),
            "04 50 0000000000000002 0000000000000001 00000002 6931 000000000000ea60 01 \
             0102030405060708 01 0000000000000009 01 00000001 00000003 0000000000000004",
        );
        let asking = Position {
            begin: Begin::Earliest,
            incarnation: None,
            seek: false,
            positions: Vec::new(),
            ..position
        };
        golden(
            Command::Position(asking),
            "04 50 0000000000000002 0000000000000001 00000002 6931 000000000000ea60 02 \
             0102030405060708 00 00 00000000",
        );
        let leave = Leave {
            group: GroupId::new(2),
            topic: TopicId::new(1),
            instance: ClientId::new("i1").unwrap(),
            incarnation: LogIndex::new(9),
        };
        golden(
            Command::Leave(leave),
            "04 51 0000000000000002 0000000000000001 00000002 6931 0000000000000009",
        );
    }

    #[test]
    fn where_an_instance_stands_keeps_its_bytes() {
        let reply = Reply::Placed(Placed {
            incarnation: LogIndex::new(9),
            known: true,
            until: UtcMillis::new(5),
            lost: 7,
            positions: vec![(QueueId::new(3), QueueOffset::new(4))],
        });
        let bytes = reply.encode();
        let expected = "01 50 0000000000000009 01 0000000000000005 0000000000000007 \
                        00000001 00000003 0000000000000004";
        assert_eq!(hex(&bytes), expected.replace(' ', ""));
        assert_eq!(Reply::decode(&bytes).unwrap(), reply);
    }
}
