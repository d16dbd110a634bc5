//! What the black-box tests share: real processes, official clients, and waiting for conditions.

pub(crate) mod by_hand;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod driver;
pub(crate) mod http;
pub(crate) mod official;
pub(crate) mod python;
pub(crate) mod raw;
pub(crate) mod script;
pub(crate) mod solo;
pub(crate) mod table;

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Asks again and again until the answer is `Ok`; panics with the last answer at the deadline.
pub(crate) fn until<T, E: Debug>(
    what: &str,
    within: Duration,
    mut ask: impl FnMut() -> Result<T, E>,
) -> T {
    let start = Instant::now();
    loop {
        match ask() {
            Ok(value) => return value,
            Err(why) => {
                assert!(start.elapsed() < within, "{what}: not within {within:?}; last: {why:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
