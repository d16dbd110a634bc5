#![doc = include_str!("ARCHITECTURE.md")]
// The layout of a served request nests futures of every room deeper than 128 queries.
#![recursion_limit = "256"]

pub mod base;
pub mod metrics;
pub mod env;
pub mod message;
pub mod filter;
pub mod command;
pub mod index;
pub mod commit_log;
pub mod machine;
pub mod raft;
pub mod broker;
pub mod name_server;
pub mod wire;
pub mod grpc;
pub mod http;
pub mod config;
pub mod node;
pub mod client;
pub mod cli;
#[cfg(test)]
mod tidy;
