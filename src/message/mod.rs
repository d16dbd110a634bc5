//! A message, as values and as bytes.
//!
//! What it is: what producers hand in, the record that the log keeps of it (RocketMQ's own layout,
//! so that known tools can read it), and the hashes that queues and dedup work with.
//! Promises: what was encoded decodes to the same message; decoding never panics.
//! Never: queue offsets or visible stamps; those are decided when an entry is applied.
//! Start reading at [`Message`], then `record`.

mod content;
mod flags;
mod hash;
mod properties;
#[cfg(test)]
mod proptests;
mod record;

pub use content::{BodyEncoding, Message, MessageKind, PRIORITY_MAX};
pub use flags::SysFlag;
pub use hash::{MessageIdHash, body_crc, group_hash, tag_hash};
pub use properties::{PropertiesError, RESERVED_PROPERTY_NAMES, StoredProperties};
pub use record::{RecordError, StoredMessage, decode_record, encode_record, record_properties};
