//! Connections to either database, and the macros that let one SQL text serve both.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Postgres, pool::PoolConnection};
use tokio::sync::watch;

use crate::access::{self, DatabaseAccess, SharedAccess};
use crate::archives::ArchiveOf;
use crate::column;
use crate::disk_space::Shortfall;
use crate::lite::{LiteConn, LiteOptions, LitePool, PooledLite};
use crate::migrate;
use crate::unit::{Changes, Unit};
use crate::writer::{Job, Writer, connect_patiently};

/// An error of a database's driver.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// An error of SQLite.
    #[error(transparent)]
    Lite(#[from] rusqlite::Error),
    /// An error of PostgreSQL.
    #[error(transparent)]
    Pg(#[from] sqlx::Error),
    /// A thread could not be started.
    #[error("a thread for the database could not be started")]
    Thread(#[source] std::io::Error),
    /// The same failure as that of a whole group of changes, for each of them.
    #[error("{0}")]
    Group(String),
}

impl DriverError {
    /// Whether the connection is at fault and not the statement.
    pub(crate) fn is_connection(&self) -> bool {
        match self {
            Self::Pg(error) => is_connection_error(error),
            // The file or its disk is at fault, or another program holds it.
            Self::Lite(error) => matches!(
                error.sqlite_error_code(),
                Some(
                    rusqlite::ErrorCode::SystemIoFailure
                        | rusqlite::ErrorCode::CannotOpen
                        | rusqlite::ErrorCode::DatabaseBusy
                        | rusqlite::ErrorCode::DatabaseLocked
                )
            ),
            Self::Thread(_) => true,
            Self::Group(_) => false,
        }
    }

    /// Whether a server did not answer, or is still starting: it answers later, or at another time, without anything being
    /// changed here. Refusals, such as of a password, are none of these.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Pg(sqlx::Error::Io(_)) => true,
            // Class 57P: it starts or shuts down; 53300: too many connections.
            Self::Pg(sqlx::Error::Database(error)) => error
                .code()
                .is_some_and(|code| code.starts_with("57P") || code == "53300"),
            Self::Pg(_) | Self::Lite(_) | Self::Thread(_) | Self::Group(_) => false,
        }
    }

    /// The error of SQLite for a disk that did not confirm a change.
    pub(crate) fn failed_sync() -> Self {
        Self::Lite(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(1034),
            None,
        ))
    }

    /// Whether the disk did not confirm that something is on it. What the system had in memory of it may be lost while
    /// later writes succeed, so that nothing can be acknowledged any more.
    pub(crate) fn is_sync_failure(&self) -> bool {
        match self {
            // SQLITE_IOERR_FSYNC and SQLITE_IOERR_DIR_FSYNC.
            Self::Lite(rusqlite::Error::SqliteFailure(e, _)) => {
                matches!(e.extended_code, 1034 | 1290)
            }
            // 58030: I/O error.
            Self::Pg(sqlx::Error::Database(e)) => e.code().is_some_and(|c| c == "58030"),
            _ => false,
        }
    }

    /// Whether PostgreSQL refused a statement only because an earlier one of the transaction had failed.
    pub(crate) fn is_aborted_transaction(&self) -> bool {
        // 25P02: in failed SQL transaction.
        matches!(self, Self::Pg(sqlx::Error::Database(e)) if e.code().is_some_and(|c| c == "25P02"))
    }

    /// Whether a row was refused because another one has its key.
    pub fn is_unique_violation(&self) -> bool {
        match self {
            Self::Pg(sqlx::Error::Database(e)) => e.is_unique_violation(),
            // 2067 and 1555: SQLITE_CONSTRAINT_UNIQUE and _PRIMARYKEY.
            Self::Lite(rusqlite::Error::SqliteFailure(e, _)) => {
                matches!(e.extended_code, 2067 | 1555)
            }
            _ => false,
        }
    }

    /// Whether the disk with the database's files is full.
    fn is_full(&self) -> bool {
        match self {
            // 53100: disk full.
            Self::Pg(sqlx::Error::Database(e)) => e.code().is_some_and(|c| c == "53100"),
            Self::Lite(error) => error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            _ => false,
        }
    }
}

/// What can go wrong in the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The data directory is held by another master.
    #[error("the data directory \"{}\" is in use by another master: stop it, or choose another with --data-dir", .0.display())]
    InUse(PathBuf),
    /// Another master holds the PostgreSQL database.
    #[error("the database is in use by another master: stop it, or point db: at another database")]
    DatabaseInUse,
    /// The data directory cannot be used.
    #[error("the data directory \"{}\" cannot be used: {source}; make it writable for this user, or choose another with --data-dir", path.display())]
    Directory {
        /// The path of the directory.
        path: PathBuf,
        /// What the file system answered.
        source: std::io::Error,
    },
    /// The address of the database is not understood.
    #[error(
        "the database address \"{0}\" is not understood: use sqlite:///PATH or postgres://USER:PASSWORD@HOST:PORT/NAME"
    )]
    Url(String),
    /// The database cannot be reached now.
    #[error("the database cannot be reached")]
    Unavailable(#[source] DriverError),
    /// All connections for reading were busy for too long.
    #[error("the database is too busy to read from it now")]
    Busy,
    /// The disk is full. What was acknowledged is stored.
    #[error("the disk with the files of the database is full")]
    Full,
    /// The disk has too little space left for the files of new work. Nothing was changed.
    #[error("the disk with the files of the database is nearly full: {0}")]
    NearlyFull(Shortfall),
    /// The archive that was to be copied does not exist.
    #[error("{0} has no archive to copy")]
    NoArchive(ArchiveOf),
    /// A statement failed for another reason than those above.
    #[error("the database refused an operation")]
    Query(#[source] DriverError),
    /// The schema could not be brought up to date.
    #[error(transparent)]
    Migrate(#[from] migrate::MigrateError),
    /// A stored value cannot be read.
    #[error("stored data of {what} cannot be read: {message}")]
    Corrupt {
        /// The kind and the id of the row.
        what: String,
        /// Why the text or the value cannot be read.
        message: String,
    },
    /// A defect of ours: the change ended in a panic. Nothing of it is stored, and its neighbours are not disturbed.
    #[error("a change of stored data failed unexpectedly and was undone")]
    Panicked,
    /// A defect of ours: a change over a connection that only reads.
    #[error("a connection for reading was asked to change stored data")]
    ReadOnly,
    /// The writer has ended; the master is shutting down.
    #[error("the master is shutting down")]
    Closed,
    /// The database is lost, and being taken again.
    #[error("the master does not hold its database: {0}")]
    Lost(Arc<str>),
    /// This process must not use the database any more.
    #[error("the master has ended its use of the database: {0}")]
    Ended(Arc<str>),
}

impl From<DriverError> for StoreError {
    fn from(error: DriverError) -> Self {
        if let Some(unreadable) = column::unreadable(&error) {
            Self::Corrupt {
                what: format!("{} of {}", unreadable.column, unreadable.row),
                message: unreadable.message.clone(),
            }
        } else if error.is_full() {
            Self::Full
        } else {
            Self::Query(error)
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        DriverError::Pg(error).into()
    }
}

impl StoreError {
    /// Names the row that has the value, `metric chunk 4 of trial 2`, where what reads a value knows no row.
    pub(crate) fn in_row(self, row: impl FnOnce() -> String) -> Self {
        match self {
            Self::Corrupt { message, .. } => Self::Corrupt {
                what: row(),
                message,
            },
            other => other,
        }
    }

    /// Whether a value was refused because PostgreSQL's texts cannot hold the character NUL.
    pub fn is_unstorable_text(&self) -> bool {
        match self {
            // 22021: character not in repertoire.
            Self::Query(DriverError::Pg(sqlx::Error::Database(e))) => {
                e.code().is_some_and(|c| c == "22021")
            }
            _ => false,
        }
    }

    /// Whether the same operation may succeed later without any change (the database is away).
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable(_)
            | Self::Busy
            | Self::Full
            | Self::NearlyFull(_)
            | Self::Closed
            | Self::Lost(_)
            | Self::Ended(_) => true,
            Self::Query(error) => error.is_connection(),
            _ => false,
        }
    }
}

/// Whether the connection is at fault and not the statement.
fn is_connection_error(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_) => true,
        // Class 08: connection exception; class 57P: shutdown, crash or cannot connect now; 53300: too many connections.
        sqlx::Error::Database(e) => e
            .code()
            .is_some_and(|c| c.starts_with("08") || c.starts_with("57P") || c == "53300"),
        _ => false,
    }
}

/// Which database, and where. Its `Debug` form hides the password that a URL may carry.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A SQLite file below the data directory.
    Sqlite(PathBuf),
    /// A PostgreSQL database, as a `postgres://` URL.
    Postgres(String),
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
            Self::Postgres(_) => f.write_str("Postgres(…)"),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Ok(Self::Postgres(text.to_owned()))
        } else if let Some(path) = text.strip_prefix("sqlite://") {
            Ok(Self::Sqlite(PathBuf::from(path)))
        } else {
            // The text may hold a password: only the scheme is echoed.
            Err(StoreError::Url(
                text.split("://").next().unwrap_or_default().to_owned(),
            ))
        }
    }
}

/// A connection of either kind, borrowed for some statements.
pub(crate) enum Link<'a> {
    Lite(&'a mut LiteConn),
    Pg(&'a mut PgConnection),
}

impl Link<'_> {
    /// The same connection for a shorter time.
    pub(crate) fn reborrow(&mut self) -> Link<'_> {
        match self {
            Self::Lite(c) => Link::Lite(c),
            Self::Pg(c) => Link::Pg(c),
        }
    }
}

/// A connection for the query functions; the writer's also has the rows in memory.
pub struct Conn<'a> {
    pub(crate) link: Link<'a>,
    /// `None` = the rows are read where they are stored.
    pub(crate) unit: Option<&'a mut Unit>,
}

impl Conn<'_> {
    /// The same connection for a shorter time.
    pub fn reborrow(&mut self) -> Conn<'_> {
        Conn {
            link: self.link.reborrow(),
            unit: self.unit.as_deref_mut(),
        }
    }

    /// The database alone, without the rows in memory.
    pub(crate) fn bare(&mut self) -> Conn<'_> {
        Conn {
            link: self.link.reborrow(),
            unit: None,
        }
    }

    /// The rows in memory, for functions that change them.
    pub(crate) fn writing(&mut self) -> Result<&mut Unit, StoreError> {
        self.unit.as_deref_mut().ok_or(StoreError::ReadOnly)
    }
}

impl Conn<'_> {
    /// Runs statements of ours that follow one another and give nothing.
    pub(crate) async fn execute_script(&mut self, sql: &str) -> Result<(), DriverError> {
        match &mut self.link {
            Link::Lite(c) => c.execute_script(sql),
            Link::Pg(c) => sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
                .execute(&mut **c)
                .await
                .map(|_| ())
                .map_err(DriverError::Pg),
        }
    }
}

/// All rows of a query.
macro_rules! fetch_all {
    ($conn:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match &mut ($conn).link {
            $crate::db::Link::Lite(c) => c.fetch_all::<$row>($sql, &[$(&$crate::column::bound($bind)),*]),
            $crate::db::Link::Pg(c) => sqlx::query($sql)$(.bind($crate::column::bound($bind)))*
                .try_map(|row| <$row as $crate::column::FromRow>::from_pg(&row)).fetch_all(&mut **c).await
                .map_err($crate::db::DriverError::Pg),
        }
    };
}

/// The first row of a query, if any.
macro_rules! fetch_optional {
    ($conn:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match &mut ($conn).link {
            $crate::db::Link::Lite(c) => c.fetch_optional::<$row>($sql, &[$(&$crate::column::bound($bind)),*]),
            $crate::db::Link::Pg(c) => sqlx::query($sql)$(.bind($crate::column::bound($bind)))*
                .try_map(|row| <$row as $crate::column::FromRow>::from_pg(&row)).fetch_optional(&mut **c).await
                .map_err($crate::db::DriverError::Pg),
        }
    };
}

/// The only row of a query.
macro_rules! fetch_one {
    ($conn:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match &mut ($conn).link {
            $crate::db::Link::Lite(c) => c.fetch_one::<$row>($sql, &[$(&$crate::column::bound($bind)),*]),
            $crate::db::Link::Pg(c) => sqlx::query($sql)$(.bind($crate::column::bound($bind)))*
                .try_map(|row| <$row as $crate::column::FromRow>::from_pg(&row)).fetch_one(&mut **c).await
                .map_err($crate::db::DriverError::Pg),
        }
    };
}

/// Runs a statement and gives the number of rows it changed.
macro_rules! execute {
    ($conn:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        match &mut ($conn).link {
            $crate::db::Link::Lite(c) => c.execute($sql, &[$(&$crate::column::bound($bind)),*]),
            $crate::db::Link::Pg(c) => sqlx::query($sql)$(.bind($crate::column::bound($bind)))*.execute(&mut **c).await
                .map(|done| done.rows_affected()).map_err($crate::db::DriverError::Pg),
        }
    };
}

/// A connection for reading, returned to its pool when dropped.
pub enum ReadConn {
    /// A connection to SQLite.
    Lite(PooledLite),
    /// A connection to PostgreSQL.
    Pg(PoolConnection<Postgres>),
}

impl ReadConn {
    /// The connection for the query functions.
    pub fn conn(&mut self) -> Conn<'_> {
        let link = match self {
            Self::Lite(c) => Link::Lite(c.conn()),
            Self::Pg(c) => Link::Pg(c),
        };
        Conn { link, unit: None }
    }
}

/// The writer's own connection.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one of these in a process; the sizes depend on the features of others"
)]
pub(crate) enum OwnedConn {
    Lite(LiteConn),
    Pg(PgConnection),
}

/// Names of the kinds of database, as [`Store::kind`] gives them.
const SQLITE: &str = "sqlite";
const POSTGRES: &str = "postgres";

impl OwnedConn {
    /// Name of the kind of database: see [`Store::kind`].
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Lite(_) => SQLITE,
            Self::Pg(_) => POSTGRES,
        }
    }

    pub(crate) fn link(&mut self) -> Link<'_> {
        match self {
            Self::Lite(c) => Link::Lite(c),
            Self::Pg(c) => Link::Pg(c),
        }
    }

    /// The connection without the rows in memory.
    pub(crate) fn conn(&mut self) -> Conn<'_> {
        Conn {
            link: self.link(),
            unit: None,
        }
    }

    /// Ends the connection. On PostgreSQL the master's lock is given back first and waited for: merely hanging up would
    /// leave it to the server's leisure, and a master started right afterwards would find the database in use.
    pub(crate) async fn close(self) {
        let closed = match self {
            Self::Lite(conn) => {
                drop(conn);
                return;
            }
            Self::Pg(mut conn) => {
                let unlocked = sqlx::query("SELECT pg_advisory_unlock($1)")
                    .bind(ADVISORY_LOCK)
                    .execute(&mut conn)
                    .await;
                match unlocked {
                    Ok(_) => conn.close().await,
                    Err(error) => Err(error),
                }
            }
        };
        if let Err(error) = closed {
            // Everything acknowledged is committed already; the database ends the connection by itself.
            tracing::debug!(%error, "the database connection did not end in good order");
        }
    }
}

/// How to open the writer's connection again after it broke.
#[derive(Clone)]
pub(crate) enum Connector {
    Lite(LiteOptions),
    Pg(Box<PgConnectOptions>),
}

/// One master per database: the key of PostgreSQL's advisory lock.
const ADVISORY_LOCK: i64 = 0x6465_7465_726d_696e;
/// A master that was killed holds its lock until the server has noticed, which a busy server does only at the end of the
/// statement at hand.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// PostgreSQL's code of a `lock_timeout` that has passed.
const LOCK_NOT_AVAILABLE: &str = "55P03";

impl Connector {
    /// Opens the writer's connection and, on PostgreSQL, takes the lock that keeps a second master out.
    pub(crate) async fn connect(&self) -> Result<OwnedConn, StoreError> {
        match self {
            Self::Lite(options) => Ok(OwnedConn::Lite(
                options.open_writer().map_err(StoreError::Unavailable)?,
            )),
            Self::Pg(options) => {
                let mut conn = options
                    .connect()
                    .await
                    .map_err(|e| StoreError::Unavailable(e.into()))?;
                let ready = match take_lock(&mut conn).await {
                    Ok(()) => make_durable(&mut conn).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = ready {
                    // The server notices the end of the connection in any case; the first error is the one that matters.
                    let _ = conn.close().await;
                    return Err(error);
                }
                Ok(OwnedConn::Pg(conn))
            }
        }
    }
}

/// Lets the connection's commits wait for the disk, whatever the server, the database or the user is set to. A setting
/// that also waits for replicas stays. Warns of a server that does not flush to its disk.
async fn make_durable(conn: &mut PgConnection) -> Result<(), StoreError> {
    let (was, fsync): (String, String) =
        sqlx::query_as("SELECT current_setting('synchronous_commit'), current_setting('fsync')")
            .fetch_one(&mut *conn)
            .await?;
    if was == "off" {
        sqlx::query("SELECT set_config('synchronous_commit', 'on', false)")
            .execute(&mut *conn)
            .await?;
    }
    if fsync == "off" {
        tracing::warn!(
            "the PostgreSQL server runs with fsync = off: what this master acknowledges can be lost with the machine"
        );
    }
    Ok(())
}

/// Whether the connection still has the lock that keeps other masters out.
pub(crate) async fn has_lock(conn: &mut PgConnection) -> Result<bool, DriverError> {
    // A lock of one 64-bit key is shown as its halves.
    let (held,): (bool,) = sqlx::query_as(
        "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() \
         AND objsubid = 1 AND (CAST(classid AS BIGINT) << 32) | CAST(objid AS BIGINT) = $1)",
    )
    .bind(ADVISORY_LOCK)
    .fetch_one(conn)
    .await?;
    Ok(held)
}

/// Takes the lock, or waits [`LOCK_PATIENCE`] for it.
async fn take_lock(conn: &mut PgConnection) -> Result<(), StoreError> {
    let (held,): (bool,) = sqlx::query_as("SELECT pg_try_advisory_lock($1)")
        .bind(ADVISORY_LOCK)
        .fetch_one(&mut *conn)
        .await?;
    if held {
        return Ok(());
    }
    let seconds = LOCK_PATIENCE.as_secs();
    tracing::warn!(
        "another master holds the database, or has not let go of it yet: waiting for {seconds} s at most"
    );
    set_lock_timeout(conn, LOCK_PATIENCE).await?;
    let taken = sqlx::query("SELECT pg_advisory_lock($1)")
        .bind(ADVISORY_LOCK)
        .execute(&mut *conn)
        .await;
    if let Err(error) = taken {
        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        return Err(match code.as_deref() {
            Some(LOCK_NOT_AVAILABLE) => StoreError::DatabaseInUse,
            _ => error.into(),
        });
    }
    set_lock_timeout(conn, Duration::ZERO).await
}

/// How long the connection's statements wait for a lock; zero is for ever.
async fn set_lock_timeout(conn: &mut PgConnection, timeout: Duration) -> Result<(), StoreError> {
    sqlx::query("SELECT set_config('lock_timeout', $1, false)")
        .bind(timeout.as_millis().to_string())
        .execute(conn)
        .await?;
    Ok(())
}

enum Pool {
    Lite(LitePool),
    Pg(PgPool),
}

struct Inner {
    pool: Pool,
    writer: Writer,
    access: SharedAccess,
}

/// Makes the database file if it does not exist, for this user alone: it holds hashes of passwords and tokens. SQLite gives
/// its companion files the same permissions.
///
/// The file is closed before SQLite opens it, and nothing else may open it afterwards: when a process closes any of its
/// handles of a file, it loses all its POSIX locks of that file, those that SQLite relies on among them. Another process
/// that looked at the database would then take itself for its only user and remove the write-ahead log on leaving, with
/// everything that was acknowledged since (sqlite.org/howtocorrupt.html, section 2.2).
fn make_private(path: &Path) -> std::io::Result<()> {
    let file = private_file_options().open(path)?;
    // One that was copied here may be open to others.
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// How files that only the master may read are opened, made when absent.
fn private_file_options() -> std::fs::OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    options
}

/// The open database. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

impl Store {
    /// Opens the database, keeps every other master out, and brings the schema up to date.
    pub async fn open(url: &StoreUrl) -> Result<Self, StoreError> {
        match url {
            StoreUrl::Sqlite(path) => Self::open_sqlite(path).await,
            StoreUrl::Postgres(url) => Self::open_postgres(url).await,
        }
    }

    async fn open_sqlite(path: &Path) -> Result<Self, StoreError> {
        let directory = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let directory_error = |source| StoreError::Directory {
            path: directory.to_owned(),
            source,
        };
        std::fs::create_dir_all(directory).map_err(directory_error)?;
        let lock = private_file_options()
            .open(path.with_extension("lock"))
            .map_err(directory_error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(StoreError::InUse(directory.to_owned()));
            }
            Err(std::fs::TryLockError::Error(source)) => return Err(directory_error(source)),
        }
        make_private(path).map_err(directory_error)?;
        let options = LiteOptions::new(path);
        let mut first = OwnedConn::Lite(options.open_writer().map_err(StoreError::Unavailable)?);
        migrate::run(&mut first.conn()).await?;
        let pool = LitePool::new(options.clone());
        let access = SharedAccess::new();
        let writer = Writer::start(Connector::Lite(options), first, Some(lock), None, &access)?;
        Ok(Self {
            inner: Arc::new(Inner {
                pool: Pool::Lite(pool),
                writer,
                access,
            }),
        })
    }

    async fn open_postgres(url: &str) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(url)
            .map_err(|_| StoreError::Url("postgres".into()))?
            .application_name("det master")
            .disable_statement_logging();
        let connector = Connector::Pg(Box::new(options.clone()));
        let mut first = connect_patiently(&connector).await?;
        migrate::run(&mut first.conn()).await?;
        let term = access::begin_term(&mut first.conn()).await?;
        let pool = PgPoolOptions::new()
            .min_connections(0)
            .max_connections(8)
            .acquire_timeout(Duration::from_secs(5))
            .connect_lazy_with(options);
        let access = SharedAccess::new();
        let writer = Writer::start(connector, first, None, Some(term), &access)?;
        Ok(Self {
            inner: Arc::new(Inner {
                pool: Pool::Pg(pool),
                writer,
                access,
            }),
        })
    }

    /// `sqlite` or `postgres`, for `/health` and log lines.
    pub fn kind(&self) -> &'static str {
        match self.inner.pool {
            Pool::Lite(_) => SQLITE,
            Pool::Pg(_) => POSTGRES,
        }
    }

    /// Whether the database may be read and written, now and at each change of that.
    pub fn access(&self) -> watch::Receiver<DatabaseAccess> {
        self.inner.access.subscribe()
    }

    /// Sets the access as if the database had been lost, or were held again: for tests.
    #[doc(hidden)]
    pub fn pretend(&self, access: &DatabaseAccess) {
        match access {
            DatabaseAccess::Held => self.inner.access.held(),
            DatabaseAccess::Lost(reason) => self.inner.access.lost(reason),
            DatabaseAccess::Ended(reason) => {
                self.inner.access.end(reason);
            }
        }
    }

    /// An error unless the database may be read and written.
    pub fn check(&self) -> Result<(), StoreError> {
        self.inner.access.check()
    }

    /// A connection for reading. Waits at most five seconds for one. An error while there is no access.
    pub async fn read(&self) -> Result<ReadConn, StoreError> {
        self.inner.access.check()?;
        match &self.inner.pool {
            Pool::Lite(pool) => pool.acquire().await.map(ReadConn::Lite),
            Pool::Pg(pool) => pool
                .acquire()
                .await
                .map(ReadConn::Pg)
                .map_err(|e| StoreError::Unavailable(e.into())),
        }
    }

    pub(crate) async fn write_permit(
        &self,
    ) -> Result<tokio::sync::OwnedSemaphorePermit, StoreError> {
        self.inner.writer.permit().await
    }

    /// Lets `observer` see what each commit changes, right after it and before a caller has an answer; must not block.
    /// A store has one at most; `false` when it has one already.
    pub fn observe(&self, observer: impl Fn(Changes) + Send + Sync + 'static) -> bool {
        self.inner.writer.observe(Box::new(observer))
    }

    /// The error of an access that has ended; `None` otherwise.
    pub(crate) fn ended(&self) -> Option<StoreError> {
        self.inner.access.ended()
    }

    pub(crate) fn submit(&self, job: Box<dyn Job>) -> Result<(), StoreError> {
        self.inner.writer.submit(job)
    }

    /// Waits until everything submitted so far is committed or refused, then lets go of the database: another master
    /// may open it from then on. Later reads and writes answer [`StoreError::Closed`] or
    /// [`StoreError::Unavailable`].
    pub async fn close(&self) {
        match &self.inner.pool {
            Pool::Lite(pool) => pool.close(),
            Pool::Pg(pool) => pool.close().await,
        }
        self.inner.writer.close().await;
    }
}
