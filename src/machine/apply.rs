//! What each command does to the state.

use std::collections::BTreeMap;
use std::io;

use super::dead_letters::Ends;
use super::deliveries::{Bounds, Rule};
use super::effect::{Effect, ReadyCounts};
use super::error::ApplyError;
use super::state::State;
use super::{Applied, Entry, topics};
use crate::base::{CheckoutId, GroupId, LogIndex, QueueId, TopicId};
use crate::command::{
    CheckedOut, Command, CreateGroup, CreateTopic, Delivery, DeliveryOutcome, Publish, PublishItem,
    Published, Refusal, Reply, Subscribe, Unit,
};

impl State {
    /// Applies the entry behind the last one. After an error the state must not be used any more.
    pub(super) fn apply(&mut self, entry: &Entry) -> Result<Applied, ApplyError> {
        self.check_order(entry)?;
        let before = self.head.log_end;
        self.head.applied = Some((entry.index, entry.term));
        self.head.stamp = entry.stamp;
        self.head.log_end = entry.end;
        self.dedup.forget(entry.stamp);
        self.decided.forget(entry.stamp);
        let mut effects = Vec::new();
        let reply = if entry.command.is_empty() {
            Reply::Done
        } else {
            let index = entry.index;
            let command = Command::decode(&entry.command)
                .map_err(|source| ApplyError::Command { index, source })?;
            self.apply_command(entry, command, &mut effects)
                .map_err(|source| ApplyError::Io { index, source })?
        };
        self.timers.turn(entry.stamp);
        self.marks.consider(entry, before, &self.queues);
        Ok(Applied { reply, effects })
    }

    fn check_order(&self, entry: &Entry) -> Result<(), ApplyError> {
        let length = entry.command.len() as u64;
        assert!(entry.position.plus(length) <= entry.end, "an entry ends behind its command");
        assert!(self.head.log_end <= entry.position, "entries follow each other in the log");
        let (index, found) = (entry.index, entry.stamp);
        let expected = self.head.applied.map_or(LogIndex::ZERO, |(index, _)| index.next());
        if index != expected {
            return Err(ApplyError::Gap { expected, found: index });
        }
        if let Some((_, applied)) = self.head.applied
            && entry.term < applied
        {
            return Err(ApplyError::Term { index, applied, found: entry.term });
        }
        if found < self.head.stamp {
            return Err(ApplyError::Stamp { index, applied: self.head.stamp, found });
        }
        Ok(())
    }

    fn apply_command(
        &mut self,
        entry: &Entry,
        command: Command,
        effects: &mut Vec<Effect>,
    ) -> io::Result<Reply> {
        Ok(match command {
            Command::Found(found) => {
                self.head.founded.get_or_insert(found);
                Reply::Done
            }
            Command::Publish(publish) => return self.publish(entry, &publish, effects),
            Command::Deliveries(deliveries) => return self.deliver(entry, &deliveries, effects),
            Command::CreateTopic(create) => self.create_topic(entry, &create),
            Command::DeleteTopic { topic } => self.delete_topic(entry, topic, effects),
            Command::CreateGroup(create) => self.create_group(entry, &create),
            Command::DeleteGroup { group } => self.delete_group(entry, group, effects),
            Command::Subscribe(subscribe) => self.subscribe(subscribe),
            Command::Unsubscribe(subscribe) => self.unsubscribe(&subscribe),
            Command::Tick { limit } => {
                let ended = self.end_deadlines(entry, limit, effects)?;
                let left = self.instances.tick(entry.stamp, limit);
                let fired = ended + left + self.fire(entry, limit, effects)?;
                Reply::Ticked { fired }
            }
            Command::Audit => {
                let state_hash = self.hash();
                self.audit = Some((entry.index, state_hash));
                Reply::Audited { index: entry.index, state_hash }
            }
            Command::Retain(retention) => self.retain(retention),
            Command::PurgeIntent { mark } => self.intend_purge(mark, effects),
            Command::Relocate(relocations) => self.relocate(entry, &relocations),
            Command::PurgeTo { mark } => self.purge_to(mark),
            Command::Trim(trim) => self.trim(trim, effects),
            Command::GrowTopic { topic, queues } => self.grow_topic(topic, queues),
            Command::ResumeLines { group, topic } => self.resume_lines((group, topic), effects),
            Command::Schedule(schedule) => return self.schedule(entry, &schedule, effects),
            Command::Recall(timer) => self.recall(entry, &timer),
            Command::Reschedule { timer, due } => self.reschedule(entry, &timer, due),
            Command::Prepare(prepare) => self.prepare(entry, &prepare),
            Command::End(end) => return self.end_transaction(entry, &end, effects),
            Command::Check(checks) => self.note_checks(entry, &checks),
            Command::Resume(transaction) => self.resume(entry, transaction),
            Command::Redrive(redrive) => self.redrive(entry, &redrive, effects),
            Command::UpdateGroup(update) => self.update_group(&update),
            Command::Position(position) => self.place(entry, &position),
            Command::Leave(leave) => {
                self.instances.leave(&leave);
                Reply::Done
            }
            Command::Start(start) => self.start(&start),
            Command::Reset(reset) => self.reset(&reset, effects),
            Command::Pause { group, paused } => self.pause(group, paused, effects),
            Command::StoreOffset(store) => self.store_offset(&store, effects),
            Command::MembersDiffer { group, topic } => self.members_differ(entry, (group, topic)),
        })
    }

    fn create_topic(&mut self, entry: &Entry, create: &CreateTopic) -> Reply {
        if create.name.is_for_dead_letters() {
            return self.create_dead_letters(entry, create);
        }
        let reply = self.topics.create(create, entry.stamp, self.longest());
        if let Reply::TopicCreated { topic, existed: false } = reply {
            self.queues.add_topic(topic, create.queues);
        }
        reply
    }

    fn delete_topic(&mut self, entry: &Entry, topic: TopicId, effects: &mut Vec<Effect>) -> Reply {
        if self.topics.delete(topic).is_none() {
            return Reply::Refused(Refusal::NoTopic { topic });
        }
        self.queues.drop_topic(topic);
        self.subscriptions.drop_topic(topic);
        self.conflicts.drop_topic(topic);
        self.deliveries.drop_topic(topic);
        self.halves.drop_topic(topic, self.deliveries.references_mut());
        self.late.drop_topic(topic, self.deliveries.references_mut());
        self.dead.drop_topic(topic, &mut self.deliveries);
        self.marks.drop_topic(topic);
        self.stored.drop_topic(topic);
        self.timers.drop_topic(topic, entry.stamp);
        self.instances.drop_topic(topic);
        effects.push(Effect::TopicGone { topic });
        Reply::Done
    }

    fn grow_topic(&mut self, topic: TopicId, queues: u32) -> Reply {
        if self.owner_of(topic).is_some() && queues > 1 {
            return Reply::Refused(topics::limit("queues of a topic for dead letters", 1));
        }
        match self.topics.grow(topic, queues) {
            Ok(()) => self.queues.grow_topic(topic, queues),
            Err(refusal) => return Reply::Refused(refusal),
        }
        Reply::Done
    }

    fn resume_lines(&mut self, pair: (GroupId, TopicId), effects: &mut Vec<Effect>) -> Reply {
        if let Err(refusal) = self.check_pair(pair.0, pair.1) {
            return Reply::Refused(refusal);
        }
        let mut ready = ReadyCounts::default();
        self.deliveries.resume(pair, &mut ready);
        effects.extend(ready.effects());
        Reply::Done
    }

    /// How a group takes a topic's message groups; `None` when one of the two is gone.
    pub(super) fn rule(&self, group: GroupId, topic: TopicId) -> Option<Rule> {
        let (group, topic) = (self.groups.get(group).ok()?, self.topics.get(topic).ok()?);
        Some(group.rule_on(topic))
    }

    fn create_group(&mut self, entry: &Entry, create: &CreateGroup) -> Reply {
        if let Some(keep) = create.dead_keep
            && let Err(refusal) = topics::check_keep(keep, self.longest())
        {
            return Reply::Refused(refusal);
        }
        self.begin_group(create, entry.stamp)
    }

    fn delete_group(&mut self, entry: &Entry, group: GroupId, effects: &mut Vec<Effect>) -> Reply {
        let letters = self.dead_letters_topic(group);
        if self.groups.delete(group).is_none() {
            return Reply::Refused(Refusal::NoGroup { group });
        }
        if let Some(letters) = letters {
            self.delete_topic(entry, letters, effects);
        }
        self.subscriptions.drop_group(group);
        self.conflicts.drop_group(group);
        self.deliveries.drop_group(group);
        self.instances.drop_group(group);
        self.begins.drop_group(group);
        self.stored.drop_group(group);
        effects.push(Effect::GroupGone { group });
        Reply::Done
    }

    fn subscribe(&mut self, subscribe: Subscribe) -> Reply {
        match self.check_pair(subscribe.group, subscribe.topic) {
            Ok(()) => self.subscriptions.add(subscribe),
            Err(refusal) => Reply::Refused(refusal),
        }
    }

    fn unsubscribe(&mut self, subscribe: &Subscribe) -> Reply {
        let reply = self.subscriptions.remove(subscribe);
        let pair = (subscribe.group, subscribe.topic);
        if self.subscriptions.get(pair.0, pair.1).1.len() < 2 {
            self.conflicts.end(pair);
        }
        reply
    }

    /// One filter alone is no disagreement: the other one was given up meanwhile.
    fn members_differ(&mut self, entry: &Entry, pair: (GroupId, TopicId)) -> Reply {
        if let Err(refusal) = self.check_pair(pair.0, pair.1) {
            return Reply::Refused(refusal);
        }
        let differ = self.subscriptions.get(pair.0, pair.1).1.len() > 1;
        Reply::MembersDiffer { first: differ && self.conflicts.begin(pair, entry.stamp) }
    }

    pub(super) fn check_pair(&self, group: GroupId, topic: TopicId) -> Result<(), Refusal> {
        self.groups.get(group)?;
        self.topics.get(topic)?;
        Ok(())
    }

    fn publish(
        &mut self,
        entry: &Entry,
        publish: &Publish,
        effects: &mut Vec<Effect>,
    ) -> io::Result<Reply> {
        let topic = publish.topic;
        if let Err(refusal) = self.check_publish(publish) {
            return Ok(Reply::Refused(refusal));
        }
        let mut published = Vec::with_capacity(publish.items.len());
        let mut units: BTreeMap<QueueId, Vec<Unit>> = BTreeMap::new();
        for item in &publish.items {
            self.dedup.forget(entry.stamp);
            let earlier = publish.dedup.then(|| self.dedup.find(topic, item)).flatten();
            if let Some(earlier) = earlier {
                published.push(earlier);
                continue;
            }
            let end = self.queues.end(topic, item.queue).expect("checked: the queue exists");
            let units = units.entry(item.queue).or_default();
            let offset = end.plus(units.len() as u64);
            units.push(unit_of(entry, item));
            let outcome =
                Published { queue: item.queue, offset, visible: entry.stamp, repeated: false };
            if publish.dedup {
                self.dedup.add(topic, item, &outcome);
            }
            published.push(outcome);
        }
        for (queue, units) in units {
            self.queues.append(topic, queue, &units)?;
            self.marks.note_growth(topic, queue);
            let count = u32::try_from(units.len()).expect("an entry counts its messages in a u32");
            effects.push(Effect::Arrived { topic, queue, count });
        }
        Ok(Reply::Published(published))
    }

    fn check_publish(&self, publish: &Publish) -> Result<(), Refusal> {
        let topic = self.topics.get(publish.topic)?;
        if topic.name.is_for_dead_letters() {
            return Err(Refusal::DeadLettersOnly { topic: topic.id });
        }
        publish.items.iter().try_for_each(|item| topic.check_queue(item.queue))
    }

    fn deliver(
        &mut self,
        entry: &Entry,
        deliveries: &[Delivery],
        effects: &mut Vec<Effect>,
    ) -> io::Result<Reply> {
        let mut ends = Ends::default();
        let mut outcomes = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let outcome = match self.check_delivery(delivery) {
                Ok(()) => self.deliver_one(entry, delivery, &mut ends.ready),
                Err(refusal) => DeliveryOutcome::Refused(refusal),
            };
            self.bury_dying(entry, &mut ends)?;
            outcomes.push(outcome);
        }
        ends.effects(effects);
        Ok(Reply::Deliveries(outcomes))
    }

    /// Ends at most `limit` of the deliveries that are due, in the order of their deadlines; answers
    /// how many.
    fn end_deadlines(
        &mut self,
        entry: &Entry,
        limit: u32,
        effects: &mut Vec<Effect>,
    ) -> io::Result<u32> {
        let mut ends = Ends::default();
        let mut ended = 0;
        while ended < limit && self.deliveries.tick(entry.stamp, &mut ends.ready) {
            self.bury_dying(entry, &mut ends)?;
            ended += 1;
        }
        ends.effects(effects);
        Ok(ended)
    }

    /// What is handed out keeps its record by itself from now on: where the record of a delayed
    /// message lies is told along, since that may be forgotten before the delivery is over.
    fn take_places(&mut self, checked_out: &CheckedOut) {
        for granted in &checked_out.granted {
            let unit = granted.unit;
            if let Some((now, size)) = self.timers.moved(unit.position)
                && self.deliveries.locate(unit).position < now
            {
                self.deliveries.relocate(unit.position, now, size);
            }
        }
    }

    fn check_delivery(&self, delivery: &Delivery) -> Result<(), Refusal> {
        match delivery {
            Delivery::Checkout(checkout) => self.check_pair(checkout.group, checkout.topic),
            Delivery::Ack(ack) => self.check_pair(ack.handle.group, ack.handle.topic),
            Delivery::GiveUp(given) => self.check_pair(given.handle.group, given.handle.topic),
            Delivery::Hold(hold) => self.check_pair(hold.handle.group, hold.handle.topic),
            Delivery::Release(release) => self.groups.get(release.group).map(|_| ()),
            Delivery::Renew(_) | Delivery::Return(_) => Ok(()),
        }
    }

    fn deliver_one(
        &mut self,
        entry: &Entry,
        delivery: &Delivery,
        ready: &mut ReadyCounts,
    ) -> DeliveryOutcome {
        let stamp = entry.stamp;
        match delivery {
            Delivery::Checkout(checkout) if !self.may_hand_out(checkout) => {
                let checkout = CheckoutId::new(0);
                DeliveryOutcome::CheckedOut(CheckedOut { checkout, granted: Vec::new() })
            }
            Delivery::Checkout(checkout) => {
                let full = self.moved_full();
                let bounds = Bounds {
                    stamp,
                    subscription_version: self.subscriptions.get(checkout.group, checkout.topic).0,
                    bounds: &|queue| self.queues.bounds(checkout.topic, queue),
                    has_unit: &|queue, offset| {
                        let units = self.queues.read(checkout.topic, queue, offset, 1);
                        units.is_ok_and(|units| !units.is_empty())
                    },
                    fresh: full.is_none(),
                    rule: self.rule(checkout.group, checkout.topic).expect("both were checked"),
                };
                let checked_out = self.deliveries.check_out(checkout, &bounds, ready);
                self.take_places(&checked_out);
                match full {
                    Some(refusal) if checked_out.granted.is_empty() => {
                        DeliveryOutcome::Refused(refusal)
                    }
                    _ => DeliveryOutcome::CheckedOut(checked_out),
                }
            }
            Delivery::Ack(ack) => self.deliveries.ack(ack, ready),
            Delivery::GiveUp(given) => self.give_up(entry, given, ready),
            Delivery::Hold(hold) if self.died_of(hold) => DeliveryOutcome::Done,
            Delivery::Hold(hold) => self.deliveries.hold(hold, stamp, ready),
            Delivery::Renew(renew) => self.deliveries.renew(renew, stamp),
            Delivery::Release(release) => self.deliveries.release(release, stamp, ready),
            Delivery::Return(returned) => self.deliveries.give_back(returned, stamp, ready),
        }
    }
}

/// The pointer to a message whose record lies in this entry.
pub(super) fn unit_of(entry: &Entry, item: &PublishItem) -> Unit {
    let end = item.record_at as usize + item.record.len();
    assert!(end <= entry.command.len(), "a record lies within its command");
    Unit {
        position: entry.position.plus(u64::from(item.record_at)),
        size: u32::try_from(item.record.len()).expect("a record is shorter than its command"),
        tag_hash: item.tag_hash,
        group_hash: item.group_hash,
        visible: entry.stamp,
    }
}
