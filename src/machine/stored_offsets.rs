//! How far readers by offset say that their groups are.

use std::collections::BTreeMap;

use super::codec::{read_rows, require, write_rows};
use super::error::SectionError;
use super::limits::STORED_OFFSETS_MAX;
use crate::base::{GroupId, QueueId, QueueOffset, TopicId};
use crate::command::{Reader, Refusal, Writer};

type Key = (GroupId, TopicId, QueueId);

#[derive(Debug, Default)]
pub(super) struct StoredOffsets(BTreeMap<Key, QueueOffset>);

impl StoredOffsets {
    pub(super) fn get(&self, key: Key) -> Option<QueueOffset> {
        self.0.get(&key).copied()
    }

    /// Refuses a row too many.
    pub(super) fn check_room(&self, key: Key) -> Result<(), Refusal> {
        if self.0.len() < STORED_OFFSETS_MAX || self.0.contains_key(&key) {
            return Ok(());
        }
        let what = "stored offsets of groups".to_owned();
        Err(Refusal::Limit { what, limit: STORED_OFFSETS_MAX as u64 })
    }

    pub(super) fn set(&mut self, key: Key, offset: QueueOffset) {
        self.0.insert(key, offset);
    }

    /// The group was put elsewhere. One that never stored an offset has none afterwards either.
    pub(super) fn put(&mut self, key: Key, offset: QueueOffset) {
        self.0.entry(key).and_modify(|stored| *stored = offset);
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId) {
        self.0.retain(|key, _| key.1 != topic);
    }

    pub(super) fn drop_group(&mut self, group: GroupId) {
        self.0.retain(|key, _| key.0 != group);
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.0.iter(), |w, ((group, topic, queue), offset)| {
            w.put(group);
            w.put(topic);
            w.put(queue);
            w.put(offset);
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut stored = Self::default();
        read_rows(reader, |r| {
            let key = (r.get()?, r.get()?, r.get()?);
            require(stored.0.insert(key, r.get()?).is_none(), "an offset is stored twice")
        })?;
        Ok(stored)
    }

    /// `end` knows where each queue of an existing topic ends.
    pub(super) fn check(
        &self,
        end: impl Fn(TopicId, QueueId) -> Option<QueueOffset>,
    ) -> Result<(), SectionError> {
        let within = |(key, offset): (&Key, &QueueOffset)| {
            end(key.1, key.2).is_some_and(|end| *offset <= end)
        };
        require(self.0.iter().all(within), "an offset is stored behind the end of its queue")
    }
}
