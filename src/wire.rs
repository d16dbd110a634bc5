//! Types generated from `proto/`, and nothing else.
//!
//! Only the rooms that speak a protocol may know them: `grpc`, `client`, and `raft`'s peer port.

/// `apache.rocketmq.v2`: what RocketMQ 5 clients speak.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    unused_qualifications,
    unreachable_pub,
    elided_lifetimes_in_paths,
    missing_docs,
    reason = "generated"
)]
pub mod rocketmq {
    tonic::include_proto!("apache.rocketmq.v2");
}

/// `raftmq.v1`: our own administration and the protocol between nodes.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    unused_qualifications,
    unreachable_pub,
    elided_lifetimes_in_paths,
    missing_docs,
    reason = "generated"
)]
pub mod raftmq {
    tonic::include_proto!("raftmq.v1");
}

/// The encoded `FileDescriptorSet` of everything under `proto/`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
