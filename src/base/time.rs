//! Instants and durations as data: nothing here reads a clock.

use std::fmt;
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
