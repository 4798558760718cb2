//! Writing what a group of changes left in memory.

use std::collections::HashMap;

use det_ids::TaskId;

use super::{Line, Unit};
use crate::logs::LogLine;
use crate::{Conn, StoreError};

impl Conn<'_> {
    /// Writes everything that waits, so that a statement sees the rows as this change sees them. Nothing to do for a
    /// reading connection.
    pub(crate) async fn flush(&mut self) -> Result<(), StoreError> {
        let Some(unit) = self.unit.take() else {
            return Ok(());
        };
        let mut conn = self.bare();
        let outcome = match write_lines(&mut conn, unit).await {
            Ok(()) => unit.write(&mut conn).await,
            failed @ Err(_) => failed,
        };
        self.unit = Some(unit);
        outcome
    }
}

/// Writes the lines that wait: one chunk for each task.
async fn write_lines(conn: &mut Conn<'_>, unit: &mut Unit) -> Result<(), StoreError> {
    let mut chunks: Vec<(TaskId, Vec<LogLine>)> = Vec::new();
    let mut places: HashMap<TaskId, usize> = HashMap::new();
    for Line { task_id, line } in unit.lines.take_new() {
        let place = *places.entry(task_id.clone()).or_insert_with(|| {
            chunks.push((task_id.clone(), Vec::new()));
            chunks.len() - 1
        });
        chunks[place].1.push(line.clone());
    }
    let mut packed = Vec::with_capacity(chunks.len());
    for (task_id, lines) in chunks {
        let lines = crate::logs::pack(&lines)?;
        let mut conn = Conn {
            link: conn.link.reborrow(),
            unit: Some(unit),
        };
        // Lines of a task that was deleted meanwhile go with it.
        if let Some(last) =
            crate::allocations::count_lines(&mut conn, &task_id, lines.count()).await?
        {
            packed.push((task_id, last, lines));
        }
    }
    let chunks: Vec<_> = packed
        .iter()
        .flat_map(|(task_id, last, lines)| lines.placed(task_id, *last))
        .collect();
    crate::logs::save_chunks(conn, &chunks).await
}

/// Saves rows: one statement for each on SQLite, one for all on PostgreSQL, with an array for each column.
///
/// `save_rows!(conn, rows, "INSERT INTO t", (a: "text" = |row| &*row.a, ...), "ON CONFLICT ...")`.
macro_rules! save_rows {
    ($conn:expr, $rows:expr, $into:literal, ($($column:ident: $kind:literal = |$row:ident| $value:expr),+ $(,)?), $tail:literal) => {{
        static TEXTS: std::sync::LazyLock<(String, String)> = std::sync::LazyLock::new(|| {
            $crate::unit::insert_texts($into, &[$((stringify!($column), $kind)),+], $tail)
        });
        let rows = $rows;
        if !rows.is_empty() {
            match &mut $conn.link {
                $crate::db::Link::Lite(c) => {
                    for row in rows {
                        c.execute(TEXTS.0.as_str(), &[$(&$crate::column::bound({ let $row = row; $value })),+])?;
                    }
                }
                $crate::db::Link::Pg(c) => {
                    sqlx::query(TEXTS.1.as_str())
                        $(.bind(rows.iter().map(|$row| $crate::column::bound($value)).collect::<Vec<_>>()))+
                        .execute(&mut **c)
                        .await?;
                }
            }
        }
    }};
}

/// The texts of [`save_rows`] for SQLite and PostgreSQL.
pub(crate) fn insert_texts(into: &str, columns: &[(&str, &str)], tail: &str) -> (String, String) {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let names = names.join(", ");
    let numbered = |form: &dyn Fn(usize, &str) -> String| {
        let all: Vec<String> = columns
            .iter()
            .zip(1..)
            .map(|((_, kind), number)| form(number, kind))
            .collect();
        all.join(", ")
    };
    let values = numbered(&|number, _| format!("${number}"));
    let arrays = numbered(&|number, kind| format!("${number}::{kind}[]"));
    (
        format!("{into} ({names}) VALUES ({values}) {tail}"),
        // Without an order of its own the rows come in the order of the arrays.
        format!("{into} ({names}) SELECT * FROM UNNEST({arrays}) {tail}"),
    )
}
pub(crate) use save_rows;
