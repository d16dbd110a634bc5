//! What is known of all groups when a run is over, apart from what clients were told: the committed log
//! as it was read, and the state of one replica.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Answer, History, Micros, Operation, Outcome, Place, Value, Wanted, What};

/// What one committed entry says of one queue of one group, in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// The group begins in a topic, by queue.
    Began {
        group: u32,
        topic: u32,
        offsets: Vec<(u32, u64)>,
    },
    Subscribed {
        group: u32,
        topic: u32,
        filter: String,
    },
    Unsubscribed {
        group: u32,
        topic: u32,
        filter: String,
    },
    /// Offsets that nobody wants; `version` counts the changes of the group's subscriptions, `epoch`
    /// its resets.
    Skipped {
        group: u32,
        topic: u32,
        queue: u32,
        range: (u64, u64),
        version: u32,
        epoch: u32,
    },
    Acked {
        group: u32,
        place: Place,
    },
    /// The group goes on from here, by queue, whatever it had done. `at` is when it was seen.
    Reset {
        group: u32,
        topic: u32,
        offsets: Vec<(u32, u64)>,
        at: Micros,
    },
    /// Dead letters that went back.
    Redriven {
        group: u32,
        letters: Vec<u64>,
        at: Micros,
    },
    Paused {
        group: u32,
        paused: bool,
    },
}

/// What is not done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Never considered.
    Fresh,
    /// Passed by, still to be handed out.
    Free,
    /// Handed out, and not done with.
    Pending,
}

/// A dead letter's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its offset in the dead-letter topic.
    pub(crate) letter: u64,
    pub(crate) origin: Place,
    pub(crate) attempts: u32,
    /// Its consumer gave it up, before its attempts were spent.
    pub(crate) given_up: bool,
    /// When it was seen first.
    pub(crate) seen: Micros,
}

/// One queue as one group sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    /// The queue's least offset and its end.
    pub(crate) bounds: (u64, u64),
    /// Every table that has an offset, by offset; what none has is done.
    pub(crate) left: BTreeMap<u64, Vec<Left>>,
}

/// Group, topic and queue.
pub(crate) type Part = (u32, u32, u32);

/// All that is known of all groups when the run is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    pub(crate) accounts: BTreeMap<Part, Account>,
    /// By group: those that are there.
    pub(crate) rows: BTreeMap<u32, Vec<Row>>,
    /// By group and letter: all that ever were.
    pub(crate) died: BTreeMap<(u32, u64), Row>,
    /// By group: the least offset of its dead-letter topic.
    pub(crate) letters_from: BTreeMap<u32, u64>,
    /// By group: deliveries that a message gets.
    pub(crate) attempts_max: BTreeMap<u32, u32>,
    /// What lies at places that retention has not reached.
    pub(crate) values: BTreeMap<Place, Option<Value>>,
    /// Topics whose messages have no tags: only who wants everything wants these.
    pub(crate) untagged: BTreeSet<u32>,
    pub(crate) facts: Vec<Fact>,
    /// Since when there was too little room for a dead letter, at one time or another.
    pub(crate) tight: Option<Micros>,
    /// Entries that had left all logs before they were read.
    pub(crate) missed: u64,
}

/// Why a message is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Acked,
    Skipped,
    /// Passed by though somebody wanted it, or under subscriptions of before.
    Passed,
}

/// What the log says of one queue of one group, gone through once.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) why: BTreeMap<u64, Why>,
    /// Where the group began, or was told to go on last.
    pub(super) begins: u64,
    /// The most that this ever was.
    begun_most: u64,
    /// The least offset that it was ever told to go on from.
    pub(super) reset_to: Option<u64>,
}

impl Told {
    /// Whether a reset may have brought a message back.
    pub(super) fn was_reset(&self, offset: u64) -> bool {
        self.reset_to.is_some_and(|to| to <= offset)
    }
}

/// What the log says of one group and topic: what is skipped under anything else has no effect.
#[derive(Default)]
struct Live {
    version: u32,
    epoch: u32,
    filters: BTreeSet<String>,
}

impl Live {
    fn want(&self, value: Value, tagged: bool) -> bool {
        let wants = |wanted: Wanted| wanted == Wanted::All || tagged && wanted.has(value);
        self.filters.iter().any(|filter| Wanted::of(filter).is_some_and(wants))
    }
}

/// Where each value is, for places that are still there and those that somebody was told.
pub(super) fn contents(history: &History, books: &Books) -> BTreeMap<Place, Value> {
    let known = books.values.iter().filter_map(|(place, value)| Some((*place, (*value)?)));
    let mut contents: BTreeMap<Place, Value> = known.collect();
    for operation in &history.operations {
        match (&operation.what, operation.answer()) {
            (What::Send { value, .. } | What::End { value, .. }, Some(Answer::Sent(place))) => {
                contents.insert(*place, *value);
            }
            (What::Receive { .. }, Some(Answer::Received(deliveries))) => {
                contents.extend(deliveries.iter().filter_map(|d| Some((d.place, d.value?))));
            }
            _ => {}
        }
    }
    contents
}

/// The log, gone through from its first entry on.
struct Fold<'a> {
    contents: &'a BTreeMap<Place, Value>,
    untagged: &'a BTreeSet<u32>,
    told: BTreeMap<Part, Told>,
    live: BTreeMap<(u32, u32), Live>,
    paused: BTreeSet<u32>,
}

/// Goes through the log.
pub(super) fn fold(books: &Books, contents: &BTreeMap<Place, Value>) -> BTreeMap<Part, Told> {
    let mut fold = Fold {
        contents,
        untagged: &books.untagged,
        told: BTreeMap::new(),
        live: BTreeMap::new(),
        paused: BTreeSet::new(),
    };
    books.facts.iter().for_each(|fact| fold.take(fact));
    fold.told
}

impl Fold<'_> {
    fn take(&mut self, fact: &Fact) {
        match fact {
            Fact::Began { group, topic, offsets } => {
                for (queue, offset) in offsets {
                    let fresh = Told { begins: *offset, begun_most: *offset, ..Told::default() };
                    self.told.entry((*group, *topic, *queue)).or_insert(fresh);
                }
            }
            Fact::Subscribed { group, topic, filter } => {
                let live = self.live.entry((*group, *topic)).or_default();
                live.version += u32::from(live.filters.insert(filter.clone()));
            }
            Fact::Unsubscribed { group, topic, filter } => {
                let live = self.live.entry((*group, *topic)).or_default();
                live.version += u32::from(live.filters.remove(filter));
            }
            Fact::Skipped { group, topic, queue, range, version, epoch } => {
                let part = (*group, *topic, *queue);
                self.skip(part, *range, (*version, *epoch));
            }
            Fact::Acked { group, place } => {
                let told = self.told.entry((*group, place.topic, place.queue)).or_default();
                told.why.insert(place.offset, Why::Acked);
            }
            Fact::Reset { group, topic, offsets, .. } => {
                self.live.entry((*group, *topic)).or_default().epoch += 1;
                for (queue, offset) in offsets {
                    let told = self.told.entry((*group, *topic, *queue)).or_default();
                    drop(told.why.split_off(offset));
                    told.begins = *offset;
                    told.begun_most = told.begun_most.max(*offset);
                    told.reset_to = Some(told.reset_to.map_or(*offset, |known| known.min(*offset)));
                }
            }
            Fact::Paused { group, paused: true } => {
                self.paused.insert(*group);
            }
            Fact::Paused { group, paused: false } => {
                self.paused.remove(group);
            }
            Fact::Redriven { .. } => {}
        }
    }

    fn skip(&mut self, (group, topic, queue): Part, range: (u64, u64), under: (u32, u32)) {
        let tagged = !self.untagged.contains(&topic);
        let live = self.live.entry((group, topic)).or_default();
        let holds = (live.version, live.epoch) == under && !self.paused.contains(&group);
        let told = self.told.entry((group, topic, queue)).or_default();
        for offset in range.0..range.1 {
            let value = self.contents.get(&Place { topic, queue, offset });
            let wanted = value.is_some_and(|value| live.want(*value, tagged));
            let known = told.why.entry(offset).or_insert(Why::Passed);
            if holds && !wanted && *known == Why::Passed {
                *known = Why::Skipped;
            }
        }
    }
}

/// For whom a place was over without an ack: it lay before the group, or was dead.
#[derive(Debug, Default)]
pub(crate) struct Over {
    begun: BTreeMap<Part, u64>,
    dead: BTreeSet<(u32, Place)>,
}

impl Over {
    pub(crate) fn of(books: &Books) -> Self {
        let told = fold(books, &BTreeMap::new());
        Self {
            begun: told.into_iter().map(|(part, told)| (part, told.begun_most)).collect(),
            dead: books.died.iter().map(|((group, _), row)| (*group, row.origin)).collect(),
        }
    }

    pub(crate) fn has(&self, group: u32, place: Place) -> bool {
        let begun = self.begun.get(&(group, place.topic, place.queue));
        begun.is_some_and(|begun| place.offset < *begun) || self.dead.contains(&(group, place))
    }
}

/// When the attempts at messages began anew, because of a reset or of a redrive.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    resets: BTreeMap<(u32, u32), Vec<Span>>,
    redrives: BTreeMap<(u32, Place), Vec<Span>>,
}

/// From when what was asked for may have taken effect, and when its entry was seen: after the death
/// of the one replica that had applied it, that can be much later.
type Span = (Micros, Micros);

/// How long an operator's client goes on asking when nobody knows what came of it.
const ASKED_AGAIN: Micros = 10_000_000;

/// When what was seen at `at` can have begun: with the last of these operations, or with one that
/// may have gone on beside it.
fn span<'a>(operations: impl Iterator<Item = &'a Operation>, at: Micros) -> Span {
    let before: Vec<&Operation> = operations.filter(|one| one.invoked <= at).collect();
    let Some(last) = before.iter().map(|one| one.invoked).max() else { return (at, at) };
    let until = |one: &Operation| match one.answer() {
        Some(_) => one.ended(),
        None => one.ended().saturating_add(ASKED_AGAIN),
    };
    let beside = before.iter().filter(|one| until(one) >= last).map(|one| one.invoked);
    (beside.min().unwrap_or(last), at)
}

/// An entry is seen a little after it took effect.
const SEEN: Micros = 50_000;

impl Epochs {
    pub(crate) fn of(books: &Books, history: &History) -> Self {
        let mut epochs = Self::default();
        let operations = || history.operations.iter();
        for fact in &books.facts {
            match fact {
                Fact::Reset { group, topic, at, .. } => {
                    let asked = operations().filter(|one| {
                        matches!(&one.what, What::Reset { group: of, topic: on, .. }
                            if (of, on) == (group, topic))
                    });
                    let span = span(asked, *at);
                    epochs.resets.entry((*group, *topic)).or_default().push(span);
                }
                Fact::Redriven { group, letters, at } => {
                    let rows =
                        letters.iter().filter_map(|letter| books.died.get(&(*group, *letter)));
                    let asked = operations().filter(
                        |one| matches!(&one.what, What::Redrive { group: of } if of == group),
                    );
                    let span = span(asked, *at);
                    for row in rows {
                        epochs.redrives.entry((*group, row.origin)).or_default().push(span);
                    }
                }
                _ => {}
            }
        }
        epochs
    }

    fn all(&self, group: u32, place: Place) -> impl Iterator<Item = Span> {
        let resets = self.resets.get(&(group, place.topic)).into_iter().flatten();
        let redrives = self.redrives.get(&(group, place)).into_iter().flatten();
        resets.chain(redrives).copied()
    }

    /// Whether attempts may have begun anew between two moments.
    pub(crate) fn part(&self, (group, place): (u32, Place), from: Micros, to: Micros) -> bool {
        let to = to.saturating_add(SEEN);
        self.all(group, place).any(|(begun, seen)| from <= seen && begun <= to)
    }

    /// When attempts began anew last before a moment: what was seen from here on may be of those.
    pub(super) fn last(&self, (group, place): (u32, Place), before: Micros) -> Micros {
        let epochs = self.all(group, place).map(|(begun, _)| begun).filter(|at| *at < before);
        epochs.max().unwrap_or(0).saturating_sub(SEEN)
    }
}

/// Letters that went back: those that an operator was told of, and where nobody knows what came of a
/// redrive, those that the log names. One that retention took first was not found.
pub(super) fn redriven(history: &History, books: &Books) -> BTreeSet<(u32, u64)> {
    let (mut told, mut unknown) = (BTreeSet::new(), false);
    for operation in &history.operations {
        let What::Redrive { group } = operation.what else { continue };
        match &operation.outcome {
            Outcome::Ok(Answer::Redriven(letters)) => {
                told.extend(letters.iter().map(|one| (group, one.letter)));
            }
            Outcome::Unknown(_) => unknown = true,
            Outcome::Ok(_) | Outcome::Fail(_) => {}
        }
    }
    let letters = books.facts.iter().filter_map(|fact| match fact {
        Fact::Redriven { group, letters, .. } => Some(letters.iter().map(|one| (*group, *one))),
        _ => None,
    });
    letters.flatten().filter(|letter| unknown || told.contains(letter)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::scenes::place;
    use super::*;

    #[test]
    fn epochs_part_what_was_before_from_what_came_after() {
        let facts = [Fact::Reset { group: 0, topic: 0, offsets: Vec::new(), at: 500_000 }];
        let epochs =
            Epochs::of(&Books { facts: facts.to_vec(), ..Books::default() }, &History::default());
        assert!(epochs.part((0, place(0)), 400_000, 460_000), "it is seen later than it is done");
        assert!(!epochs.part((0, place(0)), 400_000, 440_000));
        assert!(!epochs.part((0, place(0)), 500_001, 900_000));
        assert!(!epochs.part((1, place(0)), 400_000, 900_000), "of another group");
        let back = Fact::Redriven { group: 0, letters: vec![0], at: 500_000 };
        let row = Row { letter: 0, origin: place(1), attempts: 3, given_up: false, seen: 0 };
        let books = Books { died: [((0, 0), row)].into(), facts: vec![back], ..Books::default() };
        let epochs = Epochs::of(&books, &History::default());
        assert!(epochs.part((0, place(1)), 400_000, 600_000));
        assert!(!epochs.part((0, place(0)), 400_000, 600_000));
        assert!(Over::of(&books).has(0, place(1)) && !Over::of(&books).has(0, place(0)));
    }
}
