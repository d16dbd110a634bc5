//! What the commands of transactions do to the state.

use std::io;

use super::Half;
use crate::base::{LogPosition, Mutant, QueueOffset};
use crate::command::{
    Checked, Decided, Decision, End, Prepare, Prepared, Published, Refusal, Reply, Transaction,
    Unit,
};
use crate::machine::apply::unit_of;
use crate::machine::deliveries::{Holder, UnitAt};
use crate::machine::effect::Effect;
use crate::machine::limits::HALVES_MAX;
use crate::machine::state::State;
use crate::machine::{Entry, topics};

const TOO_MANY: &str = "transactional messages that wait for their decisions";

impl State {
    /// Stores half messages. One that comes again is the transaction that it was, whatever became of
    /// that since (rule R19).
    pub(in crate::machine) fn prepare(&mut self, entry: &Entry, prepare: &Prepare) -> Reply {
        if let Err(refusal) = self.check_prepare(entry, prepare) {
            return Reply::Refused(refusal);
        }
        let topic = prepare.topic;
        let mut prepared = Vec::with_capacity(prepare.halves.len());
        for half in &prepare.halves {
            let item = &half.item;
            if let Some(earlier) = self.dedup.find(topic, item) {
                // What the memory of sent messages has as an offset is the transaction's place.
                let at = LogPosition::new(earlier.offset.get());
                prepared.push(Prepared { at, repeated: true });
                continue;
            }
            let unit = unit_of(entry, item);
            let at = unit.position;
            let half = Half {
                topic,
                queue: item.queue,
                unit,
                producer: prepare.producer.clone(),
                interval: prepare.interval,
                checks_max: prepare.checks_max,
                checks: 0,
                due: entry.stamp.plus(half.first_check),
            };
            self.halves.add(half, self.deliveries.references_mut());
            let offset = QueueOffset::new(at.get());
            let outcome =
                Published { queue: item.queue, offset, visible: entry.stamp, repeated: false };
            self.dedup.add(topic, item, &outcome);
            self.dedup.forget(entry.stamp);
            prepared.push(Prepared { at, repeated: false });
        }
        Reply::Prepared(prepared)
    }

    fn check_prepare(&self, entry: &Entry, prepare: &Prepare) -> Result<(), Refusal> {
        let topic = self.topics.get(prepare.topic)?;
        prepare.halves.iter().try_for_each(|half| topic.check_queue(half.item.queue))?;
        let fresh =
            prepare.halves.iter().filter(|half| self.dedup.find(topic.id, &half.item).is_none());
        let (mut count, mut bytes) = (0, self.halves.bytes());
        for half in fresh {
            count += 1;
            bytes += u64::from(unit_of(entry, &half.item).size);
        }
        let limit = self.pending_bytes_max();
        if count > 0 && bytes > limit {
            return Err(Refusal::HalvesFull { bytes, limit });
        }
        if self.halves.has_room(count) { Ok(()) } else { Err(topics::limit(TOO_MANY, HALVES_MAX)) }
    }

    /// The first decision counts; it is told to whoever decides otherwise.
    pub(in crate::machine) fn end_transaction(
        &mut self,
        entry: &Entry,
        end: &End,
        effects: &mut Vec<Effect>,
    ) -> io::Result<Reply> {
        let End { transaction, decision, by } = *end;
        if let Some(decided) = self.decided.get(transaction.at).copied() {
            if Mutant::LastDecisionTold.is_on() {
                let decided = Decided { decision, ..decided };
                return Ok(Reply::Ended { decided, repeated: true });
            }
            return Ok(if decided.decision == decision {
                Reply::Ended { decided, repeated: true }
            } else {
                Reply::Refused(Refusal::Decided { decided })
            });
        }
        if let Err(refusal) = self.half_of(transaction) {
            return Ok(Reply::Refused(refusal));
        }
        let half = self.halves.take(transaction.at);
        let place = match decision {
            Decision::Commit => Some((half.queue, self.show(entry, &half, effects)?)),
            Decision::RollBack if Mutant::RolledBackShown.is_on() => {
                Some((half.queue, self.show(entry, &half, effects)?))
            }
            Decision::RollBack => None,
        };
        self.deliveries.references_mut().release(transaction.at, Holder::Half);
        let decided = Decided { decision, by, stamp: entry.stamp, place };
        self.decided.add(transaction.at, decided);
        self.decided.forget(entry.stamp);
        Ok(Reply::Ended { decided, repeated: false })
    }

    /// A unit at the end of the message's queue that points at its record. Its record is held by the
    /// half message until it is known who else needs it.
    fn show(
        &mut self,
        entry: &Entry,
        half: &Half,
        effects: &mut Vec<Effect>,
    ) -> io::Result<QueueOffset> {
        let (topic, queue) = (half.topic, half.queue);
        let offset = self.queues.end(topic, queue).expect("the topic of a half message is there");
        let unit = Unit { visible: entry.stamp, ..half.unit };
        self.queues.append(topic, queue, &[unit])?;
        self.marks.note_growth(topic, queue);
        if unit.position < self.marks.newest_end() {
            let at = UnitAt { topic, queue, offset };
            self.late.add(at, unit, self.deliveries.references_mut());
        }
        effects.push(Effect::Arrived { topic, queue, count: 1 });
        Ok(offset)
    }

    fn half_of(&self, transaction: Transaction) -> Result<&Half, Refusal> {
        let half = self.halves.get(transaction.at);
        let half = half.filter(|half| half.topic == transaction.topic);
        half.ok_or(Refusal::NoTransaction { at: transaction.at })
    }

    /// Producers were asked. What was decided meanwhile, or asked about before, is passed by.
    pub(in crate::machine) fn note_checks(&mut self, entry: &Entry, checks: &[Checked]) -> Reply {
        let mut counted = 0;
        for Checked { transaction, number } in checks {
            let Ok(half) = self.half_of(*transaction) else { continue };
            if half.is_parked() || half.checks.checked_add(1) != Some(*number) {
                continue;
            }
            let due = entry.stamp.plus(half.interval);
            self.halves.reschedule(transaction.at, *number, due);
            counted += 1;
        }
        Reply::Checked { counted }
    }

    /// Whoever is to be asked is asked again, at once.
    pub(in crate::machine) fn resume(&mut self, entry: &Entry, transaction: Transaction) -> Reply {
        if let Some(decided) = self.decided.get(transaction.at).copied() {
            return Reply::Refused(Refusal::Decided { decided });
        }
        match self.half_of(transaction) {
            Ok(_) => {
                self.halves.reschedule(transaction.at, 0, entry.stamp);
                Reply::Done
            }
            Err(refusal) => Reply::Refused(refusal),
        }
    }
}
