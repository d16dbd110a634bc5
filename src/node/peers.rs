//! What other nodes ask of this one beside Raft, and the registrations that nodes exchange.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use tokio::time::Instant;

use crate::base::{BrokerGroupId, NodeId};
use crate::broker::{ASKED_OF_BROKER, Broker};
use crate::name_server::Registration;
use crate::raft::{Asked, Belonging, Group};

use super::live::Live;

/// The first byte of a request that is for the name server.
const ASKED_OF_NAME_SERVER: u8 = 0x02;
/// How often nodes register with each other; a third of the expiry.
const INTERVAL: Duration = Duration::from_secs(1);
/// A node that does not answer within this is told again in the next round.
const TIMEOUT: Duration = Duration::from_millis(700);

/// Answers one broker group's requests by their first byte. Raft needs it before the broker exists.
#[derive(Debug)]
pub(super) struct Desk {
    live: Arc<Live>,
    id: BrokerGroupId,
    pub(super) broker: OnceLock<Broker>,
    pub(super) group: OnceLock<Group>,
}

impl Desk {
    pub(super) fn new(live: Arc<Live>, id: BrokerGroupId) -> Self {
        Self { live, id, broker: OnceLock::new(), group: OnceLock::new() }
    }

    /// What this node says of itself to the broker group now; nothing unless it is a voter there.
    pub(super) fn own(&self) -> Option<Registration> {
        let group = self.group.get()?;
        if !group.is_voter(self.live.node()) || *group.belonging().borrow() == Belonging::Removed {
            return None;
        }
        let leadership = *group.leadership().borrow();
        Some(self.live.registration(self.id, leadership, &group.status()))
    }
}

impl Desk {
    /// Clients are not sent to a learner, which has not got the state yet, or to a node that was
    /// taken out and still runs.
    fn hear(&self, told: Registration) {
        if self.group.get().is_some_and(|group| group.is_voter(told.node)) {
            self.live.register(told);
        }
    }
}

#[async_trait]
impl Asked for Desk {
    /// An empty answer means that the question was not understood, or came too early.
    async fn answer(&self, from: NodeId, request: Bytes) -> Bytes {
        let Some(kind) = request.first().copied() else { return Bytes::new() };
        let question = request.slice(1..);
        match kind {
            ASKED_OF_BROKER => match self.broker.get() {
                Some(broker) => broker.answer(self.id, question).await,
                None => Bytes::new(),
            },
            ASKED_OF_NAME_SERVER => {
                match Registration::decode(&question) {
                    Ok(told) if told.node == from && told.group == self.id => self.hear(told),
                    Ok(told) => {
                        tracing::warn!(%from, told = %told.node, "a node registered another one");
                    }
                    Err(error) => tracing::warn!(%from, %error, "a registration is refused"),
                }
                self.own().map(|own| own.encode().into()).unwrap_or_default()
            }
            _ => Bytes::new(),
        }
    }
}

/// Registers this node with all others, once a second and at once when the leadership moves.
/// The answer to a registration is the other's own. Never ends.
pub(super) async fn register(desk: Arc<Desk>, group: Group) {
    let mut leadership = group.leadership();
    loop {
        let now = *leadership.borrow_and_update();
        // One that is no voter tells too: the answers say how far it has to go.
        let own = desk.live.registration(desk.id, now, &group.status());
        desk.hear(own.clone());
        let round = async {
            tell_all(&desk, &group, &own).await;
            tokio::time::sleep(INTERVAL).await;
        };
        tokio::select! {
            () = round => {}
            Ok(()) = leadership.changed() => {}
        }
    }
}

/// Tells all others what this node is now, once.
pub(super) async fn tell_now(desk: &Desk) {
    let (Some(group), Some(own)) = (desk.group.get(), desk.own()) else { return };
    tell_all(desk, group, &own).await;
}

async fn tell_all(desk: &Desk, group: &Group, own: &Registration) {
    let mut request = vec![ASKED_OF_NAME_SERVER];
    request.extend(own.encode());
    let request = Bytes::from(request);
    let others = group.members().into_iter().filter(|member| member.node != desk.live.node());
    let told = others.map(async |member| {
        let answer = group.ask(member.node, request.clone(), Instant::now() + TIMEOUT).await;
        // Who cannot be asked expires by itself, and Raft says more about it than could be here.
        let Ok(answer) = answer else { return };
        match Registration::decode(&answer) {
            Ok(theirs) if theirs.node == member.node && theirs.group == own.group => {
                desk.hear(theirs);
            }
            Ok(_) | Err(_) => {}
        }
    });
    join_all(told).await;
}
