//! Tables for people, JSON for programs. The only place that prints.

use std::fmt::Display;
use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
}

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    format: Format,
}

/// Rows under a head, aligned when printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Output {
    pub(super) fn new(format: Format) -> Self {
        Self { format }
    }

    pub(super) fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// The result of a command: `value` as JSON, or the table made from it.
    pub(super) fn show<T: Serialize + ?Sized>(self, value: &T, table: impl FnOnce(&T) -> Table) {
        match self.format {
            Format::Json => self.json(value),
            Format::Table => write(&mut io::stdout(), &table(value).to_string()),
        }
    }

    /// The result of a command that has nothing to tell but that it was done.
    pub(super) fn done<T: Serialize + ?Sized>(self, value: &T, sentence: impl Display) {
        match self.format {
            Format::Json => self.json(value),
            Format::Table => self.line(sentence),
        }
    }

    pub(super) fn json<T: Serialize + ?Sized>(self, value: &T) {
        let text = serde_json::to_string_pretty(value).expect("our values have text keys only");
        write(&mut io::stdout(), &format!("{text}\n"));
    }

    /// One line of text on standard output.
    pub(super) fn line(self, line: impl Display) {
        write(&mut io::stdout(), &format!("{line}\n"));
    }

    /// Something worth knowing that is no result.
    pub(super) fn note(self, note: impl Display) {
        write(&mut io::stderr(), &format!("{note}\n"));
    }

    /// How the broker groups differ, for people; JSON has it in the result.
    pub(super) fn differences(self, differences: &[String]) {
        if self.is_json() {
            return;
        }
        for difference in differences {
            self.note(format_args!("broker groups differ: {difference}"));
        }
    }

    pub(super) fn failure(self, failure: &impl Display) {
        write(&mut io::stderr(), &format!("raftmq: {failure}\n"));
    }
}

/// A reader that went away (`| head`) is no failure.
fn write(to: &mut impl Write, text: &str) {
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

impl Table {
    pub(super) fn new<const N: usize>(
        head: [&'static str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) -> Self {
        Self::of(head.to_vec(), rows.into_iter().map(Vec::from).collect())
    }

    /// For a head that is not always the same; every row is as long as the head.
    pub(super) fn of(head: Vec<&'static str>, rows: Vec<Vec<String>>) -> Self {
        assert!(rows.iter().all(|row| row.len() == head.len()), "a row has a cell for each column");
        Self { head, rows }
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut widths: Vec<usize> = self.head.iter().map(|cell| cell.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded: Vec<String> =
                cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(f, "{}", padded.join("  ").trim_end())
        };
        line(&mut self.head.iter().copied())?;
        self.rows.iter().try_for_each(|row| line(&mut row.iter().map(String::as_str)))
    }
}

/// A number that may be unknown.
pub(super) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1".to_owned()], ["längere".to_owned(), "22".to_owned()]];
        let text = Table::new(["NAME", "N"], rows).to_string();
        assert_eq!(text, "NAME     N\na        1\nlängere  22\n");
    }
}
