//! Long tasks, owned: whoever starts one here learns how it ended.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::NodeError;

/// Tasks that run until the node stops.
#[derive(Debug)]
pub(super) struct Tasks {
    running: JoinSet<(&'static str, Result<(), NodeError>)>,
    stop: watch::Sender<bool>,
}

/// Tells a task that the node stops. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Returns when the node stops. Cancel safe.
    pub(super) async fn told(mut self) {
        // An error means that the tasks' owner is gone, which is a stop as well.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

impl Tasks {
    pub(super) fn new() -> Self {
        Self { running: JoinSet::new(), stop: watch::Sender::new(false) }
    }

    pub(super) fn stop(&self) -> Stop {
        Stop(self.stop.subscribe())
    }

    /// Starts a task. Its end before the stop is a failure of the node, even a good one.
    pub(super) fn start<F>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), NodeError>> + Send + 'static,
    {
        self.running.spawn(async move { (name, task.await) });
    }

    /// Starts a task that has no end of its own; the stop drops it where it waits.
    pub(super) fn endless<F>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop();
        self.start(name, async move {
            tokio::select! {
                () = task => Ok(()),
                () = stop.told() => Ok(()),
            }
        });
    }

    /// The first task that ends. Pending when there is none. Cancel safe.
    pub(super) async fn first_end(&mut self) -> NodeError {
        let Some(end) = self.running.join_next().await else {
            return std::future::pending().await;
        };
        match end {
            Ok((task, Ok(()))) => {
                NodeError::Task { task, reason: "it should run until the node stops".to_owned() }
            }
            Ok((_, Err(error))) => error,
            Err(error) => NodeError::Task { task: "a task", reason: error.to_string() },
        }
    }

    /// Tells all to stop and waits; who does not end within `patience` is cut off.
    pub(super) async fn end(mut self, patience: Duration) {
        self.stop.send_replace(true);
        let all = async {
            while let Some(end) = self.running.join_next().await {
                match end {
                    Ok((_, Ok(()))) => {}
                    Ok((task, Err(error))) => tracing::warn!(task, %error, "while stopping"),
                    Err(error) => tracing::warn!(%error, "while stopping"),
                }
            }
        };
        if tokio::time::timeout(patience, all).await.is_err() {
            tracing::warn!(left = self.running.len(), "tasks did not stop in time");
        }
        self.running.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_failure_wins_and_the_rest_is_stopped() {
        let mut tasks = Tasks::new();
        let stop = tasks.stop();
        let (stopped, was_stopped) = tokio::sync::oneshot::channel();
        tasks.start("patient", async move {
            stop.told().await;
            stopped.send(()).unwrap();
            Ok(())
        });
        tasks.start("broken", async {
            Err(NodeError::Task { task: "broken", reason: "why".to_owned() })
        });
        assert_eq!(tasks.first_end().await.to_string(), "broken ended: why");
        tasks.end(Duration::from_secs(5)).await;
        was_stopped.await.unwrap();
    }

    #[tokio::test]
    async fn a_good_end_before_the_stop_and_a_panic_are_failures() {
        let mut tasks = Tasks::new();
        tasks.start("early", async { Ok(()) });
        assert!(tasks.first_end().await.to_string().starts_with("early ended"));
        tasks.start("wild", async { panic!("as the test wants") });
        assert!(tasks.first_end().await.to_string().contains("panic"));
    }

    #[tokio::test]
    async fn who_does_not_stop_is_cut_off() {
        let mut tasks = Tasks::new();
        tasks.start("deaf", std::future::pending());
        tasks.end(Duration::from_millis(10)).await;
    }
}
