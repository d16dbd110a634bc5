//! Retention as entries: what the log says of its own front.

use super::Entry;
use super::deliveries::Starts;
use super::effect::{Effect, ExpiredCounts};
use super::limits::PENDING_BYTES_MAX;
use super::retention::{Front, Grown};
use super::state::State;
use crate::base::{LogIndex, Millis, Mutant};
use crate::command::{Refusal, Relocation, Reply, Retention, Trim};

impl State {
    pub(super) fn retain(&mut self, retention: Retention) -> Reply {
        if retention.stride == 0 {
            let what = "log bytes from one mark to the next, at least".to_owned();
            return Reply::Refused(Refusal::Limit { what, limit: 1 });
        }
        self.marks.retention = Some(retention);
        Reply::Done
    }

    /// The first step: what was never handed out up to the mark is gone for readers (rule R7).
    /// Repeating it, or an older one, changes nothing.
    pub(super) fn intend_purge(&mut self, mark: LogIndex, effects: &mut Vec<Effect>) -> Reply {
        if self.marks.intent().is_some_and(|intent| intent.index >= mark) {
            return Reply::Done;
        }
        let (front, stamp) = match self.marks.get(mark) {
            Ok(found) => (Front { index: found.index, end: found.end }, found.stamp),
            Err(refusal) => return Reply::Refused(refusal),
        };
        let grown: Vec<Grown> = self.marks.grown_to(mark).copied().collect();
        let starts = self.raise_starts(&grown);
        let mut expired = ExpiredCounts::default();
        self.deliveries.expire_below(&starts, &mut expired);
        self.deliveries.expire_visible(front.end, stamp, None, &mut expired);
        self.timers.expire_below(&starts);
        self.instances.expire_below(&starts);
        effects.extend(expired.effects());
        self.marks.intend(front);
        Reply::Done
    }

    fn raise_starts(&mut self, grown: &[Grown]) -> Starts {
        let mut starts = Starts::new();
        for Grown { topic, queue, end, chain } in grown.iter().copied() {
            let Some(before) = self.queues.raise_start(topic, queue, (end, chain)) else {
                continue;
            };
            self.late.drop_below((topic, queue), end, self.deliveries.references_mut());
            self.dead.drop_below(topic, end, &mut self.deliveries);
            let queues = starts.entry(topic).or_default();
            queues.entry(queue).and_modify(|(_, start)| *start = end).or_insert((before, end));
        }
        starts
    }

    /// Records of messages under way lie in this entry again. One that nobody needs any more, or
    /// that the front does not threaten, is passed by.
    pub(super) fn relocate(&mut self, entry: &Entry, relocations: &[Relocation]) -> Reply {
        for Relocation { original, record, record_at } in relocations {
            let end = *record_at as usize + record.len();
            assert!(end <= entry.command.len(), "a record lies within its command");
            let position = entry.position.plus(u64::from(*record_at));
            let size = u32::try_from(record.len()).expect("shorter than its command");
            if *original < position {
                self.deliveries.relocate(*original, position, size);
                self.timers.relocate(*original, position);
            }
        }
        Reply::Done
    }

    /// The second step. Refused while a record before the mark is needed and lies nowhere else.
    pub(super) fn purge_to(&mut self, mark: LogIndex) -> Reply {
        if self.marks.floor().is_some_and(|floor| floor.index >= mark) {
            return Reply::Done;
        }
        let Some(front) = self.marks.intent().filter(|intent| intent.index == mark) else {
            return Reply::Refused(Refusal::NoMark { mark });
        };
        let count = self.deliveries.is_needed_before(front.end)
            + self.timers.needed_before(front.end).count() as u64;
        if count > 0 && !Mutant::PurgeAboveReference.is_on() {
            return Reply::Refused(Refusal::UnderWay { mark, count });
        }
        self.marks.settle(front);
        Reply::Done
    }

    /// A topic's own, shorter retention: its messages up to the mark are gone for readers.
    pub(super) fn trim(&mut self, trim: Trim, effects: &mut Vec<Effect>) -> Reply {
        let Trim { topic, mark } = trim;
        if let Err(refusal) = self.topics.get(topic) {
            return Reply::Refused(refusal);
        }
        let (end, stamp) = match self.marks.get(mark) {
            Ok(found) => (found.end, found.stamp),
            Err(refusal) => return Reply::Refused(refusal),
        };
        let grown = self.marks.grown_to(mark).filter(|grown| grown.topic == topic);
        let grown: Vec<Grown> = grown.copied().collect();
        let starts = self.raise_starts(&grown);
        let mut expired = ExpiredCounts::default();
        self.deliveries.expire_below(&starts, &mut expired);
        self.deliveries.expire_visible(end, stamp, Some(topic), &mut expired);
        self.timers.expire_below(&starts);
        self.instances.expire_below(&starts);
        effects.extend(expired.effects());
        Reply::Done
    }

    /// Why nothing new is handed out, if so (rule R10).
    pub(super) fn moved_full(&self) -> Option<Refusal> {
        let Retention { moved_max, .. } = self.marks.retention?;
        let bytes = self.deliveries.delivered_bytes();
        (bytes > moved_max).then_some(Refusal::MovedFull { bytes, limit: moved_max })
    }

    /// How many bytes the records of half messages may have together, and those of delayed ones.
    pub(super) fn pending_bytes_max(&self) -> u64 {
        self.marks.retention.map_or(PENDING_BYTES_MAX, |retention| retention.moved_max)
    }

    /// How long a topic's messages are kept at most; 0 for ever.
    pub(super) fn longest(&self) -> Millis {
        self.marks.retention.map_or(Millis::ZERO, |retention| retention.time)
    }
}
