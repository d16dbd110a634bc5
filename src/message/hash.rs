//! The hashes that queues, dedup and ordered groups work with. All are persisted: a change of one
//! would make old units and new ones disagree.

use twox_hash::{XxHash3_64, XxHash3_128};

/// What producer dedup knows a message id by: XXH3 with 128 bits, seed 0, of its UTF-8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageIdHash(u128);

impl MessageIdHash {
    pub fn of(message_id: &str) -> Self {
        Self(XxHash3_128::oneshot(message_id.as_bytes()))
    }

    pub const fn new(value: u128) -> Self {
        Self(value)
    }

    pub const fn get(self) -> u128 {
        self.0
    }
}

/// Java's `String.hashCode` over UTF-16 units, its sign bit as the highest bit; 0 without a tag.
/// Known tools compute the same from the tag text, so they can read our queue units.
pub fn tag_hash(tag: Option<&str>) -> u32 {
    let step = |hash: u32, unit: u16| hash.wrapping_mul(31).wrapping_add(u32::from(unit));
    tag.map_or(0, |tag| tag.encode_utf16().fold(0, step))
}

/// XXH3 with 64 bits, seed 0, of a message group's UTF-8 bytes. 0 means no message group, so the
/// one group in 2^64 that hashes to 0 is moved to 1.
pub fn group_hash(group: Option<&str>) -> u64 {
    group.map_or(0, |group| XxHash3_64::oneshot(group.as_bytes()).max(1))
}

/// CRC-32 (IEEE 802.3) of a body as a record carries it: without the highest bit, which Java's
/// broker clears.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_hash_is_javas() {
        // "Aa" and "BB" are the classic pair that Java cannot tell apart; the long one overflows
        // into the sign bit (-1524582912 there); the last is one code point in two UTF-16 units.
        assert_eq!(tag_hash(Some("TagA")), 2_598_919);
        assert_eq!(tag_hash(Some("Aa")), 2112);
        assert_eq!(tag_hash(Some("BB")), 2112);
        assert_eq!(tag_hash(Some("hello world")), 1_794_106_052);
        assert_eq!(tag_hash(Some("polygenelubricants")), 0x8000_0000);
        assert_eq!(tag_hash(Some("\u{1F600}")), 0xD83D * 31 + 0xDE00);
        assert_eq!(tag_hash(Some("")), 0);
        assert_eq!(tag_hash(None), 0);
    }

    #[test]
    fn hashes_keep_their_values() {
        // XXH3's published vectors for empty input: stored units depend on them.
        assert_eq!(MessageIdHash::of("").get(), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
        assert_eq!(group_hash(Some("")), 0x2d06_8005_38d3_94c2);
        assert_eq!(group_hash(None), 0);
        assert_ne!(group_hash(Some("a")), group_hash(Some("b")));
    }

    #[test]
    fn body_crc_is_the_ieee_one() {
        assert_eq!(body_crc(b"123456789"), 0xCBF4_3926 & 0x7FFF_FFFF);
        assert_eq!(body_crc(b"hello"), 907_060_870);
        assert_eq!(body_crc(b""), 0);
    }
}
