//! The one writer: changes run one after another and are committed in groups.
//!
//! While one commit is under way new changes queue up; the next transaction takes them all. A lone change therefore never
//! waits, and under load the cost of making things durable is shared. Each change runs under a savepoint: a refused one
//! leaves nothing behind and does not disturb its neighbours.

mod base;

use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use det_failpoints::failpoint;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::access::SharedAccess;
use crate::db::{Connector, DriverError, Link, OwnedConn};
use crate::disk_space::{ChangeError, DiskSpace, Recovery};
use crate::unit::{Changes, Unit};
use crate::{Conn, Store, StoreError, events};
use base::{Base, look_after};

/// Most changes in one transaction. Bounds how long the first one waits for its answer.
const GROUP: usize = 256;
/// Whether the database is still held is looked at this often while nothing is written.
const LOOK: Duration = Duration::from_secs(2);
/// Changes that may wait; beyond it callers wait to hand theirs in.
const WAITING: usize = 4096;

/// A change being made: its connection, and what is to happen once it is committed.
pub struct WriteTx {
    conn: OwnedConn,
    unit: Unit,
    after_commit: Vec<(EffectCondition, Box<dyn FnOnce() + Send>)>,
    on_rollback: Vec<Box<dyn FnOnce() + Send>>,
    /// Lets the commit fail as on a disk that cannot sync.
    fails_to_sync: bool,
    /// Changes of this group that were refused by themselves because the disk is full.
    refused_full: u64,
}

/// When an effect runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EffectCondition {
    /// Once the change is stored.
    Stored,
    /// Once it is stored, or may be.
    Perhaps,
}

impl WriteTx {
    /// The connection for the query functions.
    pub fn conn(&mut self) -> Conn<'_> {
        Conn {
            link: self.conn.link(),
            unit: Some(&mut self.unit),
        }
    }

    pub(crate) fn unit_mut(&mut self) -> &mut Unit {
        &mut self.unit
    }

    /// Lets every row be read from the database again, what waits having been written: for tests that compare.
    pub async fn read_rows_anew(&mut self) -> Result<(), StoreError> {
        let mut conn = self.conn();
        conn.flush().await?;
        conn.writing()?.evict_rows();
        Ok(())
    }

    /// Runs statements unchanged: for tests that make a database refuse what it is asked.
    #[doc(hidden)]
    pub async fn run_script(&mut self, sql: &str) -> Result<(), StoreError> {
        Ok(self.conn().execute_script(sql).await?)
    }

    /// Lets this commit fail as on a disk that cannot sync: for tests.
    #[doc(hidden)]
    pub fn fail_to_sync(&mut self) {
        self.fails_to_sync = true;
    }

    /// Runs `effect` right after the commit, before the caller has its answer; must not block. Never runs if the change is
    /// refused or the commit fails for certain.
    ///
    /// When the connection broke in the commit, whether it happened is unknown, and the effect runs as well: work that is
    /// woken for nothing finds nothing, but work that is not woken for something waits for ever. What must not run then is for
    /// [`WriteTx::once_stored`].
    pub fn after_commit(&mut self, effect: impl FnOnce() + Send + 'static) {
        self.after_commit
            .push((EffectCondition::Perhaps, Box::new(effect)));
    }

    /// Runs `effect` right after the commit if it is certain that it happened: for memory that must not be ahead of the
    /// rows; must not block.
    pub fn once_stored(&mut self, effect: impl FnOnce() + Send + 'static) {
        self.after_commit
            .push((EffectCondition::Stored, Box::new(effect)));
    }

    /// Runs `repair` if this change, or the commit that was to hold it, fails: for caches changed on the way.
    pub fn on_rollback(&mut self, repair: impl FnOnce() + Send + 'static) {
        self.on_rollback.push(Box::new(repair));
    }
}

/// A change with its answer's channel, its types erased.
pub(crate) trait Job: Send {
    /// Makes the change; `true` when it is to be committed.
    fn run<'t>(&'t mut self, tx: &'t mut WriteTx) -> BoxFuture<'t, bool>;
    /// Whether it was refused because the disk is full.
    fn met_full(&self) -> bool;
    /// Gives the caller its answer. `failed` = the commit failed and the change did not happen.
    fn answer(self: Box<Self>, failed: Option<StoreError>);
}

struct TypedJob<F, T, E> {
    change: Option<F>,
    outcome: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
    /// Bounds how many changes wait at once; given back with the answer.
    _permit: OwnedSemaphorePermit,
}

impl<F, T, E> Job for TypedJob<F, T, E>
where
    F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, Result<T, E>> + Send,
    T: Send,
    E: ChangeError + Send,
{
    fn run<'t>(&'t mut self, tx: &'t mut WriteTx) -> BoxFuture<'t, bool> {
        Box::pin(async move {
            let Some(change) = self.change.take() else {
                return false;
            };
            // A defect in one use case must not end all writing. Whatever the change left half done goes with its
            // savepoint.
            let outcome = AssertUnwindSafe(async { change(tx).await })
                .catch_unwind()
                .await
                .unwrap_or_else(|_| Err(StoreError::Panicked.into()));
            let commit = outcome.is_ok();
            self.outcome = Some(outcome);
            commit
        })
    }

    fn met_full(&self) -> bool {
        matches!(&self.outcome, Some(Err(error)) if error.is_full())
    }

    fn answer(self: Box<Self>, failed: Option<StoreError>) {
        let outcome = match (failed, self.outcome) {
            (None, Some(outcome)) | (Some(_), Some(outcome @ Err(_))) => outcome,
            (Some(error), _) => Err(error.into()),
            (None, None) => Err(StoreError::Closed.into()),
        };
        // A caller that went away does not undo what it asked for.
        let _ = self.reply.send(outcome);
    }
}

impl Store {
    /// Makes a change: runs `change` alone, commits, and only then answers.
    ///
    /// An `Err` from `change` undoes everything it wrote. The change goes on to its end even if the caller stops
    /// waiting.
    pub async fn write<T, E, F>(&self, change: F) -> Result<T, E>
    where
        F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: ChangeError + Send + 'static,
    {
        if let Some(error) = self.ended() {
            return Err(error.into());
        }
        let (reply, answer) = oneshot::channel();
        let permit = self.write_permit().await?;
        self.submit(Box::new(TypedJob {
            change: Some(change),
            outcome: None,
            reply,
            _permit: permit,
        }))?;
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }
}

/// Sees what each commit changes.
type Observer = Box<dyn Fn(Changes) + Send + Sync>;

enum Message {
    Job(Box<dyn Job>),
    Close(oneshot::Sender<()>),
}

/// The handle to the writer's task.
pub(crate) struct Writer {
    queue: mpsc::UnboundedSender<Message>,
    observer: Arc<OnceLock<Observer>>,
    permits: Arc<Semaphore>,
}

impl Writer {
    pub(crate) async fn permit(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        self.permits
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| StoreError::Closed)
    }

    /// Starts the writer. `lock` keeps other masters out for as long as it may still write; `term` is that of this master
    /// in a database that can be lost to another one.
    pub(crate) fn start(
        connector: Connector,
        conn: OwnedConn,
        lock: Option<File>,
        term: Option<i64>,
        access: &SharedAccess,
    ) -> Result<Self, StoreError> {
        let (queue, inbox) = mpsc::unbounded_channel();
        let observer = Arc::new(OnceLock::new());
        let on_a_thread = matches!(conn, OwnedConn::Lite(_));
        let base = Base {
            connector,
            observer: observer.clone(),
            access: access.clone(),
            term,
        };
        let work = supervised(access.clone(), run(base, conn, lock, inbox));
        if on_a_thread {
            // Its statements run where it runs, and a commit waits for the disk: on a thread of its own that holds up
            // no other work.
            let runtime = tokio::runtime::Handle::current();
            std::thread::Builder::new()
                .name("writer".into())
                .spawn(move || runtime.block_on(work))
                .map_err(|e| StoreError::Unavailable(DriverError::Thread(e)))?;
        } else {
            // Waits for the network, as other tasks of the runtime do.
            tokio::spawn(work);
        }
        Ok(Self {
            queue,
            observer,
            permits: Arc::new(Semaphore::new(WAITING)),
        })
    }

    pub(crate) fn observe(&self, observer: Observer) -> bool {
        self.observer.set(observer).is_ok()
    }

    pub(crate) fn submit(&self, job: Box<dyn Job>) -> Result<(), StoreError> {
        self.queue
            .send(Message::Job(job))
            .map_err(|_| StoreError::Closed)
    }

    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(Message::Close(done)).is_ok() {
            let _ = closed.await;
        }
    }
}

/// The writer's work; should it end in a panic, so does all use of the database.
async fn supervised(access: SharedAccess, work: impl Future<Output = ()>) {
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        access.end("the writer ended unexpectedly, which is a defect of this program");
    }
}

async fn run(
    base: Base,
    conn: OwnedConn,
    lock: Option<File>,
    mut inbox: mpsc::UnboundedReceiver<Message>,
) {
    let mut conn = Some(conn);
    let mut unit = Unit::default();
    let mut space = DiskSpace::default();
    let mut closing = None;
    let mut gathered = Vec::with_capacity(GROUP);
    loop {
        // A lost connection shows only when it is used.
        let received = tokio::select! {
            biased;
            received = inbox.recv_many(&mut gathered, GROUP) => received,
            () = tokio::time::sleep(LOOK), if base.term.is_some() && base.access.ended().is_none() => {
                conn = look_after(&base, conn).await;
                continue;
            }
        };
        if received == 0 {
            break;
        }
        let mut jobs = Vec::with_capacity(gathered.len());
        for message in gathered.drain(..) {
            match message {
                Message::Job(job) if closing.is_none() => jobs.push(job),
                Message::Job(job) => job.answer(Some(StoreError::Closed)),
                Message::Close(done) => closing = Some(done),
            }
        }
        if !jobs.is_empty() {
            let memory = (&mut unit, &mut space);
            conn = commit_group(&base, conn, memory, jobs).await;
        }
        if closing.is_some() {
            break;
        }
    }
    inbox.close();
    if let Some(conn) = conn {
        conn.close().await;
    }
    drop(lock);
    if let Some(done) = closing {
        // The caller may have stopped waiting.
        let _ = done.send(());
    }
}

/// A connection with a transaction begun on it.
///
/// A connection that broke while it was unused is noticed here and replaced, so that a restart of the database
/// between two changes disturbs neither.
async fn begin(base: &Base, conn: Option<OwnedConn>) -> Result<OwnedConn, StoreError> {
    if let Some(error) = base.access.ended() {
        return Err(error);
    }
    if let Some(mut conn) = conn {
        match statement(&mut conn, Statement::Begin).await {
            Ok(()) => return Ok(conn),
            Err(error) => base.lost(&format!("the connection broke: {error}")),
        }
    }
    let mut conn = base.connect().await?;
    statement(&mut conn, Statement::Begin)
        .await
        .map_err(|error| match StoreError::from(error) {
            StoreError::Query(error) => StoreError::Unavailable(error),
            other => other,
        })?;
    Ok(conn)
}

/// A change that was made, while its savepoint is still open: what comes next closes it.
///
/// On PostgreSQL each message to the database is a journey. So nothing is sent by itself to close a change: it is closed
/// together with what the next one, or the commit, begins with.
struct OpenChange {
    job: Box<dyn Job>,
    before: ChangeStart,
}

/// How many effects and repairs there were before a change.
#[derive(Clone, Copy)]
struct ChangeStart {
    effects: usize,
    repairs: usize,
}

/// How closing a change failed.
enum CloseError {
    /// PostgreSQL: a statement of this change failed, and it went on regardless. It alone pays for that.
    Refused(StoreError),
    /// The transaction itself is lost.
    Lost(StoreError),
}

/// Runs one change under the savepoint that is open. `None` = it was refused, its caller has the answer, and it left nothing
/// behind; `Err` = the transaction itself is lost.
async fn make(
    tx: &mut WriteTx,
    mut job: Box<dyn Job>,
) -> Result<Option<OpenChange>, (Box<dyn Job>, StoreError)> {
    let before = ChangeStart {
        effects: tx.after_commit.len(),
        repairs: tx.on_rollback.len(),
    };
    tx.unit.begin();
    if job.run(tx).await {
        return Ok(Some(OpenChange { job, before }));
    }
    match undo(tx, before).await {
        Ok(()) => {
            tx.refused_full += u64::from(job.met_full());
            job.answer(None);
            Ok(None)
        }
        Err(error) => Err((job, error)),
    }
}

/// Undoes the change that was made last. Its savepoint stays open, for the next one.
async fn undo(tx: &mut WriteTx, before: ChangeStart) -> Result<(), StoreError> {
    if let OwnedConn::Lite(conn) = &tx.conn
        && let Some(error) = conn.undone_by()
    {
        return Err(error);
    }
    statement(&mut tx.conn, Statement::RollbackTo).await?;
    tx.unit.undo();
    tx.after_commit.truncate(before.effects);
    for repair in tx.on_rollback.drain(before.repairs..) {
        repair();
    }
    Ok(())
}

/// Closes the change that was made last with a statement that releases its savepoint.
async fn close(tx: &mut WriteTx, with: Statement) -> Result<(), CloseError> {
    let Err(error) = statement(&mut tx.conn, with).await else {
        return Ok(());
    };
    let of_the_change = match &tx.conn {
        OwnedConn::Lite(_) => !error.is_connection(),
        OwnedConn::Pg(_) => error.is_aborted_transaction(),
    };
    Err(if of_the_change {
        CloseError::Refused(error.into())
    } else if error.is_connection() {
        CloseError::Lost(StoreError::Unavailable(error))
    } else {
        CloseError::Lost(error.into())
    })
}

/// Makes changes one after another. Gives those that are to be committed, the last one open, and what lost the
/// transaction, if something did.
async fn make_all(
    tx: &mut WriteTx,
    jobs: Vec<Box<dyn Job>>,
) -> (Vec<Box<dyn Job>>, Option<OpenChange>, Option<StoreError>) {
    let mut kept = Vec::with_capacity(jobs.len());
    let (mut open, mut lost): (Option<OpenChange>, Option<StoreError>) = (None, None);
    for job in jobs {
        if let Some(last) = open.take() {
            match close_or_undo(tx, last, Statement::Next).await {
                Ok(closed) => kept.extend(closed),
                Err((job, error)) => {
                    kept.push(job);
                    lost = Some(error);
                }
            }
        }
        if lost.is_some() {
            kept.push(job);
            continue;
        }
        match make(tx, job).await {
            Ok(made) => open = made,
            Err((job, error)) => {
                kept.push(job);
                lost = Some(error);
            }
        }
    }
    (kept, open, lost)
}

/// Closes a change. `None` = it was undone instead, and its caller has the answer.
async fn close_or_undo(
    tx: &mut WriteTx,
    last: OpenChange,
    with: Statement,
) -> Result<Option<Box<dyn Job>>, (Box<dyn Job>, StoreError)> {
    match close(tx, with).await {
        Ok(()) => Ok(Some(last.job)),
        Err(CloseError::Lost(error)) => Err((last.job, error)),
        Err(CloseError::Refused(error)) => match undo(tx, last.before).await {
            Ok(()) => {
                last.job.answer(Some(error));
                Ok(None)
            }
            Err(error) => Err((last.job, error)),
        },
    }
}

/// Commits one group and gives the connection back if it still works.
#[expect(
    clippy::too_many_lines,
    reason = "the steps of a commit in their order"
)]
async fn commit_group(
    base: &Base,
    conn: Option<OwnedConn>,
    (unit, space): (&mut Unit, &mut DiskSpace),
    jobs: Vec<Box<dyn Job>>,
) -> Option<OwnedConn> {
    failpoint!("store::writer::before_begin");
    let conn = match begin(base, conn).await {
        Ok(conn) => conn,
        Err(error) => {
            tracing::warn!(%error, "the database cannot be reached; changes are refused until it is back");
            for job in jobs {
                job.answer(Some(same(&error)));
            }
            return None;
        }
    };
    let mut tx = WriteTx {
        conn,
        unit: std::mem::take(unit),
        after_commit: Vec::new(),
        on_rollback: Vec::new(),
        fails_to_sync: false,
        refused_full: 0,
    };
    let (mut kept, open, lost) = make_all(&mut tx, jobs).await;
    space.refused(tx.refused_full, crate::now());
    let recovery = space.recovery(crate::now());
    failpoint!("store::writer::before_commit");
    let outcome = match (lost, open) {
        (Some(error), open) => {
            kept.extend(open.map(|last| last.job));
            Err(error)
        }
        (None, Some(last)) => commit(&mut tx, last, &mut kept, recovery.as_ref()).await,
        (None, None) => flush_and_commit(&mut tx, recovery.as_ref()).await,
    };
    match outcome {
        Ok(()) => {
            failpoint!("store::writer::after_commit");
            if let OwnedConn::Lite(conn) = &mut tx.conn
                && let Err(error) = conn.after_commit()
            {
                // This commit is durable in the log; the ones after it cannot be relied on.
                base.judge(StoreError::Query(error));
            }
            if let Some(recovery) = &recovery {
                space.recorded(recovery);
            }
            if let Some(changes) = tx.unit.committed() {
                base.notify(changes);
            }
            *unit = tx.unit;
            for (_, effect) in tx.after_commit {
                base.run_effect(effect);
            }
            failpoint!("store::writer::after_effects");
            for job in kept {
                job.answer(None);
            }
            Some(tx.conn)
        }
        Err(error) => {
            // The unit goes with the transaction: what it holds was never committed.
            for repair in tx.on_rollback {
                base.run_effect(repair);
            }
            let error = base.judge(error);
            tracing::error!(%error, "a group of changes could not be committed");
            // Whether anything of it is stored is not known when the connection broke: the same answer either way.
            let (lost, error) = match error {
                StoreError::Query(error) if error.is_connection() => {
                    (true, StoreError::Unavailable(error))
                }
                other => (matches!(other, StoreError::Unavailable(_)), other),
            };
            if matches!(error, StoreError::Full) {
                space.refused(kept.len() as u64, crate::now());
            }
            for job in kept {
                job.answer(Some(same(&error)));
            }
            let mut conn = tx.conn;
            if base.access.ended().is_some() {
                conn.close().await;
                return None;
            }
            if lost {
                drop(conn);
                base.lost("the connection broke in a commit");
                return connect_and_wake(base, tx.after_commit).await;
            }
            // SQLite may have rolled back by itself. A connection whose transaction cannot even be rolled back is replaced.
            if matches!(&conn, OwnedConn::Lite(conn) if conn.undone_by().is_some()) {
                return Some(conn);
            }
            statement(&mut conn, Statement::Rollback)
                .await
                .is_ok()
                .then_some(conn)
        }
    }
}

/// Closes the last change, writes what gathered in memory, and commits.
async fn commit(
    tx: &mut WriteTx,
    last: OpenChange,
    kept: &mut Vec<Box<dyn Job>>,
    recovery: Option<&Recovery>,
) -> Result<(), StoreError> {
    let at_once = matches!(tx.conn, OwnedConn::Pg(_))
        && !tx.unit.has_unwritten()
        && recovery.is_none()
        && !tx.fails_to_sync;
    let with = if at_once {
        Statement::ReleaseAndCommit
    } else {
        Statement::Release
    };
    match close_or_undo(tx, last, with).await {
        Ok(Some(job)) => {
            kept.push(job);
            if at_once {
                Ok(())
            } else {
                flush_and_commit(tx, recovery).await
            }
        }
        Ok(None) => flush_and_commit(tx, recovery).await,
        Err((job, error)) => {
            kept.push(job);
            Err(error)
        }
    }
}

/// A `recovery` goes into the same commit, when no change can be undone any more.
async fn flush_and_commit(tx: &mut WriteTx, recovery: Option<&Recovery>) -> Result<(), StoreError> {
    if let Some(recovery) = recovery {
        let database = tx.conn.kind();
        events::append(tx, recovery.event(database)).await?;
        tx.unit.note_own_event();
    }
    tx.conn().flush().await?;
    if tx.fails_to_sync {
        return Err(DriverError::failed_sync().into());
    }
    Ok(statement(&mut tx.conn, Statement::Commit).await?)
}

/// After a commit of which it is unknown whether it happened: connects again, so that it has happened or never will (the
/// master's lock is free only then), and runs the effects that wake others.
async fn connect_and_wake(
    base: &Base,
    effects: Vec<(EffectCondition, Box<dyn FnOnce() + Send>)>,
) -> Option<OwnedConn> {
    let conn = base.connect().await;
    if let Err(error) = &conn {
        // Work that is woken finds that too, and tries again until the database is back.
        tracing::warn!(%error, "the database cannot be reached");
    }
    base.notify(Changes {
        everything: true,
        ..Changes::default()
    });
    for (when, effect) in effects {
        if when == EffectCondition::Perhaps {
            base.run_effect(effect);
        }
    }
    conn.ok()
}

/// The same failure for each caller; a driver's errors cannot be cloned, so their text goes along.
fn same(error: &StoreError) -> StoreError {
    let text = |error: &DriverError| DriverError::Group(error.to_string());
    match error {
        StoreError::DatabaseInUse => StoreError::DatabaseInUse,
        StoreError::Closed => StoreError::Closed,
        StoreError::Lost(reason) => StoreError::Lost(reason.clone()),
        StoreError::Ended(reason) => StoreError::Ended(reason.clone()),
        StoreError::Panicked => StoreError::Panicked,
        StoreError::Full => StoreError::Full,
        StoreError::Busy => StoreError::Busy,
        StoreError::Query(inner) => StoreError::Query(text(inner)),
        StoreError::Unavailable(inner) => StoreError::Unavailable(text(inner)),
        other => StoreError::Unavailable(DriverError::Group(other.to_string())),
    }
}

/// Tries for about two seconds: a fast restart of the database, or of the master, is then a wait and not an error.
pub(crate) async fn connect_patiently(connector: &Connector) -> Result<OwnedConn, StoreError> {
    let mut pause = Duration::from_millis(50);
    loop {
        match connector.connect().await {
            Ok(conn) => return Ok(conn),
            // That has been waited for already.
            Err(StoreError::DatabaseInUse) => return Err(StoreError::DatabaseInUse),
            Err(error) if pause > Duration::from_secs(1) => return Err(error),
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
}

#[derive(Clone, Copy)]
enum Statement {
    /// With a savepoint for the first change.
    Begin,
    Commit,
    Rollback,
    /// Closes a change and opens the savepoint of the next one.
    Next,
    Release,
    ReleaseAndCommit,
    RollbackTo,
}

impl Statement {
    fn texts(self) -> &'static [&'static str] {
        match self {
            Self::Begin => &["BEGIN IMMEDIATE", "SAVEPOINT change"],
            Self::Commit => &["COMMIT"],
            Self::Rollback => &["ROLLBACK"],
            Self::Next => &["RELEASE SAVEPOINT change", "SAVEPOINT change"],
            Self::Release => &["RELEASE SAVEPOINT change"],
            Self::ReleaseAndCommit => &["RELEASE SAVEPOINT change", "COMMIT"],
            // Rolling back keeps the savepoint.
            Self::RollbackTo => &["ROLLBACK TO SAVEPOINT change"],
        }
    }

    /// The same in one message.
    fn text(self) -> &'static str {
        match self {
            Self::Begin => "BEGIN; SAVEPOINT change",
            Self::Next => "RELEASE SAVEPOINT change; SAVEPOINT change",
            Self::ReleaseAndCommit => "RELEASE SAVEPOINT change; COMMIT",
            Self::Commit | Self::Rollback | Self::Release | Self::RollbackTo => self.texts()[0],
        }
    }
}

async fn statement(conn: &mut OwnedConn, which: Statement) -> Result<(), DriverError> {
    match conn.link() {
        Link::Lite(conn) => {
            for text in which.texts() {
                conn.execute(text, &[])?;
            }
            Ok(())
        }
        Link::Pg(conn) => {
            sqlx::raw_sql(which.text()).execute(conn).await?;
            Ok(())
        }
    }
}
