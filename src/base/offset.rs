//! The number lines of a broker group. No conversions exist between them.

use std::fmt;

macro_rules! number_line {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            pub const ZERO: Self = Self(0);

            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            pub const fn get(self) -> u64 {
                self.0
            }

            /// The point `count` further on. Panics on overflow: a log of 2^64 is a bug.
            #[must_use]
            pub const fn plus(self, count: u64) -> Self {
                match self.0.checked_add(count) {
                    Some(value) => Self(value),
                    None => panic!("number line overflow"),
                }
            }

            #[must_use]
            pub const fn next(self) -> Self {
                self.plus(1)
            }

            /// How far `self` lies behind `earlier`; panics when it lies before.
            pub const fn since(self, earlier: Self) -> u64 {
                match self.0.checked_sub(earlier.0) {
                    Some(value) => value,
                    None => panic!("number line underflow"),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_line! {
    /// Counts log entries, from 0. The first entry of a group has index 0 (openraft's membership).
    LogIndex
}
number_line! {
    /// Counts bytes of the log, frames with their headers, without padding; equal on all replicas.
    LogPosition
}
number_line! {
    /// Counts messages of one queue, from 0, in the order in which they became visible.
    QueueOffset
}
number_line! {
    /// A Raft term.
    Term
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_along_one_line() {
        let at = LogPosition::new(40).plus(2);
        assert_eq!(at.get(), 42);
        assert_eq!(at.since(LogPosition::new(40)), 2);
        assert_eq!(QueueOffset::ZERO.next(), QueueOffset::new(1));
    }

    #[test]
    #[should_panic(expected = "underflow")]
    fn refuses_to_run_backwards() {
        LogIndex::new(1).since(LogIndex::new(2));
    }
}
