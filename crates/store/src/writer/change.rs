//! Making changes one after another, each under a savepoint.

use super::statement::{Statement, statement};
use super::{Job, WriteTx};
use crate::StoreError;
use crate::db::OwnedConn;

/// A change that was made, while its savepoint is still open: what comes next closes it.
///
/// On PostgreSQL each message to the database is a journey. So nothing is sent by itself to close a change: it is closed
/// together with what the next one, or the commit, begins with.
pub(super) struct OpenChange {
    pub(super) job: Box<dyn Job>,
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
pub(super) async fn make_all(
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
pub(super) async fn close_or_undo(
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
