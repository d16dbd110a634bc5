//! RaftMQ from outside: real processes, official clients, raw connections, kill -9.
//!
//! One binary, since each one links the whole crate. The figures that the tests print are part of
//! what they show: run with `--nocapture` to see them.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, and its figures are printed"
)]

#[path = "../common/mod.rs"]
mod common;

mod broadcast;
mod broker_groups;
mod client_matrix;
mod clocks;
mod consumer_matrix;
mod crash;
mod damage;
mod dead_letters;
mod delayed;
mod disk_full;
mod find;
mod first_start;
mod kinds_matrix;
mod limits;
mod malformed;
mod membership;
mod name_server;
mod offsets;
mod polls;
mod priority;
mod ordered;
mod overload;
mod proto_descriptor;
mod python_client;
mod repair;
mod retention;
mod scale;
mod shared_queue;
mod scene;
mod storm;
mod tls;
mod transactions;
mod filters;
