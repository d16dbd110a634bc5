//! Taking messages for a time: long poll, checkout, delivery.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::base::{GroupId, Millis, Mutant, QueueId, QueueOffset, TopicId};
use crate::broker::api::{Delivered, ReceiveRequest};
use crate::broker::desk::{Asked, Desk, Found, Hunt, Judged, SharedDesk, Wish};
use crate::broker::error::{Overloaded, ReceiveError, Unavailable};
use crate::broker::judge::hunts_until;
use crate::broker::remote::{self, Declined, Parcel, Question};
use crate::broker::waiters::{Waiter, Waiters};
use crate::broker::{Gone, Replica, handle};
use crate::command::{
    CheckedOut, Checkout, Delivery, DeliveryOutcome, Granted, Handle, Refusal, Take, Unit,
};
use crate::commit_log::ReadError;
use crate::filter::Filter;
use crate::message::decode_record;

/// Messages that one receive may ask for; RocketMQ's proxy has the same limit.
pub const RECEIVE_BATCH_MAX: u32 = 32;
/// Long polls that a node holds at once.
const WAITING_MAX: usize = 100_000;
/// How long auto-renewed messages stay hidden at a time; the leader extends it.
pub(super) const AUTO_RENEW_STEP: Millis = Millis::from_secs(60);
/// What one reply may carry, in bytes of records. With all that is told beside them it stays below
/// the 16 MiB that one message between nodes may have.
const REPLY_BYTES_MAX: usize = 15 << 20;
/// How long a forwarded poll may take beyond its polling time.
pub(super) const FORWARD_GRACE: Millis = Millis::from_secs(2);
/// Pause before messages that apply did not hand out are asked for again: a cap is reached, or
/// another leader handed them out.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// Pause before a leader is looked for again, when the one asked says that it does not lead.
pub(super) const NO_LEADER_PAUSE: Millis = Millis::new(20);

impl Replica {
    /// Waits until something is there or the deadline is over (then an empty list).
    pub(super) async fn receive(
        &self,
        mut request: ReceiveRequest,
        filter: &Filter,
        deadline: Instant,
        gone: &Gone,
    ) -> Result<Vec<Delivered>, ReceiveError> {
        assert!(request.attempt_id.is_some(), "the facade makes one up where it is missing");
        let mut patience = Patience { until: deadline, was_asked: false };
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            request.poll = remaining;
            let leader = self.leader();
            let result = match leader {
                Some(leader) if leader == self.node() => {
                    self.receive_here(&request, filter, deadline, gone).await
                }
                Some(leader) => self.receive_at(leader, &request).await,
                None => Err(Declined::NotLeader),
            };
            match result {
                Ok(parcels) => return self.open_parcels(parcels, &request),
                Err(Declined::NotLeader) if patience.lasts(leader.is_some(), Instant::now()) => {
                    self.leader_changed(NO_LEADER_PAUSE).await;
                }
                Err(declined) => return Err(refused(declined, &request)),
            }
        }
    }

    async fn receive_at(
        &self,
        leader: crate::base::NodeId,
        request: &ReceiveRequest,
    ) -> Result<Vec<Parcel>, Declined> {
        let deadline = Instant::now() + request.poll + FORWARD_GRACE.duration();
        let question = Question::Receive(request.clone()).encode();
        // A broken connection is asked again with the same attempt id (rule R22), and so is whoever
        // leads now while the old leader hangs.
        let answer = tokio::select! {
            biased;
            answer = self.ask(leader, question, deadline) => answer,
            () = self.left_behind(leader) => return Err(Declined::NotLeader),
        };
        let Ok(answer) = answer else { return Err(Declined::NotLeader) };
        if answer.is_empty() {
            // It leads, but its broker has only just come up.
            return Err(Declined::NotLeader);
        }
        remote::decode_parcels(answer).unwrap_or_else(|error| {
            Err(Declined::Unavailable { reason: error.to_string(), outcome_unknown: true })
        })
    }

    /// The leader's part; also what a forwarded poll runs.
    pub(super) async fn receive_here(
        &self,
        request: &ReceiveRequest,
        filter: &Filter,
        deadline: Instant,
        gone: &Gone,
    ) -> Result<Vec<Parcel>, Declined> {
        let Place { group, topic, queues, desk, normal, waiter } = self.place(request, filter)?;
        let (mut hunt, hunts_until) = (Hunt::default(), hunts_until(deadline));
        loop {
            if !self.serving() {
                return Err(Declined::NotLeader);
            }
            self.ensure_begun(group, topic).await?;
            self.ensure_subscribed((group, topic), &normal, &request.client).await?;
            let batch = request.batch as usize;
            let wish = Wish { group, topic, queues, filter, filter_text: &normal, batch };
            let found = self.take(request, (&wish, &desk), &mut hunt).await?;
            let looks_on = found.more && found.parcels.is_empty() && Instant::now() < hunts_until;
            if looks_on && !gone.is_told() {
                tokio::task::yield_now().await;
                continue;
            }
            // Also where it gives up the search: somebody else is to go on with it.
            if found.more {
                waiter.pass_on();
            }
            if !found.parcels.is_empty() {
                return Ok(found.parcels);
            }
            // What apply refused may be free again soon without any effect that says so.
            let until =
                if found.refused { deadline.min(Instant::now() + REFUSED_PAUSE) } else { deadline };
            let woken = tokio::select! {
                woken = timeout_at(until, waiter.woken()) => woken.is_ok(),
                () = gone.told() => return Ok(Vec::new()),
            };
            if !woken && until == deadline {
                return Ok(Vec::new());
            }
            hunt = Hunt::default();
        }
    }

    /// Takes a place in line before the first look, so that no arrival goes unseen.
    pub(super) fn place(
        &self,
        request: &ReceiveRequest,
        filter: &Filter,
    ) -> Result<Place, Declined> {
        if self.waiters.waiting() >= WAITING_MAX {
            return Err(Declined::Busy);
        }
        // Only a leader's state makes "does not exist" true.
        if !self.serving() {
            return Err(Declined::NotLeader);
        }
        let (topic, queues) = self
            .group
            .read(|state| state.topic(&request.topic).map(|topic| (topic.id, topic.queues)))
            .ok_or(Declined::NoTopic)?;
        let group = self
            .group
            .read(|state| state.group(&request.group).map(|group| group.id))
            .ok_or(Declined::NoGroup)?;
        let desk = self.desks.desk(group, topic);
        let normal = filter.normal();
        let now = self.env.clock.monotonic();
        self.subscriptions.touch((group, topic), &normal, &request.client, now);
        let waiter = self.waiters.join(topic, group, &normal);
        Ok(Place { group, topic, queues, desk, normal, waiter })
    }

    async fn take(
        &self,
        request: &ReceiveRequest,
        (wish, desk): (&Wish<'_>, &SharedDesk),
        hunt: &mut Hunt,
    ) -> Result<Taken, Declined> {
        let attempt = request.attempt_id.as_deref().unwrap_or_default();
        let (paused, repeated) = self.group.read(|state| {
            let repeated = state.checkout_of_attempt(wish.group, wish.topic, attempt);
            (state.is_paused(wish.group), repeated)
        });
        if paused {
            // Resuming wakes whoever waits.
            return Ok(Taken::default());
        }
        if let Some(granted) = repeated.filter(|granted| !granted.is_empty()) {
            let parcels = self.parcels(wish, &granted)?;
            return Ok(Taken { parcels, ..Taken::default() });
        }
        let found = self.search((wish, desk), hunt, true).await?;
        if found.grants == 0 {
            return Ok(Taken { more: found.more, ..Taken::default() });
        }
        let (more, under) = (found.more, (found.version, found.epoch));
        let waiters = self.waiters.clone();
        let mut reservation = Reservation::new(desk.clone(), &found, (wish, waiters));
        let takes = self.fitting(found, wish, desk)?;
        let offered: usize = takes.iter().map(|take| take.grants.len()).sum();
        if offered == 0 {
            // All were look-alikes, or have left with the log's front: the next scan passes them by.
            return Ok(Taken { more: true, ..Taken::default() });
        }
        let checkout = checkout((request, wish), takes, under);
        let skipped = checkout.takes.clone();
        let unasked = Mutant::DeliverUncommitted.is_on().then(|| guessed(&checkout));
        let submitted = self.lane.submit(Delivery::Checkout(checkout), self.default_deadline());
        let outcome = match unasked {
            None => submitted.await,
            Some(unasked) => {
                tokio::time::timeout(GUESS_AFTER, submitted).await.unwrap_or(Ok(unasked))
            }
        };
        if outcome.is_ok() {
            reservation.idle -= offered;
        }
        let is_taken = |got: &CheckedOut| !got.granted.is_empty();
        if !matches!(&outcome, Ok(DeliveryOutcome::CheckedOut(got)) if is_taken(got)) {
            desk.lock().note_not_skipped(&skipped);
        }
        drop(reservation);
        match outcome {
            Ok(DeliveryOutcome::CheckedOut(CheckedOut { granted, .. })) => {
                let refused = granted.is_empty();
                Ok(Taken {
                    parcels: self.parcels(wish, &granted)?,
                    more: more && !refused,
                    refused,
                })
            }
            Ok(DeliveryOutcome::Refused(Refusal::NoGroup { .. })) => Err(Declined::NoGroup),
            Ok(DeliveryOutcome::Refused(full @ Refusal::MovedFull { .. })) => {
                Err(Declined::Full { what: full.to_string() })
            }
            Ok(_) => Err(Declined::NoTopic),
            // The attempt id makes asking again safe, also when the outcome is unknown.
            Err(_) if !self.serving() => Err(Declined::NotLeader),
            Err(Unavailable { reason, outcome_unknown }) => {
                Err(Declined::Unavailable { reason, outcome_unknown })
            }
        }
    }

    /// Drops grants whose exact tag does not match though its hash does, and those beyond what one
    /// reply can carry. Of those that match, at least one stays.
    fn fitting(
        &self,
        mut found: Found,
        wish: &Wish<'_>,
        desk: &Mutex<Desk>,
    ) -> Result<Vec<Take>, Declined> {
        let mut bytes = 0;
        // Nothing comes of a message group behind a message of it that does not come.
        let (mut cut, mut judged) = (BTreeSet::new(), Vec::new());
        for take in &mut found.takes {
            let mut kept = Vec::with_capacity(take.grants.len());
            for grant in take.grants.drain(..) {
                let size = grant.unit.size as usize;
                let line = grant.unit.group_hash;
                if cut.contains(&line) {
                    continue;
                }
                if bytes > 0 && bytes + size > REPLY_BYTES_MAX {
                    cut.extend((line != 0).then_some(line));
                    continue;
                }
                // With SQL the record was judged before.
                if matches!(wish.filter, Filter::Tags(_)) {
                    let wants = self.wants(grant.unit, &found.live)?;
                    if wants >> found.own & 1 == 0 {
                        let (queue, offset, unit) = (take.queue, grant.offset, grant.unit);
                        let asked = Asked { queue, offset, unit };
                        judged.push(Judged { asked, wants });
                        cut.extend((line != 0).then_some(line));
                        continue;
                    }
                }
                bytes += size;
                kept.push(grant);
            }
            take.grants = kept;
        }
        let freed = desk.lock().note(found.version, &judged);
        if freed > 0 {
            self.waiters.ready(wish.group, wish.topic, freed);
        }
        found.takes.retain(|take| !take.grants.is_empty() || !take.skips.is_empty());
        Ok(found.takes)
    }

    /// `None` when the log's front has passed the record. One that is needed was written again
    /// before, and the state says where.
    pub(super) fn record(&self, unit: Unit) -> Result<Option<Bytes>, Declined> {
        let mut before = None;
        loop {
            let position = self.group.read(|state| state.locate(unit)).position;
            match self.group.log().read_record(position, unit.size) {
                Ok(record) => return Ok(Some(record)),
                // It may have been written again between the two looks.
                Err(ReadError::PurgedPosition { .. }) if before == Some(position) => {
                    return Ok(None);
                }
                Err(ReadError::PurgedPosition { .. }) => before = Some(position),
                Err(error) => return Err(self.storage(&error)),
            }
        }
    }

    /// A queue or a record that cannot be read ends this replica; another one serves the client.
    pub(super) fn storage(&self, error: &dyn std::fmt::Display) -> Declined {
        self.group.units_failed(error);
        Declined::Unavailable { reason: error.to_string(), outcome_unknown: false }
    }

    fn parcels(&self, wish: &Wish<'_>, granted: &[Granted]) -> Result<Vec<Parcel>, Declined> {
        let Some(key) = self.handle_key() else {
            let reason = "the broker group has not been founded yet".to_owned();
            return Err(Declined::Unavailable { reason, outcome_unknown: false });
        };
        let dead = self.group.read(|state| {
            let topic = state.topic_by_id(wish.topic);
            topic.is_some_and(|topic| topic.name.is_for_dead_letters())
        });
        let parcel = |granted: &Granted| {
            let death = if dead { self.facts(wish.topic, granted.offset) } else { None };
            let parcel = self.parcel(wish.group, wish.topic, granted, &key).transpose()?;
            Some(parcel.map(|parcel| Parcel { death, ..parcel }))
        };
        granted.iter().filter_map(parcel).collect()
    }

    fn parcel(
        &self,
        group: GroupId,
        topic: TopicId,
        granted: &Granted,
        key: &[u8; 32],
    ) -> Result<Option<Parcel>, Declined> {
        let Some(record) = self.record(granted.unit)? else { return Ok(None) };
        let name = Handle {
            group,
            topic,
            queue: granted.queue,
            offset: granted.offset,
            checkout: granted.checkout,
            attempt: granted.attempt,
        };
        Ok(Some(Parcel {
            record,
            queue: granted.queue,
            offset: granted.offset,
            visible: granted.unit.visible,
            attempt: granted.attempt,
            handle: handle::sign(self.id, &name, key),
            death: None,
        }))
    }

    fn open_parcels(
        &self,
        parcels: Vec<Parcel>,
        request: &ReceiveRequest,
    ) -> Result<Vec<Delivered>, ReceiveError> {
        let labels = [request.topic.as_str(), request.group.as_str()];
        crate::metrics::MESSAGES_OUT.add(labels, parcels.len() as u64);
        let mut delivered = Vec::with_capacity(parcels.len());
        for parcel in parcels {
            let stored = decode_record(&parcel.record).map_err(|error| Unavailable {
                reason: format!(
                    "the record of {} queue {} offset {} cannot be read: {error}",
                    request.topic, parcel.queue, parcel.offset
                ),
                outcome_unknown: false,
            })?;
            delivered.push(Delivered {
                message: stored.message,
                queue: parcel.queue,
                offset: parcel.offset,
                stored: parcel.visible,
                store_host: stored.store_host.to_string(),
                attempt: parcel.attempt,
                handle: parcel.handle,
                death: parcel.death,
            });
        }
        Ok(delivered)
    }
}

/// What a poll asks of the log; `version` and `epoch` are what its takes were computed under (R4).
fn checkout(
    (request, wish): (&ReceiveRequest, &Wish<'_>),
    takes: Vec<Take>,
    (version, epoch): (u32, u32),
) -> Checkout {
    Checkout {
        group: wish.group,
        topic: wish.topic,
        consumer: request.client.clone(),
        attempt_id: request.attempt_id.clone(),
        invisible: request.invisible,
        auto_renew: request.auto_renew,
        subscription_version: version,
        takes,
        epoch,
    }
}

/// Until when a poll looks for another leader.
struct Patience {
    until: Instant,
    was_asked: bool,
}

impl Patience {
    /// Whether to ask again. A leader that was asked and is gone may have handed messages out, which
    /// nobody else gets before their time is over: whoever leads next is asked for the same attempt,
    /// though the poll's own time is over by then.
    fn lasts(&mut self, asked: bool, now: Instant) -> bool {
        if asked && !self.was_asked {
            self.was_asked = true;
            self.until = self.until.max(now + FORWARD_GRACE.duration());
        }
        now < self.until
    }
}

/// How long a [`Mutant`] waits for the log.
const GUESS_AFTER: Duration = Duration::from_millis(30);

/// What a [`Mutant`] hands out that does not wait for the log.
fn guessed(checkout: &Checkout) -> DeliveryOutcome {
    let id = crate::base::CheckoutId::new(0);
    let mut granted = Vec::new();
    for take in &checkout.takes {
        for grant in &take.grants {
            let (queue, offset, unit) = (take.queue, grant.offset, grant.unit);
            granted.push(Granted { queue, offset, attempt: 1, unit, checkout: id });
        }
    }
    DeliveryOutcome::CheckedOut(CheckedOut { checkout: id, granted })
}

/// Where a poll stands: what it asks for, as the leader knows it.
pub(super) struct Place {
    pub(super) group: GroupId,
    pub(super) topic: TopicId,
    pub(super) queues: u32,
    pub(super) desk: Arc<Mutex<Desk>>,
    /// The filter's normal text.
    pub(super) normal: String,
    pub(super) waiter: Waiter,
}

#[derive(Default)]
struct Taken {
    parcels: Vec<Parcel>,
    /// The scan did not see everything.
    more: bool,
    /// Apply gave nothing of what was asked for.
    refused: bool,
}

/// Offers that are in a checkout under way; released also when the caller stops waiting.
struct Reservation {
    desk: Arc<Mutex<Desk>>,
    takes: Vec<(QueueId, Vec<QueueOffset>)>,
    waiters: Waiters,
    group: GroupId,
    topic: TopicId,
    /// Of the reserved messages, those that nobody gets by this checkout.
    idle: usize,
}

impl Reservation {
    fn new(desk: Arc<Mutex<Desk>>, found: &Found, (wish, waiters): (&Wish<'_>, Waiters)) -> Self {
        let offsets =
            |take: &Take| (take.queue, take.grants.iter().map(|grant| grant.offset).collect());
        let takes = found.takes.iter().map(offsets).collect();
        let (group, topic) = (wish.group, wish.topic);
        Self { desk, takes, waiters, group, topic, idle: found.grants }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.desk.lock().settle(&self.takes);
        // Whoever looked meanwhile passed them by and waits.
        if self.idle > 0 {
            self.waiters.ready(self.group, self.topic, self.idle);
        }
    }
}

fn refused(declined: Declined, request: &ReceiveRequest) -> ReceiveError {
    use crate::broker::error::{NoGroup, NoTopic};
    match declined {
        Declined::NoTopic => NoTopic { topic: request.topic.clone() }.into(),
        Declined::NoGroup => NoGroup { group: request.group.clone() }.into(),
        Declined::Busy => Overloaded {
            what: format!("{WAITING_MAX} receives wait already"),
            retry_after: Millis::from_secs(1),
        }
        .into(),
        Declined::Full { what } => Overloaded { what, retry_after: Millis::from_secs(60) }.into(),
        Declined::NotLeader => Unavailable {
            reason: "the broker group has no leader at the moment".into(),
            outcome_unknown: false,
        }
        .into(),
        Declined::Unavailable { reason, outcome_unknown } => {
            Unavailable { reason, outcome_unknown }.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_have_handed_something_out_is_asked_again_though_the_poll_is_over() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut patience = Patience { until: now, was_asked: false };
        assert!(!patience.lasts(false, now), "nobody was asked: another broker group has its turn");
        assert!(patience.lasts(true, now));
        assert!(patience.lasts(false, now + second), "no leader yet");
        assert!(patience.lasts(true, now + second));
        assert!(!patience.lasts(true, now + second * 2), "another ask does not make it longer");
        let mut long = Patience { until: now + second * 20, was_asked: false };
        assert!(long.lasts(true, now) && long.lasts(true, now + second * 19));
        assert!(!long.lasts(true, now + second * 20));
    }
}
