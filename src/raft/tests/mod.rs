//! Whole replicas: openraft's own suite over our storage, and groups over loopback TCP.

mod cluster;
mod group;
mod power;
mod suite;
