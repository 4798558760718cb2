//! Writing what a group of changes left in memory.

use std::collections::HashMap;
use std::sync::Arc;

use det_ids::TaskId;

use super::Unit;
use crate::agents::AgentRow;
use crate::allocations::{AllocationRow, ContainerRow, TaskRow};
use crate::logs::LogLine;
use crate::trials::TrialRow;
use crate::{Conn, StoreError};

impl Conn<'_> {
    /// Writes everything that waits, so that a statement sees the rows as this change sees them. Nothing to do for a
    /// reading connection.
    pub(crate) async fn flush(&mut self) -> Result<(), StoreError> {
        let Some(unit) = self.unit.take() else {
            return Ok(());
        };
        let outcome = write_rows(&mut self.bare(), unit).await;
        let outcome = match outcome {
            Ok(()) => write_appended(&mut self.bare(), unit).await,
            failed @ Err(_) => failed,
        };
        self.unit = Some(unit);
        outcome
    }
}

/// Writes the rows that differ from what is stored, what is referred to before what refers to it.
async fn write_rows(conn: &mut Conn<'_>, unit: &mut Unit) -> Result<(), StoreError> {
    let serial = unit.serial;
    let experiments = unit.experiments.take_dirty(serial);
    crate::experiments::save_changed(conn, experiments.iter().map(|cell| &*cell.row)).await?;
    let trials = unit.trials.take_dirty(serial);
    crate::trials::save_changed(conn, &trials).await?;
    if !unit.lines.items[unit.lines.written..].is_empty() {
        write_lines(conn, unit).await?;
    }
    let tasks = unit.tasks.take_dirty(serial);
    let tasks: Vec<_> = tasks.into_iter().map(|cell| cell.row).collect();
    crate::allocations::save_tasks(conn, &tasks).await?;
    let (mut rows, mut containers) = (Vec::new(), Vec::new());
    let cells = unit.allocations.take_dirty(serial);
    for cell in &cells {
        if cell.row_dirty {
            rows.push(cell.row.clone());
        }
        for (row, dirty) in cell.containers.iter().flatten() {
            if *dirty {
                containers.push(row.clone());
            }
        }
    }
    for cell in &cells {
        unit.allocations.note(serial, &cell.row.id, |cell| {
            cell.row_dirty = false;
            for (_, dirty) in cell.containers.iter_mut().flatten() {
                *dirty = false;
            }
        });
    }
    crate::allocations::save_allocations(conn, &rows).await?;
    crate::allocations::save_containers(conn, &containers).await?;
    let agents = unit.agents.take_dirty(serial);
    crate::agents::save_all(conn, &agents).await?;
    if cfg!(debug_assertions) {
        compare(conn, &trials, &tasks, &rows, &containers, &agents).await?;
    }
    Ok(())
}

/// Writes the lists.
async fn write_appended(conn: &mut Conn<'_>, unit: &mut Unit) -> Result<(), StoreError> {
    let new = unit.events.take_new();
    crate::events::save_all(conn, &unit.events.items[new]).await?;
    let new = unit.tokens.take_new();
    crate::allocations::save_tokens(conn, &unit.tokens.items[new]).await?;
    let new = unit.expiries.take_new();
    crate::allocations::save_expiries(conn, &unit.expiries.items[new]).await?;
    let new = unit.search_events.take_new();
    crate::searches::save_events(conn, &unit.search_events.items[new]).await
}

/// Writes the lines that wait: one chunk for each task.
async fn write_lines(conn: &mut Conn<'_>, unit: &mut Unit) -> Result<(), StoreError> {
    let new = unit.lines.take_new();
    let lines = unit.lines.items[new]
        .iter()
        .map(|line| (line.task_id.clone(), line.line.clone()));
    let mut chunks: Vec<(TaskId, Vec<LogLine>)> = Vec::new();
    let mut places: HashMap<TaskId, usize> = HashMap::new();
    for (task_id, line) in lines {
        let place = *places.entry(task_id.clone()).or_insert_with(|| {
            chunks.push((task_id, Vec::new()));
            chunks.len() - 1
        });
        chunks[place].1.push(line);
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

/// Reads again what was written, and fails if the database holds anything else than memory.
async fn compare(
    conn: &mut Conn<'_>,
    trials: &[Arc<TrialRow>],
    tasks: &[Arc<TaskRow>],
    allocations: &[Arc<AllocationRow>],
    containers: &[Arc<ContainerRow>],
    agents: &[Arc<AgentRow>],
) -> Result<(), StoreError> {
    let differs = |what: String| StoreError::Corrupt {
        what,
        message: "memory and row differ: a defect of the store".into(),
    };
    for row in trials {
        if crate::trials::find(conn, row.id).await?.as_ref() != Some(&**row) {
            return Err(differs(format!("trial {}", row.id)));
        }
    }
    for row in tasks {
        if crate::allocations::find_task(conn, &row.id).await?.as_ref() != Some(&**row) {
            return Err(differs(format!("task {}", row.id)));
        }
    }
    for row in allocations {
        if crate::allocations::find(conn, &row.id).await?.as_ref() != Some(&**row) {
            return Err(differs(format!("allocation {}", row.id)));
        }
    }
    for row in containers {
        if crate::allocations::find_container(conn, &row.id)
            .await?
            .as_ref()
            != Some(&**row)
        {
            return Err(differs(format!("container {}", row.id)));
        }
    }
    for row in agents {
        if crate::agents::find(conn, &row.id).await?.as_ref() != Some(&**row) {
            return Err(differs(format!("agent {}", row.id)));
        }
    }
    Ok(())
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
