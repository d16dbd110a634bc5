//! The property text of a stored record: `name 0x01 value 0x02`, repeated.
//!
//! What RocketMQ has a name for is stored under that name, so that its tools show it; what it
//! cannot express has a name of our own. User properties share the text, so reserved names are
//! refused for them.

use bytes::{BufMut, Bytes, BytesMut};

use super::{Message, MessageKind, PRIORITY_MAX};
use crate::base::UtcMillis;

const NAME_END: char = '\u{1}';
const VALUE_END: char = '\u{2}';

/// The property length is a signed 16-bit number for RocketMQ's clients.
pub(super) const PROPERTIES_MAX: usize = 32_767;

const UNIQ_KEY: &str = "UNIQ_KEY";
const KEYS: &str = "KEYS";
const TAGS: &str = "TAGS";
const SHARDING_KEY: &str = "__SHARDINGKEY";
const BORN_HOST: &str = "__BORNHOST";
const TRACE_CONTEXT: &str = "TRACE_CONTEXT";
const HALF_MESSAGE: &str = "TRAN_MSG";
/// When a delayed message becomes visible, in milliseconds since 1970.
const DELIVER_AT: &str = "TIMER_DELIVER_MS";
const PRIORITY: &str = "_SYS_MSG_PRIORITY_";
/// Ours: the kind by name, of messages that are not normal.
const KIND: &str = "__KIND";
/// Ours: the length of each key in bytes, comma between, where splitting [`KEYS`] at its spaces
/// would give other keys than were joined.
const KEY_LENGTHS: &str = "__KEYLENGTHS";

/// Names that only the system gives: those of RocketMQ's `MessageConst` that its gRPC proxy refuses,
/// and the ones this room stores under. A user property of such a name is refused.
pub const RESERVED_PROPERTY_NAMES: [&str; 61] = [
    UNIQ_KEY,
    KEYS,
    TAGS,
    SHARDING_KEY,
    BORN_HOST,
    TRACE_CONTEXT,
    HALF_MESSAGE,
    DELIVER_AT,
    PRIORITY,
    KIND,
    KEY_LENGTHS,
    "TRACE_ON",
    "MSG_REGION",
    "WAIT",
    "DELAY",
    "RETRY_TOPIC",
    "REAL_TOPIC",
    "REAL_QID",
    "PGROUP",
    "MIN_OFFSET",
    "MAX_OFFSET",
    "BUYER_ID",
    "ORIGIN_MESSAGE_ID",
    "TRANSFER_FLAG",
    "CORRECTION_FLAG",
    "MQ2_FLAG",
    "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES",
    "CONSUME_START_TIME",
    "POP_CK",
    "POP_CK_OFFSET",
    "1ST_POP_TIME",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "DUP_INFO",
    "EXTEND_UNIQ_INFO",
    "INSTANCE_ID",
    "CORRELATION_ID",
    "REPLY_TO_CLIENT",
    "TTL",
    "ARRIVE_TIME",
    "PUSH_REPLY_TIME",
    "CLUSTER",
    "MSG_TYPE",
    "INNER_MULTI_QUEUE_OFFSET",
    "INNER_NUM",
    "INNER_BASE",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
    "TIMER_OUT_MS",
    "TIMER_DEL_UNIQKEY",
    "TIMER_DELAY_LEVEL",
    "BORN_TIMESTAMP",
    "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID",
    "TRANSACTION_CHECK_TIMES",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "__CRC32#",
    "__LITE_TOPIC",
];

/// Why properties have no text, or a text no properties.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PropertiesError {
    #[error("the properties take {len} bytes with what the broker adds; at most {max} are allowed")]
    TooLarge { len: usize, max: usize },
    #[error("property {name:?} is reserved for the system; choose another name")]
    Reserved { name: String },
    #[error("property {name:?} contains {found:?}, which separates properties; remove it")]
    Separator { name: String, found: char },
    #[error("the property text is not UTF-8 after {valid} of {len} bytes")]
    Utf8 { valid: usize, len: usize },
    #[error("the property {name} is missing")]
    Missing { name: &'static str },
    #[error("the property __KIND is {found:?}, which names no kind of message")]
    Kind { found: String },
    #[error("the property TIMER_DELIVER_MS is {found:?}, which is no number of milliseconds")]
    DeliverAt { found: String },
    #[error("the property _SYS_MSG_PRIORITY_ is {found:?}; it goes from 0 to {PRIORITY_MAX}")]
    Priority { found: String },
    #[error("the property __KEYLENGTHS is {lengths:?}, which does not fit the keys {keys:?}")]
    KeyLengths { lengths: String, keys: String },
}

/// The property text of a record, to look single properties up by the names that they are stored
/// under.
#[derive(Clone, Debug)]
pub struct StoredProperties(Bytes);

impl StoredProperties {
    pub(super) fn new(bytes: Bytes) -> Result<Self, PropertiesError> {
        check_utf8(&bytes)?;
        Ok(Self(bytes))
    }

    /// The last one of the name counts, as where the whole text is read.
    pub fn get(&self, name: &str) -> Option<&str> {
        // Checked when it was made; reading it once more costs little beside the search.
        let text = std::str::from_utf8(&self.0).unwrap_or_default();
        let mut pieces = text.rsplit(VALUE_END).filter_map(|piece| piece.split_once(NAME_END));
        pieces.find(|(found, _)| *found == name).map(|(_, value)| value)
    }
}

fn check_utf8(bytes: &[u8]) -> Result<&str, PropertiesError> {
    std::str::from_utf8(bytes)
        .map_err(|error| PropertiesError::Utf8 { valid: error.valid_up_to(), len: bytes.len() })
}

/// What the property text says of a message.
#[derive(Debug)]
pub(super) struct Properties {
    pub(super) message_id: String,
    pub(super) kind: MessageKind,
    pub(super) tag: Option<String>,
    pub(super) keys: Vec<String>,
    pub(super) message_group: Option<String>,
    pub(super) born_host: Option<String>,
    pub(super) trace_context: Option<String>,
    pub(super) deliver_at: Option<UtcMillis>,
    pub(super) priority: Option<u32>,
    pub(super) user: Vec<(String, String)>,
}

/// Appends the text, without a length before it; answers how many bytes that were.
pub(super) fn write(message: &Message, out: &mut BytesMut) -> Result<u16, PropertiesError> {
    let start = out.len();
    put(out, UNIQ_KEY, &message.message_id)?;
    put_keys(out, &message.keys)?;
    put_some(out, TAGS, message.tag.as_deref())?;
    put_some(out, SHARDING_KEY, message.message_group.as_deref())?;
    if message.kind != MessageKind::Normal {
        put(out, KIND, message.kind.name())?;
    }
    if message.kind == MessageKind::Transaction {
        put(out, HALF_MESSAGE, "true")?;
    }
    put(out, BORN_HOST, &message.born_host)?;
    put_some(out, TRACE_CONTEXT, message.trace_context.as_deref())?;
    let deliver_at = message.deliver_at.map(|at| at.get().to_string());
    put_some(out, DELIVER_AT, deliver_at.as_deref())?;
    let priority = message.priority.map(|priority| priority.to_string());
    put_some(out, PRIORITY, priority.as_deref())?;
    for (name, value) in &message.properties {
        if RESERVED_PROPERTY_NAMES.contains(&name.as_str()) {
            return Err(PropertiesError::Reserved { name: name.clone() });
        }
        put(out, name, value)?;
    }
    let len = out.len() - start;
    match u16::try_from(len) {
        Ok(short) if len <= PROPERTIES_MAX => Ok(short),
        _ => Err(PropertiesError::TooLarge { len, max: PROPERTIES_MAX }),
    }
}

/// Reads a text. As RocketMQ's own decoder does, it passes over pieces without a separator, and
/// over reserved names that mean nothing here.
pub(super) fn read(bytes: &[u8]) -> Result<Properties, PropertiesError> {
    let text = check_utf8(bytes)?;
    let mut found = Found::default();
    for piece in text.split(VALUE_END) {
        let Some((name, value)) = piece.split_once(NAME_END) else { continue };
        found.take(name, value);
    }
    found.finish()
}

/// Properties as they turn up in the text.
#[derive(Debug, Default)]
struct Found<'text> {
    message_id: Option<&'text str>,
    kind: Option<&'text str>,
    half: bool,
    keys: Option<&'text str>,
    key_lengths: Option<&'text str>,
    tag: Option<&'text str>,
    message_group: Option<&'text str>,
    born_host: Option<&'text str>,
    trace_context: Option<&'text str>,
    deliver_at: Option<&'text str>,
    priority: Option<&'text str>,
    user: Vec<(String, String)>,
}

impl<'text> Found<'text> {
    fn take(&mut self, name: &str, value: &'text str) {
        match name {
            UNIQ_KEY => self.message_id = Some(value),
            KIND => self.kind = Some(value),
            HALF_MESSAGE => self.half = value == "true",
            KEYS => self.keys = Some(value),
            KEY_LENGTHS => self.key_lengths = Some(value),
            TAGS => self.tag = Some(value),
            SHARDING_KEY => self.message_group = Some(value),
            BORN_HOST => self.born_host = Some(value),
            TRACE_CONTEXT => self.trace_context = Some(value),
            DELIVER_AT => self.deliver_at = Some(value),
            PRIORITY => self.priority = Some(value),
            name if RESERVED_PROPERTY_NAMES.contains(&name) => {}
            name => self.user.push((name.to_owned(), value.to_owned())),
        }
    }

    fn finish(self) -> Result<Properties, PropertiesError> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Properties {
            message_id: owned(self.message_id)
                .ok_or(PropertiesError::Missing { name: UNIQ_KEY })?,
            kind: self.kind()?,
            tag: owned(self.tag),
            keys: split_keys(self.keys, self.key_lengths)?,
            message_group: owned(self.message_group),
            born_host: owned(self.born_host),
            trace_context: owned(self.trace_context),
            deliver_at: self.deliver_at.map(deliver_at).transpose()?,
            priority: self.priority.map(priority).transpose()?,
            user: self.user,
        })
    }

    /// Our own word if it is there, else what RocketMQ's proxy concludes.
    fn kind(&self) -> Result<MessageKind, PropertiesError> {
        match self.kind {
            Some(name) => MessageKind::ALL
                .into_iter()
                .find(|kind| kind.name() == name)
                .ok_or_else(|| PropertiesError::Kind { found: name.to_owned() }),
            None if self.half => Ok(MessageKind::Transaction),
            None => Ok(MessageKind::Normal),
        }
    }
}

fn deliver_at(text: &str) -> Result<UtcMillis, PropertiesError> {
    let at = text.parse().map(UtcMillis::new);
    at.map_err(|_| PropertiesError::DeliverAt { found: text.to_owned() })
}

fn priority(text: &str) -> Result<u32, PropertiesError> {
    let known = text.parse().ok().filter(|priority| *priority <= PRIORITY_MAX);
    known.ok_or_else(|| PropertiesError::Priority { found: text.to_owned() })
}

fn put(out: &mut BytesMut, name: &str, value: &str) -> Result<(), PropertiesError> {
    let separator = |c: &char| matches!(*c, NAME_END | VALUE_END);
    if let Some(found) = name.chars().chain(value.chars()).find(separator) {
        return Err(PropertiesError::Separator { name: name.to_owned(), found });
    }
    for text in [name, "\u{1}", value, "\u{2}"] {
        out.put_slice(text.as_bytes());
    }
    Ok(())
}

fn put_some(out: &mut BytesMut, name: &str, value: Option<&str>) -> Result<(), PropertiesError> {
    value.map_or(Ok(()), |value| put(out, name, value))
}

/// Keys joined by a space, as tools search them, and their lengths if the spaces do not tell.
fn put_keys(out: &mut BytesMut, keys: &[String]) -> Result<(), PropertiesError> {
    if keys.is_empty() {
        return Ok(());
    }
    put(out, KEYS, &keys.join(" "))?;
    if keys.iter().any(|key| key.is_empty() || key.contains(' ')) {
        let lengths: Vec<String> = keys.iter().map(|key| key.len().to_string()).collect();
        put(out, KEY_LENGTHS, &lengths.join(","))?;
    }
    Ok(())
}

fn split_keys(keys: Option<&str>, lengths: Option<&str>) -> Result<Vec<String>, PropertiesError> {
    match (keys, lengths) {
        (None, None) => Ok(Vec::new()),
        (Some(keys), None) => {
            Ok(keys.split(' ').filter(|key| !key.is_empty()).map(str::to_owned).collect())
        }
        (keys, Some(lengths)) => {
            let keys = keys.unwrap_or_default();
            cut_keys(keys, lengths).ok_or_else(|| PropertiesError::KeyLengths {
                lengths: lengths.to_owned(),
                keys: keys.to_owned(),
            })
        }
    }
}

/// `None` when the lengths do not add up to the text, or cut a character.
fn cut_keys(keys: &str, lengths: &str) -> Option<Vec<String>> {
    let mut cut = Vec::new();
    let mut rest = Some(keys);
    for length in lengths.split(',') {
        let (key, behind) = rest?.split_at_checked(length.parse().ok()?)?;
        cut.push(key.to_owned());
        rest = match behind.strip_prefix(' ') {
            None if behind.is_empty() => None,
            None => return None,
            more => more,
        };
    }
    rest.is_none().then_some(cut)
}
