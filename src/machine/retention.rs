//! Marks, and the front of the log that moves from one to the next.
//!
//! A mark is the first entry that ends in a later stride of the log than the entry before it. It
//! remembers which queues grew since the mark before, and how far, so that the least offset of a
//! queue is a number of the state and never one of the disk (rule R8). Segments end elsewhere on
//! each replica; marks do not (rule R6).

use std::collections::{BTreeSet, VecDeque};

use super::Entry;
use super::codec::{read_rows, require, write_rows};
use super::consume_queue::ConsumeQueues;
use super::error::SectionError;
use super::limits::MARKS_MAX;
use crate::base::{LogIndex, LogPosition, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{Reader, Refusal, Retention, Writer};

/// Where a queue ended at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grown {
    pub(super) topic: TopicId,
    pub(super) queue: QueueId,
    pub(super) end: QueueOffset,
    /// The chain of its units up to there.
    pub(super) chain: u64,
}

/// An entry that the log's front may move behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub index: LogIndex,
    /// Where the frame behind it starts: the front, once it has moved here.
    pub end: LogPosition,
    /// Nothing up to the mark is younger.
    pub stamp: UtcMillis,
    /// Queues that grew since the mark before, in the order of ids.
    pub(super) grown: Vec<Grown>,
}

/// A mark that the front moves or has moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    pub index: LogIndex,
    pub end: LogPosition,
}

#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Nothing is marked, and so nothing ever leaves, before there is one.
    pub(super) retention: Option<Retention>,
    /// Behind the floor, oldest first.
    marks: VecDeque<Mark>,
    /// Queues with messages since the last mark.
    grown: BTreeSet<(TopicId, QueueId)>,
    intent: Option<Front>,
    floor: Option<Front>,
}

impl Marks {
    pub(super) fn note_growth(&mut self, topic: TopicId, queue: QueueId) {
        self.grown.insert((topic, queue));
    }

    /// Marks an entry that is applied, if it is one to be marked. `before` is where the entry
    /// before it ended. At the cap the next stride is as good.
    pub(super) fn consider(&mut self, entry: &Entry, before: LogPosition, queues: &ConsumeQueues) {
        let Some(Retention { stride, .. }) = self.retention else { return };
        let crossed = before.get() / stride < entry.end.get() / stride;
        if !crossed || self.marks.len() >= MARKS_MAX {
            return;
        }
        let grown = std::mem::take(&mut self.grown);
        let place = |(topic, queue)| {
            let (end, chain) = queues.end_and_chain(topic, queue)?;
            Some(Grown { topic, queue, end, chain })
        };
        // Queues of topics that are gone have no ends.
        let grown = grown.into_iter().filter_map(place).collect();
        let last = self.marks.back().map(|mark| mark.index);
        assert!(last < Some(entry.index), "marks come in the order of the log");
        let Entry { index, end, stamp, .. } = *entry;
        self.marks.push_back(Mark { index, end, stamp, grown });
    }

    /// Whether this entry is the newest mark.
    pub(super) fn is_newest(&self, index: LogIndex) -> bool {
        self.marks.back().is_some_and(|mark| mark.index == index)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Mark> {
        self.marks.iter()
    }

    pub(super) fn get(&self, index: LogIndex) -> Result<&Mark, Refusal> {
        let found = self.marks.binary_search_by_key(&index, |mark| mark.index);
        found.map(|at| &self.marks[at]).map_err(|_| Refusal::NoMark { mark: index })
    }

    /// Where the queues ended that grew up to this mark, oldest first.
    pub(super) fn grown_to(&self, mark: LogIndex) -> impl Iterator<Item = &Grown> {
        let until = self.marks.iter().take_while(move |found| found.index <= mark);
        until.flat_map(|found| &found.grown)
    }

    /// Where the newest mark ends: what lies before it leaves no later than with that mark.
    pub(super) fn newest_end(&self) -> LogPosition {
        let mark = self.marks.back().map(|mark| mark.end);
        mark.or_else(|| self.floor.map(|floor| floor.end)).unwrap_or_default()
    }

    pub(super) fn intent(&self) -> Option<Front> {
        self.intent
    }

    pub(super) fn floor(&self) -> Option<Front> {
        self.floor
    }

    /// The front shall move to a mark that is known.
    pub(super) fn intend(&mut self, front: Front) {
        assert!(self.intent.is_none_or(|intent| intent.index < front.index), "fronts move on");
        self.intent = Some(front);
    }

    /// The front has moved: marks up to it have served.
    pub(super) fn settle(&mut self, front: Front) {
        assert_eq!(self.intent, Some(front), "the front moves where it was meant to");
        assert!(self.floor.is_none_or(|floor| floor.index < front.index), "fronts move on");
        while self.marks.pop_front_if(|mark| mark.index <= front.index).is_some() {}
        self.floor = Some(front);
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId) {
        self.grown.retain(|(grown, _)| *grown != topic);
        for mark in &mut self.marks {
            mark.grown.retain(|grown| grown.topic != topic);
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.option(self.retention.as_ref(), |w, retention| w.put(retention));
        for front in [self.intent, self.floor] {
            writer.option(front.as_ref(), |w, front| {
                w.put(&front.index);
                w.put(&front.end);
            });
        }
        write_rows(writer, self.marks.iter(), |w, mark| {
            w.put(&mark.index);
            w.put(&mark.end);
            w.put(&mark.stamp);
            w.list(&mark.grown, |w, grown| {
                w.put(&grown.topic);
                w.put(&grown.queue);
                w.put(&grown.end);
                w.u64(grown.chain);
            });
        });
        write_rows(writer, self.grown.iter(), |w, (topic, queue)| {
            w.put(topic);
            w.put(queue);
        });
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let retention: Option<Retention> = reader.option(Reader::get)?;
        require(retention.is_none_or(|retention| retention.stride > 0), "a stride of no bytes")?;
        let mut front = || reader.option(|r| Ok(Front { index: r.get()?, end: r.get()? }));
        let (intent, floor) = (front()?, front()?);
        let index = |front: Option<Front>| front.map(|front| front.index);
        require(index(floor) <= index(intent), "the front is beyond where it was meant to be")?;
        let mut marks = Self { retention, intent, floor, ..Self::default() };
        read_rows(reader, |r| {
            let (index, end, stamp) = (r.get()?, r.get()?, r.get()?);
            let grown = r.list(|r| {
                let (topic, queue) = (r.get()?, r.get()?);
                Ok(Grown { topic, queue, end: r.get()?, chain: r.u64()? })
            })?;
            let last = marks.marks.back().map(|mark| mark.index);
            let behind = last.max(floor.map(|floor| floor.index));
            require(behind < Some(index), "marks out of order")?;
            marks.marks.push_back(Mark { index, end, stamp, grown });
            Ok(())
        })?;
        read_rows(reader, |r| {
            let fresh = marks.grown.insert((r.get()?, r.get()?));
            require(fresh, "a queue grew twice")
        })?;
        Ok(marks)
    }
}
