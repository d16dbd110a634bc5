//! Who is there to be called, as far as this node heard lately.
//!
//! What it is: [`RouteTable`], soft state that every node, and every name server that runs alone,
//! keeps for itself from the registrations that nodes send once a second, and the bytes of a
//! [`Registration`].
//! Promises: an entry that was not renewed expires; a node that led in an older term never
//! replaces one that leads in a newer term.
//! Never: anything that must survive a restart, a clock (time is passed in), or a decision about
//! who leads; that is Raft's.

mod registration;
mod route_table;

pub use registration::{Registration, RegistrationError, Standing};
pub use route_table::{EXPIRY, RouteTable};
