//! What the log means: the state that applied entries lead to, equal on every replica.
//!
//! What it is: [`Machine`], which takes committed entries in order and answers each with a reply
//! and with [`Effect`]s; [`State`], which brokers read; [`Checkpoint`], from which a restart or a
//! peer goes on.
//! Promises: the same entries give the same state, replies and hashes on every replica, whatever
//! its settings, restarts and crashes; apply reads only the entry and the state, never a queue
//! unit or a log byte; after a restart everything derived is as if it had never stopped.
//! Never: a clock, randomness that could be seen, a task, a sync within apply, or a decision that
//! depends on a local setting.
//! Start reading at `apply`, then `deliveries`, then `checkpoint`.

mod apply;
mod begins;
mod checkpoint;
mod codec;
mod conflicts;
mod consume_queue;
mod dead_letters;
mod cursors;
mod dedup;
mod delay;
mod deliveries;
mod effect;
mod error;
mod extents;
mod groups;
mod hash;
mod head;
mod instances;
mod late;
mod limits;
mod purge;
mod retention;
mod state;
mod store;
mod stored_offsets;
mod subscriptions;
mod timers;
mod topics;
mod transactions;
#[cfg(test)]
mod proptests;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use self::checkpoint::Sections;
use self::store::Store;
use crate::base::{LogIndex, LogPosition, Term, UtcMillis};
use crate::command::Reply;
use crate::env::Env;

pub use self::checkpoint::{Checkpoint, Frozen};
pub use self::conflicts::Conflict;
pub use self::consume_queue::UnitsCursor;
pub use self::dead_letters::DeadLetter;
pub use self::deliveries::{
    CheckoutInfo, HandleState, Lag, QueueView, ReadyMessage, Renewal, ResetPreview, Standing,
};
pub use self::effect::Effect;
pub use self::error::{ApplyError, CheckpointError, InstallError, OpenError};
pub use self::groups::Group;
pub use self::instances::InstanceView;
pub use self::limits::{
    DEAD_LETTERS_MAX, DECIDED_MAX, DECIDED_MIN, DECIDED_WINDOW, DEDUP_MAX, DEDUP_MIN, DEDUP_WINDOW,
    EXPRESSION_MAX, GROUP_TOPICS_MAX, GROUPS_MAX, HALVES_MAX, INSTANCES_MAX, LEASE_MAX, MARKS_MAX,
    PENDING_BYTES_MAX, PENDING_MAX, PENDING_PER_QUEUE_MAX, POSITIONS_MAX, QUEUES_MAX,
    QUEUES_TOTAL_MAX, REDRIVE_MAX, STORED_OFFSETS_MAX, SUBSCRIPTIONS_MAX, TIMERS_MAX, TOPICS_MAX,
    VIEW_MAX,
};
pub use self::retention::{Front, Mark};
pub use self::state::State;
pub use self::store::{Opened, Rejected};
pub use self::timers::{Ahead, DelayedAt};
pub use self::topics::Topic;
pub use self::transactions::Half;

/// Sizes on this replica's disk. Nothing here changes what an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Log bytes between two checkpoints, more when they are large; see
    /// [`Machine::checkpoint_due`].
    pub checkpoint_bytes: u64,
    /// Extents of 4 KiB in one file of queue units. Holds for files made from now on.
    pub extents_per_file: u32,
}

/// Units up to so many bytes are all checked when the machine is opened; more take the scrub's time.
const CHECKED_AT_START: u64 = 64 << 20;

fn check_at_start(state: &State) -> std::io::Result<()> {
    if state.queues.held_bytes() > CHECKED_AT_START {
        return Ok(());
    }
    state.units_hash().map(|_| ())
}

/// Between two checkpoints lies so many times the log that one takes: the memory of sent messages
/// alone may be 50 MB, which would be written for each 64 MiB of log otherwise.
const SPACING: u64 = 8;

impl Default for Options {
    /// 64 MiB of log between checkpoints, 16 MiB files.
    fn default() -> Self {
        Self { checkpoint_bytes: 64 << 20, extents_per_file: 4096 }
    }
}

/// A committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub index: LogIndex,
    pub term: Term,
    pub stamp: UtcMillis,
    /// Where the command's first byte lies in the log.
    pub position: LogPosition,
    /// Where the next frame starts.
    pub end: LogPosition,
    /// Empty for a blank entry and for one that changes the membership.
    pub command: Bytes,
}

/// What applying an entry came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub reply: Reply,
    pub effects: Vec<Effect>,
}

/// The state machine of one broker group on one node.
#[derive(Debug)]
pub struct Machine {
    state: State,
    store: Arc<Store>,
    options: Options,
    seed: u64,
    opened: Opened,
    /// Where the log ended when the last checkpoint was frozen or loaded.
    checkpointed: LogPosition,
    /// Log bytes from that one to the next.
    spacing: u64,
    /// An entry failed half-way.
    ended: bool,
}

impl Machine {
    /// Begins with the newest checkpoint that can be used, else with the state that a peer gave,
    /// else with nothing. Entries behind [`State::applied`] are to be applied again.
    pub fn open(env: &Env, dir: &Path, options: Options) -> Result<Self, OpenError> {
        let seed = env.entropy.u64();
        let per_file = options.extents_per_file;
        let (mut store, mut state, mut opened) = Store::open(&env.disk, dir, per_file, seed)?;
        if let Err(damage) = check_at_start(&state) {
            let io = |source| OpenError::Io { dir: dir.to_owned(), source };
            store::discard_derived(&env.disk, dir).map_err(io)?;
            (store, state, opened) = Store::open(&env.disk, dir, per_file, seed)?;
            let reason = CheckpointError::Io(damage);
            opened.rejected.push(Rejected { file: "units".to_owned(), reason });
        }
        let checkpointed = state.log_end();
        let spacing = options.checkpoint_bytes;
        Ok(Self { state, store, options, seed, opened, checkpointed, spacing, ended: false })
    }

    /// Removes a peer's state that [`Self::open`] could not read: the owner has another to begin
    /// with. The next open starts with nothing.
    pub fn discard_floor(env: &Env, dir: &Path) -> Result<(), OpenError> {
        let io = |source| OpenError::Io { dir: dir.to_owned(), source };
        store::discard_floor(&env.disk, dir).map_err(io)
    }

    /// A unit cannot be trusted: the next start derives all of them from the log again.
    pub fn note_doubt(&self) -> std::io::Result<()> {
        self.store.note_doubt()
    }

    /// How it came up: from which entry, and which checkpoints were passed by.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Applies the next entry. After an error nothing can be applied any more: the node ends.
    pub fn apply(&mut self, entry: &Entry) -> Result<Applied, ApplyError> {
        if self.ended {
            return Err(ApplyError::Ended);
        }
        let applied = self.state.apply(entry);
        self.ended = applied.is_err();
        applied
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// Notes the membership that an entry set. Part of the state hash, so it has to be called on
    /// every replica, before the entry is applied or right after.
    pub fn set_membership(&mut self, at: (LogIndex, Term), bytes: Bytes) {
        let after = self.state.applied().map_or(LogIndex::ZERO, |(index, _)| index.next());
        assert!(at.0 <= after, "membership of entry {} comes before its time", at.0);
        self.state.head.membership = Some((at.0, at.1, bytes));
    }

    /// Whether enough log has been applied since the last freeze for another checkpoint.
    pub fn checkpoint_due(&self) -> bool {
        self.state.log_end().get() >= self.checkpointed.get() + self.spacing
    }

    /// Copies the state as it is now; `None` before the first entry. Does no I/O.
    pub fn freeze(&mut self) -> Option<Checkpoint> {
        assert!(!self.ended, "a state that failed half-way must not be kept");
        let frozen = self.freeze_for_peers()?;
        self.checkpointed = frozen.log_end;
        let floor = self.store.floor();
        let extents = self.state.queues.extents();
        let rounds = extents.rounds().clone();
        self.spacing = self.options.checkpoint_bytes.max(SPACING * frozen.image.len());
        Some(Checkpoint {
            frozen,
            local: self.state.local_image(floor),
            floor,
            dirty: extents.dirty_files(),
            round: rounds.frozen.fetch_add(1, Ordering::AcqRel) + 1,
            rounds,
            store: self.store.clone(),
        })
    }

    /// Copies the replicated part of the state as it is now: what a peer may be given; `None` before
    /// the first entry. Does no I/O.
    pub fn freeze_for_peers(&self) -> Option<Frozen> {
        assert!(!self.ended, "a state that failed half-way must not be kept");
        let (index, term) = self.state.applied()?;
        let (stamp, log_end) = (self.state.stamp(), self.state.log_end());
        Some(Frozen { index, term, stamp, log_end, image: self.state.kept_image() })
    }

    /// Takes over a peer's state: what [`Frozen::snapshot`] gave there. Durable on return. The
    /// log then continues at [`State::log_end`] with the entry behind [`State::applied`].
    pub fn install(&mut self, snapshot: &Bytes) -> Result<(), InstallError> {
        let sections = Sections::parse(snapshot)?;
        let names = self.store.names()?;
        let extents = self.store.new_extents(&names, self.options.extents_per_file);
        let generation = extents.layout().generation;
        let state = sections.state(extents, None, self.seed)?;
        let what = "a state before the first entry";
        let (index, _) = state.applied().ok_or(CheckpointError::Contradiction { what })?;
        if let Some((applied, _)) = self.state.applied()
            && applied >= index
        {
            return Err(InstallError::Older { snapshot: index, applied });
        }
        self.store.install(index, snapshot, generation)?;
        self.checkpointed = state.log_end();
        self.state = state;
        self.ended = false;
        Ok(())
    }
}
