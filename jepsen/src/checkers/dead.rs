//! Dead letters: a message dies of its last attempt and not before it, a letter is what it was made
//! of, and what is put back comes again, once for each time.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use super::books::{Books, Epochs, Fact, Row, contents, fold, redriven};
use crate::history::{Answer, DeadLetter, History, Micros, Operation, Outcome, Place, Value, What};

/// One delivery as its consumer saw it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    ended: Micros,
    attempt: u32,
}

#[derive(Default)]
struct Told {
    seen: BTreeMap<(u32, Place), Vec<Seen>>,
    /// By group and topic: when receives began that may have been handed what nobody was told of.
    doubtful: BTreeMap<(u32, u32), Vec<Micros>>,
    redrives: BTreeMap<u32, Vec<(Micros, Vec<DeadLetter>)>>,
}

fn collect(history: &History) -> Told {
    let mut told = Told::default();
    for operation in &history.operations {
        let failed = matches!(operation.outcome, Outcome::Fail(_));
        match &operation.what {
            What::Receive { group, topic, invisible, .. } if !failed => {
                if let Some(Answer::Received(batch)) = operation.answer() {
                    for one in batch {
                        let seen = Seen { ended: operation.ended(), attempt: one.attempt };
                        told.seen.entry((*group, one.place)).or_default().push(seen);
                    }
                }
                if is_doubtful(operation, *invisible) {
                    let doubtful = told.doubtful.entry((*group, *topic)).or_default();
                    doubtful.push(operation.invoked);
                }
            }
            What::Redrive { group } => {
                if let Some(Answer::Redriven(letters)) = operation.answer() {
                    let redrives = told.redrives.entry(*group).or_default();
                    redrives.push((operation.invoked, letters.clone()));
                }
            }
            _ => {}
        }
    }
    told
}

/// Nobody was told what it got; or it asked a second leader when its first hand-out was over.
fn is_doubtful(receive: &Operation, invisible: Micros) -> bool {
    receive.answer().is_none() || receive.ended() - receive.invoked >= invisible
}

impl Told {
    /// The attempts that were seen since they began anew before a death, and how many nobody may have
    /// been told of.
    fn attempts(&self, epochs: &Epochs, group: u32, row: &Row) -> (BTreeSet<u32>, u64) {
        let place = row.origin;
        let epoch = epochs.last((group, place), row.seen);
        let seen = self.seen.get(&(group, place)).into_iter().flatten();
        let seen = seen.filter(|seen| seen.ended >= epoch).map(|seen| seen.attempt).collect();
        let doubtful = self.doubtful.get(&(group, place.topic)).into_iter().flatten();
        (seen, doubtful.count() as u64)
    }
}

pub(crate) fn check(history: &History, books: &Books) -> Findings {
    let mut findings = Findings::default();
    let (told, epochs) = (collect(history), Epochs::of(books, history));
    check_most(&told, books, &mut findings);
    for (group, rows) in &books.rows {
        let max = books.attempts_max.get(group).copied().unwrap_or(u32::MAX);
        for row in rows {
            findings.count("dead letters left", 1);
            check_row((*group, row), max, (&told, &epochs), &mut findings);
        }
    }
    check_redrives(history, books, &told, &mut findings);
    check_kept(history, books, &mut findings);
    check_letters(history, books, &mut findings);
    findings
}

/// Nobody gets a message oftener than the group allows, unless there was no room to bury it.
fn check_most(told: &Told, books: &Books, findings: &mut Findings) {
    for ((group, place), seen) in &told.seen {
        let Some(max) = books.attempts_max.get(group) else { continue };
        let spared = |seen: &Seen| books.tight.is_some_and(|since| since <= seen.ended);
        let beyond = seen.iter().filter(|seen| seen.attempt > *max);
        let (spared, beyond): (Vec<&Seen>, Vec<&Seen>) = beyond.partition(|seen| spared(seen));
        findings.count("spared for want of room", spared.len() as u64);
        if let Some(beyond) = beyond.first() {
            let what = format!("group {group}, {place}: attempt {} of {max}", beyond.attempt);
            findings.violated("attempts-exceeded", what);
        }
    }
}

fn check_row(
    (group, row): (u32, &Row),
    max: u32,
    (told, epochs): (&Told, &Epochs),
    findings: &mut Findings,
) {
    let at = format!("group {group}, {}", row.origin);
    if row.given_up {
        findings.count("given up", 1);
        return;
    }
    if row.attempts != max {
        findings.violated("dead-early", format!("{at}: dead after {} of {max}", row.attempts));
        return;
    }
    let (seen, doubtful) = told.attempts(epochs, group, row);
    let missing: Vec<u32> = (1..=max).filter(|attempt| !seen.contains(attempt)).collect();
    if missing.len() as u64 > doubtful {
        let what = format!("{at}: dead, and nobody ever got attempts {missing:?} of {max}");
        findings.violated("dead-unseen", what);
    }
    findings.count("dead letters with untold attempts", u64::from(!missing.is_empty()));
}

/// What went back comes again, and each letter goes back once.
fn check_redrives(history: &History, books: &Books, told: &Told, findings: &mut Findings) {
    let contents = contents(history, books);
    let log = fold(books, &contents);
    let mut went: BTreeSet<(u32, u64)> = BTreeSet::new();
    for (group, redrives) in &told.redrives {
        let rows: BTreeSet<u64> =
            books.rows.get(group).into_iter().flatten().map(|row| row.letter).collect();
        let letters = redrives.iter().flat_map(|(at, all)| all.iter().map(move |one| (*at, one)));
        for (invoked, letter) in letters {
            findings.count("redriven", 1);
            let DeadLetter { letter, origin, .. } = *letter;
            let at = format!("group {group}, letter {letter} of {origin}");
            if !went.insert((*group, letter)) {
                findings.violated("redriven-twice", format!("{at} went back twice"));
            }
            if rows.contains(&letter) {
                findings.violated("redriven-kept", format!("{at} went back and is still dead"));
            }
            let part = (*group, origin.topic, origin.queue);
            let account = books.accounts.get(&part);
            let left = account.is_some_and(|account| account.left.contains_key(&origin.offset));
            let taken = account.is_some_and(|account| origin.offset < account.bounds.0);
            let moved = log.get(&part).is_some_and(|told| told.reset_to.is_some());
            let mut seen = told.seen.get(&(*group, origin)).into_iter().flatten();
            let again = seen.any(|seen| seen.ended >= invoked);
            let mut unsure = told.doubtful.get(&(*group, origin.topic)).into_iter().flatten();
            let unsure = unsure.any(|at| *at >= invoked);
            if !again && !left && !taken && !moved && !unsure {
                findings.violated("redrive-lost", format!("{at} went back and never came"));
            }
        }
    }
}

/// A letter stays until it goes back, or until retention takes it.
fn check_kept(history: &History, books: &Books, findings: &mut Findings) {
    let redriven = redriven(history, books);
    for ((group, letter), row) in &books.died {
        findings.count("deaths", 1);
        let mut rows = books.rows.get(group).into_iter().flatten();
        let here = rows.any(|row| row.letter == *letter);
        let gone = *letter < books.letters_from.get(group).copied().unwrap_or(0);
        if !here && !gone && !redriven.contains(&(*group, *letter)) {
            let what = format!("group {group}: letter {letter} of {} is gone", row.origin);
            findings.violated("letter-lost", what);
        }
    }
    let redrives = books.facts.iter().filter(|fact| matches!(fact, Fact::Redriven { .. }));
    findings.count("entries that redrive", redrives.count() as u64);
}

/// A letter is the message that it was made of, and says so at all times.
fn check_letters(history: &History, books: &Books, findings: &mut Findings) {
    let contents = contents(history, books);
    let mut known: BTreeMap<(u32, u64), Place> = BTreeMap::new();
    let mut of = |group: u32, letter: u64, origin: Place, findings: &mut Findings| {
        let first = *known.entry((group, letter)).or_insert(origin);
        if first != origin {
            let what = format!("group {group}: letter {letter} is of {first} and of {origin}");
            findings.violated("letter-moved", what);
        }
    };
    for (group, rows) in &books.rows {
        rows.iter().for_each(|row| of(*group, row.letter, row.origin, findings));
    }
    for operation in &history.operations {
        match (&operation.what, operation.answer()) {
            (What::ListDead { group }, Some(Answer::Dead(letters)))
            | (What::Redrive { group }, Some(Answer::Redriven(letters))) => {
                letters.iter().for_each(|one| of(*group, one.letter, one.origin, findings));
            }
            _ => {}
        }
    }
    let mut bodies: BTreeMap<(u32, u64), Value> = BTreeMap::new();
    for operation in &history.operations {
        let What::ReceiveDead { group } = operation.what else { continue };
        let Some(Answer::Letters(letters)) = operation.answer() else { continue };
        findings.count("letters received", letters.len() as u64);
        for (letter, value) in letters {
            let at = format!("group {group}: letter {letter}");
            let Some(value) = value else {
                findings.violated("letter-corrupt", format!("{at} is of nobody"));
                continue;
            };
            let first = *bodies.entry((group, *letter)).or_insert(*value);
            let origin = known.get(&(group, *letter)).and_then(|origin| contents.get(origin));
            let differs = first != *value || origin.is_some_and(|origin| origin != value);
            if differs {
                let what = format!("{at} is {value}, and was {first}; its origin is {origin:?}");
                findings.violated("letter-differs", what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::books::{Account, Left};
    use super::super::scenes::{Scene, checks, place};
    use super::*;

    const MAX: u32 = 2;

    fn row(offset: u64) -> Row {
        Row { letter: 0, origin: place(offset), attempts: MAX, given_up: false, seen: 0 }
    }

    fn books(rows: &[Row]) -> Books {
        let account = Account { bounds: (0, 1), ..Account::default() };
        Books {
            accounts: BTreeMap::from([((0, 0, 0), account)]),
            rows: BTreeMap::from([(0, rows.to_vec())]),
            attempts_max: BTreeMap::from([(0, MAX)]),
            ..Books::default()
        }
    }

    fn letter(offset: u64) -> DeadLetter {
        DeadLetter { letter: 0, origin: place(offset), attempts: MAX }
    }

    /// Message 1 at offset 0, both of its attempts spent.
    fn spent() -> Scene {
        Scene::default().sent(1, 0, (0, 5)).received(&[(1, 0)], 1, (10, 20)).received(
            &[(1, 0)],
            2,
            (2_000, 2_010),
        )
    }

    fn look(scene: &Scene, books: &Books) -> Vec<&'static str> {
        checks(&check(&scene.history, books))
    }

    #[test]
    fn a_message_that_was_tried_as_often_as_allowed_is_dead() {
        let findings = check(&spent().history, &books(&[row(0)]));
        assert_eq!(findings.verdict(), Verdict::True);
        assert_eq!(findings.counts["dead letters left"], 1);
        let given = Row { attempts: 1, given_up: true, ..row(0) };
        assert_eq!(look(&Scene::default().sent(1, 0, (0, 5)), &books(&[given])), [""; 0]);
    }

    #[test]
    fn a_death_before_the_last_attempt_is_seen() {
        let early = Row { attempts: 1, ..row(0) };
        assert_eq!(look(&spent(), &books(&[early])), ["dead-early"]);
        let once = Scene::default().sent(1, 0, (0, 5)).received(&[(1, 0)], 1, (10, 20));
        assert_eq!(look(&once, &books(&[row(0)])), ["dead-unseen"]);
        // Somebody may have got it and not been told.
        let unsure = once.receive((30, 40), Outcome::Unknown("no answer".to_owned()));
        assert_eq!(look(&unsure, &books(&[row(0)])), [""; 0]);
        // Attempts that began anew afterwards are others.
        let reset = Fact::Reset { group: 0, topic: 0, offsets: vec![(0, 0)], at: 4_000_000 };
        let with = |seen| Books { facts: vec![reset.clone()], ..books(&[Row { seen, ..row(0) }]) };
        assert_eq!(look(&spent(), &with(3_999_999)), [""; 0]);
        assert_eq!(look(&spent(), &with(4_000_001)), ["dead-unseen"]);
        let third = spent().received(&[(1, 0)], 3, (4_000, 4_010));
        assert_eq!(look(&third, &books(&[])), ["attempts-exceeded"]);
        let tight = |since| Books { tight: Some(since), ..books(&[]) };
        assert_eq!(look(&third, &tight(4_010_000)), [""; 0], "there was no room for a letter");
        assert_eq!(look(&third, &tight(4_010_001)), ["attempts-exceeded"], "not yet");
    }

    #[test]
    fn what_is_put_back_comes_again() {
        let back = spent().redriven(&[letter(0)], (3_000, 3_010));
        assert_eq!(look(&back, &books(&[])), ["redrive-lost"]);
        let mut waits = books(&[]);
        let account = Account { bounds: (0, 1), left: BTreeMap::from([(0, vec![Left::Pending])]) };
        waits.accounts.insert((0, 0, 0), account);
        assert_eq!(look(&back, &waits), [""; 0], "it is to come");
        let mut taken = books(&[]);
        taken.accounts.insert((0, 0, 0), Account { bounds: (1, 1), ..Account::default() });
        assert_eq!(look(&back, &taken), [""; 0], "retention took it");
        let again = back.received(&[(1, 0)], 1, (3_020, 3_030)).acked(0, 1, (3_040, 3_050));
        assert_eq!(look(&again, &books(&[])), [""; 0]);
        assert_eq!(look(&again, &books(&[row(0)])), ["redriven-kept"]);
        let twice = again.redriven(&[letter(0)], (3_015, 3_016));
        assert_eq!(look(&twice, &books(&[])), ["redriven-twice"]);
    }

    #[test]
    fn a_letter_that_is_gone_without_a_reason_is_seen() {
        let with = |rows: &[Row], facts: &[Fact], from| {
            let died = BTreeMap::from([((0, 0), row(0))]);
            let letters_from = BTreeMap::from([(0, from)]);
            let books = Books { died, letters_from, facts: facts.to_vec(), ..books(rows) };
            look(&spent(), &books)
        };
        assert_eq!(with(&[row(0)], &[], 0), [""; 0]);
        assert_eq!(with(&[], &[], 0), ["letter-lost"]);
        assert_eq!(with(&[], &[], 1), [""; 0], "retention took it");
        let back = Fact::Redriven { group: 0, letters: vec![0], at: 0 };
        assert_eq!(with(&[], std::slice::from_ref(&back), 0), ["letter-lost"], "told to nobody");
        let scene = spent().redriven(&[letter(0)], (3_000, 3_010));
        let scene = scene.received(&[(1, 0)], 1, (3_020, 3_030)).acked(0, 1, (3_040, 3_050));
        let died = BTreeMap::from([((0, 0), row(0))]);
        let went = Books { died, facts: vec![back], ..books(&[]) };
        assert_eq!(look(&scene, &went), [""; 0]);
    }

    #[test]
    fn a_letter_that_is_another_message_is_seen() {
        let listed = |offset| spent().listed(&[letter(offset)], (2_500, 2_510));
        assert_eq!(look(&listed(0), &books(&[row(0)])), [""; 0]);
        assert_eq!(look(&listed(1), &books(&[row(0)])), ["letter-moved"]);
        let got = |value| spent().letters(&[(0, value)], (2_500, 2_510));
        assert_eq!(look(&got(Some(1)), &books(&[row(0)])), [""; 0]);
        assert_eq!(look(&got(Some(2)), &books(&[row(0)])), ["letter-differs"]);
        assert_eq!(look(&got(None), &books(&[row(0)])), ["letter-corrupt"]);
    }
}
