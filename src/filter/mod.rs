//! Which messages a consumer wants.
//!
//! What it is: filter expressions, read once into a form whose evaluation cannot fail.
//! Promises: one meaning has one normal form, so that replicas and members compare texts; the
//! cheap test by hash never says no to a message that matches.
//! Never: a queue, a subscription, or a decision to skip; those are `broker`'s.

mod tags;

pub use tags::{EXPRESSION_MAX, FilterError, TagFilter};
