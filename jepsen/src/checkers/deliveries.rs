//! Deliveries: what was acknowledged never comes again, what is hidden does not come early, and
//! every delivery of a message has an attempt of its own.

use std::collections::BTreeMap;

use super::Findings;
use super::books::Epochs;
use crate::history::{Answer, History, Micros, Place, What};

/// What clocks may do to a time that was promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// Whether any clock was set or ran at another rate: then no time is promised.
    pub(crate) disturbed: bool,
    /// The topic that is in order: there a failure brings others back early, and their attempts do
    /// not count. [`super::order`] looks at them.
    pub(crate) ordered: u32,
}

/// Stamps are whole milliseconds, and the clock moves in steps.
const SLACK: Micros = 10_000;

/// One delivery as its consumer saw it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    invoked: Micros,
    completed: Micros,
    attempt: u32,
    invisible: Micros,
}

#[derive(Default)]
struct Told {
    seen: Vec<Seen>,
    /// The first ack that was answered `Ok`: when it was over, and when it began.
    acked: Option<(Micros, Micros)>,
    /// Times at which a hold may have made it visible: invoked, and how long after.
    holds: Vec<(Micros, Micros, u32)>,
}

/// `epochs` tells when attempts began anew: nothing of before holds for what came after.
pub(crate) fn check(history: &History, clocks: Clocks, epochs: &Epochs) -> Findings {
    let mut findings = Findings::default();
    let told = collect(history);
    for ((group, place), told) in &told {
        let at = format!("group {group}, {place}");
        let anew = |from: Micros, to: Micros| epochs.part((*group, *place), from, to);
        check_acked(&at, told, &anew, &mut findings);
        let ordered = place.topic == clocks.ordered;
        check_attempts(&at, told, (ordered, &anew), &mut findings);
        if !clocks.disturbed && !ordered {
            check_hidden(&at, told, &anew, &mut findings);
        }
    }
    findings
}

fn collect(history: &History) -> BTreeMap<(u32, Place), Told> {
    let mut told: BTreeMap<(u32, Place), Told> = BTreeMap::new();
    for operation in &history.operations {
        match (&operation.what, operation.answer()) {
            (What::Receive { group, invisible, .. }, Some(Answer::Received(deliveries))) => {
                for delivery in deliveries {
                    let seen = Seen {
                        invoked: operation.invoked,
                        completed: operation.ended(),
                        attempt: delivery.attempt,
                        invisible: *invisible,
                    };
                    told.entry((*group, delivery.place)).or_default().seen.push(seen);
                }
            }
            (What::Ack { group, place, .. }, Some(_)) => {
                let told = told.entry((*group, *place)).or_default();
                let ack = (operation.ended(), operation.invoked);
                told.acked = Some(told.acked.map_or(ack, |known| known.min(ack)));
            }
            // Whatever came of it: a hold that is not known may have taken effect.
            (What::Hold { group, place, attempt, invisible }, _) => {
                let told = told.entry((*group, *place)).or_default();
                told.holds.push((operation.invoked, *invisible, *attempt));
            }
            _ => {}
        }
    }
    told
}

/// Whether attempts may have begun anew between two moments.
type Anew<'a> = &'a dyn Fn(Micros, Micros) -> bool;

/// A receive that began after an ack was answered does not get the message.
fn check_acked(at: &str, told: &Told, anew: Anew<'_>, findings: &mut Findings) {
    findings.count("deliveries", told.seen.len() as u64);
    findings.count("redeliveries", told.seen.len().saturating_sub(1) as u64);
    let Some((acked, began)) = told.acked else { return };
    findings.count("acks", 1);
    let late = told.seen.iter().filter(|seen| seen.invoked > acked);
    for seen in late.filter(|seen| !anew(began, seen.completed)) {
        let what = format!(
            "{at}: acknowledged by {acked} us, attempt {} was received by a call of {} us",
            seen.attempt, seen.invoked
        );
        findings.violated("acked-again", what);
    }
}

/// No two consumers hold the same attempt, and later ones have higher numbers.
fn check_attempts(
    at: &str,
    told: &Told,
    (ordered, anew): (bool, Anew<'_>),
    findings: &mut Findings,
) {
    for (number, one) in told.seen.iter().enumerate() {
        for other in &told.seen[number + 1..] {
            let times = (one.invoked.min(other.invoked), one.completed.max(other.completed));
            if anew(times.0, times.1) {
                continue;
            }
            if one.attempt == other.attempt && !ordered {
                let what = format!("{at}: attempt {} was delivered twice", one.attempt);
                findings.violated("attempt-twice", what);
            }
            let (first, second) =
                if one.completed < other.invoked { (one, other) } else { (other, one) };
            if first.completed < second.invoked && first.attempt > second.attempt {
                let what = format!("{at}: attempt {} came after {}", second.attempt, first.attempt);
                findings.violated("attempt-order", what);
            }
        }
    }
}

/// While a delivery hides a message nobody else gets it, unless a hold allowed it.
fn check_hidden(at: &str, told: &Told, anew: Anew<'_>, findings: &mut Findings) {
    for one in &told.seen {
        // The broker's time begins after the call did, so the message is hidden at least until:
        let until = one.invoked + one.invisible;
        let held = |seen: &Seen| {
            told.holds.iter().any(|(invoked, invisible, attempt)| {
                *attempt == one.attempt && invoked + invisible <= seen.completed
            })
        };
        let later = |other: &&Seen| other.attempt > one.attempt && other.completed > one.invoked;
        for other in told.seen.iter().filter(later) {
            let apart = anew(one.invoked, other.completed);
            if other.completed + SLACK < until && !held(other) && !apart {
                let what = format!(
                    "{at}: attempt {} hides it until {until} us, attempt {} was received by {} us",
                    one.attempt, other.attempt, other.completed
                );
                findings.violated("hidden", what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::books::{Books, Fact};
    use super::super::scenes::{Scene, checks};
    use super::*;

    const CLOCKS: Clocks = Clocks { disturbed: false, ordered: 1 };

    fn look(scene: &Scene) -> Findings {
        check(&scene.history, CLOCKS, &Epochs::default())
    }

    /// The group was reset at 15 ms.
    fn look_after_reset(scene: &Scene) -> Findings {
        let at = 15_000;
        let facts = vec![Fact::Reset { group: 0, topic: 0, offsets: Vec::new(), at }];
        let epochs = Epochs::of(&Books { facts, ..Books::default() }, &scene.history);
        check(&scene.history, CLOCKS, &epochs)
    }

    #[test]
    fn a_redelivery_after_its_time_is_fine() {
        let scene = Scene::default()
            .received(&[(1, 0)], 1, (0, 10))
            .received(&[(1, 0)], 2, (900, 1_100))
            .acked(0, 2, (1_200, 1_210));
        let findings = look(&scene);
        assert_eq!(findings.verdict(), Verdict::True);
        assert_eq!(findings.counts["redeliveries"], 1);
    }

    #[test]
    fn an_acked_message_that_comes_again_is_seen() {
        let scene = Scene::default()
            .received(&[(1, 0)], 1, (0, 10))
            .acked(0, 1, (20, 30))
            .received(&[(1, 0)], 2, (2_000, 2_010));
        assert_eq!(checks(&look(&scene)), ["acked-again"]);
        let overlapping = Scene::default()
            .received(&[(1, 0)], 1, (0, 10))
            .received(&[(1, 0)], 2, (1_000, 1_010))
            .acked(0, 1, (900, 1_030));
        assert_eq!(look(&overlapping).verdict(), Verdict::True);
    }

    #[test]
    fn a_message_that_comes_while_it_is_hidden_is_seen() {
        let scene =
            Scene::default().received(&[(1, 0)], 1, (0, 10)).received(&[(1, 0)], 2, (20, 500));
        assert_eq!(checks(&look(&scene)), ["hidden"]);
        let with = |clocks| check(&scene.history, clocks, &Epochs::default());
        let disturbed = with(Clocks { disturbed: true, ..CLOCKS });
        let ordered = with(Clocks { ordered: 0, ..CLOCKS });
        assert_eq!(ordered.verdict(), Verdict::True);
        assert_eq!(disturbed.verdict(), Verdict::True);
        let held = Scene::default()
            .received(&[(1, 0)], 1, (0, 10))
            .held((0, 1), 0, (12, 15))
            .received(&[(1, 0)], 2, (20, 500));
        assert_eq!(look(&held).verdict(), Verdict::True);
    }

    #[test]
    fn a_reset_parts_what_was_before_from_what_comes_after() {
        let again = Scene::default()
            .received(&[(1, 0)], 1, (0, 10))
            .acked(0, 1, (11, 13))
            .received(&[(1, 0)], 1, (20, 30));
        assert_eq!(look_after_reset(&again).verdict(), Verdict::True);
        assert_eq!(checks(&look(&again)), ["acked-again", "attempt-twice"]);
        // Both come after it.
        let after = Scene::default().received(&[(1, 0)], 1, (20, 30)).received(
            &[(1, 0)],
            1,
            (2_040, 2_050),
        );
        assert_eq!(checks(&look_after_reset(&after)), ["attempt-twice"]);
    }

    #[test]
    fn an_attempt_that_is_delivered_twice_or_late_is_seen() {
        let scene =
            Scene::default().received(&[(1, 0)], 1, (0, 10)).received(&[(1, 0)], 1, (2_000, 2_010));
        assert_eq!(checks(&look(&scene)), ["attempt-twice"]);
        let scene =
            Scene::default().received(&[(1, 0)], 2, (0, 10)).received(&[(1, 0)], 1, (2_000, 2_010));
        assert_eq!(checks(&look(&scene)), ["attempt-order"]);
    }
}
