//! Given commands, expect replies, effects and state. Apply runs over a disk that cannot read.

mod backlog;
mod bench;
mod checkpoints;
mod dead_letters;
mod cursors;
mod delay;
mod deliveries;
mod golden;
mod instances;
mod order;
mod publish;
mod retention;
mod schema;
mod transactions;

pub(super) use self::bench::{Bench, names};
