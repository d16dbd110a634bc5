//! Message and its parts as values.

use bytes::Bytes;

use crate::base::{TopicName, UtcMillis};

/// What a message asks of the broker. The numbers are persisted and never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MessageKind {
    #[default]
    Normal = 1,
    Fifo = 2,
    Delay = 3,
    Transaction = 4,
    Priority = 5,
}

impl MessageKind {
    /// In the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Normal, Self::Fifo, Self::Delay, Self::Transaction, Self::Priority];

    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Normal),
            2 => Some(Self::Fifo),
            3 => Some(Self::Delay),
            4 => Some(Self::Transaction),
            5 => Some(Self::Priority),
            _ => None,
        }
    }

    pub const fn byte(self) -> u8 {
        self as u8
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Fifo => "fifo",
            Self::Delay => "delay",
            Self::Transaction => "transaction",
            Self::Priority => "priority",
        }
    }
}

/// How the producer encoded the body. The broker stores and delivers it as it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyEncoding {
    #[default]
    Identity,
    Gzip,
}

/// One message as its producer wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: TopicName,
    pub body: Bytes,
    pub encoding: BodyEncoding,
    /// Unique per message, chosen by the client; the same on its own retries of one send.
    pub message_id: String,
    pub kind: MessageKind,
    pub tag: Option<String>,
    pub keys: Vec<String>,
    /// User properties, sorted by name.
    pub properties: Vec<(String, String)>,
    pub message_group: Option<String>,
    pub born: UtcMillis,
    pub born_host: String,
    pub trace_context: Option<String>,
    /// Not before this, where the producer said so.
    pub deliver_at: Option<UtcMillis>,
    /// What is higher goes first, from 0 to [`PRIORITY_MAX`]; in topics that take priorities.
    pub priority: Option<u32>,
}

/// The largest priority: a signed number in the protocol.
pub const PRIORITY_MAX: u32 = i32::MAX.unsigned_abs();
