//! What a leader does by itself: ticks, renewals, giving up filters; and what every node tells it.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::base::{CheckoutId, ClientId, GroupId, GroupName, Millis, TopicId, UtcMillis};
use crate::broker::Broker;
use crate::broker::clients::CLIENT_EXPIRY;
use crate::broker::lane::LaneTask;
use crate::broker::receive::AUTO_RENEW_STEP;
use crate::broker::remote::Question;
use crate::command::{Checkout, Command, Delivery, Release, Renew, Reply, Subscribe};
use crate::machine::State;

/// Deliveries that one tick ends at most, so that no entry takes long to apply.
const TICK_LIMIT: u32 = 1024;
/// How long the pulse sleeps at most when nothing is due.
const IDLE: Duration = Duration::from_secs(1);
/// How often renewals, silent clients and unused filters are looked at.
const ROUND: Duration = Duration::from_secs(5);
/// Auto-renewed deliveries are extended when less than this is left.
const RENEW_BEFORE: Millis = Millis::from_secs(30);
/// How soon the messages of a client that is gone become visible.
const RELEASE_AFTER: Millis = Millis::from_secs(1);
/// Consumers seen within this time are told to the leader; two rounds, so that one may be missed.
const TELL_AGE: Duration = Duration::from_secs(10);
/// Checkouts that one step renews at most, so that it stays far below the largest command.
const RENEWALS_MAX: usize = 10_000;
/// Filters given up in one round at most, so that the round's renewals are not late.
const GIVEN_UP_MAX: usize = 64;
/// A delivery is renewed for this long at most, as RocketMQ's proxy does.
const RENEW_MAX: Millis = Millis::from_secs(3 * 60 * 60);

/// The duties of a broker; whoever owns the node runs them.
#[derive(Debug)]
pub struct Pulse {
    broker: Broker,
    lane: LaneTask,
}

impl Pulse {
    pub(super) fn new(broker: Broker, lane: LaneTask) -> Self {
        Self { broker, lane }
    }

    /// Runs until dropped.
    pub async fn run(self) {
        let Self { broker, lane } = self;
        let group = broker.group.clone();
        tokio::join!(lane.run(group), tick(&broker), rounds(&broker), watch(&broker));
    }
}

/// Proposes a tick as soon as something is due, and never otherwise.
async fn tick(broker: &Broker) {
    loop {
        let due = if broker.serving() { broker.group.read(|state| state.next_due()) } else { None };
        let now = broker.env.clock.wall();
        match due {
            Some(due) if due <= now => {
                let tick = Command::Tick { limit: TICK_LIMIT };
                let fired = broker.group.propose(tick, broker.default_deadline()).await;
                if !matches!(fired, Ok(Reply::Ticked { .. })) {
                    broker.leader_changed(Millis::new(100)).await;
                }
            }
            Some(due) => rest(broker, due.since(now).duration().min(IDLE)).await,
            None => rest(broker, IDLE).await,
        }
    }
}

/// Sleeps, but no longer than until something was applied.
async fn rest(broker: &Broker, length: Duration) {
    // Both ends of the wait mean the same: look again.
    drop(timeout(length, broker.pulse.notified()).await);
}

/// Whoever waits must look again when leadership moves; what was known locally is void then.
async fn watch(broker: &Broker) {
    let mut leadership = broker.group.leadership();
    let mut serving = false;
    loop {
        let now = leadership.borrow_and_update().serving;
        if now != serving {
            serving = now;
            broker.desks.clear();
            broker.subscriptions.clear();
            if serving {
                lease_all(broker);
            }
        }
        broker.waiters.wake_all();
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

/// A new leader has not heard of all clients yet: each holder of a delivery gets a full lease.
fn lease_all(broker: &Broker) {
    let all = broker.group.read(|state| state.renewals(UtcMillis::new(u64::MAX)));
    for renewal in all {
        broker.client_seen(&renewal.consumer, super::ClientKind::PushConsumer, None);
    }
}

async fn rounds(broker: &Broker) {
    let mut next = Instant::now() + ROUND;
    loop {
        tokio::time::sleep_until(next).await;
        next = Instant::now() + ROUND;
        let now = broker.env.clock.monotonic();
        broker.clients.expire(now);
        if broker.serving() {
            renew(broker).await;
            forget_gone(broker);
            give_up_filters(broker).await;
            log_skips(broker, now).await;
        } else {
            tell_leader(broker).await;
        }
    }
}

/// Extends what living clients hold, and takes back what dead ones held (rule R23).
async fn renew(broker: &Broker) {
    let wall = broker.env.clock.wall();
    let now = broker.env.clock.monotonic();
    let due = broker.group.read(|state| state.renewals(wall.plus(RENEW_BEFORE)));
    let mut alive: Vec<CheckoutId> = Vec::new();
    let mut gone: Vec<(GroupId, ClientId)> = Vec::new();
    for renewal in due {
        if !broker.clients.is_alive(&renewal.consumer, now) {
            gone.push((renewal.group, renewal.consumer));
        } else if wall.since(renewal.first) < RENEW_MAX {
            alive.push(renewal.checkout);
        }
    }
    gone.sort();
    gone.dedup();
    for part in alive.chunks(RENEWALS_MAX) {
        let renew = Renew { checkouts: part.to_vec(), invisible: AUTO_RENEW_STEP };
        submit(broker, Delivery::Renew(renew)).await;
    }
    for (group, consumer) in gone {
        tracing::info!(%consumer, "silent for {CLIENT_EXPIRY:?}: its messages become visible");
        let release = Release { group, consumer, invisible: RELEASE_AFTER };
        submit(broker, Delivery::Release(release)).await;
    }
}

async fn submit(broker: &Broker, delivery: Delivery) {
    if let Err(error) = broker.lane.submit(delivery, broker.default_deadline()).await {
        tracing::debug!(%error, "tried again in the next round");
    }
}

fn forget_gone(broker: &Broker) {
    broker.group.read(|state| {
        broker.desks.keep(|group, topic| {
            state.group_by_id(group).is_some() && state.topic_by_id(topic).is_some()
        });
    });
}

async fn give_up_filters(broker: &Broker) {
    let now = broker.env.clock.monotonic();
    let live: Vec<Subscribe> = broker.group.read(|state| {
        state.subscribed().flat_map(|(group, topic)| filters(state, group, topic)).collect()
    });
    let unused = live.into_iter().filter(|Subscribe { group, topic, expression }| {
        !broker.waiters.has(*group, *topic, expression)
            && broker.subscriptions.is_unused(*group, *topic, expression, now)
    });
    for subscribe in unused.take(GIVEN_UP_MAX) {
        broker.subscriptions.forget(subscribe.group, subscribe.topic, &subscribe.expression);
        let unsubscribe = Command::Unsubscribe(subscribe);
        if let Err(error) = broker.group.propose(unsubscribe, broker.default_deadline()).await {
            tracing::debug!(%error, "tried again when the filter has been unused for as long again");
        }
    }
}

fn filters(state: &State, group: GroupId, topic: TopicId) -> Vec<Subscribe> {
    let (_, expressions) = state.subscriptions(group, topic);
    let subscribe =
        |expression: &String| Subscribe { group, topic, expression: expression.clone() };
    expressions.iter().map(subscribe).collect()
}

/// Messages that nobody wants stop counting as a backlog, though no receive took any other.
async fn log_skips(broker: &Broker, now: Duration) {
    let consumer = ClientId::new("raftmq-skips").expect("the name is a client id");
    for ((group, topic), desk) in broker.desks.all() {
        let Some((subscription_version, takes)) = desk.lock().overdue_skips(now) else { continue };
        let skips = Checkout {
            group,
            topic,
            consumer: consumer.clone(),
            attempt_id: None,
            invisible: Millis::ZERO,
            auto_renew: false,
            subscription_version,
            takes,
        };
        submit(broker, Delivery::Checkout(skips)).await;
    }
}

async fn tell_leader(broker: &Broker) {
    let consumers = broker.clients.recent_consumers(TELL_AGE, broker.env.clock.monotonic());
    let Some(leader) = broker.leader() else { return };
    if consumers.is_empty() || leader == broker.node() {
        return;
    }
    let question = Question::Seen { consumers }.encode();
    if let Err(error) = broker.ask(leader, question, broker.default_deadline()).await {
        tracing::debug!(%error, "told again in the next round");
    }
}

impl Broker {
    /// A client said goodbye: what it holds in `group` becomes visible within a second.
    pub async fn client_gone(&self, client: &ClientId, group: Option<&GroupName>) {
        self.clients.forget(client);
        let Some(group) = group else { return };
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
