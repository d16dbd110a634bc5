//! What a leader does by itself: ticks, renewals, giving up filters; and what every node tells it.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::base::{CheckoutId, ClientId, GroupId, GroupName, Millis, TopicId, UtcMillis};
use crate::broker::Replica;
use crate::broker::clients::{CLIENT_EXPIRY, HUNG_UP_EXPIRY};
use crate::broker::forward;
use crate::broker::lane::LaneTask;
use crate::broker::receive::AUTO_RENEW_STEP;
use crate::broker::remote::Question;
use crate::broker::retention;
use crate::broker::transactions;
use crate::command::{
    Checkout, Command, Delivery, DeliveryOutcome, Release, Renew, Reply, Subscribe,
};
use crate::machine::{Renewal, State};

/// Deliveries that one tick ends at most, and delayed messages that it makes visible, so that no
/// entry takes long to apply. Each tick waits for its sync, so this also bounds how fast they come.
const TICK_LIMIT: u32 = 4096;
/// How long the pulse sleeps at most when nothing is due.
const IDLE: Duration = Duration::from_secs(1);
/// How often renewals, silent clients and unused filters are looked at.
const ROUND: Duration = Duration::from_secs(5);
/// Auto-renewed deliveries are extended when less than this is left.
const RENEW_BEFORE: Millis = Millis::from_secs(30);
/// How soon the messages of a client that is gone become visible: at once, but for an
/// acknowledgement that was sent just before, or just after, its goodbye.
const RELEASE_AFTER: Millis = Millis::new(200);
/// Consumers seen within this time that hold something are told to the leader; two rounds, so that
/// one may be missed.
const TELL_AGE: Duration = Duration::from_secs(10);
/// Checkouts that one step renews at most, so that it stays far below the largest command.
const RENEWALS_MAX: usize = 10_000;
/// Pairs of a group and a topic whose filters one round looks at. The state is held meanwhile, so
/// a round costs the same with a thousand pairs and with a million.
const PAIRS_MAX: usize = 4096;
/// Filters given up in one round at most, so that the round's renewals are not late.
const GIVEN_UP_MAX: usize = 64;
/// Entries with skips alone that one round writes for one group and topic at most.
const SKIP_ENTRIES_MAX: usize = 16;
/// A delivery is renewed for this long at most, as RocketMQ's proxy does.
const RENEW_MAX: Millis = Millis::from_secs(3 * 60 * 60);

/// The duties of a broker; whoever owns the node runs them.
#[derive(Debug)]
pub struct Pulse {
    replica: Replica,
    lane: LaneTask,
}

impl Pulse {
    pub(super) fn new(replica: Replica, lane: LaneTask) -> Self {
        Self { replica, lane }
    }

    /// Runs until dropped.
    pub async fn run(self) {
        let Self { replica, lane } = self;
        let group = replica.group.clone();
        let retained = retention::keep(&replica);
        let (forwarded, checked) = (forward::keep(&replica), transactions::check(&replica));
        let (ticks, rounds, watch) = (tick(&replica), rounds(&replica), watch(&replica));
        tokio::join!(lane.run(group), ticks, rounds, watch, retained, forwarded, checked);
    }
}

/// Proposes a tick as soon as something is due, and never otherwise.
async fn tick(replica: &Replica) {
    loop {
        let due =
            if replica.serving() { replica.group.read(|state| state.next_due()) } else { None };
        // A clock that the majority disagrees with ends nobody's deadline.
        let due = due.filter(|_| !replica.group.health().clock_suspect);
        let now = replica.group.wall();
        match due {
            Some(due) if due <= now => {
                let tick = Command::Tick { limit: TICK_LIMIT };
                let fired = replica.group.propose(tick, replica.default_deadline()).await;
                if !matches!(fired, Ok(Reply::Ticked { .. })) {
                    replica.leader_changed(Millis::new(100)).await;
                }
            }
            Some(due) => rest(replica, due.since(now).duration().min(IDLE)).await,
            None => rest(replica, IDLE).await,
        }
    }
}

/// Sleeps, but no longer than until something was applied.
async fn rest(replica: &Replica, length: Duration) {
    // Both ends of the wait mean the same: look again.
    drop(timeout(length, replica.pulse.notified()).await);
}

/// Whoever waits must look again when leadership moves; what was known locally is void then.
async fn watch(replica: &Replica) {
    let mut leadership = replica.group.leadership();
    let mut serving = false;
    loop {
        let now = leadership.borrow_and_update().serving;
        if now != serving {
            serving = now;
            replica.desks.clear();
            replica.subscriptions.clear();
            if serving {
                lease_all(replica);
            }
        }
        replica.waiters.wake_all();
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

/// A new leader has not heard of all clients yet: each holder of a delivery gets a full lease.
fn lease_all(replica: &Replica) {
    let all = replica.group.read(|state| state.renewals(UtcMillis::new(u64::MAX)));
    let mut holders: Vec<ClientId> = all.into_iter().map(|renewal| renewal.consumer).collect();
    holders.sort();
    holders.dedup();
    for holder in holders {
        replica.client_told(&holder);
    }
}

async fn rounds(replica: &Replica) {
    let mut next = Instant::now() + ROUND;
    let mut last_pair = None;
    let mut leadership = replica.group.leadership();
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            // Another leader is told at once: what the one before knew may end with it.
            Ok(()) = leadership.changed() => {
                tell_leader(replica).await;
                continue;
            }
        }
        next = Instant::now() + ROUND;
        let now = replica.env.clock.monotonic();
        replica.clients.expire(now);
        replica.subscriptions.expire_members(now);
        replica.group.read(|state| replica.written.keep(now, |id| waits(state, id)));
        if replica.serving() {
            renew(replica).await;
            forget_gone(replica);
            last_pair = give_up_filters(replica, last_pair).await;
            log_skips(replica, now).await;
        } else {
            tell_leader(replica).await;
        }
    }
}

/// Extends what living clients hold, and takes back what dead ones held (rule R23).
async fn renew(replica: &Replica) {
    let wall = replica.group.wall();
    let now = replica.env.clock.monotonic();
    let due = replica.group.read(|state| state.renewals(wall.plus(RENEW_BEFORE)));
    let mut alive: Vec<CheckoutId> = Vec::new();
    let mut gone: Vec<(GroupId, ClientId)> = Vec::new();
    for renewal in due {
        if !replica.clients.is_alive(&renewal.consumer, now) {
            gone.push((renewal.group, renewal.consumer));
        } else if is_renewed(&renewal, wall, |id| replica.written.contains(id)) {
            alive.push(renewal.checkout);
        }
    }
    gone.extend(vanished(replica, now));
    gone.sort();
    gone.dedup();
    for part in alive.chunks(RENEWALS_MAX) {
        let renew = Renew { checkouts: part.to_vec(), invisible: AUTO_RENEW_STEP };
        submit(replica, Delivery::Renew(renew)).await;
    }
    for (group, consumer) in gone {
        tracing::info!(
            %consumer,
            "silent for {CLIENT_EXPIRY:?}, or for {HUNG_UP_EXPIRY:?} after its streams broke: its \
             messages become visible"
        );
        let release = Release { group, consumer, invisible: RELEASE_AFTER };
        submit(replica, Delivery::Release(release)).await;
    }
}

/// Who hung up and still holds something. Its messages do not wait for the time of their renewal.
fn vanished(replica: &Replica, now: Duration) -> Vec<(GroupId, ClientId)> {
    let mut holders = Vec::new();
    for (consumer, groups) in replica.clients.vanished(now) {
        replica.group.read(|state| {
            let groups = groups.iter().filter_map(|group| state.group(group)).map(|group| group.id);
            let held = groups.filter(|group| state.holds(*group, &consumer));
            holders.extend(held.map(|group| (group, consumer.clone())));
        });
    }
    holders
}

/// What nobody has written to its client is with nobody, though the client lives (rule R22).
fn is_renewed(renewal: &Renewal, wall: UtcMillis, written: impl Fn(CheckoutId) -> bool) -> bool {
    let has_it = renewal.renewed || written(renewal.checkout);
    has_it && wall.since(renewal.first) < RENEW_MAX
}

/// Whether the log does not show yet that a checkout reached its client.
fn waits(state: &State, id: CheckoutId) -> bool {
    state.checkout(id).is_some_and(|checkout| {
        checkout.auto_renew && checkout.until == checkout.first.plus(checkout.invisible)
    })
}

/// False when it is not known to have been done.
async fn submit(replica: &Replica, delivery: Delivery) -> bool {
    let submitted = replica.lane.submit(delivery, replica.default_deadline()).await;
    if let Err(error) = &submitted {
        tracing::debug!(%error, "tried again in the next round");
    }
    matches!(submitted, Ok(outcome) if !matches!(outcome, DeliveryOutcome::Refused(_)))
}

fn forget_gone(replica: &Replica) {
    replica.group.read(|state| {
        replica.desks.keep(|group, topic| {
            state.group_by_id(group).is_some() && state.topic_by_id(topic).is_some()
        });
    });
}

/// Looks at the pairs behind `after` and answers where the next round goes on.
async fn give_up_filters(
    replica: &Replica,
    after: Option<(GroupId, TopicId)>,
) -> Option<(GroupId, TopicId)> {
    let now = replica.env.clock.monotonic();
    let mut last = None;
    let mut unused = Vec::new();
    replica.group.read(|state| {
        for (count, (group, topic)) in (1..).zip(state.subscribed_after(after)) {
            let idle = |expression: &&String| {
                !replica.waiters.has(group, topic, expression)
                    && replica.subscriptions.is_unused(group, topic, expression, now)
            };
            let idle = state.subscriptions(group, topic).1.iter().filter(idle);
            unused.extend(idle.map(|text| Subscribe { group, topic, expression: text.clone() }));
            if count == PAIRS_MAX || unused.len() >= GIVEN_UP_MAX {
                last = Some((group, topic));
                break;
            }
        }
    });
    for subscribe in unused {
        replica.subscriptions.forget(subscribe.group, subscribe.topic, &subscribe.expression);
        let unsubscribe = Command::Unsubscribe(subscribe);
        if let Err(error) = replica.group.propose(unsubscribe, replica.default_deadline()).await {
            tracing::debug!(%error, "tried again when the filter has been unused for as long again");
        }
    }
    last
}

/// Messages that nobody wants stop counting as a backlog, though no receive took any other.
async fn log_skips(replica: &Replica, now: Duration) {
    let consumer = ClientId::new("raftmq-skips").expect("the name is a client id");
    for ((group, topic), desk) in replica.desks.all() {
        desk.lock().look_at_all_lines();
        // Nothing is taken in of a paused group, skips neither: they wait where they are.
        if replica.group.read(|state| state.is_paused(group)) {
            continue;
        }
        for _ in 0..SKIP_ENTRIES_MAX {
            let overdue = desk.lock().overdue_skips(now);
            let Some((under, takes)) = overdue else { break };
            let skips = Checkout {
                group,
                topic,
                consumer: consumer.clone(),
                attempt_id: None,
                invisible: Millis::ZERO,
                auto_renew: false,
                subscription_version: under.version,
                takes: takes.clone(),
                epoch: under.epoch,
            };
            if !submit(replica, Delivery::Checkout(skips)).await {
                desk.lock().note_not_skipped(&takes);
                break;
            }
        }
    }
}

async fn tell_leader(replica: &Replica) {
    let now = replica.env.clock.monotonic();
    // The leader asks who lives only of those that hold something; what is not applied here yet is
    // told in the next round, long before its time is over.
    let consumers = replica.group.read(|state| {
        let holds = |group: &GroupName, consumer: &ClientId| {
            state.group(group).is_some_and(|group| state.holds(group.id, consumer))
        };
        replica.clients.recent_holders(TELL_AGE, now, holds)
    });
    let Some(leader) = replica.leader() else { return };
    // What is beyond this is told in the next rounds, when the first ones have been renewed.
    let written: Vec<CheckoutId> = replica.written.all().into_iter().take(RENEWALS_MAX).collect();
    if consumers.is_empty() && written.is_empty() || leader == replica.node() {
        return;
    }
    let question = Question::Seen { consumers, written }.encode();
    if let Err(error) = replica.ask(leader, question, replica.default_deadline()).await {
        tracing::debug!(%error, "told again in the next round");
    }
}

impl Replica {
    /// A client said goodbye: what it holds in `group` becomes visible almost at once.
    pub(super) async fn client_gone(&self, client: &ClientId, group: &GroupName) {
        // A follower may not have applied the client's last checkout yet: it cannot tell that the
        // client holds nothing.
        let is_sure = self.serving();
        let held = self.group.read(|state| {
            let group = state.group(group)?.id;
            (!is_sure || !state.checkouts_of(group, client).is_empty()).then_some(group)
        });
        if let Some(group) = held {
            let release = Release { group, consumer: client.clone(), invisible: RELEASE_AFTER };
            submit(self, Delivery::Release(release)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that serves a client may die before the client has read what it was handed.
    #[test]
    fn only_what_reached_its_client_is_renewed() {
        let first = UtcMillis::new(1_000_000);
        let renewal = |renewed| Renewal {
            checkout: CheckoutId::new(7),
            consumer: ClientId::new("c").unwrap(),
            group: GroupId::new(1),
            first,
            renewed,
        };
        let wall = first.plus(Millis::from_secs(40));
        assert!(!is_renewed(&renewal(false), wall, |_| false));
        assert!(is_renewed(&renewal(false), wall, |id| id == CheckoutId::new(7)));
        assert!(is_renewed(&renewal(true), wall, |_| false), "the log says that it reached it");
        let late = first.plus(RENEW_MAX);
        assert!(!is_renewed(&renewal(true), late, |_| true));
    }
}
