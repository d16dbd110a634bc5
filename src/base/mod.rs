//! The words of RaftMQ: ids and checked names, the three number lines, time and sizes.
//!
//! Promises: every value that exists is valid, and no two number lines mix.
//! Never: I/O, clocks, or knowledge of any other room.

mod durability;
mod ids;
mod mutant;
mod name;
mod offset;
mod size;
mod time;

pub use durability::{Durability, DurabilityError};
pub use ids::{BrokerGroupId, CheckoutId, ClusterId, GroupId, NodeId, QueueId, TopicId};
pub use mutant::Mutant;
pub use name::{
    BrokerGroupName, ClientId, GROUP_NAME_MAX, GroupName, NameError, TOPIC_NAME_MAX, TopicName,
};
pub use offset::{LogIndex, LogPosition, QueueOffset, Term};
pub use size::ByteSize;
pub use time::{DELAY_LEVELS, Millis, MillisError, UtcMillis, delay_level};
