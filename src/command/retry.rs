//! What a group does about messages that fail: how long to wait, and what comes after the last
//! attempt.

use crate::base::{GroupId, Millis, QueueOffset, TopicId};

/// Waiting times between the attempts at one message. Told to clients, which wait so long before
/// they let a message come again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// After the n-th failed attempt the n-th; the last one repeats.
    Listed(Vec<Millis>),
    Exponential(Curve),
}

/// `initial` after the first failed attempt, then `growth` times as long each time, `max` at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Curve {
    pub initial: Millis,
    pub max: Millis,
    /// In thousandths, 1000 to [`GROWTH_MAX`].
    pub growth: u32,
}

/// The largest factor of a [`Curve`]: a hundred, in thousandths.
pub const GROWTH_MAX: u32 = 100_000;

impl From<Vec<Millis>> for Backoff {
    fn from(times: Vec<Millis>) -> Self {
        Self::Listed(times)
    }
}

impl std::fmt::Display for Backoff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Listed(times) => {
                let times: Vec<_> = times.iter().map(ToString::to_string).collect();
                f.write_str(&times.join(", "))
            }
            Self::Exponential(Curve { initial, max, growth }) => {
                let (whole, thousandths) = (growth / 1000, growth % 1000);
                write!(f, "{initial} times {whole}.{thousandths:03} each, at most {max}")
            }
        }
    }
}

/// Other settings for a group that exists; what is absent stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateGroup {
    pub group: GroupId,
    pub attempts_max: Option<u32>,
    pub backoff: Option<Backoff>,
    /// 0 stands for as long as the log is kept.
    pub dead_keep: Option<Millis>,
}

/// Why a message became a dead letter. Persisted, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DeathReason {
    /// Its invisible time ended without a word from its consumer.
    NotAcknowledged = 1,
    /// Its consumer let it come again, at once or later.
    Returned = 2,
    /// Its consumer said that it tries no more.
    GivenUp = 3,
    /// Its consumer left, or was silent for too long.
    ConsumerLeft = 4,
}

impl DeathReason {
    pub const ALL: [Self; 4] =
        [Self::NotAcknowledged, Self::Returned, Self::GivenUp, Self::ConsumerLeft];

    pub fn name(self) -> &'static str {
        match self {
            Self::NotAcknowledged => "not-acknowledged",
            Self::Returned => "returned",
            Self::GivenUp => "given-up",
            Self::ConsumerLeft => "consumer-left",
        }
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == byte)
    }
}

/// Dead letters go back to their group, to be handed out as if they never were. At most
/// [`crate::machine::REDRIVE_MAX`] of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    pub group: GroupId,
    /// The group's topic of dead letters: one made anew has another id and other offsets.
    pub topic: TopicId,
    pub letters: Vec<QueueOffset>,
}

/// What came of one of them. The numbers travel between nodes and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Redriven {
    /// It is ready again at its old place, with no attempts.
    Done = 1,
    /// The topic that it came from is gone, also when there is another one of that name.
    TargetGone = 2,
    /// No dead letter has this offset (any more).
    NotFound = 3,
    /// The group has as many messages under way as may be: later.
    Full = 4,
}

impl Redriven {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Done, Self::TargetGone, Self::NotFound, Self::Full]
            .into_iter()
            .find(|outcome| *outcome as u8 == byte)
    }
}
