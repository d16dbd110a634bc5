//! Why this replica ended, for whoever watches it.

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use tokio::sync::watch;

/// The first reason given stays. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Ending(Arc<watch::Sender<Option<String>>>);

impl Ending {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    /// Notes that the replica ends because of `error`, and hands it on in openraft's form.
    pub(crate) fn because(&self, error: &dyn Display) -> io::Error {
        let text = error.to_string();
        self.note(&text);
        io::Error::other(text)
    }

    pub(crate) fn note(&self, reason: &str) {
        if self.set(reason) {
            tracing::error!(reason, "this replica ends");
        }
    }

    /// The end that was asked for.
    pub(crate) fn finish(&self) {
        self.set("it was stopped");
    }

    fn set(&self, reason: &str) -> bool {
        self.0.send_if_modified(|known| {
            let first = known.is_none();
            if first {
                *known = Some(reason.to_owned());
            }
            first
        })
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Option<String>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_first_reason() {
        let ending = Ending::new();
        assert_eq!(ending.because(&"the disk is gone").to_string(), "the disk is gone");
        ending.note("raft stopped");
        assert_eq!(ending.reason().as_deref(), Some("the disk is gone"));
    }
}
