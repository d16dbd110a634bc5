//! Delayed messages: what becomes visible later, and which records that needs.
//!
//! What it is: [`Timers`], a row of 56 bytes for each message that is pending, ordered by where its
//! record lies; over them a wheel by time and an index by message id, both derived.
//! Promises: what is due fires in the order of (due, place in the log), exactly once and never
//! before its time by the entry's stamp; what is asked for a message (recall, another time) is
//! decided by log order alone; a checkpoint shares the rows with the state.
//! Never: a record's bytes, a clock, or the queue that a fired message goes to.
//!
//! A fired message whose record lies in an earlier stride of the log than its unit keeps its row
//! until the queue's start passes the unit: retention counts from firing (rule R9). So that this is
//! rare, the leader writes such records again shortly before their messages fire (`ahead`).

mod ahead;
mod ended;
mod ids;
#[cfg(test)]
mod proptests;
mod rows;
mod wheel;

use twox_hash::XxHash3_64;

pub use self::ahead::Ahead;
pub(super) use self::ahead::Most;
use self::ended::Ended;
use self::ids::Ids;
use self::rows::Rows;
use self::wheel::Wheel;
use super::codec::require;
use super::deliveries::Starts;
use super::error::SectionError;
use super::limits::TIMERS_MAX;
use crate::base::{LogPosition, Millis, Mutant, QueueId, QueueOffset, TopicId, UtcMillis};
use crate::command::{Reader, Refusal, TimerKey, TimerOutcome, Unit, Writer};
use crate::message::MessageIdHash;

pub(super) use self::rows::{Phase, Row, RowsImage};

/// Messages that an entry prepares for firing, beside what it does …
const TURN: usize = 256;
/// … and a tick.
const TICK_TURN: usize = 4096;

/// Where a delayed message is, as long as it has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayedAt {
    Pending { topic: TopicId, due: UtcMillis },
    Visible { topic: TopicId, queue: QueueId, offset: QueueOffset },
}

#[derive(Debug)]
pub(super) struct Timers {
    rows: Rows,
    ended: Ended,
    /// When what is pending fires: derived.
    wheel: Wheel,
    /// What is pending by topic and message id: derived.
    ids: Ids,
    /// Derived.
    pending: usize,
    /// Bytes of the records of what is pending: derived.
    pending_bytes: u64,
    /// Bytes of the records of all rows: derived.
    bytes: u64,
    /// Of these, bytes of records that were written again: derived.
    kept_bytes: u64,
}

impl Timers {
    /// `seed` is any number, drawn by each process for itself.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rows: Rows::default(),
            ended: Ended::new(seed),
            wheel: Wheel::starting_at(UtcMillis::ZERO),
            ids: Ids::new(seed),
            pending: 0,
            pending_bytes: 0,
            bytes: 0,
            kept_bytes: 0,
        }
    }

    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Rows of messages that have fired.
    pub(super) fn visible(&self) -> usize {
        self.rows.len() - self.pending
    }

    /// Bytes of the records of what is pending.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Bytes of all records that outlive the log's front for a delayed message: wherever each lies
    /// now, the front comes there one day, and it is written again.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of records that lie beyond the log's front only for a delayed message.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// When a tick is to be proposed next: a tick before finds nothing. One then may find nothing,
    /// where what was due has been recalled, or only prepare what is due soon.
    pub(super) fn next_due(&self) -> Option<UtcMillis> {
        self.wheel.first()
    }

    /// Refuses more messages when there are, or would be, too many rows.
    pub(super) fn check_room(&self, more: usize) -> Result<(), Refusal> {
        let (count, limit) = ((self.rows.len() + more) as u64, TIMERS_MAX as u64);
        if count <= limit {
            return Ok(());
        }
        let visible = self.visible() as u64;
        Err(Refusal::TimersFull { count, visible, limit })
    }

    /// Takes in a pending message; its record lies behind all earlier ones.
    pub(super) fn add(&mut self, row: Row) {
        let Phase::Pending { due } = row.phase else { panic!("a new message is pending") };
        self.rows.push(&row);
        self.bytes += u64::from(row.size);
        self.pending_bytes += u64::from(row.size);
        self.pending += 1;
        self.wheel.add(due, row.original);
        self.ids.add(&row, &self.rows);
    }

    /// The pending message that is meant: by its place, or the oldest of its id.
    fn find(&self, key: &TimerKey) -> Result<Row, TimerOutcome> {
        let Some(position) = key.position else {
            let oldest = self.ids.oldest(key.topic, key.id_hash, &self.rows);
            return oldest.ok_or_else(|| self.ended.outcome(key));
        };
        let row = self.rows.get(position);
        let row = row.filter(|row| row.topic == key.topic && row.id == key.id_hash);
        match row.map(|row| (row, row.phase)) {
            Some((row, Phase::Pending { .. })) => Ok(row),
            // Its row knows it for longer than the memory of what ended.
            Some((_, Phase::Fired { .. })) => Err(TimerOutcome::AlreadyFired),
            None => Err(self.ended.outcome(key)),
        }
    }

    /// The message shall not fire.
    pub(super) fn recall(&mut self, key: &TimerKey, stamp: UtcMillis) -> TimerOutcome {
        let row = match self.find(key) {
            Ok(row) => row,
            Err(outcome) => return outcome,
        };
        if Mutant::RecallIgnored.is_on() {
            return TimerOutcome::Recalled;
        }
        self.forget(&row);
        self.remove(&row);
        self.ended.recalled(&row, stamp);
        self.tidy_wheel(stamp);
        TimerOutcome::Recalled
    }

    /// The message shall fire at another time, which may be earlier.
    pub(super) fn reschedule(
        &mut self,
        key: &TimerKey,
        due: UtcMillis,
        stamp: UtcMillis,
    ) -> TimerOutcome {
        let row = match self.find(key) {
            Ok(row) => row,
            Err(outcome) => return outcome,
        };
        if Mutant::RescheduleIgnored.is_on() {
            return TimerOutcome::Rescheduled;
        }
        self.rows.set_phase(row.original, Phase::Pending { due });
        if row.phase != (Phase::Pending { due }) {
            self.wheel.add(due, row.original);
        }
        self.tidy_wheel(stamp);
        TimerOutcome::Rescheduled
    }

    /// Stops counting a row as pending; it is still in the table.
    fn forget(&mut self, row: &Row) {
        self.ids.remove(row, &self.rows);
        self.pending -= 1;
        self.pending_bytes -= u64::from(row.size);
        if row.now != row.original {
            self.kept_bytes -= u64::from(row.size);
        }
    }

    fn remove(&mut self, row: &Row) {
        self.rows.remove(row.original);
        self.bytes -= u64::from(row.size);
    }

    /// What was recalled or moved stays in the wheel until its old time; not without a bound.
    fn tidy_wheel(&mut self, stamp: UtcMillis) {
        // As many steps as there are rows, so not before as many have gone.
        if self.wheel.len() > self.pending + self.rows.len() + 4096 {
            self.wheel = wheel_of(&self.rows, stamp);
        }
    }

    /// Prepares what comes next, a little with each entry.
    pub(super) fn turn(&mut self, stamp: UtcMillis) {
        self.wheel.turn(stamp, TURN, &self.rows);
    }

    /// At most `limit` messages that are due by `stamp`, in the order in which they fire. Each has
    /// to be told to [`Self::fired`].
    pub(super) fn take_due(&mut self, stamp: UtcMillis, limit: u32) -> Vec<Row> {
        let early = if Mutant::FiredEarly.is_on() { 300 } else { 0 };
        let stamp = stamp.plus(Millis::new(early));
        let mut taken = Vec::new();
        while taken.len() < limit as usize {
            let popped = self.wheel.pop_until(stamp, &self.rows);
            let Some((due, position)) = popped else { break };
            let row = self.rows.get(position);
            // What was recalled, or moved to another time, is still in the wheel.
            let Some(row) = row.filter(|row| row.phase == (Phase::Pending { due })) else {
                continue;
            };
            self.forget(&row);
            taken.push(row);
        }
        // In a group where nothing else happens, only ticks prepare anything.
        self.wheel.turn(stamp, TICK_TURN, &self.rows);
        taken
    }

    /// A message that was taken is visible at this offset, by [`Row::unit_when_fired`]. `mark` is
    /// where the last mark ended: a record before it may leave before the unit does, so its row
    /// stays.
    pub(super) fn fired(
        &mut self,
        row: &Row,
        offset: QueueOffset,
        mark: LogPosition,
        stamp: UtcMillis,
    ) {
        if row.is_late(mark) {
            self.rows.set_phase(row.original, Phase::Fired { offset });
            if row.now != row.original {
                self.kept_bytes += u64::from(row.size);
            }
        } else {
            self.remove(row);
        }
        self.ended.fired(row, stamp);
    }

    /// A message whose time had come before it was taken in.
    pub(super) fn fired_at_once(&mut self, row: &Row, stamp: UtcMillis) {
        self.ended.fired(row, stamp);
    }

    fn drop_rows(&mut self, gone: Vec<Row>) {
        for row in gone {
            match row.phase {
                Phase::Pending { .. } => self.forget(&row),
                Phase::Fired { .. } if row.now != row.original => {
                    self.kept_bytes -= u64::from(row.size);
                }
                Phase::Fired { .. } => {}
            }
            self.remove(&row);
        }
    }

    pub(super) fn drop_topic(&mut self, topic: TopicId, stamp: UtcMillis) {
        // One chunk after the other: a topic may have millions.
        for chunk in self.rows.chunks_of(topic) {
            let gone = self.rows.of_chunk(chunk).filter(|row| row.topic == topic).collect();
            self.drop_rows(gone);
        }
        self.tidy_wheel(stamp);
    }

    /// Queues start later: units before that are gone, and with them the need for their records.
    pub(super) fn expire_below(&mut self, starts: &Starts) {
        if starts.is_empty() || self.pending == self.rows.len() {
            return;
        }
        let gone = |row: &Row| {
            let start = starts.get(&row.topic).and_then(|queues| queues.get(&row.queue));
            match (row.phase, start) {
                (Phase::Fired { offset }, Some((_, start))) => offset < *start,
                _ => false,
            }
        };
        self.drop_rows(self.rows.fired_of(starts).filter(gone).collect());
    }

    /// Records that lie before `front` now: where each lay first, and a unit that says where it
    /// lies.
    pub(super) fn needed_before(
        &self,
        front: LogPosition,
    ) -> impl Iterator<Item = (LogPosition, Unit)> {
        self.rows.lying_before(front).map(|row| {
            let unit = row.unit(UtcMillis::ZERO);
            (row.original, Unit { position: row.now, ..unit })
        })
    }

    /// The record was written again. Changes nothing when no delayed message needs it any more.
    pub(super) fn relocate(&mut self, original: LogPosition, position: LogPosition) {
        let Some(row) = self.rows.get(original) else { return };
        if row.now == row.original {
            self.kept_bytes += u64::from(row.size);
        }
        self.rows.set_now(original, position);
    }

    /// Where a record lies now, if it was written again for a delayed message.
    pub(super) fn moved(&self, original: LogPosition) -> Option<(LogPosition, u32)> {
        let row = self.rows.get(original).filter(|row| row.now != row.original)?;
        Some((row.now, row.size))
    }

    /// What the row of a delayed message says, by where its record lay first.
    pub(super) fn at(&self, original: LogPosition) -> Option<DelayedAt> {
        let row = self.rows.get(original)?;
        Some(match row.phase {
            Phase::Pending { due } => DelayedAt::Pending { topic: row.topic, due },
            Phase::Fired { offset } => {
                DelayedAt::Visible { topic: row.topic, queue: row.queue, offset }
            }
        })
    }

    pub(super) fn image(&self) -> RowsImage {
        self.rows.image()
    }

    pub(super) fn write_ended(&self, writer: &mut Writer) {
        self.ended.write(writer);
    }

    /// Rebuilds what is derived from the rows; `ended` is the other section.
    pub(super) fn read(
        rows: &mut Reader,
        ended: &mut Reader,
        stamp: UtcMillis,
        seed: u64,
    ) -> Result<Self, SectionError> {
        let rows = Rows::read(rows)?;
        let ended = Ended::read(ended, seed)?;
        let wheel = wheel_of(&rows, stamp);
        let mut timers = Self { ended, wheel, ..Self::new(seed) };
        timers.ids.reserve(&rows);
        for row in rows.iter() {
            if matches!(row.phase, Phase::Pending { .. }) {
                timers.pending += 1;
                timers.pending_bytes += u64::from(row.size);
            }
            timers.bytes += u64::from(row.size);
            if row.now != row.original {
                timers.kept_bytes += u64::from(row.size);
            }
        }
        timers.rows = rows;
        let pending: Vec<LogPosition> = timers.pending_rows().map(|row| row.original).collect();
        for position in pending {
            let row = timers.rows.get(position).expect("it was just listed");
            timers.ids.add(&row, &timers.rows);
        }
        Ok(timers)
    }

    /// Bytes that all tables take together.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.rows.memory() + self.wheel.memory() + self.ids.memory()
    }

    fn pending_rows(&self) -> impl Iterator<Item = Row> {
        self.rows.iter().filter(|row| matches!(row.phase, Phase::Pending { .. }))
    }

    /// Whether the indexes say what the rows say. `front` is where the log starts.
    pub(super) fn check(&self, front: LogPosition) -> Result<(), SectionError> {
        let pending = self.pending_rows().count();
        require(pending == self.pending, "the count of pending timers is off")?;
        require(self.ids.len() == pending, "the index of delayed messages is off")?;
        require(self.wheel.len() >= pending, "a delayed message is not in the wheel")?;
        let bytes: u64 = self.pending_rows().map(|row| u64::from(row.size)).sum();
        require(bytes == self.pending_bytes, "the bytes of pending messages are off")?;
        let bytes: u64 = self.rows.iter().map(|row| u64::from(row.size)).sum();
        require(bytes == self.bytes, "the bytes of all delayed messages are off")?;
        let moved = self.rows.iter().filter(|row| row.now != row.original);
        let kept: u64 = moved.map(|row| u64::from(row.size)).sum();
        require(kept == self.kept_bytes, "the bytes of delayed messages are off")?;
        require(self.needed_before(front).next().is_none(), "a timer's record before the log")
    }
}

fn wheel_of(rows: &Rows, stamp: UtcMillis) -> Wheel {
    let mut wheel = Wheel::starting_at(stamp);
    for row in rows.iter() {
        if let Phase::Pending { due } = row.phase {
            wheel.add(due, row.original);
        }
    }
    wheel
}

fn id_hash(seed: u64, topic: TopicId, id: MessageIdHash) -> u64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&topic.get().to_be_bytes());
    bytes[8..].copy_from_slice(&id.get().to_be_bytes());
    XxHash3_64::oneshot_with_seed(seed, &bytes)
}
