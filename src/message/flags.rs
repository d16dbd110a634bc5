//! The system flag of a stored record, bit by bit as RocketMQ's `MessageSysFlag` has it.

use std::fmt;

use super::BodyEncoding;

/// A set of bits. Bits that this program does not use are kept as they are.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SysFlag(u32);

impl SysFlag {
    /// The body is compressed. Without a codec it is gzip from gRPC clients, zlib from classic ones.
    pub const COMPRESSED: Self = Self(0x1);
    /// The tag text holds several tags.
    pub const MULTI_TAG: Self = Self(0x2);
    /// The two bits of a transaction: half, committed, rolled back; none of them is 0.
    pub const TRANSACTION: Self = Self(0xC);
    pub const HALF: Self = Self(0x4);
    pub const COMMITTED: Self = Self(0x8);
    pub const ROLLED_BACK: Self = Self(0xC);
    /// The born host has 16 + 4 bytes instead of 4 + 4.
    pub const BORN_HOST_V6: Self = Self(0x10);
    /// The store host has 16 + 4 bytes instead of 4 + 4.
    pub const STORE_HOST_V6: Self = Self(0x20);
    /// The three bits that name the codec of a compressed body: 0 old, 1 LZ4, 2 ZSTD, 3 ZLIB.
    pub const CODEC: Self = Self(0x700);

    pub const fn new(bits: u32) -> Self {
        Self(bits)
    }

    pub const fn bits(self) -> u32 {
        self.0
    }

    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The number of the codec, 0 to 7.
    pub const fn codec(self) -> u32 {
        (self.0 & Self::CODEC.0) >> Self::CODEC.0.trailing_zeros()
    }

    pub const fn of_encoding(encoding: BodyEncoding) -> Self {
        match encoding {
            BodyEncoding::Identity => Self(0),
            BodyEncoding::Gzip => Self::COMPRESSED,
        }
    }
}

impl fmt::Debug for SysFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SysFlag({:#x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rolled_back_transaction_is_both_bits() {
        let flag = SysFlag::COMPRESSED.with(SysFlag::ROLLED_BACK).with(SysFlag::new(0x300));
        assert_eq!(flag.bits(), 0x30D);
        assert!(flag.contains(SysFlag::TRANSACTION));
        assert!(!SysFlag::HALF.contains(SysFlag::TRANSACTION));
        assert_eq!(flag.codec(), 3);
    }
}
