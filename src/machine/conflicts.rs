//! Groups whose members use different filters on one topic: since when, and how often it began.
//!
//! The leader says that it is so, since only it knows who uses what; that it is over follows from
//! the live filters. So one disagreement is one event, whoever leads meanwhile.

use std::collections::BTreeMap;

use super::codec::{read_rows, require, write_rows};
use super::error::SectionError;
use crate::base::{GroupId, TopicId, UtcMillis};
use crate::command::{Reader, Writer};

/// What is known of one group and topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conflict {
    /// Since when members have differed; `None` when they agree.
    pub since: Option<UtcMillis>,
    /// How often they began to, ever.
    pub count: u64,
}

/// A row comes with the first disagreement and stays for its count.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    by_pair: BTreeMap<(GroupId, TopicId), Conflict>,
}

impl Conflicts {
    /// Members differ from `stamp` on; false when they did before.
    pub(super) fn begin(&mut self, pair: (GroupId, TopicId), stamp: UtcMillis) -> bool {
        let conflict = self.by_pair.entry(pair).or_default();
        if conflict.since.is_some() {
            return false;
        }
        *conflict = Conflict { since: Some(stamp), count: conflict.count.saturating_add(1) };
        true
    }

    pub(super) fn end(&mut self, pair: (GroupId, TopicId)) {
        if let Some(conflict) = self.by_pair.get_mut(&pair) {
            conflict.since = None;
        }
    }

    pub(super) fn get(&self, pair: (GroupId, TopicId)) -> Conflict {
        self.by_pair.get(&pair).copied().unwrap_or_default()
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId) {
        self.by_pair.retain(|pair, _| pair.1 != topic);
    }

    pub(super) fn drop_group(&mut self, group: GroupId) {
        self.by_pair.retain(|pair, _| pair.0 != group);
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.by_pair.iter(), |w, ((group, topic), conflict)| {
            w.put(group);
            w.put(topic);
            w.option(conflict.since.as_ref(), |w, since| w.put(since));
            w.u64(conflict.count);
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut by_pair = BTreeMap::new();
        read_rows(reader, |r| {
            let pair = (r.get()?, r.get()?);
            let conflict = Conflict { since: r.option(Reader::get)?, count: r.u64()? };
            require(conflict.count > 0, "a disagreement that never began")?;
            by_pair.insert(pair, conflict);
            Ok(())
        })?;
        Ok(Self { by_pair })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_disagreement_begins_once() {
        let mut conflicts = Conflicts::default();
        let pair = (GroupId::new(1), TopicId::new(2));
        let other = (GroupId::new(1), TopicId::new(3));
        assert_eq!(conflicts.get(pair), Conflict::default());
        conflicts.end(pair);
        assert!(conflicts.begin(pair, UtcMillis::new(5)));
        assert!(!conflicts.begin(pair, UtcMillis::new(6)), "it has begun");
        assert_eq!(conflicts.get(pair), Conflict { since: Some(UtcMillis::new(5)), count: 1 });
        conflicts.end(pair);
        assert!(
            conflicts.begin(pair, UtcMillis::new(7)) && conflicts.begin(other, UtcMillis::ZERO)
        );
        assert_eq!(conflicts.get(pair).count, 2);

        let mut writer = Writer::new();
        conflicts.write(&mut writer);
        let golden = "00000002 0000000000000001 0000000000000002 01 0000000000000007 \
                      0000000000000002 0000000000000001 0000000000000003 01 0000000000000000 \
                      0000000000000001";
        let bytes = writer.finish();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.replace(' ', ""));
        let read = Conflicts::read(&mut Reader::new(bytes)).unwrap();
        assert_eq!(read.by_pair, conflicts.by_pair);

        conflicts.drop_topic(TopicId::new(2));
        conflicts.drop_group(GroupId::new(2));
        assert_eq!((conflicts.get(pair).count, conflicts.get(other).count), (0, 1));
    }
}
