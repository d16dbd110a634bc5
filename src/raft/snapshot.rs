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
    pub(crate) fn of(frozen: &Frozen, membership: StoredMembership) -> Self {
        Self {
            last: entry_id(frozen.index(), frozen.term()),
            end: frozen.log_end(),
            stamp: frozen.stamp(),
            membership,
            state: frozen.snapshot(),
        }
    }

    pub(crate) fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: Some(self.last), last_membership: self.membership.clone() }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut rest = Writer::with_capacity(self.state.len() + 256);
        write_id(&mut rest, &self.last);
        rest.u64(self.end.get());
        rest.u64(self.stamp.get());
        rest.option(self.membership.log_id().as_ref(), write_id);
        rest.bytes(&encode_membership(self.membership.membership()));
        rest.bytes(&self.state);
        let rest = rest.finish();
        let mut file = Writer::with_capacity(rest.len() + 9);
        file.u32(MAGIC);
        file.u8(VERSION);
        file.u32(crc32c::crc32c(&rest));
        file.raw(&rest);
        file.finish()
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
    use super::*;

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
        let bytes = contents().encode();
        assert_eq!(Contents::decode(&bytes).unwrap(), contents());
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x40;
            assert!(Contents::decode(&damaged.into()).is_err(), "byte {at} went unnoticed");
            assert!(Contents::decode(&bytes.slice(..at)).is_err(), "{at} bytes were enough");
        }
    }
}
