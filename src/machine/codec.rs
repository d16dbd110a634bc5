//! What checkpoints need on top of the command codec: tables whose rows come in key order.

use super::error::SectionError;
use crate::command::{Reader, Writer};

/// A u32 count, then the rows in the order of the iterator, which must be deterministic.
pub(super) fn write_rows<T>(
    writer: &mut Writer,
    rows: impl ExactSizeIterator<Item = T>,
    mut write: impl FnMut(&mut Writer, T),
) {
    writer
        .u32(u32::try_from(rows.len()).expect("every table of the machine is bounded below 2^32"));
    for row in rows {
        write(writer, row);
    }
}

/// Reads what [`write_rows`] wrote. Rows go where `read` puts them, so a false count cannot make
/// it allocate more than the bytes at hand justify.
pub(super) fn read_rows(
    reader: &mut Reader,
    mut read: impl FnMut(&mut Reader) -> Result<(), SectionError>,
) -> Result<(), SectionError> {
    for _ in 0..reader.u32()? {
        read(reader)?;
    }
    Ok(())
}

/// Says no to bytes that no machine wrote, without a panic.
pub(super) fn require(holds: bool, what: &'static str) -> Result<(), SectionError> {
    if holds { Ok(()) } else { Err(SectionError::Contradiction(what)) }
}
