//! Order: what was sent in a message group comes to each consumer group in that order. Nothing of one
//! comes while an earlier message of it is out elsewhere, and what comes again is what is not
//! acknowledged, from its first message on.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use super::books::Over;
use super::queue::Gone;
use crate::history::{Answer, Delivery, History, Micros, Operation, Outcome, Place, Value, What};

/// Tells a value's message group; `None` for a value without one.
pub(crate) type LineOf<'a> = &'a dyn Fn(Value) -> Option<u64>;

/// `gone` is what retention took, `over` what holds nobody up though nobody acknowledged it.
pub(crate) fn check(
    history: &History,
    line_of: LineOf<'_>,
    (gone, over): (&Gone, &Over),
) -> Findings {
    let mut findings = Findings::default();
    let lines = lines(history, line_of);
    check_homes(&lines, &mut findings);
    check_sends(history, line_of, &mut findings);
    let acks = acks(history);
    for operation in &history.operations {
        let What::Receive { group, .. } = operation.what else { continue };
        let Some(Answer::Received(batch)) = operation.answer() else { continue };
        check_batch(batch, line_of, group, &mut findings);
        for delivery in batch {
            let Some(line) = delivery.value.and_then(line_of) else { continue };
            findings.count("ordered deliveries", 1);
            let places = lines.get(&line).into_iter().flatten().copied();
            let before = places.filter(|place| *place < delivery.place && !gone.has(*place));
            let before = before.filter(|place| !over.has(group, *place));
            for place in before {
                let open = Open { group, place, batch, operation };
                if open.is_so(&acks) {
                    let what = format!(
                        "group {group}: {} came by a call of {} us, while {place} was not acknowledged",
                        delivery.place, operation.invoked
                    );
                    findings.violated("overtaken", what);
                }
            }
        }
    }
    findings
}

/// Where the messages of each message group are, as far as anybody was told.
fn lines(history: &History, line_of: LineOf<'_>) -> BTreeMap<u64, BTreeSet<Place>> {
    let mut lines: BTreeMap<u64, BTreeSet<Place>> = BTreeMap::new();
    let mut told = |value: Value, place: Place| {
        if let Some(line) = line_of(value) {
            lines.entry(line).or_default().insert(place);
        }
    };
    for operation in &history.operations {
        match (&operation.what, operation.answer()) {
            (What::Send { value, .. }, Some(Answer::Sent(place))) => told(*value, *place),
            (What::Receive { .. }, Some(Answer::Received(batch))) => {
                batch.iter().for_each(|one| {
                    one.value.into_iter().for_each(|value| told(value, one.place));
                });
            }
            _ => {}
        }
    }
    lines
}

/// A message group has one queue.
fn check_homes(lines: &BTreeMap<u64, BTreeSet<Place>>, findings: &mut Findings) {
    for (line, places) in lines {
        let homes: BTreeSet<(u32, u32)> =
            places.iter().map(|place| (place.topic, place.queue)).collect();
        if homes.len() > 1 {
            findings.violated("home", format!("message group {line} is in {homes:?}"));
        }
    }
}

/// A send that was answered before another of its message group was begun comes before it.
fn check_sends(history: &History, line_of: LineOf<'_>, findings: &mut Findings) {
    let mut sent: BTreeMap<u64, Vec<(Value, Place, Micros, Micros)>> = BTreeMap::new();
    for operation in &history.operations {
        let What::Send { value, .. } = operation.what else { continue };
        let Some(Answer::Sent(place)) = operation.answer() else { continue };
        let Some(line) = line_of(value) else { continue };
        let known = sent.entry(line).or_default();
        // A repetition is told of the first time.
        if known.iter().all(|(other, ..)| *other != value) {
            known.push((value, *place, operation.invoked, operation.ended()));
        }
    }
    for sent in sent.values() {
        for (number, one) in sent.iter().enumerate() {
            for other in &sent[number + 1..] {
                if one.3 < other.2 && one.1 > other.1 {
                    let what =
                        format!("{} at {}, sent after {} at {}", other.0, other.1, one.0, one.1);
                    findings.violated("send-order", what);
                }
            }
        }
    }
}

/// By consumer group and place: when the first ack that may have had an effect was begun.
fn acks(history: &History) -> BTreeMap<(u32, Place), Micros> {
    let mut acks = BTreeMap::new();
    for operation in &history.operations {
        let What::Ack { group, place, .. } = operation.what else { continue };
        if !matches!(operation.outcome, Outcome::Fail(_)) {
            let first = acks.entry((group, place)).or_insert(operation.invoked);
            *first = operation.invoked.min(*first);
        }
    }
    acks
}

/// Within one answer a message group's messages come in their order.
fn check_batch(batch: &[Delivery], line_of: LineOf<'_>, group: u32, findings: &mut Findings) {
    let mut last: BTreeMap<u64, Place> = BTreeMap::new();
    for delivery in batch {
        let Some(line) = delivery.value.and_then(line_of) else { continue };
        if let Some(before) = last.insert(line, delivery.place)
            && before >= delivery.place
        {
            let what = format!("group {group}: {before} came before {}", delivery.place);
            findings.violated("batch-order", what);
        }
    }
}

/// An earlier message, as one call found it.
struct Open<'a> {
    group: u32,
    place: Place,
    batch: &'a [Delivery],
    operation: &'a Operation,
}

impl Open<'_> {
    /// Whether it was neither done with nor in the same answer.
    fn is_so(&self, acks: &BTreeMap<(u32, Place), Micros>) -> bool {
        let together = self.batch.iter().any(|one| one.place == self.place);
        let acked = acks.get(&(self.group, self.place));
        !together && acked.is_none_or(|begun| *begun > self.operation.ended())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::books::{Books, Row};
    use super::super::scenes::{Scene, checks, place};
    use super::*;

    /// Two message groups: even counts and odd ones.
    fn look(scene: &Scene) -> Findings {
        let line_of = |value: Value| Some(u64::from(value.count % 2));
        check(&scene.history, &line_of, (&Gone::default(), &Over::default()))
    }

    fn sent() -> Scene {
        let scene = Scene::default().sent(0, 0, (0, 1)).sent(1, 1, (2, 3));
        scene.sent(2, 2, (4, 5)).sent(4, 3, (6, 7))
    }

    #[test]
    fn batches_in_order_and_a_repeated_suffix_are_fine() {
        let scene = sent()
            .received(&[(0, 0), (2, 2)], 1, (10, 20))
            // The other message group does not wait.
            .received(&[(1, 1)], 1, (11, 21))
            .acked(0, 1, (22, 23))
            .received(&[(2, 2), (4, 3)], 2, (1_030, 1_040))
            .acked(2, 2, (1_050, 1_060))
            .received(&[(4, 3)], 2, (3_000, 3_010));
        assert_eq!(look(&scene).verdict(), Verdict::True);
        assert_eq!(look(&scene).counts["ordered deliveries"], 6);
        // An ack of which nobody knows the outcome may have been one.
        let scene = sent().received(&[(0, 0)], 1, (10, 20));
        let mut scene = scene.acked(0, 1, (22, 23)).received(&[(2, 2)], 1, (30, 40));
        scene.history.operations[5].outcome = Outcome::Unknown("?".to_owned());
        assert_eq!(look(&scene).verdict(), Verdict::True);
    }

    #[test]
    fn a_message_that_overtakes_is_seen() {
        let never = sent().received(&[(2, 2)], 1, (10, 20));
        assert_eq!(checks(&look(&never)), ["overtaken"]);
        let elsewhere = sent().received(&[(0, 0)], 1, (10, 20)).received(&[(2, 2)], 1, (30, 40));
        assert_eq!(checks(&look(&elsewhere)), ["overtaken"]);
        let late = elsewhere.acked(0, 1, (50, 60));
        assert_eq!(checks(&look(&late)), ["overtaken"], "acknowledged only afterwards");
        // What comes again is no suffix: 2 without 0, which is not acknowledged either.
        let hole =
            sent().received(&[(0, 0), (2, 2)], 1, (10, 20)).received(&[(2, 2)], 2, (1_100, 1_110));
        assert_eq!(checks(&look(&hole)), ["overtaken"]);
        let failed = Outcome::Fail("no".to_owned());
        let mut refused = sent().received(&[(0, 0)], 1, (10, 20)).acked(0, 1, (21, 22));
        refused.history.operations[5].outcome = failed;
        assert_eq!(checks(&look(&refused.received(&[(2, 2)], 1, (30, 40)))), ["overtaken"]);
    }

    #[test]
    fn disorder_within_a_batch_among_sends_and_of_queues_is_seen() {
        let batch = sent().received(&[(2, 2), (0, 0)], 1, (10, 20));
        assert_eq!(checks(&look(&batch)), ["batch-order"]);
        let sends = Scene::default().sent(0, 5, (0, 1)).sent(2, 4, (2, 3));
        assert_eq!(checks(&look(&sends)), ["send-order"]);
        let mut homes = sent();
        let moved = Place { topic: 0, queue: 1, offset: 0 };
        homes.history.operations[3].outcome = Outcome::Ok(Answer::Sent(moved));
        assert_eq!(checks(&look(&homes)), ["home"]);
    }

    #[test]
    fn what_retention_took_holds_nothing_up() {
        let scene = sent().received(&[(2, 2)], 1, (10, 20));
        let starts = BTreeMap::from([((0, 0), 2)]);
        let gone = Gone { starts, ..Gone::default() };
        let line_of = |value: Value| Some(u64::from(value.count % 2));
        let over = Over::default();
        let taken = check(&scene.history, &line_of, (&gone, &over));
        assert_eq!(taken.verdict(), Verdict::True);
        let row = Row { letter: 0, origin: place(0), attempts: 3, given_up: false, seen: 0 };
        let books = Books { died: [((0, 0), row)].into(), ..Books::default() };
        let dead = check(&scene.history, &line_of, (&Gone::default(), &Over::of(&books)));
        assert_eq!(dead.verdict(), Verdict::True, "a dead one neither");
    }
}
