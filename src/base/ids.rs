//! Ids that the log hands out, and ids of the machines that keep it.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// One replica for ever: a wiped disk comes back under another id. Counts from 1.
    NodeId(u64)
}
id! {
    /// A broker group within a cluster, derived from its name ([`BrokerGroupName::id`]).
    ///
    /// [`BrokerGroupName::id`]: super::BrokerGroupName::id
    BrokerGroupId(u32)
}
id! {
    /// One incarnation of a topic name. Never reused; 0 is no topic.
    TopicId(u64)
}
id! {
    /// One incarnation of a consumer group name. Never reused; 0 is no group.
    GroupId(u64)
}
id! {
    /// A queue of a topic, from 0.
    QueueId(u32)
}
id! {
    /// One hand-out of messages to one consumer: counted by the machine, never reused.
    CheckoutId(u64)
}

/// Drawn once when a broker group is founded; keeps nodes of different clusters apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(u128);

impl ClusterId {
    pub const fn new(value: u128) -> Self {
        Self(value)
    }

    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
