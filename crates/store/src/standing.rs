//! Whether this process may use the database.
//!
//! A master that loses the writer's connection to PostgreSQL loses the lock that keeps other masters out with it.
//! Until it has both again nothing may be read or written, since another master may have changed the rows. Whether one
//! has is known by the term: a number in the database that each master counts up when it takes the lock.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{Conn, StoreError, settings};

/// The setting that counts how often a master has taken the database.
const TERM: &str = "master_term";

/// Whether a store may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is ours.
    Held,
    /// It is lost, and being taken again; the reason.
    Lost(Arc<str>),
    /// It is not to be used by this process any more; the reason.
    Over(Arc<str>),
}

impl Standing {
    /// Why it cannot be used; `None` = it can.
    pub fn refusal(&self) -> Option<StoreError> {
        match self {
            Self::Held => None,
            Self::Lost(reason) => Some(StoreError::Lost(reason.clone())),
            Self::Over(reason) => Some(StoreError::Over(reason.clone())),
        }
    }
}

/// The standing of a store: set by its writer, asked by everybody.
#[derive(Debug, Clone)]
pub(crate) struct Keeper {
    sender: Arc<watch::Sender<Standing>>,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        Self {
            sender: Arc::new(watch::Sender::new(Standing::Held)),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Standing> {
        self.sender.subscribe()
    }

    /// An error unless the database is ours.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.sender.borrow().refusal().map_or(Ok(()), Err)
    }

    /// The error of a database that is not to be used any more; `None` otherwise.
    pub(crate) fn over(&self) -> Option<StoreError> {
        match &*self.sender.borrow() {
            Standing::Over(reason) => Some(StoreError::Over(reason.clone())),
            Standing::Held | Standing::Lost(_) => None,
        }
    }

    pub(crate) fn lost(&self, reason: &str) {
        self.set(Standing::Lost(reason.into()));
    }

    pub(crate) fn held(&self) {
        self.set(Standing::Held);
    }

    /// Ends all use of the database by this process. The first reason counts.
    pub(crate) fn end(&self, reason: &str) -> StoreError {
        self.set(Standing::Over(reason.into()));
        self.over().unwrap_or(StoreError::Closed)
    }

    fn set(&self, standing: Standing) {
        self.sender.send_if_modified(|now| {
            let changes = !matches!(now, Standing::Over(_)) && *now != standing;
            if changes {
                *now = standing;
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
        let keeper = Keeper::new();
        assert!(keeper.check().is_ok());
        keeper.lost("the connection broke");
        let error = keeper.check().unwrap_err();
        assert!(
            error.to_string().contains("the connection broke"),
            "{error}"
        );
        assert!(error.is_transient());
        keeper.held();
        assert!(keeper.check().is_ok());
        keeper.end("another master took it");
        keeper.held();
        keeper.lost("again");
        let error = keeper.check().unwrap_err();
        assert!(
            error.to_string().contains("another master took it"),
            "{error}"
        );
    }
}
