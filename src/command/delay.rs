//! Messages that become visible later, and what may be done to one until then.

use super::PublishItem;
use crate::base::{LogPosition, TopicId, UtcMillis};
use crate::message::MessageIdHash;

/// Messages of one request, each of which becomes visible at its own time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub topic: TopicId,
    /// As in [`super::Publish`].
    pub dedup: bool,
    pub items: Vec<ScheduleItem>,
}

/// A delayed message. The instant is the producer's own, not a length of time from the stamp: it
/// is what the client asked for, whenever its request is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleItem {
    /// Not before this; what has passed by the entry's stamp becomes visible at once.
    pub due: UtcMillis,
    pub item: PublishItem,
}

/// Which delayed message is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerKey {
    pub topic: TopicId,
    pub id_hash: MessageIdHash,
    /// Where its record lay first, as a recall handle says; `None` for the oldest pending one of
    /// this id.
    pub position: Option<LogPosition>,
}

/// What came of asking for a delayed message. The log decides it against firing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerOutcome {
    /// It will never be delivered. Also the answer when it was recalled before.
    Recalled,
    /// It becomes visible at another time, once.
    Rescheduled,
    /// It is visible: nothing was changed.
    AlreadyFired,
    /// Nothing of this name is pending or among the last that ended.
    NotFound,
}

/// Where a delayed message waits: what a recall handle is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    pub position: LogPosition,
    pub repeated: bool,
}
