//! The file that a replica hands to one that is too far behind: the machine's state, where the log
//! goes on behind it, and who the members are.
//!
//! ```text
//! magic u32 | version u8 | crc32c u32 over the rest | last entry (term u64, index u64) |
//! end u64, the log position behind it | stamp u64 | membership's entry (0, or 1 and term, index) |
//! membership (len u32, bytes) | state (len u32, bytes)
//! ```

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use openraft::RaftSnapshotBuilder;

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::command::{CommandError, Reader, Writer};
use crate::env::Disk;
use crate::machine::Frozen;
use crate::raft::marks::MarkFiles;
use crate::raft::types::{
    EntryId, Membership, SnapshotMeta, StoredMembership, Types, decode_membership,
    encode_membership, entry_id, index_of, term_of,
};

const MAGIC: u32 = 0x524d_5153;
const VERSION: u8 = 1;

/// openraft's name for a state with its description.
pub(crate) type Snapshot = openraft::type_config::alias::SnapshotOf<Types, Bytes>;

/// The content of a snapshot file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) last: EntryId,
    pub(crate) end: LogPosition,
    pub(crate) stamp: UtcMillis,
    pub(crate) membership: StoredMembership,
    pub(crate) state: Bytes,
}

/// Why bytes are not a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error("a snapshot starts with {MAGIC:#x}, not with {found:#x}")]
    Magic { found: u32 },
    #[error("the snapshot's checksum is {stated:#x}, its content has {found:#x}")]
    Checksum { stated: u32, found: u32 },
    #[error("the snapshot cannot be read: {0}")]
    Field(#[from] CommandError),
}

impl Contents {
    /// A frozen state and its file's bytes, of which there is one copy.
    pub(crate) fn of(frozen: &Frozen, membership: StoredMembership) -> (Self, Bytes) {
        let parts = file_parts(frozen, &membership);
        let file = Bytes::from(parts.concat());
        let contents = Self {
            last: entry_id(frozen.index(), frozen.term()),
            end: frozen.log_end(),
            stamp: frozen.stamp(),
            membership,
            state: file.slice(parts[0].len()..),
        };
        (contents, file)
    }

    pub(crate) fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: Some(self.last), last_membership: self.membership.clone() }
    }

    pub(crate) fn decode(bytes: &Bytes) -> Result<Self, SnapshotError> {
        let mut reader = Reader::new(bytes.clone());
        let found = reader.u32()?;
        if found != MAGIC {
            return Err(SnapshotError::Magic { found });
        }
        let found = reader.u8()?;
        if found != VERSION {
            let known = VERSION;
            return Err(CommandError::Version { what: "a snapshot", found, known }.into());
        }
        let stated = reader.u32()?;
        let found = crc32c::crc32c(&bytes[reader.at()..]);
        if stated != found {
            return Err(SnapshotError::Checksum { stated, found });
        }
        let last = read_id(&mut reader)?;
        let end = LogPosition::new(reader.u64()?);
        let stamp = UtcMillis::new(reader.u64()?);
        let at = reader.option(read_id)?;
        let membership: Membership = decode_membership(&reader.bytes()?)?;
        let state = reader.bytes()?;
        reader.end()?;
        let membership = StoredMembership::new(at, membership);
        Ok(Self { last, end, stamp, membership, state })
    }
}

/// The file of a frozen state, one part behind the other. Most of it is shared with the state, so
/// that keeping it takes little memory however large it is.
pub(crate) fn file_parts(frozen: &Frozen, membership: &StoredMembership) -> Vec<Bytes> {
    let last = entry_id(frozen.index(), frozen.term());
    encode(&last, frozen.log_end(), frozen.stamp(), membership, frozen.snapshot_parts())
}

/// What comes before the state is the first part.
fn encode(
    last: &EntryId,
    end: LogPosition,
    stamp: UtcMillis,
    membership: &StoredMembership,
    state: Vec<Bytes>,
) -> Vec<Bytes> {
    let mut before = Writer::with_capacity(256);
    write_id(&mut before, last);
    before.u64(end.get());
    before.u64(stamp.get());
    before.option(membership.log_id().as_ref(), write_id);
    before.bytes(&encode_membership(membership.membership()));
    let len: usize = state.iter().map(Bytes::len).sum();
    before.u32(u32::try_from(len).expect("the tables of a state are bounded far below 4 GiB"));
    let before = before.finish();
    let crc = crc32c::crc32c(&before);
    let crc = state.iter().fold(crc, |crc, part| crc32c::crc32c_append(crc, part));
    let mut first = Writer::with_capacity(before.len() + 9);
    first.u32(MAGIC);
    first.u8(VERSION);
    first.u32(crc);
    first.raw(&before);
    [first.finish()].into_iter().chain(state).collect()
}

fn write_id(writer: &mut Writer, id: &EntryId) {
    writer.u64(term_of(id).get());
    writer.u64(index_of(id).get());
}

fn read_id(reader: &mut Reader) -> Result<EntryId, CommandError> {
    let term = Term::new(reader.u64()?);
    Ok(entry_id(LogIndex::new(reader.u64()?), term))
}

/// Where the newest snapshot of this replica is.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFile {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
}

impl SnapshotFile {
    /// Durable when it returns.
    pub(crate) fn store(&self, content: &[u8]) -> io::Result<()> {
        self.disk.replace(&self.path, content)
    }

    pub(crate) fn load(&self) -> io::Result<Option<(Contents, Bytes)>> {
        let bytes = match self.disk.read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let contents = Contents::decode(&bytes).map_err(io::Error::other)?;
        Ok(Some((contents, bytes)))
    }
}

impl SnapshotFile {
    /// As [`Self::load`], but a damaged file is as good as none.
    pub(crate) fn load_if_good(&self) -> io::Result<Option<(Contents, Bytes)>> {
        let bytes = match self.disk.read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match Contents::decode(&bytes) {
            Ok(contents) => Ok(Some((contents, bytes))),
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "the snapshot is damaged");
                Ok(None)
            }
        }
    }
}

/// A frozen state on its way to the snapshot file.
pub(crate) struct SnapshotBuilder {
    pub(crate) file: SnapshotFile,
    /// With its bytes.
    pub(crate) contents: Option<(Contents, Bytes)>,
    /// Where it lies already, as the state at a mark.
    pub(crate) mark: Option<MarkFiles>,
}

impl RaftSnapshotBuilder<Types> for SnapshotBuilder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let Some((contents, snapshot)) = self.contents.take() else {
            // Before the first entry there is nothing to keep; openraft asks all the same.
            return Ok(Snapshot { meta: SnapshotMeta::default(), snapshot: Bytes::new() });
        };
        match &self.mark {
            Some(files) => files.adopt(index_of(&contents.last), &snapshot, &self.file)?,
            None => self.file.store(&snapshot)?,
        }
        Ok(Snapshot { meta: contents.meta(), snapshot })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::base::{QueueId, TopicId, TopicName};
    use crate::command::{Command, CreateTopic, PublishItem, Schedule, ScheduleItem};
    use crate::env::sim::Sim;
    use crate::machine::{Entry, Machine, Options};
    use crate::message::{MessageIdHash, MessageKind};

    fn contents() -> Contents {
        let at = entry_id(LogIndex::new(3), Term::new(2));
        Contents {
            last: entry_id(LogIndex::new(7), Term::new(2)),
            end: LogPosition::new(4_000),
            stamp: UtcMillis::new(99),
            membership: StoredMembership::new(Some(at), Membership::default()),
            state: Bytes::from_static(b"state"),
        }
    }

    #[test]
    fn reads_what_it_wrote_and_nothing_else() {
        let Contents { last, end, stamp, membership, state } = contents();
        let state = vec![state.slice(..2), state.slice(2..)];
        let parts = encode(&last, end, stamp, &membership, state);
        let bytes = Bytes::from(parts.concat());
        assert_eq!(Contents::decode(&bytes).unwrap(), contents());
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x40;
            assert!(Contents::decode(&damaged.into()).is_err(), "byte {at} went unnoticed");
            assert!(Contents::decode(&bytes.slice(..at)).is_err(), "{at} bytes were enough");
        }
    }

    /// A state with many delayed messages is large, and there is one at each mark.
    #[test]
    fn a_file_shares_its_bytes_with_the_state() {
        let env = Sim::new(3).env();
        env.disk.create_dir_all(Path::new("/node")).unwrap();
        let mut machine =
            Machine::open(&env, Path::new("/node/machine"), Options::default()).unwrap();
        let mut end = LogPosition::ZERO;
        let mut apply = |index: u64, command: Command| {
            let command = command.encode();
            let position = end.plus(40);
            end = position.plus(command.len() as u64);
            let (index, term, stamp) = (LogIndex::new(index), Term::new(1), UtcMillis::new(9));
            machine.apply(&Entry { index, term, stamp, position, end, command }).unwrap()
        };
        let (name, kinds) = (TopicName::new("later").unwrap(), vec![MessageKind::Delay]);
        apply(0, Command::CreateTopic(CreateTopic { name, queues: 1, kinds, keep: None }));
        for index in 1..=20_u64 {
            let item = |at: u64| PublishItem {
                queue: QueueId::new(0),
                kind: MessageKind::Delay,
                id_hash: MessageIdHash::new((index << 32 | at).into()),
                body_crc: 0,
                tag_hash: 0,
                group_hash: 0,
                record: Bytes::from_static(b"a record"),
                record_at: 0,
            };
            let due = UtcMillis::new(u64::MAX);
            let items = (0..1_000).map(|at| ScheduleItem { due, item: item(at) }).collect();
            apply(
                index,
                Command::Schedule(Schedule { topic: TopicId::new(1), dedup: false, items }),
            );
        }
        let frozen = machine.freeze_for_peers().unwrap();
        let membership = contents().membership;
        let parts = file_parts(&frozen, &membership);
        let longest = parts.iter().map(Bytes::len).max().unwrap();
        let (contents, file) = Contents::of(&frozen, membership);
        assert!(longest < file.len() / 20, "a part has {longest} of {} bytes", file.len());
        assert_eq!(file, parts.concat());
        assert_eq!(Contents::decode(&file).unwrap(), contents);
        assert_eq!(contents.state, frozen.snapshot());
        // The same rows, not a copy of them.
        let addresses =
            |parts: &[Bytes]| parts.iter().map(|part| part.as_ptr()).collect::<Vec<_>>();
        let again = addresses(&frozen.snapshot_parts());
        let shared = addresses(&parts[1..]).iter().zip(&again).filter(|(a, b)| a == b).count();
        assert!(shared > 70, "{shared} of {} parts", again.len());
    }
}
