//! What every service of the master uses.

use std::sync::{Arc, OnceLock};

use det_config::master::MasterConfig;
use det_ids::{AllocationId, LogLevel, LogSource, LogStream, TaskId};
use det_store::events::{self, NewEvent};
use det_store::logs::{self, LogLine};
use det_store::{Store, StoreError, WriteTx};
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::error::AppResult;
use crate::hub::{Hub, Topic};
use crate::in_force::InForce;

/// The database, the configuration, who waits for what, and the end of the master. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The database, for reads and for changes.
    pub store: Store,
    /// Wakes what waits for changes of a topic.
    pub hub: Hub,
    /// The configuration in force.
    pub in_force: Arc<InForce>,
    /// Cancelled when the master is to stop.
    pub shutdown: CancellationToken,
    /// Why the master ends by itself.
    failure: Arc<OnceLock<String>>,
}

impl Context {
    /// The context of a master that begins: nothing is cancelled.
    pub fn new(store: Store, hub: Hub, in_force: InForce) -> Self {
        Self {
            store,
            hub,
            in_force: Arc::new(in_force),
            shutdown: CancellationToken::new(),
            failure: Arc::default(),
        }
    }

    /// The configuration as it is now; keep nothing of it.
    pub fn config(&self) -> Arc<MasterConfig> {
        self.in_force.config()
    }

    /// Ends the master because it cannot do what it is for; the first reason is kept.
    pub(crate) fn fail(&self, reason: impl Into<String>) {
        let reason = reason.into();
        tracing::error!(reason, "the master ends");
        // A second reason follows from the first one.
        let _ = self.failure.set(reason);
        self.shutdown.cancel();
    }

    /// Why the master ends by itself; `None` = it runs, or was asked to stop.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Makes a change in one transaction, as [`Store::write`] does.
    pub(crate) async fn write<T, F>(&self, change: F) -> AppResult<T>
    where
        F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, AppResult<T>> + Send + 'static,
        T: Send + 'static,
    {
        self.store.write(change).await
    }

    /// Records a change of state in the transaction that makes it, and wakes those who read events.
    pub(crate) async fn record(&self, tx: &mut WriteTx, event: NewEvent) -> Result<(), StoreError> {
        events::append(tx, event).await?;
        self.wake(tx, Topic::Events);
        Ok(())
    }

    /// Writes a line of the master's own into a task's log, in the transaction of what it reports.
    pub(crate) fn write_line(
        &self,
        tx: &mut WriteTx,
        task_id: &TaskId,
        allocation_id: Option<&AllocationId>,
        (level, text): (LogLevel, &str),
    ) -> Result<(), StoreError> {
        let line = LogLine {
            at: det_store::now(),
            log: format!("{}\n", text.trim_end()),
            level: Some(level),
            stdtype: Some(LogStream::Stdout.into()),
            source: Some(LogSource::Master.into()),
            allocation_id: allocation_id.cloned(),
            ..LogLine::default()
        };
        logs::append_line(&mut tx.conn(), task_id, line)?;
        self.wake(tx, Topic::TaskLog(task_id.clone()));
        Ok(())
    }

    /// Wakes those who wait for a topic after the commit.
    pub(crate) fn wake(&self, tx: &mut WriteTx, topic: Topic) {
        let hub = self.hub.clone();
        tx.after_commit(move || hub.notify(&topic));
    }
}
