//! The one writer: changes run one after another and are committed in groups.
//!
//! While one commit is under way new changes queue up; the next transaction takes them all. A lone change therefore never
//! waits, and under load the cost of making things durable is shared. Each change runs under a savepoint: a refused one
//! leaves nothing behind and does not disturb its neighbours.

mod base;
mod change;
mod group;
mod statement;

use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::access::SharedAccess;
use crate::db::{Connector, DriverError, OwnedConn};
use crate::disk_space::{ChangeError, DiskSpace};
use crate::unit::{Changes, Unit};
use crate::{Conn, Store, StoreError};
use base::{Base, look_after};
use group::commit_group;

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

/// In which case an effect of a change runs.
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
            // An error = the writer has ended without an answer, and is closed as well.
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
