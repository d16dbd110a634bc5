//! Panics of the program under test, which its executor would swallow.

use std::panic;
use std::sync::Mutex;

static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From here on every panic of this process is kept, and nothing is printed.
pub(crate) fn keep() {
    panic::set_hook(Box::new(|info| {
        if let Ok(mut seen) = SEEN.lock() {
            seen.push(info.to_string());
        }
    }));
}

pub(crate) fn seen() -> Vec<String> {
    SEEN.lock().map(|seen| seen.clone()).unwrap_or_default()
}
