//! Checkouts that still have messages with their consumer.
//!
//! A record lives as long as one of its messages is in flight. Renewals, releases and repeated
//! attempts go by it, so a client that holds thousands of messages is one row and not thousands.

use std::collections::{BTreeMap, BTreeSet};

use super::Key;
use crate::base::{
    CheckoutId, ClientId, GroupId, Millis, QueueId, QueueOffset, TopicId, UtcMillis,
};
use crate::command::{Reader, Writer};
use crate::machine::codec::{read_rows, require, write_rows};
use crate::machine::error::SectionError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) group: GroupId,
    pub(super) topic: TopicId,
    pub(super) consumer: ClientId,
    /// Cleared once a later checkout has the same one.
    pub(super) attempt_id: Option<String>,
    pub(super) auto_renew: bool,
    /// The stamp of its entry.
    pub(super) first: UtcMillis,
    pub(super) invisible: Millis,
    /// Until when it hides its messages, last renewal included.
    pub(super) until: UtcMillis,
    /// Those still with the consumer, sorted: derived from the queues.
    pub(super) items: Vec<(QueueId, QueueOffset)>,
}

type Attempt = (GroupId, TopicId, String);

#[derive(Debug, Default)]
pub(super) struct Checkouts {
    records: BTreeMap<CheckoutId, Record>,
    /// The last id given. Ids count from 1.
    last_id: u64,
    // The rest is derived from `records`.
    by_consumer: BTreeMap<(GroupId, ClientId), BTreeSet<CheckoutId>>,
    by_attempt: BTreeMap<Attempt, CheckoutId>,
    renewals: BTreeSet<(UtcMillis, CheckoutId)>,
}

impl Checkouts {
    /// The id that the next checkout gets if it gets anything.
    pub(super) fn next_id(&self) -> CheckoutId {
        CheckoutId::new(self.last_id + 1)
    }

    /// The id of the last checkout that got anything; 0 before the first.
    pub(super) fn last_id(&self) -> CheckoutId {
        CheckoutId::new(self.last_id)
    }

    pub(super) fn add(&mut self, id: CheckoutId, record: Record) {
        assert_eq!(id, self.next_id(), "checkouts are counted");
        assert!(!record.items.is_empty(), "an empty checkout is not stored");
        self.last_id = id.get();
        if let Some(attempt) = attempt_of(&record)
            && let Some(earlier) = self.by_attempt.remove(&attempt)
        {
            let earlier = self.records.get_mut(&earlier).expect("attempts name live checkouts");
            earlier.attempt_id = None;
        }
        self.index(id, &record);
        self.records.insert(id, record);
    }

    fn index(&mut self, id: CheckoutId, record: &Record) {
        let consumer = (record.group, record.consumer.clone());
        self.by_consumer.entry(consumer).or_default().insert(id);
        if let Some(attempt) = attempt_of(record) {
            self.by_attempt.insert(attempt, id);
        }
        if record.auto_renew {
            self.renewals.insert((record.until, id));
        }
    }

    /// A message is no longer with the consumer of its checkout.
    pub(super) fn remove_item(&mut self, id: CheckoutId, key: Key) {
        let record = self.records.get_mut(&id).expect("what is in flight has a checkout");
        assert_eq!((record.group, record.topic), (key.group, key.topic), "checkout {id} mixed up");
        let at = record.items.binary_search(&(key.queue, key.offset));
        record.items.remove(at.expect("a checkout lists what is in flight under it"));
        if record.items.is_empty() {
            self.drop_record(id);
        }
    }

    fn drop_record(&mut self, id: CheckoutId) {
        let record = self.records.remove(&id).expect("dropped once");
        if let Some(attempt) = attempt_of(&record) {
            self.by_attempt.remove(&attempt);
        }
        self.renewals.remove(&(record.until, id));
        let consumer = (record.group, record.consumer);
        let ids = self.by_consumer.get_mut(&consumer).expect("every record is indexed");
        ids.remove(&id);
        if ids.is_empty() {
            self.by_consumer.remove(&consumer);
        }
    }

    /// Drops what belongs to a topic or a group that is gone.
    pub(super) fn drop_where(&mut self, gone: impl Fn(&Record) -> bool) {
        let ids: Vec<_> =
            self.records.iter().filter(|(_, record)| gone(record)).map(|(id, _)| *id).collect();
        for id in ids {
            self.drop_record(id);
        }
    }

    /// Moves the time until which a checkout hides its messages.
    pub(super) fn renew(&mut self, id: CheckoutId, until: UtcMillis) {
        let record = self.records.get_mut(&id).expect("looked up before");
        if record.auto_renew {
            self.renewals.remove(&(record.until, id));
            self.renewals.insert((record.until.max(until), id));
        }
        record.until = record.until.max(until);
    }

    /// Nobody is left to renew it for.
    pub(super) fn stop_renewing(&mut self, id: CheckoutId) {
        let record = self.records.get_mut(&id).expect("looked up before");
        self.renewals.remove(&(record.until, id));
        record.auto_renew = false;
    }

    pub(super) fn get(&self, id: CheckoutId) -> Option<&Record> {
        self.records.get(&id)
    }

    pub(super) fn of_consumer(&self, group: GroupId, consumer: &ClientId) -> Vec<CheckoutId> {
        let ids = self.by_consumer.get(&(group, consumer.clone()));
        ids.map(|ids| ids.iter().copied().collect()).unwrap_or_default()
    }

    /// The checkout of an attempt that is remembered at `stamp`: until its first invisible time
    /// is over.
    pub(super) fn of_attempt(
        &self,
        group: GroupId,
        topic: TopicId,
        attempt: &str,
        stamp: UtcMillis,
    ) -> Option<(CheckoutId, &Record)> {
        let id = *self.by_attempt.get(&(group, topic, attempt.to_owned()))?;
        let record = self.records.get(&id).expect("attempts name live checkouts");
        (stamp < record.first.plus(record.invisible)).then_some((id, record))
    }

    /// Those to renew whose time is over before `before`, the most urgent first.
    pub(super) fn renewals(
        &self,
        before: UtcMillis,
    ) -> impl Iterator<Item = (CheckoutId, &Record)> {
        self.renewals
            .iter()
            .take_while(move |(until, _)| *until < before)
            .filter_map(|(_, id)| Some((*id, self.records.get(id)?)))
    }

    /// Whether a message is listed under a checkout.
    pub(super) fn lists(&self, id: CheckoutId, key: Key) -> bool {
        self.records.get(&id).is_some_and(|record| {
            (record.group, record.topic) == (key.group, key.topic)
                && record.items.binary_search(&(key.queue, key.offset)).is_ok()
        })
    }

    /// How many messages all checkouts list.
    pub(super) fn items(&self) -> usize {
        self.records.values().map(|record| record.items.len()).sum()
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.u64(self.last_id);
        write_rows(writer, self.records.iter(), |w, (id, record)| {
            w.put(id);
            w.put(&record.group);
            w.put(&record.topic);
            w.put(&record.consumer);
            w.option(record.attempt_id.as_ref(), |w, id| w.string(id));
            w.bool(record.auto_renew);
            w.put(&record.first);
            w.put(&record.invisible);
            w.put(&record.until);
        });
    }

    /// Items come with the queues, through [`Self::restore_item`].
    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut checkouts = Self { last_id: reader.u64()?, ..Self::default() };
        read_rows(reader, |r| {
            let id: CheckoutId = r.get()?;
            let record = Record {
                group: r.get()?,
                topic: r.get()?,
                consumer: r.get()?,
                attempt_id: r.option(Reader::string)?,
                auto_renew: r.bool()?,
                first: r.get()?,
                invisible: r.get()?,
                until: r.get()?,
                items: Vec::new(),
            };
            let known = attempt_of(&record).is_some_and(|a| checkouts.by_attempt.contains_key(&a));
            require(!known, "two checkouts of one attempt id")?;
            require(id.get() <= checkouts.last_id, "a checkout from the future")?;
            checkouts.index(id, &record);
            let twice = checkouts.records.insert(id, record).is_some();
            require(!twice, "two checkouts of one id")
        })?;
        Ok(checkouts)
    }

    /// Items must come in order, as the queues list them.
    pub(super) fn restore_item(&mut self, id: CheckoutId, key: Key) -> Result<(), SectionError> {
        let Some(record) = self.records.get_mut(&id) else {
            return require(false, "a message in flight without its checkout");
        };
        let matches = (record.group, record.topic) == (key.group, key.topic);
        require(matches, "a message in flight under a checkout of another topic")?;
        record.items.push((key.queue, key.offset));
        Ok(())
    }

    pub(super) fn check_restored(&self) -> Result<(), SectionError> {
        let full = self.records.values().all(|record| !record.items.is_empty());
        require(full, "a checkout without a message in flight")
    }
}

fn attempt_of(record: &Record) -> Option<Attempt> {
    Some((record.group, record.topic, record.attempt_id.clone()?))
}
