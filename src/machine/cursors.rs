//! Entries that say where groups stand: where they begin, resets, pauses, stored offsets.

use super::effect::{Effect, ReadyCounts};
use super::state::State;
use crate::base::{GroupId, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{Checkout, CreateGroup, Refusal, Reply, Reset, Start, StoreOffset};

impl State {
    /// A group that exists keeps its settings.
    pub(super) fn begin_group(&mut self, create: &CreateGroup, stamp: UtcMillis) -> Reply {
        let reply = self.groups.create(create, stamp);
        if let Reply::GroupCreated { group, existed: false } = reply {
            self.begins.add(group, create.begin, stamp);
        }
        reply
    }

    /// Whether it is decided where the group begins in the topic. Nothing is handed out before.
    pub fn has_begun(&self, group: GroupId, topic: TopicId) -> bool {
        self.begins.start(group).is_none() || self.deliveries.knows((group, topic))
    }

    /// Whether a checkout may get anything at all: one that was computed before a reset may not.
    pub(super) fn may_hand_out(&self, checkout: &Checkout) -> bool {
        let pair = (checkout.group, checkout.topic);
        checkout.epoch == self.deliveries.epoch(pair)
            && !self.begins.is_paused(checkout.group)
            && self.has_begun(checkout.group, checkout.topic)
    }

    /// Changes nothing for a pair that has begun.
    pub(super) fn start(&mut self, start: &Start) -> Reply {
        let pair = (start.group, start.topic);
        if let Err(refusal) = self.check_pair(start.group, start.topic) {
            return Reply::Refused(refusal);
        }
        if self.has_begun(start.group, start.topic) {
            return Reply::Done;
        }
        let place = |(number, offset): (u32, &QueueOffset)| {
            let queue = QueueId::new(number);
            let (start, end) = self.queues.bounds(pair.1, queue)?;
            Some((queue, (*offset).clamp(start, end)))
        };
        let places = (0..).zip(&start.offsets).filter_map(place);
        let places: Vec<(QueueId, QueueOffset)> = places.collect();
        self.deliveries.start(pair, places.into_iter());
        Reply::Done
    }

    fn check_begun(&self, group: GroupId, topic: TopicId) -> Result<(), Refusal> {
        self.check_pair(group, topic)?;
        if self.has_begun(group, topic) {
            return Ok(());
        }
        Err(Refusal::NotBegun { group, topic })
    }

    /// Repeating it puts the group there again: what it was handed in between comes again too.
    pub(super) fn reset(&mut self, reset: &Reset, effects: &mut Vec<Effect>) -> Reply {
        match self.check_reset(reset) {
            Ok(()) => {}
            Err(refusal) => return Reply::Refused(refusal),
        }
        let epoch = self.put_all((reset.group, reset.topic), &reset.offsets, effects);
        Reply::Reset { epoch }
    }

    fn check_reset(&self, reset: &Reset) -> Result<(), Refusal> {
        self.check_begun(reset.group, reset.topic)?;
        let topic = self.topics.get(reset.topic)?;
        reset.offsets.iter().try_for_each(|(queue, _)| topic.check_queue(*queue))
    }

    fn put_all(
        &mut self,
        pair: (GroupId, TopicId),
        offsets: &[(QueueId, QueueOffset)],
        effects: &mut Vec<Effect>,
    ) -> u32 {
        let (group, topic) = pair;
        let mut ready = ReadyCounts::default();
        let mut behind = 0_u64;
        for (queue, offset) in offsets {
            let bounds = self.queues.bounds(topic, *queue);
            let (start, end) = bounds.expect("checked: the queue exists");
            let at = (*offset).clamp(start, end);
            self.deliveries.put(pair, (*queue, at), &mut ready);
            self.stored.put((group, topic, *queue), at);
            behind += end.since(at);
        }
        effects.extend(ready.effects());
        let count = u32::try_from(behind).unwrap_or(u32::MAX).max(1);
        effects.push(Effect::Ready { group, topic, count });
        self.deliveries.turn(pair)
    }

    pub(super) fn pause(
        &mut self,
        group: GroupId,
        paused: bool,
        effects: &mut Vec<Effect>,
    ) -> Reply {
        if let Err(refusal) = self.groups.get(group) {
            return Reply::Refused(refusal);
        }
        if self.begins.pause(group, paused) && !paused {
            effects.push(Effect::Resumed { group });
        }
        Reply::Done
    }

    /// One that moves on, or is the first, never brings anything back; one that moves back from what
    /// was stored is a reset of its queue.
    pub(super) fn store_offset(&mut self, store: &StoreOffset, effects: &mut Vec<Effect>) -> Reply {
        if let Err(refusal) = self.check_store(store) {
            return Reply::Refused(refusal);
        }
        let StoreOffset { group, topic, queue, offset } = *store;
        let key = (group, topic, queue);
        let bounds = self.queues.bounds(topic, queue);
        let (start, end) = bounds.expect("checked: the queue exists");
        let at = offset.clamp(start, end);
        if self.stored.get(key).is_some_and(|stored| at < stored) {
            self.put_all((group, topic), &[(queue, at)], effects);
        } else {
            let mut ready = ReadyCounts::default();
            self.deliveries.pass((group, topic), queue, (start, at), &mut ready);
            effects.extend(ready.effects());
        }
        self.stored.set(key, at);
        Reply::Done
    }

    fn check_store(&self, store: &StoreOffset) -> Result<(), Refusal> {
        self.check_begun(store.group, store.topic)?;
        self.topics.get(store.topic)?.check_queue(store.queue)?;
        self.stored.check_room((store.group, store.topic, store.queue))
    }
}
