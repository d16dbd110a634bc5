//! What operators do to groups: a paused one is handed nothing, a reset makes what was handed out
//! before it void, and a group begins where it was told to.

use std::collections::BTreeMap;

use super::Findings;
use super::books::{Books, Fact, contents};
use crate::history::{Answer, History, Micros, Operation, Outcome, Place, Start, Value, What};

/// From when to when something certainly held; `None` for ever.
type Span = (Micros, Option<Micros>);

pub(crate) fn check(history: &History, books: &Books) -> Findings {
    let mut findings = Findings::default();
    check_paused(history, &mut findings);
    check_handles(history, &mut findings);
    check_beginnings(history, books, &mut findings);
    check_targets(history, &mut findings);
    findings
}

/// When groups were certainly paused: from the answer to a pause to the next call that may have
/// resumed it.
fn paused(history: &History) -> BTreeMap<u32, Vec<Span>> {
    let mut spans: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
    for operation in &history.operations {
        let What::Pause { group, paused } = operation.what else { continue };
        match (paused, &operation.outcome) {
            (_, Outcome::Fail(_)) | (true, Outcome::Unknown(_)) => {}
            (true, Outcome::Ok(_)) => {
                // A resume that is still open may take effect whenever it likes.
                let open = history.operations.iter().any(|other| {
                    let over = match other.outcome {
                        Outcome::Ok(_) => other.ended(),
                        Outcome::Fail(_) => 0,
                        Outcome::Unknown(_) => Micros::MAX,
                    };
                    other.what == (What::Pause { group, paused: false })
                        && other.invoked < operation.ended()
                        && over > operation.invoked
                });
                if !open {
                    spans.entry(group).or_default().push((operation.ended(), None));
                }
            }
            (false, Outcome::Ok(_) | Outcome::Unknown(_)) => {
                for span in spans.entry(group).or_default() {
                    if span.1.is_none() && span.0 <= operation.invoked {
                        span.1 = Some(operation.invoked);
                    }
                }
            }
        }
    }
    spans
}

/// A receive that began after a pause was answered gets nothing before the group goes on.
fn check_paused(history: &History, findings: &mut Findings) {
    let spans = paused(history);
    findings.count("pauses", spans.values().map(|spans| spans.len() as u64).sum());
    for operation in &history.operations {
        let What::Receive { group, .. } = operation.what else { continue };
        let Some(Answer::Received(batch)) = operation.answer() else { continue };
        let Some(first) = batch.first() else { continue };
        let within = |(from, until): &&Span| {
            operation.invoked > *from && until.is_none_or(|until| operation.ended() < until)
        };
        if let Some((from, _)) = spans.get(&group).into_iter().flatten().find(within) {
            let what = format!(
                "group {group}: {} came by a call of {} us, paused since {from} us",
                first.place, operation.invoked
            );
            findings.violated("paused-hands-out", what);
        }
    }
}

/// A reset that certainly took effect.
struct Moved<'a> {
    group: u32,
    topic: u32,
    queues: &'a [(u32, u64)],
    invoked: Micros,
    ended: Micros,
}

fn resets(history: &History) -> Vec<Moved<'_>> {
    let moved = |operation: &'_ Operation| {
        let What::Reset { group, topic, .. } = operation.what else { return None };
        Some((group, topic, operation.invoked, operation.ended()))
    };
    let all = history.operations.iter().filter_map(|operation| {
        let (group, topic, invoked, ended) = moved(operation)?;
        let Some(Answer::Reset(queues)) = operation.answer() else { return None };
        Some(Moved { group, topic, queues, invoked, ended })
    });
    all.collect()
}

/// When a receive that got a message began and ended, and which attempt it was.
type Got = (Micros, Micros, u32);

/// The ack of a delivery of before a reset, which that reset brought back, is not taken. That of a
/// message which somebody else is done with since then is answered well, and so is one that lies
/// before the place from which the group went on.
fn check_handles(history: &History, findings: &mut Findings) {
    let resets = resets(history);
    findings.count("group resets", resets.len() as u64);
    if resets.is_empty() {
        return;
    }
    let mut got: BTreeMap<(u32, Place), Vec<Got>> = BTreeMap::new();
    for operation in &history.operations {
        let What::Receive { group, .. } = operation.what else { continue };
        let Some(Answer::Received(batch)) = operation.answer() else { continue };
        for one in batch {
            let seen = (operation.invoked, operation.ended(), one.attempt);
            got.entry((group, one.place)).or_default().push(seen);
        }
    }
    for operation in &history.operations {
        let What::Ack { group, place, attempt } = operation.what else { continue };
        if operation.answer().is_none() {
            continue;
        }
        let seen = got.get(&(group, place)).map_or(&[][..], Vec::as_slice);
        let after = resets.iter().find(|reset| {
            let back = reset.queues.iter().any(|(q, at)| *q == place.queue && *at <= place.offset);
            let ours = (reset.group, reset.topic) == (group, place.topic);
            ours && back && reset.ended < operation.invoked
        });
        let Some(reset) = after else { continue };
        // Whoever has it since then may be done with it, or be the one that acknowledges.
        let newer = seen.iter().any(|(_, ended, _)| *ended > reset.invoked);
        let older = seen.iter().any(|(_, ended, of)| *of == attempt && *ended < reset.invoked);
        if older && !newer && !is_moved_again(history, group, place, reset) {
            let what = format!(
                "group {group}, {place}: attempt {attempt} of before the reset at {} us was \
                 acknowledged by a call of {} us",
                reset.ended, operation.invoked
            );
            findings.violated("stale-handle", what);
        }
    }
}

/// Another reset may have put the group behind the message, a receive that nobody was told of may
/// have taken it.
fn is_moved_again(history: &History, group: u32, place: Place, reset: &Moved<'_>) -> bool {
    history.operations.iter().any(|other| {
        let failed = matches!(other.outcome, Outcome::Fail(_));
        let later = other.ended() > reset.invoked && !failed;
        match &other.what {
            What::Reset { group: of, topic, .. } => {
                let same = other.invoked == reset.invoked && other.ended() == reset.ended;
                later && !same && (*of, *topic) == (group, place.topic)
            }
            What::Receive { group: of, topic, .. } => {
                let told = other.answer().is_some();
                later && !told && (*of, *topic) == (group, place.topic)
            }
            _ => false,
        }
    })
}

/// When each value was sent first and answered first.
fn sends(history: &History) -> BTreeMap<Value, (Micros, Micros)> {
    let mut sends: BTreeMap<Value, (Micros, Micros)> = BTreeMap::new();
    for operation in &history.operations {
        let What::Send { value, .. } = operation.what else { continue };
        let span = sends.entry(value).or_insert((operation.invoked, Micros::MAX));
        if operation.answer().is_some() {
            span.1 = span.1.min(operation.ended());
        }
    }
    sends
}

/// What was sent after a group came into being is before it; of a group that takes what comes after
/// it, nothing else is.
fn check_beginnings(history: &History, books: &Books, findings: &mut Findings) {
    let mut made: BTreeMap<u32, (Micros, Micros, bool)> = BTreeMap::new();
    for operation in &history.operations {
        let What::CreateGroup { group, latest } = operation.what else { continue };
        let fresh = (operation.invoked, Micros::MAX, latest);
        let made = made.entry(group).or_insert(fresh);
        if operation.answer().is_some() {
            made.1 = made.1.min(operation.ended());
        }
    }
    let contents = contents(history, books);
    let sends = sends(history);
    let mut begins: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
    for fact in &books.facts {
        let Fact::Began { group, topic, offsets } = fact else { continue };
        for (queue, offset) in offsets {
            begins.entry((*group, *topic, *queue)).or_insert(*offset);
        }
    }
    for ((group, topic, queue), offset) in begins {
        let Some((invoked, ended, latest)) = made.get(&group) else { continue };
        findings.count("told beginnings", 1);
        let here = contents.iter().filter(|(at, _)| (at.topic, at.queue) == (topic, queue));
        for (place, value) in here {
            let Some((first, answered)) = sends.get(value) else { continue };
            let at = format!("group {group} begins at {offset}; {value} at {place}");
            if place.offset < offset && first > ended {
                findings.violated("begins-late", format!("{at} was sent after its creation"));
            }
            if *latest && place.offset >= offset && answered < invoked {
                findings.violated("begins-early", format!("{at} was there before its creation"));
            }
        }
    }
}

/// A reset to an offset goes there, as far as the queue has it.
fn check_targets(history: &History, findings: &mut Findings) {
    for operation in &history.operations {
        let What::Reset { topic, to: Start::Offset(wanted), group } = operation.what else {
            continue;
        };
        let Some(Answer::Reset(queues)) = operation.answer() else { continue };
        for (queue, at) in queues {
            let before =
                history.operations.iter().filter(|other| other.ended() < operation.invoked);
            let ends = before.filter_map(|other| match other.answer() {
                Some(Answer::Sent(place)) if (place.topic, place.queue) == (topic, *queue) => {
                    Some(place.offset + 1)
                }
                _ => None,
            });
            // Behind the end there is nothing to go to, and before the least offset either.
            if *at < wanted.min(ends.max().unwrap_or(0)) {
                let what = format!(
                    "group {group}, topic {topic} queue {queue}: {wanted} was asked for, {at} came"
                );
                findings.violated("reset-elsewhere", what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::scenes::{Scene, checks};
    use super::*;

    fn look(scene: &Scene) -> Vec<&'static str> {
        checks(&check(&scene.history, &Books::default()))
    }

    #[test]
    fn a_paused_group_gets_nothing_until_it_goes_on() {
        let paused = || Scene::default().sent(1, 0, (0, 5)).paused(true, (6, 9));
        assert_eq!(look(&paused().received(&[(1, 0)], 1, (10, 20))), ["paused-hands-out"]);
        // Begun before, or ended after it went on.
        let before = Scene::default().sent(1, 0, (0, 5)).received(&[(1, 0)], 1, (8, 20));
        assert_eq!(look(&before.paused(true, (6, 9))), [""; 0]);
        let on = paused().paused(false, (15, 30)).received(&[(1, 0)], 1, (10, 20));
        assert_eq!(look(&on), [""; 0]);
        let empty = paused().received(&[], 1, (10, 20));
        assert_eq!(check(&empty.history, &Books::default()).verdict(), Verdict::True);
    }

    #[test]
    fn a_handle_of_before_a_reset_is_void() {
        let got = || Scene::default().sent(1, 0, (0, 5)).received(&[(1, 0)], 1, (10, 20));
        let reset = |to| got().reset(Start::Offset(to), &[(0, to)], (30, 40));
        assert_eq!(look(&reset(0).acked(0, 1, (50, 60))), ["stale-handle"]);
        assert_eq!(look(&reset(0).acked(0, 1, (35, 60))), [""; 0], "begun before it was over");
        assert_eq!(look(&reset(1).acked(0, 1, (50, 60))), [""; 0], "it lies before the group");
        let again = reset(0).received(&[(1, 0)], 1, (45, 48)).acked(0, 1, (50, 60));
        assert_eq!(look(&again), [""; 0], "handed out again since then");
    }

    #[test]
    fn a_group_begins_where_it_was_told_to() {
        let scene = |latest| {
            let made = Scene::default().sent(1, 0, (0, 5)).made(latest, (10, 20));
            made.sent(2, 1, (30, 40)).sent(3, 2, (50, 60))
        };
        let begun = |offset| Books {
            facts: vec![Fact::Began { group: 0, topic: 0, offsets: vec![(0, offset)] }],
            ..Books::default()
        };
        assert_eq!(checks(&check(&scene(true).history, &begun(1))), [""; 0]);
        assert_eq!(checks(&check(&scene(true).history, &begun(0))), ["begins-early"]);
        assert_eq!(checks(&check(&scene(true).history, &begun(2))), ["begins-late"]);
        assert_eq!(checks(&check(&scene(false).history, &begun(0))), [""; 0]);
    }

    #[test]
    fn a_reset_goes_where_it_was_told_to() {
        let sent = || Scene::default().sent(1, 0, (0, 5)).sent(2, 1, (6, 7)).sent(3, 2, (8, 9));
        let reset = |at| look(&sent().reset(Start::Offset(2), &[(0, at)], (30, 40)));
        assert_eq!(reset(2), [""; 0]);
        assert_eq!(reset(0), ["reset-elsewhere"]);
    }
}
