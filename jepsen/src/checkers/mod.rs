//! What must be true of a run, as functions of what was seen. No checker does anything else.
//!
//! A verdict is `true`, `false`, or `unknown` where too little was seen; `unknown` is no success.

pub(crate) mod books;
pub(crate) mod conservation;
pub(crate) mod dead;
pub(crate) mod deliveries;
pub(crate) mod log;
pub(crate) mod operated;
pub(crate) mod order;
pub(crate) mod queue;
pub(crate) mod raft;
pub(crate) mod replicas;
#[cfg(test)]
mod scenes;
pub(crate) mod timers;
pub(crate) mod transactions;

use std::collections::BTreeMap;

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The check's short name.
    pub(crate) check: &'static str,
    pub(crate) what: String,
}

/// What several checks came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    /// Why a check could not be sure.
    pub(crate) unknown: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    True,
    False,
    Unknown,
}

impl Findings {
    pub(crate) fn violated(&mut self, check: &'static str, what: String) {
        self.violations.push(Violation { check, what });
    }

    pub(crate) fn count(&mut self, what: &'static str, by: u64) {
        *self.counts.entry(what).or_default() += by;
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.violations.extend(other.violations);
        self.unknown.extend(other.unknown);
        for (what, by) in other.counts {
            self.count(what, by);
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        match (self.violations.is_empty(), self.unknown.is_empty()) {
            (false, _) => Verdict::False,
            (true, false) => Verdict::Unknown,
            (true, true) => Verdict::True,
        }
    }
}
