//! The leader's part of checks: it finds a producer, has it asked, and logs that it was.
//!
//! A check that reaches nobody leaves no trace, and is tried again in the next round.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use tokio::time::{Instant, timeout};

use super::TransactionCheck;
use super::id::TransactionName;
use super::parcel::{CheckParcel, Living, Wanted, decode_asked, decode_living};
use crate::base::{LogPosition, NodeId, TopicId, TopicName, UtcMillis};
use crate::broker::Replica;
use crate::broker::remote::Question;
use crate::command::{Checked, Command, Transaction};
use crate::machine::{Half, State};
use crate::message::{MessageIdHash, decode_record};

/// How long the leader rests at most.
const IDLE: Duration = Duration::from_secs(1);
/// Pause behind a round that had something to do: what reached nobody is due at once again.
const PAUSE: Duration = Duration::from_millis(500);
/// Topics and checks of one round.
const TOPICS_MAX: usize = 64;
const CHECKS_MAX: usize = 256;
/// Bytes of records that one round carries, unless one alone has more.
const BYTES_MAX: usize = 1 << 20;
/// How long another node may take to answer: longer than its producers may take.
const PEER_TIMEOUT: Duration = Duration::from_secs(3);
/// Whom one round asks about one half message at most, one after the other.
const PASSES_MAX: usize = 3;

/// Where the next round goes on.
#[derive(Debug, Default)]
struct Turn {
    /// Behind this topic.
    topic: Option<TopicId>,
    /// Within a topic that had more than its share, behind this check: those before it may have
    /// reached nobody, and must not be the only ones ever tried.
    within: BTreeMap<TopicId, (UtcMillis, LogPosition)>,
    /// Counts rounds: what reached nobody is asked of another node then.
    round: usize,
}

/// Runs until dropped.
pub(in crate::broker) async fn check(replica: &Replica) {
    let mut turn = Turn::default();
    loop {
        let now = replica.group.wall();
        let due = if replica.serving() && !replica.group.health().clock_suspect {
            replica.group.read(|state| state.next_check())
        } else {
            None
        };
        let rest = match due {
            Some(due) if due <= now => {
                round(replica, &mut turn, now).await;
                PAUSE
            }
            Some(due) => due.since(now).duration().min(IDLE),
            None => IDLE,
        };
        let mut leadership = replica.group.leadership();
        // Both ends of the wait mean the same: look again.
        drop(timeout(rest, leadership.changed()).await);
    }
}

/// A half message whose check is due.
#[derive(Clone)]
struct Due {
    at: LogPosition,
    half: Half,
    topic: TopicName,
}

/// Asks whom it can. A producer that lives and does not read its stream is passed by for others.
async fn round(replica: &Replica, turn: &mut Turn, now: UtcMillis) {
    let mut waiting = replica.group.read(|state| due(state, turn, now));
    turn.round = turn.round.wrapping_add(1);
    if waiting.is_empty() {
        return;
    }
    let living = living(replica, &waiting).await;
    let mut checked: Vec<Checked> = Vec::new();
    for pass in 0..PASSES_MAX {
        let mut by_node: BTreeMap<NodeId, Vec<(Due, Checked, CheckParcel)>> = BTreeMap::new();
        for due in waiting.drain(..) {
            let whom = whom(&due, &living, turn.round);
            let Some((node, original)) = whom.get(pass).copied() else { continue };
            if let Some((check, parcel)) = parcel(replica, due.clone(), original) {
                by_node.entry(node).or_default().push((due, check, parcel));
            }
        }
        let asked = by_node.into_iter().map(|(node, asking)| ask(replica, node, asking));
        for (due, check, asked) in join_all(asked).await.into_iter().flatten() {
            if asked {
                checked.push(check);
            } else {
                waiting.push(due);
            }
        }
    }
    if checked.is_empty() {
        return;
    }
    let check = Command::Check(checked);
    if let Err(error) = replica.group.propose(check, replica.default_deadline()).await {
        tracing::debug!(%error, "producers were asked, which is not logged: they are asked again");
    }
}

fn due(state: &State, turn: &mut Turn, now: UtcMillis) -> Vec<Due> {
    let topics: Vec<TopicId> = state.topics_to_check(now, turn.topic).take(TOPICS_MAX).collect();
    if topics.is_empty() && turn.topic.is_none() {
        turn.within.clear();
    }
    let share = (CHECKS_MAX / topics.len().max(1)).max(1);
    // Fewer than may be: the next round begins with the first topic.
    turn.topic = topics.last().copied().filter(|_| topics.len() == TOPICS_MAX);
    let (mut due, mut bytes) = (Vec::new(), 0);
    for id in &topics {
        let Some(topic) = state.topic_by_id(*id) else { continue };
        let behind = turn.within.remove(id);
        let mut taken = 0;
        for (at, half) in state.checks_due(*id, now, behind).take(share) {
            let size = half.unit.size as usize;
            if bytes > 0 && bytes + size > BYTES_MAX {
                turn.topic = Some(*id);
                if let (0, Some(behind)) = (taken, behind) {
                    turn.within.insert(*id, behind);
                }
                return due;
            }
            bytes += size;
            taken += 1;
            turn.within.insert(*id, (half.due, at));
            due.push(Due { at, half: half.clone(), topic: topic.name.clone() });
        }
        if taken < share {
            turn.within.remove(id);
        }
    }
    due
}

/// Who lives where, of those that may be asked: by node, then by topic. This node comes first.
type Everywhere = Vec<(NodeId, BTreeMap<TopicName, Living>)>;

async fn living(replica: &Replica, due: &[Due]) -> Everywhere {
    let mut by_topic: BTreeMap<TopicName, Wanted> = BTreeMap::new();
    for Due { half, topic, .. } in due {
        let fresh = || Wanted { topic: topic.clone(), clients: Vec::new() };
        let wanted = by_topic.entry(topic.clone()).or_insert_with(fresh);
        if !wanted.clients.contains(&half.producer) {
            wanted.clients.push(half.producer.clone());
        }
    }
    let wanted: Vec<Wanted> = by_topic.into_values().collect();
    let own = replica.node();
    let others = replica.group.members().into_iter().map(|member| member.node);
    let nodes = [own].into_iter().chain(others.filter(|node| *node != own));
    let wanted = &wanted;
    let told = nodes.map(|node| async move {
        let living = living_at(replica, node, wanted).await;
        let topics = wanted.iter().map(|wanted| wanted.topic.clone());
        (node, topics.zip(living).collect())
    });
    join_all(told).await
}

/// Nobody, when the node cannot be asked.
async fn living_at(replica: &Replica, node: NodeId, wanted: &[Wanted]) -> Vec<Living> {
    if node == replica.node() {
        return replica.producers.living(wanted);
    }
    let question = Question::Producers(wanted.to_vec()).encode();
    let answer = replica.ask(node, question, Instant::now() + PEER_TIMEOUT).await;
    answer.ok().and_then(|answer| decode_living(answer).ok()).unwrap_or_default()
}

/// Whom to ask, one after the other until one was: the one that prepared it, and then any producer
/// of the topic, on other nodes first in other rounds and checks, so that one that does not answer
/// is not asked for ever. Each with whether it is the one that prepared it.
fn whom(due: &Due, everywhere: &Everywhere, round: usize) -> Vec<(NodeId, bool)> {
    let living =
        everywhere.iter().filter_map(|(node, living)| Some((node, living.get(&due.topic)?)));
    let original = living.clone().find(|(_, living)| living.clients.contains(&due.half.producer));
    let original = original.map(|(node, _)| (*node, true));
    let mut any: Vec<(NodeId, bool)> =
        living.filter(|(_, living)| living.any).map(|(node, _)| (*node, false)).collect();
    let checks = usize::try_from(due.half.checks).unwrap_or_default();
    let turn = checks.wrapping_add(round) % any.len().max(1);
    any.rotate_left(turn);
    original.into_iter().chain(any).collect()
}

/// `None` when it was decided meanwhile, or cannot be read, which ends the node.
fn parcel(replica: &Replica, due: Due, original: bool) -> Option<(Checked, CheckParcel)> {
    let Due { at, half, .. } = due;
    let record: Bytes = replica.record(half.unit).ok()??;
    let stored = decode_record(&record).map_err(|error| replica.storage(&error)).ok()?;
    let transaction = Transaction { topic: half.topic, at };
    let message = MessageIdHash::of(&stored.message.message_id);
    let key = replica.signing_key().ok()?;
    let parcel = CheckParcel {
        transaction: TransactionName { transaction, message }.sign(replica.id, &key),
        queue: half.queue,
        prepared: half.prepared(),
        record,
        client: original.then_some(half.producer),
    };
    Some((Checked { transaction, number: half.checks.saturating_add(1) }, parcel))
}

/// Tells which were asked.
async fn ask(
    replica: &Replica,
    node: NodeId,
    asking: Vec<(Due, Checked, CheckParcel)>,
) -> Vec<(Due, Checked, bool)> {
    let parcels: Vec<CheckParcel> = asking.iter().map(|(_, _, parcel)| parcel.clone()).collect();
    let asked = if node == replica.node() {
        replica.ask_producers(parcels).await
    } else {
        let question = Question::Check(parcels).encode();
        let answer = replica.ask(node, question, Instant::now() + PEER_TIMEOUT).await;
        answer.ok().and_then(|answer| decode_asked(answer).ok()).unwrap_or_default()
    };
    let asked = asked.into_iter().chain(std::iter::repeat(false));
    asking.into_iter().zip(asked).map(|((due, check, _), asked)| (due, check, asked)).collect()
}

impl Replica {
    /// Asks producers of this node; tells which questions were written to one.
    pub(in crate::broker) async fn ask_producers(&self, parcels: Vec<CheckParcel>) -> Vec<bool> {
        let asked = parcels.into_iter().map(|parcel| async move {
            let stored = decode_record(&parcel.record)
                .map_err(|error| tracing::warn!(%error, "a half message cannot be read"))
                .ok();
            let Some(stored) = stored else { return false };
            let check = TransactionCheck {
                transaction: parcel.transaction,
                message: stored.message,
                queue: parcel.queue,
                prepared: parcel.prepared,
                store_host: stored.store_host.to_string(),
            };
            self.producers.ask(parcel.client.as_ref(), &check).await
        });
        join_all(asked).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{ClientId, Millis, QueueId};
    use crate::command::Unit;

    fn client(name: &str) -> ClientId {
        ClientId::new(name).unwrap()
    }

    fn due(checks: u32) -> Due {
        let at = LogPosition::new(9);
        let visible = UtcMillis::ZERO;
        let half = Half {
            topic: TopicId::new(1),
            queue: QueueId::new(0),
            unit: Unit { position: at, size: 1, tag_hash: 0, group_hash: 0, visible },
            producer: client("sender"),
            interval: Millis::from_secs(1),
            checks_max: 5,
            checks,
            due: visible,
        };
        Due { at, half, topic: TopicName::new("t").unwrap() }
    }

    /// Who lives on nodes 1, 2 and so on.
    fn everywhere(nodes: &[(&str, bool)]) -> Everywhere {
        let node = |(at, (clients, any)): (u64, &(&str, bool))| {
            let clients = clients.split_whitespace().map(client).collect();
            let living = Living { clients, any: *any };
            (NodeId::new(at), BTreeMap::from([(TopicName::new("t").unwrap(), living)]))
        };
        (1..).zip(nodes).map(node).collect()
    }

    #[test]
    fn the_sender_is_asked_first_while_it_lives_then_all_others_in_turn() {
        let asked = |checks, nodes: &[(&str, bool)], round| -> Vec<(u64, bool)> {
            let whom = whom(&due(checks), &everywhere(nodes), round);
            whom.into_iter().map(|(node, original)| (node.get(), original)).collect()
        };
        let lives = [("", true), ("sender", true), ("", false)];
        assert_eq!(asked(0, &lives, 0), [(2, true), (1, false), (2, false)]);
        // It does not read, so no check is counted: others come first on other nodes in turn.
        assert_eq!(asked(0, &lives, 1), [(2, true), (2, false), (1, false)]);
        let others = [("", true), ("", false), ("", true)];
        let turns: Vec<_> = (0..4).map(|checks| asked(checks, &others, 0)[0]).collect();
        assert_eq!(turns, [1, 3, 1, 3].map(|node| (node, false)));
        assert_eq!(asked(0, &[("", false), ("", false)], 0), []);
        assert_eq!(asked(0, &[], 0), []);
        // A node that could not be asked says nothing of any topic.
        assert_eq!(whom(&due(0), &vec![(NodeId::new(1), BTreeMap::new())], 0), []);
    }
}
