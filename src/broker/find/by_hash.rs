//! By id and by key: what the index has of a hash, compared with the records and told with what
//! became of each.

use std::collections::BTreeSet;

use super::family::{Family, families};
use super::units::{Budget, Search, Units};
use super::{ANSWER_BYTES, FoundMessage, FoundState, KeyQuery, Looked, QUERY_MAX, Wanted};
use crate::base::{LogPosition, QueueId, QueueOffset, TopicId, TopicName, UtcMillis};
use crate::broker::replica::Inner;
use crate::command::{Decision, Transaction, Unit};
use crate::index::{Entry, Index, Taken, id_hash, key_hash};
use crate::machine::DelayedAt;
use crate::message::Message;

/// Records that one question reads at most, in one broker group …
const RECORDS: usize = 20_000;
/// … and queue units that it looks at.
const UNITS: usize = 4 << 20;

const FOREVER: UtcMillis = UtcMillis::new(u64::MAX);

/// One question at one replica.
pub(super) struct ByHash<'a> {
    replica: &'a Inner,
    wanted: &'a Wanted,
    index: &'a Index,
    hash: u64,
    range: (UtcMillis, UtcMillis),
    limit: usize,
    budget: Budget,
}

/// Where a message turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    At(QueueId, QueueOffset, UtcMillis),
    /// Visible, but among too many units to find it.
    Somewhere(QueueId, UtcMillis),
    Delayed(UtcMillis),
    Half,
    Left,
    Unknown,
    /// It never was a message of its own: a repeat, a refused one, rolled back or recalled.
    Never,
}

impl<'a> ByHash<'a> {
    /// `Err` says why nothing can be found. A topic that does not exist here has no messages.
    pub(super) fn new(replica: &'a Inner, wanted: &'a Wanted) -> Result<Self, String> {
        let index = replica.index.as_ref();
        let index = index.ok_or("the index of this node could not be opened; its log says why")?;
        let topic_id = |topic: &TopicName| {
            replica.group.read(|state| state.topic(topic).map(|topic| topic.id))
        };
        let (hash, range, limit) = match wanted {
            Wanted::Key(KeyQuery { topic, key, from, to, limit, .. }) => {
                // No topic has the number 0, so nothing has this hash where there is none.
                let hash = key_hash(topic_id(topic).unwrap_or_default(), key);
                (hash, (from.unwrap_or(UtcMillis::ZERO), to.unwrap_or(FOREVER)), *limit)
            }
            Wanted::Id { id, .. } => (id_hash(id), (UtcMillis::ZERO, FOREVER), QUERY_MAX),
            _ => unreachable!("other questions do not go by hashes"),
        };
        Ok(Self { replica, wanted, index, hash, range, limit, budget: Budget(UNITS) })
    }

    pub(super) fn look(mut self) -> Result<Looked, String> {
        let found = self
            .index
            .find(self.hash)
            .map_err(|error| format!("{error}; the index is made again"))?;
        let until = Some((found.until.position, found.until.stamp));
        let mut looked = Looked { until, ..Looked::default() };
        let mut families = families(&found.entries);
        let newest_first = !matches!(self.wanted, Wanted::Key(query) if query.oldest_first);
        if newest_first {
            families.reverse();
        }
        let (mut records, mut bytes) = (0, 0);
        for family in families {
            if looked.found.len() >= self.limit {
                break;
            }
            // What is visible with its entry is visible at its stamp.
            let at_once = family.first.filter(|first| first.taken == Taken::Published);
            if at_once.is_some_and(|first| !self.is_within(first.stamp)) {
                continue;
            }
            if records == RECORDS || bytes > ANSWER_BYTES {
                let text = "too much has this key; ask for a shorter time";
                looked.left_out = Some(text.to_owned());
                break;
            }
            records += 1;
            let Some(one) = self.message(&family)? else { continue };
            bytes += one.message.as_ref().map_or(0, |message| message.body.len());
            looked.found.push(one);
        }
        tidy(&mut looked.found);
        Ok(looked)
    }

    fn is_within(&self, time: UtcMillis) -> bool {
        self.range.0 <= time && time <= self.range.1
    }

    /// What entries of the index stand for, if that was asked for.
    fn message(&mut self, family: &Family) -> Result<Option<FoundMessage>, String> {
        let newest = &family.newest;
        let Some(message) = self.replica.message_at(newest.position, newest.size)? else {
            return Ok(self.gone(family));
        };
        if !self.is_wanted(&message) {
            return Ok(None);
        }
        let topic = self.replica.group.read(|state| {
            let topic = state.topic(&message.topic);
            topic
                .filter(|topic| topic.created <= newest.stamp)
                .map(|topic| (topic.id, topic.queues))
        });
        let place = match topic {
            Some(topic) => self.place(topic, family)?,
            // It went with its topic; one of the same name that came later has other messages.
            None => Place::Left,
        };
        Ok(self.told(family, place, message))
    }

    fn is_wanted(&self, message: &Message) -> bool {
        let right_topic = self.wanted.topic().is_none_or(|topic| *topic == message.topic);
        right_topic
            && match self.wanted {
                Wanted::Id { id, .. } => message.message_id == *id,
                Wanted::Key(query) => message.keys.contains(&query.key),
                _ => false,
            }
    }

    /// The log has no record to compare with any more. Of an id, of which there is one, the hash is
    /// enough to say that it was there once.
    fn gone(&self, family: &Family) -> Option<FoundMessage> {
        let Wanted::Id { id, topic: Some(topic) } = self.wanted else { return None };
        Some(FoundMessage {
            broker_group: self.replica.name.clone(),
            state: FoundState::Left,
            topic: topic.clone(),
            message_id: id.clone(),
            position: Some(family.root),
            queue: None,
            offset: None,
            stored: None,
            message: None,
        })
    }

    fn told(&self, family: &Family, place: Place, message: Message) -> Option<FoundMessage> {
        let (state, queue, offset, stored) = match place {
            Place::At(queue, offset, stored) => {
                (FoundState::Visible, Some(queue), Some(offset), Some(stored))
            }
            Place::Somewhere(queue, stored) => {
                (FoundState::Visible, Some(queue), None, Some(stored))
            }
            Place::Delayed(due) => (FoundState::Delayed { due }, None, None, None),
            Place::Half => (FoundState::Half, None, None, None),
            Place::Left => (FoundState::Left, None, None, None),
            Place::Unknown => (FoundState::Unknown, None, None, None),
            Place::Never => return None,
        };
        if stored.is_some_and(|stored| !self.is_within(stored)) {
            return None;
        }
        Some(FoundMessage {
            broker_group: self.replica.name.clone(),
            state,
            topic: message.topic.clone(),
            message_id: message.message_id.clone(),
            position: Some(family.root),
            queue,
            offset,
            stored,
            message: (state == FoundState::Visible).then_some(message),
        })
    }

    fn place(&mut self, (topic, queues): (TopicId, u32), family: &Family) -> Result<Place, String> {
        if let Some(first) = &family.first {
            return self.place_of(topic, first, &family.places);
        }
        if let Some(place) = self.remembered(topic, family.root)? {
            return Ok(place);
        }
        // Nothing tells the queue or the time: its first record has left.
        for queue in (0..queues).map(QueueId::new) {
            let units = Units::of(self.replica, topic, queue);
            match units.search(&family.places, (UtcMillis::ZERO, FOREVER), &mut self.budget)? {
                Search::At(offset, Unit { visible, .. }) => {
                    return Ok(Place::At(queue, offset, visible));
                }
                Search::Absent => {}
                Search::GaveUp => return Ok(Place::Unknown),
            }
        }
        Ok(Place::Unknown)
    }

    /// `entry` is of the record's first place; its unit points at one of `places`.
    fn place_of(
        &mut self,
        topic: TopicId,
        entry: &Entry,
        places: &[LogPosition],
    ) -> Result<Place, String> {
        let (queue, stamp) = (entry.queue, entry.stamp);
        if entry.taken != Taken::Published
            && let Some(place) = self.remembered(topic, entry.position)?
        {
            return Ok(place);
        }
        let units = Units::of(self.replica, topic, queue);
        // What fires late is looked for from when it was due on, and then before: its time may have
        // been changed.
        let ranges = match entry.taken {
            Taken::Published => vec![(stamp, stamp)],
            Taken::Scheduled { due } if due > stamp => vec![(due, FOREVER), (stamp, due)],
            _ => vec![(stamp, FOREVER)],
        };
        for range in ranges {
            match units.search(places, range, &mut self.budget)? {
                Search::At(offset, unit) => return Ok(Place::At(queue, offset, unit.visible)),
                Search::Absent => {}
                Search::GaveUp if entry.taken == Taken::Published => {
                    return Ok(Place::Somewhere(queue, stamp));
                }
                Search::GaveUp => return Ok(Place::Unknown),
            }
        }
        Ok(match (units.may_have_left(stamp)?, entry.taken) {
            (false, _) => Place::Never,
            (true, Taken::Published) => Place::Left,
            (true, _) => Place::Unknown,
        })
    }

    /// What the state remembers of a delayed or a half message, by its first place.
    fn remembered(&self, topic: TopicId, at: LogPosition) -> Result<Option<Place>, String> {
        let transaction = Transaction { topic, at };
        let (half, decided, delayed) = self.replica.group.read(|state| {
            (state.half(transaction).is_some(), state.decided(transaction), state.delayed_at(at))
        });
        if half {
            return Ok(Some(Place::Half));
        }
        let (queue, offset) = match (decided, delayed) {
            (Some(decided), _) => match (decided.decision, decided.place) {
                (Decision::Commit, Some(place)) => place,
                _ => return Ok(Some(Place::Never)),
            },
            (None, Some(DelayedAt::Pending { due, .. })) => return Ok(Some(Place::Delayed(due))),
            (None, Some(DelayedAt::Visible { queue, offset, .. })) => (queue, offset),
            (None, None) => return Ok(None),
        };
        let units = Units::of(self.replica, topic, queue);
        if offset < units.bounds().0 {
            return Ok(Some(Place::Left));
        }
        let unit = units.at(offset)?;
        Ok(Some(unit.map_or(Place::Left, |unit| Place::At(queue, offset, unit.visible))))
    }
}

/// One message has one state: where it is visible or waits, a copy of its record that nobody needs
/// any more says nothing.
fn tidy(found: &mut Vec<FoundMessage>) {
    let is_there = |one: &FoundMessage| {
        matches!(one.state, FoundState::Visible | FoundState::Delayed { .. } | FoundState::Half)
    };
    let there: BTreeSet<(TopicName, String)> = found
        .iter()
        .filter(|one| is_there(one))
        .map(|one| (one.topic.clone(), one.message_id.clone()))
        .collect();
    let mut told = BTreeSet::new();
    found.retain(|one| {
        let name = (one.topic.clone(), one.message_id.clone());
        match one.state {
            FoundState::Visible => true,
            _ if is_there(one) => told.insert(name),
            _ => !there.contains(&name) && told.insert(name),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::BrokerGroupName;

    fn one(id: &str, state: FoundState, offset: Option<u64>) -> FoundMessage {
        FoundMessage {
            broker_group: BrokerGroupName::new("g").unwrap(),
            state,
            topic: TopicName::new("t").unwrap(),
            message_id: id.to_owned(),
            position: None,
            queue: None,
            offset: offset.map(QueueOffset::new),
            stored: None,
            message: None,
        }
    }

    #[test]
    fn a_message_that_is_there_has_not_left() {
        let visible = one("a", FoundState::Visible, Some(1));
        let due = UtcMillis::new(7);
        let delayed = one("b", FoundState::Delayed { due }, None);
        let left = |id| one(id, FoundState::Left, None);
        let mut found = vec![
            left("a"),
            visible.clone(),
            delayed.clone(),
            one("b", FoundState::Unknown, None),
            delayed.clone(),
            left("c"),
            left("c"),
        ];
        tidy(&mut found);
        assert_eq!(found, [visible, delayed, left("c")]);
    }
}
