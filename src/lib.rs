// local to this branch until ARCHITECTURE.md exists

pub mod base;
// pub mod env;
pub mod name_server;
pub mod wire;
pub mod http;
pub mod config;
pub mod client;
