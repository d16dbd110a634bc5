//! Messages that become visible together.

use bytes::Bytes;

use crate::base::{QueueId, TopicId};
use crate::message::{MessageIdHash, MessageKind};

/// Messages of one request, for one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    pub topic: TopicId,
    /// Whether a message whose id was seen within the dedup window gets its first outcome again.
    pub dedup: bool,
    pub items: Vec<PublishItem>,
}

/// One message with what apply needs to know of it, so that apply never parses a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishItem {
    pub queue: QueueId,
    pub kind: MessageKind,
    pub id_hash: MessageIdHash,
    pub body_crc: u32,
    pub tag_hash: u32,
    /// 0 when the message has no message group.
    pub group_hash: u64,
    /// The stored record, as [`crate::message::encode_record`] wrote it.
    pub record: Bytes,
    /// Where the record starts, in bytes from the start of the command. Set by decoding; 0 before.
    pub record_at: u32,
}
