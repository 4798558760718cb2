//! The statements that begin, close and end what the writer does.

use crate::db::{DriverError, Link, OwnedConn};

/// A statement of the writer.
#[derive(Clone, Copy)]
pub(super) enum Statement {
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

/// Runs one, as a message of its own.
pub(super) async fn statement(conn: &mut OwnedConn, which: Statement) -> Result<(), DriverError> {
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
