//! The small big-endian codec under commands, checkpoints and requests between nodes.

use bytes::{BufMut, Bytes, BytesMut};

use super::{Coded, CommandError};

/// A list allocates at most this many items on the word of its count alone.
const LIST_TRUST: usize = 1024;

/// Writes fields one behind the other.
#[derive(Debug, Default)]
pub struct Writer {
    out: BytesMut,
}

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with_capacity(bytes: usize) -> Self {
        Self { out: BytesMut::with_capacity(bytes) }
    }

    pub fn u8(&mut self, value: u8) {
        self.out.put_u8(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.out.put_u16(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.out.put_u32(value);
    }

    pub fn u64(&mut self, value: u64) {
        self.out.put_u64(value);
    }

    pub fn u128(&mut self, value: u128) {
        self.out.put_u128(value);
    }

    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// A u32 length, then the bytes. Panics beyond 4 GiB, which no frame can hold.
    pub fn bytes(&mut self, value: &[u8]) {
        self.count(value.len());
        self.raw(value);
    }

    /// The bytes alone, where the reader knows how many there are.
    pub fn raw(&mut self, value: &[u8]) {
        self.out.put_slice(value);
    }

    pub fn string(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }

    /// A bool, then the value if there is one.
    pub fn option<T>(&mut self, value: Option<&T>, mut write: impl FnMut(&mut Self, &T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// A u32 count, then the items.
    pub fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.count(items.len());
        for item in items {
            write(self, item);
        }
    }

    pub fn put<T: Coded>(&mut self, value: &T) {
        value.write(self);
    }

    /// A kind byte, then the value of that kind.
    pub(super) fn kind<T: Coded>(&mut self, kind: u8, value: &T) {
        self.u8(kind);
        value.write(self);
    }

    pub fn len(&self) -> usize {
        self.out.len()
    }

    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    pub fn finish(self) -> Bytes {
        self.out.freeze()
    }

    fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("lengths and counts in the log fit a u32"));
    }
}

/// Reads what a [`Writer`] wrote. Any bytes give a value or an error, never a panic, and memory in
/// proportion to the bytes.
#[derive(Debug)]
pub struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes were read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many bytes are still there.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn u8(&mut self) -> Result<u8, CommandError> {
        self.array().map(u8::from_be_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, CommandError> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, CommandError> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, CommandError> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn u128(&mut self) -> Result<u128, CommandError> {
        self.array().map(u128::from_be_bytes)
    }

    /// 0 or 1; any other byte is an error, so that a value has one form only.
    pub fn bool(&mut self) -> Result<bool, CommandError> {
        let at = self.at;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(CommandError::Bool { at, found }),
        }
    }

    /// A slice of what is being read, not a copy.
    pub fn bytes(&mut self) -> Result<Bytes, CommandError> {
        let len = self.u32()? as usize;
        let at = self.advance(len)?;
        Ok(self.bytes.slice(at..at + len))
    }

    pub fn string(&mut self) -> Result<String, CommandError> {
        let bytes = self.bytes()?;
        let at = self.at - bytes.len();
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(CommandError::Utf8 { at, valid: error.valid_up_to() }),
        }
    }

    /// As many bytes as the array has.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CommandError> {
        let at = self.advance(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[at..at + N]);
        Ok(array)
    }

    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, CommandError>,
    ) -> Result<Option<T>, CommandError> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Every item takes at least one byte, so a count beyond the bytes that are left is refused
    /// before anything is allocated.
    pub fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, CommandError>,
    ) -> Result<Vec<T>, CommandError> {
        let at = self.at;
        let count = self.u32()?;
        let left = self.left();
        if count as usize > left {
            return Err(CommandError::Count { at, count, left });
        }
        let mut items = Vec::with_capacity((count as usize).min(LIST_TRUST));
        for _ in 0..count {
            let before = self.at;
            items.push(read(self)?);
            assert!(self.at > before, "an item of a list must take at least one byte");
        }
        Ok(items)
    }

    pub fn get<T: Coded>(&mut self) -> Result<T, CommandError> {
        T::read(self)
    }

    /// Refuses bytes behind the last field.
    pub fn end(self) -> Result<(), CommandError> {
        match self.left() {
            0 => Ok(()),
            left => Err(CommandError::Trailing { at: self.at, left }),
        }
    }

    /// Moves on by `needed` bytes; answers where they start.
    fn advance(&mut self, needed: usize) -> Result<usize, CommandError> {
        let (at, left) = (self.at, self.left());
        if needed > left {
            return Err(CommandError::Truncated { at, needed, left });
        }
        self.at += needed;
        Ok(at)
    }
}
