//! One process for each data directory.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::NodeError;

/// Held while the value lives. The kernel gives it back however the process ends.
#[derive(Debug)]
pub(super) struct DataLock {
    _file: File,
}

const NAME: &str = "lock";

impl DataLock {
    /// Makes the directory if it is not there.
    pub(super) fn take(data: &Path) -> Result<Self, NodeError> {
        let error = |source| NodeError::Data { path: data.to_owned(), source };
        fs::create_dir_all(data).map_err(error)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(data.join(NAME))
            .map_err(error)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(Errno::WOULDBLOCK) => Err(NodeError::DataInUse { path: data.to_owned() }),
            Err(errno) => Err(error(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("new");
        let first = DataLock::take(&data).unwrap();
        assert!(matches!(DataLock::take(&data), Err(NodeError::DataInUse { .. })));
        drop(first);
        DataLock::take(&data).unwrap();
    }
}
