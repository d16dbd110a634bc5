//! What the log's front takes along: messages that were never handed out, and those that have been
//! visible for as long as a new message may be.

use std::collections::BTreeMap;

use super::queue::{Phase, QueueDeliveries};
use super::{Deliveries, Holder, Key};
use crate::base::{GroupId, LogPosition, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::Unit;
use crate::machine::effect::ExpiredCounts;

/// The least offset of queues, before and from now on, by topic.
pub(in crate::machine) type Starts =
    BTreeMap<TopicId, BTreeMap<QueueId, (QueueOffset, QueueOffset)>>;

impl Deliveries {
    /// Moves cursors to the new least offsets. Messages that were not handed out are lost to the
    /// group, and counted; a queue of which the group has taken nothing yet is counted too, once
    /// the group has taken anything of the topic.
    pub(in crate::machine) fn expire_below(
        &mut self,
        starts: &Starts,
        expired: &mut ExpiredCounts,
    ) {
        for ((group, topic), queues) in &mut self.pairs {
            let Some(starts) = starts.get(topic) else { continue };
            for (queue, (before, start)) in starts {
                let untouched = || QueueDeliveries::starting_at(before.get());
                let deliveries = queues.entry(*queue).or_insert_with(untouched);
                let lost = deliveries.expire_below(start.get());
                expired.add(*group, *topic, lost);
            }
        }
    }

    /// Drops what lies before `front` and has been visible since `stamp` or longer (rule R9); with
    /// a topic, only of that one. What stands still is with nobody either: an abandoned message group
    /// must not fill the room of those that are served.
    pub(in crate::machine) fn expire_visible(
        &mut self,
        front: LogPosition,
        stamp: UtcMillis,
        only: Option<TopicId>,
        expired: &mut ExpiredCounts,
    ) {
        let old = |key: &Key| {
            let pending = self.pending(*key).expect("what holds a record is pending");
            matches!(pending.phase, Phase::Ready | Phase::Stopped) && pending.due <= stamp
        };
        let wanted = |key: &Key| only.is_none_or(|topic| topic == key.topic);
        let held = self.references.before(front).filter_map(|(original, holder)| match holder {
            Holder::Delivery(key) => Some((original, key)),
            Holder::Late(_) | Holder::Half => None,
        });
        let held = held.filter(|(_, key)| wanted(key) && old(key));
        let held: Vec<(LogPosition, Key)> = held.collect();
        for (_, key) in held {
            self.take_away(key, &mut expired.ready);
            self.queue_mut(key).expired += 1;
            expired.add(key.group, key.topic, 1);
        }
    }

    /// Records that are needed and lie before `front`: each once, with one of those who need it, in
    /// the order of where they lie now.
    pub(in crate::machine) fn needed_before(
        &self,
        front: LogPosition,
    ) -> impl Iterator<Item = (LogPosition, Holder)> {
        let mut last = None;
        self.references.before(front).filter(move |(original, _)| {
            let fresh = last != Some(*original);
            last = Some(*original);
            fresh
        })
    }

    /// The unit of a message that was handed out.
    pub(in crate::machine) fn unit_of(&self, key: Key) -> Option<Unit> {
        self.pending(key).map(|pending| pending.unit)
    }

    pub(in crate::machine) fn is_needed_before(&self, front: LogPosition) -> u64 {
        self.references.before(front).count() as u64
    }

    /// How many messages a group lost to retention before it took them.
    pub(in crate::machine) fn expired(&self, group: GroupId, topic: TopicId) -> u64 {
        let queues = self.pairs.get(&(group, topic)).into_iter().flat_map(BTreeMap::values);
        queues.map(|queue| queue.expired).sum()
    }

    /// Whether a message under way needs the record that lay there first.
    pub(in crate::machine) fn needs(&self, original: LogPosition) -> bool {
        self.references.is_held(original)
    }

    pub(in crate::machine) fn relocate(
        &mut self,
        original: LogPosition,
        position: LogPosition,
        size: u32,
    ) {
        self.references.relocate(original, position, size);
    }

    pub(in crate::machine) fn moved_bytes(&self) -> u64 {
        self.references.moved_bytes()
    }

    /// Of copies that consumers keep from leaving.
    pub(in crate::machine) fn delivered_bytes(&self) -> u64 {
        self.references.delivered_bytes()
    }

    /// The same unit, pointing at where the record lies now.
    pub(in crate::machine) fn locate(&self, unit: Unit) -> Unit {
        self.references.unit(unit)
    }
}

impl QueueDeliveries {
    /// Moves behind what is gone; answers how many messages the group never got.
    fn expire_below(&mut self, start: u64) -> u64 {
        let mut lost = self.free.remove_below(start);
        if self.next < start {
            lost += start - self.next;
            self.next = start;
        }
        self.expired += lost;
        lost
    }
}
