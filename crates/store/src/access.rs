//! Whether this process may read and write the database.
//!
//! A master that loses the writer's connection to PostgreSQL loses the lock that keeps other masters out with it.
//! Until it has both again nothing may be read or written, since another master may have changed the rows. Whether one
//! has is known by the term: a number in the database that each master counts up when it takes the lock.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{Conn, StoreError, settings};

/// The setting that counts how often a master has taken the database.
const TERM: &str = "master_term";

/// Whether this process may read and write the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseAccess {
    /// It may: it has the connection and holds the lock.
    Held,
    /// It may not until it has the connection and the lock again; with the reason.
    Lost(Arc<str>),
    /// It may not any more; with the reason. This is final.
    Ended(Arc<str>),
}

impl DatabaseAccess {
    /// The error of reads and writes; `None` = they are allowed.
    pub fn refusal(&self) -> Option<StoreError> {
        match self {
            Self::Held => None,
            Self::Lost(reason) => Some(StoreError::Lost(reason.clone())),
            Self::Ended(reason) => Some(StoreError::Ended(reason.clone())),
        }
    }
}

/// The access of a store: set by its writer, read by all that use the database.
#[derive(Debug, Clone)]
pub(crate) struct SharedAccess {
    sender: Arc<watch::Sender<DatabaseAccess>>,
}

impl SharedAccess {
    pub(crate) fn new() -> Self {
        Self {
            sender: Arc::new(watch::Sender::new(DatabaseAccess::Held)),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<DatabaseAccess> {
        self.sender.subscribe()
    }

    /// An error unless reads and writes are allowed.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.sender.borrow().refusal().map_or(Ok(()), Err)
    }

    /// The error of an access that has ended; `None` otherwise.
    pub(crate) fn ended(&self) -> Option<StoreError> {
        match &*self.sender.borrow() {
            DatabaseAccess::Ended(reason) => Some(StoreError::Ended(reason.clone())),
            DatabaseAccess::Held | DatabaseAccess::Lost(_) => None,
        }
    }

    pub(crate) fn lost(&self, reason: &str) {
        self.set(DatabaseAccess::Lost(reason.into()));
    }

    pub(crate) fn held(&self) {
        self.set(DatabaseAccess::Held);
    }

    /// Ends all use of the database by this process. The first reason counts.
    pub(crate) fn end(&self, reason: &str) -> StoreError {
        self.set(DatabaseAccess::Ended(reason.into()));
        self.ended().unwrap_or(StoreError::Closed)
    }

    fn set(&self, access: DatabaseAccess) {
        self.sender.send_if_modified(|now| {
            let changes = !matches!(now, DatabaseAccess::Ended(_)) && *now != access;
            if changes {
                *now = access;
            }
            changes
        });
    }
}

/// Begins a term: from now on masters that held the database before know that they do not any more.
pub(crate) async fn begin_term(conn: &mut Conn<'_>) -> Result<i64, StoreError> {
    let term = term(conn).await?.saturating_add(1);
    settings::set(conn, TERM, &term.to_string()).await?;
    Ok(term)
}

/// The term that the database is in.
pub(crate) async fn term(conn: &mut Conn<'_>) -> Result<i64, StoreError> {
    let stored = settings::find(conn, TERM).await?;
    stored.map_or(Ok(0), |text| {
        text.parse().map_err(|_| StoreError::Corrupt {
            what: "the setting \"master_term\"".into(),
            message: "it is not a number".into(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_lost_and_found_until_its_use_ends() {
        let access = SharedAccess::new();
        assert!(access.check().is_ok());
        access.lost("the connection broke");
        let error = access.check().unwrap_err();
        assert!(
            error.to_string().contains("the connection broke"),
            "{error}"
        );
        assert!(error.is_transient());
        access.held();
        assert!(access.check().is_ok());
        access.end("another master took it");
        access.held();
        access.lost("again");
        let error = access.check().unwrap_err();
        assert!(
            error.to_string().contains("another master took it"),
            "{error}"
        );
    }
}
