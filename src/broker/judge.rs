//! Looking for messages that a filter wants: a look at the desk, then at the records that it has to
//! know, and again.

use std::time::Duration;

use tokio::time::Instant;

use crate::broker::Replica;
use crate::broker::desk::{Asked, Found, Hunt, Judged, Live, SharedDesk, Wants, Wish};
use crate::broker::remote::Declined;
use crate::command::Unit;
use crate::message::record_properties;

/// How long a poll whose time is over looks on for what is there already: with a filter that seldom
/// matches, one look is not enough. What it has seen by then the next poll does not look at again.
const HUNT_GRACE: Duration = Duration::from_millis(100);

/// Until when a poll that begins now looks on.
pub(super) fn hunts_until(deadline: Instant) -> Instant {
    deadline.max(Instant::now() + HUNT_GRACE)
}

impl Replica {
    /// One look, and a few records judged when it found nothing without them: then there is more to
    /// see. What it finds is reserved if it `takes`.
    pub(super) async fn search(
        &self,
        (wish, desk): (&Wish<'_>, &SharedDesk),
        hunt: &mut Hunt,
        takes: bool,
    ) -> Result<Found, Declined> {
        let look = |hunt: &mut Hunt| {
            let found = self.group.read(|state| match takes {
                true => desk.lock().find(state, wish, hunt),
                false => desk.lock().peek(state, wish, hunt),
            });
            found.map_err(|error| self.storage(&error))
        };
        let asks = |found: &Found| found.grants == 0 && !found.ask.is_empty();
        let found = look(hunt)?;
        if !asks(&found) {
            return Ok(found);
        }
        // Whoever had the turn before may have judged the same.
        let judging = desk.lock().judging();
        let turn = judging.lock().await;
        let found = look(hunt)?;
        if asks(&found) {
            let judged = self.judge(&found)?;
            let freed = desk.lock().note(found.version, &judged);
            if freed > 0 {
                self.waiters.ready(wish.group, wish.topic, freed);
            }
        }
        drop(turn);
        Ok(found)
    }

    fn judge(&self, found: &Found) -> Result<Vec<Judged>, Declined> {
        let judge = |asked: &Asked| {
            let wants = self.wants(asked.unit, &found.live)?;
            Ok(Judged { asked: *asked, wants })
        };
        found.ask.iter().map(judge).collect()
    }

    /// Which of the live filters want a message. One whose record has left with the log's front is
    /// nobody's.
    pub(super) fn wants(&self, unit: Unit, live: &Live) -> Result<Wants, Declined> {
        let Some(record) = self.record(unit)? else { return Ok(0) };
        let properties = record_properties(&record).map_err(|error| self.storage(&error))?;
        Ok(live.wants(Some(&properties)))
    }
}
