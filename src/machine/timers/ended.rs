//! How the last delayed messages ended, so that whoever asks late, or twice, is told the truth.
//!
//! Those that fired and those that were recalled are remembered apart: a burst of the ones, which is
//! usual, is not to push the others out.

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashTable;

use super::{Row, id_hash};
use crate::base::{LogPosition, TopicId, UtcMillis};
use crate::command::{Reader, TimerKey, TimerOutcome, Writer};
use crate::machine::codec::{read_rows, require, write_rows};
use crate::machine::error::SectionError;
use crate::machine::limits::{ENDED_MAX, ENDED_MIN, ENDED_WINDOW};
use crate::message::MessageIdHash;

#[derive(Debug)]
pub(super) struct Ended {
    fired: Ends,
    recalled: Ends,
}

impl Ended {
    pub(super) fn new(seed: u64) -> Self {
        Self { fired: Ends::new(seed), recalled: Ends::new(seed) }
    }

    pub(super) fn fired(&mut self, row: &Row, stamp: UtcMillis) {
        self.fired.add(row, stamp);
    }

    pub(super) fn recalled(&mut self, row: &Row, stamp: UtcMillis) {
        self.recalled.add(row, stamp);
    }

    /// What became of a message that is not pending: the latest one of its id, where no place is
    /// named.
    pub(super) fn outcome(&self, key: &TimerKey) -> TimerOutcome {
        let when = |end: End| (end.stamp, end.original);
        let (fired, recalled) = (self.fired.find(key).map(when), self.recalled.find(key).map(when));
        match (fired, recalled) {
            (None, None) => TimerOutcome::NotFound,
            (fired, recalled) if fired > recalled => TimerOutcome::AlreadyFired,
            _ => TimerOutcome::Recalled,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        self.fired.write(writer);
        self.recalled.write(writer);
    }

    pub(super) fn read(reader: &mut Reader, seed: u64) -> Result<Self, SectionError> {
        let fired = Ends::read(reader, seed)?;
        Ok(Self { fired, recalled: Ends::read(reader, seed)? })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    topic: TopicId,
    id: MessageIdHash,
    original: LogPosition,
    stamp: UtcMillis,
}

#[derive(Debug)]
struct Ends {
    /// Oldest first.
    ends: VecDeque<End>,
    /// The number of the oldest, modulo 2^32: ends are counted as they come.
    first: u32,
    /// The number of the latest of each topic and id. Its order decides nothing.
    latest: HashTable<u32>,
    /// All others, of which there may be many with one id.
    others: BTreeSet<(TopicId, MessageIdHash, LogPosition)>,
    seed: u64,
}

fn at(first: u32, number: u32) -> usize {
    number.wrapping_sub(first) as usize
}

impl Ends {
    fn new(seed: u64) -> Self {
        let (ends, latest, others) = (VecDeque::new(), HashTable::new(), BTreeSet::new());
        Self { ends, first: 0, latest, others, seed }
    }

    fn add(&mut self, row: &Row, stamp: UtcMillis) {
        let Row { topic, id, original, .. } = *row;
        self.push(End { topic, id, original, stamp });
        while self.ends.len() > ENDED_MIN {
            let oldest = self.ends.front().expect("there are more than a few");
            if self.ends.len() <= ENDED_MAX && stamp.since(oldest.stamp) <= ENDED_WINDOW {
                break;
            }
            self.drop_first();
        }
    }

    fn push(&mut self, end: End) {
        let count = u32::try_from(self.ends.len()).expect("fewer than 2^32 are remembered");
        let number = self.first.wrapping_add(count);
        self.ends.push_back(end);
        let (ends, first, seed) = (&self.ends, self.first, self.seed);
        let same = |other: &u32| {
            let other = &ends[at(first, *other)];
            (other.topic, other.id) == (end.topic, end.id)
        };
        let hash = id_hash(seed, end.topic, end.id);
        if let Some(latest) = self.latest.find_mut(hash, same) {
            let before = ends[at(first, *latest)].original;
            let fresh = self.others.insert((end.topic, end.id, before));
            assert!(fresh, "a message ends once");
            *latest = number;
            return;
        }
        self.latest.insert_unique(hash, number, |number| {
            let end = &ends[at(first, *number)];
            id_hash(seed, end.topic, end.id)
        });
    }

    fn drop_first(&mut self) {
        let number = self.first;
        let end = self.ends.pop_front().expect("the caller counted them");
        self.first = self.first.wrapping_add(1);
        if self.others.remove(&(end.topic, end.id, end.original)) {
            return;
        }
        let hash = id_hash(self.seed, end.topic, end.id);
        let found = self.latest.find_entry(hash, |other| *other == number).ok();
        found.expect("every end is indexed").remove();
    }

    /// The end of a message, or of the latest one of its id, where no place is named.
    fn find(&self, key: &TimerKey) -> Option<End> {
        let hash = id_hash(self.seed, key.topic, key.id_hash);
        let end_of = |number: &u32| self.ends[at(self.first, *number)];
        let same = |number: &u32| {
            let end = end_of(number);
            (end.topic, end.id) == (key.topic, key.id_hash)
        };
        let latest = end_of(self.latest.find(hash, same)?);
        match key.position {
            Some(original) if original != latest.original => {
                let found = self.others.contains(&(key.topic, key.id_hash, original));
                // When it ended matters only between messages of one id.
                found.then_some(End { original, ..latest })
            }
            _ => Some(latest),
        }
    }

    fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.ends.iter(), |w, end| {
            w.put(&end.topic);
            w.put(&end.id);
            w.put(&end.original);
            w.put(&end.stamp);
        });
    }

    fn read(reader: &mut Reader, seed: u64) -> Result<Self, SectionError> {
        let mut ended = Self::new(seed);
        read_rows(reader, |r| {
            let end = End { topic: r.get()?, id: r.get()?, original: r.get()?, stamp: r.get()? };
            let before = ended.ends.back().map(|end: &End| end.stamp);
            require(before <= Some(end.stamp), "ends of delayed messages out of order")?;
            require(ended.ends.len() < ENDED_MAX, "more ends than are remembered")?;
            let (topic, id_hash, position) = (end.topic, end.id, Some(end.original));
            let known = ended.find(&TimerKey { topic, id_hash, position });
            require(known.is_none(), "a delayed message ended twice")?;
            ended.push(end);
            Ok(())
        })?;
        Ok(ended)
    }
}
