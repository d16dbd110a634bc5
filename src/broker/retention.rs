//! The leader's part of retention: it decides how far the log's front may move, and takes the
//! steps to it. The stamps of entries decide, compared with the leader's clock (rule R25 bounds it).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;

use crate::base::{LogIndex, LogPosition, Millis, Mutant, TopicId, UtcMillis};
use crate::broker::{Replica, dead_letters};
use crate::command::{Command, Relocation, Reply, Retention, Trim, Unit};
use crate::commit_log::ReadError;
use crate::machine::{Front, Mark, State};
use crate::raft::Pressure;

/// How often the leader looks whether something has become old.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes of records that one entry writes again, unless one alone has more.
const RELOCATE_BYTES: usize = 1 << 20;

/// What this leader has trimmed, so that it does not ask for the same again.
type Trimmed = BTreeMap<TopicId, LogIndex>;

/// Runs until dropped.
pub(super) async fn keep(replica: &Replica) {
    let mut trimmed = Trimmed::new();
    loop {
        if replica.serving() {
            step(replica, &mut trimmed).await;
        } else {
            trimmed.clear();
        }
        count_expired(replica);
        dead_letters::count(replica);
        let mut leadership = replica.group.leadership();
        // Both ends of the wait mean the same: look again.
        drop(timeout(LOOK, leadership.changed()).await);
    }
}

/// What groups lost is told once, by name.
fn count_expired(replica: &Replica) {
    let expired = std::mem::take(&mut *replica.expired.lock());
    for ((group, topic), count) in expired {
        let names = replica.group.read(|state| {
            let (group, topic) = (state.group_by_id(group)?, state.topic_by_id(topic)?);
            Some((group.name.clone(), topic.name.clone()))
        });
        let Some((group, topic)) = names else { continue };
        crate::metrics::EXPIRED_MESSAGES.add([topic.as_str(), group.as_str()], count);
        if replica.serving() {
            tracing::warn!(
                %topic, %group, count,
                "retention took messages that the group had not consumed; it goes on at the least \
                 offset"
            );
        }
    }
}

/// What is to be done next.
#[derive(Debug)]
enum Next {
    Nothing,
    Propose(Command),
    Relocate(Vec<(LogPosition, Unit)>),
}

async fn step(replica: &Replica, trimmed: &mut Trimmed) {
    while replica.serving() {
        let now = replica.group.wall();
        let (wanted, most) = (replica.options.retention, relocate_bytes(replica));
        let next = replica.group.read(|state| next(state, wanted, most, now, trimmed));
        let command = match next {
            Next::Nothing => return,
            Next::Propose(command) => command,
            Next::Relocate(needed) => match relocation(replica, needed) {
                Ok(command) => command,
                // Only a leader that lost its place can meet a log that went on without it.
                Err(ReadError::PurgedPosition { .. }) if !replica.serving() => return,
                Err(error) => return replica.group.storage_failed(&error),
            },
        };
        let trim = match &command {
            Command::Trim(trim) => Some(*trim),
            _ => None,
        };
        let relocates = matches!(command, Command::Relocate(_));
        match replica.group.propose(command, replica.default_deadline()).await {
            Ok(Reply::Done) => {}
            // Looked at anew in the next round, on the state as it is then.
            Ok(reply) => return tracing::debug!(?reply, "retention pauses"),
            Err(error) => return tracing::debug!(%error, "retention pauses"),
        }
        if let Some(Trim { topic, mark }) = trim {
            trimmed.insert(topic, mark);
        }
        // What is left is known by the last look only: on a full disk one at a time.
        if relocates && replica.group.health().pressure == Pressure::All {
            return;
        }
    }
}

/// What one entry may write again. On a full disk it is a part of what is left, or it would be
/// refused.
fn relocate_bytes(replica: &Replica) -> usize {
    let health = replica.group.health();
    if health.pressure < Pressure::All {
        return RELOCATE_BYTES;
    }
    usize::try_from(health.majority_room / 4)
        .map_or(RELOCATE_BYTES, |part| part.min(RELOCATE_BYTES))
}

fn next(state: &State, wanted: Retention, most: usize, now: UtcMillis, trimmed: &Trimmed) -> Next {
    if state.retention() != Some(wanted) {
        return Next::Propose(Command::Retain(wanted));
    }
    if let Some(trim) = trim(state, now, trimmed) {
        return Next::Propose(Command::Trim(trim));
    }
    let (intent, floor) = (state.purge_intent(), state.floor());
    // What was begun comes to its end first. A front that moved on with each record that is written
    // again would never be reached.
    let Some(intent) = intent.filter(|intent| behind(intent.index, floor)) else {
        let front = front(state, wanted, now).filter(|mark| behind(*mark, intent));
        return front.map_or(Next::Nothing, |mark| Next::Propose(Command::PurgeIntent { mark }));
    };
    let mut bytes = 0;
    let fits = |(_, unit): &(LogPosition, Unit)| {
        let first = bytes == 0;
        bytes += unit.size as usize;
        first || bytes <= most
    };
    let mut needed: Vec<_> = state.to_relocate().take_while(fits).collect();
    if Mutant::PurgeAboveReference.is_on() {
        needed.clear();
    }
    if needed.is_empty() {
        return Next::Propose(Command::PurgeTo { mark: intent.index });
    }
    Next::Relocate(needed)
}

fn behind(mark: LogIndex, front: Option<Front>) -> bool {
    front.is_none_or(|front| front.index < mark)
}

/// The newest mark that is older than what is kept.
fn front(state: &State, kept: Retention, now: UtcMillis) -> Option<LogIndex> {
    let old = |mark: &&Mark| is_old(mark, kept.time, now);
    let by_time = state.marks().take_while(old).last().map(|mark| mark.index);
    let end = state.log_end();
    let start = state.floor().map(|floor| floor.end).unwrap_or_default();
    let allowed = bytes_allowed(kept.bytes, state.needed_bytes());
    let too_much = kept.bytes > 0 && end.since(start) > allowed;
    let enough = |mark: &&Mark| end.since(mark.end) <= allowed;
    let by_bytes = state.marks().find(enough).filter(|_| too_much).map(|mark| mark.index);
    by_time.max(by_bytes)
}

/// How long the log may be. A quarter of what is kept is for what nobody needs for long, since what
/// is needed does not get less by writing it again: without it the log would do nothing else. An
/// eighth is for what frames and commands add to records.
fn bytes_allowed(kept: u64, needed: u64) -> u64 {
    kept.max(needed.saturating_add(needed / 8).saturating_add(kept / 4))
}

/// 0 keeps for ever.
fn is_old(mark: &Mark, kept: Millis, now: UtcMillis) -> bool {
    kept != Millis::ZERO && mark.stamp.plus(kept) <= now
}

fn trim(state: &State, now: UtcMillis, trimmed: &Trimmed) -> Option<Trim> {
    let due = |topic: &crate::machine::Topic| {
        let kept = topic.keep?;
        let mark = state.marks().take_while(|mark| is_old(mark, kept, now)).last()?.index;
        let fresh = trimmed.get(&topic.id).is_none_or(|before| *before < mark);
        fresh.then_some(Trim { topic: topic.id, mark })
    };
    state.kept_topics().find_map(due)
}

/// The records, read where they lie now.
pub(super) fn relocation(
    replica: &Replica,
    needed: Vec<(LogPosition, Unit)>,
) -> Result<Command, ReadError> {
    let places: Vec<_> = needed.iter().map(|(_, unit)| (unit.position, unit.size)).collect();
    let records = replica.group.log().read_records_checked(&places)?;
    let again = |((original, _), record): ((LogPosition, Unit), _)| Relocation {
        original,
        record,
        record_at: 0,
    };
    Ok(Command::Relocate(needed.into_iter().zip(records).map(again).collect()))
}
