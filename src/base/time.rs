//! Instants and durations as data: nothing here reads a clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// An instant: milliseconds since 1970-01-01T00:00:00Z, as an entry's stamp carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtcMillis(u64);

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(u64);

impl UtcMillis {
    pub const ZERO: Self = Self(0);

    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// Saturates at the end of time, so that a hostile duration cannot wrap into the past.
    #[must_use]
    pub const fn plus(self, length: Millis) -> Self {
        Self(self.0.saturating_add(length.0))
    }

    /// Zero when `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Millis {
    pub const ZERO: Self = Self(0);

    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// Why a text is not a length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a length of time; write a whole number with ms, s, m, h or d, such as 72h"
)]
pub struct MillisError {
    text: String,
}

const TIME_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl FromStr for Millis {
    type Err = MillisError;

    fn from_str(text: &str) -> Result<Self, MillisError> {
        let error = || MillisError { text: text.to_owned() };
        let trimmed = text.trim();
        let unit = |(name, unit): &(&str, u64)| Some((trimmed.strip_suffix(name)?, *unit));
        let (digits, unit) = TIME_UNITS.iter().find_map(unit).ok_or_else(error)?;
        let count: u64 = digits.trim().parse().map_err(|_| error())?;
        count.checked_mul(unit).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for UtcMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// RocketMQ's 18 delay levels, level 1 first. They double as the back-off between attempts, which
/// starts at level 3 there and at level 1 for gRPC clients, as the Settings reply tells them.
pub const DELAY_LEVELS: [Millis; 18] = [
    Millis::from_secs(1),
    Millis::from_secs(5),
    Millis::from_secs(10),
    Millis::from_secs(30),
    Millis::from_secs(60),
    Millis::from_secs(2 * 60),
    Millis::from_secs(3 * 60),
    Millis::from_secs(4 * 60),
    Millis::from_secs(5 * 60),
    Millis::from_secs(6 * 60),
    Millis::from_secs(7 * 60),
    Millis::from_secs(8 * 60),
    Millis::from_secs(9 * 60),
    Millis::from_secs(10 * 60),
    Millis::from_secs(20 * 60),
    Millis::from_secs(30 * 60),
    Millis::from_secs(60 * 60),
    Millis::from_secs(2 * 60 * 60),
];

/// The delay of a level, from 1; a higher one than the last stands for the last, as in RocketMQ.
pub fn delay_level(level: u32) -> Option<Millis> {
    let at = usize::try_from(level.checked_sub(1)?).unwrap_or(usize::MAX);
    Some(DELAY_LEVELS[at.min(DELAY_LEVELS.len() - 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_count_from_one_and_end_with_the_last() {
        assert_eq!(delay_level(0), None);
        assert_eq!(delay_level(1), Some(Millis::from_secs(1)));
        assert_eq!(delay_level(5), Some(Millis::from_secs(60)));
        assert_eq!(delay_level(18), Some(Millis::from_secs(7200)));
        assert_eq!(delay_level(u32::MAX), delay_level(18));
    }

    #[test]
    fn lengths_of_time_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Millis>().map(Millis::get);
        assert_eq!(read("250ms"), Ok(250));
        assert_eq!(read(" 60 s"), Ok(60_000));
        assert_eq!(read("5m"), Ok(300_000));
        assert_eq!(read("72h"), Ok(259_200_000));
        assert_eq!(read("30d"), Ok(2_592_000_000));
        for text in ["", "72", "h", "-1s", "1.5h", "999999999999999999d"] {
            assert!(read(text).is_err(), "{text:?} was read");
        }
    }
}
