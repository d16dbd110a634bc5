//! What the log says: one variant for each fact that an entry can state.
//!
//! What it is: [`Command`] and its parts, [`Reply`] (what applying one answers), and their bytes.
//! Promises: encoded bytes are versioned, ids are persisted and never reused, decoding never
//! panics and never accepts trailing bytes.
//! Never: a deadline (commands carry durations; apply adds the entry's own stamp), a clock, or a
//! decision.

mod broadcast;
mod codec;
mod cursor;
mod delay;
mod delivery;
#[cfg(test)]
mod proptests;
mod publish;
mod reply;
mod retention;
mod retry;
mod schema;
mod transaction;

pub use broadcast::{JoinAt, Leave, Placed, Position};
pub use codec::{COMMAND_VERSION, Coded, CommandError, Reader, Writer};
pub use cursor::{Begin, Reset, Start, StartAt, StoreOffset};
pub use delay::{Schedule, ScheduleItem, Scheduled, TimerKey, TimerOutcome};
pub use delivery::{
    Ack, Checkout, Delivery, GiveUp, Grant, Handle, Hold, Release, Renew, Return, Skip, Take, Unit,
};
pub use publish::{Publish, PublishItem};
pub use reply::{CheckedOut, DeliveryOutcome, Granted, Prepared, Published, Refusal, Reply};
pub use retention::{Relocation, Retention, Trim};
pub use retry::{Backoff, Curve, DeathReason, GROWTH_MAX, Redrive, Redriven, UpdateGroup};
pub use schema::{CreateGroup, CreateTopic, Exhausted, Found, Order, OrderRule, Subscribe};
pub use transaction::{Checked, Decided, Decider, Decision, End, HalfItem, Prepare, Transaction};

use bytes::Bytes;

use crate::base::{GroupId, LogIndex, TopicId, UtcMillis};

/// One fact. The numbers in the codec are persisted and never reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The first entry of a group's life: its secrets. A second one changes nothing.
    Found(Found),
    /// Messages of one request: all of them become visible, or none.
    Publish(Publish),
    /// Hand-outs, acknowledgements and the like that shared one entry, in order.
    Deliveries(Vec<Delivery>),
    CreateTopic(CreateTopic),
    DeleteTopic {
        topic: TopicId,
    },
    CreateGroup(CreateGroup),
    DeleteGroup {
        group: GroupId,
    },
    /// A filter expression that a live member of a group uses on a topic.
    Subscribe(Subscribe),
    /// No live member uses it any more.
    Unsubscribe(Subscribe),
    /// Makes at most `limit` of what is due by this entry's stamp visible.
    Tick {
        limit: u32,
    },
    /// Every replica notes the hash of its state at this entry.
    Audit,
    /// What the group keeps from here on.
    Retain(Retention),
    /// Nothing new is handed out of what lies up to this mark, and cursors move behind it; what is
    /// under way stays (rule R7).
    PurgeIntent {
        mark: LogIndex,
    },
    Relocate(Vec<Relocation>),
    /// The log may go up to this mark, the one of the last intent. Refused while something that is
    /// under way still has its record there.
    PurgeTo {
        mark: LogIndex,
    },
    Trim(Trim),
    /// The topic has so many queues from here on, which are more than before. Message groups stay in
    /// the queues that they have.
    GrowTopic {
        topic: TopicId,
        queues: u32,
    },
    /// Message groups that stood still after a last attempt go on, with the same message and all
    /// its attempts again.
    ResumeLines {
        group: GroupId,
        topic: TopicId,
    },
    /// Messages of one request that become visible later: all of them will, or none.
    Schedule(Schedule),
    /// A delayed message shall not become visible.
    Recall(TimerKey),
    /// A delayed message shall become visible at another time.
    Reschedule {
        timer: TimerKey,
        due: UtcMillis,
    },
    /// Half messages, which nobody sees before they are committed.
    Prepare(Prepare),
    End(End),
    /// Producers were asked what became of these.
    Check(Vec<Checked>),
    /// Whoever is to be asked about it is asked again, from the first check on.
    Resume(Transaction),
    Redrive(Redrive),
    UpdateGroup(UpdateGroup),
    /// An instance that sees everything lives, and is so far.
    Position(Position),
    Leave(Leave),
    Start(Start),
    Reset(Reset),
    /// Nothing is handed out to the group while it is paused; all else goes on.
    Pause {
        group: GroupId,
        paused: bool,
    },
    StoreOffset(StoreOffset),
    /// Live members of a group use different filters on a topic.
    MembersDiffer {
        group: GroupId,
        topic: TopicId,
    },
}

impl Command {
    /// The bytes that an entry carries.
    pub fn encode(&self) -> Bytes {
        codec::encode(self)
    }

    /// Reads what an entry carries; records are slices of `bytes`, not copies.
    pub fn decode(bytes: &Bytes) -> Result<Self, CommandError> {
        codec::decode(bytes)
    }
}
