//! Schema changes: one source for both databases, forward only.
//!
//! Each file of `migrations/` is written once with tokens for what the databases spell differently: `{PK}` a generated
//! 64-bit primary key, `{KEY}` a 64-bit primary key that the statement gives, `{BLOB}` bytes, `{REAL}` a 64-bit float, `{DESC_LAST}` how a descending index puts nulls last,
//! `{CONFIGURED_RETENTION}` the days of `retention_policy` in a configuration.
//!
//! A new SQLite database gets what they all lead to at once: [`NEWEST_SQLITE`].
//!
//! All changes that a database lacks, and their lines in `schema_versions`, are one transaction: a master that is killed
//! meanwhile leaves them all done or none begun. The caller holds the lock that keeps other masters out.

use sha2::{Digest as _, Sha256};

use crate::db::Link;
use crate::{Conn, StoreError};

/// The table of the changes that were applied.
const SCHEMA_VERSIONS: &str = "CREATE TABLE IF NOT EXISTS schema_versions (\
     version BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)";

/// Checksums of migrations, by version, before a comment in them was corrected: databases remember them.
const FORMER_CHECKSUMS: &[(i64, &str)] = &[(
    1,
    "31a3d19c7d532ccb3fe9d89fe5520e2d94dc049ae005ce7330d91c836206a90f",
)];

/// All migrations, oldest first. Never change one that has been released, since databases remember its checksum: add
/// another. Only a wrong comment is corrected, and the checksum before goes to [`FORMER_CHECKSUMS`]. What columns mean is in
/// `docs/contract/database.md`.
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "core",
        text: include_str!("../migrations/0001_core.sql"),
    },
    Migration {
        version: 2,
        name: "workspaces",
        text: include_str!("../migrations/0002_workspaces.sql"),
    },
    Migration {
        version: 3,
        name: "log retention",
        text: include_str!("../migrations/0003_log_retention.sql"),
    },
    Migration {
        version: 4,
        name: "checkpoint files",
        text: include_str!("../migrations/0004_checkpoint_files.sql"),
    },
    Migration {
        version: 5,
        name: "agent tokens",
        text: include_str!("../migrations/0005_agent_tokens.sql"),
    },
    Migration {
        version: 6,
        name: "metric runs",
        text: include_str!("../migrations/0006_metric_runs.sql"),
    },
    Migration {
        version: 7,
        name: "places",
        text: include_str!("../migrations/0007_places.sql"),
    },
    Migration {
        version: 8,
        name: "task states",
        text: include_str!("../migrations/0008_task_states.sql"),
    },
    Migration {
        version: 9,
        name: "task logs",
        text: include_str!("../migrations/0009_task_logs.sql"),
    },
    Migration {
        version: 10,
        name: "task documents",
        text: include_str!("../migrations/0010_task_documents.sql"),
    },
    Migration {
        version: 11,
        name: "unmanaged experiments",
        text: include_str!("../migrations/0011_unmanaged.sql"),
    },
    Migration {
        version: 12,
        name: "training ports",
        text: include_str!("../migrations/0012_training_ports.sql"),
    },
    Migration {
        version: 13,
        name: "checkpoint removals",
        text: include_str!("../migrations/0013_checkpoint_removals.sql"),
    },
    Migration {
        version: 14,
        name: "slot faults",
        text: include_str!("../migrations/0014_slot_faults.sql"),
    },
    Migration {
        version: 15,
        name: "unmanaged trials",
        text: include_str!("../migrations/0015_unmanaged_trials.sql"),
    },
    Migration {
        version: 16,
        name: "task losses",
        text: include_str!("../migrations/0016_task_losses.sql"),
    },
    Migration {
        version: 17,
        name: "service ports",
        text: include_str!("../migrations/0017_service_ports.sql"),
    },
    Migration {
        version: 18,
        name: "task metrics",
        text: include_str!("../migrations/0018_task_metrics.sql"),
    },
    Migration {
        version: 19,
        name: "demands",
        text: include_str!("../migrations/0019_demands.sql"),
    },
    Migration {
        version: 20,
        name: "workspace namespaces",
        text: include_str!("../migrations/0020_workspace_namespaces.sql"),
    },
    Migration {
        version: 21,
        name: "lost places",
        text: include_str!("../migrations/0021_lost_places.sql"),
    },
    Migration {
        version: 22,
        name: "not before",
        text: include_str!("../migrations/0022_not_before.sql"),
    },
    Migration {
        version: 23,
        name: "place faults",
        text: include_str!("../migrations/0023_place_faults.sql"),
    },
    Migration {
        version: 24,
        name: "checkpoint failures",
        text: include_str!("../migrations/0024_checkpoint_failures.sql"),
    },
];

/// The schema and rows that [`MIGRATIONS`] lead to on SQLite: what a test of this file compares, and shows when they differ.
/// To rename one column SQLite parses the whole schema five times, so that going through all changes takes five times as
/// long as creating what they lead to.
const NEWEST_SQLITE: &str = include_str!("../migrations/newest.sqlite.sql");

/// Spellings of the tokens, SQLite first, then PostgreSQL.
const TOKENS: &[(&str, &str, &str)] = &[
    (
        "{PK}",
        "INTEGER PRIMARY KEY AUTOINCREMENT",
        "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
    ),
    ("{KEY}", "INTEGER PRIMARY KEY", "BIGINT PRIMARY KEY"),
    ("{BLOB}", "BLOB", "BYTEA"),
    ("{REAL}", "REAL", "DOUBLE PRECISION"),
    ("{DESC_LAST}", "DESC", "DESC NULLS LAST"),
    (
        "{CONFIGURED_RETENTION}",
        "json_extract(c.config, '$.retention_policy.log_retention_days')",
        "CAST(CAST(c.config AS JSON) #>> '{retention_policy,log_retention_days}' AS BIGINT)",
    ),
];

struct Migration {
    version: i64,
    name: &'static str,
    text: &'static str,
}

/// Why a database's schema is not one that this program can work with.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// A newer program has been here.
    #[error(
        "the database has schema version {found}, this program knows up to {known}: use the version of the program that wrote it, or a newer one"
    )]
    Newer {
        /// The version of the database's schema.
        found: i64,
        /// The newest one that this program knows.
        known: i64,
    },
    /// The text of a schema change is not the one that was applied.
    #[error(
        "schema version {version} of the database was made by another build of this program; it cannot be brought up to date by this one"
    )]
    Changed {
        /// The version that the change leads to.
        version: i64,
    },
    /// A change of the schema failed; the database is as it was before.
    #[error("the database could not be brought to schema version {version} (\"{name}\")")]
    Failed {
        /// The version that the change leads to.
        version: i64,
        /// Name of that change, as its file has it.
        name: &'static str,
        /// The error of the database.
        #[source]
        source: crate::db::DriverError,
    },
}

impl Migration {
    fn sql(&self, conn: &Conn<'_>) -> String {
        TOKENS.iter().fold(self.text.to_owned(), |sql, token| {
            sql.replace(
                token.0,
                match conn.link {
                    Link::Lite(_) => token.1,
                    Link::Pg(_) => token.2,
                },
            )
        })
    }

    /// The checksum of the text in the file.
    fn checksum(&self) -> String {
        hex::encode(Sha256::digest(self.text))
    }

    /// Whether its text, or an earlier one with other comments, has this checksum.
    fn had(&self, checksum: &str) -> bool {
        checksum == self.checksum() || FORMER_CHECKSUMS.contains(&(self.version, checksum))
    }
}

/// Brings the database up to date. The caller holds the lock that keeps other masters out.
pub(crate) async fn run(conn: &mut Conn<'_>) -> Result<(), StoreError> {
    conn.execute_script(SCHEMA_VERSIONS).await?;
    let done = fetch_all!(
        conn,
        (i64, String),
        "SELECT version, checksum FROM schema_versions ORDER BY version"
    )?;
    let known = MIGRATIONS.last().map_or(0, |m| m.version);
    if let Some((found, _)) = done.last().filter(|(found, _)| *found > known) {
        return Err(MigrateError::Newer {
            found: *found,
            known,
        }
        .into());
    }
    for migration in MIGRATIONS {
        let found = done
            .iter()
            .find(|(version, _)| *version == migration.version);
        if found.is_some_and(|(_, checksum)| !migration.had(checksum)) {
            return Err(MigrateError::Changed {
                version: migration.version,
            }
            .into());
        }
    }
    let missing: Vec<&Migration> = MIGRATIONS
        .iter()
        .filter(|migration| {
            done.iter()
                .all(|(version, _)| *version != migration.version)
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    // One transaction: a durable write for each change would take most of the start on an empty store.
    conn.execute_script("BEGIN").await?;
    let is_new = done.is_empty() && matches!(conn.link, Link::Lite(_));
    let outcome = apply(conn, &missing, is_new).await;
    if outcome.is_err() {
        // The failure is what matters; a connection that cannot even roll back is not used again.
        if let Err(error) = conn.execute_script("ROLLBACK").await {
            tracing::debug!(%error, "failed schema changes could not be rolled back");
        }
    }
    outcome
}

/// Makes changes in the transaction that is open, and commits it. `all_at_once`: all of them to an empty SQLite database.
async fn apply(
    conn: &mut Conn<'_>,
    missing: &[&Migration],
    all_at_once: bool,
) -> Result<(), StoreError> {
    if all_at_once {
        conn.execute_script(NEWEST_SQLITE).await?;
    }
    for migration in missing {
        let sql = migration.sql(conn);
        let outcome = async {
            if !all_at_once {
                conn.execute_script(&sql).await?;
            }
            execute!(
                conn,
                "INSERT INTO schema_versions (version, name, checksum, applied_at) VALUES ($1, $2, $3, $4)",
                migration.version,
                migration.name,
                migration.checksum(),
                crate::now()
            )
        }
        .await;
        outcome.map_err(|source| MigrateError::Failed {
            version: migration.version,
            name: migration.name,
            source,
        })?;
    }
    Ok(conn.execute_script("COMMIT").await?)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use det_lifecycle::task::TaskState;

    use super::*;
    use crate::column;

    /// Makes changes of the schema.
    fn apply_to(database: &rusqlite::Connection, migrations: &[Migration]) {
        for migration in migrations {
            let sql = TOKENS
                .iter()
                .fold(migration.text.to_owned(), |sql, (token, sqlite, _)| {
                    sql.replace(token, sqlite)
                });
            database.execute_batch(&sql).unwrap();
        }
    }

    /// Everything in a database, as SQL: its schema, and its rows with their values quoted.
    fn contents(database: &rusqlite::Connection) -> String {
        let texts = |query: &str| -> Vec<String> {
            let mut statement = database.prepare(query).unwrap();
            let rows = statement.query_map([], |row| row.get(0)).unwrap();
            rows.map(Result::unwrap).collect()
        };
        let mut all = texts(
            "SELECT sql || ';' FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%' ORDER BY rowid",
        );
        for table in texts("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name") {
            let columns = texts(&format!("SELECT name FROM pragma_table_info('{table}')"));
            let values: Vec<String> = columns
                .iter()
                .map(|name| format!("quote({name})"))
                .collect();
            let values = values.join(" || ', ' || ");
            all.extend(texts(&format!(
                "SELECT '-- {table}: ' || {values} FROM {table}"
            )));
        }
        all.join("\n")
    }

    #[test]
    fn a_new_sqlite_database_is_what_all_migrations_lead_to() {
        let [at_once, one_by_one] =
            [(); 2].map(|()| rusqlite::Connection::open_in_memory().unwrap());
        at_once.execute_batch(NEWEST_SQLITE).unwrap();
        apply_to(&one_by_one, MIGRATIONS);
        let (found, expected) = (contents(&at_once), contents(&one_by_one));
        assert!(
            found == expected,
            "migrations/newest.sqlite.sql leads to\n{found}\nand is to lead to\n{expected}"
        );
    }

    /// `table.column` of each column of a new database.
    fn columns() -> BTreeSet<String> {
        let database = rusqlite::Connection::open_in_memory().unwrap();
        database.execute_batch(SCHEMA_VERSIONS).unwrap();
        apply_to(&database, MIGRATIONS);
        let mut columns = database
            .prepare(
                "SELECT t.name || '.' || c.name FROM sqlite_master t, pragma_table_info(t.name) c \
                 WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%'",
            )
            .unwrap();
        let names = columns.query_map([], |row| row.get(0)).unwrap();
        names.map(Result::unwrap).collect()
    }

    /// `table.column` of each row of the page's tables, each with a meaning.
    fn described() -> BTreeSet<String> {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/contract/database.md"
        );
        let (mut table, mut described) = ("", BTreeSet::new());
        let page = std::fs::read_to_string(page).unwrap();
        for line in page.lines() {
            if let Some(name) = line.strip_prefix("## ") {
                table = name;
            } else if let Some((column, meaning)) = line
                .strip_prefix("| `")
                .and_then(|row| row.split_once("` | "))
            {
                assert!(meaning.len() > 4, "{table}.{column} has no meaning");
                assert!(
                    described.insert(format!("{table}.{column}")),
                    "{table}.{column} twice"
                );
            }
        }
        described
    }

    #[test]
    fn the_page_about_the_database_describes_every_column_and_no_other() {
        let (columns, described) = (columns(), described());
        assert_eq!(
            columns.difference(&described).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "not described in docs/contract/database.md"
        );
        assert_eq!(
            described.difference(&columns).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "described in docs/contract/database.md and not in the database"
        );
    }

    /// Adds a row with these values, as SQL, and 0 in all other columns that must have one.
    fn add(database: &rusqlite::Connection, table: &str, values: &[(&str, &str)]) {
        let mut required = database
            .prepare(&format!(
                "SELECT name FROM pragma_table_info('{table}') WHERE \"notnull\" = 1 AND dflt_value IS NULL"
            ))
            .unwrap();
        let required = required.query_map([], |row| row.get(0)).unwrap();
        let mut columns: BTreeMap<String, &str> =
            required.map(|name| (name.unwrap(), "0")).collect();
        columns.extend(
            values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value)),
        );
        let names: Vec<&str> = columns.keys().map(String::as_str).collect();
        let values: Vec<&str> = columns.values().copied().collect();
        let (names, values) = (names.join(", "), values.join(", "));
        database
            .execute_batch(&format!("INSERT INTO {table} ({names}) VALUES ({values})"))
            .unwrap();
    }

    #[test]
    fn tasks_of_before_have_the_states_that_their_rows_lead_to() {
        let database = rusqlite::Connection::open_in_memory().unwrap();
        apply_to(&database, &MIGRATIONS[..7]);
        database.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        let live = |state| Some((state, "NULL", "NULL"));
        let over = |code| Some(("'TERMINATED'", "9", code));
        // The state of the task's trial, whether the trial has gone on in another task, the end of the task, its newest
        // allocation with state, end and exit code, and the expected state.
        let cases = [
            ("'ACTIVE'", false, "NULL", live("'PENDING'"), r#""queued""#),
            ("'ACTIVE'", false, "NULL", live("'RUNNING'"), r#""running""#),
            (
                "'PAUSED'",
                false,
                "NULL",
                live("'RUNNING'"),
                r#"{"stopping":"suspend"}"#,
            ),
            (
                "'STOPPING_KILLED'",
                false,
                "NULL",
                live("'TERMINATING'"),
                r#"{"stopping":"kill"}"#,
            ),
            ("'PAUSED'", false, "NULL", over("0"), r#""suspended""#),
            ("'PAUSED'", false, "NULL", None, r#""suspended""#),
            (
                "'COMPLETED'",
                false,
                "9",
                over("137"),
                r#"{"ended":"completed"}"#,
            ),
            ("'CANCELED'", false, "9", None, r#"{"ended":"canceled"}"#),
            ("'ERROR'", false, "9", over("1"), r#"{"ended":"failed"}"#),
            ("'ACTIVE'", true, "9", over("0"), r#"{"ended":"completed"}"#),
            ("'ACTIVE'", true, "9", over("1"), r#"{"ended":"failed"}"#),
        ];
        for (number, (state, gone_on, ended_at, allocation, _)) in cases.into_iter().enumerate() {
            let (number, task) = (number.to_string(), format!("'t{number}'"));
            let current = if gone_on { "'next'" } else { &task };
            let trial = [
                ("id", &*number),
                ("task_id", current),
                ("request_id", &number),
                ("state", state),
            ];
            add(&database, "trials", &trial);
            let row = [
                ("id", &*task),
                ("trial_id", &number),
                ("attempts", "2"),
                ("ended_at", ended_at),
            ];
            add(&database, "tasks", &row);
            if let Some((state, ended_at, status_code)) = allocation {
                let row = [
                    ("id", &*format!("'t{number}.2'")),
                    ("task_id", &task),
                    ("state", state),
                    ("ended_at", ended_at),
                    ("status_code", status_code),
                ];
                add(&database, "allocations", &row);
            }
        }
        apply_to(&database, &MIGRATIONS[7..]);
        for (number, (.., expected)) in cases.into_iter().enumerate() {
            let found: String = database
                .query_row(
                    &format!("SELECT machine FROM tasks WHERE id = 't{number}'"),
                    [],
                    |row| row.get(0),
                )
                .unwrap();
            assert_eq!(found, expected, "task {number}");
            column::json::<TaskState>(&found).unwrap();
        }
    }
}
