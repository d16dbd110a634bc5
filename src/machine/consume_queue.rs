//! Consume queues: for each message of a queue a unit that points at its record in the log.
//!
//! Apply only appends (rule R1): a replica that starts from a peer's state does not have the old
//! units. So that replicas can be compared none the less, each queue carries a chain: the hash of
//! the chain before and of the unit, which is part of the state hash.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::io;

use twox_hash::XxHash3_64;

use super::codec::{read_rows, require, write_rows};
use super::error::SectionError;
use super::extents::{EXTENT_UNITS, ExtentNumber, Extents, UNIT_BYTES};
use crate::base::{QueueId, QueueOffset, TopicId};
use crate::command::{Coded, Reader, Unit, Writer};

#[derive(Debug, Default)]
struct ConsumeQueue {
    /// The least offset: what lies before has left with the log's front.
    start: u64,
    /// The offset that the next message gets.
    end: u64,
    /// The hash of all units up to `end`, in order; 0 for none.
    chain: u64,
    held: Held,
}

/// Which units this replica holds and where: local, outside the state hash.
#[derive(Debug, Default)]
struct Held {
    /// The first offset held: the queue's start, or more where a peer's state was taken over.
    from: u64,
    /// The chain before that offset.
    chain: u64,
    /// One for each 128 offsets, the first for the one that `from` lies in.
    extents: Vec<ExtentNumber>,
}

impl Held {
    /// Where a unit lives: the position in `extents`, and the slot.
    fn place(&self, offset: u64) -> (usize, u64) {
        let number = offset / EXTENT_UNITS - self.from / EXTENT_UNITS;
        let number = usize::try_from(number).expect("extents of a queue fit memory");
        (number, offset % EXTENT_UNITS)
    }
}

impl Held {
    /// Forgets what lies before `from`; answers the extents that hold nothing else.
    fn drop_before(&mut self, from: u64, end: u64) -> Vec<ExtentNumber> {
        assert!(self.from < from && from <= end, "units {from} of {}..{end}", self.from);
        let whole = from / EXTENT_UNITS - self.from / EXTENT_UNITS;
        let whole = usize::try_from(whole).expect("extents of a queue fit memory");
        // At the end of a full extent the next one is not there yet.
        let whole = whole.min(self.extents.len());
        let mut gone: Vec<ExtentNumber> = self.extents.drain(..whole).collect();
        if from == end {
            gone.append(&mut self.extents);
        }
        self.from = from;
        gone
    }
}

/// All queues of all topics.
#[derive(Debug)]
pub(super) struct ConsumeQueues {
    topics: BTreeMap<TopicId, Box<[ConsumeQueue]>>,
    extents: Extents,
}

fn extend_chain(chain: u64, unit: &[u8]) -> u64 {
    let mut link = [0; 8 + UNIT_BYTES];
    link[..8].copy_from_slice(&chain.to_be_bytes());
    link[8..].copy_from_slice(unit);
    XxHash3_64::oneshot(&link)
}

/// Where checking units goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitsCursor {
    topic: TopicId,
    queue: QueueId,
    at: u64,
    chain: u64,
}

fn damaged(topic: TopicId, queue: QueueId, found: u64, appended: u64) -> io::Error {
    let text = format!(
        "the units of topic {topic} queue {queue} hash to {found:016x}, but {appended:016x} was \
         appended: the file is damaged; start the node again, it derives all units from the log anew"
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl ConsumeQueues {
    /// What a queue without messages costs in memory.
    #[cfg(test)]
    pub(super) const BYTES_PER_IDLE_QUEUE: usize = size_of::<ConsumeQueue>();

    pub(super) fn new(extents: Extents) -> Self {
        Self { topics: BTreeMap::new(), extents }
    }

    pub(super) fn extents(&self) -> &Extents {
        &self.extents
    }

    pub(super) fn add_topic(&mut self, topic: TopicId, queues: u32) {
        let queues = (0..queues).map(|_| ConsumeQueue::default()).collect();
        let known = self.topics.insert(topic, queues);
        assert!(known.is_none(), "topic {topic} got its queues twice");
    }

    /// The new ones are empty and begin at offset 0.
    pub(super) fn grow_topic(&mut self, topic: TopicId, queues: u32) {
        let known = self.topics.get_mut(&topic).expect("every topic has queues");
        let mut all = std::mem::take(known).into_vec();
        all.resize_with(queues as usize, ConsumeQueue::default);
        *known = all.into_boxed_slice();
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId) {
        let queues = self.topics.remove(&topic).expect("every topic has queues");
        for queue in queues {
            self.extents.free(&queue.held.extents);
        }
    }

    fn queue(&self, topic: TopicId, queue: QueueId) -> Option<&ConsumeQueue> {
        self.topics.get(&topic)?.get(queue.get() as usize)
    }

    /// The offset that the next message gets; `None` for a queue that does not exist.
    pub(super) fn end(&self, topic: TopicId, queue: QueueId) -> Option<QueueOffset> {
        self.queue(topic, queue).map(|queue| QueueOffset::new(queue.end))
    }

    /// The least offset and the end; `None` for a queue that does not exist.
    pub(super) fn bounds(
        &self,
        topic: TopicId,
        queue: QueueId,
    ) -> Option<(QueueOffset, QueueOffset)> {
        let queue = self.queue(topic, queue)?;
        Some((QueueOffset::new(queue.start), QueueOffset::new(queue.end)))
    }

    /// The end, and the chain of all units up to it.
    pub(super) fn end_and_chain(
        &self,
        topic: TopicId,
        queue: QueueId,
    ) -> Option<(QueueOffset, u64)> {
        self.queue(topic, queue).map(|queue| (QueueOffset::new(queue.end), queue.chain))
    }

    /// Moves the least offset of a queue to `start`, at which the chain was `chain`; answers what
    /// it was before, if it moved. Units before it are given up here; a replica that holds fewer
    /// keeps those it has.
    pub(super) fn raise_start(
        &mut self,
        topic: TopicId,
        queue: QueueId,
        (start, chain): (QueueOffset, u64),
    ) -> Option<QueueOffset> {
        let queue = self.topics.get_mut(&topic)?.get_mut(queue.get() as usize)?;
        let start = start.get();
        assert!(start <= queue.end, "a queue starts at {start}, behind its end {}", queue.end);
        if start <= queue.start {
            return None;
        }
        let before = std::mem::replace(&mut queue.start, start);
        if queue.held.from < start {
            let gone = queue.held.drop_before(start, queue.end);
            queue.held.chain = chain;
            self.extents.free(&gone);
        }
        Some(QueueOffset::new(before))
    }

    /// Adds units at the end of a queue that exists.
    pub(super) fn append(
        &mut self,
        topic: TopicId,
        queue: QueueId,
        units: &[Unit],
    ) -> io::Result<()> {
        let queues = self.topics.get_mut(&topic).expect("checked before: the topic exists");
        let queue = &mut queues[queue.get() as usize];
        let mut writer = Writer::with_capacity(units.len() * UNIT_BYTES);
        for unit in units {
            unit.write(&mut writer);
        }
        let bytes = writer.finish();
        assert_eq!(bytes.len(), units.len() * UNIT_BYTES, "a unit has 32 bytes");
        for unit in bytes.chunks_exact(UNIT_BYTES) {
            queue.chain = extend_chain(queue.chain, unit);
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (number, slot) = queue.held.place(queue.end);
            if number == queue.held.extents.len() {
                queue.held.extents.push(self.extents.allocate()?);
            }
            let room = usize::try_from(EXTENT_UNITS - slot).expect("an extent fits memory");
            let (now, later) = rest.split_at(rest.len().min(room * UNIT_BYTES));
            self.extents.write(queue.held.extents[number], slot, now)?;
            queue.end += (now.len() / UNIT_BYTES) as u64;
            rest = later;
        }
        Ok(())
    }

    /// At most `max` units from `from` on; fewer at the end of the queue, none beyond it.
    pub(super) fn read(
        &self,
        topic: TopicId,
        queue: QueueId,
        from: QueueOffset,
        max: usize,
    ) -> io::Result<Vec<Unit>> {
        let Some(queue) = self.queue(topic, queue) else { return Ok(Vec::new()) };
        if from.get() < queue.held.from {
            let held = queue.held.from;
            let text = format!("unit {from} is not held here; the first one is {held}");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let mut units = Vec::new();
        let mut at = from.get();
        while units.len() < max && at < queue.end {
            let count = (max - units.len()) as u64;
            let bytes = self.read_run(queue, at, count.min(queue.end - at))?;
            at += (bytes.len() / UNIT_BYTES) as u64;
            let mut reader = Reader::new(bytes);
            while reader.left() > 0 {
                let unit = reader.get().expect("whole units of a fixed width were read");
                units.push(unit);
            }
        }
        Ok(units)
    }

    /// The bytes of at most `count` units from `at` on, as many as one extent has.
    fn read_run(&self, queue: &ConsumeQueue, at: u64, count: u64) -> io::Result<bytes::Bytes> {
        let (number, slot) = queue.held.place(at);
        let count = usize::try_from(count.min(EXTENT_UNITS - slot)).expect("at most an extent");
        self.extents.read(queue.held.extents[number], slot, count)
    }

    /// The hash of the units that the files really hold, over all queues in order. Says so when a
    /// queue's units are not those that were appended.
    pub(super) fn units_hash(&self) -> io::Result<u64> {
        let mut hasher = XxHash3_64::new();
        for (topic, queues) in &self.topics {
            for (number, queue) in queues.iter().enumerate() {
                let chain = self.read_chain(queue)?;
                if chain != queue.chain {
                    let number = u32::try_from(number).expect("counted in a u32 when made");
                    return Err(damaged(*topic, QueueId::new(number), chain, queue.chain));
                }
                hasher.write(&topic.get().to_be_bytes());
                hasher.write(&queue.end.to_be_bytes());
                hasher.write(&chain.to_be_bytes());
            }
        }
        Ok(hasher.finish())
    }

    fn read_chain(&self, queue: &ConsumeQueue) -> io::Result<u64> {
        let (mut at, mut chain) = (queue.held.from, queue.held.chain);
        while at < queue.end {
            let bytes = self.read_run(queue, at, queue.end - at)?;
            chain = bytes.chunks_exact(UNIT_BYTES).fold(chain, extend_chain);
            at += (bytes.len() / UNIT_BYTES) as u64;
        }
        Ok(chain)
    }

    /// Bytes of all units held here.
    pub(super) fn held_bytes(&self) -> u64 {
        let units = self.topics.values().flatten().map(|queue| queue.end - queue.held.from);
        units.sum::<u64>() * UNIT_BYTES as u64
    }

    /// Reads at most about `budget` bytes of units from where the last call ended, and compares
    /// each queue's with what was appended; true at the end of a round. `InvalidData` as
    /// [`Self::units_hash`].
    pub(super) fn check_some(&self, cursor: &mut UnitsCursor, mut budget: u64) -> io::Result<bool> {
        loop {
            let Some((topic, number, queue)) = self.at_or_behind(cursor.topic, cursor.queue) else {
                *cursor = UnitsCursor::default();
                return Ok(true);
            };
            let same = (topic, number) == (cursor.topic, cursor.queue);
            if !same || cursor.at < queue.held.from {
                let (at, chain) = (queue.held.from, queue.held.chain);
                *cursor = UnitsCursor { topic, queue: number, at, chain };
            }
            while cursor.at < queue.end {
                if budget == 0 {
                    return Ok(false);
                }
                let bytes = self.read_run(queue, cursor.at, queue.end - cursor.at)?;
                cursor.chain = bytes.chunks_exact(UNIT_BYTES).fold(cursor.chain, extend_chain);
                cursor.at += (bytes.len() / UNIT_BYTES) as u64;
                budget = budget.saturating_sub(bytes.len() as u64);
            }
            if cursor.chain != queue.chain {
                return Err(damaged(topic, number, cursor.chain, queue.chain));
            }
            cursor.queue = QueueId::new(number.get() + 1);
            (cursor.at, cursor.chain) = (0, 0);
            budget = budget.saturating_sub(1);
        }
    }

    fn at_or_behind(
        &self,
        topic: TopicId,
        queue: QueueId,
    ) -> Option<(TopicId, QueueId, &ConsumeQueue)> {
        self.topics.range(topic..).find_map(|(found, queues)| {
            let first = if *found == topic { queue.get() } else { 0 };
            let queue = queues.get(first as usize)?;
            Some((*found, QueueId::new(first), queue))
        })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.topics.iter(), |w, (topic, queues)| {
            w.put(topic);
            w.list(queues, |w, queue| {
                w.u64(queue.start);
                w.u64(queue.end);
                w.u64(queue.chain);
            });
        });
    }

    /// Queues as a state without units has them: all that they hold comes after their ends.
    pub(super) fn read_section(
        reader: &mut Reader,
        extents: Extents,
    ) -> Result<Self, SectionError> {
        let mut topics = BTreeMap::new();
        read_rows(reader, |r| {
            let topic = r.get()?;
            let queues = r.list(|r| {
                let (start, end, chain) = (r.u64()?, r.u64()?, r.u64()?);
                let held = Held { from: end, chain, extents: Vec::new() };
                Ok(ConsumeQueue { start, end, chain, held })
            })?;
            topics.insert(topic, queues.into_boxed_slice());
            Ok(())
        })?;
        Ok(Self { topics, extents })
    }

    /// Whether no queue starts behind its end.
    pub(super) fn are_ordered(&self) -> bool {
        self.topics.values().flatten().all(|queue| queue.start <= queue.end)
    }

    /// Whether each of these topics, in the order of ids, has its queues, and no other has any.
    pub(super) fn belong_to(&self, topics: impl Iterator<Item = (TopicId, u32)>) -> bool {
        topics.eq(self.topics.iter().map(|(topic, queues)| {
            (*topic, u32::try_from(queues.len()).expect("counted in a u32 when read"))
        }))
    }

    /// What only this replica knows: which extents its queues hold.
    pub(super) fn write_local(&self, writer: &mut Writer) {
        for queue in self.topics.values().flatten() {
            writer.u64(queue.held.from);
            writer.u64(queue.held.chain);
            writer.list(&queue.held.extents, |w, extent| w.u32(*extent));
        }
    }

    pub(super) fn read_local(&mut self, reader: &mut Reader) -> Result<(), SectionError> {
        for queue in self.topics.values_mut().flatten() {
            let held = Held {
                from: reader.u64()?,
                chain: reader.u64()?,
                extents: reader.list(Reader::u32)?,
            };
            require(held.from <= queue.end, "a queue holds units beyond its end")?;
            let needed = match queue.end.checked_sub(1) {
                Some(last) if queue.end > held.from => held.place(last).0 + 1,
                _ => 0,
            };
            require(held.extents.len() == needed, "a queue's extents do not fit its units")?;
            for extent in &held.extents {
                require(self.extents.claim(*extent), "two queues hold one extent")?;
            }
            queue.held = held;
        }
        Ok(())
    }
}
