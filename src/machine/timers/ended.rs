//! How the last delayed messages ended, so that whoever asks late, or twice, is told the truth.

use std::collections::VecDeque;

use hashbrown::HashTable;

use super::{Row, id_hash};
use crate::base::{LogPosition, TopicId, UtcMillis};
use crate::command::{Reader, TimerKey, TimerOutcome, Writer};
use crate::machine::codec::{read_rows, require, write_rows};
use crate::machine::error::SectionError;
use crate::machine::limits::{ENDED_MAX, ENDED_MIN, ENDED_WINDOW};
use crate::message::MessageIdHash;

#[derive(Clone, Copy, Debug)]
struct End {
    topic: TopicId,
    id: MessageIdHash,
    original: LogPosition,
    fired: bool,
    stamp: UtcMillis,
}

#[derive(Debug)]
pub(super) struct Ended {
    /// Oldest first.
    ends: VecDeque<End>,
    /// The number of the oldest, modulo 2^32: ends are counted as they come.
    first: u32,
    /// Numbers by topic and id. Its order decides nothing.
    index: HashTable<u32>,
    seed: u64,
}

fn at(first: u32, number: u32) -> usize {
    number.wrapping_sub(first) as usize
}

impl Ended {
    pub(super) fn new(seed: u64) -> Self {
        Self { ends: VecDeque::new(), first: 0, index: HashTable::new(), seed }
    }

    pub(super) fn add(&mut self, row: &Row, fired: bool, stamp: UtcMillis) {
        let Row { topic, id, original, .. } = *row;
        self.push(End { topic, id, original, fired, stamp });
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
        self.index.insert_unique(id_hash(seed, end.topic, end.id), number, |number| {
            let end = &ends[at(first, *number)];
            id_hash(seed, end.topic, end.id)
        });
    }

    fn drop_first(&mut self) {
        let number = self.first;
        let end = self.ends.pop_front().expect("the caller counted them");
        let hash = id_hash(self.seed, end.topic, end.id);
        let found = self.index.find_entry(hash, |other| *other == number).ok();
        found.expect("every end is indexed").remove();
        self.first = self.first.wrapping_add(1);
    }

    /// What became of a message that is not pending: the latest one of its id, where no place is
    /// named.
    pub(super) fn outcome(&self, key: &TimerKey) -> TimerOutcome {
        let hash = id_hash(self.seed, key.topic, key.id_hash);
        let fits = |end: &&End| {
            let same = (end.topic, end.id) == (key.topic, key.id_hash);
            same && key.position.is_none_or(|position| position == end.original)
        };
        let ends = self.index.iter_hash(hash).map(|number| &self.ends[at(self.first, *number)]);
        match ends.filter(fits).max_by_key(|end| (end.stamp, end.original)) {
            None => TimerOutcome::NotFound,
            Some(End { fired: true, .. }) => TimerOutcome::AlreadyFired,
            Some(End { fired: false, .. }) => TimerOutcome::Recalled,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.ends.iter(), |w, end| {
            w.put(&end.topic);
            w.put(&end.id);
            w.put(&end.original);
            w.bool(end.fired);
            w.put(&end.stamp);
        });
    }

    pub(super) fn read(reader: &mut Reader, seed: u64) -> Result<Self, SectionError> {
        let mut ended = Self::new(seed);
        read_rows(reader, |r| {
            let (topic, id, original) = (r.get()?, r.get()?, r.get()?);
            let end = End { topic, id, original, fired: r.bool()?, stamp: r.get()? };
            let before = ended.ends.back().map(|end: &End| end.stamp);
            require(before <= Some(end.stamp), "ends of delayed messages out of order")?;
            require(ended.ends.len() < ENDED_MAX, "more ends than are remembered")?;
            ended.push(end);
            Ok(())
        })?;
        Ok(ended)
    }
}
