//! What the writer holds: the database, which it may lose, and those who see its changes.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Observer, connect_patiently};
use crate::StoreError;
use crate::access::{self, SharedAccess};
use crate::db::{Connector, OwnedConn, has_lock};

use crate::unit::Changes;

/// A database that does not answer a question within this time is lost.
const ANSWER: Duration = Duration::from_secs(5);

/// What the writer needs to connect to the database and to report that it has lost it.
pub(super) struct Base {
    pub(super) connector: Connector,
    pub(super) observer: Arc<OnceLock<Observer>>,
    pub(super) access: SharedAccess,
    /// The term of this master; `None` = the database cannot be lost to another one.
    pub(super) term: Option<i64>,
}

/// Finds out whether the database is still held, and takes it again if it is not.
pub(super) async fn look_after(base: &Base, conn: Option<OwnedConn>) -> Option<OwnedConn> {
    if let Some(OwnedConn::Pg(mut conn)) = conn {
        let asked = tokio::time::timeout(ANSWER, has_lock(&mut conn)).await;
        match asked {
            Ok(Ok(true)) => return Some(OwnedConn::Pg(conn)),
            Ok(Ok(false)) => base.lost("the lock that keeps other masters out is gone"),
            Ok(Err(error)) => base.lost(&format!("the connection broke: {error}")),
            Err(_) => base.lost(&format!("it did not answer within {} s", ANSWER.as_secs())),
        }
    }
    match base.connect().await {
        Ok(conn) => Some(conn),
        Err(error) => {
            tracing::warn!(%error, "the database cannot be reached; it is tried again");
            None
        }
    }
}

impl Base {
    /// Stops all reading and writing until the database is held again.
    pub(super) fn lost(&self, reason: &str) {
        tracing::warn!(reason, "the database was lost; connecting again");
        if self.term.is_some() {
            self.access.lost(reason);
        }
    }

    /// Takes the database again. What another master has had in the meantime is not ours any more: what this one has
    /// in memory may not be what is stored.
    pub(super) async fn connect(&self) -> Result<OwnedConn, StoreError> {
        if let Some(error) = self.access.ended() {
            return Err(error);
        }
        let mut conn = match connect_patiently(&self.connector).await {
            Err(StoreError::DatabaseInUse) => {
                return Err(self.access.end("another master has taken the database"));
            }
            connected => connected?,
        };
        if let Some(own) = self.term {
            let found = access::term(&mut conn.conn()).await?;
            if found != own {
                conn.close().await;
                let reason = format!(
                    "while it was lost another master has had the database (term {found}, that of this master was {own})"
                );
                return Err(self.access.end(&reason));
            }
            self.access.held();
        }
        Ok(conn)
    }

    /// What a failure means for all that comes after it.
    pub(super) fn judge(&self, error: StoreError) -> StoreError {
        match &error {
            StoreError::Query(inner) | StoreError::Unavailable(inner) if inner.is_sync_failure() => {
                self.access.end(&format!(
                    "the disk did not confirm a change ({inner}); check it before this master is started again"
                ))
            }
            _ => error,
        }
    }

    /// Shows the observer what has changed. A memory that missed a change is wrong from then on.
    pub(super) fn notify(&self, changes: Changes) {
        let Some(observer) = self.observer.get() else {
            return;
        };
        if std::panic::catch_unwind(AssertUnwindSafe(|| observer(changes))).is_err() {
            self.defect("noting a change that was stored");
        }
    }

    /// Runs what is to happen after a commit, or after a failure.
    pub(super) fn run_effect(&self, effect: Box<dyn FnOnce() + Send>) {
        if std::panic::catch_unwind(AssertUnwindSafe(effect)).is_err() {
            self.defect("acting on a change that was stored");
        }
    }

    fn defect(&self, doing: &str) {
        self.access.end(&format!(
            "{doing} ended in a panic, which is a defect of this program; what was acknowledged is stored"
        ));
    }
}
