//! Tables that are no wider than the terminal.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr};

/// How narrow columns become in turn: first those of texts, in which names of users and dates stay whole, then ids, to as much
/// as commands take in their place; and where that is too wide, both again. No state but the longest is cut, and no UUID:
/// commands take those of checkpoints whole.
const STEPS: [(Column, usize); 4] = [
    (Column::Text, 11),
    (Column::Main, 14),
    (Column::Text, 6),
    (Column::Main, 10),
];

/// What a column is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    /// UUIDs, which are not cut.
    Whole,
    /// Ids, which users copy, and states.
    Main,
    Text,
}

/// Cuts cells so that the table is no wider than `width`, if the narrowest columns are that narrow. `rows` begin with the
/// headers. Columns without any content go first, then the widest ones are cut ([`STEPS`]).
pub(super) fn fit(rows: &mut [Vec<String>], width: usize) {
    if total(&widths(rows)) <= width {
        return;
    }
    remove_empty(rows);
    let columns = columns(&rows[0]);
    let mut kept = widths(rows);
    for (kind, narrowest) in STEPS {
        kept = capped(&kept, |column| columns[column] == kind, narrowest, width);
    }
    for row in rows {
        for (cell, width) in row.iter_mut().zip(&kept) {
            let lines: Vec<String> = cell.lines().map(|line| cut(line, *width)).collect();
            *cell = lines.join("\n");
        }
    }
}

/// The width of each column.
fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.first().map_or(0, Vec::len);
    let mut widths = vec![0; columns];
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            let width = cell.lines().map(UnicodeWidthStr::width).max();
            *widest = (*widest).max(width.unwrap_or(0));
        }
    }
    widths
}

/// The width of a table: each column has a blank on either side, the last one none behind it, and a line between them.
fn total(widths: &[usize]) -> usize {
    (widths.iter().sum::<usize>() + 3 * widths.len()).saturating_sub(2)
}

fn remove_empty(rows: &mut [Vec<String>]) {
    let Some((headers, below)) = rows.split_first() else {
        return;
    };
    if below.is_empty() {
        return;
    }
    let is_empty = |column: usize| below.iter().all(|row| row[column].is_empty());
    let kept: Vec<bool> = (0..headers.len()).map(|column| !is_empty(column)).collect();
    for row in rows {
        let mut kept = kept.iter();
        row.retain(|_| *kept.next().unwrap_or(&true));
    }
}

/// What the columns are for, by their headers; what a list is of is in the first.
fn columns(headers: &[String]) -> Vec<Column> {
    let last = |header: &String| {
        let word = header.rsplit(' ').next().unwrap_or_default();
        word.to_ascii_lowercase()
    };
    let is_main = |header: &String| matches!(last(header).as_str(), "id" | "state");
    let headers = headers.iter().enumerate();
    headers
        .map(|(column, header)| {
            if last(header) == "uuid" {
                Column::Whole
            } else if column == 0 || is_main(header) {
                Column::Main
            } else {
                Column::Text
            }
        })
        .collect()
}

/// The widths with those of the chosen columns limited to the most that fits, at least `narrowest`.
fn capped(
    widths: &[usize],
    is_chosen: impl Fn(usize) -> bool,
    narrowest: usize,
    width: usize,
) -> Vec<usize> {
    let limited = |most: usize| -> Vec<usize> {
        let limit = |(column, width): (usize, &usize)| {
            if is_chosen(column) {
                (*width).min(most)
            } else {
                *width
            }
        };
        widths.iter().enumerate().map(limit).collect()
    };
    let widest = widths.iter().copied().max().unwrap_or(0);
    let fitting = (narrowest..=widest)
        .rev()
        .find(|most| total(&limited(*most)) <= width);
    limited(fitting.unwrap_or(narrowest))
}

/// A line in at most so many columns of a terminal.
fn cut(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let mut kept = String::new();
    let mut left = width.saturating_sub(1);
    for letter in line.chars() {
        let Some(after) = left.checked_sub(letter.width().unwrap_or(0)) else {
            break;
        };
        left = after;
        kept.push(letter);
    }
    format!("{}…", kept.trim_end())
}
