//! What a request may hold, checked before anything is done with it.
//!
//! The numbers are those of RocketMQ's proxy (`ProxyConfig`, `SendMessageActivity`), which clients
//! rely on; where it has none, and a value would be stored, ours are marked. Every refusal names
//! the limit and the value.

use crate::base::{GroupName, Millis, TopicName};
use crate::broker::FilterText;
use crate::message::RESERVED_PROPERTY_NAMES;
use crate::wire::rocketmq::{self as v2, Code};

use super::status::{Refused, bad_group, bad_topic};

/// Bytes of a body as it is received.
pub(super) const BODY_MAX: usize = 4 * 1024 * 1024;
pub(super) const PROPERTIES_MAX: usize = 128;
/// Bytes of names and values of user properties, tag and keys together.
pub(super) const PROPERTY_BYTES_MAX: usize = 16 * 1024;
/// Bytes; this length itself is too long.
pub(super) const MESSAGE_GROUP_END: usize = 64;
/// Bytes. Ours; official ids have 34.
pub(super) const MESSAGE_ID_MAX: usize = 255;
/// Bytes. Ours; a W3C trace context has 55.
pub(super) const TRACE_CONTEXT_MAX: usize = 1024;
/// Bytes. Ours; longer than any host name.
pub(super) const BORN_HOST_MAX: usize = 255;
/// Bytes. Ours; clients use a UUID.
pub(super) const ATTEMPT_ID_MAX: usize = 255;
/// Messages in one request. Ours: what one entry of the log is to hold.
pub(super) const MESSAGES_MAX: usize = 1024;
/// Messages handed out at once.
pub(super) const BATCH_MAX: u32 = 32;
/// Acknowledgements in one request. Ours; clients send one.
pub(super) const ACKS_MAX: usize = 1024;
const RECOVERY_MAX_SECS: i64 = 3600;
const INVISIBLE_MIN: Millis = Millis::from_secs(10);
const INVISIBLE_MAX: Millis = Millis::from_secs(12 * 60 * 60);
const CLIENT_PROPERTIES_MAX: usize = 32;
const CLIENT_PROPERTY_KEY_MAX: usize = 64;
const CLIENT_PROPERTY_VALUE_MAX: usize = 256;
const CLIENT_PROPERTY_BYTES_MAX: usize = 4 * 1024;
const CLIENT_PROPERTY_RESERVED_PREFIX: &str = "rocketmq.";

pub(super) fn topic(resource: Option<&v2::Resource>) -> Result<TopicName, Refused> {
    TopicName::new(resource.map_or("", |resource| &resource.name)).map_err(bad_topic)
}

pub(super) fn group(resource: Option<&v2::Resource>) -> Result<GroupName, Refused> {
    GroupName::new(resource.map_or("", |resource| &resource.name)).map_err(bad_group)
}

/// The messages of one request: their number, and that they share one topic. Answers the topic.
pub(super) fn messages(messages: &[v2::Message]) -> Result<TopicName, Refused> {
    let corrupted = |text: String| Refused::new(Code::MessageCorrupted, text);
    let Some(first) = messages.first() else {
        return Err(corrupted("the request holds no message; at least 1 is needed".into()));
    };
    if messages.len() > MESSAGES_MAX {
        return Err(corrupted(too_many("messages", messages.len(), MESSAGES_MAX)));
    }
    let name = topic(first.topic.as_ref())?;
    if let Some(other) = messages.iter().find(|message| message.topic != first.topic) {
        let other = other.topic.as_ref().map_or("none", |topic| &topic.name);
        return Err(corrupted(format!(
            "the messages of one request must have one topic; found {name} and {other}"
        )));
    }
    Ok(name)
}

/// One message, in the order in which RocketMQ's proxy checks it. How far ahead a delivery may be
/// is the broker's word.
pub(super) fn message(message: &v2::Message) -> Result<(), Refused> {
    let none = v2::SystemProperties::default();
    let system = message.system_properties.as_ref().unwrap_or(&none);
    body(message.body.len())?;
    properties(message, system)?;
    if let Some(tag) = system.tag.as_deref() {
        self::tag(tag)?;
    }
    system.keys.iter().try_for_each(|key| self::key(key))?;
    if let Some(group) = system.message_group.as_deref() {
        message_group(group)?;
    }
    message_id(&system.message_id)?;
    message_type(system.message_type)?;
    one_kind(system)?;
    if let Some(at) = &system.delivery_timestamp {
        delivery_timestamp(at)?;
    }
    if let Some(number) = system.priority {
        priority(number)?;
    }
    if let Some(duration) = &system.orphaned_transaction_recovery_duration
        && system.message_type == i32::from(v2::MessageType::Transaction)
    {
        recovery_duration(duration)?;
    }
    stored_texts(system)
}

fn body(len: usize) -> Result<(), Refused> {
    if len == 0 {
        let text = format!("the body has 0 bytes; 1 to {BODY_MAX} are allowed");
        return Err(Refused::new(Code::MessageBodyEmpty, text));
    }
    if len > BODY_MAX {
        let text = too_long("body", len, BODY_MAX);
        return Err(Refused::new(Code::MessageBodyTooLarge, text));
    }
    Ok(())
}

fn properties(message: &v2::Message, system: &v2::SystemProperties) -> Result<(), Refused> {
    let too_large = |text: String| Refused::new(Code::MessagePropertiesTooLarge, text);
    let user = &message.user_properties;
    if user.len() > PROPERTIES_MAX {
        return Err(too_large(too_many("user properties", user.len(), PROPERTIES_MAX)));
    }
    let bytes = user.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
        + system.tag.as_ref().map_or(0, String::len)
        + system.keys.iter().map(String::len).sum::<usize>();
    if bytes > PROPERTY_BYTES_MAX {
        let what = "set of user properties, tag and keys";
        return Err(too_large(too_long(what, bytes, PROPERTY_BYTES_MAX)));
    }
    for (key, value) in user {
        let illegal = |text: String| Refused::new(Code::IllegalMessagePropertyKey, text);
        if RESERVED_PROPERTY_NAMES.contains(&key.as_str()) {
            return Err(illegal(format!("the property name {key} is reserved for the system")));
        }
        printable("property name", key).map_err(illegal)?;
        printable(&format!("value of property {key}"), value).map_err(illegal)?;
    }
    Ok(())
}

fn tag(tag: &str) -> Result<(), Refused> {
    let illegal = |text: String| Refused::new(Code::IllegalMessageTag, text);
    not_only_space("tag", tag).and_then(|()| printable("tag", tag)).map_err(illegal)?;
    if tag.contains('|') {
        return Err(illegal(format!("the tag {tag:?} contains '|', which separates tags")));
    }
    Ok(())
}

fn key(key: &str) -> Result<(), Refused> {
    not_only_space("key", key)
        .and_then(|()| printable("key", key))
        .map_err(|text| Refused::new(Code::IllegalMessageKey, text))
}

fn message_group(group: &str) -> Result<(), Refused> {
    let illegal = |text: String| Refused::new(Code::IllegalMessageGroup, text);
    if group.len() >= MESSAGE_GROUP_END {
        return Err(illegal(too_long("message group", group.len(), MESSAGE_GROUP_END - 1)));
    }
    not_only_space("message group", group)
        .and_then(|()| printable("message group", group))
        .map_err(illegal)
}

fn message_id(id: &str) -> Result<(), Refused> {
    let illegal = |text: String| Refused::new(Code::IllegalMessageId, text);
    if id.trim().is_empty() {
        return Err(illegal("the message id is blank; it must not be".into()));
    }
    if id.len() > MESSAGE_ID_MAX {
        return Err(illegal(too_long("message id", id.len(), MESSAGE_ID_MAX)));
    }
    printable("message id", id).map_err(illegal)
}

fn message_type(number: i32) -> Result<(), Refused> {
    match v2::MessageType::try_from(number) {
        Ok(_) => Ok(()),
        Err(_) => {
            let text = format!("the message type is {number}; 0 to 6 are known");
            Err(Refused::new(Code::BadRequest, text))
        }
    }
}

/// What makes a message of one kind excludes what makes it of another: official clients refuse such
/// a message too, and its order would be silently wrong, since a message that is delayed, or not
/// decided, takes its place among the others only then.
fn one_kind(system: &v2::SystemProperties) -> Result<(), Refused> {
    let group = system.message_group.as_deref().filter(|group| !group.is_empty());
    let transaction = system.message_type == i32::from(v2::MessageType::Transaction);
    let delayed = system.delivery_timestamp.is_some();
    let conflict = |one: &str, other: &str| {
        let text = format!("the message has {one} and {other}; send it with one of them");
        Err(Refused::new(Code::MessagePropertyConflictWithType, text))
    };
    if let Some(group) = group {
        let group = format!("a message group, {group},");
        if transaction {
            let text = format!(
                "the message has {group} and is transactional; leave the message group out, or send \
                 it as a message in order"
            );
            return Err(Refused::new(Code::MessagePropertyConflictWithType, text));
        }
        if delayed {
            return conflict(&group, "a delivery timestamp");
        }
    }
    let Some(priority) = system.priority else { return Ok(()) };
    let priority = format!("a priority, {priority},");
    match group {
        Some(group) => conflict(&priority, &format!("a message group, {group}")),
        None if delayed => conflict(&priority, "a delivery timestamp"),
        None => Ok(()),
    }
}

fn delivery_timestamp(at: &prost_types::Timestamp) -> Result<(), Refused> {
    let illegal = |text: String| Refused::new(Code::IllegalDeliveryTime, text);
    if !(0..1_000_000_000).contains(&at.nanos) {
        return Err(illegal(format!(
            "the delivery timestamp has {} nanoseconds; 0 to 999999999 are allowed",
            at.nanos
        )));
    }
    Ok(())
}

fn priority(number: i32) -> Result<(), Refused> {
    if number >= 0 {
        return Ok(());
    }
    let text = format!("the priority is {number}; 0 to {} are allowed", i32::MAX);
    Err(Refused::new(Code::BadRequest, text))
}

fn recovery_duration(duration: &prost_types::Duration) -> Result<(), Refused> {
    if (0..=RECOVERY_MAX_SECS).contains(&duration.seconds) {
        return Ok(());
    }
    let text = format!(
        "the orphaned transaction recovery duration is {} s; 0 to {RECOVERY_MAX_SECS} are allowed",
        duration.seconds
    );
    Err(Refused::new(Code::BadRequest, text))
}

/// Texts that RocketMQ takes unseen, though it stores them with the others.
fn stored_texts(system: &v2::SystemProperties) -> Result<(), Refused> {
    let bad = |text: String| Refused::new(Code::BadRequest, text);
    let trace = system.trace_context.as_deref().unwrap_or_default();
    for (what, text, max) in [
        ("trace context", trace, TRACE_CONTEXT_MAX),
        ("born host", &system.born_host, BORN_HOST_MAX),
    ] {
        if text.len() > max {
            return Err(bad(too_long(what, text.len(), max)));
        }
        printable(what, text).map_err(bad)?;
    }
    Ok(())
}

/// How long received messages stay hidden, when the client decides.
pub(super) fn invisible_on_receive(
    duration: Option<&prost_types::Duration>,
) -> Result<Millis, Refused> {
    invisible(duration, INVISIBLE_MIN)
}

/// How long a message stays hidden from now on; zero gives it back at once.
pub(super) fn invisible_on_change(
    duration: Option<&prost_types::Duration>,
) -> Result<Millis, Refused> {
    invisible(duration, Millis::ZERO)
}

fn invisible(duration: Option<&prost_types::Duration>, min: Millis) -> Result<Millis, Refused> {
    let zero = prost_types::Duration::default();
    let duration = duration.unwrap_or(&zero);
    match super::convert::millis(duration) {
        Some(millis) if (min..=INVISIBLE_MAX).contains(&millis) => Ok(millis),
        _ => Err(Refused::new(
            Code::IllegalInvisibleTime,
            format_args!(
                "the invisible duration is {} s and {} ns; {min} to {INVISIBLE_MAX} are allowed",
                duration.seconds, duration.nanos
            ),
        )),
    }
}

/// How many messages to hand out. More than the limit is lowered to it, as in RocketMQ's proxy.
pub(super) fn batch(size: i32) -> Result<u32, Refused> {
    match u32::try_from(size) {
        Ok(size) if size > 0 => Ok(size.min(BATCH_MAX)),
        _ => {
            let text = format!("the batch size is {size}; at least 1 is needed");
            Err(Refused::new(Code::BadRequest, text))
        }
    }
}

pub(super) fn attempt_id(id: Option<&str>) -> Result<(), Refused> {
    let len = id.map_or(0, str::len);
    if len > ATTEMPT_ID_MAX {
        let text = too_long("attempt id", len, ATTEMPT_ID_MAX);
        return Err(Refused::new(Code::BadRequest, text));
    }
    Ok(())
}

pub(super) fn acks(count: usize) -> Result<(), Refused> {
    let bad = |text: String| Err(Refused::new(Code::BadRequest, text));
    match count {
        0 => bad(format!("the request holds 0 entries; 1 to {ACKS_MAX} are allowed")),
        count if count > ACKS_MAX => bad(too_many("entries", count, ACKS_MAX)),
        _ => Ok(()),
    }
}

/// The labels of a client in its settings.
pub(super) fn client_properties<'a>(
    properties: impl ExactSizeIterator<Item = (&'a String, &'a String)>,
) -> Result<(), Refused> {
    let invalid = |text: String| Err(Refused::new(Code::InvalidClientProperties, text));
    if properties.len() > CLIENT_PROPERTIES_MAX {
        let text = too_many("client properties", properties.len(), CLIENT_PROPERTIES_MAX);
        return invalid(text);
    }
    let mut bytes = 0;
    for (key, value) in properties {
        bytes += key.len() + value.len();
        let letter = key.starts_with(|first: char| first.is_ascii_alphabetic());
        let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if key.len() > CLIENT_PROPERTY_KEY_MAX {
            return invalid(too_long("client property key", key.len(), CLIENT_PROPERTY_KEY_MAX));
        }
        if !letter || !key.chars().all(rest) {
            return invalid(format!(
                "the client property key {key:?} must be a letter, then letters, digits, _ . or -"
            ));
        }
        if key.starts_with(CLIENT_PROPERTY_RESERVED_PREFIX) {
            return invalid(format!(
                "the client property key {key} starts with {CLIENT_PROPERTY_RESERVED_PREFIX}, \
                 which is reserved"
            ));
        }
        if value.len() > CLIENT_PROPERTY_VALUE_MAX {
            let max = CLIENT_PROPERTY_VALUE_MAX;
            return invalid(too_long("client property value", value.len(), max));
        }
    }
    if bytes > CLIENT_PROPERTY_BYTES_MAX {
        return invalid(too_long("set of client properties", bytes, CLIENT_PROPERTY_BYTES_MAX));
    }
    Ok(())
}

/// Which messages a consumer wants; a mistake is refused with its place. Without an expression, and
/// with one of tags that is empty, it wants everything; SQL must not be blank.
pub(super) fn filter(expression: Option<&v2::FilterExpression>) -> Result<FilterText, Refused> {
    let Some(expression) = expression else { return Ok(FilterText::Tags(String::new())) };
    let text = expression.expression.clone();
    let filter = match v2::FilterType::try_from(expression.r#type) {
        Ok(v2::FilterType::Unspecified | v2::FilterType::Tag) => FilterText::Tags(text),
        Ok(v2::FilterType::Sql) => FilterText::Sql(text),
        Err(_) => {
            let known = "1 (TAG) and 2 (SQL) are known";
            let text = format!("the filter type is {}; {known}", expression.r#type);
            return Err(Refused::new(Code::IllegalFilterExpression, text));
        }
    };
    filter.check().map_err(Refused::from)?;
    Ok(filter)
}

fn too_long(what: &str, len: usize, max: usize) -> String {
    format!("the {what} has {len} bytes; at most {max} are allowed")
}

fn too_many(what: &str, count: usize, max: usize) -> String {
    format!("there are {count} {what}; at most {max} are allowed")
}

fn not_only_space(what: &str, text: &str) -> Result<(), String> {
    if !text.is_empty() && text.trim().is_empty() {
        return Err(format!("the {what} {text:?} is nothing but white space"));
    }
    Ok(())
}

/// No control characters: U+0000 to U+001F and U+007F to U+009F.
fn printable(what: &str, text: &str) -> Result<(), String> {
    match text.chars().position(char::is_control) {
        Some(at) => Err(format!("the {what} {text:?} has a control character at position {at}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
