//! What replicas tell each other beside Raft: their clocks, what their disks have left, and how
//! long their syncs take. From it each replica decides whether it may lead, how far its stamps are
//! held back, and what is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::base::{ByteSize, NodeId, UtcMillis};
use crate::env::Clock;
use crate::raft::clock::{self, Jump, Verdict};
use crate::raft::group::{Running, Shared};
use crate::raft::options::Member;
use crate::raft::peers::Lane;
use crate::raft::room::{Pressure, Standing, Watermarks, of_majority};
use crate::wire::raftmq as wire;

/// Between two rounds. What fills a disk in this time has to fit what is set aside.
const ROUND: Duration = Duration::from_millis(250);
/// While this node does not know the time of a majority, which it must before it may stand for
/// election.
const FIRST_ROUND: Duration = Duration::from_millis(20);
/// What was heard counts for so long.
const AGE_MAX: Duration = Duration::from_secs(3);
/// A leader whose syncs take so many times as long as the others', and at least so long, for so
/// many rounds, hands over.
const SLOW_TIMES: u64 = 8;
const SLOW_MICROS: u64 = 50_000;
const SLOW_ROUNDS: u32 = 8;

/// What a replica says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vitals {
    pub(crate) wall: UtcMillis,
    /// Bytes that are free, or set aside for the log.
    pub(crate) room: u64,
    /// What a sync took of late, on average; 0 without any.
    pub(crate) sync_micros: u64,
}

/// What was heard of another member, and when on this node's monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Duration,
    /// Its clock, in milliseconds, less this node's monotonic one: a jump of the clock here does not
    /// change what was heard.
    lead: i64,
    room: u64,
    sync_micros: u64,
}

/// How this replica judges itself and the others, for whoever asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Milliseconds that this node's clock is from the majority's; positive when it is ahead.
    pub clock_off: i64,
    /// Too far off to lead.
    pub clock_suspect: bool,
    /// Free on this node's disk, or set aside for the log.
    pub room: u64,
    /// What a majority of the voters has at least.
    pub majority_room: u64,
    pub pressure: Pressure,
    /// Of this node's syncs, of late.
    pub sync_micros: u64,
}

/// The parts that others read.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    own: Mutex<Vitals>,
    health: Mutex<Health>,
    standing: Mutex<Standing>,
}

impl Watch {
    pub(crate) fn health(&self) -> Health {
        *self.health.lock()
    }

    pub(crate) fn standing(&self) -> Standing {
        *self.standing.lock()
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.health.lock().clock_suspect
    }
}

impl Shared {
    /// What another member is told now.
    pub(crate) fn vitals(&self) -> Vitals {
        let own = *self.vitals.own.lock();
        // Before the first round, and on a full disk, it is looked at now: a node that has just come
        // would be taken for a full one.
        let room = if own.room == 0 { self.room() } else { own.room };
        Vitals { wall: self.clock.own_wall(), room, ..own }
    }

    /// Free bytes on the disk, and those that the log has set aside. A disk that does not say is
    /// taken to have room: its errors will tell.
    pub(crate) fn room(&self) -> u64 {
        let free = self.env.disk.free(&self.options.dir).unwrap_or(u64::MAX);
        free.saturating_add(self.log.set_aside())
    }
}

/// Runs until the replica ends.
pub(crate) async fn keep(shared: Arc<Shared>) {
    let Some(running) = shared.running() else { return };
    let mut ending = shared.ending.watch();
    let mut rounds = Rounds::new(&shared);
    loop {
        let known = rounds.round(&shared, running).await;
        let pause = if known { ROUND } else { FIRST_ROUND };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            ended = ending.wait_for(Option::is_some) => {
                drop(ended);
                return;
            }
        }
    }
}

struct Rounds {
    heard: BTreeMap<NodeId, Heard>,
    jump: Jump,
    /// Syncs and the time they took, when the last round looked.
    syncs: (u64, u64),
    slow: u32,
    verdict: Verdict,
    /// This node has once known the time of a majority.
    confirmed: bool,
    told: (bool, Pressure),
}

impl Rounds {
    fn new(shared: &Shared) -> Self {
        let told = (false, Pressure::None);
        let jump = Jump::since(&shared.clock);
        Self {
            heard: BTreeMap::new(),
            jump,
            syncs: (0, 0),
            slow: 0,
            verdict: Verdict::default(),
            confirmed: false,
            told,
        }
    }

    /// True once it may stand for election.
    async fn round(&mut self, shared: &Arc<Shared>, running: &Running) -> bool {
        let own = self.measure(shared);
        *shared.vitals.own.lock() = own;
        let members = shared.members();
        let me = shared.options.node;
        let others = members.iter().filter(|member| member.node != me);
        let asked = join_all(others.map(|member| ask(shared, running, member))).await;
        self.heard.extend(asked.into_iter().flatten());
        let now = shared.clock.monotonic();
        let is_member = |node: &NodeId| members.iter().any(|member| member.node == *node);
        self.heard.retain(|node, heard| is_member(node) && now.saturating_sub(heard.at) < AGE_MAX);
        let mut voters: Vec<NodeId> = running.raft.voter_ids().map(NodeId::new).collect();
        if voters.is_empty() {
            // Before the first entry all that are configured will vote.
            voters = members.iter().map(|member| member.node).collect();
        }
        let heard = voters.iter().filter(|voter| self.heard.contains_key(voter)).count();
        let verdict = self.judge_clock(shared, &voters);
        let standing = self.judge_room(shared, own, &voters);
        let health = Health {
            clock_off: verdict.off,
            clock_suspect: verdict.suspect,
            room: own.room,
            majority_room: standing.room.get(),
            pressure: standing.pressure,
            sync_micros: own.sync_micros,
        };
        *shared.vitals.standing.lock() = standing;
        *shared.vitals.health.lock() = health;
        self.tell(shared, verdict, standing);
        self.confirmed |= heard >= voters.len() / 2;
        // The one place that lets this node stand for election.
        let may = self.confirmed && !verdict.suspect && shared.has_voice();
        running.raft.runtime_config().elect(may);
        self.hand_over(shared, own, verdict.suspect, &voters).await;
        self.confirmed
    }

    fn measure(&mut self, shared: &Shared) -> Vitals {
        let stats = shared.log.stats();
        let (syncs, micros) = (stats.syncs - self.syncs.0, stats.sync_micros - self.syncs.1);
        let before = shared.vitals.own.lock().sync_micros;
        // Too few to tell anything leave the last figure.
        let sync_micros = if syncs < 4 { before } else { micros / syncs };
        if syncs >= 4 {
            self.syncs = (stats.syncs, stats.sync_micros);
        }
        Vitals { wall: shared.clock.own_wall(), room: shared.room(), sync_micros }
    }

    /// Without a majority nothing new is known, and the last verdict stands.
    fn judge_clock(&mut self, shared: &Shared, voters: &[NodeId]) -> Verdict {
        let me = shared.options.node;
        if voters == [me] {
            self.verdict = self.jump.look(&shared.clock);
            shared.clock.hold_back(self.verdict.excess);
            return self.verdict;
        }
        let here = millis(shared.clock.own_wall()) - millis_of(shared.clock.monotonic());
        let ahead = |heard: &Heard| heard.lead.saturating_sub(here);
        let others = voters.iter().filter(|voter| **voter != me);
        let others: Vec<i64> =
            others.filter_map(|voter| self.heard.get(voter)).map(ahead).collect();
        let members = voters.len() + usize::from(!voters.contains(&me));
        if others.len() >= members / 2 {
            self.verdict = clock::judge(members, &others);
            shared.clock.hold_back(self.verdict.excess);
        }
        self.verdict
    }

    fn judge_room(&self, shared: &Shared, own: Vitals, voters: &[NodeId]) -> Standing {
        let mut rooms = vec![own.room];
        let heard = voters.iter().filter_map(|voter| self.heard.get(voter));
        rooms.extend(heard.map(|heard| heard.room));
        let room = of_majority(voters.len(), rooms);
        let marks = Watermarks::of(shared.options.reserve, shared.options.log.segment_bytes);
        let pressure = marks.pressure(room);
        let (room, needed) = (ByteSize::new(room), ByteSize::new(marks.sends));
        Standing { pressure, room, needed }
    }

    /// Changes are said once.
    fn tell(&mut self, shared: &Shared, verdict: Verdict, standing: Standing) {
        let now = (verdict.suspect, standing.pressure);
        let before = std::mem::replace(&mut self.told, now);
        let node = shared.options.node;
        match (before.0, now.0) {
            (false, true) => tracing::error!(
                %node,
                milliseconds = verdict.off,
                "the clock is far from the majority's (positive is ahead): this node does not lead, \
                 and its stamps are held back; set the clock right"
            ),
            (true, false) => tracing::info!(%node, "the clock agrees with the majority's again"),
            (false, false) | (true, true) => {}
        }
        if before.1 != now.1 {
            let (room, needed) = (standing.room, standing.needed);
            match now.1 {
                Pressure::None => tracing::info!(%room, "there is room on the disks again"),
                refused => tracing::warn!(
                    %refused, %room, %needed,
                    "the disks of a majority have too little room for the log; free space"
                ),
            }
        }
    }

    /// A leader with a clock or a disk that is far worse than the others' gives the group away.
    async fn hand_over(&mut self, shared: &Shared, own: Vitals, suspect: bool, voters: &[NodeId]) {
        let marks = Watermarks::of(shared.options.reserve, shared.options.log.segment_bytes);
        let full =
            own.room < marks.checkouts && shared.vitals.standing().pressure < Pressure::Checkouts;
        let leads = shared.leadership.borrow().leader == Some(shared.options.node);
        let micros = |voter: &NodeId| self.heard.get(voter).map(|heard| heard.sync_micros);
        let others: Vec<u64> = voters.iter().filter_map(micros).filter(|took| *took > 0).collect();
        let slow = leads && is_slow(own.sync_micros, &others);
        self.slow = if slow { self.slow + 1 } else { 0 };
        if !leads || !(suspect || full || self.slow >= SLOW_ROUNDS) {
            return;
        }
        let (took, slow) = (own.sync_micros, self.slow >= SLOW_ROUNDS);
        self.slow = 0;
        match shared.transfer_leadership().await {
            Ok(()) => {
                tracing::warn!(suspect, full, slow, took, ?others, "handed the leadership over")
            }
            Err(error) => {
                tracing::warn!(suspect, full, slow, %error, "cannot hand the leadership over")
            }
        }
    }
}

fn is_slow(own: u64, others: &[u64]) -> bool {
    let mut others = others.to_vec();
    others.sort_unstable();
    let Some(middle) = others.get(others.len().saturating_sub(1) / 2) else { return false };
    own >= SLOW_MICROS && own >= middle.saturating_mul(SLOW_TIMES)
}

/// Its clock is taken to stand for the middle of the time that the question took.
async fn ask(shared: &Shared, running: &Running, member: &Member) -> Option<(NodeId, Heard)> {
    let client = running.peers.client(member.node, &member.peer, Lane::Pulse);
    let mut client = client.ok()?;
    let request = running.peers.request(member.node, wire::VitalsRequest {});
    let sent = shared.clock.monotonic();
    // As long as votes may take: who can be elected must be able to compare clocks.
    let limit = shared.options.timing.election_max.duration();
    let answer = timeout(limit, client.vitals(request)).await.ok()?.ok()?;
    let at = shared.clock.monotonic();
    running.peers.meet(answer.metadata()).ok()?;
    let answer = answer.into_inner();
    let there = millis(UtcMillis::new(answer.wall_millis));
    let lead = there.saturating_sub(millis_of(sent + at.saturating_sub(sent) / 2));
    let (room, sync_micros) = (answer.room_bytes, answer.sync_micros);
    Some((member.node, Heard { at, lead, room, sync_micros }))
}

fn millis(wall: UtcMillis) -> i64 {
    i64::try_from(wall.get()).unwrap_or(i64::MAX)
}

fn millis_of(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_far_slower_than_the_others_and_slow_at_all() {
        assert!(is_slow(60_000, &[2_000, 3_000]));
        assert!(!is_slow(40_000, &[200, 300]), "fast enough");
        assert!(!is_slow(60_000, &[20_000, 10_000]), "all are slow");
        assert!(!is_slow(60_000, &[]), "nobody to compare with");
    }
}
