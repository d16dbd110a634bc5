//! Which filter expressions the live members of a group use on a topic.
//!
//! A checkout that skips messages names the version it saw; a newer version means that somebody
//! may want what it skips (rule R4).

use std::collections::BTreeMap;
use std::ops::Bound;

use super::codec::{read_rows, write_rows};
use super::error::SectionError;
use super::limits::{EXPRESSION_MAX, GROUP_TOPICS_MAX, SUBSCRIPTIONS_MAX};
use crate::base::{GroupId, TopicId};
use crate::command::{Reader, Refusal, Reply, Subscribe, Writer};

#[derive(Debug, Default)]
struct Expressions {
    /// Rises with every change; 0 before the first.
    version: u32,
    /// Sorted, without repeats.
    live: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    by_pair: BTreeMap<(GroupId, TopicId), Expressions>,
}

fn limit(what: &str, limit: usize) -> Reply {
    Reply::Refused(Refusal::Limit { what: what.to_owned(), limit: limit as u64 })
}

impl Subscriptions {
    pub(super) fn add(&mut self, subscribe: Subscribe) -> Reply {
        let pair = (subscribe.group, subscribe.topic);
        if subscribe.expression.len() > EXPRESSION_MAX {
            return limit("bytes of a filter expression", EXPRESSION_MAX);
        }
        if !self.by_pair.contains_key(&pair) && self.by_pair.len() >= GROUP_TOPICS_MAX {
            return limit("pairs of a group and a topic", GROUP_TOPICS_MAX);
        }
        let expressions = self.by_pair.entry(pair).or_default();
        if let Err(at) = expressions.live.binary_search(&subscribe.expression) {
            if expressions.live.len() >= SUBSCRIPTIONS_MAX {
                return limit("different filters of one group on one topic", SUBSCRIPTIONS_MAX);
            }
            expressions.live.insert(at, subscribe.expression);
            expressions.version += 1;
        }
        Reply::Subscribed { version: expressions.version }
    }

    /// The version stays behind, so that no earlier one can come again.
    pub(super) fn remove(&mut self, subscribe: &Subscribe) -> Reply {
        let pair = (subscribe.group, subscribe.topic);
        let Some(expressions) = self.by_pair.get_mut(&pair) else {
            return Reply::Subscribed { version: 0 };
        };
        if let Ok(at) = expressions.live.binary_search(&subscribe.expression) {
            expressions.live.remove(at);
            expressions.version += 1;
        }
        Reply::Subscribed { version: expressions.version }
    }

    /// The version and the live expressions; 0 and none for a pair that nobody ever used.
    pub(super) fn get(&self, group: GroupId, topic: TopicId) -> (u32, &[String]) {
        match self.by_pair.get(&(group, topic)) {
            Some(expressions) => (expressions.version, &expressions.live),
            None => (0, &[]),
        }
    }

    /// In the order of ids, from the pair behind `after`.
    pub(super) fn pairs_after(
        &self,
        after: Option<(GroupId, TopicId)>,
    ) -> impl Iterator<Item = (GroupId, TopicId)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_pair.range((start, Bound::Unbounded)).map(|(pair, _)| *pair)
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId) {
        self.by_pair.retain(|pair, _| pair.1 != topic);
    }

    pub(super) fn drop_group(&mut self, group: GroupId) {
        self.by_pair.retain(|pair, _| pair.0 != group);
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.by_pair.iter(), |w, ((group, topic), expressions)| {
            w.put(group);
            w.put(topic);
            w.u32(expressions.version);
            w.list(&expressions.live, |w, expression| w.string(expression));
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut by_pair = BTreeMap::new();
        read_rows(reader, |r| {
            let pair = (r.get()?, r.get()?);
            let expressions = Expressions { version: r.u32()?, live: r.list(Reader::string)? };
            by_pair.insert(pair, expressions);
            Ok(())
        })?;
        Ok(Self { by_pair })
    }
}
