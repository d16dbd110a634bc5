//! What the official clients could do, one row for each.

use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

pub(crate) const FAILED: &str = "FAILED";

/// What a story found, or that it failed: the others are told all the same.
pub(crate) fn cell(story: impl FnOnce() -> String) -> String {
    let start = Instant::now();
    match catch_unwind(AssertUnwindSafe(story)) {
        Ok(found) => format!("{found} ({:.1} s)", start.elapsed().as_secs_f64()),
        Err(_) => FAILED.to_owned(),
    }
}

pub(crate) fn cell_if(has: bool, otherwise: &str, story: impl FnOnce() -> String) -> String {
    if has { cell(story) } else { otherwise.to_owned() }
}

/// Prints rows of equal length and what is to be said about them, past the capture of a test's
/// output.
pub(crate) fn print<'a>(rows: &[Vec<String>], notes: impl IntoIterator<Item = &'a str>) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap();
    let mut text = String::from("\n");
    for row in rows {
        let cells: Vec<_> =
            row.iter().enumerate().map(|(n, cell)| format!("{cell:<0$}", width(n))).collect();
        writeln!(text, "| {} |", cells.join(" | ")).unwrap();
    }
    for note in notes {
        writeln!(text, "{note}.").unwrap();
    }
    std::io::stdout().write_all(text.as_bytes()).unwrap();
}
