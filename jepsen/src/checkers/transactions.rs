//! Transactions: nobody sees a message before its commit was asked for, the first decision counts and
//! everybody is told the same one, and nobody is asked about what is decided.
//!
//! That a committed message is there, and once, is what the other checkers see to: for them a commit
//! is a send.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use crate::history::{Answer, History, Micros, Operation, Outcome, Value, What};

/// A question may have been on its way for so long when the decision came.
const ON_THE_WAY: Micros = 10_000_000;

#[derive(Default)]
struct Transaction {
    ids: BTreeSet<String>,
    /// When a commit, or a roll-back, was first asked for.
    commit_asked: Option<Micros>,
    roll_back_asked: Option<Micros>,
    /// When an answer first told that it was committed, or rolled back.
    committed: Option<Micros>,
    rolled_back: Option<Micros>,
    /// When a group got it first.
    seen: Option<Micros>,
    asked_about: Vec<Micros>,
}

fn earlier(known: &mut Option<Micros>, at: Micros) {
    *known = Some(known.map_or(at, |known| known.min(at)));
}

impl Transaction {
    fn asked(&mut self, commit: bool) -> &mut Option<Micros> {
        if commit { &mut self.commit_asked } else { &mut self.roll_back_asked }
    }

    fn told(&mut self, commit: bool) -> &mut Option<Micros> {
        if commit { &mut self.committed } else { &mut self.rolled_back }
    }
}

pub(crate) fn check(history: &History) -> Findings {
    let mut findings = Findings::default();
    let mut transactions: BTreeMap<Value, Transaction> = BTreeMap::new();
    for operation in &history.operations {
        note(operation, &mut transactions, &mut findings);
    }
    // What is no transaction is none of this checker's business.
    for operation in &history.operations {
        let Some(Answer::Received(deliveries)) = operation.answer() else { continue };
        for value in deliveries.iter().filter_map(|delivery| delivery.value) {
            if let Some(transaction) = transactions.get_mut(&value) {
                earlier(&mut transaction.seen, operation.ended());
            }
        }
    }
    for (value, transaction) in &transactions {
        check_one(*value, transaction, &mut findings);
    }
    findings
}

fn note(
    operation: &Operation,
    transactions: &mut BTreeMap<Value, Transaction>,
    findings: &mut Findings,
) {
    let ended = operation.ended();
    match (&operation.what, &operation.outcome) {
        (What::Prepare { value, .. }, outcome) => {
            let transaction = transactions.entry(*value).or_default();
            if let Outcome::Ok(Answer::Prepared(id)) = outcome {
                transaction.ids.insert(id.clone());
            }
        }
        (What::End { value, commit, .. }, outcome) => {
            let transaction = transactions.entry(*value).or_default();
            earlier(transaction.asked(*commit), operation.invoked);
            match outcome {
                Outcome::Ok(Answer::Decided { committed }) => {
                    earlier(transaction.told(*committed), ended);
                    findings.count("told the fact", 1);
                    if committed == commit {
                        let what = format!("{value} was refused as it was decided");
                        findings.violated("refused-the-same", what);
                    }
                }
                Outcome::Ok(Answer::NoTransaction) => {
                    findings.violated("transaction-lost", format!("nothing is known of {value}"));
                }
                Outcome::Ok(_) => earlier(transaction.told(*commit), ended),
                Outcome::Fail(_) | Outcome::Unknown(_) => {}
            }
        }
        (What::Listen { .. }, Outcome::Ok(Answer::Asked(Some(value)))) => {
            findings.count("checks", 1);
            transactions.entry(*value).or_default().asked_about.push(ended);
        }
        _ => {}
    }
}

fn check_one(value: Value, transaction: &Transaction, findings: &mut Findings) {
    let Transaction { ids, commit_asked, roll_back_asked, committed, rolled_back, seen, .. } =
        transaction;
    if ids.len() > 1 {
        findings.violated("one-transaction", format!("{value} is the transactions {ids:?}"));
    }
    findings.count("committed", u64::from(committed.is_some()));
    findings.count("rolled back", u64::from(rolled_back.is_some()));
    if committed.is_some() && rolled_back.is_some() {
        let what = format!("{value} was told to be committed, and to be rolled back");
        findings.violated("split-decision", what);
    }
    for (told, asked, what) in
        [(committed, commit_asked, "committed"), (rolled_back, roll_back_asked, "rolled back")]
    {
        if told.is_some_and(|told| asked.is_none_or(|asked| told < asked)) {
            let what = format!("{value} is {what}, which nobody had asked for");
            findings.violated("decision-of-nobody", what);
        }
    }
    if let Some(seen) = seen {
        if commit_asked.is_none_or(|asked| *seen < asked) {
            let what = format!("a group got {value} before its commit was asked for");
            findings.violated("half-seen", what);
        }
        if rolled_back.is_some() {
            findings.violated("rolled-back-seen", format!("a group got {value}"));
        }
    }
    let decided = committed.iter().chain(rolled_back).min();
    if let Some(decided) = decided {
        let late = transaction.asked_about.iter().find(|at| **at > decided + ON_THE_WAY);
        if late.is_some() {
            let what = format!("a producer was asked about {value} long after its decision");
            findings.violated("asked-about-decided", what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::scenes::{Scene, checks};
    use super::*;

    fn found(scene: &Scene) -> Vec<&'static str> {
        checks(&check(&scene.history))
    }

    fn decided(committed: bool) -> Outcome {
        Outcome::Ok(Answer::Decided { committed })
    }

    fn unknown() -> Outcome {
        Outcome::Unknown("?".to_owned())
    }

    #[test]
    fn a_commit_a_roll_back_and_an_open_one_are_fine() {
        let scene = Scene::default()
            .prepared(1, "a", (0, 5))
            .prepared(2, "b", (0, 5))
            .prepared(3, "c", (0, 5))
            .prepared(1, "a", (5, 6))
            .asked(Some(3), (6, 7))
            .committed(1, 0, (6, 9))
            .ended(2, false, (6, 9), Outcome::Ok(Answer::Done))
            .ended(2, true, (10, 11), decided(false))
            .ended(1, false, (10, 11), decided(true))
            .committed(1, 0, (12, 13))
            .received(&[(1, 0)], 1, (8, 20));
        let findings = check(&scene.history);
        assert_eq!(findings.verdict(), Verdict::True, "{:?}", findings.violations);
        let counts = ["committed", "rolled back", "told the fact", "checks"];
        assert_eq!(counts.map(|what| findings.counts[what]), [1, 1, 2, 1]);
    }

    #[test]
    fn an_unknown_decision_may_come_either_way() {
        let scene = Scene::default().prepared(1, "a", (0, 5)).ended(1, true, (6, 9), unknown());
        assert_eq!(found(&scene), [""; 0]);
        let seen = scene.received(&[(1, 0)], 1, (7, 20));
        assert_eq!(found(&seen), [""; 0]);
        let told = seen.ended(1, false, (21, 22), decided(true));
        assert_eq!(found(&told), [""; 0]);
        let raced = Scene::default()
            .prepared(1, "a", (0, 5))
            .ended(1, true, (6, 9), unknown())
            .ended(1, false, (6, 9), Outcome::Ok(Answer::Done));
        assert_eq!(found(&raced), [""; 0]);
        assert_eq!(found(&raced.received(&[(1, 0)], 1, (7, 20))), ["rolled-back-seen"]);
    }

    #[test]
    fn a_half_message_that_is_seen_is_seen() {
        let open = Scene::default().prepared(1, "a", (0, 5)).received(&[(1, 0)], 1, (7, 20));
        assert_eq!(found(&open), ["half-seen"]);
        let early = Scene::default()
            .prepared(1, "a", (0, 5))
            .received(&[(1, 0)], 1, (7, 8))
            .committed(1, 0, (9, 10));
        assert_eq!(found(&early), ["half-seen"]);
    }

    #[test]
    fn decisions_that_do_not_agree_are_seen() {
        let half = || Scene::default().prepared(1, "a", (0, 5));
        let both =
            half().committed(1, 0, (6, 9)).ended(1, false, (6, 9), Outcome::Ok(Answer::Done));
        assert_eq!(found(&both), ["split-decision"]);
        let facts =
            half().ended(1, true, (6, 9), decided(false)).ended(1, false, (6, 9), decided(true));
        assert_eq!(found(&facts), ["split-decision"]);
        let nobody = half().ended(1, true, (6, 9), decided(false));
        assert_eq!(found(&nobody), ["decision-of-nobody"]);
        let same = half().ended(1, true, (6, 9), decided(true));
        assert_eq!(found(&same), ["refused-the-same"]);
        let lost = half().ended(1, true, (6, 9), Outcome::Ok(Answer::NoTransaction));
        assert_eq!(found(&lost), ["transaction-lost"]);
    }

    #[test]
    fn a_repeated_half_message_is_one_transaction() {
        let scene = Scene::default().prepared(1, "a", (0, 5)).prepared(1, "b", (6, 7));
        assert_eq!(found(&scene), ["one-transaction"]);
    }

    #[test]
    fn asking_about_what_is_decided_is_seen() {
        let decided = Scene::default().prepared(1, "a", (0, 5)).committed(1, 0, (6, 9));
        let soon = decided.asked(Some(1), (100, 101)).asked(None, (200, 201));
        assert_eq!(found(&soon), [""; 0]);
        let late = soon.asked(Some(1), (19_000, 19_001));
        assert_eq!(found(&late), ["asked-about-decided"]);
    }

    /// For the other checkers a commit is a send.
    #[test]
    fn a_committed_message_that_nobody_gets_is_lost() {
        use super::super::queue::{Drain, Gone, check};
        let scene = Scene::default().prepared(1, "a", (0, 5)).committed(1, 0, (6, 9));
        let lost = check(&scene.history, &[0], Drain::Complete, &Gone::default());
        assert_eq!(checks(&lost), ["lost"]);
        let open = Scene::default().prepared(1, "a", (0, 5)).received(&[(1, 0)], 1, (7, 20));
        let seen = check(&open.history, &[0], Drain::Complete, &Gone::default());
        assert_eq!(checks(&seen), ["unexpected"]);
        let twice = scene.committed(1, 3, (10, 11));
        assert_eq!(checks(&super::super::log::check(&twice.history)), ["one-place"]);
    }
}
