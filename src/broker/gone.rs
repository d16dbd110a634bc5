//! How a receive learns that nobody waits for it any more.

use tokio::sync::watch;

/// Held by whoever asks; telling it ends the waiting of the receive that has the other end.
#[derive(Debug)]
pub struct Leaving(watch::Sender<bool>);

/// Held by the receive. It takes no further messages once it is told; what it is taking at that
/// moment it still answers, so that it can be given back.
#[derive(Clone, Debug)]
pub struct Gone(watch::Receiver<bool>);

pub fn leaving() -> (Leaving, Gone) {
    let (sender, receiver) = watch::channel(false);
    (Leaving(sender), Gone(receiver))
}

impl Leaving {
    pub fn leave(&self) {
        self.0.send_replace(true);
    }
}

impl Gone {
    /// For a receive whose asker is heard of by other means.
    pub(super) fn never() -> Self {
        Self(watch::channel(false).1)
    }

    pub(super) fn is_told(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when the asker has left. Cancel safe.
    pub(super) async fn told(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|gone| *gone).await.is_err() {
            // The asker dropped its end without leaving: it waits for the answer.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn only_leaving_is_told() {
        let (asker, gone) = leaving();
        assert!(gone.told().now_or_never().is_none() && !gone.is_told());
        asker.leave();
        assert!(gone.told().now_or_never().is_some() && gone.is_told());
        assert!(Gone::never().told().now_or_never().is_none());
    }
}
