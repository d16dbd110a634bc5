//! Which messages were sent lately, so that a repeated send gets its first outcome (R18, R19).
//!
//! A message is known by topic incarnation, id hash, body CRC and kind together. It is remembered
//! while it is among the last 2^20 and at most 30 s old, and in any case among the last 2^16.
//! Since stamps never fall, what is remembered is always the newest part of what was ever added,
//! and memory follows exactly that. 49 bytes a message in packed runs of 4096, and about 11 in the
//! index. Full runs never change, so a checkpoint shares them instead of copying.

use std::collections::VecDeque;
use std::fmt;
use std::hash::Hasher;

use bytes::Bytes;
use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use super::codec::require;
use super::error::SectionError;
use super::limits::{DEDUP_MAX, DEDUP_MIN, DEDUP_WINDOW};
use crate::base::{QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{PublishItem, Published, Reader, Writer};

/// topic u64 | id hash u128 | body crc u32 | kind u8: what a message is known by.
const IDENTITY_BYTES: usize = 8 + 16 + 4 + 1;
/// The identity, then queue u32 | offset u64 | visible stamp u64: its outcome.
const ENTRY_BYTES: usize = IDENTITY_BYTES + 4 + 8 + 8;
const RUN_ENTRIES: u64 = 4096;
const RUN_BYTES: usize = 4096 * ENTRY_BYTES;

/// How much is remembered.
#[derive(Clone, Copy, Debug)]
struct Window {
    max: u64,
    min: u64,
}

/// 4096 entries that never change.
#[derive(Clone, Debug)]
struct Run {
    bytes: Bytes,
    hash: u64,
}

pub(super) struct Dedup {
    window: Window,
    /// The number of the oldest entry remembered; entries are counted from 0.
    first: u64,
    /// The number that the next entry gets.
    next: u64,
    /// Full runs, the first one holding `first`. Entries before it may be zero.
    runs: VecDeque<Run>,
    /// The run under way.
    tail: Vec<u8>,
    /// Entry numbers, their low 32 bits, by identity. Its order decides nothing.
    index: HashTable<u32>,
    /// Scatters the index, so that nobody can choose ids that collide. Decides nothing either.
    seed: u64,
}

impl fmt::Debug for Dedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Dedup");
        debug.field("first", &self.first).field("next", &self.next).finish_non_exhaustive()
    }
}

/// What a checkpoint keeps: the remembered entries in order, full runs shared.
#[derive(Debug)]
pub(super) struct DedupImage {
    first: u64,
    next: u64,
    /// With the hash where it is known.
    parts: Vec<(Bytes, Option<u64>)>,
}

type Identity = [u8; IDENTITY_BYTES];

fn identity(topic: TopicId, item: &PublishItem) -> Identity {
    let mut bytes = [0; IDENTITY_BYTES];
    bytes[..8].copy_from_slice(&topic.get().to_be_bytes());
    bytes[8..24].copy_from_slice(&item.id_hash.get().to_be_bytes());
    bytes[24..28].copy_from_slice(&item.body_crc.to_be_bytes());
    bytes[28] = item.kind.byte();
    bytes
}

fn low32(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).expect("masked to 32 bits")
}

fn in_run(number: u64) -> usize {
    usize::try_from(number % RUN_ENTRIES).expect("below the length of a run") * ENTRY_BYTES
}

/// The entries, apart from the index over them, so that the index can look while it changes.
struct Entries<'a> {
    first: u64,
    runs: &'a VecDeque<Run>,
    tail: &'a [u8],
}

impl<'a> Entries<'a> {
    fn get(&self, number: u64) -> &'a [u8] {
        let run = number / RUN_ENTRIES - self.first / RUN_ENTRIES;
        let run = usize::try_from(run).expect("runs fit memory");
        let bytes = self.runs.get(run).map_or(self.tail, |run| &run.bytes[..]);
        let at = in_run(number);
        &bytes[at..at + ENTRY_BYTES]
    }

    /// The entry of an index slot: the remembered numbers are fewer than 2^32.
    fn of_slot(&self, slot: u32) -> &'a [u8] {
        self.get(self.first + u64::from(slot.wrapping_sub(low32(self.first))))
    }
}

macro_rules! entries {
    ($dedup:expr) => {
        Entries { first: $dedup.first, runs: &$dedup.runs, tail: &$dedup.tail }
    };
}

impl Dedup {
    /// `seed` is any number, drawn by each process for itself.
    pub(super) fn new(seed: u64) -> Self {
        Self::with_window(seed, Window { max: DEDUP_MAX, min: DEDUP_MIN })
    }

    fn with_window(seed: u64, window: Window) -> Self {
        Self {
            window,
            first: 0,
            next: 0,
            runs: VecDeque::new(),
            tail: Vec::new(),
            index: HashTable::new(),
            seed,
        }
    }

    fn hash(&self, identity: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed, identity)
    }

    /// Forgets what is not remembered any more by `stamp`.
    pub(super) fn forget(&mut self, stamp: UtcMillis) {
        while self.next - self.first > self.window.min {
            let entry = entries!(self).get(self.first);
            let stamped = UtcMillis::new(read_u64(&entry[41..49]));
            let within = stamp.since(stamped) <= DEDUP_WINDOW;
            if within && self.next - self.first <= self.window.max {
                break;
            }
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let identity = &entries!(self).get(self.first)[..IDENTITY_BYTES];
        let (hash, slot) = (self.hash(identity), low32(self.first));
        let found = self.index.find_entry(hash, |other| *other == slot).ok();
        found.expect("every remembered entry is indexed").remove();
        self.first += 1;
        if self.first.is_multiple_of(RUN_ENTRIES) {
            self.runs.pop_front().expect("a run that was passed is full");
        }
        if self.index.capacity() > 4 * self.index.len() + 4096 {
            let entries = entries!(self);
            let seed = self.seed;
            self.index.shrink_to(2 * self.index.len(), |slot| {
                XxHash3_64::oneshot_with_seed(seed, &entries.of_slot(*slot)[..IDENTITY_BYTES])
            });
        }
    }

    /// The outcome of the first time that this message was sent, if it is remembered.
    pub(super) fn find(&self, topic: TopicId, item: &PublishItem) -> Option<Published> {
        let identity = identity(topic, item);
        let entries = entries!(self);
        let same = |slot: &u32| entries.of_slot(*slot)[..IDENTITY_BYTES] == identity;
        let slot = self.index.find(self.hash(&identity), same)?;
        let entry = entries.of_slot(*slot);
        let queue = u32::from_be_bytes(entry[29..33].try_into().expect("four bytes"));
        Some(Published {
            queue: QueueId::new(queue),
            offset: QueueOffset::new(read_u64(&entry[33..41])),
            visible: UtcMillis::new(read_u64(&entry[41..49])),
            repeated: true,
        })
    }

    /// Remembers a message that [`Self::find`] did not know.
    pub(super) fn add(&mut self, topic: TopicId, item: &PublishItem, outcome: &Published) {
        let mut entry = Vec::with_capacity(ENTRY_BYTES);
        entry.extend_from_slice(&identity(topic, item));
        entry.extend_from_slice(&outcome.queue.get().to_be_bytes());
        entry.extend_from_slice(&outcome.offset.get().to_be_bytes());
        entry.extend_from_slice(&outcome.visible.get().to_be_bytes());
        self.push(&entry);
    }

    fn push(&mut self, entry: &[u8]) {
        assert_eq!(entry.len(), ENTRY_BYTES, "an entry has 49 bytes");
        assert_eq!(self.tail.len(), in_run(self.next), "the tail holds the run under way");
        if self.tail.is_empty() {
            self.tail.reserve_exact(RUN_BYTES);
        }
        self.tail.extend_from_slice(entry);
        let slot = low32(self.next);
        self.next += 1;
        let hash = self.hash(&entry[..IDENTITY_BYTES]);
        let (entries, seed) = (entries!(self), self.seed);
        self.index.insert_unique(hash, slot, |slot| {
            XxHash3_64::oneshot_with_seed(seed, &entries.of_slot(*slot)[..IDENTITY_BYTES])
        });
        if self.tail.len() == RUN_BYTES {
            let bytes = Bytes::from(std::mem::take(&mut self.tail));
            let hash = XxHash3_64::oneshot(&bytes);
            self.runs.push_back(Run { bytes, hash });
        }
    }

    pub(super) fn image(&self) -> DedupImage {
        let mut parts = Vec::with_capacity(self.runs.len() + 1);
        let mut at = in_run(self.first);
        for run in &self.runs {
            let whole = at == 0;
            parts.push((run.bytes.slice(at..), whole.then_some(run.hash)));
            at = 0;
        }
        if self.next > self.first && self.tail.len() > at {
            parts.push((Bytes::copy_from_slice(&self.tail[at..]), None));
        }
        DedupImage { first: self.first, next: self.next, parts }
    }

    pub(super) fn read(reader: &mut Reader, seed: u64) -> Result<Self, SectionError> {
        let mut dedup = Self::new(seed);
        let (first, next) = (reader.u64()?, reader.u64()?);
        require(first <= next && next - first <= DEDUP_MAX, "more remembered than may be")?;
        let zeros = vec![0; in_run(first)];
        dedup.tail.extend_from_slice(&zeros);
        dedup.first = first;
        dedup.next = first;
        while dedup.next < next {
            let entry: [u8; ENTRY_BYTES] = reader.array()?;
            dedup.push(&entry);
        }
        Ok(dedup)
    }
}

fn read_u64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

impl DedupImage {
    pub(super) fn len(&self) -> u64 {
        self.parts.iter().map(|(bytes, _)| bytes.len() as u64).sum()
    }

    /// What a checkpoint has: first and next number, then the entries.
    pub(super) fn parts(&self) -> Vec<Bytes> {
        let mut writer = Writer::with_capacity(16);
        writer.u64(self.first);
        writer.u64(self.next);
        let entries = self.parts.iter().map(|(bytes, _)| bytes.clone());
        [writer.finish()].into_iter().chain(entries).collect()
    }

    /// A hash of what [`Self::parts`] gives, without touching the bytes of full runs again.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = XxHash3_64::new();
        hasher.write(&self.first.to_be_bytes());
        hasher.write(&self.next.to_be_bytes());
        for (bytes, hash) in &self.parts {
            let hash = hash.unwrap_or_else(|| XxHash3_64::oneshot(bytes));
            hasher.write(&hash.to_be_bytes());
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{MessageIdHash, MessageKind};

    const TOPIC: TopicId = TopicId::new(1);

    fn item(id: u128) -> PublishItem {
        PublishItem {
            queue: QueueId::new(0),
            kind: MessageKind::Normal,
            id_hash: MessageIdHash::new(id),
            body_crc: 7,
            tag_hash: 0,
            group_hash: 0,
            record: Bytes::new(),
            record_at: 0,
        }
    }

    fn send(dedup: &mut Dedup, id: u128, stamp: u64) -> bool {
        let visible = UtcMillis::new(stamp);
        dedup.forget(visible);
        if let Some(found) = dedup.find(TOPIC, &item(id)) {
            assert!(found.repeated);
            assert_eq!(u128::from(found.offset.get()), id, "the first outcome comes back");
            return true;
        }
        let offset = QueueOffset::new(u64::try_from(id).unwrap());
        let outcome = Published { queue: QueueId::new(3), offset, visible, repeated: false };
        dedup.add(TOPIC, &item(id), &outcome);
        false
    }

    #[test]
    fn remembers_by_time_and_by_count() {
        let mut dedup = Dedup::with_window(1, Window { max: 100, min: 10 });
        for id in 0..50 {
            assert!(!send(&mut dedup, id, 1_000));
        }
        // All fifty lie within the window, up to its very end.
        assert!(send(&mut dedup, 0, 31_000));
        // A moment later only the last ten are left.
        assert!(send(&mut dedup, 40, 31_001));
        assert!(send(&mut dedup, 49, 999_999));
        assert!(!send(&mut dedup, 39, 31_001));
        // More than a hundred are never kept, however young.
        for id in 100..200 {
            assert!(!send(&mut dedup, id, 40_000));
        }
        assert!(send(&mut dedup, 100, 40_000));
        assert!(!send(&mut dedup, 300, 40_000));
        assert!(send(&mut dedup, 101, 40_000) || dedup.first > 0);
        dedup.forget(UtcMillis::new(40_000));
        assert!(dedup.find(TOPIC, &item(100)).is_none());
    }

    #[test]
    fn another_body_or_kind_is_another_message() {
        let mut dedup = Dedup::new(1);
        send(&mut dedup, 1, 0);
        let mut other = item(1);
        other.body_crc = 8;
        assert!(dedup.find(TOPIC, &other).is_none());
        let mut other = item(1);
        other.kind = MessageKind::Fifo;
        assert!(dedup.find(TOPIC, &other).is_none());
        assert!(dedup.find(TopicId::new(2), &item(1)).is_none());
        assert!(dedup.find(TOPIC, &item(1)).is_some());
    }

    #[test]
    fn the_image_gives_the_same_memory_again() {
        // Long enough for several runs, with a first run of which a part is forgotten.
        let mut dedup = Dedup::with_window(1, Window { max: 9_000, min: 10 });
        for id in 0..20_000 {
            send(&mut dedup, id, 1_000);
        }
        let image = dedup.image();
        let bytes = Bytes::from(image.parts().concat());
        let mut reader = Reader::new(bytes);
        let mut again = Dedup::read(&mut reader, 99).unwrap();
        reader.end().unwrap();
        again.window = dedup.window;
        assert_eq!(again.image().hash(), image.hash());
        assert!(send(&mut again, 19_999, 1_000) && send(&mut again, 11_001, 1_000));
        for id in 20_000..30_000 {
            assert!(!send(&mut again, id, 1_000));
            assert!(!send(&mut dedup, id, 1_000));
        }
        assert_eq!(again.image().hash(), dedup.image().hash());
    }

    #[test]
    fn a_remembered_message_costs_at_most_80_bytes() {
        let mut dedup = Dedup::new(1);
        let count = 200_000_u64;
        for id in 0..count {
            send(&mut dedup, u128::from(id), 1_000);
        }
        let runs = dedup.runs.len() * RUN_BYTES + dedup.tail.capacity();
        let bytes = runs + dedup.index.allocation_size();
        assert!(bytes as u64 <= 80 * count, "{} bytes each", bytes as u64 / count);
    }
}
