//! Requests that one node's broker asks of another's, as bytes.

use bytes::Bytes;

use crate::base::{
    CheckoutId, ClientId, GroupName, LogIndex, Millis, NodeId, QueueId, QueueOffset, TopicName,
    UtcMillis,
};
use crate::broker::api::{FilterText, MembersChange, ReceiveRequest};
use crate::broker::broadcast::Wish;
use crate::broker::dead_letters::DeathFacts;
use crate::broker::members::{read_change, write_change};
use crate::broker::transactions::{CheckParcel, Wanted};
use crate::command::{Coded, CommandError, Reader, Writer};

/// What may be asked. The numbers are part of the peer protocol.
#[derive(Debug)]
pub(super) enum Question {
    /// To the leader: a long poll.
    Receive(ReceiveRequest),
    /// To the leader: say when there is something that this poll would get.
    Watch(ReceiveRequest),
    /// To anyone: where it stands, once it has applied `at_least`.
    Status { at_least: Option<LogIndex>, units: bool },
    /// To the leader: consumers that live on the asking node, and checkouts that it has written to
    /// their clients.
    Seen { consumers: Vec<ClientId>, written: Vec<CheckoutId> },
    /// To the leader: one step of a change of members.
    Members(MembersChange),
    /// To the leader: hand over to this node.
    LeadBy(NodeId),
    /// To anyone: which producers live there.
    Producers(Vec<Wanted>),
    /// To anyone: ask your producers what became of these.
    Check(Vec<CheckParcel>),
    /// To the leader: a long poll that takes nothing.
    Fetch(Wish),
}

/// One message as it travels between nodes: the record as stored, and what delivery adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) record: Bytes,
    pub(super) queue: QueueId,
    pub(super) offset: QueueOffset,
    pub(super) visible: UtcMillis,
    pub(super) attempt: u32,
    pub(super) handle: String,
    /// For a dead letter.
    pub(super) death: Option<DeathFacts>,
}

/// Why the leader did not answer a poll with messages. Numbers as above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Declined {
    /// The asked node does not lead (any more): ask again.
    NotLeader,
    NoTopic,
    NoGroup,
    Busy,
    /// A table of the log that the poll needs a row of is full.
    Full {
        what: String,
    },
    Unavailable {
        reason: String,
        outcome_unknown: bool,
    },
}

const RECEIVE: u8 = 1;
const STATUS: u8 = 2;
const SEEN: u8 = 3;
const WATCH: u8 = 4;
const MEMBERS: u8 = 5;
const LEAD_BY: u8 = 6;
const PRODUCERS: u8 = 40;
const CHECK: u8 = 41;
const FETCH: u8 = 75;
/// As [`RECEIVE`] and [`WATCH`], with an SQL condition where those have tags.
const RECEIVE_SQL: u8 = 55;
const WATCH_SQL: u8 = 56;

impl Question {
    pub(super) fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        match self {
            Self::Receive(request) => {
                writer.u8(if is_sql(request) { RECEIVE_SQL } else { RECEIVE });
                write_receive(&mut writer, request);
            }
            Self::Watch(request) => {
                writer.u8(if is_sql(request) { WATCH_SQL } else { WATCH });
                write_receive(&mut writer, request);
            }
            Self::Status { at_least, units } => {
                writer.u8(STATUS);
                writer.option(at_least.as_ref(), |writer, index| writer.u64(index.get()));
                writer.bool(*units);
            }
            Self::Seen { consumers, written } => {
                writer.u8(SEEN);
                writer.list(consumers, |writer, id| writer.string(id.as_str()));
                writer.list(written, |writer, checkout| writer.put(checkout));
            }
            Self::Members(change) => {
                writer.u8(MEMBERS);
                write_change(&mut writer, change);
            }
            Self::LeadBy(node) => {
                writer.u8(LEAD_BY);
                writer.u64(node.get());
            }
            Self::Producers(wanted) => {
                writer.u8(PRODUCERS);
                writer.list(wanted, |writer, one| one.write(writer));
            }
            Self::Check(parcels) => {
                writer.u8(CHECK);
                writer.list(parcels, |writer, one| one.write(writer));
            }
            Self::Fetch(wish) => {
                writer.u8(FETCH);
                wish.write(&mut writer);
            }
        }
        writer.finish()
    }

    pub(super) fn decode(bytes: Bytes) -> Result<Self, CommandError> {
        let mut reader = Reader::new(bytes);
        let question = match reader.u8()? {
            RECEIVE => Self::Receive(read_receive(&mut reader, FilterText::Tags)?),
            WATCH => Self::Watch(read_receive(&mut reader, FilterText::Tags)?),
            STATUS => Self::Status {
                at_least: reader.option(|reader| reader.u64().map(LogIndex::new))?,
                units: reader.bool()?,
            },
            SEEN => Self::Seen {
                consumers: reader.list(ClientId::read)?,
                written: reader.list(CheckoutId::read)?,
            },
            MEMBERS => Self::Members(read_change(&mut reader)?),
            LEAD_BY => Self::LeadBy(NodeId::new(reader.u64()?)),
            PRODUCERS => Self::Producers(reader.list(Wanted::read)?),
            CHECK => Self::Check(reader.list(CheckParcel::read)?),
            FETCH => Self::Fetch(Wish::read(&mut reader)?),
            RECEIVE_SQL => Self::Receive(read_receive(&mut reader, FilterText::Sql)?),
            WATCH_SQL => Self::Watch(read_receive(&mut reader, FilterText::Sql)?),
            found => return Err(CommandError::Kind { what: "a peer's question", found }),
        };
        reader.end()?;
        Ok(question)
    }
}

fn is_sql(request: &ReceiveRequest) -> bool {
    matches!(request.filter, FilterText::Sql(_))
}

fn write_receive(writer: &mut Writer, request: &ReceiveRequest) {
    writer.string(request.topic.as_str());
    writer.string(request.group.as_str());
    writer.string(request.client.as_str());
    let (FilterText::Tags(filter) | FilterText::Sql(filter)) = &request.filter;
    writer.string(filter);
    writer.u32(request.batch);
    writer.u64(request.invisible.get());
    writer.bool(request.auto_renew);
    writer.option(request.attempt_id.as_ref(), |writer, id| writer.string(id));
    writer.u64(u64::try_from(request.poll.as_millis()).unwrap_or(u64::MAX));
}

fn read_receive(
    reader: &mut Reader,
    filter: impl Fn(String) -> FilterText,
) -> Result<ReceiveRequest, CommandError> {
    Ok(ReceiveRequest {
        topic: TopicName::read(reader)?,
        group: GroupName::read(reader)?,
        client: ClientId::read(reader)?,
        filter: filter(reader.string()?),
        batch: reader.u32()?,
        invisible: Millis::new(reader.u64()?),
        auto_renew: reader.bool()?,
        attempt_id: reader.option(Reader::string)?,
        poll: Millis::new(reader.u64()?).duration(),
    })
}

/// Whether there is something; any refusal is a reason to ask again.
pub(super) fn encode_watched(result: &Result<bool, Declined>) -> Bytes {
    let mut writer = Writer::new();
    writer.option(result.as_ref().ok(), |writer, ready| writer.bool(*ready));
    writer.finish()
}

/// `None` when the asked node could not watch.
pub(super) fn decode_watched(bytes: Bytes) -> Result<Option<bool>, CommandError> {
    let mut reader = Reader::new(bytes);
    let ready = reader.option(Reader::bool)?;
    reader.end()?;
    Ok(ready)
}

pub(super) fn encode_parcels(result: &Result<Vec<Parcel>, Declined>) -> Bytes {
    let mut writer = Writer::new();
    match result {
        Ok(parcels) => {
            writer.u8(0);
            writer.list(parcels, |writer, parcel| {
                writer.bytes(&parcel.record);
                writer.u32(parcel.queue.get());
                writer.u64(parcel.offset.get());
                writer.u64(parcel.visible.get());
                writer.u32(parcel.attempt);
                writer.string(&parcel.handle);
                writer.option(parcel.death.as_ref(), |writer, facts| facts.write(writer));
            });
        }
        Err(Declined::NotLeader) => writer.u8(1),
        Err(Declined::NoTopic) => writer.u8(2),
        Err(Declined::NoGroup) => writer.u8(3),
        Err(Declined::Busy) => writer.u8(4),
        Err(Declined::Unavailable { reason, outcome_unknown }) => {
            writer.u8(5);
            writer.string(reason);
            writer.bool(*outcome_unknown);
        }
        Err(Declined::Full { what }) => {
            writer.u8(6);
            writer.string(what);
        }
    }
    writer.finish()
}

pub(super) fn decode_parcels(bytes: Bytes) -> Result<Result<Vec<Parcel>, Declined>, CommandError> {
    let mut reader = Reader::new(bytes);
    let result = match reader.u8()? {
        0 => Ok(reader.list(|reader| {
            Ok(Parcel {
                record: reader.bytes()?,
                queue: QueueId::new(reader.u32()?),
                offset: QueueOffset::new(reader.u64()?),
                visible: UtcMillis::new(reader.u64()?),
                attempt: reader.u32()?,
                handle: reader.string()?,
                death: reader.option(DeathFacts::read)?,
            })
        })?),
        1 => Err(Declined::NotLeader),
        2 => Err(Declined::NoTopic),
        3 => Err(Declined::NoGroup),
        4 => Err(Declined::Busy),
        5 => {
            Err(Declined::Unavailable { reason: reader.string()?, outcome_unknown: reader.bool()? })
        }
        6 => Err(Declined::Full { what: reader.string()? }),
        found => return Err(CommandError::Kind { what: "a peer's answer", found }),
    };
    reader.end()?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind says whose expression it is: a node that knows no SQL must not take it for tags.
    #[test]
    fn a_poll_keeps_its_bytes() {
        let request = |filter| ReceiveRequest {
            topic: TopicName::new("t").unwrap(),
            group: GroupName::new("g").unwrap(),
            client: ClientId::new("c").unwrap(),
            filter,
            batch: 2,
            invisible: Millis::new(3),
            auto_renew: true,
            attempt_id: None,
            poll: Millis::new(4).duration(),
        };
        let (tags, sql) = (FilterText::Tags("a".into()), FilterText::Sql("a".into()));
        let fields = "00000001740000000167000000016300000001610000000200000000000000030100\
                      0000000000000004";
        for (question, kind) in [
            (Question::Receive(request(tags.clone())), "01"),
            (Question::Watch(request(tags)), "04"),
            (Question::Receive(request(sql.clone())), "37"),
            (Question::Watch(request(sql)), "38"),
        ] {
            let bytes = question.encode();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, format!("{kind}{fields}"));
            let again = Question::decode(bytes).unwrap();
            assert_eq!(format!("{again:?}"), format!("{question:?}"));
        }
    }

    #[test]
    fn what_a_node_has_seen_and_written_survives_the_wire() {
        let consumers = vec![ClientId::new("c@1").unwrap()];
        let written = vec![CheckoutId::new(7), CheckoutId::new(8)];
        let seen = Question::Seen { consumers: consumers.clone(), written: written.clone() };
        match Question::decode(seen.encode()) {
            Ok(Question::Seen { consumers: read, written: told }) => {
                assert_eq!((read, told), (consumers, written));
            }
            other => panic!("{other:?}"),
        }
    }
}
