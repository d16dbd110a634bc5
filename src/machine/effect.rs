//! What a leader may do after an entry was applied. Losing every effect loses no data.

use std::collections::BTreeMap;

use crate::base::{GroupId, QueueId, TopicId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// New messages at the end of a queue.
    Arrived {
        topic: TopicId,
        queue: QueueId,
        count: u32,
    },
    /// Messages that were handed out are visible to the group again, or message groups are free.
    Ready {
        group: GroupId,
        topic: TopicId,
        count: u32,
    },
    TopicGone {
        topic: TopicId,
    },
    GroupGone {
        group: GroupId,
    },
    /// Messages left with the log's front before the group was done with them.
    Expired {
        group: GroupId,
        topic: TopicId,
        count: u64,
    },
    /// Messages of a topic became dead letters of a group.
    Dead {
        group: GroupId,
        topic: TopicId,
        count: u64,
    },
    /// A group that was paused is handed messages again, of all its topics.
    Resumed {
        group: GroupId,
    },
}

/// How many messages became visible again, summed per group and topic within one entry.
#[derive(Debug, Default)]
pub(super) struct ReadyCounts(BTreeMap<(GroupId, TopicId), u32>);

impl ReadyCounts {
    pub(super) fn add(&mut self, group: GroupId, topic: TopicId) {
        *self.0.entry((group, topic)).or_default() += 1;
    }

    pub(super) fn effects(self) -> impl Iterator<Item = Effect> {
        self.0.into_iter().map(|((group, topic), count)| Effect::Ready { group, topic, count })
    }
}

/// How many messages groups lost to retention, summed per group and topic within one entry.
#[derive(Debug, Default)]
pub(super) struct ExpiredCounts {
    lost: BTreeMap<(GroupId, TopicId), u64>,
    /// What became visible because something before it is gone.
    pub(super) ready: ReadyCounts,
}

impl ExpiredCounts {
    pub(super) fn add(&mut self, group: GroupId, topic: TopicId, count: u64) {
        if count > 0 {
            *self.lost.entry((group, topic)).or_default() += count;
        }
    }

    pub(super) fn effects(self) -> impl Iterator<Item = Effect> {
        let expired = |((group, topic), count)| Effect::Expired { group, topic, count };
        self.lost.into_iter().map(expired).chain(self.ready.effects())
    }
}
