//! Consumer groups: names, incarnations, retry rules.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::codec::{read_rows, require, write_rows};
use super::deliveries::Rule;
use super::error::SectionError;
use super::limits::GROUPS_MAX;
use super::topics::Topic;
use crate::base::{GroupId, GroupName, Millis, UtcMillis};
use crate::command::{
    Backoff, CreateGroup, Order, OrderRule, Reader, Refusal, Reply, UpdateGroup, Writer,
};
use crate::message::MessageKind;

/// One incarnation of a consumer group's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub id: GroupId,
    pub name: GroupName,
    /// Deliveries a message gets. What follows is a dead letter; in order, what `rule` says.
    pub attempts_max: u32,
    pub backoff: Backoff,
    /// The stamp of the entry that created it.
    pub created: UtcMillis,
    pub rule: OrderRule,
    /// How long its dead letters can be read; `None` as long as the log is kept.
    pub dead_keep: Option<Millis>,
}

impl Group {
    pub(super) fn rule_on(&self, topic: &Topic) -> Rule {
        let OrderRule { order, exhausted } = self.rule;
        let single = order == Order::Single && !topic.kinds.contains(&MessageKind::Fifo);
        let order = if single { Order::Off } else { order };
        Rule { order, attempts_max: self.attempts_max, exhausted }
    }
}

/// All groups. Ids count from 1 and are never given again.
#[derive(Debug, Default)]
pub(super) struct Groups {
    by_id: BTreeMap<GroupId, Group>,
    /// Derived from `by_id`.
    by_name: BTreeMap<GroupName, GroupId>,
    last_id: u64,
}

impl Groups {
    /// A group that exists keeps its settings.
    pub(super) fn create(&mut self, create: &CreateGroup, stamp: UtcMillis) -> Reply {
        if let Some(group) = self.by_name(&create.name) {
            return Reply::GroupCreated { group: group.id, existed: true };
        }
        if self.by_id.len() >= GROUPS_MAX {
            let what = "consumer groups".to_owned();
            return Reply::Refused(Refusal::Limit { what, limit: GROUPS_MAX as u64 });
        }
        self.last_id += 1;
        let id = GroupId::new(self.last_id);
        self.insert(Group {
            id,
            name: create.name.clone(),
            attempts_max: create.attempts_max,
            backoff: create.backoff.clone(),
            created: stamp,
            rule: create.rule,
            dead_keep: create.dead_keep,
        });
        Reply::GroupCreated { group: id, existed: false }
    }

    /// What is absent stays as it was.
    pub(super) fn update(&mut self, update: &UpdateGroup) -> Result<&Group, Refusal> {
        let id = update.group;
        let group = self.by_id.get_mut(&id).ok_or(Refusal::NoGroup { group: id })?;
        group.attempts_max = update.attempts_max.unwrap_or(group.attempts_max);
        if let Some(backoff) = &update.backoff {
            group.backoff = backoff.clone();
        }
        if let Some(keep) = update.dead_keep {
            group.dead_keep = Some(keep).filter(|keep| *keep != Millis::ZERO);
        }
        Ok(group)
    }

    fn insert(&mut self, group: Group) {
        let named = self.by_name.insert(group.name.clone(), group.id);
        assert!(named.is_none(), "two groups of one name");
        let known = self.by_id.insert(group.id, group);
        assert!(known.is_none(), "a group id was given twice");
    }

    pub(super) fn delete(&mut self, id: GroupId) -> Option<Group> {
        let group = self.by_id.remove(&id)?;
        let named = self.by_name.remove(&group.name);
        assert_eq!(named, Some(id), "the name index lost a group");
        Some(group)
    }

    pub(super) fn get(&self, id: GroupId) -> Result<&Group, Refusal> {
        self.by_id.get(&id).ok_or(Refusal::NoGroup { group: id })
    }

    pub(super) fn by_name(&self, name: &GroupName) -> Option<&Group> {
        let id = self.by_name.get(name)?;
        Some(self.by_id.get(id).expect("the name index lists live groups only"))
    }

    /// In the order of names, from the one behind `after`; costs what is taken, wherever it lies.
    pub(super) fn iter_after(&self, after: Option<&GroupName>) -> impl Iterator<Item = &Group> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let named = self.by_name.range::<GroupName, _>((start, Bound::Unbounded));
        named.map(|(_, id)| self.by_id.get(id).expect("the name index lists live groups only"))
    }

    pub(super) fn len(&self) -> usize {
        assert_eq!(self.by_id.len(), self.by_name.len(), "every group has one name");
        self.by_id.len()
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.u64(self.last_id);
        write_rows(writer, self.by_id.values(), |w, group| {
            w.put(&group.id);
            w.put(&group.name);
            w.u32(group.attempts_max);
            w.put(&group.backoff);
            w.put(&group.created);
            w.put(&group.rule);
            w.option(group.dead_keep.as_ref(), |w, keep| w.put(keep));
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut groups = Self { last_id: reader.u64()?, ..Self::default() };
        read_rows(reader, |r| {
            let group = Group {
                id: r.get()?,
                name: r.get()?,
                attempts_max: r.u32()?,
                backoff: r.get()?,
                created: r.get()?,
                rule: r.get()?,
                dead_keep: r.option(Reader::get)?,
            };
            let fresh =
                !groups.by_id.contains_key(&group.id) && groups.by_name(&group.name).is_none();
            require(fresh && group.id.get() <= groups.last_id, "two groups of one name or id")?;
            groups.insert(group);
            Ok(())
        })?;
        Ok(groups)
    }
}
