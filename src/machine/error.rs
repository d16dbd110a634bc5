//! Why the machine could not go on. All of these end the node, or make it choose an older start.

use std::io;
use std::path::PathBuf;

use crate::base::{LogIndex, Term, UtcMillis};
use crate::command::CommandError;

/// Why an entry was not applied. The replica cannot go on: the node ends.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("entry {found} came where {expected} was expected: the log has a gap or a repeat")]
    Gap { expected: LogIndex, found: LogIndex },
    #[error("entry {index} has term {found}, below the applied term {applied}")]
    Term { index: LogIndex, applied: Term, found: Term },
    #[error("entry {index} is stamped {found}, before its predecessor's {applied}")]
    Stamp { index: LogIndex, applied: UtcMillis, found: UtcMillis },
    #[error("entry {index} cannot be understood: {source}")]
    Command { index: LogIndex, source: CommandError },
    #[error("writing queue units failed at entry {index}: {source}")]
    Io { index: LogIndex, source: io::Error },
    #[error("an earlier entry failed; nothing can be applied any more, restart the node")]
    Ended,
}

/// Why a checkpoint's bytes do not give a state.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{len} bytes are too few for a checkpoint")]
    Short { len: usize },
    #[error("it starts with {found:08x}, not with a checkpoint's magic number")]
    Magic { found: u32 },
    #[error("it has format version {found}; this program reads {known}")]
    Version { found: u8, known: u8 },
    #[error("its checksum is {found:08x}, but its bytes give {computed:08x}: it is damaged")]
    Checksum { found: u32, computed: u32 },
    #[error("section {section} is missing")]
    Missing { section: u8 },
    #[error("section {section} is not known to this program")]
    Section { section: u8 },
    #[error("section {section}: {source}")]
    Field { section: u8, source: CommandError },
    #[error("its parts contradict each other: {what}")]
    Contradiction { what: &'static str },
    #[error("its state hashes to {computed:016x}, but {found:016x} was written")]
    StateHash { found: u64, computed: u64 },
    #[error("it continues the floor {found:?}, but the floor here is {floor:?}")]
    Floor { found: Option<LogIndex>, floor: Option<LogIndex> },
    #[error("the queue units behind it are not all there: {file} {why}")]
    Units { file: String, why: String },
    #[error("reading it failed: {0}")]
    Io(#[from] io::Error),
}

/// Why one section of a checkpoint does not give its table.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SectionError {
    #[error(transparent)]
    Field(#[from] CommandError),
    #[error("{0}")]
    Contradiction(&'static str),
}

impl SectionError {
    pub(super) fn of_section(self, section: u8) -> CheckpointError {
        match self {
            Self::Field(source) => CheckpointError::Field { section, source },
            Self::Contradiction(what) => CheckpointError::Contradiction { what },
        }
    }
}

/// Why the machine could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("machine directory {}: {source}", dir.display())]
    Io { dir: PathBuf, source: io::Error },
    #[error(
        "the floor checkpoint {} cannot be used: {source}; the log before it is gone, so replace \
         this node by a new one",
        file.display()
    )]
    Floor { file: PathBuf, source: CheckpointError },
}

/// Why a peer's state was not taken over. Nothing was changed, except where the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("the peer's state cannot be used: {0}")]
    Snapshot(#[from] CheckpointError),
    #[error("the peer's state ends at entry {snapshot}, but {applied} is applied here")]
    Older { snapshot: LogIndex, applied: LogIndex },
    #[error("taking over the peer's state failed: {0}")]
    Io(#[from] io::Error),
}
