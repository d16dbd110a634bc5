//! Keeps what conservation is checked against: the committed entries as they come, the dead letters
//! that ever were, and at the end the state of one replica.

use std::collections::{BTreeMap, BTreeSet};

use raftmq::base::{GroupId, LogIndex, QueueId, QueueOffset, TopicId};
use raftmq::command::{Checkout, Command, DeathReason, Delivery, Handle};
use raftmq::commit_log::FrameKind;
use raftmq::machine::{DeadLetter, Standing, State};
use raftmq::raft::Group;

use super::clients::{Workload, group_name, topic_name};
use crate::checkers::books::{Account, Books, Fact, Left, Row};
use crate::history::{Micros, Place};

/// Bytes of the log that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Reads every committed entry once, whichever replica has it.
#[derive(Debug, Default)]
pub(super) struct Reader {
    next: u64,
    missed: u64,
    facts: Vec<Fact>,
    died: BTreeMap<(u32, u64), Row>,
    /// The group whose messages die.
    hard: Option<u32>,
    /// Its dead letters behind the last entry that was read.
    here: BTreeSet<u64>,
    /// Facts of which that is known already.
    settled: usize,
    tight: Option<Micros>,
}

/// No record of a run is larger.
const RECORD_BYTES: u64 = 4 << 10;

/// Groups and topics are numbers here.
fn number(name: &str, of: &str) -> Option<u32> {
    name.strip_prefix(of)?.strip_prefix('-')?.parse().ok()
}

fn group_number(state: &State, group: GroupId) -> Option<u32> {
    number(state.group_by_id(group)?.name.as_str(), "group")
}

fn topic_number(state: &State, topic: TopicId) -> Option<u32> {
    number(state.topic_by_id(topic)?.name.as_str(), "topic")
}

fn pair(state: &State, group: GroupId, topic: TopicId) -> Option<(u32, u32)> {
    Some((group_number(state, group)?, topic_number(state, topic)?))
}

fn place(state: &State, handle: &Handle) -> Option<(u32, Place)> {
    let (group, topic) = pair(state, handle.group, handle.topic)?;
    let (queue, offset) = (handle.queue.get(), handle.offset.get());
    Some((group, Place { topic, queue, offset }))
}

impl Reader {
    pub(super) fn new(hard: Option<u32>) -> Self {
        Self { hard, ..Self::default() }
    }

    /// Takes what `group` has applied and nobody was asked for before. Call it for all replicas.
    pub(super) fn look(&mut self, group: &Group, now: Micros) {
        let Some(applied) = group.read(|state| state.applied().map(|(index, _)| index.get()))
        else {
            return;
        };
        if let Some(hard) = self.hard {
            group.read(|state| self.look_at_letters(state, hard, now));
        }
        let first = group.log().bounds().first.map_or(u64::MAX, LogIndex::get);
        while self.next <= applied && first <= self.next {
            let (from, to) = (LogIndex::new(self.next), LogIndex::new(applied + 1));
            let Ok(frames) = group.log().read(from, to, READ_BYTES) else { return };
            if frames.is_empty() {
                return;
            }
            for frame in frames {
                self.next = frame.index.get() + 1;
                if frame.kind == FrameKind::Command
                    && let Ok(command) = Command::decode(&frame.body)
                {
                    group.read(|state| self.take(state, command, now));
                }
            }
        }
        if self.next == applied + 1 {
            group.read(|state| self.settle_redrives(state));
        }
    }

    /// Of the letters that entries would send back, those went that were there before and are no more.
    fn settle_redrives(&mut self, state: &State) {
        let hard = self.hard.and_then(|hard| state.group(&group_name(hard)));
        let letters = hard.into_iter().flat_map(|hard| state.dead_letters(hard.id, None));
        let here: BTreeSet<u64> = letters.map(|(letter, _)| letter.get()).collect();
        let before = std::mem::replace(&mut self.here, here);
        for fact in &mut self.facts[self.settled..] {
            if let Fact::Redriven { letters, .. } = fact {
                letters.retain(|one| before.contains(one) && !self.here.contains(one));
            }
        }
        self.settled = self.facts.len();
    }

    /// Comes after all replicas were looked at: what has left all their logs is missed.
    pub(super) fn pass_purged(&mut self, groups: &[Group]) {
        let first = |group: &Group| group.log().bounds().first.map(LogIndex::get);
        if let Some(least) = groups.iter().filter_map(first).min()
            && groups.len() > 1
            && self.next < least
        {
            self.missed += least - self.next;
            self.next = least;
        }
    }

    fn take(&mut self, state: &State, command: Command, at: Micros) {
        let fact = match command {
            Command::Deliveries(deliveries) => {
                for delivery in &deliveries {
                    self.take_delivery(state, delivery);
                }
                None
            }
            Command::Subscribe(it) => pair(state, it.group, it.topic)
                .map(|(group, topic)| Fact::Subscribed { group, topic, filter: it.expression }),
            Command::Unsubscribe(it) => pair(state, it.group, it.topic)
                .map(|(group, topic)| Fact::Unsubscribed { group, topic, filter: it.expression }),
            Command::Start(it) => pair(state, it.group, it.topic).map(|(group, topic)| {
                let offsets = (0..).zip(it.offsets.iter().map(|offset| offset.get())).collect();
                Fact::Began { group, topic, offsets }
            }),
            Command::Reset(it) => pair(state, it.group, it.topic).map(|(group, topic)| {
                let offsets = it.offsets.iter().map(|(queue, at)| (queue.get(), at.get()));
                Fact::Reset { group, topic, offsets: offsets.collect(), at }
            }),
            Command::Pause { group, paused } => {
                group_number(state, group).map(|group| Fact::Paused { group, paused })
            }
            Command::Redrive(it) => group_number(state, it.group).map(|group| {
                let letters = it.letters.iter().map(|letter| letter.get()).collect();
                Fact::Redriven { group, letters, at }
            }),
            _ => None,
        };
        self.facts.extend(fact);
    }

    fn take_delivery(&mut self, state: &State, delivery: &Delivery) {
        match delivery {
            Delivery::Ack(ack) => {
                let place = place(state, &ack.handle);
                self.facts.extend(place.map(|(group, place)| Fact::Acked { group, place }));
            }
            Delivery::Checkout(checkout) => self.take_skips(state, checkout),
            _ => {}
        }
    }

    fn take_skips(&mut self, state: &State, checkout: &Checkout) {
        let Some((group, topic)) = pair(state, checkout.group, checkout.topic) else { return };
        for take in &checkout.takes {
            let skips = take.skips.iter().filter(|skip| skip.from < skip.to);
            self.facts.extend(skips.map(|skip| Fact::Skipped {
                group,
                topic,
                queue: take.queue.get(),
                range: (skip.from.get(), skip.to.get()),
                version: checkout.subscription_version,
                epoch: checkout.epoch,
            }));
        }
    }

    /// Notes the dead letters that there are.
    fn look_at_letters(&mut self, state: &State, group: u32, now: Micros) {
        if state.letter_room() < RECORD_BYTES {
            self.tight.get_or_insert(now);
        }
        let Some(found) = state.group(&group_name(group)) else { return };
        for (letter, row) in state.dead_letters(found.id, None) {
            if let Some(row) = row_of(letter, row, now) {
                self.died.entry((group, letter.get())).or_insert(row);
            }
        }
    }

    /// All that is known, with what one replica has now.
    pub(super) fn books(&self, group: &Group, workload: &Workload) -> Books {
        let mut books = Books {
            facts: self.facts.clone(),
            missed: self.missed,
            died: self.died.clone(),
            tight: self.tight,
            untagged: (0..workload.all_topics()).filter(|it| !workload.has_tags(*it)).collect(),
            ..Books::default()
        };
        group.read(|state| {
            for number in 0..u32::MAX {
                let Some(found) = state.group(&group_name(number)) else { break };
                books.attempts_max.insert(number, found.attempts_max);
                let rows = state.dead_letters(found.id, None);
                let rows = rows.filter_map(|(letter, row)| {
                    let seen = self.died.get(&(number, letter.get())).map_or(0, |row| row.seen);
                    row_of(letter, row, seen)
                });
                let rows = rows.collect();
                books.rows.insert(number, rows);
                if let Some(topic) = state.topic(&found.name.dead_letters()) {
                    let from = state.queue_start(topic.id, QueueId::new(0)).get();
                    books.letters_from.insert(number, from);
                }
                let taken = (0..workload.all_topics()).filter(|it| workload.takes(number, *it));
                for topic in taken {
                    accounts(state, (found.id, number), topic, &mut books);
                }
            }
        });
        // What died and went back between two looks is not missed: a row that is there was.
        for (group, rows) in &books.rows {
            books.died.extend(rows.iter().map(|row| ((*group, row.letter), *row)));
        }
        books
    }
}

fn row_of(letter: QueueOffset, row: &DeadLetter, seen: Micros) -> Option<Row> {
    let topic = number(row.origin_name.as_str(), "topic")?;
    Some(Row {
        letter: letter.get(),
        origin: Place { topic, queue: row.queue.get(), offset: row.offset.get() },
        attempts: row.attempts,
        given_up: row.reason == DeathReason::GivenUp,
        seen,
    })
}

/// Every table of the state is asked for every offset.
fn accounts(state: &State, (group, number): (GroupId, u32), topic: u32, books: &mut Books) {
    let Some(found) = state.topic(&topic_name(topic)) else { return };
    for queue in 0..found.queues {
        let id = QueueId::new(queue);
        let (start, end) =
            (state.queue_start(found.id, id).get(), state.queue_end(found.id, id).get());
        let pair = (group, found.id);
        let next = state.view(group, found.id, id).next.get();
        let free = state.free_from(pair, id, QueueOffset::ZERO, usize::MAX);
        let free: BTreeSet<u64> = free.iter().flat_map(|(from, to)| from.get()..to.get()).collect();
        let mut account = Account { bounds: (start, end), ..Account::default() };
        for offset in 0..end {
            let standing = state.standing(pair, id, QueueOffset::new(offset));
            let pending =
                matches!(standing, Standing::Ready | Standing::InFlight | Standing::Stopped);
            let left = [
                (pending, Left::Pending),
                (free.contains(&offset), Left::Free),
                (offset >= next.max(start), Left::Fresh),
            ];
            let left: Vec<Left> = left.iter().filter(|it| it.0).map(|it| it.1).collect();
            if !left.is_empty() {
                account.left.insert(offset, left);
            }
        }
        books.accounts.insert((number, topic, queue), account);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers() {
        assert_eq!(number("group-12", "group"), Some(12));
        for odd in ["readers", "%DLQ%group-2", "group-", "group-x", "topic-2"] {
            assert_eq!(number(odd, "group"), None);
        }
    }
}
