//! Message groups in order: which messages of each are handed out and not acknowledged (rule R24).
//!
//! A *line* is one message group as one consumer group sees it on one topic. It is locked while it
//! has members, by the checkout that has its first ones; a handle names its checkout, which counts
//! up, so that it is the lock's epoch. Everything here is derived from the queues and the groups'
//! rules; nothing is stored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Key;
use crate::base::{GroupId, QueueId, QueueOffset, TopicId};
use crate::command::{Exhausted, Order, Unit};

/// Lines that became free of which the last ones are remembered, for each group and topic, on every
/// replica: 4 KiB. A busy group's acks share entries, so one entry may free a few hundred; who missed
/// some looks at all lines.
const FREED_MAX: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    pub(super) group: GroupId,
    pub(super) topic: TopicId,
    /// Of the message group. Two with one hash wait for each other, which harms neither's order.
    pub(super) hash: u64,
}

type Place = (QueueId, QueueOffset);

/// How a group takes a topic's messages, and what follows a last attempt. The first is the topic's
/// matter too, so only the rest is asked of what is kept by group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) struct Rule {
    pub(in crate::machine) order: Order,
    pub(in crate::machine) attempts_max: u32,
    pub(in crate::machine) exhausted: Exhausted,
}

/// The lines of one group and topic that became free, newest last. Volatile: a leader that missed
/// some looks at all lines that it knows.
#[derive(Debug, Default)]
struct Freed {
    total: u64,
    last: VecDeque<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Handed out and not acknowledged; no line is empty.
    members: BTreeMap<Line, BTreeSet<Place>>,
    rules: BTreeMap<GroupId, Rule>,
    freed: BTreeMap<(GroupId, TopicId), Freed>,
}

impl Line {
    pub(super) fn of(key: Key, unit: Unit) -> Self {
        Self { group: key.group, topic: key.topic, hash: unit.group_hash }
    }

    fn key(self, (queue, offset): Place) -> Key {
        Key { group: self.group, topic: self.topic, queue, offset }
    }
}

impl Lines {
    /// The line that a message is a member of.
    pub(super) fn find(&self, key: Key, unit: Unit) -> Option<Line> {
        let line = Line::of(key, unit);
        let place = (key.queue, key.offset);
        let member = unit.group_hash != 0 && self.members.get(&line)?.contains(&place);
        member.then_some(line)
    }

    pub(super) fn set_rule(&mut self, group: GroupId, rule: Rule) {
        self.rules.insert(group, rule);
    }

    pub(super) fn set_attempts(&mut self, group: GroupId, attempts_max: u32) {
        if let Some(rule) = self.rules.get_mut(&group) {
            rule.attempts_max = attempts_max;
        }
    }

    pub(super) fn rule(&self, group: GroupId) -> Rule {
        *self.rules.get(&group).expect("a group with lines has its rule")
    }

    pub(super) fn join(&mut self, line: Line, key: Key) {
        assert!(line.hash != 0, "a message without a message group is in no line");
        self.members.entry(line).or_default().insert((key.queue, key.offset));
    }

    /// One is done with, one way or the other.
    pub(super) fn leave(&mut self, line: Line, key: Key) {
        let members = self.members.get_mut(&line).expect("a line lasts while it has members");
        let was = members.remove(&(key.queue, key.offset));
        assert!(was, "it was a member");
        if !members.is_empty() {
            return;
        }
        self.members.remove(&line);
        let freed = self.freed.entry((line.group, line.topic)).or_default();
        freed.total += 1;
        freed.last.push_back(line.hash);
        if freed.last.len() > FREED_MAX {
            freed.last.pop_front();
        }
    }

    pub(super) fn first(&self, line: Line) -> Option<Key> {
        self.members.get(&line)?.first().map(|place| line.key(*place))
    }

    /// In order; empty for a line that is free.
    pub(super) fn members(&self, line: Line) -> impl Iterator<Item = Key> {
        let members = self.members.get(&line).into_iter().flatten();
        members.map(move |place| line.key(*place))
    }

    pub(super) fn behind(&self, line: Line, key: Key) -> Vec<Key> {
        self.members(line).filter(|other| *other > key).collect()
    }

    pub(super) fn of_pair(&self, group: GroupId, topic: TopicId) -> Vec<Line> {
        let range = Line { group, topic, hash: 0 }..=Line { group, topic, hash: u64::MAX };
        self.members.range(range).map(|(line, _)| *line).collect()
    }

    pub(super) fn is_locked(&self, line: Line) -> bool {
        self.members.contains_key(&line)
    }

    pub(super) fn count(&self) -> usize {
        self.members.values().map(BTreeSet::len).sum()
    }

    /// Lines that became free since a count of an earlier call, with the count of now; `None` when
    /// not all of them are remembered.
    pub(super) fn freed_since(
        &self,
        pair: (GroupId, TopicId),
        count: u64,
    ) -> (Option<Vec<u64>>, u64) {
        let Some(freed) = self.freed.get(&pair) else { return ((count == 0).then(Vec::new), 0) };
        let missed = freed.total.checked_sub(count).and_then(|n| usize::try_from(n).ok());
        let lines = missed
            .filter(|missed| *missed <= freed.last.len())
            .map(|missed| freed.last.iter().skip(freed.last.len() - missed).copied().collect());
        (lines, freed.total)
    }

    /// Drops what belongs to a topic or a group that is gone.
    pub(super) fn drop_where(&mut self, gone: impl Fn(&(GroupId, TopicId)) -> bool) {
        self.members.retain(|line, _| !gone(&(line.group, line.topic)));
        self.freed.retain(|pair, _| !gone(pair));
    }

    pub(super) fn drop_group(&mut self, group: GroupId) {
        self.rules.remove(&group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_freed_lines_are_remembered() {
        let mut lines = Lines::default();
        let (group, topic) = (GroupId::new(1), TopicId::new(2));
        let freed = FREED_MAX as u64 + 1;
        for hash in 1..=freed {
            let line = Line { group, topic, hash };
            let key = line.key((QueueId::new(0), QueueOffset::new(hash)));
            lines.join(line, key);
            lines.leave(line, key);
        }
        let since = |count| lines.freed_since((group, topic), count);
        assert_eq!(since(0), (None, freed), "the first one is forgotten");
        assert_eq!(since(1), (Some((2..=freed).collect()), freed));
        let kept = lines.freed.values().map(|freed| freed.last.capacity()).sum::<usize>();
        assert!(kept * size_of::<u64>() <= 8 << 10, "{kept} hashes for one group and topic");
    }
}
