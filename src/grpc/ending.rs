//! How long-lived streams learn that the node ends, and how the node learns that they ended.

use std::time::Duration;

use tokio::sync::watch;

/// Held by whatever must be over before the server is.
#[derive(Clone, Debug)]
pub(super) struct Ending(watch::Receiver<bool>);

/// The server's side.
#[derive(Debug)]
pub(super) struct Ender(watch::Sender<bool>);

pub(super) fn ending() -> (Ender, Ending) {
    let (sender, receiver) = watch::channel(false);
    (Ender(sender), Ending(receiver))
}

impl Ending {
    /// Returns when the server ends; also when it is already gone.
    pub(super) async fn comes(&mut self) {
        drop(self.0.wait_for(|ends| *ends).await);
    }

    /// Returns when the server has been ending for this long.
    pub(super) async fn came(&mut self, ago: Duration) {
        self.comes().await;
        tokio::time::sleep(ago).await;
    }
}

impl Ender {
    pub(super) fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits until every [`Ending`] is dropped, but not for ever.
    pub(super) async fn over(self, patience: Duration) -> bool {
        tokio::time::timeout(patience, self.0.closed()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_server_waits_for_what_it_ends() {
        let (ender, mut ending) = ending();
        let task = tokio::spawn(async move { ending.comes().await });
        ender.begin();
        assert!(ender.over(Duration::from_secs(10)).await);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn the_server_does_not_wait_for_ever() {
        let (ender, _held) = ending();
        ender.begin();
        assert!(!ender.over(Duration::from_millis(10)).await);
    }
}
