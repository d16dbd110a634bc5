//! Who this replica is. A directory without it is a new disk and must not vote under an old id.

use std::io;
use std::path::Path;

use crate::base::{BrokerGroupId, ClusterId, NodeId};
use crate::commit_log::small_file::{self, Fields, SmallFileError};
use crate::env::Disk;

const NAME: &str = "identity";
const MAGIC: [u8; 4] = *b"RMQI";
const PAYLOAD: usize = 28;

/// Why an identity file cannot be used.
pub type IdentityError = SmallFileError;

/// The cluster, broker group and node that a data directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: ClusterId,
    pub group: BrokerGroupId,
    pub node: NodeId,
}

impl Identity {
    /// `None` when the directory holds no identity: the disk is new.
    pub fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, IdentityError> {
        let payload = small_file::load::<PAYLOAD>(disk, &dir.join(NAME), MAGIC)?;
        Ok(payload.map(|payload| {
            let mut fields = Fields(&payload);
            Self {
                cluster: ClusterId::new(fields.u128()),
                group: BrokerGroupId::new(fields.u32()),
                node: NodeId::new(fields.u64()),
            }
        }))
    }

    /// Durable at return. The directory must exist.
    pub fn store(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let mut payload = [0; PAYLOAD];
        payload[..16].copy_from_slice(&self.cluster.get().to_be_bytes());
        payload[16..20].copy_from_slice(&self.group.get().to_be_bytes());
        payload[20..].copy_from_slice(&self.node.get().to_be_bytes());
        disk.replace(&dir.join(NAME), &small_file::encode(MAGIC, &payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::sim::SimDisk;

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
        };
        identity.store(&disk, dir).unwrap();
        disk.power_cut(1);
        assert_eq!(Identity::load(&disk, dir).unwrap(), Some(identity));
        let bytes = disk.read(&dir.join(NAME)).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "524d5149011c0000000000000000000000000000010203040000000500000000000000060aa33a22"
        );
        disk.flip_bit(&dir.join(NAME), 12, 0);
        assert!(Identity::load(&disk, dir).is_err());
    }
}
