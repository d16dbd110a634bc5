//! The vote on disk: replaced whole, never patched, because a node that forgets its vote can vote
//! twice in one term.

use std::io;
use std::path::Path;

use crate::base::{Mutant, NodeId, Term};
use crate::commit_log::Vote;
use crate::commit_log::small_file::{self, Fields, SmallFileError};
use crate::env::Disk;

const NAME: &str = "vote";
const MAGIC: [u8; 4] = *b"RMQV";
const PAYLOAD: usize = 17;

fn encode(vote: Vote) -> Vec<u8> {
    let mut payload = [0; PAYLOAD];
    payload[..8].copy_from_slice(&vote.term.get().to_be_bytes());
    payload[8..16].copy_from_slice(&vote.node.get().to_be_bytes());
    payload[16] = u8::from(vote.committed);
    small_file::encode(MAGIC, &payload)
}

/// Durable at return.
pub(super) fn save(disk: &dyn Disk, dir: &Path, vote: Vote) -> io::Result<()> {
    if Mutant::VoteNotSynced.is_on() {
        let file = disk.open(&dir.join(NAME), crate::env::Open::Log)?;
        return file.write_at(0, &encode(vote));
    }
    small_file::replace(disk, &dir.join(NAME), &encode(vote))
}

/// Before the disk can be full.
pub(super) fn prepare(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    small_file::prepare(disk, &dir.join(NAME))
}

pub(super) fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Vote>, SmallFileError> {
    let payload = small_file::load::<PAYLOAD>(disk, &dir.join(NAME), MAGIC)?;
    Ok(payload.map(|payload| {
        let mut fields = Fields(&payload);
        Vote {
            term: Term::new(fields.u64()),
            node: NodeId::new(fields.u64()),
            committed: fields.u8() != 0,
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::sim::SimDisk;

    #[test]
    fn golden_bytes_and_damage() {
        let vote = Vote { term: Term::new(7), node: NodeId::new(3), committed: true };
        let hex: String = encode(vote).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "524d515601110000000000000000000700000000000000030107a504e5");

        let disk = SimDisk::new();
        let dir = Path::new("/node");
        disk.create_dir_all(dir).unwrap();
        assert_eq!(load(&disk, dir).unwrap(), None);
        save(&disk, dir, vote).unwrap();
        disk.power_cut(1);
        assert_eq!(load(&disk, dir).unwrap(), Some(vote));
        disk.flip_bit(&dir.join(NAME), 10, 3);
        let error = load(&disk, dir).unwrap_err().to_string();
        assert!(error.contains("/node/vote") && error.contains("checksum"), "{error}");
    }
}
