//! Lists as a table, as CSV or as JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::Args;
use comfy_table::{ContentArrangement, ContentLineStyle, LineStyle, Table, TableStyle};
use serde::Serialize;

use crate::error::CliError;
use crate::output;
use crate::printable::printable;

mod fit;

use fit::fit;

/// The output format of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// A table to be read at a terminal.
    Table,
    /// Comma-separated values with a header.
    Csv,
    /// The objects of the API's answer.
    Json,
}

/// The flags that choose the format.
#[derive(Debug, Clone, Copy, Default, Args)]
#[group(multiple = false)]
pub(crate) struct FormatArgs {
    /// Print as CSV
    #[arg(long)]
    csv: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl FormatArgs {
    /// Whether a format for programs is chosen.
    pub(crate) fn is_chosen(self) -> bool {
        self.csv || self.json
    }

    /// The format chosen; a table when none is.
    pub(crate) fn format(self) -> Format {
        if self.json {
            Format::Json
        } else if self.csv {
            Format::Csv
        } else {
            Format::Table
        }
    }
}

/// Rows under headers. Cells contain the text that is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Lines between columns and below the header, in the style of the tables of SQL clients.
const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction('|'))
    .header_separator(LineStyle::none().fill('-').junction('+'))
    .content_lines(ContentLineStyle::none().junction('|'));

impl Listing {
    /// A list without rows.
    pub(crate) fn new<S: Into<String>>(headers: impl IntoIterator<Item = S>) -> Self {
        Self {
            headers: headers.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with a cell for each header.
    pub(crate) fn push(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows.push(row.into_iter().collect());
    }

    /// The list as a table. At a terminal it is no wider than that, if that is wide enough for anything ([`fit()`]).
    pub(crate) fn to_table(&self) -> String {
        let terminal = output::stdout_is_terminal().then(|| Table::new().width());
        let width = terminal.flatten().filter(|width| *width > 0);
        self.table_within(width.map(usize::from))
    }

    /// The list as a table of at most so many columns of a terminal; `None` = as wide as it is.
    fn table_within(&self, width: Option<usize>) -> String {
        let mut rows: Vec<Vec<String>> = std::iter::once(&self.headers)
            .chain(&self.rows)
            .map(|row| row.iter().map(|cell| printable(cell)).collect())
            .collect();
        if let Some(width) = width {
            fit(&mut rows, width);
        }
        let mut rows = rows.into_iter();
        let mut table = Table::new();
        table
            .load_style(STYLE)
            // Cells are never wrapped: an id in two lines cannot be copied.
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(rows.next().unwrap_or_default())
            .add_rows(rows);
        table.trim_fmt()
    }

    /// The list as comma-separated values, the header first.
    pub(crate) fn to_csv(&self) -> String {
        let mut text = String::new();
        for row in std::iter::once(&self.headers).chain(&self.rows) {
            for (index, cell) in row.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                push_cell(&mut text, cell);
            }
            text.push('\n');
        }
        text
    }

    /// Prints the list in a format. `objects` is the output for JSON.
    pub(crate) fn print(&self, format: Format, objects: &impl Serialize) -> Result<(), CliError> {
        match format {
            Format::Table => output::line(self.to_table()),
            Format::Csv => output::for_programs(self.to_csv()),
            Format::Json => output::json(objects),
        }
    }

    /// Writes the list as CSV to a file.
    pub(crate) fn save(&self, path: &Path) -> Result<(), CliError> {
        fs::write(path, self.to_csv()).map_err(|error| CliError::file("write", path, &error))
    }
}

fn push_cell(text: &mut String, cell: &str) {
    if cell.contains([',', '"', '\n', '\r']) {
        // Writing to a string does not fail.
        let _ = write!(text, "\"{}\"", cell.replace('"', "\"\""));
    } else {
        text.push_str(cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> Listing {
        let mut listing = Listing::new(["ID", "Name"]);
        listing.push(["1".to_owned(), "plain".to_owned()]);
        listing.push(["2".to_owned(), "with \"quotes\",\nand lines".to_owned()]);
        listing
    }

    #[test]
    fn a_table_has_columns_under_headers() {
        assert_eq!(
            listing().to_table(),
            [
                " ID | Name",
                "----+----------------",
                " 1  | plain",
                " 2  | with \"quotes\",",
                "    | and lines",
            ]
            .join("\n")
        );
    }

    #[test]
    fn a_name_gives_the_terminal_no_commands() {
        let mut listing = Listing::new(["ID", "Name"]);
        listing.push(["1".to_owned(), "a\u{1b}]0;title\u{7}".to_owned()]);
        let table = listing.to_table();
        assert!(table.ends_with(" 1  | a\\x1b]0;title\\x07"), "{table:?}");
        assert!(table.contains("+-------------------"), "{table:?}");
    }

    #[test]
    fn a_table_is_as_wide_as_its_terminal() {
        let id = "0b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11";
        let mut listing = Listing::new(["ID", "Name", "Ports", "Reason"]);
        for name in ["a name of many words, which is long", "short"] {
            let reason = "needs 4 slots, and 1 is free\nsecond";
            listing.push([id, name, "", reason].map(str::to_owned));
        }
        let widths = |width| {
            let table = listing.table_within(width);
            let widest = table.lines().map(|line| line.chars().count()).max();
            (widest.unwrap_or_default(), table)
        };
        let (whole, table) = widths(None);
        assert!(whole > 100 && !table.contains('…'), "{table}");
        for width in [100, 80, 70, 40] {
            let (widest, table) = widths(Some(width));
            assert!(widest <= width, "{width}: {table}");
            assert!(table.contains('…') && table.contains("second"), "{table}");
            assert_eq!(table.contains(id), width >= 70, "{width}: {table}");
            assert!(!table.contains("Ports"), "{table}");
        }
        assert_eq!(widths(Some(whole)), widths(None));
        // Too narrow for anything: not cut to nothing.
        assert!(widths(Some(3)).1.contains("0b6c5d1e-…"));
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        assert_eq!(
            listing().to_csv(),
            "ID,Name\n1,plain\n2,\"with \"\"quotes\"\",\nand lines\"\n"
        );
    }
}
