//! Whole replicas: openraft's own suite over our storage, and groups over loopback TCP.

mod cluster;
mod durability;
mod group;
mod members;
mod power;
mod suite;
