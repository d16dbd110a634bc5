//! What nodes ask each other about producers, as bytes.

use bytes::Bytes;

use crate::base::{ClientId, QueueId, TopicName, UtcMillis};
use crate::command::{Coded, CommandError, Reader, Writer};

/// Who could be asked about half messages of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::broker) struct Wanted {
    pub(in crate::broker) topic: TopicName,
    /// Those that prepared them.
    pub(in crate::broker) clients: Vec<ClientId>,
}

/// Who of them is connected to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::broker) struct Living {
    pub(in crate::broker) clients: Vec<ClientId>,
    /// Some producer of the topic is.
    pub(in crate::broker) any: bool,
}

/// One question to a producer as it travels between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::broker) struct CheckParcel {
    pub(in crate::broker) transaction: String,
    /// The one to ask; any producer of the message's topic when there is none.
    pub(in crate::broker) client: Option<ClientId>,
    pub(in crate::broker) queue: QueueId,
    pub(in crate::broker) prepared: UtcMillis,
    pub(in crate::broker) record: Bytes,
}

impl Wanted {
    pub(in crate::broker) fn write(&self, writer: &mut Writer) {
        writer.put(&self.topic);
        writer.list(&self.clients, |writer, client| writer.put(client));
    }

    pub(in crate::broker) fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { topic: reader.get()?, clients: reader.list(ClientId::read)? })
    }
}

impl CheckParcel {
    pub(in crate::broker) fn write(&self, writer: &mut Writer) {
        writer.string(&self.transaction);
        writer.option(self.client.as_ref(), |writer, client| writer.put(client));
        writer.put(&self.queue);
        writer.put(&self.prepared);
        writer.bytes(&self.record);
    }

    pub(in crate::broker) fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            transaction: reader.string()?,
            client: reader.option(ClientId::read)?,
            queue: reader.get()?,
            prepared: reader.get()?,
            record: reader.bytes()?,
        })
    }
}

pub(in crate::broker) fn encode_living(living: &[Living]) -> Bytes {
    let mut writer = Writer::new();
    writer.list(living, |writer, one| {
        writer.bool(one.any);
        writer.list(&one.clients, |writer, client| writer.put(client));
    });
    writer.finish()
}

pub(super) fn decode_living(bytes: Bytes) -> Result<Vec<Living>, CommandError> {
    let mut reader = Reader::new(bytes);
    let living = reader
        .list(|reader| Ok(Living { any: reader.bool()?, clients: reader.list(ClientId::read)? }))?;
    reader.end()?;
    Ok(living)
}

/// Which of the questions were written to a producer.
pub(in crate::broker) fn encode_asked(asked: &[bool]) -> Bytes {
    let mut writer = Writer::new();
    writer.list(asked, |writer, asked| writer.bool(*asked));
    writer.finish()
}

pub(super) fn decode_asked(bytes: Bytes) -> Result<Vec<bool>, CommandError> {
    let mut reader = Reader::new(bytes);
    let asked = reader.list(Reader::bool)?;
    reader.end()?;
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::remote::Question;

    #[test]
    fn what_nodes_ask_each_other_survives_its_bytes() {
        let topic = TopicName::new("t").unwrap();
        let clients = vec![ClientId::new("p@1").unwrap()];
        let wanted = vec![Wanted { topic, clients: clients.clone() }];
        match Question::decode(Question::Producers(wanted.clone()).encode()) {
            Ok(Question::Producers(read)) => assert_eq!(read, wanted),
            other => panic!("{other:?}"),
        }
        let parcel = CheckParcel {
            transaction: "54aa".into(),
            client: Some(clients[0].clone()),
            queue: QueueId::new(3),
            prepared: UtcMillis::new(7),
            record: Bytes::from_static(b"xyz"),
        };
        let parcels = vec![parcel.clone(), CheckParcel { client: None, ..parcel }];
        match Question::decode(Question::Check(parcels.clone()).encode()) {
            Ok(Question::Check(read)) => assert_eq!(read, parcels),
            other => panic!("{other:?}"),
        }
        let living = vec![Living { clients, any: true }, Living::default()];
        assert_eq!(decode_living(encode_living(&living)), Ok(living));
        assert_eq!(decode_asked(encode_asked(&[true, false])), Ok(vec![true, false]));
        assert!(decode_asked(Bytes::new()).is_err(), "a node without a broker answers nothing");
    }
}
