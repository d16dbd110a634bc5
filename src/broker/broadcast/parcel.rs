//! A fetch and its answer as they travel between nodes.

use std::time::Duration;

use bytes::Bytes;

use crate::base::{GroupName, Millis, QueueId, QueueOffset, TopicName};
use crate::broker::remote::{Declined, Parcel, decode_parcels, encode_parcels};
use crate::command::{Coded, CommandError, Reader, Writer};

/// What is asked of the leader of one broker group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::broker) struct Wish {
    pub(in crate::broker) topic: TopicName,
    pub(in crate::broker) group: GroupName,
    pub(in crate::broker) filter: String,
    pub(in crate::broker) positions: Vec<(QueueId, QueueOffset)>,
    pub(in crate::broker) max: u32,
    pub(in crate::broker) poll: Duration,
}

/// What it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::broker) struct Fetched {
    pub(in crate::broker) parcels: Vec<Parcel>,
    pub(in crate::broker) next: Vec<(QueueId, QueueOffset)>,
    pub(in crate::broker) lost: u64,
}

impl Wish {
    pub(in crate::broker) fn write(&self, writer: &mut Writer) {
        writer.string(self.topic.as_str());
        writer.string(self.group.as_str());
        writer.string(&self.filter);
        write_positions(writer, &self.positions);
        writer.u32(self.max);
        writer.u64(u64::try_from(self.poll.as_millis()).unwrap_or(u64::MAX));
    }

    pub(in crate::broker) fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            topic: TopicName::read(reader)?,
            group: GroupName::read(reader)?,
            filter: reader.string()?,
            positions: read_positions(reader)?,
            max: reader.u32()?,
            poll: Millis::new(reader.u64()?).duration(),
        })
    }
}

pub(in crate::broker) fn encode_fetched(result: Result<Fetched, Declined>) -> Bytes {
    let mut writer = Writer::new();
    match result {
        Ok(Fetched { parcels, next, lost }) => {
            writer.bytes(&encode_parcels(&Ok(parcels)));
            write_positions(&mut writer, &next);
            writer.u64(lost);
        }
        Err(declined) => writer.bytes(&encode_parcels(&Err(declined))),
    }
    writer.finish()
}

pub(super) fn decode_fetched(bytes: Bytes) -> Result<Result<Fetched, Declined>, CommandError> {
    let mut reader = Reader::new(bytes);
    let result = match decode_parcels(reader.bytes()?)? {
        Ok(parcels) => {
            let next = read_positions(&mut reader)?;
            Ok(Fetched { parcels, next, lost: reader.u64()? })
        }
        Err(declined) => Err(declined),
    };
    reader.end()?;
    Ok(result)
}

fn write_positions(writer: &mut Writer, positions: &[(QueueId, QueueOffset)]) {
    writer.list(positions, |writer, (queue, offset)| {
        writer.put(queue);
        writer.put(offset);
    });
}

fn read_positions(reader: &mut Reader) -> Result<Vec<(QueueId, QueueOffset)>, CommandError> {
    reader.list(|reader| Ok((reader.get()?, reader.get()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::UtcMillis;
    use crate::broker::remote::Question;

    fn positions() -> Vec<(QueueId, QueueOffset)> {
        vec![(QueueId::new(0), QueueOffset::new(7)), (QueueId::new(3), QueueOffset::ZERO)]
    }

    #[test]
    fn a_fetch_keeps_its_bytes() {
        let wish = Wish {
            topic: TopicName::new("t").unwrap(),
            group: GroupName::new("g").unwrap(),
            filter: "a||b".into(),
            positions: positions(),
            max: 64,
            poll: Duration::from_secs(5),
        };
        let bytes = Question::Fetch(wish.clone()).encode();
        let expected = "4b 00000001 74 00000001 67 00000004 617c7c62 00000002 00000000 \
                        0000000000000007 00000003 0000000000000000 00000040 0000000000001388";
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected.replace(' ', ""));
        match Question::decode(bytes) {
            Ok(Question::Fetch(read)) => assert_eq!(read, wish),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_survives_the_wire() {
        let parcel = Parcel {
            record: Bytes::from_static(b"record"),
            queue: QueueId::new(3),
            offset: QueueOffset::new(4),
            visible: UtcMillis::new(5),
            attempt: 1,
            handle: String::new(),
            death: None,
        };
        let fetched = Ok(Fetched { parcels: vec![parcel], next: positions(), lost: 9 });
        assert_eq!(decode_fetched(encode_fetched(fetched.clone())), Ok(fetched));
        let declined = Err(Declined::NotLeader);
        assert_eq!(decode_fetched(encode_fetched(declined.clone())), Ok(declined));
        assert!(decode_fetched(Bytes::from_static(&[1])).is_err());
    }
}
