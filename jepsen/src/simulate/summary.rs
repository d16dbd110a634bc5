//! What came of one run, for people and for the program that started it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::run::Report;
use crate::checkers::Verdict;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) seed: u64,
    /// `true`, `false` or `unknown`.
    pub(crate) verdict: String,
    pub(crate) simulated_millis: u64,
    pub(crate) trace_lines: u64,
    pub(crate) trace_sum: String,
    /// How many faults of each kind happened.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) counts: BTreeMap<String, u64>,
    /// All that were planned, by number.
    pub(crate) planned: Vec<(usize, String, String)>,
    /// Checks and what violated them.
    pub(crate) violations: Vec<(String, String)>,
    pub(crate) unknown: Vec<String>,
    /// The command that repeats the run.
    pub(crate) again: String,
}

impl Summary {
    pub(super) fn of(seed: u64, report: &Report, again: String) -> Self {
        let Report { findings, planned, happened, trace, simulated } = report;
        let verdict = match findings.verdict() {
            Verdict::True => "true",
            Verdict::False => "false",
            Verdict::Unknown => "unknown",
        };
        let violations =
            findings.violations.iter().map(|one| (one.check.to_owned(), one.what.clone()));
        let planned = planned
            .iter()
            .map(|fault| (fault.number, fault.class.name().to_owned(), fault.to_string()));
        Self {
            seed,
            verdict: verdict.to_owned(),
            simulated_millis: simulated / 1000,
            trace_lines: trace.0,
            trace_sum: format!("{:08x}", trace.1),
            faults: happened.iter().map(|(class, n)| (class.name().to_owned(), *n)).collect(),
            counts: findings.counts.iter().map(|(what, n)| ((*what).to_owned(), *n)).collect(),
            planned: planned.collect(),
            violations: violations.collect(),
            unknown: findings.unknown.clone(),
            again,
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.verdict == "true"
    }
}

fn list(of: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = of.iter().map(|(what, count)| format!("{what} {count}")).collect();
    parts.join(", ")
}

/// Violations that are printed; the first ones say most.
const SHOWN: usize = 12;

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = (self.simulated_millis / 1000, self.simulated_millis % 1000);
        writeln!(f, "seed {}: {}", self.seed, self.verdict)?;
        let (lines, sum) = (self.trace_lines, &self.trace_sum);
        let (whole, part) = seconds;
        writeln!(f, "  {whole}.{part:03} s simulated, trace of {lines} lines, {sum}")?;
        writeln!(f, "  faults: {}", list(&self.faults))?;
        write!(f, "  counts: {}", list(&self.counts))?;
        if self.is_good() {
            return Ok(());
        }
        for (_, _, fault) in &self.planned {
            write!(f, "\n  fault {fault}")?;
        }
        for (check, what) in self.violations.iter().take(SHOWN) {
            write!(f, "\n  violated {check}: {what}")?;
        }
        if let Some(more) = self.violations.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            write!(f, "\n  and {more} violations more")?;
        }
        for unknown in &self.unknown {
            write!(f, "\n  unknown: {unknown}")?;
        }
        write!(f, "\n  again: {}", self.again)
    }
}
