//! Small checksummed records: vote, identity and the like. Big-endian:
//! magic (4) | version (1) | length of the payload (u8) | reserved (u16) | payload | CRC32C (u32).

use std::io;
use std::path::{Path, PathBuf};

use crate::env::{Disk, Open};

const HEADER: usize = 8;
const CHECKSUM: usize = 4;
const VERSION: u8 = 1;

/// A small file whose content cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum SmallFileError {
    #[error("{path} is damaged ({reason}); restore this node from its peers under a new node id")]
    Damaged { path: PathBuf, reason: &'static str },
    #[error("{path} cannot be read: {source}")]
    Io { path: PathBuf, source: io::Error },
}

pub(super) fn encode(magic: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let len = u8::try_from(payload.len()).expect("small records are small");
    let mut bytes = Vec::with_capacity(HEADER + payload.len() + CHECKSUM);
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&[VERSION, len, 0, 0]);
    bytes.extend_from_slice(payload);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes
}

/// Bytes of a file that waits to become the next one: a block of any file system.
const PREPARED: u64 = 4096;
const PREPARED_EXTENSION: &str = "next";

/// As [`Disk::replace`], with a neighbour that was made ahead, so that a full disk does not hold up
/// what a replica must be able to write. Bytes behind the record mean nothing.
pub(super) fn replace(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let next = path.with_extension(PREPARED_EXTENSION);
    let file = disk.open(&next, Open::Log)?;
    file.write_at(0, content)?;
    file.sync_data()?;
    drop(file);
    disk.rename(&next, path)?;
    if let Some(parent) = path.parent() {
        disk.sync_dir(parent)?;
    }
    prepare(disk, path)
}

/// Makes the neighbour. A disk that is full now may have room by the time it is needed.
pub(super) fn prepare(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let next = path.with_extension(PREPARED_EXTENSION);
    match disk.open(&next, Open::Log).and_then(|file| file.allocate(PREPARED)) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
        prepared => prepared,
    }
}

/// The payload of the record at the front of `bytes`.
pub(super) fn decode<const N: usize>(
    magic: [u8; 4],
    bytes: &[u8],
) -> Result<[u8; N], &'static str> {
    let record = bytes.get(..HEADER + N + CHECKSUM).ok_or("it is too short")?;
    let (content, crc) = record.split_at(HEADER + N);
    if content[..4] != magic {
        return Err("its magic number is wrong");
    }
    if content[4] != VERSION {
        return Err("its format version is unknown");
    }
    if usize::from(content[5]) != N {
        return Err("its length is wrong");
    }
    if crc32c::crc32c(content).to_be_bytes() != crc {
        return Err("its checksum is wrong");
    }
    content[HEADER..].try_into().map_err(|_| "it is too short")
}

/// The payload of a file, `None` when the file is missing.
pub(super) fn load<const N: usize>(
    disk: &dyn Disk,
    path: &Path,
    magic: [u8; 4],
) -> Result<Option<[u8; N]>, SmallFileError> {
    let bytes = match disk.read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SmallFileError::Io { path: path.to_path_buf(), source }),
    };
    match decode(magic, &bytes) {
        Ok(payload) => Ok(Some(payload)),
        Err(reason) => Err(SmallFileError::Damaged { path: path.to_path_buf(), reason }),
    }
}

/// Reads the fields of a payload in order.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk::<N>().expect("payload sizes are constants");
        self.0 = rest;
        *field
    }

    pub(super) fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    pub(super) fn u128(&mut self) -> u128 {
        u128::from_be_bytes(self.take())
    }
}
