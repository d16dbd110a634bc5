//! Offsets: one value at each, each value at one, in the order in which they were sent, and bounds
//! that only grow.

use std::collections::BTreeMap;

use super::Findings;
use crate::history::{Answer, History, Micros, Place, Value, What};

pub(crate) fn check(history: &History) -> Findings {
    let mut findings = Findings::default();
    let (at, of) = places(history, &mut findings);
    findings.count("offsets", at.len() as u64);
    drop(of);
    check_order(history, &mut findings);
    check_bounds(history, &mut findings);
    findings
}

type At = BTreeMap<Place, Value>;
type Of = BTreeMap<Value, Place>;

/// Each place has one value and each value one place, whoever tells.
fn places(history: &History, findings: &mut Findings) -> (At, Of) {
    let (mut at, mut of) = (At::new(), Of::new());
    let mut told = |place: Place, value: Value, findings: &mut Findings| {
        let known = *at.entry(place).or_insert(value);
        if known != value {
            findings.violated("one-value", format!("{place} holds {known} and {value}"));
        }
        let known = *of.entry(value).or_insert(place);
        if known != place {
            findings.violated("one-place", format!("{value} is at {known} and at {place}"));
        }
    };
    for operation in &history.operations {
        match (&operation.what, operation.answer()) {
            (What::Send { value, .. } | What::End { value, .. }, Some(Answer::Sent(place))) => {
                told(*place, *value, findings);
            }
            (What::Receive { .. }, Some(Answer::Received(deliveries))) => {
                for delivery in deliveries {
                    let Some(value) = delivery.value else { continue };
                    told(delivery.place, value, findings);
                }
            }
            _ => {}
        }
    }
    (at, of)
}

/// The times of a value's sends: the first call, and the first answer.
#[derive(Clone, Copy)]
struct Span {
    invoked: Micros,
    acked: Micros,
}

/// Real time: a send that was answered before another was begun has the lower offset.
fn check_order(history: &History, findings: &mut Findings) {
    let mut spans: BTreeMap<Value, Span> = BTreeMap::new();
    let mut queues: BTreeMap<(u32, u32), BTreeMap<u64, Value>> = BTreeMap::new();
    for operation in &history.operations {
        let Some(value) = operation.what.shows() else { continue };
        let span =
            spans.entry(value).or_insert(Span { invoked: operation.invoked, acked: Micros::MAX });
        if let Some(Answer::Sent(place)) = operation.answer() {
            span.acked = span.acked.min(operation.ended());
            queues.entry((place.topic, place.queue)).or_default().insert(place.offset, value);
        }
    }
    for ((topic, queue), offsets) in queues {
        let mut latest: Option<(Micros, Value, u64)> = None;
        for (offset, value) in offsets {
            let span = spans[&value];
            if let Some((invoked, before, at)) = latest
                && span.acked < invoked
            {
                let what = format!(
                    "topic {topic} queue {queue}: {value} at {offset} was acknowledged before \
                     {before} at {at} was sent"
                );
                findings.violated("real-time-order", what);
            }
            if latest.is_none_or(|(invoked, ..)| invoked < span.invoked) {
                latest = Some((span.invoked, value, offset));
            }
        }
    }
}

/// A look sees what was acknowledged before it began, and what an earlier look saw.
fn check_bounds(history: &History, findings: &mut Findings) {
    // By the time at which it was known: topic and queue, and where the queue ended at least.
    let mut ends: Vec<(Micros, (u32, u32), u64)> = Vec::new();
    let mut starts: Vec<(Micros, (u32, u32), u64)> = Vec::new();
    for operation in &history.operations {
        match (&operation.what, operation.answer()) {
            (What::Send { .. } | What::End { .. }, Some(Answer::Sent(place))) => {
                let queue = (place.topic, place.queue);
                ends.push((operation.ended(), queue, place.offset + 1));
            }
            (What::Bounds { topic }, Some(Answer::Bounds(bounds))) => {
                for bound in bounds {
                    let queue = (*topic, bound.queue);
                    ends.push((operation.ended(), queue, bound.end));
                    starts.push((operation.ended(), queue, bound.start));
                }
            }
            _ => {}
        }
    }
    let mut looks = 0;
    for operation in &history.operations {
        let What::Bounds { topic } = operation.what else { continue };
        let Some(Answer::Bounds(bounds)) = operation.answer() else { continue };
        looks += 1;
        for bound in bounds {
            let queue = (topic, bound.queue);
            let known = |all: &[(Micros, (u32, u32), u64)]| {
                let before = |(at, of, _): &&(Micros, (u32, u32), u64)| {
                    *at < operation.invoked && *of == queue
                };
                all.iter().filter(before).map(|(.., value)| *value).max().unwrap_or(0)
            };
            let (end, start) = (known(&ends), known(&starts));
            if bound.end < end {
                let what = format!(
                    "topic {topic} queue {} ended at {}, though {end} was known",
                    bound.queue, bound.end
                );
                findings.violated("stale-end", what);
            }
            if bound.start < start || bound.start > bound.end {
                let what = format!(
                    "topic {topic} queue {} started at {}, though {start} was known",
                    bound.queue, bound.start
                );
                findings.violated("start-grows", what);
            }
        }
    }
    findings.count("looks", looks);
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::scenes::{Scene, checks};
    use super::*;

    #[test]
    fn offsets_in_order_are_fine() {
        let scene = Scene::default()
            .sent(1, 0, (0, 5))
            .sent(2, 2, (6, 20))
            .sent(3, 1, (7, 18))
            .sent(1, 0, (30, 31))
            .bounds(0, 3, (32, 33))
            .received(&[(1, 0), (2, 2)], 1, (40, 50));
        assert_eq!(check(&scene.history).verdict(), Verdict::True);
    }

    #[test]
    fn two_values_at_one_offset_are_seen() {
        let scene = Scene::default().sent(1, 0, (0, 5)).received(&[(2, 0)], 1, (10, 20));
        assert_eq!(checks(&check(&scene.history)), ["one-value"]);
    }

    #[test]
    fn a_value_at_two_offsets_is_seen() {
        let scene = Scene::default().sent(1, 0, (0, 5)).sent(1, 1, (6, 7));
        assert_eq!(checks(&check(&scene.history)), ["one-place"]);
        let scene = Scene::default().sent(1, 0, (0, 5)).received(&[(1, 4)], 1, (10, 20));
        assert_eq!(checks(&check(&scene.history)), ["one-place"]);
    }

    #[test]
    fn offsets_against_real_time_are_seen() {
        let scene = Scene::default().sent(1, 1, (0, 5)).sent(2, 0, (6, 9));
        assert_eq!(checks(&check(&scene.history)), ["real-time-order"]);
    }

    #[test]
    fn an_old_look_is_seen() {
        let scene = Scene::default().sent(1, 0, (0, 5)).bounds(0, 0, (6, 9));
        assert_eq!(checks(&check(&scene.history)), ["stale-end"]);
        let scene = Scene::default().bounds(0, 3, (1, 2)).bounds(0, 2, (6, 9));
        assert_eq!(checks(&check(&scene.history)), ["stale-end"]);
        let scene = Scene::default().bounds(2, 3, (1, 2)).bounds(1, 3, (6, 9));
        assert_eq!(checks(&check(&scene.history)), ["start-grows"]);
        let meanwhile = Scene::default().sent(1, 0, (0, 5)).bounds(0, 0, (4, 9));
        assert_eq!(check(&meanwhile.history).verdict(), Verdict::True);
    }
}
