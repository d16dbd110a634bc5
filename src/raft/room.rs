//! What is refused while disks are full (rule R10). The leader acts on what a majority of the
//! voters has left: a message that only a minority could store is no message.

use std::fmt;

use crate::base::ByteSize;
use crate::raft::admission::Class;

/// How little is left, least serious first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    #[default]
    None,
    /// No new messages; reading and acknowledging go on.
    Sends,
    /// No new hand-outs either; what is handed out can be acknowledged.
    Checkouts,
    /// Only what makes room is taken.
    All,
}

impl Pressure {
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sends => "no sends",
            Self::Checkouts => "no sends and no receives",
            Self::All => "nothing is taken",
        }
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The three watermarks, in bytes that are free or set aside for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watermarks {
    pub(crate) sends: u64,
    pub(crate) checkouts: u64,
    pub(crate) all: u64,
}

impl Watermarks {
    /// The lower two lie within one segment, which is set aside before it is needed: so hand-outs
    /// and acknowledgements go on when nothing else of the disk is free.
    pub(crate) fn of(reserve: ByteSize, segment: u64) -> Self {
        let (checkouts, all) = (segment / 8, segment / 32);
        Self { sends: reserve.get().max(checkouts), checkouts, all }
    }

    pub(crate) fn pressure(&self, room: u64) -> Pressure {
        if room < self.all {
            Pressure::All
        } else if room < self.checkouts {
            Pressure::Checkouts
        } else if room < self.sends {
            Pressure::Sends
        } else {
            Pressure::None
        }
    }

    /// Whether a follower with so much room takes so many bytes of entries. One that has less than
    /// the majority is not waited for, so it keeps what its own next files need; where a majority
    /// has as little, the leader sends what makes room, and whatever fits is taken.
    pub(crate) fn follower_takes(&self, room: u64, bytes: u64, majority: Pressure) -> bool {
        let Some(rest) = room.checked_sub(bytes) else { return false };
        let own = self.pressure(rest);
        own < Pressure::Checkouts || own <= majority
    }
}

/// How things stand, as the last look found them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) pressure: Pressure,
    pub(crate) room: ByteSize,
    /// What has to be there for messages to be taken.
    pub(crate) needed: ByteSize,
}

/// Why something is not taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) room: ByteSize,
    pub(crate) needed: ByteSize,
}

impl Standing {
    /// A command of so many bytes. What is written again makes room only once all of it is written,
    /// so below the last watermark it may take half of what is left, at the last look.
    pub(crate) fn check(&self, class: Class, bytes: usize) -> Result<(), Full> {
        let fits = bytes as u64 <= self.room.get() / 2;
        let refused = match class {
            Class::Message => self.pressure >= Pressure::Sends,
            Class::Checkout => self.pressure >= Pressure::Checkouts,
            Class::Other => self.pressure >= Pressure::All,
            Class::Relocate => self.pressure >= Pressure::All && !fits,
            Class::Purge => false,
        };
        if refused { Err(Full { room: self.room, needed: self.needed }) } else { Ok(()) }
    }
}

/// What a majority of `voters` has at least, of what was heard; the rest is taken to be down.
pub(crate) fn of_majority(voters: usize, mut heard: Vec<u64>) -> u64 {
    assert!(!heard.is_empty(), "a node knows its own room");
    heard.sort_unstable_by(|a, b| b.cmp(a));
    let quorum = voters / 2 + 1;
    heard[quorum.min(heard.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_follower_takes_what_the_majority_could_not_do_without() {
        let marks = Watermarks::of(ByteSize::mib(96), 8 << 20);
        let takes = |room, bytes, majority| marks.follower_takes(room, bytes, majority);
        assert!(takes(96 << 20, 1 << 20, Pressure::None));
        assert!(takes(marks.checkouts + 10, 10, Pressure::None), "what it keeps is still there");
        assert!(!takes(marks.checkouts + 10, 11, Pressure::None), "it is worse than the majority");
        assert!(!takes(marks.checkouts + 10, 11, Pressure::Sends));
        assert!(takes(marks.checkouts + 10, 11, Pressure::Checkouts), "the others have no more");
        assert!(!takes(marks.all + 10, 11, Pressure::Checkouts), "less than the others again");
        assert!(takes(11, 11, Pressure::All), "it may be what makes room");
        assert!(!takes(11, 12, Pressure::All), "the write would fail");
    }

    #[test]
    fn a_full_minority_is_not_waited_for() {
        assert_eq!(of_majority(3, vec![100, 5, 80]), 80);
        assert_eq!(of_majority(3, vec![5, 5, 80]), 5);
        assert_eq!(of_majority(3, vec![100, 5]), 5, "the third is down, so the second is needed");
        assert_eq!(of_majority(3, vec![100]), 100);
        assert_eq!(of_majority(5, vec![1, 2, 3, 4, 5]), 3);
    }

    #[test]
    fn what_is_refused_follows_what_is_left() {
        let marks = Watermarks::of(ByteSize::mib(96), 8 << 20);
        let refused = |room: u64| {
            let (pressure, room) = (marks.pressure(room), ByteSize::new(room));
            let standing = Standing { pressure, room, ..Standing::default() };
            [Class::Message, Class::Checkout, Class::Other, Class::Relocate, Class::Purge]
                .map(|class| standing.check(class, 100 << 10).is_err())
        };
        assert_eq!(refused(96 << 20), [false; 5]);
        assert_eq!(refused((96 << 20) - 1), [true, false, false, false, false]);
        assert_eq!(refused(1 << 20), [true, false, false, false, false]);
        assert_eq!(refused((1 << 20) - 1), [true, true, false, false, false]);
        assert_eq!(refused((256 << 10) - 1), [true, true, true, false, false]);
        assert_eq!(refused(200 << 10), [true, true, true, false, false]);
        assert_eq!(refused((200 << 10) - 1), [true, true, true, true, false]);
        assert_eq!(refused(0), [true, true, true, true, false]);
    }
}
