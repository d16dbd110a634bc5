//! Whether this process has been running without a pause.
//!
//! A process that is stopped, or whose machine sleeps, may wake up as a leader that others have
//! replaced long ago. So a leader's answers count only while a task has ticked lately on the clock
//! that counts suspended time; after a longer gap the leadership has to be confirmed by a majority
//! first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::env::Clock;
use crate::raft::group::{Running, Shared};

/// One attempt to be confirmed may take so long.
const CONFIRM: Duration = Duration::from_millis(500);

/// When the process was last known to run, in milliseconds of its monotonic clock.
#[derive(Debug)]
pub(crate) struct Awake {
    last: AtomicU64,
    /// A longer pause than this is half an election.
    gap_max: u64,
}

fn millis(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.monotonic().as_millis()).unwrap_or(u64::MAX)
}

impl Awake {
    pub(crate) fn new(clock: &dyn Clock, gap_max: Duration) -> Self {
        let gap_max = u64::try_from(gap_max.as_millis()).unwrap_or(u64::MAX).max(1);
        Self { last: AtomicU64::new(millis(clock)), gap_max }
    }

    pub(crate) fn is_awake(&self, clock: &dyn Clock) -> bool {
        millis(clock).saturating_sub(self.last.load(Ordering::Acquire)) <= self.gap_max
    }

    /// Goes on from the time of the look, so that a pause behind it is seen by the next one; false
    /// after a pause.
    fn tick(&self, clock: &dyn Clock) -> bool {
        let now = millis(clock);
        let awake = now.saturating_sub(self.last.load(Ordering::Acquire)) <= self.gap_max;
        if awake {
            self.last.store(now, Ordering::Release);
        }
        awake
    }

    /// The pause is over, as of `now`.
    fn wake(&self, now: u64) {
        self.last.store(now, Ordering::Release);
    }
}

/// Runs until the replica ends.
pub(crate) async fn keep(shared: Arc<Shared>) {
    let Some(running) = shared.running() else { return };
    let mut ending = shared.ending.watch();
    let pause = Duration::from_millis(shared.awake.gap_max).div_f32(3.0);
    loop {
        if !shared.awake.tick(&*shared.clock) {
            let asked = millis(&*shared.clock);
            if confirmed(&shared, running).await {
                shared.awake.wake(asked);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            ended = ending.wait_for(Option::is_some) => {
                drop(ended);
                return;
            }
        }
    }
}

/// Who does not lead has nothing to confirm.
async fn confirmed(shared: &Shared, running: &Running) -> bool {
    if shared.leadership.borrow().leader != Some(shared.options.node) {
        return true;
    }
    let asked = timeout(CONFIRM, running.confirm_leadership()).await;
    let confirmed = matches!(asked, Ok(Ok(())));
    tracing::info!(
        confirmed,
        "this process was paused; a majority was asked whether it still leads"
    );
    confirmed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Millis, UtcMillis};
    use crate::env::sim::SimClock;

    #[test]
    fn a_pause_of_more_than_half_an_election_is_noticed() {
        let clock = SimClock::new(UtcMillis::new(1));
        let awake = Awake::new(&clock, Duration::from_millis(150));
        clock.advance(Millis::new(150));
        assert!(awake.is_awake(&clock));
        clock.advance(Millis::new(1));
        assert!(!awake.is_awake(&clock));
        assert!(!awake.tick(&clock), "a look does not end a pause");
        awake.wake(millis(&clock));
        assert!(awake.is_awake(&clock) && awake.tick(&clock));
    }
}
