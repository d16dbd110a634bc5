//! Sizes in bytes, as people write them: `64MiB`, `1GiB`, `4096`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a size; write a whole number with B, KiB, MiB or GiB, such as 64MiB")]
pub struct ByteSizeError {
    text: String,
}

impl ByteSize {
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let error = || ByteSizeError { text: text.to_owned() };
        let trimmed = text.trim();
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| trimmed.strip_suffix(name).map(|digits| (digits, *unit)))
            .unwrap_or((trimmed, 1));
        let count: u64 = digits.trim().parse().map_err(|_| error())?;
        count.checked_mul(unit).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, unit): &&(&str, u64)| self.0 >= *unit && self.0.is_multiple_of(*unit);
        let (name, unit) = UNITS.iter().find(fits).unwrap_or(&("B", 1));
        write!(f, "{}{}", self.0 / unit, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints() {
        for (text, bytes) in [("64MiB", 64 << 20), ("1GiB", 1 << 30), ("0B", 0), ("1500B", 1500)] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.get(), bytes);
            assert_eq!(size.to_string(), text);
        }
        assert_eq!("4096".parse::<ByteSize>().unwrap(), ByteSize::kib(4));
        assert!("1.5GiB".parse::<ByteSize>().is_err());
        assert!("99999999999GiB".parse::<ByteSize>().is_err());
    }
}
