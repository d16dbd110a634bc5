//! What is kept of a key: its hash, and where the record lies that has it.

use std::hash::Hasher;

use bytes::{Buf, BufMut};
use twox_hash::XxHash3_64;

use crate::base::{LogIndex, LogPosition, QueueId, Term, TopicId, TopicName, UtcMillis};
use crate::command::{Command, PublishItem};
use crate::message::{Message, decode_record};

/// hash u64 | position u64 | stamp u64 | number u64 | size u32 | queue u32 | how it was taken u8
pub const ENTRY_BYTES: usize = 8 + 8 + 8 + 8 + 4 + 4 + 1;

// How a record was taken in. Persisted: never change one, never use one again.
const PUBLISHED: u8 = 1;
const SCHEDULED: u8 = 2;
const PREPARED: u8 = 3;
const MOVED: u8 = 4;

/// A record that has a key or an id of this hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub hash: u64,
    /// Where these bytes of the record lie.
    pub position: LogPosition,
    /// Bytes of the record.
    pub size: u32,
    /// The queue of its message; of a moved record it is not known, and 0.
    pub queue: QueueId,
    /// The stamp of the log entry that has these bytes.
    pub stamp: UtcMillis,
    pub taken: Taken,
}

/// How a record came to where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Visible with the entry.
    Published,
    /// Visible at another time, first asked for at `due`.
    Scheduled { due: UtcMillis },
    /// Visible once its transaction is committed.
    Prepared,
    /// Written again, by whoever was about to lose it at `original`, its place of before.
    Moved { original: LogPosition },
}

/// One entry of the log as its applying saw it.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    pub index: LogIndex,
    pub term: Term,
    pub stamp: UtcMillis,
    /// Where the command starts in the log.
    pub body: LogPosition,
    /// Where the next frame starts.
    pub end: LogPosition,
}

/// The hash of a message id, in all topics. Persisted.
pub fn id_hash(message_id: &str) -> u64 {
    hash(b'i', TopicId::default(), message_id)
}

/// The hash of a key in one incarnation of a topic. Persisted.
pub fn key_hash(topic: TopicId, key: &str) -> u64 {
    hash(b'k', topic, key)
}

fn hash(kind: u8, topic: TopicId, text: &str) -> u64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(&[kind]);
    hasher.write(&topic.get().to_be_bytes());
    hasher.write(text.as_bytes());
    hasher.finish()
}

impl Entry {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let (kind, number) = match self.taken {
            Taken::Published => (PUBLISHED, 0),
            Taken::Scheduled { due } => (SCHEDULED, due.get()),
            Taken::Prepared => (PREPARED, 0),
            Taken::Moved { original } => (MOVED, original.get()),
        };
        out.put_u64(self.hash);
        out.put_u64(self.position.get());
        out.put_u64(self.stamp.get());
        out.put_u64(number);
        out.put_u32(self.size);
        out.put_u32(self.queue.get());
        out.put_u8(kind);
    }

    /// `None` when the bytes are none of an entry.
    pub(super) fn read(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() != ENTRY_BYTES {
            return None;
        }
        let (hash, position) = (bytes.get_u64(), LogPosition::new(bytes.get_u64()));
        let (stamp, number) = (UtcMillis::new(bytes.get_u64()), bytes.get_u64());
        let (size, queue) = (bytes.get_u32(), QueueId::new(bytes.get_u32()));
        let taken = match bytes.get_u8() {
            PUBLISHED => Taken::Published,
            SCHEDULED => Taken::Scheduled { due: UtcMillis::new(number) },
            PREPARED => Taken::Prepared,
            MOVED => Taken::Moved { original: LogPosition::new(number) },
            _ => return None,
        };
        Some(Self { hash, position, size, queue, stamp, taken })
    }

    /// In files and in memory; no two records of one hash lie at one place.
    pub(super) fn order(&self) -> (u64, LogPosition) {
        (self.hash, self.position)
    }
}

/// The entries that a command leaves, one for each id and each key of its records. `topic_of`
/// knows the incarnation of a topic's name when it is asked; of a record that was written again
/// nothing else says it. A record that cannot be read leaves none: whoever reads the message finds
/// that out.
pub(super) fn entries_of(
    applied: &Applied,
    command: &Command,
    topic_of: &mut dyn FnMut(&TopicName, UtcMillis) -> Option<TopicId>,
) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut add = |topic: TopicId, item: &PublishItem, taken: Taken| {
        let Ok(stored) = decode_record(&item.record) else { return };
        let place = place(applied, item.record_at, item.record.len());
        let entry = |hash| Entry { hash, queue: item.queue, taken, ..place };
        entries.extend(hashes(Some(topic), &stored.message).map(entry));
    };
    match command {
        Command::Publish(publish) => {
            publish.items.iter().for_each(|item| add(publish.topic, item, Taken::Published));
        }
        Command::Schedule(schedule) => {
            for one in &schedule.items {
                add(schedule.topic, &one.item, Taken::Scheduled { due: one.due });
            }
        }
        Command::Prepare(prepare) => {
            prepare.halves.iter().for_each(|half| add(prepare.topic, &half.item, Taken::Prepared));
        }
        Command::Relocate(relocations) => {
            for one in relocations {
                let Ok(stored) = decode_record(&one.record) else { continue };
                let topic = topic_of(&stored.message.topic, applied.stamp);
                let place = place(applied, one.record_at, one.record.len());
                let taken = Taken::Moved { original: one.original };
                let entry = |hash| Entry { hash, taken, ..place };
                entries.extend(hashes(topic, &stored.message).map(entry));
            }
        }
        _ => {}
    }
    entries
}

fn place(applied: &Applied, record_at: u32, size: usize) -> Entry {
    Entry {
        hash: 0,
        position: applied.body.plus(u64::from(record_at)),
        size: u32::try_from(size).expect("a record is shorter than its command"),
        queue: QueueId::default(),
        stamp: applied.stamp,
        taken: Taken::Published,
    }
}

/// Of its id, and of its keys where its topic is known.
fn hashes(topic: Option<TopicId>, message: &Message) -> impl Iterator<Item = u64> {
    let keys = topic.map(|topic| message.keys.iter().map(move |key| key_hash(topic, key)));
    std::iter::once(id_hash(&message.message_id)).chain(keys.into_iter().flatten())
}
