//! Where a consumer group begins, and where it is put.

use crate::base::{GroupId, QueueId, QueueOffset, TopicId, UtcMillis};

/// Where a group begins in a topic that it uses for the first time. Decided when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartAt {
    /// At the first message that the log still has.
    #[default]
    Earliest,
    /// At the first message that becomes visible once the group exists.
    Latest,
    /// At the first message that became visible then or later.
    Time(UtcMillis),
}

/// What a group is born with beside its rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begin {
    pub start: StartAt,
    /// Nothing is handed out before somebody resumes it.
    pub paused: bool,
}

/// A group begins in a topic here. Without effect where it has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub group: GroupId,
    pub topic: TopicId,
    /// One for each queue, from queue 0. Queues that the topic got since begin at their first message.
    pub offsets: Vec<QueueOffset>,
}

/// A group goes on from here, whatever it has done, and whoever has messages of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    pub group: GroupId,
    pub topic: TopicId,
    /// Queues that are not named stay as they are. An offset beyond either end stands for that end.
    pub offsets: Vec<(QueueId, QueueOffset)>,
}

/// A reader by offset has done everything of a queue that lies before this offset. One before the
/// offset that was stored last puts the group back to it in this queue, as a [`Reset`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOffset {
    pub group: GroupId,
    pub topic: TopicId,
    pub queue: QueueId,
    pub offset: QueueOffset,
}
