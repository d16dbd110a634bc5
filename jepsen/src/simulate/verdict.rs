//! What came of a run: all that is asked of its history, and whether it did enough to prove anything.

use std::collections::BTreeMap;

use super::clients::ordered;
use super::plan::{Class, Planned};
use super::run::Run;
use crate::checkers::books::{Epochs, Over};
use crate::checkers::deliveries::Clocks;
use crate::checkers::queue::Drain;
use crate::checkers::{
    Findings, conservation, dead, deliveries, log, operated, order, queue, timers, transactions,
};
use crate::history::{Answer, History, Outcome};

/// All that is asked of the history.
pub(super) fn check(
    run: &Run,
    history: &History,
    planned: &[Planned],
    (drain, disturbed): (Drain, bool),
) -> Findings {
    let mut findings = Findings::default();
    // What a group that chose by tags did not want may be gone for it.
    let all: &[u32] = if run.clients.is_tagged() { &[0] } else { &[0, 1] };
    findings.merge(queue::check(history, all, drain, &run.gone));
    findings.merge(log::check(history));
    let ordered = run.clients.workload().ordered_topic();
    let (mut epochs, mut over) = (Epochs::default(), Over::default());
    if let Some(books) = &run.books {
        (epochs, over) = (Epochs::of(books, history), Over::of(books));
        findings.merge(conservation::check(history, books, drain, &run.gone));
        findings.merge(dead::check(history, books));
        findings.merge(operated::check(history, books));
    }
    findings.merge(deliveries::check(history, Clocks { disturbed, ordered }, &epochs));
    findings.merge(order::check(history, &ordered::line_of, (&run.gone, &over)));
    findings.merge(transactions::check(history));
    // A pause makes nothing come early.
    let clock = |planned: &&Planned| matches!(planned.class, Class::Skew | Class::Rate);
    let from = planned.iter().filter(clock).map(|planned| planned.from).min();
    findings.merge(timers::check(history, all, (drain, from), &run.gone));
    findings
}

/// A run that did too little proves nothing.
pub(super) fn cover(history: &History, run: &Run, planned: &[Planned], findings: &mut Findings) {
    let mut good: BTreeMap<&'static str, u64> = BTreeMap::new();
    let kinds = ["sends", "receives", "looks", "delayed sends", "half messages"];
    for operation in &history.operations {
        let kind = match &operation.outcome {
            Outcome::Ok(Answer::Sent(_)) => "sends",
            Outcome::Ok(Answer::Received(messages)) if messages.is_empty() => "empty receives",
            Outcome::Ok(Answer::Received(_)) => "receives",
            Outcome::Ok(Answer::Bounds(_)) => "looks",
            Outcome::Ok(Answer::Prepared(_)) => "half messages",
            Outcome::Ok(Answer::Decided { .. } | Answer::NoTransaction) => "decided otherwise",
            Outcome::Ok(Answer::Asked(_)) => "listens",
            Outcome::Ok(Answer::Done) => "others",
            Outcome::Ok(Answer::Scheduled(_)) => "delayed sends",
            Outcome::Ok(Answer::Ended(_)) => "recalls",
            Outcome::Ok(Answer::Dead(_)) => "looks at dead letters",
            Outcome::Ok(Answer::Letters(_)) => "receives of dead letters",
            Outcome::Ok(Answer::Redriven(_)) => "redrives",
            Outcome::Ok(Answer::Reset(_)) => "resets of groups",
            Outcome::Fail(_) => "failed",
            Outcome::Unknown(_) => "unknown",
        };
        *good.entry(kind).or_default() += 1;
    }
    for kind in kinds {
        if !good.contains_key(kind) {
            findings.unknown.push(format!("no call among {kind} went well"));
        }
    }
    for (kind, count) in good {
        findings.count(kind, count);
    }
    // That each kind of fault happens is asked of a whole sweep: in one run all nodes may be down
    // for as long as one lasts.
    if run.faults.happened.is_empty() && !planned.is_empty() {
        findings.unknown.push("no fault met anybody".to_owned());
    }
    let net = run.cluster.world.net.counts();
    findings.count("segments", net.segments);
    findings.count("segments lost", net.lost);
    findings.count("segments held", net.held);
    findings.count("resets", net.resets);
    findings.count("expired", run.gone.expired.values().sum());
    findings.count("purged offsets", run.gone.starts.values().sum());
    findings.count("restarts", run.cluster.restarts);
    findings.count("terms", run.watch.raft.terms);
    findings.count("entries", run.watch.raft.last_committed().map_or(0, |last| last + 1));
}
