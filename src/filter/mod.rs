//! Which messages a consumer wants.

mod tags;

pub use tags::{FilterError, TagFilter};
