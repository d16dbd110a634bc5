//! Instances of a group that each see everything, and how far each of them is.

use crate::base::{ClientId, GroupId, LogIndex, Millis, QueueId, QueueOffset, TopicId, UtcMillis};

/// An instance says that it lives and how far it is. Made known by it where nothing is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    pub group: GroupId,
    pub topic: TopicId,
    pub instance: ClientId,
    /// How long its positions are kept from the entry's stamp on, 1 to
    /// [`crate::machine::LEASE_MAX`].
    pub lease: Millis,
    /// Where it begins if nothing is known of it.
    pub begin: JoinAt,
    /// Names the request that asks what is known of it, so that repeating it is answered alike.
    pub attempt: u64,
    /// The incarnation whose positions these are, as an earlier answer says; `None` to ask only.
    pub incarnation: Option<LogIndex>,
    /// Positions may also go back.
    pub seek: bool,
    /// The next message of each queue that moved. Those of another incarnation are passed by.
    pub positions: Vec<(QueueId, QueueOffset)>,
}

/// Where an instance begins of which nothing is known. Persisted, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum JoinAt {
    /// With what comes behind the entry that makes it known.
    #[default]
    Latest = 1,
    /// With the first message that each queue still has.
    Earliest = 2,
}

impl JoinAt {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Latest, Self::Earliest].into_iter().find(|begin| *begin as u8 == byte)
    }
}

/// An instance is not to come back: its positions go at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leave {
    pub group: GroupId,
    pub topic: TopicId,
    pub instance: ClientId,
    /// The one that leaves; a later one of the same name stays.
    pub incarnation: LogIndex,
}

/// Where an instance stands after a [`Position`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The entry that made it known.
    pub incarnation: LogIndex,
    /// False when it begins anew: nothing was known of it, or of the incarnation that was named.
    pub known: bool,
    /// Nothing of it is forgotten before this.
    pub until: UtcMillis,
    /// Messages that retention took before it had passed them, ever.
    pub lost: u64,
    /// Its next message in each queue of the topic, in the order of queues.
    pub positions: Vec<(QueueId, QueueOffset)>,
}
