//! Clocks compared with the majority's, and stamps kept from running ahead of it (rule R25).
//!
//! A stamp is never more than [`AHEAD`] beyond the clock of the majority's middle, however far this
//! node's own clock is. A node that is off by more than [`OFF_MAX`] from a majority of the others
//! does not lead. What is said of deadlines ("never early") holds within [`AHEAD`] plus the time
//! that one question to a peer takes.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::UtcMillis;
use crate::env::Clock;

/// Milliseconds that a clock may be ahead of the middle before its stamps are held back.
pub(crate) const AHEAD: u64 = 250;
/// Milliseconds off from which a clock is suspect.
pub(crate) const OFF_MAX: u64 = 5_000;

/// The clock that stamps entries: the node's own, held back by what it is ahead. From one comparison
/// to the next it goes no faster than the time since boot, so that a jump in between moves no stamp.
#[derive(Debug)]
pub(crate) struct BoundedClock {
    own: Arc<dyn Clock>,
    compared: Mutex<Compared>,
}

/// The last comparison.
#[derive(Clone, Copy, Debug)]
struct Compared {
    excess: u64,
    /// What this clock said then.
    wall: u64,
    monotonic: Duration,
}

impl Compared {
    fn now(own: &dyn Clock, excess: u64) -> Self {
        let wall = own.wall().get().saturating_sub(excess);
        Self { excess, wall, monotonic: own.monotonic() }
    }
}

impl BoundedClock {
    pub(crate) fn new(own: Arc<dyn Clock>) -> Self {
        let compared = Mutex::new(Compared::now(&*own, 0));
        Self { own, compared }
    }

    /// As the node itself sees it.
    pub(crate) fn own_wall(&self) -> UtcMillis {
        self.own.wall()
    }

    pub(crate) fn hold_back(&self, excess: u64) {
        *self.compared.lock() = Compared::now(&*self.own, excess);
    }
}

impl Clock for BoundedClock {
    fn wall(&self) -> UtcMillis {
        let compared = *self.compared.lock();
        let now = Compared::now(&*self.own, compared.excess);
        let since = now.monotonic.saturating_sub(compared.monotonic).as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX).saturating_add(AHEAD);
        UtcMillis::new(now.wall.min(compared.wall.saturating_add(since)))
    }

    fn monotonic(&self) -> Duration {
        self.own.monotonic()
    }
}

/// What comes of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Milliseconds by which stamps are held back.
    pub(crate) excess: u64,
    /// Milliseconds from the middle; positive when this node is ahead.
    pub(crate) off: i64,
    /// A majority of all members is far off, on one side: this node does not lead.
    pub(crate) suspect: bool,
}

/// `others` are the clocks of the members that were heard, as milliseconds ahead of this node's.
pub(crate) fn judge(members: usize, others: &[i64]) -> Verdict {
    assert!(others.len() < members.max(1), "more clocks than other members");
    let quorum = members / 2 + 1;
    let mut clocks: Vec<i64> = others.to_vec();
    clocks.push(0);
    clocks.sort_unstable();
    // The lower one of two middles: stamps that come late are safe, early ones are not.
    let middle = clocks[(clocks.len() - 1) / 2];
    let off = middle.saturating_neg();
    let ahead = u64::try_from(off).unwrap_or(0);
    let excess = ahead.saturating_sub(AHEAD);
    let limit = i64::try_from(OFF_MAX).expect("a constant of seconds");
    let later = others.iter().filter(|other| **other > limit).count();
    let earlier = others.iter().filter(|other| **other < -limit).count();
    let suspect = members > 1 && later.max(earlier) >= quorum;
    Verdict { excess, off, suspect }
}

/// How far the wall clock of a node that is alone has jumped, against the time since boot.
#[derive(Debug)]
pub(crate) struct Jump {
    base: i64,
}

impl Jump {
    pub(crate) fn since(clock: &BoundedClock) -> Self {
        Self { base: Self::difference(clock) }
    }

    fn difference(clock: &BoundedClock) -> i64 {
        let wall = i64::try_from(clock.own_wall().get()).unwrap_or(i64::MAX);
        wall.saturating_sub(i64::try_from(clock.monotonic().as_millis()).unwrap_or(i64::MAX))
    }

    /// Small steps are an adjustment, and the new base; a large one forward is held back.
    pub(crate) fn look(&mut self, clock: &BoundedClock) -> Verdict {
        let now = Self::difference(clock);
        let off = now.saturating_sub(self.base);
        let ahead = u64::try_from(off).unwrap_or(0);
        if off.unsigned_abs() <= OFF_MAX {
            self.base = now;
            return Verdict::default();
        }
        Verdict { excess: ahead, off, suspect: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::sim::SimClock;

    const MINUTES: i64 = 600_000;

    #[test]
    fn one_of_three_that_is_far_off_is_suspect() {
        // All others are ten minutes behind this node, or ahead of it.
        let ahead = judge(3, &[-MINUTES, -MINUTES + 3]);
        assert_eq!((ahead.off, ahead.suspect), (MINUTES - 3, true));
        assert_eq!(ahead.excess, 600_000 - 3 - AHEAD);
        let behind = judge(3, &[MINUTES, MINUTES]);
        assert_eq!(behind, Verdict { excess: 0, off: -MINUTES, suspect: true });
        // One of the others is off: that one has to know.
        assert_eq!(judge(3, &[MINUTES, 5]), Verdict { excess: 0, off: -5, suspect: false });
        assert_eq!(judge(3, &[-MINUTES, 5]), Verdict { excess: 0, off: 0, suspect: false });
    }

    #[test]
    fn of_two_clocks_the_earlier_one_counts() {
        let ahead = judge(3, &[-MINUTES]);
        assert_eq!((ahead.excess, ahead.suspect), (600_000 - AHEAD, false));
        assert_eq!(judge(3, &[MINUTES]), Verdict::default());
        assert_eq!(judge(3, &[]), Verdict::default());
        assert_eq!(judge(1, &[]), Verdict::default());
        // On different sides there is no majority against this one.
        assert!(!judge(5, &[MINUTES, MINUTES, -MINUTES, -MINUTES]).suspect);
        assert!(judge(5, &[MINUTES, MINUTES, MINUTES]).suspect);
    }

    #[test]
    fn a_small_lead_is_let_be() {
        assert_eq!(judge(3, &[-200, -210]).excess, 0);
        assert_eq!(judge(3, &[-400, -500]).excess, 400 - AHEAD);
    }

    #[test]
    fn a_jump_between_two_comparisons_moves_no_stamp() {
        // Found by `jepsen simulate --seed 25`: a quarter of a second was enough for one entry, and
        // its stamp kept time standing for all replicas until the others' clocks had come so far.
        let own = Arc::new(SimClock::new(UtcMillis::new(1_000_000)));
        let clock = BoundedClock::new(own.clone());
        clock.hold_back(0);
        own.set_skew(MINUTES);
        assert_eq!(clock.wall(), UtcMillis::new(1_000_000 + AHEAD));
        own.advance(crate::base::Millis::new(100));
        assert_eq!(clock.wall(), UtcMillis::new(1_000_100 + AHEAD));
        own.set_skew(-MINUTES);
        assert_eq!(clock.wall(), UtcMillis::new(400_100), "stamps themselves never go back");
    }

    #[test]
    fn a_jump_of_a_lonely_clock_is_held_back() {
        let own = Arc::new(SimClock::new(UtcMillis::new(1_000_000)));
        let clock = BoundedClock::new(own.clone());
        let mut jump = Jump::since(&clock);
        own.set_skew(1_000);
        assert_eq!(jump.look(&clock), Verdict::default());
        own.set_skew(601_000);
        let verdict = jump.look(&clock);
        assert_eq!((verdict.excess, verdict.off), (600_000, MINUTES));
        clock.hold_back(verdict.excess);
        assert_eq!(clock.wall(), UtcMillis::new(1_001_000));
        own.set_skew(1_001);
        assert_eq!(jump.look(&clock), Verdict::default());
    }
}
