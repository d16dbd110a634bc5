//! Who this replica is. A directory without it is a new disk and must not vote under an old id.

use std::io;
use std::path::Path;

use crate::base::{BrokerGroupId, ClusterId, Durability, LogIndex, NodeId};
use crate::commit_log::small_file::{self, Fields, SmallFileError};
use crate::env::Disk;

const NAME: &str = "identity";
const MAGIC: [u8; 4] = *b"RMQI";
/// Cluster (16), broker group (4), node (8), durability (1), 1 and the index where the node joined
/// (1 + 8).
const PAYLOAD: usize = 38;
/// The first form, which ended behind the node.
const PAYLOAD_FIRST: usize = 28;

/// Why an identity file cannot be used.
pub type IdentityError = SmallFileError;

/// What a data directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: ClusterId,
    pub group: BrokerGroupId,
    pub node: NodeId,
    /// Of the whole broker group, since it was created.
    pub durability: Durability,
    /// The entry that made this node a learner of a group that ran already. Until its log reaches
    /// it, old entries may call this id a voter, and it must not act as one. `None` for a node
    /// that was there from the start.
    pub joined: Option<LogIndex>,
}

impl Identity {
    /// `None` when the directory holds no identity: the disk is new.
    pub fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, IdentityError> {
        let path = dir.join(NAME);
        let damaged = |reason| SmallFileError::Damaged { path: path.clone(), reason };
        let bytes = match disk.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(SmallFileError::Io { path, source }),
        };
        if let Ok(first) = small_file::decode::<PAYLOAD_FIRST>(MAGIC, &bytes) {
            return Ok(Some(Self::first_form(&mut Fields(&first))));
        }
        let payload = small_file::decode::<PAYLOAD>(MAGIC, &bytes).map_err(damaged)?;
        let mut fields = Fields(&payload);
        let first = Self::first_form(&mut fields);
        let durability = Durability::of_number(fields.u8())
            .ok_or_else(|| damaged("its durability is none that this version knows"))?;
        let has_joined = fields.u8() != 0;
        let joined = LogIndex::new(fields.u64());
        Ok(Some(Self { durability, joined: has_joined.then_some(joined), ..first }))
    }

    fn first_form(fields: &mut Fields<'_>) -> Self {
        Self {
            cluster: ClusterId::new(fields.u128()),
            group: BrokerGroupId::new(fields.u32()),
            node: NodeId::new(fields.u64()),
            durability: Durability::MajorityFsync,
            joined: None,
        }
    }

    /// Durable at return. The directory must exist.
    pub fn store(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let mut payload = [0; PAYLOAD];
        payload[..16].copy_from_slice(&self.cluster.get().to_be_bytes());
        payload[16..20].copy_from_slice(&self.group.get().to_be_bytes());
        payload[20..28].copy_from_slice(&self.node.get().to_be_bytes());
        payload[28] = self.durability.number();
        payload[29] = u8::from(self.joined.is_some());
        payload[30..].copy_from_slice(&self.joined.unwrap_or_default().get().to_be_bytes());
        disk.replace(&dir.join(NAME), &small_file::encode(MAGIC, &payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::sim::SimDisk;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn survives_a_power_cut_and_refuses_damage() {
        let disk = SimDisk::new();
        let dir = Path::new("/node");
        disk.create_dir_all(dir).unwrap();
        assert_eq!(Identity::load(&disk, dir).unwrap(), None);
        let identity = Identity {
            cluster: ClusterId::new(0x0102_0304),
            group: BrokerGroupId::new(5),
            node: NodeId::new(6),
            durability: Durability::MajorityMemory,
            joined: Some(LogIndex::new(7)),
        };
        identity.store(&disk, dir).unwrap();
        disk.power_cut(1);
        assert_eq!(Identity::load(&disk, dir).unwrap(), Some(identity));
        let bytes = disk.read(&dir.join(NAME)).unwrap();
        assert_eq!(
            hex(&bytes),
            "524d514901260000000000000000000000000000010203040000000500000000000000060201\
             000000000000000705a40939"
        );
        disk.flip_bit(&dir.join(NAME), 12, 0);
        assert!(Identity::load(&disk, dir).is_err());
    }

    #[test]
    fn the_first_form_is_still_read() {
        let disk = SimDisk::new();
        let dir = Path::new("/node");
        disk.create_dir_all(dir).unwrap();
        let identity = Identity {
            cluster: ClusterId::new(0x0102_0304),
            group: BrokerGroupId::new(5),
            node: NodeId::new(6),
            durability: Durability::MajorityFsync,
            joined: None,
        };
        let mut payload = [0; PAYLOAD_FIRST];
        payload[..16].copy_from_slice(&identity.cluster.get().to_be_bytes());
        payload[19] = 5;
        payload[27] = 6;
        let bytes = small_file::encode(MAGIC, &payload);
        assert_eq!(
            hex(&bytes),
            "524d5149011c0000000000000000000000000000010203040000000500000000000000060aa33a22"
        );
        disk.replace(&dir.join(NAME), &bytes).unwrap();
        assert_eq!(Identity::load(&disk, dir).unwrap(), Some(identity));
    }
}
