//! Instances that each see everything of a topic: how far each is, for as long as its lease lasts.
//!
//! An instance reads the log like a pull and keeps nothing alive: what retention takes before it
//! has passed it is lost to it, and counted. Only a tick that is *applied* ends a lease, so log order
//! alone decides between an instance that comes back and the end of its time. Whoever comes later
//! than that begins anew, under another incarnation, and positions of the one before move nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::Entry;
use super::codec::{read_rows, require, write_rows};
use super::deliveries::Starts;
use super::error::SectionError;
use super::limits::{INSTANCES_MAX, LEASE_MAX, POSITIONS_MAX};
use super::state::State;
use super::topics::limit;
use crate::base::{ClientId, GroupId, LogIndex, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{JoinAt, Leave, Placed, Position, Reader, Refusal, Reply, Writer};

/// The least offset and the end of each queue of a topic.
type Bounds = [(QueueOffset, QueueOffset)];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    group: GroupId,
    topic: TopicId,
    instance: ClientId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Instance {
    /// The entry that made it known.
    incarnation: LogIndex,
    /// The request that did: repeating it is no return.
    made_by: u64,
    until: UtcMillis,
    lost: u64,
    /// Its next message in each queue, by queue. Queues that came later are at their start until it
    /// says otherwise.
    positions: Vec<QueueOffset>,
}

impl Instance {
    fn position(&self, at: usize, start: QueueOffset) -> QueueOffset {
        self.positions.get(at).map_or(start, |position| start.max(*position))
    }

    fn placed(&self, known: bool, bounds: &Bounds) -> Placed {
        let position = |(at, (start, _)): (usize, &(QueueOffset, QueueOffset))| {
            (queue_id(at), self.position(at, *start))
        };
        Placed {
            incarnation: self.incarnation,
            known,
            until: self.until,
            lost: self.lost,
            positions: bounds.iter().enumerate().map(position).collect(),
        }
    }
}

fn queue_id(at: usize) -> QueueId {
    QueueId::new(u32::try_from(at).expect("a topic counts its queues in a u32"))
}

/// An instance as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceView {
    pub topic: TopicId,
    pub instance: ClientId,
    /// Its positions are kept until then, and until a tick comes.
    pub until: UtcMillis,
    /// Messages that are there and that it has not passed.
    pub behind: u64,
    /// Messages that retention took before it had passed them, ever.
    pub lost: u64,
}

#[derive(Debug, Default)]
pub(super) struct Instances {
    rows: BTreeMap<Key, Instance>,
    /// When leases end: derived.
    due: BTreeSet<(UtcMillis, Key)>,
    /// Positions of all instances together: derived.
    positions: usize,
}

impl Instances {
    pub(super) fn next_due(&self) -> Option<UtcMillis> {
        self.due.first().map(|(until, _)| *until)
    }

    fn place(
        &mut self,
        position: &Position,
        (index, stamp): (LogIndex, UtcMillis),
        bounds: &Bounds,
    ) -> Result<Placed, Refusal> {
        let Position { group, topic, ref instance, .. } = *position;
        let key = Key { group, topic, instance: instance.clone() };
        let until = stamp.plus(position.lease);
        let Some(row) = self.rows.get(&key) else {
            self.check_room(1, bounds.len())?;
            let begin = |(start, end): &(QueueOffset, QueueOffset)| match position.begin {
                JoinAt::Latest => *end,
                JoinAt::Earliest => *start,
            };
            let made_by = position.attempt;
            let positions = bounds.iter().map(begin).collect();
            let row = Instance { incarnation: index, made_by, until, lost: 0, positions };
            let placed = row.placed(false, bounds);
            self.insert(key, row);
            return Ok(placed);
        };
        let known = match position.incarnation {
            None => row.made_by != position.attempt,
            Some(incarnation) => row.incarnation == incarnation,
        };
        let (old, had) = (row.until, row.positions.len());
        let moves = position.incarnation == Some(row.incarnation);
        let last = position.positions.iter().map(|(queue, _)| queue.get() as usize + 1).max();
        let has = if moves { had.max(last.unwrap_or_default()) } else { had };
        self.check_room(0, has - had)?;
        let row = self.rows.get_mut(&key).expect("it was found just now");
        row.until = until;
        self.positions += has - had;
        while row.positions.len() < has {
            row.positions.push(bounds[row.positions.len()].0);
        }
        for (queue, offset) in position.positions.iter().filter(|_| moves) {
            let at = queue.get() as usize;
            let (start, end) = bounds[at];
            let offset = (*offset).clamp(start, end);
            let own = &mut row.positions[at];
            *own = if position.seek { offset } else { offset.max(*own) };
        }
        let placed = row.placed(known, bounds);
        let removed = self.due.remove(&(old, key.clone()));
        assert!(removed, "every lease has its end");
        self.due.insert((until, key));
        Ok(placed)
    }

    fn check_room(&self, instances: usize, positions: usize) -> Result<(), Refusal> {
        if self.rows.len() + instances > INSTANCES_MAX {
            return Err(limit("instances that see everything", INSTANCES_MAX));
        }
        if self.positions + positions > POSITIONS_MAX {
            return Err(limit("queues of all instances that see everything", POSITIONS_MAX));
        }
        Ok(())
    }

    fn insert(&mut self, key: Key, row: Instance) {
        self.positions += row.positions.len();
        self.due.insert((row.until, key.clone()));
        let known = self.rows.insert(key, row);
        assert!(known.is_none(), "an instance has one row");
    }

    /// The end of a lease, or of an instance that leaves: nothing is known of it from here on.
    fn remove(&mut self, key: &Key) {
        let row = self.rows.remove(key).expect("it is there");
        self.positions -= row.positions.len();
        let removed = self.due.remove(&(row.until, key.clone()));
        assert!(removed, "every lease has its end");
    }

    /// Repeating it changes nothing.
    pub(super) fn leave(&mut self, leave: &Leave) {
        let Leave { group, topic, ref instance, incarnation } = *leave;
        let key = Key { group, topic, instance: instance.clone() };
        if self.rows.get(&key).is_some_and(|row| row.incarnation == incarnation) {
            self.remove(&key);
        }
    }

    /// At most `limit` of the leases that are over by `stamp` end, the oldest first; how many did.
    pub(super) fn tick(&mut self, stamp: UtcMillis, limit: u32) -> u32 {
        let mut ended = 0;
        while ended < limit {
            let Some((until, key)) = self.due.first() else { break };
            if *until > stamp {
                break;
            }
            let key = key.clone();
            self.remove(&key);
            ended += 1;
        }
        ended
    }

    /// Queues start later: whoever was before that has lost what lay between.
    pub(super) fn expire_below(&mut self, starts: &Starts) {
        for (key, row) in &mut self.rows {
            for (queue, (before, start)) in starts.get(&key.topic).into_iter().flatten() {
                let at = queue.get() as usize;
                let position = row.position(at, *before);
                if position < *start {
                    row.lost += start.since(position);
                }
                if let Some(own) = row.positions.get_mut(at) {
                    *own = (*own).max(*start);
                }
            }
        }
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId) {
        self.drop_where(|key| key.topic == topic);
    }

    pub(super) fn drop_group(&mut self, group: GroupId) {
        self.drop_where(|key| key.group == group);
    }

    fn drop_where(&mut self, gone: impl Fn(&Key) -> bool) {
        let gone: Vec<Key> = self.rows.keys().filter(|key| gone(key)).cloned().collect();
        for key in gone {
            self.remove(&key);
        }
    }

    fn of_group(&self, group: GroupId) -> impl Iterator<Item = (&Key, &Instance)> {
        self.rows.iter().filter(move |(key, _)| key.group == group)
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.rows.iter(), |w, (key, row)| {
            w.put(&key.group);
            w.put(&key.topic);
            w.put(&key.instance);
            w.put(&row.incarnation);
            w.u64(row.made_by);
            w.put(&row.until);
            w.u64(row.lost);
            w.list(&row.positions, |w, position| w.put(position));
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut instances = Self::default();
        read_rows(reader, |r| {
            let key = Key { group: r.get()?, topic: r.get()?, instance: r.get()? };
            require(!instances.rows.contains_key(&key), "an instance comes twice")?;
            let row = Instance {
                incarnation: r.get()?,
                made_by: r.u64()?,
                until: r.get()?,
                lost: r.u64()?,
                positions: r.list(Reader::get)?,
            };
            instances.insert(key, row);
            Ok(())
        })?;
        Ok(instances)
    }

    /// Whether each row is one of a group and a topic, `bounds` knowing where a queue starts and
    /// ends, and the indexes say what the rows say.
    pub(super) fn check(
        &self,
        bounds: impl Fn(TopicId, QueueId) -> Option<(QueueOffset, QueueOffset)>,
        has_group: impl Fn(GroupId) -> bool,
    ) -> Result<(), SectionError> {
        let mut positions = 0;
        for (key, row) in &self.rows {
            require(has_group(key.group), "an instance of a group that does not exist")?;
            let known = bounds(key.topic, QueueId::new(0)).is_some();
            require(known, "an instance on a topic that does not exist")?;
            for (at, position) in row.positions.iter().enumerate() {
                let within = bounds(key.topic, queue_id(at))
                    .is_some_and(|(start, end)| start <= *position && *position <= end);
                require(within, "an instance outside of its queue")?;
            }
            positions += row.positions.len();
            let due = self.due.contains(&(row.until, key.clone()));
            require(due, "a lease without an end")?;
        }
        require(self.due.len() == self.rows.len(), "the end of a lease that there is not")?;
        require(positions == self.positions, "the count of instances' positions is off")
    }
}

impl State {
    pub(super) fn place(&mut self, entry: &Entry, position: &Position) -> Reply {
        if let Err(refusal) = self.check_position(position) {
            return Reply::Refused(refusal);
        }
        let queues = self.topics.get(position.topic).map_or(0, |topic| topic.queues);
        let bounds = (0..queues).map(QueueId::new);
        let bounds = bounds.map(|queue| self.queues.bounds(position.topic, queue));
        let bounds: Vec<_> = bounds.map(|queue| queue.expect("a topic has its queues")).collect();
        match self.instances.place(position, (entry.index, entry.stamp), &bounds) {
            Ok(placed) => Reply::Placed(placed),
            Err(refusal) => Reply::Refused(refusal),
        }
    }

    fn check_position(&self, position: &Position) -> Result<(), Refusal> {
        self.groups.get(position.group)?;
        let topic = self.topics.get(position.topic)?;
        position.positions.iter().try_for_each(|(queue, _)| topic.check_queue(*queue))?;
        if position.lease.get() == 0 || position.lease > LEASE_MAX {
            let what = "milliseconds of an instance's lease, from 1".to_owned();
            return Err(Refusal::Limit { what, limit: LEASE_MAX.get() });
        }
        Ok(())
    }

    /// At most `max` instances of a group, in the order of topics and names.
    pub fn instances(&self, group: GroupId, max: usize) -> Vec<InstanceView> {
        let view = |(key, row): (&Key, &Instance)| {
            let queues = self.topics.get(key.topic).map_or(0, |topic| topic.queues);
            let behind = |queue: u32| {
                let bounds = self.queues.bounds(key.topic, QueueId::new(queue));
                let (start, end) = bounds.unwrap_or_default();
                end.since(row.position(queue as usize, start))
            };
            InstanceView {
                topic: key.topic,
                instance: key.instance.clone(),
                until: row.until,
                behind: (0..queues).map(behind).sum(),
                lost: row.lost,
            }
        };
        self.instances.of_group(group).take(max).map(view).collect()
    }
}
