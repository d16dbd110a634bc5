//! One entry as bytes. The layout, big-endian:
//!
//! | at | field |
//! |---|---|
//! | 0 | magic `RMQF` |
//! | 4 | format version, 1 |
//! | 5 | kind |
//! | 6 | reserved, 0 (u16) |
//! | 8 | length of the body (u32) |
//! | 12 | CRC32C over bytes 0 to 12 and 16 to the end (u32) |
//! | 16 | index (u64) |
//! | 24 | term (u64) |
//! | 32 | the leader's stamp, UTC milliseconds (u64) |
//! | 40 | body |
//!
//! The same bytes lie on every replica's disk and travel between replicas.

use bytes::{BufMut, Bytes, BytesMut};

use crate::base::{LogIndex, LogPosition, Mutant, Term, UtcMillis};
use crate::commit_log::{Frame, FrameKind, Seal};

/// Bytes before the body.
pub const FRAME_HEADER: usize = 40;
/// Longest body in bytes: a request of 4 MiB at most becomes one entry, with room for what the
/// command adds. A length above it is damage.
pub const FRAME_BODY_MAX: usize = 16 << 20;

const MAGIC: u32 = u32::from_be_bytes(*b"RMQF");
const VERSION: u8 = 1;
const CHECKSUM_AT: usize = 12;
const CHECKSUM_END: usize = 16;

const _: () = assert!(FRAME_HEADER == 4 + 1 + 1 + 2 + 4 + 4 + 8 + 8 + 8);

/// What is wrong with bytes that should be a frame, or be the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("{need} bytes are needed and {have} are there")]
    Short { need: usize, have: usize },
    #[error("the magic number is {found:#010x} instead of {MAGIC:#010x}")]
    Magic { found: u32 },
    #[error("the format version is {found}; this program reads {VERSION}")]
    Version { found: u8 },
    #[error("the kind {found} is unknown")]
    Kind { found: u8 },
    #[error("the reserved bytes are {found:#06x} instead of 0")]
    Reserved { found: u16 },
    #[error("the body has {len} bytes; at most {FRAME_BODY_MAX} are possible")]
    Length { len: usize },
    #[error("the checksum is {stored:#010x} and the bytes give {computed:#010x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("the index is {found} where {expected} is due")]
    Index { expected: LogIndex, found: LogIndex },
    #[error("the term falls from {previous} to {found}")]
    Term { previous: Term, found: Term },
    #[error("the stamp falls from {previous} to {found}")]
    Stamp { previous: UtcMillis, found: UtcMillis },
    #[error("the file ends at byte {len} of {expected}")]
    Missing { len: u64, expected: u64 },
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Blank),
            2 => Some(Self::Command),
            3 => Some(Self::Membership),
            _ => None,
        }
    }
}

/// The fields before the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: FrameKind,
    pub(super) body_len: usize,
    pub(super) crc: u32,
    pub(super) index: LogIndex,
    pub(super) term: Term,
    pub(super) stamp: UtcMillis,
}

impl Header {
    pub(super) fn frame_len(&self) -> usize {
        FRAME_HEADER + self.body_len
    }

    fn encode(&self) -> [u8; FRAME_HEADER] {
        let len = u32::try_from(self.body_len).expect("bodies are checked against FRAME_BODY_MAX");
        let mut bytes = [0; FRAME_HEADER];
        bytes[0..4].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[8..12].copy_from_slice(&len.to_be_bytes());
        bytes[CHECKSUM_AT..CHECKSUM_END].copy_from_slice(&self.crc.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.index.get().to_be_bytes());
        bytes[24..32].copy_from_slice(&self.term.get().to_be_bytes());
        bytes[32..40].copy_from_slice(&self.stamp.get().to_be_bytes());
        bytes
    }

    /// Reads the fixed part and checks what can be checked without the body.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let Some(header) = bytes.first_chunk::<FRAME_HEADER>() else {
            return Err(FrameError::Short { need: FRAME_HEADER, have: bytes.len() });
        };
        let magic = u32_at(header, 0);
        if magic != MAGIC {
            return Err(FrameError::Magic { found: magic });
        }
        if header[4] != VERSION {
            return Err(FrameError::Version { found: header[4] });
        }
        let kind = FrameKind::from_byte(header[5]).ok_or(FrameError::Kind { found: header[5] })?;
        let reserved = u16::from_be_bytes([header[6], header[7]]);
        if reserved != 0 {
            return Err(FrameError::Reserved { found: reserved });
        }
        let body_len = u32_at(header, 8) as usize;
        if body_len > FRAME_BODY_MAX {
            return Err(FrameError::Length { len: body_len });
        }
        Ok(Self {
            kind,
            body_len,
            crc: u32_at(header, CHECKSUM_AT),
            index: LogIndex::new(u64_at(header, 16)),
            term: Term::new(u64_at(header, 24)),
            stamp: UtcMillis::new(u64_at(header, 32)),
        })
    }

    /// Reads the fixed part of the frame at the front of `bytes` and checks the whole frame.
    pub(super) fn check(bytes: &[u8]) -> Result<Self, FrameError> {
        let header = Self::decode(bytes)?;
        let len = header.frame_len();
        let Some(frame) = bytes.get(..len) else {
            return Err(FrameError::Short { need: len, have: bytes.len() });
        };
        let computed = checksum(frame);
        if computed != header.crc && !Mutant::TornTailAccepted.is_on() {
            return Err(FrameError::Checksum { stored: header.crc, computed });
        }
        Ok(header)
    }
}

fn u32_at(bytes: &[u8; FRAME_HEADER], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; FRAME_HEADER], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

fn checksum(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[..CHECKSUM_AT]), &frame[CHECKSUM_END..])
}

impl Frame {
    /// A leader's new entry: its stamp and checksum are set when it is appended.
    pub fn unsealed(index: LogIndex, term: Term, kind: FrameKind, body: Bytes) -> Self {
        Self { index, term, kind, seal: None, body, position: LogPosition::ZERO }
    }

    /// Bytes that the frame takes in the log.
    pub fn encoded_len(&self) -> usize {
        FRAME_HEADER + self.body.len()
    }

    /// Where the body starts in the log.
    pub fn body_position(&self) -> LogPosition {
        self.position.plus(FRAME_HEADER as u64)
    }

    /// Where the next frame starts in the log.
    pub(super) fn end(&self) -> LogPosition {
        self.position.plus(self.encoded_len() as u64)
    }

    /// Appends the frame's bytes to `out`. Panics if the frame is unsealed.
    pub fn encode(&self, out: &mut BytesMut) {
        let seal = self.seal.expect("a frame is sealed before it is encoded");
        out.reserve(self.encoded_len());
        out.put_slice(&self.header(seal).encode());
        out.put_slice(&self.body);
    }

    /// Reads the frame at the front of `bytes`, checks it whole, and tells how many bytes it
    /// takes. The body is a slice of `bytes`. The position is unknown here and stays zero.
    pub fn decode(bytes: &Bytes) -> Result<(Self, usize), FrameError> {
        Ok(Self::of(Header::check(bytes)?, bytes))
    }

    /// The same for bytes whose checksum was found good before, or was written by this process.
    pub(super) fn known(bytes: &Bytes) -> Result<(Self, usize), FrameError> {
        let header = Header::decode(bytes)?;
        let len = header.frame_len();
        if len > bytes.len() {
            return Err(FrameError::Short { need: len, have: bytes.len() });
        }
        Ok(Self::of(header, bytes))
    }

    fn of(header: Header, bytes: &Bytes) -> (Self, usize) {
        let len = header.frame_len();
        let frame = Self {
            index: header.index,
            term: header.term,
            kind: header.kind,
            seal: Some(Seal { stamp: header.stamp, crc: header.crc }),
            body: bytes.slice(FRAME_HEADER..len),
            position: LogPosition::ZERO,
        };
        (frame, len)
    }

    /// Sets stamp and checksum: done once, by the leader, in index order (rule R2).
    pub(super) fn close(&mut self, stamp: UtcMillis) {
        assert!(self.seal.is_none(), "entry {} is sealed already", self.index);
        let header = self.header(Seal { stamp, crc: 0 }).encode();
        let fixed = crc32c::crc32c(&header[..CHECKSUM_AT]);
        let fixed = crc32c::crc32c_append(fixed, &header[CHECKSUM_END..]);
        self.seal = Some(Seal { stamp, crc: crc32c::crc32c_append(fixed, &self.body) });
    }

    fn header(&self, seal: Seal) -> Header {
        Header {
            kind: self.kind,
            body_len: self.body.len(),
            crc: seal.crc,
            index: self.index,
            term: self.term,
            stamp: seal.stamp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(body: &'static [u8]) -> Frame {
        let mut frame = Frame::unsealed(
            LogIndex::new(0x0102),
            Term::new(3),
            FrameKind::Command,
            Bytes::from_static(body),
        );
        frame.close(UtcMillis::new(1_700_000_000_000));
        frame
    }

    fn encoded(frame: &Frame) -> Bytes {
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        out.freeze()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes() {
        // Stored and sent: must never change under format version 1.
        let frame = sealed(b"hello");
        assert_eq!(frame.encoded_len(), 45);
        assert_eq!(
            hex(&encoded(&frame)),
            "524d5146010200000000000556e51f1900000000000001020000000000000003\
             0000018bcfe5680068656c6c6f"
        );
    }

    #[test]
    fn decodes_what_it_encoded_and_leaves_the_rest() {
        let (one, two) = (sealed(b"first"), sealed(b""));
        let mut out = BytesMut::new();
        one.encode(&mut out);
        two.encode(&mut out);
        let bytes = out.freeze();
        let (frame, len) = Frame::decode(&bytes).unwrap();
        assert_eq!((&frame, len), (&one, 45));
        assert_eq!(Frame::decode(&bytes.slice(len..)), Ok((two, 40)));
        let body = frame.body.as_ptr() as usize;
        assert_eq!(body, bytes.as_ptr() as usize + FRAME_HEADER, "no copy");
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let bytes = encoded(&sealed(b"hello"));
        for bit in 0..bytes.len() * 8 {
            let mut rotten = bytes.to_vec();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::decode(&rotten.into()).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            let short = Frame::decode(&bytes.slice(..len));
            assert!(matches!(short, Err(FrameError::Short { .. })), "{len} bytes: {short:?}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let good = encoded(&sealed(b"hello")).to_vec();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Frame::decode(&bytes.into()).unwrap_err()
        };
        assert_eq!(with(0, 0), FrameError::Magic { found: 0x004d_5146 });
        assert_eq!(with(4, 2), FrameError::Version { found: 2 });
        assert_eq!(with(5, 9), FrameError::Kind { found: 9 });
        assert_eq!(with(7, 1), FrameError::Reserved { found: 1 });
        assert_eq!(with(8, 1), FrameError::Length { len: (1 << 24) + 5 });
        assert!(matches!(with(44, 0), FrameError::Checksum { .. }));
    }

    #[test]
    #[should_panic(expected = "sealed before it is encoded")]
    fn an_unsealed_frame_has_no_bytes() {
        let frame = Frame::unsealed(LogIndex::ZERO, Term::ZERO, FrameKind::Blank, Bytes::new());
        frame.encode(&mut BytesMut::new());
    }
}
