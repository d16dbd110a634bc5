//! Pending messages by id: a table of the oldest of each id, and an ordered set of all others.
//!
//! Nobody keeps a client from sending one id a hundred thousand times. In one table these would all
//! be in each other's way.

use std::collections::BTreeSet;

use hashbrown::HashTable;

use super::id_hash;
use super::rows::{Row, Rows};
use crate::base::{LogPosition, TopicId};
use crate::message::MessageIdHash;

#[derive(Debug)]
pub(super) struct Ids {
    /// The place of the oldest pending message of each topic and id. Its order decides nothing.
    oldest: HashTable<u64>,
    /// All later ones.
    others: BTreeSet<(TopicId, MessageIdHash, LogPosition)>,
    seed: u64,
}

fn row_at(rows: &Rows, place: u64) -> Row {
    rows.get(LogPosition::new(place)).expect("an indexed message has a row")
}

impl Ids {
    pub(super) fn new(seed: u64) -> Self {
        Self { oldest: HashTable::new(), others: BTreeSet::new(), seed }
    }

    pub(super) fn len(&self) -> usize {
        self.oldest.len() + self.others.len()
    }

    /// Room for the rows that a checkpoint has.
    pub(super) fn reserve(&mut self, rows: &Rows) {
        let seed = self.seed;
        self.oldest.reserve(rows.len(), |place| {
            let row = row_at(rows, *place);
            id_hash(seed, row.topic, row.id)
        });
    }

    pub(super) fn oldest(&self, topic: TopicId, id: MessageIdHash, rows: &Rows) -> Option<Row> {
        let same = |place: &u64| {
            let row = row_at(rows, *place);
            (row.topic, row.id) == (topic, id)
        };
        let place = self.oldest.find(id_hash(self.seed, topic, id), same)?;
        Some(row_at(rows, *place))
    }

    /// Takes in a row that is among `rows` and lies behind all others of its id.
    pub(super) fn add(&mut self, row: &Row, rows: &Rows) {
        if let Some(oldest) = self.oldest(row.topic, row.id, rows) {
            assert!(oldest.original < row.original, "messages come in the order of the log");
            let fresh = self.others.insert((row.topic, row.id, row.original));
            assert!(fresh, "a message is indexed once");
            return;
        }
        let seed = self.seed;
        let hash = id_hash(seed, row.topic, row.id);
        self.oldest.insert_unique(hash, row.original.get(), |place| {
            let row = row_at(rows, *place);
            id_hash(seed, row.topic, row.id)
        });
    }

    /// Forgets a row that is still among `rows`.
    pub(super) fn remove(&mut self, row: &Row, rows: &Rows) {
        let (topic, id) = (row.topic, row.id);
        if self.others.remove(&(topic, id, row.original)) {
            return;
        }
        let place = row.original.get();
        let found = self.oldest.find_entry(id_hash(self.seed, topic, id), |other| *other == place);
        let mut found = found.expect("every pending message is indexed");
        let next = self.others.range((topic, id, row.original)..).next().copied();
        if let Some(next) = next.filter(|next| (next.0, next.1) == (topic, id)) {
            self.others.remove(&next);
            *found.get_mut() = next.2.get();
            return;
        }
        found.remove();
        if self.oldest.capacity() > 4 * self.oldest.len() + 4096 {
            let seed = self.seed;
            self.oldest.shrink_to(2 * self.oldest.len(), |place| {
                let row = row_at(rows, *place);
                id_hash(seed, row.topic, row.id)
            });
        }
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.oldest.allocation_size() + 64 * self.others.len()
    }
}
