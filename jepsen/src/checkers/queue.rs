//! Total queue: everything that was acknowledged to a producer comes to every consumer group, and
//! nothing comes that was never sent, that was refused, or that is another than what was sent.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use crate::history::{Answer, History, Micros, Outcome, Place, Value, What};

/// How much of a run the drain saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drain {
    /// Every group found nothing more, after all faults were healed.
    Complete,
    /// It ended before that.
    Cut,
}

struct Sends {
    acked: BTreeSet<Value>,
    /// No attempt may have had an effect, and there was one.
    refused: BTreeSet<Value>,
    /// By the first time at which one was invoked.
    attempted: BTreeMap<Value, Micros>,
}

fn sends(history: &History) -> Sends {
    let mut acked = BTreeSet::new();
    let mut possible = BTreeSet::new();
    let mut attempted = BTreeMap::new();
    for operation in &history.operations {
        // Whoever wanted to roll it back was told that it is committed.
        if let What::End { value, commit: false, .. } = operation.what
            && matches!(operation.answer(), Some(Answer::Decided { committed: true }))
        {
            acked.insert(value);
            possible.insert(value);
        }
        // That it comes in the end is another checker's question.
        let delayed = matches!(operation.what, What::SendDelayed { .. });
        let Some(value) = operation.what.shows() else { continue };
        attempted.entry(value).or_insert(operation.invoked);
        match operation.outcome {
            // Refused with the fact: it was rolled back before.
            Outcome::Ok(Answer::Decided { .. } | Answer::NoTransaction) => {}
            Outcome::Ok(_) => {
                if !delayed {
                    acked.insert(value);
                }
                possible.insert(value);
            }
            Outcome::Unknown(_) => {
                possible.insert(value);
            }
            Outcome::Fail(_) => {}
        }
    }
    let refused = attempted.keys().filter(|value| !possible.contains(value)).copied().collect();
    Sends { acked, refused, attempted }
}

/// What retention took, as the replicas tell it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone {
    /// By topic and queue: the least offset that is left.
    pub(crate) starts: BTreeMap<(u32, u32), u64>,
    /// By group and topic: how many messages it lost.
    pub(crate) expired: BTreeMap<(u32, u32), u64>,
}

impl Gone {
    pub(super) fn has(&self, place: Place) -> bool {
        self.starts.get(&(place.topic, place.queue)).is_some_and(|start| place.offset < *start)
    }
}

/// What groups got.
#[derive(Default)]
struct Seen {
    by_group: BTreeMap<u32, BTreeSet<Value>>,
    anywhere: BTreeSet<Value>,
    /// When a group had first taken something of a topic.
    began: BTreeMap<(u32, u32), Micros>,
}

/// `groups` are those that had to get everything that was not gone.
pub(crate) fn check(history: &History, groups: &[u32], drain: Drain, gone: &Gone) -> Findings {
    let mut findings = Findings::default();
    let sends = sends(history);
    let seen = check_seen(history, &sends, &mut findings);
    let places = places(history);
    findings.count("acked", sends.acked.len() as u64);
    findings.count("recovered", seen.anywhere.difference(&sends.acked).count() as u64);
    // Whatever one group got is there for all of them.
    let due: BTreeSet<Value> = sends.acked.union(&seen.anywhere).copied().collect();
    for group in groups {
        let got = seen.by_group.get(group);
        let missing =
            due.iter().copied().filter(|value| !got.is_some_and(|got| got.contains(value)));
        let is_gone = |value: &Value| places.get(value).is_some_and(|place| gone.has(*place));
        let (taken, mut missing): (Vec<Value>, Vec<Value>) = missing.partition(is_gone);
        let hidden = unplaced_gone(history, (&missing, &places), gone);
        findings.count("gone from where nobody was told", hidden.len() as u64);
        missing.retain(|value| !hidden.contains(value));
        // A group that has taken nothing of a topic yet has lost nothing of it: it begins at the
        // least offset, whatever was there before.
        let had_begun = |value: &Value| {
            let topic = places.get(value).map(|place| place.topic);
            let begun = topic.and_then(|topic| seen.began.get(&(*group, topic)));
            let sent = sends.attempted.get(value);
            begun.zip(sent).is_some_and(|(begun, sent)| begun < sent)
        };
        let mut taken_of: BTreeMap<u32, u64> = BTreeMap::new();
        for place in taken.iter().filter(|value| had_begun(value)).filter_map(|at| places.get(at)) {
            *taken_of.entry(place.topic).or_default() += 1;
        }
        for (topic, taken) in taken_of {
            let counted = gone.expired.get(&(*group, topic)).copied().unwrap_or(0);
            if taken > counted {
                let what = format!(
                    "group {group} lost {taken} messages of topic {topic} to retention, which \
                     counts {counted}"
                );
                findings.violated("expired-counted", what);
            }
        }
        if missing.is_empty() {
            continue;
        }
        let many = format!("{} of {}", missing.len(), due.len());
        match drain {
            Drain::Complete => {
                let first = missing.iter().take(5).map(|value| match places.get(value) {
                    Some(place) => format!("{value} at {place}"),
                    None => value.to_string(),
                });
                let first: Vec<String> = first.collect();
                let what = format!("group {group} never got {many}: {}", first.join(", "));
                findings.violated("lost", what);
            }
            Drain::Cut => findings
                .unknown
                .push(format!("group {group} had {many} before it when the drain was cut")),
        }
    }
    findings
}

/// Those of `missing` that retention may have taken from places that nobody was told, which a decision
/// that was made before does not tell. No more of a topic than there are places that are gone and whose
/// message nobody knows.
fn unplaced_gone(
    history: &History,
    (missing, places): (&[Value], &BTreeMap<Value, Place>),
    gone: &Gone,
) -> BTreeSet<Value> {
    let mut unplaced: BTreeMap<u32, BTreeSet<Value>> = BTreeMap::new();
    for operation in &history.operations {
        if let What::Send { topic, value } | What::End { topic, value, .. } = operation.what
            && missing.contains(&value)
            && !places.contains_key(&value)
        {
            unplaced.entry(topic).or_default().insert(value);
        }
    }
    let known: BTreeSet<Place> = places.values().copied().filter(|at| gone.has(*at)).collect();
    unplaced.retain(|topic, values| {
        let starts = gone.starts.iter().filter(|((of, _), _)| of == topic);
        let all: u64 = starts.map(|(_, start)| *start).sum();
        let told = known.iter().filter(|place| place.topic == *topic).count();
        values.len() as u64 + told as u64 <= all
    });
    unplaced.into_values().flatten().collect()
}

/// Nothing is delivered that was not sent, or that was refused, or that is another.
fn check_seen(history: &History, sends: &Sends, findings: &mut Findings) -> Seen {
    let mut seen = Seen::default();
    for operation in &history.operations {
        let What::Receive { group, wants, .. } = operation.what else { continue };
        let Some(Answer::Received(deliveries)) = operation.answer() else { continue };
        for delivery in deliveries {
            let began = seen.began.entry((group, delivery.place.topic)).or_insert(Micros::MAX);
            *began = operation.ended().min(*began);
            let Some(value) = delivery.value else {
                let what = format!("group {group} got a body of nobody at {}", delivery.place);
                findings.violated("corrupt", what);
                continue;
            };
            match sends.attempted.get(&value) {
                None => {
                    findings.violated("unexpected", format!("group {group} got {value}"));
                }
                Some(invoked) if *invoked > operation.ended() => {
                    let what = format!("group {group} got {value} before it was sent");
                    findings.violated("unexpected", what);
                }
                Some(_) => {}
            }
            if !wants.has(value) {
                let what = format!("group {group} got {value}, but asked for {}", wants.filter());
                findings.violated("unwanted", what);
            }
            if sends.refused.contains(&value) {
                let what = format!("group {group} got {value}, all sends of which had failed");
                findings.violated("aborted", what);
            }
            seen.by_group.entry(group).or_default().insert(value);
            seen.anywhere.insert(value);
        }
    }
    seen
}

/// Where each value is, as far as anybody was told.
fn places(history: &History) -> BTreeMap<Value, Place> {
    let mut places = BTreeMap::new();
    for operation in &history.operations {
        match (&operation.what, operation.answer()) {
            (What::Send { value, .. } | What::End { value, .. }, Some(Answer::Sent(place))) => {
                places.insert(*value, *place);
            }
            (What::Receive { .. }, Some(Answer::Received(deliveries))) => {
                let told = deliveries.iter().filter_map(|d| Some((d.value?, d.place)));
                places.extend(told);
            }
            _ => {}
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::super::scenes::{Scene, checks};
    use super::super::{Findings, Verdict};
    use super::*;
    use crate::history::{Delivery, Wanted};

    fn look(scene: &Scene, drain: Drain) -> Findings {
        check(&scene.history, &[0], drain, &Gone::default())
    }

    #[test]
    fn what_was_acked_and_received_is_fine() {
        let scene = Scene::default()
            .sent(1, 0, (0, 5))
            .send_failed(2, (6, 9))
            .send_unknown(3, (6, 9))
            .send_unknown(4, (6, 9))
            .received(&[(1, 0), (3, 1)], 1, (10, 20));
        let findings = look(&scene, Drain::Complete);
        assert_eq!(findings.verdict(), Verdict::True);
        assert_eq!(findings.counts["recovered"], 1);
    }

    #[test]
    fn a_lost_message_is_seen_and_a_cut_drain_is_no_proof() {
        let scene =
            Scene::default().sent(1, 0, (0, 5)).sent(2, 1, (0, 5)).received(&[(2, 1)], 1, (10, 20));
        assert_eq!(checks(&look(&scene, Drain::Complete)), ["lost"]);
        assert_eq!(look(&scene, Drain::Cut).verdict(), Verdict::Unknown);
        let starts = BTreeMap::from([((0, 0), 1)]);
        let gone = Gone { starts, expired: BTreeMap::from([((0, 0), 1)]) };
        let trimmed = check(&scene.history, &[0], Drain::Complete, &gone);
        assert_eq!(trimmed.verdict(), Verdict::True, "its time was over");
        let silent = Gone { expired: BTreeMap::new(), ..gone };
        let before = check(&scene.history, &[0], Drain::Complete, &silent);
        assert_eq!(before.verdict(), Verdict::True, "the group had not begun");
        let began =
            Scene::default().sent(2, 0, (0, 1)).received(&[(2, 0)], 1, (2, 3)).sent(1, 1, (5, 6));
        let silent = Gone { starts: BTreeMap::from([((0, 0), 2)]), ..silent };
        let after = check(&began.history, &[0], Drain::Complete, &silent);
        assert_eq!(checks(&after), ["expired-counted"]);
    }

    #[test]
    fn what_left_a_place_that_nobody_was_told_may_be_gone() {
        let decided = Outcome::Ok(Answer::Decided { committed: true });
        let scene = Scene::default().sent(1, 0, (0, 1)).received(&[(1, 0)], 1, (2, 3)).ended(
            2,
            false,
            (4, 5),
            decided,
        );
        let with = |start| {
            let starts = BTreeMap::from([((0, 0), start)]);
            checks(&check(
                &scene.history,
                &[0],
                Drain::Complete,
                &Gone { starts, ..Gone::default() },
            ))
        };
        assert_eq!(with(2), Vec::<&str>::new());
        assert_eq!(with(1), ["lost"], "the only place that is gone was another message's");
    }

    #[test]
    fn what_one_group_got_every_group_gets() {
        let scene = Scene::default().send_unknown(1, (0, 5)).received(&[(1, 0)], 1, (10, 20));
        let findings = check(&scene.history, &[0, 1], Drain::Complete, &Gone::default());
        assert_eq!(checks(&findings), ["lost"]);
    }

    #[test]
    fn a_message_of_nobody_is_seen() {
        let scene = Scene::default().received(&[(1, 0)], 1, (10, 20));
        assert_eq!(checks(&look(&scene, Drain::Complete)), ["unexpected"]);
        let starts = BTreeMap::from([((0, 0), 1)]);
        let gone = Gone { starts, ..Gone::default() };
        let other = scene.sent(2, 1, (21, 22)).received(&[(2, 1)], 1, (23, 24));
        let left = check(&other.history, &[0, 1], Drain::Complete, &gone);
        assert_eq!(checks(&left), ["unexpected", "lost"], "what left is of nobody as well");
        let early = Scene::default().received(&[(1, 0)], 1, (0, 2)).sent(1, 0, (10, 20));
        assert_eq!(checks(&look(&early, Drain::Complete)), ["unexpected"]);
        let rubbish = Scene::default().received_rubbish(0, (0, 2));
        assert_eq!(checks(&look(&rubbish, Drain::Complete)), ["corrupt"]);
    }

    #[test]
    fn a_message_that_was_not_asked_for_is_seen() {
        let got = |wants| {
            let delivery = Delivery {
                place: Place { topic: 0, queue: 0, offset: 0 },
                value: Some(Value { producer: 1, count: 1 }),
                attempt: 1,
            };
            let answer = Outcome::Ok(Answer::Received(vec![delivery]));
            let scene = Scene::default().sent(1, 0, (0, 5)).receive_of(wants, (10, 20), answer);
            checks(&look(&scene, Drain::Complete))
        };
        assert_eq!(got(Wanted::Odd), Vec::<&str>::new());
        assert_eq!(got(Wanted::Even), ["unwanted"]);
    }

    #[test]
    fn a_refused_message_that_comes_all_the_same_is_seen() {
        let scene = Scene::default().send_failed(1, (0, 5)).received(&[(1, 0)], 1, (10, 20));
        assert_eq!(checks(&look(&scene, Drain::Complete)), ["aborted"]);
        let again = Scene::default().send_failed(1, (0, 5)).sent(1, 0, (6, 7)).received(
            &[(1, 0)],
            1,
            (10, 20),
        );
        assert_eq!(look(&again, Drain::Complete).verdict(), Verdict::True);
    }
}
