//! One number for a whole state, so that replicas can be compared.

use std::hash::Hasher;

use bytes::Bytes;
use twox_hash::XxHash3_64;

use super::dedup::DedupImage;
use super::timers::RowsImage;

/// A copy of every replicated table, as it stood after one entry.
#[derive(Debug)]
pub(super) struct Image {
    /// Section number and bytes, in the order of numbers.
    pub(super) sections: Vec<(u8, Bytes)>,
    pub(super) timers: RowsImage,
    pub(super) dedup: DedupImage,
}

impl Image {
    /// About the bytes that a checkpoint of it has.
    pub(super) fn len(&self) -> u64 {
        let sections: usize = self.sections.iter().map(|(_, bytes)| bytes.len()).sum();
        sections as u64 + self.timers.len() + self.dedup.len()
    }

    /// XXH3 over every section's number, length and bytes, in order, then over delayed
    /// messages and the memory of sent ones. Equal states have equal bytes: tables are ordered, and no field has two forms.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = XxHash3_64::new();
        for (section, bytes) in &self.sections {
            hasher.write(&[*section]);
            hasher.write(&(bytes.len() as u64).to_be_bytes());
            hasher.write(bytes);
        }
        hasher.write(&self.timers.hash().to_be_bytes());
        hasher.write(&self.dedup.hash().to_be_bytes());
        hasher.finish()
    }
}
