//! The files that work starts with: gzip tar archives, of experiments (their model definitions) and of tasks that work for
//! none (their context directories).

use det_ids::{ExperimentId, TaskId};

use crate::{Conn, StoreError};

/// What an archive belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveOf {
    /// An experiment, and all of its tasks.
    Experiment(ExperimentId),
    /// A task that works for no experiment.
    Task(TaskId),
}

/// Declares a module with the statements about the archives in one table.
macro_rules! table {
    ($module:ident, $table:literal, $key:literal, $id:ty) => {
        mod $module {
            use crate::db::Link;
            use crate::{Conn, StoreError};

            pub(super) async fn whole(
                conn: &mut Conn<'_>,
                id: $id,
            ) -> Result<Option<Vec<u8>>, StoreError> {
                const SQL: &str = concat!("SELECT archive FROM ", $table, " WHERE ", $key, " = $1");
                let row = fetch_optional!(conn, (Vec<u8>,), SQL, id)?;
                Ok(row.map(|(archive,)| archive))
            }

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
                let bytes = i64::try_from(archive.len()).unwrap_or(i64::MAX);
                execute!(conn, SQL, id, archive, bytes)?;
                Ok(())
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

/// A whole archive; `None` = there is none.
pub async fn whole(conn: &mut Conn<'_>, of: &ArchiveOf) -> Result<Option<Vec<u8>>, StoreError> {
    match of {
        ArchiveOf::Experiment(id) => experiments::whole(conn, *id).await,
        ArchiveOf::Task(id) => tasks::whole(conn, id).await,
    }
}

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

/// Stores the archive of an experiment or of a task.
pub async fn insert(conn: &mut Conn<'_>, of: &ArchiveOf, archive: &[u8]) -> Result<(), StoreError> {
    match of {
        ArchiveOf::Experiment(id) => experiments::insert(conn, *id, archive).await,
        ArchiveOf::Task(id) => tasks::insert(conn, id, archive).await,
    }
}
