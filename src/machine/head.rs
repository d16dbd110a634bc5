//! How far the state has come, and what a broker group is born with.

use bytes::Bytes;

use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::command::{CommandError, Found, Reader, Writer};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The last applied entry.
    pub(super) applied: Option<(LogIndex, Term)>,
    /// Its stamp.
    pub(super) stamp: UtcMillis,
    /// Where the frame behind it starts: a log that begins with this state continues there.
    pub(super) log_end: LogPosition,
    /// The membership in force, in `raft`'s own bytes, and the entry that set it.
    pub(super) membership: Option<(LogIndex, Term, Bytes)>,
    pub(super) founded: Option<Found>,
}

impl Head {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.option(self.applied.as_ref(), |w, (index, term)| {
            w.put(index);
            w.put(term);
        });
        writer.put(&self.stamp);
        writer.put(&self.log_end);
        writer.option(self.membership.as_ref(), |w, (index, term, bytes)| {
            w.put(index);
            w.put(term);
            w.bytes(bytes);
        });
        writer.option(self.founded.as_ref(), |w, found| w.put(found));
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            applied: reader.option(|r| Ok((r.get()?, r.get()?)))?,
            stamp: reader.get()?,
            log_end: reader.get()?,
            // Copied: a slice would keep the whole checkpoint in memory.
            membership: reader
                .option(|r| Ok((r.get()?, r.get()?, Bytes::copy_from_slice(&r.bytes()?))))?,
            founded: reader.option(Reader::get)?,
        })
    }
}
