//! Dead letters: messages whose last attempts failed, and what is known of their ends.
//!
//! The entry that ends a last attempt adds a unit to the one queue of the group's own topic for dead
//! letters, which points at the message's record (rule R5), and a row here. So dead letters are read
//! and consumed like the messages of any topic, and go with that topic's retention; the row is what a
//! redrive needs to put the message back where it came from. A dead letter that was redriven has no
//! row any more, and its unit stays until retention takes it.

mod apply;
#[cfg(test)]
mod proptests;

use std::collections::BTreeMap;
use std::ops::Bound;

use super::codec::{read_rows, require, write_rows};
use super::deliveries::Deliveries;
use super::error::SectionError;
use super::limits::DEAD_LETTERS_MAX;
use crate::base::{CheckoutId, GroupId, QueueId, QueueOffset, TopicId, TopicName, UtcMillis};
use crate::command::{DeathReason, Reader, Unit, Writer};

pub(super) use self::apply::Ends;

/// The one queue of a topic for dead letters.
pub(super) const QUEUE: QueueId = QueueId::new(0);

/// A message that a group gave up, and can have again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The group that gave it up.
    pub group: GroupId,
    /// Where it came from: the incarnation, and its name.
    pub origin: TopicId,
    pub origin_name: TopicName,
    pub queue: QueueId,
    pub offset: QueueOffset,
    /// The message as its own queue has it.
    pub unit: Unit,
    /// Deliveries that it got.
    pub attempts: u32,
    /// The last one's.
    pub checkout: CheckoutId,
    pub reason: DeathReason,
    /// The stamp of the entry that ended the last one.
    pub died: UtcMillis,
}

/// Where a dead letter is: the topic for dead letters, and the offset there.
pub(super) type LetterAt = (TopicId, QueueOffset);

#[derive(Debug, Default)]
pub(super) struct DeadLetters(BTreeMap<LetterAt, DeadLetter>);

impl DeadLetters {
    fn has_room(&self) -> bool {
        self.0.len() < DEAD_LETTERS_MAX
    }

    fn add(&mut self, at: LetterAt, letter: DeadLetter) {
        let fresh = self.0.insert(at, letter);
        assert!(fresh.is_none(), "a dead letter has one place");
    }

    pub(super) fn get(&self, at: LetterAt) -> Option<&DeadLetter> {
        self.0.get(&at)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Of one topic, in the order of their deaths, from the one behind `after`.
    pub(super) fn iter_after(
        &self,
        topic: TopicId,
        after: Option<QueueOffset>,
    ) -> impl Iterator<Item = (QueueOffset, &DeadLetter)> {
        let first = (topic, QueueOffset::ZERO);
        let from = after.map_or(Bound::Included(first), |after| Bound::Excluded((topic, after)));
        let rows = self.0.range((from, Bound::Unbounded));
        let rows = rows.take_while(move |(at, _)| at.0 == topic);
        rows.map(|(at, letter)| (at.1, letter))
    }

    /// It is no dead letter any more: its message stands as done, or as whatever comes next.
    fn remove(&mut self, at: LetterAt, deliveries: &mut Deliveries) -> Option<DeadLetter> {
        let letter = self.0.remove(&at)?;
        deliveries.exhume(&letter, at);
        Some(letter)
    }

    /// The topic's queue starts at `start` from now on.
    pub(super) fn drop_below(
        &mut self,
        topic: TopicId,
        start: QueueOffset,
        deliveries: &mut Deliveries,
    ) {
        let range = self.0.range((topic, QueueOffset::ZERO)..(topic, start));
        let gone: Vec<LetterAt> = range.map(|(at, _)| *at).collect();
        for at in gone {
            self.remove(at, deliveries);
        }
    }

    /// The topic of dead letters is gone.
    pub(super) fn drop_topic(&mut self, topic: TopicId, deliveries: &mut Deliveries) {
        let gone: Vec<LetterAt> =
            self.iter_after(topic, None).map(|(offset, _)| (topic, offset)).collect();
        for at in gone {
            self.remove(at, deliveries);
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.0.iter(), |w, ((topic, at), letter)| {
            w.put(topic);
            w.put(at);
            w.put(&letter.group);
            w.put(&letter.origin);
            w.put(&letter.origin_name);
            w.put(&letter.queue);
            w.put(&letter.offset);
            w.put(&letter.unit);
            w.u32(letter.attempts);
            w.put(&letter.checkout);
            w.put(&letter.reason);
            w.put(&letter.died);
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut letters = Self::default();
        read_rows(reader, |r| {
            let at = (r.get()?, r.get()?);
            let letter = DeadLetter {
                group: r.get()?,
                origin: r.get()?,
                origin_name: r.get()?,
                queue: r.get()?,
                offset: r.get()?,
                unit: r.get()?,
                attempts: r.u32()?,
                checkout: r.get()?,
                reason: r.get()?,
                died: r.get()?,
            };
            require(letters.has_room(), "more dead letters than may be")?;
            require(letters.0.insert(at, letter).is_none(), "two dead letters in one place")
        })?;
        Ok(letters)
    }

    /// Whether each row has its unit, and each message that stands as dead its row. `bounds` knows
    /// where a queue starts and ends, `owner` whose dead letters a topic has.
    pub(super) fn check(
        &self,
        bounds: impl Fn(TopicId, QueueId) -> Option<(QueueOffset, QueueOffset)>,
        owner: impl Fn(TopicId) -> Option<GroupId>,
        deliveries: &Deliveries,
    ) -> Result<(), SectionError> {
        for ((topic, at), letter) in &self.0 {
            let within =
                bounds(*topic, QUEUE).is_some_and(|(start, end)| start <= *at && *at < end);
            require(within, "a dead letter that its topic does not have")?;
            require(owner(*topic) == Some(letter.group), "a dead letter of another group")?;
        }
        for (group, origin, queue, offset, at) in deliveries.buried() {
            let known = self.get(at).is_some_and(|letter| {
                let place = (letter.group, letter.origin, letter.queue, letter.offset);
                place == (group, origin, queue, offset)
            });
            require(known, "a message that is dead without its dead letter")?;
        }
        Ok(())
    }
}
