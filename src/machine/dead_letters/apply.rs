//! How messages become dead letters, and come back.

use std::collections::BTreeMap;
use std::io;

use super::{DeadLetter, LetterAt, QUEUE};
use crate::base::{GroupId, Mutant, QueueOffset, TopicId};
use crate::command::{
    CreateTopic, DeliveryOutcome, GiveUp, Handle, Hold, Redrive, Redriven, Refusal, Reply, Unit,
    UpdateGroup,
};
use crate::machine::deliveries::{Dying, UnitAt};
use crate::machine::effect::{Effect, ReadyCounts};
use crate::machine::limits::REDRIVE_MAX;
use crate::machine::state::State;
use crate::machine::{Entry, topics};
use crate::message::MessageKind;

/// What came of one entry, summed: messages that became visible again, and such that died.
#[derive(Debug, Default)]
pub(in crate::machine) struct Ends {
    pub(in crate::machine) ready: ReadyCounts,
    /// By the group, where its messages came from, and its topic of dead letters.
    dead: BTreeMap<(GroupId, TopicId, TopicId), u32>,
}

impl Ends {
    pub(in crate::machine) fn effects(self, effects: &mut Vec<Effect>) {
        for ((group, topic, letters), count) in self.dead {
            effects.push(Effect::Dead { group, topic, count: count.into() });
            effects.push(Effect::Arrived { topic: letters, queue: QUEUE, count });
        }
        effects.extend(self.ready.effects());
    }
}

impl State {
    /// What a step has left with its last attempt spent becomes dead letters, in the order in which
    /// that came about. What may not stays with its group and comes again.
    pub(in crate::machine) fn bury_dying(
        &mut self,
        entry: &Entry,
        ends: &mut Ends,
    ) -> io::Result<()> {
        while let Some(dying) = self.deliveries.next_dying() {
            let dies = self.may_die(dying.group, dying.topic, dying.unit);
            match self.dead_letters_of(entry, dying.group).filter(|_| dies) {
                Some(_) if Mutant::DeadLetterLost.is_on() => {
                    self.deliveries.lose(&dying, &mut ends.ready);
                }
                Some(topic) => self.bury(entry, &dying, topic, ends)?,
                None => self.deliveries.spare(&dying, &mut ends.ready),
            }
        }
        Ok(())
    }

    /// Whether a message may become a dead letter: not one that its group took from its own dead
    /// letters, since it would go round for ever; and only while there is room (rule R10).
    fn may_die(&self, group: GroupId, topic: TopicId, unit: Unit) -> bool {
        let (Ok(group), Ok(topic)) = (self.groups.get(group), self.topics.get(topic)) else {
            return false;
        };
        let late = if self.is_late(unit) { u64::from(unit.size) } else { 0 };
        topic.name != group.name.dead_letters()
            && self.dead.has_room()
            && (late == 0 || self.late.bytes() + late <= self.pending_bytes_max())
    }

    /// The front passes its record with an earlier mark than the one that a unit made now leaves with.
    fn is_late(&self, unit: Unit) -> bool {
        unit.position < self.marks.newest_end()
    }

    /// The group's topic for dead letters, made when it is first needed; `None` when there are as
    /// many topics as may be.
    fn dead_letters_of(&mut self, entry: &Entry, group: GroupId) -> Option<TopicId> {
        let group = self.groups.get(group).ok()?;
        let (name, longest) = (group.name.dead_letters(), self.longest());
        if let Some(topic) = self.topics.by_name(&name) {
            return Some(topic.id);
        }
        // The log may be kept shorter now than when the group was told.
        let keep = group.dead_keep.filter(|keep| longest.get() == 0 || *keep <= longest);
        let create = CreateTopic { name, queues: 1, kinds: vec![MessageKind::Normal], keep };
        match self.topics.create(&create, entry.stamp, longest) {
            Reply::TopicCreated { topic, .. } => {
                self.queues.add_topic(topic, create.queues);
                Some(topic)
            }
            _ => None,
        }
    }

    fn bury(
        &mut self,
        entry: &Entry,
        dying: &Dying,
        topic: TopicId,
        ends: &mut Ends,
    ) -> io::Result<()> {
        let offset = self.queues.end(topic, QUEUE).expect("the topic was found or made just now");
        let unit = Unit { visible: entry.stamp, ..dying.unit };
        self.queues.append(topic, QUEUE, &[unit])?;
        self.marks.note_growth(topic, QUEUE);
        // Before the delivery lets go of the record: what is written again stays where it is.
        if self.is_late(unit) {
            let at = UnitAt { topic, queue: QUEUE, offset };
            self.late.add(at, unit, self.deliveries.references_mut());
        }
        let origin = self.topics.get(dying.topic).expect("what is pending has its topic");
        let letter = DeadLetter {
            group: dying.group,
            origin: dying.topic,
            origin_name: origin.name.clone(),
            queue: dying.queue,
            offset: dying.offset,
            unit: dying.unit,
            attempts: dying.attempts,
            checkout: dying.checkout,
            reason: dying.reason,
            died: entry.stamp,
        };
        self.dead.add((topic, offset), letter);
        self.deliveries.bury(dying, (topic, offset), &mut ends.ready);
        *ends.dead.entry((dying.group, dying.topic, topic)).or_default() += 1;
        Ok(())
    }

    /// A consumer tries a message no more. Where it may not become a dead letter it is hidden for a
    /// while, and comes again.
    pub(in crate::machine) fn give_up(
        &mut self,
        entry: &Entry,
        given: &GiveUp,
        ready: &mut ReadyCounts,
    ) -> DeliveryOutcome {
        let GiveUp { handle, otherwise } = *given;
        let unit = self.deliveries.unit_of_handle(&handle);
        let dies = unit.is_some_and(|unit| self.may_die(handle.group, handle.topic, unit));
        if unit.is_none() || dies || self.deliveries.stops(&handle) {
            return self.deliveries.give_up(&handle, entry.stamp, ready);
        }
        self.deliveries.hold(&Hold { handle, invisible: otherwise }, entry.stamp, ready)
    }

    /// Whether a consumer says again of a message that it shall come again, when saying it the first
    /// time was the end of the last attempt.
    pub(in crate::machine) fn died_of(&self, hold: &Hold) -> bool {
        let Handle { checkout, attempt, .. } = hold.handle;
        let letter = self.deliveries.letter_of(&hold.handle).and_then(|at| self.dead.get(at));
        hold.invisible.get() == 0
            && letter.is_some_and(|it| it.checkout == checkout && it.attempts == attempt)
    }

    /// Dead letters go back to where they came from, one after the other in the order of the request.
    pub(in crate::machine) fn redrive(
        &mut self,
        entry: &Entry,
        redrive: &Redrive,
        effects: &mut Vec<Effect>,
    ) -> Reply {
        let Redrive { group, topic, letters } = redrive;
        if let Err(refusal) = self.groups.get(*group) {
            return Reply::Refused(refusal);
        }
        if letters.len() > REDRIVE_MAX {
            return Reply::Refused(topics::limit("dead letters of one redrive", REDRIVE_MAX));
        }
        let mut ready = ReadyCounts::default();
        let redriven = letters
            .iter()
            .map(|offset| self.redrive_one(entry, *group, (*topic, *offset), &mut ready))
            .collect();
        effects.extend(ready.effects());
        Reply::Redriven(redriven)
    }

    fn redrive_one(
        &mut self,
        entry: &Entry,
        group: GroupId,
        at: LetterAt,
        ready: &mut ReadyCounts,
    ) -> Redriven {
        let Some(letter) = self.dead.get(at).filter(|letter| letter.group == group) else {
            return Redriven::NotFound;
        };
        let Some(rule) = self.rule(group, letter.origin) else { return Redriven::TargetGone };
        if self.moved_full().is_some() || !self.deliveries.has_room_for(letter) {
            return Redriven::Full;
        }
        let letter = letter.clone();
        self.deliveries.raise(&letter, at, (entry.stamp, rule), ready);
        if Mutant::RedriveKept.is_on() {
            return Redriven::Done;
        }
        let removed = self.dead.remove(at, &mut self.deliveries);
        assert!(removed.is_some(), "it was there just now");
        Redriven::Done
    }

    /// The topic for the dead letters of a group is made by its name, so that it can be read before
    /// anything has died.
    pub(in crate::machine) fn create_dead_letters(
        &mut self,
        entry: &Entry,
        create: &CreateTopic,
    ) -> Reply {
        let owner = create.name.dead_letters_of();
        let owner = owner.and_then(|name| self.groups.by_name(&name).map(|group| group.id));
        let Some(owner) = owner else {
            return Reply::Refused(Refusal::NoOwner { name: create.name.to_string() });
        };
        if let Some(topic) = self.topics.by_name(&create.name) {
            return Reply::TopicCreated { topic: topic.id, existed: true };
        }
        match self.dead_letters_of(entry, owner) {
            Some(topic) => Reply::TopicCreated { topic, existed: false },
            None => Reply::Refused(topics::limit("topics", super::super::limits::TOPICS_MAX)),
        }
    }

    /// The group whose dead letters a topic has.
    pub(in crate::machine) fn owner_of(&self, topic: TopicId) -> Option<GroupId> {
        let name = self.topics.get(topic).ok()?.name.dead_letters_of()?;
        self.groups.by_name(&name).map(|group| group.id)
    }

    /// A group is to fail otherwise from now on.
    pub(in crate::machine) fn update_group(&mut self, update: &UpdateGroup) -> Reply {
        if let Some(keep) = update.dead_keep.filter(|keep| keep.get() > 0)
            && let Err(refusal) = topics::check_keep(keep, self.longest())
        {
            return Reply::Refused(refusal);
        }
        let group = match self.groups.update(update) {
            Ok(group) => group,
            Err(refusal) => return Reply::Refused(refusal),
        };
        let (id, attempts_max, keep) = (group.id, group.attempts_max, group.dead_keep);
        self.deliveries.set_attempts(id, attempts_max);
        if let Some(topic) = self.letters(id) {
            self.topics.set_keep(topic, keep);
        }
        Reply::Done
    }

    fn letters(&self, group: GroupId) -> Option<TopicId> {
        let name = self.groups.get(group).ok()?.name.dead_letters();
        self.topics.by_name(&name).map(|topic| topic.id)
    }

    /// Bytes that records may still have which lie before what their units leave with; where a message
    /// has more, it comes again after its last attempt (rule R10).
    pub fn letter_room(&self) -> u64 {
        self.pending_bytes_max().saturating_sub(self.late.bytes())
    }

    /// A group's dead letters in the order of their deaths, with the offset that each has in the
    /// group's topic for them, from the one behind `after`.
    pub fn dead_letters(
        &self,
        group: GroupId,
        after: Option<QueueOffset>,
    ) -> impl Iterator<Item = (QueueOffset, &DeadLetter)> {
        let topic = self.letters(group).into_iter();
        topic.flat_map(move |topic| self.dead.iter_after(topic, after))
    }

    /// What is known of the end of a message that a topic for dead letters has; `None` when it was
    /// redriven.
    pub fn dead_letter(&self, topic: TopicId, offset: QueueOffset) -> Option<&DeadLetter> {
        self.dead.get((topic, offset))
    }

    /// The topic of a group's dead letters, once there is one.
    pub fn dead_letters_topic(&self, group: GroupId) -> Option<TopicId> {
        self.letters(group)
    }

    /// Of all groups; a number at hand.
    pub fn dead_letters_count(&self) -> usize {
        self.dead.len()
    }
}
