//! From when on groups want messages, and which groups are paused.

use std::collections::{BTreeMap, BTreeSet};

use super::codec::{read_rows, require, write_rows};
use super::error::SectionError;
use crate::base::{GroupId, Mutant, UtcMillis};
use crate::command::{Begin, Reader, StartAt, Writer};

#[derive(Debug, Default)]
pub(super) struct Begins {
    /// Of groups that do not begin at the first message there is.
    starts: BTreeMap<GroupId, UtcMillis>,
    paused: BTreeSet<GroupId>,
}

impl Begins {
    /// `stamp` is that of the entry which makes the group.
    pub(super) fn add(&mut self, group: GroupId, begin: Begin, stamp: UtcMillis) {
        let start = match begin.start {
            StartAt::Earliest => None,
            StartAt::Latest => Some(stamp),
            StartAt::Time(time) => Some(time),
        };
        self.starts.extend(start.map(|start| (group, start)));
        self.pause(group, begin.paused);
    }

    pub(super) fn start(&self, group: GroupId) -> Option<UtcMillis> {
        self.starts.get(&group).copied()
    }

    /// Whether anything changed.
    pub(super) fn pause(&mut self, group: GroupId, paused: bool) -> bool {
        if paused { self.paused.insert(group) } else { self.paused.remove(&group) }
    }

    pub(super) fn is_paused(&self, group: GroupId) -> bool {
        self.paused.contains(&group) && !Mutant::PausedHandsOut.is_on()
    }

    pub(super) fn drop_group(&mut self, group: GroupId) {
        self.starts.remove(&group);
        self.paused.remove(&group);
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.starts.iter(), |w, (group, start)| {
            w.put(group);
            w.put(start);
        });
        write_rows(writer, self.paused.iter(), |w, group| w.put(group));
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut begins = Self::default();
        read_rows(reader, |r| {
            let twice = begins.starts.insert(r.get()?, r.get()?);
            require(twice.is_none(), "a group begins twice")
        })?;
        read_rows(reader, |r| require(begins.paused.insert(r.get()?), "a group is paused twice"))?;
        Ok(begins)
    }

    pub(super) fn check(&self, exists: impl Fn(GroupId) -> bool) -> Result<(), SectionError> {
        let mut all = self.starts.keys().chain(&self.paused);
        require(all.all(|group| exists(*group)), "the begin of a group that does not exist")
    }
}
