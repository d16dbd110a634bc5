//! Every bound that applying an entry knows. They are part of what the log means: replicas that
//! disagreed on one would part ways, so none is a setting (rule R3).

use crate::base::Millis;

/// Most queues of one topic. They are storage, not parallelism: any member takes from any queue.
pub const QUEUES_MAX: u32 = 1024;
/// Most topics of a broker group.
pub const TOPICS_MAX: usize = 200_000;
/// Most queues of all topics together; each costs under 200 bytes while idle.
pub const QUEUES_TOTAL_MAX: usize = 4 << 20;
/// Most consumer groups of a broker group.
pub const GROUPS_MAX: usize = 100_000;
/// Most pairs of a group and a topic that it uses.
pub const GROUP_TOPICS_MAX: usize = 1_000_000;
/// Most different filter expressions that live members of one group use on one topic.
pub const SUBSCRIPTIONS_MAX: usize = 64;
/// Longest filter expression, in bytes.
pub const EXPRESSION_MAX: usize = 32 << 10;
/// Most offsets that groups have stored, one for each queue that they read by offset.
pub const STORED_OFFSETS_MAX: usize = 1_000_000;
/// Most messages of one queue that one group may hold handed out or waiting, and most gaps of
/// messages that it has passed by (rule R13). At the cap redelivery goes on, new ones wait.
pub const PENDING_PER_QUEUE_MAX: usize = 100_000;
/// Most messages handed out or waiting in a whole broker group; each costs about 250 bytes.
pub const PENDING_MAX: usize = 4 << 20;
/// Most delayed messages of a broker group, fired ones whose records lie in an earlier stride
/// included; each costs about 90 bytes of memory.
pub const TIMERS_MAX: usize = 16 << 20;
/// How a delayed message ended is remembered for at least this long …
pub(super) const ENDED_WINDOW: Millis = Millis::from_secs(10 * 60);
/// … while it is among the last this many of the broker group that fired, or were recalled …
pub(super) const ENDED_MAX: usize = 128 << 10;
/// … and for any time while it is among the last this many.
pub(super) const ENDED_MIN: usize = 16 << 10;
/// Most marks that the log's front has not moved to; beyond it strides are not marked.
pub const MARKS_MAX: usize = 4096;
/// Most visible-again messages, and most gaps, that one [`super::QueueView`] lists.
pub const VIEW_MAX: usize = 256;

/// A sent message's id is remembered for at least this long …
pub const DEDUP_WINDOW: Millis = Millis::from_secs(30);
/// … while it is among the last this many of the broker group …
pub const DEDUP_MAX: u64 = 1 << 20;
/// … and for any time while it is among the last this many (rule R19).
pub const DEDUP_MIN: u64 = 64 << 10;

/// Most half messages of a broker group that nobody has decided; each costs about 300 bytes.
pub const HALVES_MAX: usize = 1 << 20;
/// Bytes of the records of half messages together, and of delayed ones, before the broker group was
/// told what messages under way may keep; from then on it is that (rule R10).
pub const PENDING_BYTES_MAX: u64 = 1 << 30;
/// A transaction's decision is remembered for at least this long …
pub const DECIDED_WINDOW: Millis = Millis::from_secs(60 * 60);
/// … while it is among the last this many of the broker group …
pub const DECIDED_MAX: usize = 1 << 18;
/// … and for any time while it is among the last this many.
pub const DECIDED_MIN: usize = 1 << 14;

/// Most dead letters of a broker group, each of about 300 bytes of memory. Beyond, and while the
/// records of late units have more bytes than may be, messages stay with their groups and come again.
pub const DEAD_LETTERS_MAX: usize = 1 << 20;
/// Most dead letters of one redrive.
pub const REDRIVE_MAX: usize = 1000;

/// Most instances of a broker group that each see everything of a topic; each costs about 300 bytes
/// beside its positions.
pub const INSTANCES_MAX: usize = 100_000;
/// Most queues of all of them together; each costs 8 bytes.
pub const POSITIONS_MAX: usize = 4 << 20;
/// Longest lease of an instance's positions.
pub const LEASE_MAX: Millis = Millis::from_secs(30 * 24 * 60 * 60);

const _: () = assert!(DECIDED_MIN <= DECIDED_MAX);
const _: () = assert!(POSITIONS_MAX >= QUEUES_MAX as usize);
const _: () = assert!(DEDUP_MIN <= DEDUP_MAX && DEDUP_MAX <= u32::MAX as u64);
const _: () = assert!(ENDED_MIN <= ENDED_MAX && TIMERS_MAX < u32::MAX as usize);
const _: () = assert!(PENDING_PER_QUEUE_MAX <= PENDING_MAX);
