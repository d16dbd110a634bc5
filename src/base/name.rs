//! Names that clients choose, checked where they enter.
//!
//! The limits are those of RocketMQ's `Validators` and `TopicValidator`, which its clients rely on.

use std::fmt;
use std::sync::Arc;

use super::BrokerGroupId;

/// Why a text is not a name of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a {kind} name must not be blank")]
    Blank { kind: &'static str },
    #[error("the {kind} name has {len} bytes; at most {max} are allowed")]
    TooLong { kind: &'static str, len: usize, max: usize },
    #[error(
        "the {kind} name {name:?} contains {found:?}; allowed are letters, digits, _ - % and |"
    )]
    Character { kind: &'static str, name: String, found: char },
    #[error("the {kind} name {name:?} is reserved for the system")]
    Reserved { kind: &'static str, name: String },
}

/// Longest topic name a client may use, in bytes.
pub const TOPIC_NAME_MAX: usize = 127;
/// Longest consumer group name, in bytes.
pub const GROUP_NAME_MAX: usize = 120;
/// Longest name of a topic that the broker derives from a group (`%DLQ%…`), in bytes.
const DERIVED_TOPIC_NAME_MAX: usize = 255;
const CLIENT_ID_MAX: usize = 255;

const RESERVED_TOPICS: [&str; 10] = [
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
];
const RESERVED_TOPIC_PREFIX: &str = "rmq_sys_";
const RESERVED_GROUP_PREFIX: &str = "CID_RMQ_SYS_";
const DERIVED_TOPIC_PREFIXES: [&str; 2] = ["%RETRY%", DEAD_LETTERS_PREFIX];
const DEAD_LETTERS_PREFIX: &str = "%DLQ%";
const _: () = assert!(DEAD_LETTERS_PREFIX.len() + GROUP_NAME_MAX <= DERIVED_TOPIC_NAME_MAX);

fn check(kind: &'static str, name: &str, max: usize) -> Result<(), NameError> {
    if name.trim().is_empty() {
        return Err(NameError::Blank { kind });
    }
    if name.len() > max {
        return Err(NameError::TooLong { kind, len: name.len(), max });
    }
    let odd = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '%' | '|'));
    match name.chars().find(odd) {
        Some(found) => Err(NameError::Character { kind, name: name.to_owned(), found }),
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name! {
    /// A topic: 1 to 127 bytes of letters, digits, `_ - % |` (255 when the broker derived it).
    TopicName
}
name! {
    /// A consumer group: 1 to 120 bytes of the same characters.
    GroupName
}
name! {
    /// A broker group, which clients see as part of broker names.
    BrokerGroupName
}
name! {
    /// What a client calls itself: any text of 1 to 255 bytes.
    ClientId
}

impl TopicName {
    /// A topic that a client names. System topics are refused.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let derived = DERIVED_TOPIC_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        check("topic", name, if derived { DERIVED_TOPIC_NAME_MAX } else { TOPIC_NAME_MAX })?;
        if RESERVED_TOPICS.contains(&name) || name.starts_with(RESERVED_TOPIC_PREFIX) {
            return Err(NameError::Reserved { kind: "topic", name: name.to_owned() });
        }
        Ok(Self(name.into()))
    }

    /// Whether this is the name of a topic for dead letters, of whichever group.
    pub fn is_for_dead_letters(&self) -> bool {
        self.0.starts_with(DEAD_LETTERS_PREFIX)
    }

    /// The group whose dead letters a topic of this name has; `None` for any other topic.
    pub fn dead_letters_of(&self) -> Option<GroupName> {
        GroupName::new(self.0.strip_prefix(DEAD_LETTERS_PREFIX)?).ok()
    }
}

impl GroupName {
    /// A consumer group that a client names. System groups are refused.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check("consumer group", name, GROUP_NAME_MAX)?;
        if name.starts_with(RESERVED_GROUP_PREFIX) {
            return Err(NameError::Reserved { kind: "consumer group", name: name.to_owned() });
        }
        Ok(Self(name.into()))
    }

    /// The topic of the group's dead letters, as RocketMQ names it.
    pub fn dead_letters(&self) -> TopicName {
        TopicName(format!("{DEAD_LETTERS_PREFIX}{}", self.0).into())
    }
}

impl BrokerGroupName {
    pub fn new(name: &str) -> Result<Self, NameError> {
        check("broker group", name, GROUP_NAME_MAX)?;
        Ok(Self(name.into()))
    }

    /// The group's number on disk and between nodes: FNV-1a, 32 bit, of the name. It hangs on the
    /// name alone, so that neither the order of a list nor a group added later changes it.
    pub fn id(&self) -> BrokerGroupId {
        const OFFSET: u32 = 0x811c_9dc5;
        const PRIME: u32 = 0x0100_0193;
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(PRIME);
        BrokerGroupId::new(self.0.bytes().fold(OFFSET, step))
    }
}

impl ClientId {
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.trim().is_empty() {
            return Err(NameError::Blank { kind: "client id" });
        }
        if name.len() > CLIENT_ID_MAX {
            return Err(NameError::TooLong {
                kind: "client id",
                len: name.len(),
                max: CLIENT_ID_MAX,
            });
        }
        Ok(Self(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_follow_the_limits_of_the_clients() {
        assert!(TopicName::new("orders-2_%|x").is_ok());
        assert!(TopicName::new(&"t".repeat(127)).is_ok());
        assert_eq!(
            TopicName::new(&"t".repeat(128)),
            Err(NameError::TooLong { kind: "topic", len: 128, max: 127 })
        );
        assert!(TopicName::new(&format!("%DLQ%{}", "g".repeat(120))).is_ok());
        assert_eq!(TopicName::new(" "), Err(NameError::Blank { kind: "topic" }));
        assert!(matches!(TopicName::new("a b"), Err(NameError::Character { found: ' ', .. })));
        assert!(matches!(TopicName::new("TBW102"), Err(NameError::Reserved { .. })));
        assert!(matches!(TopicName::new("rmq_sys_x"), Err(NameError::Reserved { .. })));
    }

    #[test]
    fn a_broker_groups_number_is_that_of_its_name_for_ever() {
        let id = |name: &str| BrokerGroupName::new(name).unwrap().id().get();
        // Published test values of FNV-1a for "a" and "foobar".
        assert_eq!((id("a"), id("foobar")), (0xe40c_292c, 0xbf9c_f968));
        assert_ne!(id("group-0"), id("group-1"));
    }

    #[test]
    fn group_names_follow_the_limits_of_the_clients() {
        assert!(GroupName::new(&"g".repeat(120)).is_ok());
        assert!(matches!(GroupName::new(&"g".repeat(121)), Err(NameError::TooLong { .. })));
        assert!(matches!(GroupName::new("CID_RMQ_SYS_a"), Err(NameError::Reserved { .. })));
    }

    #[test]
    fn every_group_has_a_name_for_its_dead_letters() {
        let longest = GroupName::new(&"g".repeat(GROUP_NAME_MAX)).unwrap();
        let topic = longest.dead_letters();
        assert_eq!(TopicName::new(topic.as_str()), Ok(topic.clone()));
        assert_eq!(topic.dead_letters_of(), Some(longest));
        assert!(topic.is_for_dead_letters());
        let other = TopicName::new("%RETRY%g").unwrap();
        assert!(!other.is_for_dead_letters() && other.dead_letters_of().is_none());
    }
}
