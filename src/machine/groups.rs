//! Consumer groups: names, incarnations, retry rules.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::codec::{read_rows, require, write_rows};
use super::deliveries::Rule;
use super::error::SectionError;
use super::limits::GROUPS_MAX;
use super::topics::Topic;
use crate::base::{GroupId, GroupName, Millis, UtcMillis};
use crate::command::{CreateGroup, Order, OrderRule, Reader, Refusal, Reply, Writer};
use crate::message::MessageKind;

/// One incarnation of a consumer group's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub id: GroupId,
    pub name: GroupName,
    /// Deliveries a message gets before it counts as exhausted. In order, `rule` says what follows;
    /// otherwise it is redelivered none the less until dead letters exist.
    pub attempts_max: u32,
    /// Waiting time after the n-th failed attempt; the last one repeats.
    pub backoff: Vec<Millis>,
    /// The stamp of the entry that created it.
    pub created: UtcMillis,
    pub rule: OrderRule,
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
        });
        Reply::GroupCreated { group: id, existed: false }
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
            w.list(&group.backoff, |w, wait| w.put(wait));
            w.put(&group.created);
            w.put(&group.rule);
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut groups = Self { last_id: reader.u64()?, ..Self::default() };
        read_rows(reader, |r| {
            let group = Group {
                id: r.get()?,
                name: r.get()?,
                attempts_max: r.u32()?,
                backoff: r.list(Reader::get)?,
                created: r.get()?,
                rule: r.get()?,
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
