//! What an OK to a send stands for.

use std::fmt;
use std::str::FromStr;

/// Decided when a broker group is created, and never changed afterwards. Numbers are persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Durability {
    /// A majority has synced it to its disks.
    #[default]
    MajorityFsync = 1,
    /// A majority has it in the memory of its system; it is synced a little later. Survives the
    /// end of any process, but not the loss of power of a majority at once.
    MajorityMemory = 2,
}

/// A text that names no durability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no durability; there are majority-fsync and majority-memory")]
pub struct DurabilityError {
    text: String,
}

impl Durability {
    const ALL: [Self; 2] = [Self::MajorityFsync, Self::MajorityMemory];

    pub const fn name(self) -> &'static str {
        match self {
            Self::MajorityFsync => "majority-fsync",
            Self::MajorityMemory => "majority-memory",
        }
    }

    pub const fn number(self) -> u8 {
        self as u8
    }

    /// `None` for a number that a later version may have given out.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.number() == number)
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Durability {
    type Err = DurabilityError;

    fn from_str(text: &str) -> Result<Self, DurabilityError> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| DurabilityError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_fixed() {
        for (mode, name, number) in [
            (Durability::MajorityFsync, "majority-fsync", 1),
            (Durability::MajorityMemory, "majority-memory", 2),
        ] {
            assert_eq!((mode.name(), mode.number()), (name, number));
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(Durability::of_number(number), Some(mode));
        }
        assert_eq!(Durability::of_number(0), None);
        let error = "fsync".parse::<Durability>().unwrap_err().to_string();
        assert!(error.contains("fsync") && error.contains("majority-memory"), "{error}");
    }
}
