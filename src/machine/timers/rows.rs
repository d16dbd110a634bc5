//! The rows, in chunks that a checkpoint shares with the state.
//!
//! A row's bytes in memory are its bytes in a checkpoint, so that keeping a million of them costs a
//! list of pointers. A chunk is copied when it changes while a checkpoint still has it (rule R11).
//! Which rows share a chunk follows from the entries alone: a new one begins with each 256th row.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use twox_hash::XxHash3_64;

use crate::base::{LogPosition, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{Reader, Unit, Writer};
use crate::machine::codec::require;
use crate::machine::error::SectionError;
use crate::machine::limits::QUEUES_MAX;
use crate::message::MessageIdHash;

/// original u64 | now u64 | due or offset u64 | id u128 | topic u32 | size u32 | tag u32 | queue u32
/// with [`FIRED`].
const ROW_BYTES: usize = 8 + 8 + 8 + 16 + 4 * 4;
const CHUNK_ROWS: u32 = 256;
const CHUNK_BYTES: usize = 256 * ROW_BYTES;
/// In a row's queue: the message is visible, and what would be its due is its offset.
const FIRED: u32 = 1 << 31;
const _: () = assert!(QUEUES_MAX < FIRED);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) enum Phase {
    Pending { due: UtcMillis },
    Fired { offset: QueueOffset },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) struct Row {
    /// Where the record lay first: its identity, and the row's.
    pub(in crate::machine) original: LogPosition,
    /// Where it lies now.
    pub(in crate::machine) now: LogPosition,
    pub(in crate::machine) phase: Phase,
    pub(in crate::machine) id: MessageIdHash,
    pub(in crate::machine) topic: TopicId,
    pub(in crate::machine) size: u32,
    pub(in crate::machine) tag_hash: u32,
    pub(in crate::machine) queue: QueueId,
}

impl Row {
    /// The pointer that makes the message visible.
    pub(in crate::machine) fn unit(&self, visible: UtcMillis) -> Unit {
        let Self { original, size, tag_hash, .. } = *self;
        Unit { position: original, size, tag_hash, group_hash: 0, visible }
    }

    /// Whether the record leaves before the unit that points at it from now on: it lies before the
    /// newest mark, and the unit comes behind it.
    pub(in crate::machine) fn is_late(&self, mark: LogPosition) -> bool {
        self.now < mark
    }

    /// The pointer that makes the message visible now. A record that was written again and does not
    /// leave before the unit needs no row that says where it lies.
    pub(in crate::machine) fn unit_when_fired(&self, mark: LogPosition, stamp: UtcMillis) -> Unit {
        let position = if self.is_late(mark) { self.original } else { self.now };
        Unit { position, ..self.unit(stamp) }
    }

    fn to_bytes(self) -> [u8; ROW_BYTES] {
        let (number, fired) = match self.phase {
            Phase::Pending { due } => (due.get(), 0),
            Phase::Fired { offset } => (offset.get(), FIRED),
        };
        let topic = u32::try_from(self.topic.get()).expect("checked when it was taken in");
        let mut bytes = [0; ROW_BYTES];
        bytes[..8].copy_from_slice(&self.original.get().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.now.get().to_be_bytes());
        bytes[16..24].copy_from_slice(&number.to_be_bytes());
        bytes[24..40].copy_from_slice(&self.id.get().to_be_bytes());
        bytes[40..44].copy_from_slice(&topic.to_be_bytes());
        bytes[44..48].copy_from_slice(&self.size.to_be_bytes());
        bytes[48..52].copy_from_slice(&self.tag_hash.to_be_bytes());
        bytes[52..].copy_from_slice(&(self.queue.get() | fired).to_be_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        let queue = u32_at(bytes, 52);
        let number = u64_at(bytes, 16);
        let phase = if queue & FIRED == 0 {
            Phase::Pending { due: UtcMillis::new(number) }
        } else {
            Phase::Fired { offset: QueueOffset::new(number) }
        };
        let id = bytes[24..40].try_into().expect("sixteen bytes");
        Self {
            original: LogPosition::new(u64_at(bytes, 0)),
            now: LogPosition::new(u64_at(bytes, 8)),
            phase,
            id: MessageIdHash::new(u128::from_be_bytes(id)),
            topic: TopicId::new(u32_at(bytes, 40).into()),
            size: u32_at(bytes, 44),
            tag_hash: u32_at(bytes, 48),
            queue: QueueId::new(queue & !FIRED),
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[derive(Debug, Default)]
struct Chunk {
    /// Whole rows in the order of their places.
    bytes: Vec<u8>,
    /// Of `bytes`, once somebody asked for it.
    hash: OnceLock<u64>,
    facts: OnceLock<Facts>,
}

/// What lets a search pass by a whole chunk.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// The least place where one of the records lies now.
    least: LogPosition,
    /// The least and the greatest topic.
    topics: Option<(TopicId, TopicId)>,
    /// The same of messages that have fired.
    fired: Option<(TopicId, TopicId)>,
}

/// The least and the greatest.
fn span(topics: impl Iterator<Item = TopicId>) -> Option<(TopicId, TopicId)> {
    topics.fold(None, |span, topic| {
        let (least, greatest) = span.unwrap_or((topic, topic));
        Some((least.min(topic), greatest.max(topic)))
    })
}

impl Clone for Chunk {
    fn clone(&self) -> Self {
        Self::of(self.bytes.clone())
    }
}

impl Chunk {
    fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, hash: OnceLock::new(), facts: OnceLock::new() }
    }

    /// The bytes, to be changed: what was concluded from them is void.
    fn bytes_mut(&mut self) -> &mut Vec<u8> {
        self.hash.take();
        self.facts.take();
        &mut self.bytes
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.len()).map(|at| self.row(at))
    }

    fn facts(&self) -> Facts {
        *self.facts.get_or_init(|| {
            let fired = self.rows().filter(|row| matches!(row.phase, Phase::Fired { .. }));
            Facts {
                least: self.rows().map(|row| row.now).min().unwrap_or_default(),
                topics: span(self.rows().map(|row| row.topic)),
                fired: span(fired.map(|row| row.topic)),
            }
        })
    }

    fn len(&self) -> usize {
        self.bytes.len() / ROW_BYTES
    }

    fn row(&self, at: usize) -> Row {
        Row::of_bytes(&self.bytes[at * ROW_BYTES..(at + 1) * ROW_BYTES])
    }

    fn find(&self, original: LogPosition) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if u64_at(&self.bytes, middle * ROW_BYTES) < original.get() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let found = low < self.len() && u64_at(&self.bytes, low * ROW_BYTES) == original.get();
        found.then_some(low)
    }

    fn hash(&self) -> u64 {
        *self.hash.get_or_init(|| XxHash3_64::oneshot(&self.bytes))
    }
}

/// A chunk's bytes, lent without a copy.
struct Lent(Arc<Chunk>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// All rows, by the place of the first row that each chunk ever had.
#[derive(Debug, Default)]
pub(super) struct Rows {
    chunks: BTreeMap<LogPosition, Arc<Chunk>>,
    /// Rows that were put into the last chunk so far, gone ones included.
    taken: u32,
    /// Derived.
    len: usize,
}

/// What a checkpoint keeps of the rows.
#[derive(Debug)]
pub(in crate::machine) struct RowsImage {
    taken: u32,
    chunks: Vec<(LogPosition, Arc<Chunk>)>,
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a row behind all others.
    pub(super) fn push(&mut self, row: &Row) {
        if self.taken.is_multiple_of(CHUNK_ROWS) || self.chunks.is_empty() {
            self.taken = 0;
            let known = self.chunks.insert(row.original, Arc::default());
            assert!(known.is_none(), "two records at one place");
        }
        let mut last = self.chunks.last_entry().expect("there is one now");
        let chunk = Arc::make_mut(last.get_mut());
        if chunk.bytes.is_empty() {
            chunk.bytes_mut().reserve_exact(CHUNK_BYTES);
        }
        let before = chunk.len().checked_sub(1).map(|at| chunk.row(at).original);
        assert!(before < Some(row.original), "records come in the order of the log");
        chunk.bytes_mut().extend_from_slice(&row.to_bytes());
        self.taken += 1;
        self.len += 1;
    }

    fn chunk(&self, original: LogPosition) -> Option<&Arc<Chunk>> {
        self.chunks.range(..=original).next_back().map(|(_, chunk)| chunk)
    }

    pub(super) fn get(&self, original: LogPosition) -> Option<Row> {
        let chunk = self.chunk(original)?;
        chunk.find(original).map(|at| chunk.row(at))
    }

    fn change(&mut self, original: LogPosition, change: impl FnOnce(&mut Row)) {
        let chunk = self.chunks.range_mut(..=original).next_back();
        let (_, chunk) = chunk.expect("the row is there");
        let at = chunk.find(original).expect("the row is there");
        let mut row = chunk.row(at);
        change(&mut row);
        let chunk = Arc::make_mut(chunk);
        let place = at * ROW_BYTES..(at + 1) * ROW_BYTES;
        chunk.bytes_mut()[place].copy_from_slice(&row.to_bytes());
    }

    pub(super) fn set_phase(&mut self, original: LogPosition, phase: Phase) {
        self.change(original, |row| row.phase = phase);
    }

    pub(super) fn set_now(&mut self, original: LogPosition, now: LogPosition) {
        self.change(original, |row| {
            assert!(row.now < now, "copies follow each other");
            row.now = now;
        });
    }

    /// Drops a row that is there.
    pub(super) fn remove(&mut self, original: LogPosition) {
        let chunk = self.chunks.range_mut(..=original).next_back();
        let (key, shared) = chunk.expect("the row is there");
        let key = *key;
        let at = shared.find(original).expect("the row is there");
        self.len -= 1;
        if shared.len() == 1 {
            let last = self.chunks.last_key_value().is_some_and(|(last, _)| *last == key);
            self.chunks.remove(&key);
            if last {
                self.taken = CHUNK_ROWS;
            }
            return;
        }
        let chunk = Arc::make_mut(shared);
        chunk.bytes_mut().drain(at * ROW_BYTES..(at + 1) * ROW_BYTES);
        if 2 * chunk.bytes.len() < chunk.bytes.capacity() {
            chunk.bytes.shrink_to_fit();
        }
    }

    /// In the order of places.
    pub(super) fn iter(&self) -> impl Iterator<Item = Row> {
        self.chunks.values().flat_map(|chunk| chunk.rows())
    }

    /// Rows whose records lie before `front` now, in the order of places.
    pub(super) fn lying_before(&self, front: LogPosition) -> impl Iterator<Item = Row> {
        // A copy lies behind its original, so chunks that begin behind the front have none.
        let chunks = self.chunks.range(..front).map(|(_, chunk)| chunk);
        let chunks = chunks.filter(move |chunk| chunk.facts().least < front);
        chunks.flat_map(|chunk| chunk.rows()).filter(move |row| row.now < front)
    }

    /// The first places of chunks with rows of a topic, and of few others.
    pub(super) fn chunks_of(&self, topic: TopicId) -> Vec<LogPosition> {
        let has = |chunk: &Chunk| {
            chunk.facts().topics.is_some_and(|(least, most)| least <= topic && topic <= most)
        };
        self.chunks.iter().filter(|(_, chunk)| has(chunk)).map(|(first, _)| *first).collect()
    }

    /// The rows of one chunk; none where it is gone.
    pub(super) fn of_chunk(&self, first: LogPosition) -> impl Iterator<Item = Row> {
        self.chunks.get(&first).into_iter().flat_map(|chunk| chunk.rows())
    }

    /// Rows of messages that have fired and may be of these topics, and few others.
    pub(super) fn fired_of<T>(&self, topics: &BTreeMap<TopicId, T>) -> impl Iterator<Item = Row> {
        let has = |chunk: &&Arc<Chunk>| {
            let fired = chunk.facts().fired;
            fired.is_some_and(|(least, most)| topics.range(least..=most).next().is_some())
        };
        self.chunks.values().filter(has).flat_map(|chunk| chunk.rows())
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let chunks = self.chunks.values().map(|chunk| chunk.bytes.capacity() + 96);
        chunks.sum()
    }

    pub(super) fn image(&self) -> RowsImage {
        let chunks = self.chunks.iter().map(|(first, chunk)| (*first, chunk.clone())).collect();
        RowsImage { taken: self.taken, chunks }
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut rows = Self { taken: reader.u32()?, ..Self::default() };
        require(rows.taken <= CHUNK_ROWS, "more rows than a chunk has")?;
        for _ in 0..reader.u32()? {
            let first: LogPosition = reader.get()?;
            let read = reader.bytes()?;
            let whole = read.len().is_multiple_of(ROW_BYTES) && !read.is_empty();
            require(whole && read.len() <= CHUNK_BYTES, "a chunk of delayed messages is cut")?;
            // Copied: a slice would keep the whole checkpoint in memory.
            let chunk = Chunk::of(read.to_vec());
            let last = rows.chunks.last_key_value().map(|(_, chunk)| chunk.row(chunk.len() - 1));
            let mut behind = last.map(|row| row.original);
            require(behind < Some(first), "chunks of delayed messages out of order")?;
            for at in 0..chunk.len() {
                let row = chunk.row(at);
                let ordered = first <= row.original && behind < Some(row.original);
                require(ordered, "delayed messages out of order")?;
                require(row.original <= row.now, "a copy before its original")?;
                behind = Some(row.original);
            }
            rows.len += chunk.len();
            rows.chunks.insert(first, Arc::new(chunk));
        }
        Ok(rows)
    }
}

impl RowsImage {
    pub(in crate::machine) fn len(&self) -> u64 {
        self.chunks.iter().map(|(_, chunk)| chunk.bytes.len() as u64).sum()
    }

    /// What a checkpoint has: rows of the last chunk so far, chunks, and for each its first place
    /// ever, its bytes' length and its bytes.
    pub(in crate::machine) fn parts(&self) -> Vec<Bytes> {
        let mut parts = Vec::with_capacity(1 + 2 * self.chunks.len());
        let mut writer = Writer::new();
        writer.u32(self.taken);
        let count = u32::try_from(self.chunks.len()).expect("rows are bounded below 2^32");
        writer.u32(count);
        parts.push(writer.finish());
        for (first, chunk) in &self.chunks {
            let mut writer = Writer::new();
            writer.put(first);
            writer.u32(u32::try_from(chunk.bytes.len()).expect("a chunk is small"));
            parts.push(writer.finish());
            parts.push(Bytes::from_owner(Lent(chunk.clone())));
        }
        parts
    }

    /// A hash of what [`Self::parts`] gives, without touching chunks again that did not change.
    pub(in crate::machine) fn hash(&self) -> u64 {
        let mut hasher = XxHash3_64::new();
        hasher.write(&self.taken.to_be_bytes());
        for (first, chunk) in &self.chunks {
            hasher.write(&first.get().to_be_bytes());
            hasher.write(&chunk.hash().to_be_bytes());
        }
        hasher.finish()
    }
}
