//! Conservation: when all is over, every message is in exactly one state for every group, and there
//! is a reason for it.
//!
//! A message is done because it was acknowledged, because nobody of the group wanted it when it was
//! passed by, because the group began or was reset behind it, or because retention took it, which is
//! counted. It is dead where there is a row for it. Anything else left the group by a hole.
//!
//! What was decided is read from the log itself, entry by entry, and what became of it from the state
//! of a replica; what consumers were told comes from the history. So none of the three speaks for
//! itself.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use super::queue::{Drain, Gone};
use crate::history::{Answer, History, Micros, Outcome, Place, Value, Wanted, What};

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
    /// Dead letters go back, as far as they are there.
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
    /// Entries that had left all logs before they were read.
    pub(crate) missed: u64,
}

/// Why a message is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Acked,
    Skipped,
    /// Passed by though somebody wanted it, or under subscriptions of before.
    Passed,
}

/// What the log says of one queue of one group, gone through once.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    why: BTreeMap<u64, Why>,
    /// Where the group began, or was told to go on last.
    begins: u64,
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

    fn skip(
        &mut self,
        (group, topic, queue): Part,
        range: (u64, u64),
        under: (u32, u32),
    ) {
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
    resets: BTreeMap<(u32, u32), Vec<Micros>>,
    redrives: BTreeMap<(u32, Place), Vec<Micros>>,
}

/// An entry is seen a little after it took effect.
const SEEN: Micros = 50_000;

impl Epochs {
    pub(crate) fn of(books: &Books) -> Self {
        let mut epochs = Self::default();
        for fact in &books.facts {
            match fact {
                Fact::Reset { group, topic, at, .. } => {
                    epochs.resets.entry((*group, *topic)).or_default().push(*at);
                }
                Fact::Redriven { group, letters, at } => {
                    let rows = letters.iter().filter_map(|letter| books.died.get(&(*group, *letter)));
                    for row in rows {
                        epochs.redrives.entry((*group, row.origin)).or_default().push(*at);
                    }
                }
                _ => {}
            }
        }
        epochs
    }

    fn all(&self, group: u32, place: Place) -> impl Iterator<Item = Micros> {
        let resets = self.resets.get(&(group, place.topic)).into_iter().flatten();
        let redrives = self.redrives.get(&(group, place)).into_iter().flatten();
        resets.chain(redrives).copied()
    }

    /// Whether attempts may have begun anew between two moments.
    pub(crate) fn part(&self, (group, place): (u32, Place), from: Micros, to: Micros) -> bool {
        let to = to.saturating_add(SEEN);
        self.all(group, place).any(|at| from <= at && at <= to)
    }

    /// What was seen from here on may be of the last epoch.
    pub(super) fn last(&self, group: u32, place: Place) -> Micros {
        self.all(group, place).max().unwrap_or(0).saturating_sub(SEEN)
    }
}

/// What consumers were told of their acks.
#[derive(Default)]
struct Acks {
    good: BTreeSet<(u32, Place)>,
    /// Nobody knows, or refused: only the log can tell.
    tried: BTreeSet<(u32, Place)>,
}

fn acks(history: &History) -> Acks {
    let mut acks = Acks::default();
    for operation in &history.operations {
        let What::Ack { group, place, .. } = operation.what else { continue };
        match operation.outcome {
            Outcome::Ok(_) => acks.good.insert((group, place)),
            Outcome::Unknown(_) => acks.tried.insert((group, place)),
            Outcome::Fail(_) => false,
        };
    }
    acks
}

/// When a group had taken something of a topic, and when a value was sent first.
struct Times {
    began: BTreeMap<(u32, u32), Micros>,
    sent: BTreeMap<Value, Micros>,
}

fn times(history: &History) -> Times {
    let mut times = Times { began: BTreeMap::new(), sent: BTreeMap::new() };
    for operation in &history.operations {
        if let Some(value) = operation.what.shows() {
            times.sent.entry(value).or_insert(operation.invoked);
        }
        let What::Receive { group, topic, .. } = operation.what else { continue };
        let Some(Answer::Received(deliveries)) = operation.answer() else { continue };
        if !deliveries.is_empty() {
            let began = times.began.entry((group, topic)).or_insert(Micros::MAX);
            *began = operation.ended().min(*began);
        }
    }
    times
}

/// Where one message stands.
struct Stands<'a> {
    group: u32,
    place: Place,
    left: &'a [Left],
    row: bool,
    /// It had a row, and retention took the letter.
    letter_gone: bool,
    told: &'a Told,
    why: Option<Why>,
}

impl Stands<'_> {
    /// What is done without a reason is answered, for retention may have taken it.
    fn check(&self, acks: &Acks, drain: Drain, findings: &mut Findings) -> bool {
        let Self { group, place, left, row, letter_gone, told, why } = self;
        let at = format!("group {group}, {place}");
        let key = (*group, *place);
        let acked = *why == Some(Why::Acked) && acks.good.contains(&key);
        let came_back = told.was_reset(place.offset);
        if left.len() > 1 {
            findings.violated("two-states", format!("{at}: {left:?}"));
        }
        if *row && !came_back {
            if !left.is_empty() {
                findings.violated("two-states", format!("{at}: dead, and {left:?}"));
            }
            if acked {
                findings.violated("two-states", format!("{at}: dead, and acknowledged"));
            }
        }
        if let Some(left) = left.first() {
            if acked {
                findings.violated("acked-undone", format!("{at}: acknowledged, and {left:?}"));
            } else if drain == Drain::Complete {
                findings.violated("left-over", format!("{at}: {left:?} after the drain"));
            }
            return false;
        }
        let tried = *why == Some(Why::Acked) && acks.tried.contains(&key);
        let state = match why {
            _ if acked => "ended acknowledged",
            _ if *row => "ended dead",
            _ if *letter_gone => "ended dead, its letter gone",
            _ if tried => "ended acknowledged, untold",
            Some(Why::Skipped) => "ended unwanted",
            _ if place.offset < told.begins => "ended before its group",
            _ => return true,
        };
        findings.count(state, 1);
        false
    }
}

/// Whose dead letters left with their topic's retention.
fn gone_letters(books: &Books) -> BTreeSet<(u32, Place)> {
    let redriven = redriven(books);
    let gone = books.died.iter().filter(|((group, letter), _)| {
        let from = books.letters_from.get(group).copied().unwrap_or(0);
        *letter < from && !redriven.contains(&(*group, *letter))
    });
    gone.map(|((group, _), row)| (*group, row.origin)).collect()
}

/// Letters that the log says went back.
pub(super) fn redriven(books: &Books) -> BTreeSet<(u32, u64)> {
    let letters = books.facts.iter().filter_map(|fact| match fact {
        Fact::Redriven { group, letters, .. } => Some(letters.iter().map(|one| (*group, *one))),
        _ => None,
    });
    letters.flatten().collect()
}

/// Every message of every queue that a group takes.
pub(crate) fn check(history: &History, books: &Books, drain: Drain, gone: &Gone) -> Findings {
    let mut findings = Findings::default();
    if books.missed > 0 {
        findings.unknown.push(format!("{} entries left before they were read", books.missed));
        return findings;
    }
    let contents = contents(history, books);
    let told = fold(books, &contents);
    let (acks, times) = (acks(history), times(history));
    let gone_letters = gone_letters(books);
    let mut taken: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
    let nothing = Told::default();
    for (part, account) in &books.accounts {
        let (group, topic, queue) = *part;
        let told = told.get(part).unwrap_or(&nothing);
        let rows = books.rows.get(&group).into_iter().flatten();
        let rows = rows.filter(|row| (row.origin.topic, row.origin.queue) == (topic, queue));
        let rows: BTreeSet<u64> = rows.map(|row| row.origin.offset).collect();
        for offset in 0..account.bounds.1 {
            let place = Place { topic, queue, offset };
            let left = account.left.get(&offset).map_or(&[][..], Vec::as_slice);
            let why = told.why.get(&offset).copied();
            let (row, letter_gone) = (rows.contains(&offset), gone_letters.contains(&(group, place)));
            let stands = Stands { group, place, left, row, letter_gone, told, why };
            if !stands.check(&acks, drain, &mut findings) {
                continue;
            }
            if offset >= account.bounds.0 {
                let (check, how) = match why {
                    Some(Why::Passed) => ("skipped-wanted", "passed by though it was wanted"),
                    _ => ("vanished", "neither acknowledged, nor dead, nor unwanted"),
                };
                findings.violated(check, format!("group {group}, {place}: {how}"));
                continue;
            }
            // A group that has taken nothing of a topic yet begins at the least offset there is.
            let had_begun = contents.get(&place).is_some_and(|value| {
                let (began, sent) = (times.began.get(&(group, topic)), times.sent.get(value));
                began.zip(sent).is_some_and(|(began, sent)| began < sent)
            });
            let taken = taken.entry((group, topic)).or_default();
            if had_begun { taken.0 += 1 } else { taken.1 += 1 }
        }
    }
    for ((group, topic), (sure, more)) in taken {
        findings.count("ended expired", sure);
        findings.count("ended expired or before its group", more);
        let counted = gone.expired.get(&(group, topic)).copied().unwrap_or(0);
        if sure > counted {
            let what = format!(
                "group {group} lost {sure} messages of topic {topic}, and {counted} are counted"
            );
            findings.violated("expired-counted", what);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::scenes::{Scene, checks, place, value};
    use super::*;

    const PART: Part = (0, 0, 0);

    /// Two messages, of which the second has a tag that ends in "even".
    fn sent() -> Scene {
        Scene::default().sent(1, 0, (0, 5)).sent(2, 1, (0, 5))
    }

    /// Group 0 did with both what consumers do.
    fn done() -> Scene {
        let scene = sent().received(&[(1, 0), (2, 1)], 1, (10, 20));
        scene.acked(0, 1, (30, 40)).acked(1, 1, (30, 40))
    }

    fn acked(offset: u64) -> Fact {
        Fact::Acked { group: 0, place: place(offset) }
    }

    fn skipped(offset: u64, version: u32) -> Fact {
        let range = (offset, offset + 1);
        Fact::Skipped { group: 0, topic: 0, queue: 0, range, version, epoch: 0 }
    }

    fn subscribed(filter: &str) -> Fact {
        Fact::Subscribed { group: 0, topic: 0, filter: filter.to_owned() }
    }

    fn reset(offset: u64) -> Fact {
        Fact::Reset { group: 0, topic: 0, offsets: vec![(0, offset)], at: 0 }
    }

    fn books(facts: &[Fact]) -> Books {
        let account = Account { bounds: (0, 2), ..Account::default() };
        let values = [(place(0), Some(value(1))), (place(1), Some(value(2)))];
        Books {
            accounts: BTreeMap::from([(PART, account)]),
            values: values.into(),
            facts: facts.to_vec(),
            ..Books::default()
        }
    }

    fn with_left(facts: &[Fact], offset: u64, left: &[Left]) -> Books {
        let mut books = books(facts);
        let account = Account { bounds: (0, 2), left: [(offset, left.to_vec())].into() };
        books.accounts.insert(PART, account);
        books
    }

    fn with_row(facts: &[Fact], offset: u64) -> Books {
        let row = Row { letter: 0, origin: place(offset), attempts: 3, given_up: false };
        Books { rows: BTreeMap::from([(0, vec![row])]), ..books(facts) }
    }

    fn look(scene: &Scene, books: &Books) -> Vec<&'static str> {
        checks(&check(&scene.history, books, Drain::Complete, &Gone::default()))
    }

    #[test]
    fn every_end_with_its_reason_is_fine() {
        let findings = check(
            &done().history,
            &books(&[acked(0), acked(1)]),
            Drain::Complete,
            &Gone::default(),
        );
        assert_eq!(findings.verdict(), Verdict::True);
        assert_eq!(findings.counts["ended acknowledged"], 2);
        let one = sent().received(&[(1, 0)], 1, (10, 20)).acked(0, 1, (30, 40));
        let unwanted = [subscribed("odd"), skipped(1, 1), acked(0)];
        assert_eq!(look(&one, &books(&unwanted)), [""; 0]);
        assert_eq!(look(&one, &with_row(&[acked(0)], 1)), [""; 0]);
        let began = Fact::Began { group: 0, topic: 0, offsets: vec![(0, 2)] };
        assert_eq!(look(&sent(), &books(&[began])), [""; 0]);
        assert_eq!(look(&sent(), &books(&[reset(2)])), [""; 0]);
        // An ack that nobody was answered is one when it is in the log.
        let mut untold = one.acked(1, 1, (50, 60));
        let last = untold.history.operations.len() - 1;
        untold.history.operations[last].outcome = Outcome::Unknown("?".to_owned());
        assert_eq!(look(&untold, &books(&[acked(0), acked(1)])), [""; 0]);
        assert_eq!(look(&untold, &books(&[acked(0)])), ["vanished"]);
    }

    #[test]
    fn a_message_without_an_end_is_seen() {
        let one = sent().received(&[(1, 0)], 1, (10, 20)).acked(0, 1, (30, 40));
        assert_eq!(look(&one, &books(&[acked(0)])), ["vanished"]);
        let left = with_left(&[acked(0)], 1, &[Left::Pending]);
        assert_eq!(look(&one, &left), ["left-over"]);
        let cut = check(&one.history, &left, Drain::Cut, &Gone::default());
        assert_eq!(cut.verdict(), Verdict::True, "it is on its way");
        let lost = Books { missed: 1, ..books(&[acked(0)]) };
        let unknown = check(&one.history, &lost, Drain::Complete, &Gone::default());
        assert_eq!(unknown.verdict(), Verdict::Unknown);
    }

    #[test]
    fn two_ends_of_one_message_are_seen() {
        let facts = [acked(0), acked(1)];
        let twice = with_left(&[acked(0)], 1, &[Left::Free, Left::Pending]);
        let one = || sent().received(&[(1, 0)], 1, (10, 20)).acked(0, 1, (30, 40));
        assert_eq!(look(&one(), &twice), ["two-states", "left-over"]);
        assert_eq!(look(&done(), &with_row(&facts, 1)), ["two-states"]);
        let mut dead = with_left(&[acked(0)], 1, &[Left::Free]);
        dead.rows = with_row(&facts, 1).rows;
        assert_eq!(look(&one(), &dead), ["two-states", "left-over"]);
        // It died, was brought back, and then was acknowledged.
        assert_eq!(look(&done(), &with_row(&[reset(0), acked(0), acked(1)], 1)), [""; 0]);
    }

    #[test]
    fn an_acknowledged_message_stays_done_unless_it_is_brought_back() {
        let facts = [acked(0), acked(1)];
        let left = |facts: &[Fact]| with_left(facts, 1, &[Left::Pending]);
        assert_eq!(look(&done(), &left(&facts)), ["acked-undone"]);
        let back = [acked(0), acked(1), reset(1)];
        let cut = check(&done().history, &left(&back), Drain::Cut, &Gone::default());
        assert_eq!(cut.verdict(), Verdict::True);
        assert_eq!(look(&done(), &books(&back)), ["vanished"], "brought back, and not done since");
        let beside = [acked(0), acked(1), reset(0), acked(0), acked(1)];
        assert_eq!(look(&done(), &books(&beside)), [""; 0]);
    }

    #[test]
    fn what_somebody_wants_is_not_passed_by() {
        let one = sent().received(&[(1, 0)], 1, (10, 20)).acked(0, 1, (30, 40));
        let wanted = [subscribed("odd"), subscribed("even || never-1"), acked(0), skipped(1, 2)];
        assert_eq!(look(&one, &books(&wanted)), ["skipped-wanted"]);
        // Computed before somebody came who wants it.
        let stale = [subscribed("odd"), subscribed("even"), acked(0), skipped(1, 1)];
        assert_eq!(look(&one, &books(&stale)), ["skipped-wanted"]);
        let gone = Fact::Unsubscribed { group: 0, topic: 0, filter: "even".to_owned() };
        let left = [subscribed("odd"), subscribed("even"), acked(0), gone, skipped(1, 3)];
        assert_eq!(look(&one, &books(&left)), [""; 0]);
        let paused = Fact::Paused { group: 0, paused: true };
        let held = [subscribed("odd"), paused, acked(0), skipped(1, 1)];
        assert_eq!(look(&one, &books(&held)), ["skipped-wanted"], "nothing is skipped meanwhile");
        let turned = [subscribed("odd"), reset(0), acked(0), skipped(1, 1)];
        assert_eq!(look(&one, &books(&turned)), ["skipped-wanted"], "computed before a reset");
        let everything = Books { untagged: [0].into(), ..books(&wanted) };
        assert_eq!(look(&one, &everything), [""; 0], "it has no tag");
        // A skip that took nothing does no harm.
        let both = [subscribed("*"), acked(1), skipped(1, 1), acked(0)];
        assert_eq!(look(&done(), &books(&both)), [""; 0]);
    }

    #[test]
    fn a_dead_letter_may_leave_by_retention_only() {
        let one = sent().received(&[(1, 0)], 1, (10, 20)).acked(0, 1, (30, 40));
        let row = Row { letter: 4, origin: place(1), attempts: 3, given_up: false };
        let died = |from, facts: &[Fact]| Books {
            died: BTreeMap::from([((0, 4), row)]),
            letters_from: BTreeMap::from([(0, from)]),
            ..books(facts)
        };
        assert_eq!(look(&one, &died(5, &[acked(0)])), [""; 0]);
        assert_eq!(look(&one, &died(4, &[acked(0)])), ["vanished"]);
        let back = Fact::Redriven { group: 0, letters: vec![4], at: 0 };
        assert_eq!(look(&one, &died(5, &[acked(0), back])), ["vanished"]);
    }

    #[test]
    fn epochs_part_what_was_before_from_what_came_after() {
        let facts = [Fact::Reset { group: 0, topic: 0, offsets: Vec::new(), at: 500_000 }];
        let epochs = Epochs::of(&books(&facts));
        assert!(epochs.part((0, place(0)), 400_000, 460_000), "it is seen later than it is done");
        assert!(!epochs.part((0, place(0)), 400_000, 440_000));
        assert!(!epochs.part((0, place(0)), 500_001, 900_000));
        assert!(!epochs.part((1, place(0)), 400_000, 900_000), "of another group");
        let back = Fact::Redriven { group: 0, letters: vec![0], at: 500_000 };
        let row = Row { letter: 0, origin: place(1), attempts: 3, given_up: false };
        let books = Books { died: [((0, 0), row)].into(), ..books(&[back]) };
        let epochs = Epochs::of(&books);
        assert!(epochs.part((0, place(1)), 400_000, 600_000));
        assert!(!epochs.part((0, place(0)), 400_000, 600_000));
        assert!(Over::of(&books).has(0, place(1)) && !Over::of(&books).has(0, place(0)));
    }

    #[test]
    fn what_retention_took_is_counted() {
        let scene = || {
            let began = Scene::default().sent(3, 2, (0, 1)).received(&[(3, 2)], 1, (2, 3));
            began.acked(2, 1, (4, 5)).sent(1, 0, (10, 11)).sent(2, 1, (10, 11))
        };
        let mut books = books(&[acked(2)]);
        books.accounts.insert(PART, Account { bounds: (2, 3), ..Account::default() });
        let with = |counted| {
            let expired = BTreeMap::from([((0, 0), counted)]);
            let gone = Gone { expired, ..Gone::default() };
            checks(&check(&scene().history, &books, Drain::Complete, &gone))
        };
        assert_eq!(with(2), [""; 0]);
        assert_eq!(with(1), ["expired-counted"]);
        // What was there before the group had taken anything is not lost to it.
        let before = sent().received(&[(3, 2)], 1, (20, 30)).sent(3, 2, (10, 11));
        let before = before.acked(2, 1, (40, 50));
        assert_eq!(look(&before, &books), [""; 0]);
    }
}
