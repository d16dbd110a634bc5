//! Waiting for messages without taking any: what a receive from several broker groups does first.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::broker::Replica;
use crate::broker::api::ReceiveRequest;
use crate::broker::desk::{Hunt, Wish};
use crate::broker::judge::hunts_until;
use crate::broker::receive::{FORWARD_GRACE, NO_LEADER_PAUSE, Place};
use crate::broker::remote::{self, Declined, Question};
use crate::filter::Filter;
use crate::machine::State;

/// A watch that was told "now" and whose client then took nothing has used up a wake-up; another
/// one is woken after this time.
const WAKE_AGAIN: Duration = Duration::from_secs(1);

impl Replica {
    /// Whether there is something that this poll would get; false when there was not until the
    /// deadline. Takes nothing: what was seen is found by whoever takes next. So it may be dropped at
    /// any moment.
    pub(super) async fn watch(
        &self,
        request: &ReceiveRequest,
        filter: &Filter,
        deadline: Instant,
    ) -> bool {
        loop {
            let watched = match self.leader() {
                Some(leader) if leader == self.node() => {
                    self.watch_here(request, filter, deadline).await.ok()
                }
                Some(leader) => self.watch_at(leader, request, deadline).await,
                None => None,
            };
            match watched {
                Some(ready) => return ready,
                None if Instant::now() >= deadline => return false,
                None => self.leader_changed(NO_LEADER_PAUSE).await,
            }
        }
    }

    /// The leader's part; also what a forwarded watch runs.
    pub(super) async fn watch_here(
        &self,
        request: &ReceiveRequest,
        filter: &Filter,
        deadline: Instant,
    ) -> Result<bool, Declined> {
        let Place { group, topic, queues, desk, normal, waiter } = self.place(request, filter)?;
        let (mut hunt, hunts_until) = (Hunt::default(), hunts_until(deadline));
        loop {
            if !self.serving() {
                return Err(Declined::NotLeader);
            }
            self.ensure_begun(group, topic).await?;
            self.ensure_subscribed((group, topic), &normal, &request.client).await?;
            if self.group.read(|state| state.is_paused(group)) {
                if timeout_at(deadline, waiter.woken()).await.is_err() {
                    return Ok(false);
                }
                continue;
            }
            // What this attempt was handed, and never got to see, is the first that it gets.
            let attempt = request.attempt_id.as_deref().unwrap_or_default();
            let again = |state: &State| state.checkout_of_attempt(group, topic, attempt).is_some();
            if self.group.read(again) {
                return Ok(true);
            }
            let wish = Wish { group, topic, queues, filter, filter_text: &normal, batch: 1 };
            let found = self.search((&wish, &desk), &mut hunt, false).await?;
            if found.grants > 0 {
                let waiters = self.waiters.clone();
                tokio::spawn(async move {
                    sleep(WAKE_AGAIN).await;
                    waiters.ready(group, topic, 1);
                });
                return Ok(true);
            }
            if found.more && Instant::now() < hunts_until {
                tokio::task::yield_now().await;
                continue;
            }
            if found.more {
                waiter.pass_on();
            }
            if timeout_at(deadline, waiter.woken()).await.is_err() {
                return Ok(false);
            }
            hunt = Hunt::default();
        }
    }

    /// `None` when the node could not be asked or does not lead.
    async fn watch_at(
        &self,
        leader: crate::base::NodeId,
        request: &ReceiveRequest,
        deadline: Instant,
    ) -> Option<bool> {
        let poll = deadline.saturating_duration_since(Instant::now());
        let question = Question::Watch(ReceiveRequest { poll, ..request.clone() }).encode();
        let deadline = deadline + FORWARD_GRACE.duration();
        let answer = tokio::select! {
            biased;
            answer = self.ask(leader, question, deadline) => answer.ok()?,
            () = self.left_behind(leader) => return None,
        };
        remote::decode_watched(answer).ok()?
    }
}
