//! Looks at the replicas: at each moment for what Raft promises, and at the end for what they hold.

use std::collections::BTreeMap;

use raftmq::base::{LogIndex, QueueId, QueueOffset};
use raftmq::message::decode_record;
use raftmq::raft::{Group, Role};

use super::books::Reader;
use super::clients::producer::decode;
use super::clients::{Workload, group_name, topic_name};
use super::node::Node;
use super::run::{Cluster, Seat};
use crate::checkers::raft::{EntryMark, Look, RaftChecker};
use crate::checkers::replicas::Replica;
use crate::history::{Place, Value};

/// Steps between two looks.
const EVERY: u64 = 3;

pub(super) struct Watch {
    pub(super) raft: RaftChecker,
    pub(super) reader: Reader,
    steps: u64,
}

impl Watch {
    pub(super) fn new(nodes: usize, workload: &Workload) -> Self {
        let hard = workload.hard.as_ref().map(|_| workload.groups);
        Self { raft: RaftChecker::new(nodes), reader: Reader::new(hard), steps: 0 }
    }

    pub(super) fn look(&mut self, cluster: &mut Cluster) {
        for (node, flushed) in cluster.last_words.drain(..) {
            self.raft.flushed(node, flushed);
        }
        for node in cluster.wiped.drain(..) {
            self.raft.wiped(node);
        }
        self.steps += 1;
        if !self.steps.is_multiple_of(EVERY) {
            return;
        }
        let replica = |(at, seat): (usize, &Seat)| {
            let group = seat.node.replica.lock().clone()?;
            Some((at, group, (seat.life, seat.rotten)))
        };
        let running: Vec<_> = cluster.nodes.iter().enumerate().filter_map(replica).collect();
        let looks: Vec<_> = running
            .into_iter()
            .map(|(at, group, (life, rotten))| (at, look_at(&group, life), (group, rotten)))
            .collect();
        for (at, look, _) in &looks {
            self.raft.flushed(*at, look.flushed);
        }
        let now = cluster.world.now();
        let sound = looks.iter().filter(|(_, _, (_, rotten))| !rotten);
        let sound: Vec<Group> = sound.map(|(_, _, (group, _))| group.clone()).collect();
        for group in &sound {
            self.reader.look(group, now);
        }
        self.reader.pass_purged(&sound);
        for (at, look, (group, rotten)) in looks {
            // A bit that flips under a running program is found by the scrub; until then its own
            // reads of what it wrote are not checked again, and neither is this one.
            let mark = |index| if rotten { None } else { mark_of(&group, index) };
            self.raft.observe(at, look, mark);
        }
    }
}

fn look_at(group: &Group, life: u64) -> Look {
    let status = group.status();
    let bounds = group.log().bounds();
    let vote = group.log().vote();
    Look {
        life,
        leads: status.role == Role::Leader,
        serves: group.leadership().borrow().serving,
        term: status.term.get(),
        vote: vote.map(|vote| (vote.term.get(), vote.node.get(), vote.committed)),
        first: bounds.first.map(LogIndex::get),
        last: bounds.last.map(|(index, _)| index.get()),
        committed: status.committed.map(LogIndex::get),
        applied: status.applied.map(LogIndex::get),
        flushed: bounds.flushed.map(LogIndex::get),
    }
}

fn mark_of(group: &Group, index: u64) -> Option<EntryMark> {
    let index = LogIndex::new(index);
    let frames = group.log().read(index, index.next(), 1).ok()?;
    let frame = frames.first()?;
    Some((frame.term.get(), frame.seal?.crc))
}

/// Everything that clients could see of a replica, read from it directly.
pub(super) fn content(node: &Node, at: usize, workload: &Workload) -> Option<Replica> {
    let group = node.replica.lock().clone()?;
    let mut replica = Replica { node: at, ..Replica::default() };
    group.read(|state| {
        replica.applied = state.applied().map(|(index, _)| index.get());
        replica.state_hash = state.hash();
        replica.units_hash = state.units_hash().ok();
        for topic in 0..u32::MAX {
            let Some(found) = state.topic(&topic_name(topic)) else { break };
            for queue in 0..found.queues {
                let id = QueueId::new(queue);
                let (start, end) =
                    (state.queue_start(found.id, id).get(), state.queue_end(found.id, id).get());
                replica.queues.insert((topic, queue), (start, end));
                for offset in start..end {
                    let units = state.units(found.id, id, QueueOffset::new(offset), 1);
                    let Some(unit) = units.ok().and_then(|units| units.first().copied()) else {
                        continue;
                    };
                    let value = value_of(&group, state.locate(unit).position, unit.size);
                    replica.values.insert(Place { topic, queue, offset }, value);
                }
            }
            lag_of(state, (topic, found.id), workload, &mut replica.lag);
            for group in 0..u32::MAX {
                let Some(group_found) = state.group(&group_name(group)) else { break };
                let expired = state.expired(group_found.id, found.id);
                if expired > 0 {
                    replica.expired.insert((group, topic), expired);
                }
            }
        }
    });
    Some(replica)
}

/// What all groups have before them on all topics, delayed messages included.
pub(super) fn left(group: &Group, workload: &Workload) -> u64 {
    let (mut lag, mut delayed) = (BTreeMap::new(), 0);
    group.read(|state| {
        for number in 0..u32::MAX {
            let Some(topic) = state.topic(&topic_name(number)) else { break };
            lag_of(state, (number, topic.id), workload, &mut lag);
        }
        delayed = state.delayed() as u64;
    });
    delayed + lag.values().sum::<u64>()
}

fn lag_of(
    state: &raftmq::machine::State,
    (number, topic): (u32, raftmq::base::TopicId),
    workload: &Workload,
    lag: &mut BTreeMap<u32, u64>,
) {
    for group in 0..u32::MAX {
        let Some(found) = state.group(&group_name(group)) else { break };
        if !workload.takes(group, number) {
            continue;
        }
        let left = state.lag(found.id, topic);
        *lag.entry(group).or_default() += left.ready + left.in_flight;
    }
}

fn value_of(group: &Group, position: raftmq::base::LogPosition, size: u32) -> Option<Value> {
    let record = group.log().read_record(position, size).ok()?;
    let stored = decode_record(&record).ok()?;
    decode(&stored.message.body)
}
