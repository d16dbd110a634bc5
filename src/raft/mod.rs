//! One replica of a broker group, and the group as its clients see it.
//!
//! What it is: [`Group`], which puts commands into the replicated log, wherever its leader is, and
//! answers what applying them said. The only room that names openraft.
//! Promises: a reply stands for an entry that a majority has on disk and that is applied here or at
//! the leader; "not sent" and "not known" are different answers (rule R20); an error of the disk
//! ends the replica, with its reason in [`Group::fatal`].
//! Never: openraft's types in a public signature, a decision about messages, a retry of what could
//! happen twice.
//! Start reading at `group`, then `propose`; `types`, `log_store`, `state_machine` and `network`
//! are openraft's side.

mod admission;
mod awake;
mod belonging;
mod bootstrap;
mod checkpoints;
mod clock;
mod dial;
mod ending;
mod floor;
mod group;
mod inflow;
mod leadership;
mod log_store;
mod marks;
mod members;
mod network;
mod opening;
mod options;
mod peer_service;
mod peers;
mod propose;
mod read;
mod refill;
mod room;
mod snapshot;
mod state_machine;
#[cfg(test)]
mod tests;
mod transfer;
mod types;
mod versions;
mod vitals;

pub use belonging::Belonging;
pub use bootstrap::StartError;
pub use dial::{Dial, Net, Stream};
pub use group::{Group, Role, Status};
pub use leadership::Leadership;
pub use members::{ChangeError, MemberChange, Roster};
pub use opening::OpenError;
pub use options::{ADMISSION_MAX, ADMISSION_MIN, Member, Options, OptionsError, Timing};
pub use peer_service::peer_service;
pub use propose::{AskError, ProposeError};
pub use read::BarrierError;
pub use refill::{RefillError, refill};
pub use room::Pressure;
pub use transfer::TransferError;
pub use vitals::Health;

use async_trait::async_trait;
use bytes::Bytes;

use crate::base::NodeId;
use crate::machine::Effect;

/// What another node's [`Group::ask`] is answered with. The bytes are the callers' business.
#[async_trait]
pub trait Asked: Send + Sync {
    async fn answer(&self, from: NodeId, request: Bytes) -> Bytes;
}

/// Hears what applying entries set off, on every replica, in order, once for each batch. Called
/// between two batches, so it must be quick and must not wait.
pub trait EffectSink: Send + Sync {
    fn applied(&self, effects: Vec<Effect>);
}
