//! Where groups begin, where they are put, and what is stale since.
//!
//! A reset replaces what a group has of a queue by "begins here". A handle of before must not end
//! anything afterwards: it names a checkout, which count up, so each queue knows the last checkout
//! before its reset.

use std::collections::BTreeMap;

use super::intervals::Intervals;
use super::queue::QueueDeliveries;
use super::{Deliveries, Key};
use crate::base::{CheckoutId, GroupId, QueueId, QueueOffset, TopicId};
use crate::command::{Handle, Reader, Writer};
use crate::machine::codec::{read_rows, require, write_rows};
use crate::machine::effect::ReadyCounts;
use crate::machine::error::SectionError;

type Pair = (GroupId, TopicId);

#[derive(Debug, Default, PartialEq, Eq)]
struct Turned {
    /// How often the group was reset in the topic.
    epoch: u32,
    /// Handles of these checkouts and of earlier ones are stale, by queue.
    barred: BTreeMap<QueueId, CheckoutId>,
}

#[derive(Debug, Default)]
pub(super) struct Resets {
    by_pair: BTreeMap<Pair, Turned>,
}

/// What a reset of one queue would do to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetPreview {
    /// The first message that the group is not done with.
    pub from: QueueOffset,
    pub to: QueueOffset,
    /// Messages that were handed out, or are done with, and will come again.
    pub again: u64,
    /// Messages that the group is not done with and will not get.
    pub passed_by: u64,
}

impl Resets {
    fn epoch(&self, pair: Pair) -> u32 {
        self.by_pair.get(&pair).map_or(0, |turned| turned.epoch)
    }

    /// Whether the handle was given before its queue was reset.
    pub(super) fn bars(&self, handle: &Handle) -> bool {
        let turned = self.by_pair.get(&(handle.group, handle.topic));
        let last = turned.and_then(|turned| turned.barred.get(&handle.queue));
        last.is_some_and(|last| handle.checkout <= *last)
    }

    fn bar(&mut self, pair: Pair, queue: QueueId, last: CheckoutId) {
        self.by_pair.entry(pair).or_default().barred.insert(queue, last);
    }

    pub(super) fn drop_where(&mut self, gone: impl Fn(&Pair) -> bool) {
        self.by_pair.retain(|pair, _| !gone(pair));
    }

    fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.by_pair.iter(), |w, ((group, topic), turned)| {
            w.put(group);
            w.put(topic);
            w.u32(turned.epoch);
            write_rows(w, turned.barred.iter(), |w, (queue, last)| {
                w.put(queue);
                w.put(last);
            });
        });
    }

    fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut resets = Self::default();
        read_rows(reader, |r| {
            let pair = (r.get()?, r.get()?);
            let mut turned = Turned { epoch: r.u32()?, barred: BTreeMap::new() };
            read_rows(r, |r| {
                let twice = turned.barred.insert(r.get()?, r.get()?);
                require(twice.is_none(), "a queue was reset twice at once")
            })?;
            require(resets.by_pair.insert(pair, turned).is_none(), "resets of a pair come twice")
        })?;
        Ok(resets)
    }
}

impl Deliveries {
    /// How often a group was reset in a topic.
    pub(in crate::machine) fn epoch(&self, pair: Pair) -> u32 {
        self.resets.epoch(pair)
    }

    /// Whether the group has anything of the topic, be it only the place where it begins.
    pub(in crate::machine) fn knows(&self, pair: Pair) -> bool {
        self.pairs.contains_key(&pair)
    }

    /// The group begins here; whatever makes a queue's deliveries later finds it.
    pub(in crate::machine) fn start(
        &mut self,
        pair: Pair,
        offsets: impl Iterator<Item = (QueueId, QueueOffset)>,
    ) {
        let starting =
            offsets.map(|(queue, at)| (queue, QueueDeliveries::starting_at(at.get()))).collect();
        let known = self.pairs.insert(pair, starting);
        assert!(known.is_none(), "a group begins in a topic once");
    }

    /// The group goes on at `at` in this queue: nothing else is left of it but what was counted.
    pub(in crate::machine) fn put(
        &mut self,
        pair: Pair,
        (queue, at): (QueueId, QueueOffset),
        ready: &mut ReadyCounts,
    ) {
        let key = self.touch(pair, queue, at);
        let pending: Vec<u64> = self.queue_mut(key).pending.keys().copied().collect();
        // The last one first: the first of a message group keeps those behind it from being offered.
        for offset in pending.into_iter().rev() {
            self.take_away(Key { offset: QueueOffset::new(offset), ..key }, ready);
        }
        let deliveries = self.queue_mut(key);
        assert!(deliveries.ready.is_empty(), "what is visible again is pending");
        deliveries.free = Intervals::default();
        deliveries.next = at.get();
        // What is dead behind it comes again, and its dead letter is no longer its end.
        deliveries.buried.retain(|offset, _| *offset < at.get());
        self.resets.bar(pair, queue, self.checkouts.last_id());
    }

    /// Counts a reset; answers how many there have been.
    pub(in crate::machine) fn turn(&mut self, pair: Pair) -> u32 {
        let turned = self.resets.by_pair.entry(pair).or_default();
        turned.epoch = turned.epoch.checked_add(1).expect("a group is reset less than 2^32 times");
        turned.epoch
    }

    /// Everything before `to` is done with. A queue of which the group has nothing yet starts at
    /// `start`.
    pub(in crate::machine) fn pass(
        &mut self,
        pair: Pair,
        queue: QueueId,
        (start, to): (QueueOffset, QueueOffset),
        ready: &mut ReadyCounts,
    ) {
        let key = self.touch(pair, queue, start);
        let deliveries = self.queue_mut(key);
        deliveries.free.remove_below(to.get());
        deliveries.next = deliveries.next.max(to.get());
        let pending: Vec<u64> = deliveries.pending.range(..to.get()).map(|(at, _)| *at).collect();
        for offset in pending.into_iter().rev() {
            self.take_away(Key { offset: QueueOffset::new(offset), ..key }, ready);
        }
    }

    /// The queue's deliveries exist afterwards; answers a key in it.
    fn touch(&mut self, (group, topic): Pair, queue: QueueId, start: QueueOffset) -> Key {
        let queues = self.pairs.entry((group, topic)).or_default();
        queues.entry(queue).or_insert_with(|| QueueDeliveries::starting_at(start.get()));
        Key { group, topic, queue, offset: start }
    }

    /// What [`Self::put`] would do, `start` being the least offset of the queue.
    pub(in crate::machine) fn preview(
        &self,
        (group, topic): Pair,
        queue: QueueId,
        (start, to): (QueueOffset, QueueOffset),
    ) -> ResetPreview {
        let (from, at) = (start.get(), to.get());
        let Some(queue) = self.queue(group, topic, queue) else {
            return ResetPreview { from: start, to, again: 0, passed_by: at.saturating_sub(from) };
        };
        let first_free = queue.free.iter().next().map(|(first, _)| first);
        let first_pending = queue.pending.keys().next().copied();
        let from = [first_free, first_pending].into_iter().flatten().fold(queue.next, u64::min);
        let free_behind: u64 = queue.free.from(at).map(|(first, end)| end - first).sum();
        let pending_before = queue.pending.range(..at).count() as u64;
        let fresh_before = at.saturating_sub(queue.next);
        ResetPreview {
            from: QueueOffset::new(from),
            to,
            again: queue.next.saturating_sub(at) - free_behind,
            passed_by: queue.free.total() - free_behind + pending_before + fresh_before,
        }
    }

    pub(in crate::machine) fn write_resets(&self, writer: &mut Writer) {
        self.resets.write(writer);
    }

    /// Comes after all pairs are read.
    pub(in crate::machine) fn read_resets(
        &mut self,
        reader: &mut Reader,
    ) -> Result<(), SectionError> {
        self.resets = Resets::read(reader)?;
        Ok(())
    }

    pub(super) fn check_resets(&self) -> Result<(), SectionError> {
        for (pair, turned) in &self.resets.by_pair {
            let queues = self.pairs.get(pair);
            let known = |queue| queues.is_some_and(|queues| queues.contains_key(queue));
            require(turned.barred.keys().all(known), "a reset of what the group has nothing of")?;
            let last = self.checkouts.last_id();
            let past = turned.barred.values().all(|barred| *barred <= last);
            require(past, "a reset after a checkout that was not yet")?;
        }
        Ok(())
    }
}
