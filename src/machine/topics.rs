//! Topics: names, incarnations, settings.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::codec::{read_rows, require, write_rows};
use super::error::SectionError;
use super::limits::{QUEUES_MAX, QUEUES_TOTAL_MAX, TOPICS_MAX};
use crate::base::{Millis, QueueId, TopicId, TopicName, UtcMillis};
use crate::command::{CreateTopic, Reader, Refusal, Reply, Writer};
use crate::message::MessageKind;

/// One incarnation of a topic name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    pub id: TopicId,
    pub name: TopicName,
    /// 1 to [`QUEUES_MAX`].
    pub queues: u32,
    /// The kinds it takes, at least one, sorted.
    pub kinds: Vec<MessageKind>,
    /// The stamp of the entry that created it.
    pub created: UtcMillis,
    /// How long its messages can be read; `None` as long as the log is kept.
    pub keep: Option<Millis>,
    /// Message groups are spread over so many queues, the first ones: those that the topic was made
    /// with. It never changes, so that no message group ever moves (rule R24).
    pub homes: u32,
}

impl Topic {
    /// The one queue of a message group, however many queues the topic has now.
    pub fn home(&self, group_hash: u64) -> QueueId {
        let home = group_hash % u64::from(self.homes);
        QueueId::new(u32::try_from(home).expect("below the number of queues"))
    }

    /// Refuses a queue that the topic does not have.
    pub(super) fn check_queue(&self, queue: QueueId) -> Result<(), Refusal> {
        if queue.get() < self.queues {
            return Ok(());
        }
        Err(Refusal::NoQueue { queue, queues: self.queues })
    }
}

/// All topics. Ids count from 1 and are never given again.
#[derive(Debug, Default)]
pub(super) struct Topics {
    by_id: BTreeMap<TopicId, Topic>,
    /// Derived from `by_id`.
    by_name: BTreeMap<TopicName, TopicId>,
    last_id: u64,
    /// Counts creations and deletions, so that caches of routes know when to look again.
    version: u64,
    /// Derived from `by_id`.
    queues_total: usize,
}

fn settings(queues: u32, kinds: &[MessageKind], keep: Option<Millis>) -> String {
    let kinds: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    let kept = keep.map(|keep| format!(" kept for {keep}")).unwrap_or_default();
    format!("{queues} queues of {} messages{kept}", kinds.join(", "))
}

pub(super) fn limit(what: &str, limit: usize) -> Refusal {
    Refusal::Limit { what: what.to_owned(), limit: limit as u64 }
}

/// `longest` is how long the log is kept at least, 0 for ever.
pub(super) fn check_keep(keep: Millis, longest: Millis) -> Result<(), Refusal> {
    if keep != Millis::ZERO && (longest == Millis::ZERO || keep <= longest) {
        return Ok(());
    }
    let what = "milliseconds that a topic is kept, from 1 to as long as the log".to_owned();
    Err(Refusal::Limit { what, limit: longest.get() })
}

impl Topics {
    /// `longest` is how long the log is kept at least, 0 for ever.
    pub(super) fn create(
        &mut self,
        create: &CreateTopic,
        stamp: UtcMillis,
        longest: Millis,
    ) -> Reply {
        let mut kinds = create.kinds.clone();
        kinds.sort_unstable();
        kinds.dedup();
        if let Some(topic) = self.by_name(&create.name) {
            let same = topic.queues == create.queues && topic.keep == create.keep;
            if same && topic.kinds == kinds {
                return Reply::TopicCreated { topic: topic.id, existed: true };
            }
            return Reply::Refused(Refusal::TopicDiffers {
                exists: settings(topic.queues, &topic.kinds, topic.keep),
                asked: settings(create.queues, &kinds, create.keep),
            });
        }
        if let Err(refusal) = self.check_limits(create.queues, &kinds) {
            return Reply::Refused(refusal);
        }
        if let Some(keep) = create.keep
            && let Err(refusal) = check_keep(keep, longest)
        {
            return Reply::Refused(refusal);
        }
        self.last_id += 1;
        let id = TopicId::new(self.last_id);
        let name = create.name.clone();
        let (queues, keep) = (create.queues, create.keep);
        self.insert(Topic { id, name, queues, kinds, created: stamp, keep, homes: queues });
        self.version += 1;
        Reply::TopicCreated { topic: id, existed: false }
    }

    fn check_limits(&self, queues: u32, kinds: &[MessageKind]) -> Result<(), Refusal> {
        if queues == 0 {
            return Err(limit("queues of a topic, at least", 1));
        }
        if queues > QUEUES_MAX {
            return Err(limit("queues of a topic", QUEUES_MAX as usize));
        }
        if kinds.is_empty() {
            return Err(limit("message kinds of a topic, at least", 1));
        }
        if self.by_id.len() >= TOPICS_MAX {
            return Err(limit("topics", TOPICS_MAX));
        }
        if self.queues_total + queues as usize > QUEUES_TOTAL_MAX {
            return Err(limit("queues of all topics", QUEUES_TOTAL_MAX));
        }
        Ok(())
    }

    /// More queues. Repeating it is harmless.
    pub(super) fn grow(&mut self, id: TopicId, queues: u32) -> Result<(), Refusal> {
        let before = self.get(id)?.queues;
        if queues < before {
            return Err(limit(
                "queues of a topic, which never has fewer than before; at least",
                before as usize,
            ));
        }
        if queues > QUEUES_MAX {
            return Err(limit("queues of a topic", QUEUES_MAX as usize));
        }
        let total = self.queues_total + (queues - before) as usize;
        if total > QUEUES_TOTAL_MAX {
            return Err(limit("queues of all topics", QUEUES_TOTAL_MAX));
        }
        self.queues_total = total;
        self.version += u64::from(queues > before);
        self.by_id.get_mut(&id).expect("found above").queues = queues;
        Ok(())
    }

    /// How long the messages of a topic that exists can be read from now on.
    pub(super) fn set_keep(&mut self, id: TopicId, keep: Option<Millis>) {
        self.by_id.get_mut(&id).expect("looked up before").keep = keep;
    }

    fn insert(&mut self, topic: Topic) {
        self.queues_total += topic.queues as usize;
        let named = self.by_name.insert(topic.name.clone(), topic.id);
        assert!(named.is_none(), "two topics of one name");
        let known = self.by_id.insert(topic.id, topic);
        assert!(known.is_none(), "a topic id was given twice");
    }

    pub(super) fn delete(&mut self, id: TopicId) -> Option<Topic> {
        let topic = self.by_id.remove(&id)?;
        let named = self.by_name.remove(&topic.name);
        assert_eq!(named, Some(id), "the name index lost a topic");
        self.queues_total -= topic.queues as usize;
        self.version += 1;
        Some(topic)
    }

    pub(super) fn get(&self, id: TopicId) -> Result<&Topic, Refusal> {
        self.by_id.get(&id).ok_or(Refusal::NoTopic { topic: id })
    }

    pub(super) fn by_name(&self, name: &TopicName) -> Option<&Topic> {
        let id = self.by_name.get(name)?;
        Some(self.by_id.get(id).expect("the name index lists live topics only"))
    }

    /// In the order of names, from the one behind `after`; costs what is taken, wherever it lies.
    pub(super) fn iter_after(&self, after: Option<&TopicName>) -> impl Iterator<Item = &Topic> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let named = self.by_name.range::<TopicName, _>((start, Bound::Unbounded));
        named.map(|(_, id)| self.by_id.get(id).expect("the name index lists live topics only"))
    }

    pub(super) fn len(&self) -> usize {
        assert_eq!(self.by_id.len(), self.by_name.len(), "every topic has one name");
        self.by_id.len()
    }

    /// In the order of ids.
    pub(super) fn iter_by_id(&self) -> impl Iterator<Item = &Topic> {
        self.by_id.values()
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.u64(self.last_id);
        writer.u64(self.version);
        write_rows(writer, self.by_id.values(), |w, topic| {
            w.put(&topic.id);
            w.put(&topic.name);
            w.u32(topic.queues);
            w.list(&topic.kinds, |w, kind| w.put(kind));
            w.put(&topic.created);
            w.option(topic.keep.as_ref(), |w, keep| w.put(keep));
            w.u32(topic.homes);
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut topics = Self { last_id: reader.u64()?, version: reader.u64()?, ..Self::default() };
        read_rows(reader, |r| {
            let topic = Topic {
                id: r.get()?,
                name: r.get()?,
                queues: r.u32()?,
                kinds: r.list(Reader::get)?,
                created: r.get()?,
                keep: r.option(Reader::get)?,
                homes: r.u32()?,
            };
            let spread = (1..=topic.queues).contains(&topic.homes);
            require(spread, "message groups in queues that do not exist")?;
            let fresh =
                !topics.by_id.contains_key(&topic.id) && topics.by_name(&topic.name).is_none();
            require(fresh && topic.id.get() <= topics.last_id, "two topics of one name or id")?;
            topics.insert(topic);
            Ok(())
        })?;
        Ok(topics)
    }
}
