//! What the black-box tests share: real processes, official clients, and waiting for conditions.

pub mod clients;
pub mod cluster;
pub mod http;
pub mod python;
pub mod raw;

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One cluster at a time: the tests measure times, and the machine may have two cores.
static TURN: Mutex<()> = Mutex::new(());

/// Held for the length of a test that starts a cluster.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks again and again until the answer is `Ok`; panics with the last answer at the deadline.
pub fn until<T, E: Debug>(
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

/// `until` for a plain condition.
pub fn until_true(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    until(what, within, || if holds() { Ok(()) } else { Err("does not hold") });
}
