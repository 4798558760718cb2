//! The SQLite driver: statements run on the caller's thread, without a hop to another one.
//!
//! The writer has a thread of its own (see [`crate::writer`]), so that a statement of a change costs some microseconds
//! and its commit, which waits for the disk, delays no other work. Readers run where their caller runs; on a
//! multi-threaded runtime the runtime is notified, and goes on with other threads meanwhile.
//!
//! The log of the write-ahead mode is brought back into the database by a thread of its own
//! (`Checkpointer`): done by a commit, as SQLite does by itself, it would delay the callers that wait for that commit.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, OpenFlags, Statement, ToSql};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::StoreError;
use crate::column::FromRow;
use crate::db::DriverError;
use crate::disk_space::FreeSpace;

/// Statements kept compiled for each connection.
const STATEMENTS: usize = 256;
/// Readers at once. More would only wait for the same cores.
const READERS: usize = 4;
/// How long a reader waits for its connection.
const READER_PATIENCE: Duration = Duration::from_secs(5);
/// A reader's connection that was unused for this long is closed when the next one comes back.
const READER_IDLE: Duration = Duration::from_mins(1);
/// Pages in the write-ahead log after which it is brought into the database by the checkpointer (16 MiB).
const CHECKPOINT_PAGES: c_int = 4_096;
/// Pages after which the writer waits for that itself: bounds the log when writing never pauses (256 MiB).
const RESTART_PAGES: c_int = 65_536;

/// A connection to the file of an SQLite database.
pub struct LiteConn {
    conn: Connection,
    role: Role,
    /// Whether the last failed statement failed because the disk is full.
    full: bool,
}

/// What a connection is for.
#[derive(Debug)]
enum Role {
    /// Its thread belongs to it.
    Writer(Log),
    /// Runs on threads of the runtime, which must know when it takes its time.
    Reader,
}

impl LiteConn {
    /// All rows of a query.
    pub(crate) fn fetch_all<R: FromRow>(
        &mut self,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> Result<Vec<R>, DriverError> {
        self.run(|conn| fetch(conn, sql, values, usize::MAX))
    }

    /// The first row of a query, if any.
    pub(crate) fn fetch_optional<R: FromRow>(
        &mut self,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> Result<Option<R>, DriverError> {
        self.run(|conn| Ok(fetch(conn, sql, values, 1)?.pop()))
    }

    /// The only row of a query.
    pub(crate) fn fetch_one<R: FromRow>(
        &mut self,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> Result<R, DriverError> {
        self.fetch_optional(sql, values)?
            .ok_or(DriverError::Lite(rusqlite::Error::QueryReturnedNoRows))
    }

    /// Runs a statement and gives the number of rows it changed.
    pub(crate) fn execute(&mut self, sql: &str, values: &[&dyn ToSql]) -> Result<u64, DriverError> {
        self.run(|conn| {
            let mut statement = conn.prepare_cached(sql)?;
            bind(&mut statement, values)?;
            let changed = statement.raw_execute()?;
            Ok(u64::try_from(changed).unwrap_or(u64::MAX))
        })
    }

    /// Bytes of a stored value, read without the rest of it: at most `bytes` from `offset` on; none behind its end.
    pub(crate) fn read_part(
        &mut self,
        table: &str,
        column: &str,
        row: i64,
        offset: usize,
        bytes: usize,
    ) -> Result<Vec<u8>, DriverError> {
        self.run(|conn| {
            let blob = conn.blob_open("main", table, column, row, true)?;
            let mut part = vec![0; bytes.min(blob.len().saturating_sub(offset))];
            blob.read_at_exact(&mut part, offset)?;
            Ok(part)
        })
    }

    /// What space there is for the database's file; `None` = it is not known.
    pub(crate) fn space(&mut self) -> Result<Option<FreeSpace>, DriverError> {
        let found = self.conn.path().and_then(|path| {
            let file = std::fs::metadata(path).ok()?;
            Some((statvfs(path).ok()?, file.len()))
        });
        let Some((disk, file_bytes)) = found else {
            return Ok(None);
        };
        let (free, pages, page_bytes): (i64, i64, i64) = self.fetch_one(
            "SELECT f.freelist_count, c.page_count, p.page_size \
             FROM pragma_freelist_count f, pragma_page_count c, pragma_page_size p",
            &[],
        )?;
        let in_pages = |pages: i64| u64::try_from(pages.saturating_mul(page_bytes)).unwrap_or(0);
        let bytes = |blocks: u64| blocks.saturating_mul(disk.fragment_size());
        // What is in the write-ahead log alone, this transaction's changes among it, goes to the file later.
        let owed = in_pages(pages).saturating_sub(file_bytes);
        Ok(Some(FreeSpace {
            total: bytes(disk.blocks()),
            available: bytes(disk.blocks_available()).saturating_sub(owed),
            unused: in_pages(free),
        }))
    }

    /// Runs statements that follow one another and give nothing.
    pub(crate) fn execute_script(&mut self, sql: &str) -> Result<(), DriverError> {
        self.run(|conn| conn.execute_batch(sql))
    }

    /// What is due after a commit: keeping the write-ahead log short. An error when the disk did not confirm what was
    /// brought into the database.
    pub(crate) fn after_commit(&mut self) -> Result<(), DriverError> {
        let Role::Writer(log) = &self.role else {
            return Ok(());
        };
        if log.failed_to_sync.load(Ordering::Relaxed) {
            return Err(DriverError::failed_sync());
        }
        let pages = log.pages.load(Ordering::Relaxed);
        if pages >= RESTART_PAGES {
            // Most of it is in the database already; this waits for the rest and begins the log anew.
            let done = self
                .conn
                .query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
            if let Err(error) = done.map_err(DriverError::Lite) {
                if error.is_sync_failure() {
                    return Err(error);
                }
                tracing::warn!(%error, "the write-ahead log could not be brought into the database; it is tried again");
            }
        } else if pages >= CHECKPOINT_PAGES {
            log.checkpointer.wake();
        }
        Ok(())
    }

    /// What ended the transaction when SQLite undid all of it by itself, as it does when the disk is full or
    /// fails. `None` while the transaction goes on.
    pub(crate) fn undone_by(&self) -> Option<StoreError> {
        let error =
            "the changes committed together were undone because one of them met a failing disk";
        match (self.conn.is_autocommit(), self.full) {
            (false, _) => None,
            (true, true) => Some(StoreError::Full),
            (true, false) => Some(StoreError::Unavailable(DriverError::Group(error.into()))),
        }
    }

    fn run<T>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, DriverError> {
        let outcome = match self.role {
            Role::Reader if on_worker() => tokio::task::block_in_place(|| work(&mut self.conn)),
            Role::Reader | Role::Writer(_) => work(&mut self.conn),
        };
        if let Err(error) = &outcome
            && self.conn.is_autocommit()
        {
            self.full = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull);
        }
        outcome.map_err(DriverError::Lite)
    }
}

/// Whether this thread may be one that a multi-threaded runtime runs other work on.
fn on_worker() -> bool {
    Handle::try_current().is_ok_and(|h| h.runtime_flavor() == RuntimeFlavor::MultiThread)
}

fn fetch<R: FromRow>(
    conn: &mut Connection,
    sql: &str,
    values: &[&dyn ToSql],
    limit: usize,
) -> rusqlite::Result<Vec<R>> {
    let mut statement = conn.prepare_cached(sql)?;
    bind(&mut statement, values)?;
    let places = places(&statement, R::COLUMNS)?;
    let mut found = Vec::new();
    let mut rows = statement.raw_query();
    // Read to the end even when only the first row is wanted: a statement that also writes is then done.
    while let Some(row) = rows.next()? {
        if found.len() < limit {
            found.push(R::from_lite(row, &places)?);
        }
    }
    Ok(found)
}

/// The positions of columns in a statement's rows. Mostly a column follows the struct's one before it, which is tried
/// first: a name is found by comparing it with all others.
fn places(statement: &Statement<'_>, columns: &[&str]) -> rusqlite::Result<Vec<usize>> {
    let count = statement.column_count();
    let mut next = 0;
    columns
        .iter()
        .map(|name| {
            let place = if next < count && statement.column_name(next)? == *name {
                next
            } else {
                statement.column_index(name)?
            };
            next = place + 1;
            Ok(place)
        })
        .collect()
}

/// Binds `values` to `$1`, `$2`, …. To SQLite these are names, numbered by their first occurrence in the text.
fn bind(statement: &mut Statement<'_>, values: &[&dyn ToSql]) -> rusqlite::Result<()> {
    for place in 1..=statement.parameter_count() {
        let number = statement
            .parameter_name(place)
            .and_then(|name| name.strip_prefix('$')?.parse::<usize>().ok());
        let value = number.and_then(|n| values.get(n.checked_sub(1)?));
        let value = value.ok_or(rusqlite::Error::InvalidParameterCount(place, values.len()))?;
        statement.raw_bind_parameter(place, value)?;
    }
    Ok(())
}

/// How a database file is opened.
#[derive(Debug, Clone)]
pub(crate) struct LiteOptions {
    path: PathBuf,
}

impl LiteOptions {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// The writer's connection; makes the file if it does not exist.
    pub(crate) fn open_writer(&self) -> Result<LiteConn, DriverError> {
        let mut conn =
            self.open(OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        conn.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;",
        )?;
        let failed_to_sync = Arc::default();
        let log = Log {
            pages: Arc::default(),
            checkpointer: Checkpointer::start(self.clone(), Arc::clone(&failed_to_sync))
                .map_err(DriverError::Thread)?,
            failed_to_sync,
        };
        let pages = log.pages.clone();
        // Takes the place of SQLite's automatic checkpoints, which are a hook as well.
        conn.wal_hook(Some(move |_: &mut Wal, now: c_int| {
            pages.store(now, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(LiteConn {
            conn,
            role: Role::Writer(log),
            full: false,
        })
    }

    fn open_reader(&self) -> Result<LiteConn, DriverError> {
        Ok(LiteConn {
            conn: self.open(OpenFlags::SQLITE_OPEN_READ_ONLY)?,
            role: Role::Reader,
            full: false,
        })
    }

    fn open(&self, flags: OpenFlags) -> Result<Connection, DriverError> {
        // Each connection is used by one thread at a time: Rust's borrows see to that.
        let conn =
            Connection::open_with_flags(&self.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        conn.busy_timeout(Duration::from_secs(10))?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS);
        // Plans do not depend on bound values: otherwise SQLite compiles joins and statements with a limit anew at each
        // use, which takes several times as long as running them.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        Ok(conn)
    }
}

/// The write-ahead log as the writer sees it.
#[derive(Debug)]
struct Log {
    /// Pages in it after the last commit.
    pages: Arc<AtomicI32>,
    /// Whether the disk did not confirm what the checkpointer wrote.
    failed_to_sync: Arc<AtomicBool>,
    checkpointer: Checkpointer,
}

/// A thread that brings the write-ahead log into the database when it is woken. Ends when it is dropped.
#[derive(Debug)]
struct Checkpointer {
    wake: SyncSender<()>,
}

impl Checkpointer {
    fn start(
        options: LiteOptions,
        failed_to_sync: Arc<AtomicBool>,
    ) -> Result<Self, std::io::Error> {
        // A capacity of one: a wake-up while one is waiting adds nothing.
        let (wake, woken) = sync_channel(1);
        std::thread::Builder::new()
            .name("checkpointer".into())
            .spawn(move || checkpoint_when_woken(&options, &woken, &failed_to_sync))?;
        Ok(Self { wake })
    }

    fn wake(&self) {
        match self.wake.try_send(()) {
            // Disconnected: the thread ended in a panic; the writer's own limit still bounds the log.
            Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
        }
    }
}

fn checkpoint_when_woken(options: &LiteOptions, woken: &Receiver<()>, failed_to_sync: &AtomicBool) {
    let mut conn = None;
    while woken.recv().is_ok() {
        let outcome = match conn.take() {
            Some(conn) => Ok(conn),
            None => options.open(OpenFlags::SQLITE_OPEN_READ_WRITE),
        }
        .and_then(|open| {
            // Passive: takes what no reader needs any more and holds up neither readers nor the writer.
            open.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
                .map_err(DriverError::Lite)?;
            Ok(open)
        });
        match outcome {
            Ok(open) => conn = Some(open),
            Err(error) => {
                if error.is_sync_failure() {
                    failed_to_sync.store(true, Ordering::Relaxed);
                }
                tracing::warn!(%error, "the write-ahead log could not be brought into the database; it is tried again");
            }
        }
    }
}

/// Connections to SQLite for reading, so many at once as there are permits.
#[derive(Clone)]
pub(crate) struct LitePool {
    options: LiteOptions,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<(Instant, LiteConn)>>>,
}

/// A connection for reading, given back when dropped.
pub struct PooledLite {
    conn: Option<LiteConn>,
    pool: LitePool,
    _permit: OwnedSemaphorePermit,
}

impl LitePool {
    pub(crate) fn new(options: LiteOptions) -> Self {
        Self {
            options,
            permits: Arc::new(Semaphore::new(READERS)),
            idle: Arc::default(),
        }
    }

    pub(crate) async fn acquire(&self) -> Result<PooledLite, StoreError> {
        let permit = tokio::time::timeout(READER_PATIENCE, self.permits.clone().acquire_owned())
            .await
            .map_err(|_| StoreError::Busy)?
            .map_err(|_| StoreError::Closed)?;
        let idle = self.idle().pop();
        let conn = match idle {
            Some((_, conn)) => conn,
            None => self
                .options
                .open_reader()
                .map_err(StoreError::Unavailable)?,
        };
        Ok(PooledLite {
            conn: Some(conn),
            pool: self.clone(),
            _permit: permit,
        })
    }

    /// Ends all connections; those in use end with their use.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, LiteConn)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PooledLite {
    pub(crate) fn conn(&mut self) -> &mut LiteConn {
        self.conn
            .as_mut()
            .expect("the connection is taken out only when this is dropped")
    }
}

impl Drop for PooledLite {
    fn drop(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        if self.pool.permits.is_closed() {
            return;
        }
        let now = Instant::now();
        let mut idle = self.pool.idle();
        idle.retain(|(since, _)| now.duration_since(*since) < READER_IDLE);
        idle.push((now, conn));
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    fn writer(directory: &tempfile::TempDir) -> LiteConn {
        LiteOptions::new(&directory.path().join("det.db"))
            .open_writer()
            .unwrap()
    }

    #[test]
    fn values_are_bound_by_number_at_any_position() {
        let directory = tempfile::tempdir().unwrap();
        let mut conn = writer(&directory);
        let found: (i64, i64, i64) = conn
            .fetch_one("SELECT $2, $1, $2", &[&1_i64, &2_i64])
            .unwrap();
        assert_eq!(found, (2, 1, 2));
    }

    #[test]
    fn a_value_that_is_not_given_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let outcome = writer(&directory).fetch_all::<(i64,)>("SELECT $1 + $2", &[&1_i64]);
        assert!(outcome.is_err(), "{outcome:?}");
    }

    #[test]
    fn a_statement_is_compiled_once_whatever_is_bound_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut conn = writer(&directory);
        conn.execute_script(
            "CREATE TABLE a (id TEXT PRIMARY KEY, of TEXT); CREATE TABLE b (id TEXT PRIMARY KEY)",
        )
        .unwrap();
        let sql = "SELECT a.id FROM a JOIN b ON b.id = a.of WHERE a.of = $1 LIMIT $2";
        for limit in 0..9_i64 {
            conn.fetch_all::<(String,)>(sql, &[&"x", &limit]).unwrap();
        }
        let statement = conn.conn.prepare_cached(sql).unwrap();
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }

    #[test]
    fn a_long_log_is_brought_into_the_database_and_nothing_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let mut conn = writer(&directory);
        conn.execute_script("CREATE TABLE lines (id INTEGER PRIMARY KEY, text BLOB)")
            .unwrap();
        let text = vec![7_u8; 1 << 20];
        for id in 0..400_i64 {
            conn.execute("INSERT INTO lines VALUES ($1, $2)", &[&id, &text])
                .unwrap();
            conn.after_commit().unwrap();
        }
        // Four hundred mebibytes were written; the log began anew on the way.
        let Role::Writer(log) = &conn.role else {
            panic!("the writer's connection")
        };
        let pages = log.pages.load(Ordering::Relaxed);
        assert!(pages < RESTART_PAGES, "{pages}");
        let found: (i64,) = conn.fetch_one("SELECT COUNT(*) FROM lines", &[]).unwrap();
        assert_eq!(found, (400,));
    }

    #[tokio::test]
    async fn readers_read_only() {
        let directory = tempfile::tempdir().unwrap();
        drop(writer(&directory));
        let pool = LitePool::new(LiteOptions::new(&directory.path().join("det.db")));
        let mut reader = pool.acquire().await.unwrap();
        let outcome = reader
            .conn()
            .execute_script("CREATE TABLE lines (id INTEGER)");
        assert!(outcome.is_err());
    }
}
