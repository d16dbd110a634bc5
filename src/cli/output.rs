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
        write(&mut io::stdout(), &format!("{}\n", pretty(value)));
    }

    /// For a list that is printed in parts; see [`Pages`].
    pub(super) fn pages(self) -> Pages {
        Pages { format: self.format, begun: false, widths: Vec::new() }
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

    /// What a table has no place for, for people; JSON has it in the result.
    pub(super) fn remarks(self, remarks: impl Iterator<Item = String>) {
        if !self.is_json() {
            remarks.for_each(|remark| self.note(format_args!("{remark}")));
        }
    }

    pub(super) fn failure(self, failure: &impl Display) {
        write(&mut io::stderr(), &format!("raftmq: {failure}\n"));
    }
}

/// A list that is printed page by page and is one table, or one JSON array, in the end. Columns
/// grow with the pages: what is printed already does not move.
#[derive(Debug)]
pub(super) struct Pages {
    format: Format,
    begun: bool,
    widths: Vec<usize>,
}

impl Pages {
    /// `table` has the rows of these `items`.
    pub(super) fn add<T: Serialize>(&mut self, items: &[T], table: Table) {
        let text = self.text(items, &table);
        write(&mut io::stdout(), &text);
    }

    fn text<T: Serialize>(&mut self, items: &[T], table: &Table) -> String {
        match self.format {
            Format::Table => {
                let head = !std::mem::replace(&mut self.begun, true);
                table.text(head, &mut self.widths)
            }
            Format::Json if items.is_empty() => String::new(),
            Format::Json => {
                let start = if std::mem::replace(&mut self.begun, true) { ",\n" } else { "[\n" };
                let page = pretty(items);
                let inner = page.strip_prefix("[\n").and_then(|page| page.strip_suffix("\n]"));
                format!("{start}{}", inner.expect("a pretty array has a line for each bracket"))
            }
        }
    }

    pub(super) fn end(self) {
        write(&mut io::stdout(), self.end_text());
    }

    fn end_text(self) -> &'static str {
        match (self.format, self.begun) {
            (Format::Table, _) => "",
            (Format::Json, true) => "\n]\n",
            (Format::Json, false) => "[]\n",
        }
    }
}

fn pretty<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string_pretty(value).expect("our values have text keys only")
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

impl Table {
    /// The lines, columns at least as wide as `widths`, which grow to what is needed.
    fn text(&self, head: bool, widths: &mut Vec<usize>) -> String {
        widths.resize(self.head.len(), 0);
        for (width, cell) in widths.iter_mut().zip(&self.head) {
            *width = (*width).max(cell.len());
        }
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded: Vec<String> =
                cells.zip(&*widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(padded.join("  ").trim_end());
            text.push('\n');
        };
        if head {
            line(&mut self.head.iter().copied());
        }
        self.rows.iter().for_each(|row| line(&mut row.iter().map(String::as_str)));
        text
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text(true, &mut Vec::new()))
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

    fn names(names: &[&str]) -> Table {
        Table::new(["NAME"], names.iter().map(|name| [(*name).to_owned()]))
    }

    #[test]
    fn pages_are_one_table_or_one_array() {
        for (format, end) in [(Format::Table, "NAME\na\nb\nlonger\n"), (Format::Json, "")] {
            let mut pages = Output::new(format).pages();
            let mut text = String::new();
            for page in [&["a", "b"][..], &[], &["longer"]] {
                text += &pages.text(page, &names(page));
            }
            text += pages.end_text();
            if format == Format::Table {
                assert_eq!(text, end);
            } else {
                let read: Vec<String> = serde_json::from_str(&text).unwrap();
                assert_eq!(read, ["a", "b", "longer"]);
                assert_eq!(text, format!("{}\n", pretty(&read)), "as if it were printed at once");
            }
        }
        assert_eq!(Output::new(Format::Json).pages().end_text(), "[]\n");
    }
}
