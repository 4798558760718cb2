//! The files that work starts with: gzip tar archives, of experiments (their model definitions) and of tasks that work for
//! none (their context directories).

use std::fmt;

use det_ids::{ExperimentId, TaskId};

use crate::db::Link;
use crate::{Conn, StoreError};

/// What an archive belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveOf {
    /// An experiment, and all of its tasks.
    Experiment(ExperimentId),
    /// A task that works for no experiment.
    Task(TaskId),
}

impl fmt::Display for ArchiveOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Experiment(id) => write!(f, "experiment {id}"),
            Self::Task(id) => write!(f, "task \"{id}\""),
        }
    }
}

/// What a new archive contains. `Id` is the id of what it belongs to: experiments copy from experiments, tasks from tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewArchive<Id> {
    /// These bytes.
    Packed(Vec<u8>),
    /// What another archive contains. The database copies it, so that it passes through no request's memory.
    CopyOf(Id),
}

/// Declares a module with the statements about the archives in one table.
macro_rules! table {
    ($module:ident, $table:literal, $key:literal, $id:ty) => {
        mod $module {
            use super::require_space;
            use crate::db::Link;
            use crate::{Conn, StoreError};

            pub(super) async fn size(
                conn: &mut Conn<'_>,
                id: $id,
            ) -> Result<Option<usize>, StoreError> {
                const SQL: &str = concat!("SELECT bytes FROM ", $table, " WHERE ", $key, " = $1");
                let row = fetch_optional!(conn, (i64,), SQL, id)?;
                Ok(row.map(|(bytes,)| usize::try_from(bytes).unwrap_or(0)))
            }

            pub(super) async fn part(
                conn: &mut Conn<'_>,
                id: $id,
                offset: usize,
                bytes: usize,
            ) -> Result<Vec<u8>, StoreError> {
                const ROW: &str = concat!("SELECT rowid FROM ", $table, " WHERE ", $key, " = $1");
                const PART: &str = concat!(
                    "SELECT substr(archive, $2, $3) FROM ",
                    $table,
                    " WHERE ",
                    $key,
                    " = $1"
                );
                // On SQLite `substr` would read the whole value for each part.
                if let Link::Lite(lite) = &mut conn.link {
                    let id = crate::column::bound(id);
                    let row = lite.fetch_optional::<(i64,)>(ROW, &[&id])?;
                    return match row {
                        Some((row,)) => Ok(lite.read_part($table, "archive", row, offset, bytes)?),
                        None => Ok(Vec::new()),
                    };
                }
                let place = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
                let (from, length) = (place(offset.saturating_add(1)), place(bytes));
                let row = fetch_optional!(conn, (Vec<u8>,), PART, id, from, length)?;
                Ok(row.map(|(part,)| part).unwrap_or_default())
            }

            pub(super) async fn insert(
                conn: &mut Conn<'_>,
                id: $id,
                archive: &[u8],
            ) -> Result<(), StoreError> {
                const SQL: &str = concat!(
                    "INSERT INTO ",
                    $table,
                    " (",
                    $key,
                    ", archive, bytes) VALUES ($1, $2, $3)"
                );
                require_space(conn, archive.len())?;
                let bytes = i64::try_from(archive.len()).unwrap_or(i64::MAX);
                execute!(conn, SQL, id, archive, bytes)?;
                Ok(())
            }

            /// Stores a copy of the archive of `from`; whether there is one.
            pub(super) async fn copy(
                conn: &mut Conn<'_>,
                id: $id,
                from: $id,
            ) -> Result<bool, StoreError> {
                const SQL: &str = concat!(
                    "INSERT INTO ",
                    $table,
                    " (",
                    $key,
                    ", archive, bytes) SELECT $1, archive, bytes FROM ",
                    $table,
                    " WHERE ",
                    $key,
                    " = $2"
                );
                let Some(bytes) = size(conn, from).await? else {
                    return Ok(false);
                };
                require_space(conn, bytes)?;
                Ok(execute!(conn, SQL, id, from)? > 0)
            }
        }
    };
}

table!(
    experiments,
    "model_definitions",
    "experiment_id",
    det_ids::ExperimentId
);
table!(tasks, "task_contexts", "task_id", &det_ids::TaskId);

/// How many bytes an archive has; `None` = there is none.
pub async fn size(conn: &mut Conn<'_>, of: &ArchiveOf) -> Result<Option<usize>, StoreError> {
    match of {
        ArchiveOf::Experiment(id) => experiments::size(conn, *id).await,
        ArchiveOf::Task(id) => tasks::size(conn, id).await,
    }
}

/// A part of an archive: at most `bytes` from `offset` on. Empty behind its end, or when the archive was deleted.
pub async fn part(
    conn: &mut Conn<'_>,
    of: &ArchiveOf,
    offset: usize,
    bytes: usize,
) -> Result<Vec<u8>, StoreError> {
    match of {
        ArchiveOf::Experiment(id) => experiments::part(conn, *id, offset, bytes).await,
        ArchiveOf::Task(id) => tasks::part(conn, id, offset, bytes).await,
    }
}

/// Stores the archive of an experiment.
///
/// # Errors
/// [`StoreError::NoArchive`] when it is to be a copy of one that does not exist; [`StoreError::NearlyFull`].
pub async fn insert_of_experiment(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    new: &NewArchive<ExperimentId>,
) -> Result<(), StoreError> {
    match new {
        NewArchive::Packed(archive) => experiments::insert(conn, id, archive).await,
        NewArchive::CopyOf(from) => {
            let copied = experiments::copy(conn, id, *from).await?;
            let gone = || StoreError::NoArchive(ArchiveOf::Experiment(*from));
            copied.then_some(()).ok_or_else(gone)
        }
    }
}

/// Stores the archive of a task.
///
/// # Errors
/// As of [`insert_of_experiment`].
pub async fn insert_of_task(
    conn: &mut Conn<'_>,
    id: &TaskId,
    new: &NewArchive<TaskId>,
) -> Result<(), StoreError> {
    match new {
        NewArchive::Packed(archive) => tasks::insert(conn, id, archive).await,
        NewArchive::CopyOf(from) => {
            let copied = tasks::copy(conn, id, from).await?;
            let gone = || StoreError::NoArchive(ArchiveOf::Task(from.clone()));
            copied.then_some(()).ok_or_else(gone)
        }
    }
}

/// Refuses an archive of so many bytes where it would leave the disk nearly full: the rest is for what keeps the cluster
/// running. What disk PostgreSQL has is not known here.
fn require_space(conn: &mut Conn<'_>, bytes: usize) -> Result<(), StoreError> {
    match &mut conn.link {
        Link::Lite(lite) => {
            let space = lite.space()?;
            space.map_or(Ok(()), |space| space.require(bytes as u64))
        }
        Link::Pg(_) => Ok(()),
    }
}
