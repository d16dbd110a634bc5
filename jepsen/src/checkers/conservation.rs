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
use super::books::{Books, Left, Told, Why, contents, fold, redriven};
use super::queue::{Drain, Gone};
use crate::history::{Answer, History, Micros, Outcome, Place, Value, What};

/// What consumers were told of their acks.
#[derive(Default)]
struct Acks {
    good: BTreeSet<(u32, Place)>,
    /// Nobody knows: only the log can tell.
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

/// What groups were ever handed.
fn received(history: &History) -> BTreeSet<(u32, Place)> {
    let mut got = BTreeSet::new();
    for operation in &history.operations {
        let What::Receive { group, .. } = operation.what else { continue };
        let Some(Answer::Received(batch)) = operation.answer() else { continue };
        got.extend(batch.iter().map(|one| (group, one.place)));
    }
    got
}

/// Whose dead letters left with their topic's retention.
fn gone_letters(history: &History, books: &Books) -> BTreeSet<(u32, Place)> {
    let redriven = redriven(history, books);
    let gone = books.died.iter().filter(|((group, letter), _)| {
        let from = books.letters_from.get(group).copied().unwrap_or(0);
        *letter < from && !redriven.contains(&(*group, *letter))
    });
    gone.map(|((group, _), row)| (*group, row.origin)).collect()
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
    let gone_letters = gone_letters(history, books);
    let mut taken: BTreeMap<(u32, u32), (Vec<Place>, u64)> = BTreeMap::new();
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
            let (row, letter_gone) =
                (rows.contains(&offset), gone_letters.contains(&(group, place)));
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
            if had_begun { taken.0.push(place) } else { taken.1 += 1 }
        }
    }
    let got = received(history);
    for ((group, topic), (places, more)) in taken {
        let sure = places.len() as u64;
        findings.count("ended expired", sure);
        findings.count("ended expired or before its group", more);
        let counted = gone.expired.get(&(group, topic)).copied().unwrap_or(0);
        if sure > counted {
            // Those that it had had are the odd ones.
            let had = places.iter().filter(|place| got.contains(&(group, **place)));
            let had: Vec<String> = had.take(8).map(ToString::to_string).collect();
            let what = format!(
                "group {group} lost {sure} messages of topic {topic}, and {counted} are counted; it had \
                 had {}",
                had.join(", ")
            );
            findings.violated("expired-counted", what);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::books::{Account, Fact, Part, Row};
    use super::super::scenes::{Scene, checks, place, value};
    use super::*;
    use crate::history::DeadLetter;

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
        let row = Row { letter: 0, origin: place(offset), attempts: 3, given_up: false, seen: 0 };
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
        let row = Row { letter: 4, origin: place(1), attempts: 3, given_up: false, seen: 0 };
        let died = |from, facts: &[Fact]| Books {
            died: BTreeMap::from([((0, 4), row)]),
            letters_from: BTreeMap::from([(0, from)]),
            ..books(facts)
        };
        assert_eq!(look(&one, &died(5, &[acked(0)])), [""; 0]);
        assert_eq!(look(&one, &died(4, &[acked(0)])), ["vanished"]);
        let back = Fact::Redriven { group: 0, letters: vec![4], at: 0 };
        assert_eq!(look(&one, &died(5, &[acked(0), back.clone()])), [""; 0], "not found by then");
        let letter = DeadLetter { letter: 4, origin: place(1), attempts: 3 };
        let told = one.redriven(&[letter], (50, 60));
        assert_eq!(look(&told, &died(5, &[acked(0), back])), ["vanished"]);
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
