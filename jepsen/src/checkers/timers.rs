//! Delayed messages: never early, once, all of them in the end; and a recall is exact.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use super::queue::{Drain, Gone};
use crate::history::{Answer, Ending, History, Micros, Outcome, Place, Value, What};

/// Stamps are whole milliseconds, and the clock moves in steps.
const SLACK: Micros = 10_000;

/// What was said of one delayed message.
#[derive(Debug, Default)]
struct Told {
    topic: u32,
    /// The earliest of the times that it was sent for.
    sent_for: Option<Micros>,
    changes: Vec<Change>,
    handles: BTreeSet<String>,
    /// When a send was answered first.
    sent: Option<Micros>,
    /// Answers to recalls and changes: when they were asked for, and what was said.
    endings: Vec<(Micros, Ending)>,
    /// A recall of which nobody knows what came.
    recall_unknown: bool,
    seen: BTreeMap<u32, BTreeSet<Place>>,
    first_seen: Option<Micros>,
}

/// By group and topic: when the group had first taken something of it.
type Began = BTreeMap<(u32, u32), Micros>;

/// A request for another time that may have had an effect.
#[derive(Clone, Copy, Debug)]
struct Change {
    due: Micros,
    invoked: Micros,
    /// When it was answered; `None` where nobody knows what came of it.
    ended: Option<Micros>,
    /// It was answered that the message was moved.
    moved: bool,
}

impl Told {
    /// Before this it cannot have fired. A change that was answered takes the place of what was
    /// asked for before it began: a repeated send changes nothing, once one was answered.
    fn earliest(&self) -> Option<Micros> {
        let last = self.changes.iter().filter(|change| change.moved).map(|change| change.invoked);
        let last = last.max();
        let over = |known: Option<Micros>| {
            last.is_some_and(|last| known.is_some_and(|known| known < last))
        };
        let changes = self.changes.iter().filter(|change| !over(change.ended));
        let sent_for = self.sent_for.filter(|_| !over(self.sent));
        changes.map(|change| change.due).chain(sent_for).min()
    }
}

/// From `disturbed` on a clock may have been wrong: no time is promised then. `groups` had to get
/// everything.
pub(crate) fn check(
    history: &History,
    groups: &[u32],
    (drain, disturbed): (Drain, Option<Micros>),
    gone: &Gone,
) -> Findings {
    let mut findings = Findings::default();
    let told = collect(history);
    let began = began(history);
    for (value, told) in &told {
        check_early(*value, told, disturbed, &mut findings);
        check_once(*value, told, &mut findings);
        check_endings(*value, told, &mut findings);
    }
    for group in groups {
        check_all_came(*group, (&told, &began), drain, gone, &mut findings);
    }
    findings.count("delayed", told.values().filter(|told| told.sent.is_some()).count() as u64);
    findings
}

fn collect(history: &History) -> BTreeMap<Value, Told> {
    let mut all: BTreeMap<Value, Told> = BTreeMap::new();
    for operation in &history.operations {
        let failed = matches!(operation.outcome, Outcome::Fail(_));
        match (&operation.what, operation.answer()) {
            (What::SendDelayed { topic, value, due }, answer) => {
                let told = all.entry(*value).or_default();
                told.topic = *topic;
                if !failed {
                    told.sent_for = Some(told.sent_for.map_or(*due, |known| known.min(*due)));
                }
                if let Some(Answer::Scheduled(handle)) = answer {
                    told.handles.insert(handle.clone());
                    told.sent.get_or_insert_with(|| operation.ended());
                }
            }
            (What::Recall { value, .. }, answer) => {
                let told = all.entry(*value).or_default();
                match answer {
                    Some(Answer::Ended(ending)) => told.endings.push((operation.invoked, *ending)),
                    _ => told.recall_unknown |= !failed,
                }
            }
            (What::Reschedule { value, due, .. }, answer) => {
                let told = all.entry(*value).or_default();
                if let Some(Answer::Ended(ending)) = answer {
                    told.endings.push((operation.invoked, *ending));
                }
                let refused = matches!(
                    answer,
                    Some(Answer::Ended(Ending::AlreadyFired | Ending::NotFound | Ending::Recalled))
                );
                if !failed && !refused {
                    told.changes.push(Change {
                        due: *due,
                        invoked: operation.invoked,
                        ended: answer.map(|_| operation.ended()),
                        moved: answer.is_some(),
                    });
                }
            }
            _ => {}
        }
    }
    for operation in &history.operations {
        let What::Receive { group, .. } = operation.what else { continue };
        let Some(Answer::Received(deliveries)) = operation.answer() else { continue };
        for delivery in deliveries {
            let told = delivery.value.and_then(|value| all.get_mut(&value));
            let Some(told) = told else { continue };
            told.seen.entry(group).or_default().insert(delivery.place);
            let at = operation.ended();
            told.first_seen = Some(told.first_seen.map_or(at, |known| known.min(at)));
        }
    }
    all
}

fn began(history: &History) -> Began {
    let mut began = Began::new();
    for operation in &history.operations {
        let What::Receive { group, .. } = operation.what else { continue };
        let Some(Answer::Received(deliveries)) = operation.answer() else { continue };
        for delivery in deliveries {
            let at = began.entry((group, delivery.place.topic)).or_insert(Micros::MAX);
            *at = operation.ended().min(*at);
        }
    }
    began
}

fn check_early(value: Value, told: &Told, disturbed: Option<Micros>, findings: &mut Findings) {
    let (Some(seen), Some(earliest)) = (told.first_seen, told.earliest()) else { return };
    if disturbed.is_none_or(|from| seen < from) && seen + SLACK < earliest {
        let what = format!("{value} was received by {seen} us, and was due at {earliest} us");
        findings.violated("early", what);
    }
}

fn check_once(value: Value, told: &Told, findings: &mut Findings) {
    let places: BTreeSet<&Place> = told.seen.values().flatten().collect();
    if places.len() > 1 {
        findings.violated("fired-twice", format!("{value} is at {places:?}"));
    }
    if told.handles.len() > 1 {
        let what = format!("{value} was answered with {} recall handles", told.handles.len());
        findings.violated("handle-differs", what);
    }
}

fn check_endings(value: Value, told: &Told, findings: &mut Findings) {
    let said = |ending: Ending| told.endings.iter().any(|(_, said)| *said == ending);
    if said(Ending::Recalled) {
        findings.count("recalled", 1);
        if !told.seen.is_empty() {
            findings.violated("recalled-delivered", format!("{value} came, though recalled"));
        }
        if said(Ending::AlreadyFired) {
            let what = format!("{value} was recalled, and had fired");
            findings.violated("recall-differs", what);
        }
    }
    findings.count("fired before recall", u64::from(said(Ending::AlreadyFired)));
    for (invoked, ending) in &told.endings {
        if *ending == Ending::NotFound && told.sent.is_some_and(|sent| sent < *invoked) {
            let what = format!("{value} was sent, and not found at {invoked} us");
            findings.violated("recall-lost", what);
        }
    }
}

/// What was acknowledged and not recalled comes to every group; what fired comes too.
fn check_all_came(
    group: u32,
    (all, began): (&BTreeMap<Value, Told>, &Began),
    drain: Drain,
    gone: &Gone,
    findings: &mut Findings,
) {
    let must = |told: &Told| {
        let said = |ending: Ending| told.endings.iter().any(|(_, said)| *said == ending);
        if said(Ending::Recalled) {
            return false;
        }
        let fired = said(Ending::AlreadyFired) || !told.seen.is_empty();
        fired || told.sent.is_some() && !told.recall_unknown
    };
    let missing = |told: &Told| must(told) && !told.seen.contains_key(&group);
    let mut missing_values: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
    for (value, told) in all.iter().filter(|(_, told)| missing(told)) {
        missing_values.entry(told.topic).or_default().push(*value);
    }
    for (topic, missing) in missing_values {
        // Nobody was told where a message lies that nobody received: retention counts what it took.
        // What had fired before the group took something of the topic it has not lost: a group
        // begins at the least offset.
        let began = began.get(&(group, topic)).copied().unwrap_or(Micros::MAX);
        let had_begun = |value: &&Value| all[value].earliest().is_none_or(|due| began < due);
        let lost = missing.iter().filter(had_begun).count() as u64;
        let trimmed = gone.starts.iter().any(|((of, _), start)| *of == topic && *start > 0);
        let counted = gone.expired.get(&(group, topic)).copied().unwrap_or(0);
        if lost <= counted && (trimmed || missing.len() as u64 <= counted) {
            findings.count("delayed and expired", missing.len() as u64);
            continue;
        }
        let what = format!(
            "group {group} never got {} delayed messages of topic {topic}, such as {}, {lost} of \
             them since it began; retention counts {counted}",
            missing.len(),
            missing[0]
        );
        match drain {
            Drain::Complete => findings.violated("delayed-lost", what),
            Drain::Cut => findings.unknown.push(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenes::{Scene, checks};
    use super::super::{Findings, Verdict};
    use super::*;

    fn look(scene: &Scene) -> Findings {
        check(&scene.history, &[0], (Drain::Complete, None), &Gone::default())
    }

    #[test]
    fn what_comes_after_its_time_and_what_is_recalled_is_fine() {
        let scene = Scene::default()
            .delayed(1, 100, "a", (0, 5))
            .delayed(1, 100, "a", (6, 9))
            .delayed(2, 300, "b", (0, 5))
            .told(2, Ending::Recalled, (290, 310))
            .received(&[(1, 0)], 1, (90, 101))
            .told(1, Ending::AlreadyFired, (120, 130));
        let findings = look(&scene);
        assert_eq!(findings.verdict(), Verdict::True, "{findings:?}");
        assert_eq!((findings.counts["delayed"], findings.counts["recalled"]), (2, 1));
    }

    #[test]
    fn an_early_message_is_seen() {
        let scene = Scene::default().delayed(1, 100, "a", (0, 5)).received(&[(1, 0)], 1, (50, 60));
        assert_eq!(checks(&look(&scene)), ["early"]);
        let from = |at| check(&scene.history, &[0], (Drain::Complete, Some(at)), &Gone::default());
        let seen = scene.history.operations[1].ended();
        assert_eq!(from(seen).verdict(), Verdict::True);
        assert_eq!(checks(&from(seen + 1)), ["early"], "it came before the clock was wrong");
        let moved = scene.moved(1, 40, (6, 9));
        assert_eq!(look(&moved).verdict(), Verdict::True);
    }

    #[test]
    fn a_change_that_was_answered_and_changed_nothing_is_seen() {
        let sent = || Scene::default().delayed(1, 100, "a", (0, 5));
        let later = sent().moved(1, 300, (6, 9)).received(&[(1, 0)], 1, (90, 110));
        assert_eq!(checks(&look(&later)), ["early"]);
        let in_time = sent().moved(1, 300, (6, 9)).received(&[(1, 0)], 1, (290, 310));
        assert_eq!(look(&in_time).verdict(), Verdict::True);
        // Of two that overlap nobody knows which came last.
        let both = sent().moved(1, 300, (6, 20)).moved(1, 50, (8, 9));
        let both = both.received(&[(1, 0)], 1, (60, 70));
        assert_eq!(look(&both).verdict(), Verdict::True);
        let after = sent().moved(1, 50, (6, 8)).moved(1, 300, (9, 20));
        let after = after.received(&[(1, 0)], 1, (60, 70));
        assert_eq!(checks(&look(&after)), ["early"]);
    }

    #[test]
    fn a_message_that_fires_twice_is_seen() {
        let scene = Scene::default()
            .delayed(1, 10, "a", (0, 5))
            .received(&[(1, 0)], 1, (50, 60))
            .received(&[(1, 3)], 1, (70, 80));
        assert_eq!(checks(&look(&scene)), ["fired-twice"]);
        let again = Scene::default()
            .delayed(1, 10, "a", (0, 5))
            .delayed(1, 10, "b", (6, 9))
            .received(&[(1, 0)], 1, (50, 60));
        assert_eq!(checks(&look(&again)), ["handle-differs"]);
    }

    #[test]
    fn a_recalled_message_that_comes_is_seen() {
        let scene = Scene::default()
            .delayed(1, 10, "a", (0, 5))
            .told(1, Ending::Recalled, (6, 9))
            .received(&[(1, 0)], 1, (50, 60));
        assert_eq!(checks(&look(&scene)), ["recalled-delivered"]);
        let both = Scene::default()
            .delayed(1, 10, "a", (0, 5))
            .told(1, Ending::Recalled, (6, 9))
            .told(1, Ending::AlreadyFired, (20, 30));
        assert_eq!(checks(&look(&both)), ["recall-differs"]);
    }

    #[test]
    fn a_lost_message_and_a_lost_recall_are_seen() {
        let lost = Scene::default().delayed(1, 10, "a", (0, 5));
        assert_eq!(checks(&look(&lost)), ["delayed-lost"]);
        let cut = check(&lost.history, &[0], (Drain::Cut, None), &Gone::default());
        assert_eq!(cut.verdict(), Verdict::Unknown);
        let gone = Gone { expired: BTreeMap::from([((0, 0), 1)]), ..Gone::default() };
        let taken = check(&lost.history, &[0], (Drain::Complete, None), &gone);
        assert_eq!(taken.verdict(), Verdict::True);
        let elsewhere = Gone { expired: BTreeMap::from([((0, 1), 1)]), ..Gone::default() };
        let lost_here = check(&lost.history, &[0], (Drain::Complete, None), &elsewhere);
        assert_eq!(checks(&lost_here), ["delayed-lost"]);
        // Before the group took anything of the topic, what retention took is nobody's loss.
        let starts = BTreeMap::from([((0, 0), 1)]);
        let trimmed = Gone { starts, ..Gone::default() };
        let late = Scene::default().delayed(1, 10, "a", (0, 5)).received(&[(9, 1)], 1, (50, 60));
        let before = check(&late.history, &[0], (Drain::Complete, None), &trimmed);
        assert_eq!(before.verdict(), Verdict::True);
        let early = Scene::default().received(&[(9, 1)], 1, (0, 1)).delayed(1, 10, "a", (2, 5));
        let after = check(&early.history, &[0], (Drain::Complete, None), &trimmed);
        assert_eq!(checks(&after), ["delayed-lost"]);
        let fired = Scene::default().told(1, Ending::AlreadyFired, (20, 30));
        assert_eq!(checks(&look(&fired)), ["delayed-lost"]);
        let nowhere = Scene::default()
            .delayed(1, 10, "a", (0, 5))
            .told(1, Ending::NotFound, (6, 9))
            .received(&[(1, 0)], 1, (50, 60));
        assert_eq!(checks(&look(&nowhere)), ["recall-lost"]);
    }
}
