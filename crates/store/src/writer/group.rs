//! Committing changes in groups.

use det_failpoints::failpoint;

use super::base::Base;
use super::change::{OpenChange, close_or_undo, make_all};
use super::statement::{Statement, statement};
use super::{EffectCondition, Job, WriteTx};
use crate::db::{DriverError, OwnedConn};
use crate::disk_space::{DiskSpace, Recovery};
use crate::unit::{Changes, Unit};
use crate::{StoreError, events};

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

/// Commits one group and gives the connection back if it still works.
pub(super) async fn commit_group(
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
            answer_all(jobs, &error);
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
            let (conn, now) = stored(base, tx, kept, (recovery.as_ref(), space));
            *unit = now;
            Some(conn)
        }
        Err(error) => not_stored(base, tx, kept, (error, space)).await,
    }
}

/// The group is committed: what waits for it is run and answered. Gives the connection and what is known of the rows back.
fn stored(
    base: &Base,
    mut tx: WriteTx,
    kept: Vec<Box<dyn Job>>,
    (recovery, space): (Option<&Recovery>, &mut DiskSpace),
) -> (OwnedConn, Unit) {
    failpoint!("store::writer::after_commit");
    if let OwnedConn::Lite(conn) = &mut tx.conn
        && let Err(error) = conn.after_commit()
    {
        // This commit is durable in the log; the ones after it cannot be relied on.
        base.judge(StoreError::Query(error));
    }
    if let Some(recovery) = recovery {
        space.recorded(recovery);
    }
    if let Some(changes) = tx.unit.committed() {
        base.notify(changes);
    }
    for (_, effect) in tx.after_commit {
        base.run_effect(effect);
    }
    failpoint!("store::writer::after_effects");
    for job in kept {
        job.answer(None);
    }
    (tx.conn, tx.unit)
}

/// The group could not be committed: its caches are repaired, and its callers have the reason. Gives the connection back if
/// it still works. The unit goes with the transaction: what it holds was never committed.
async fn not_stored(
    base: &Base,
    tx: WriteTx,
    kept: Vec<Box<dyn Job>>,
    (error, space): (StoreError, &mut DiskSpace),
) -> Option<OwnedConn> {
    for repair in tx.on_rollback {
        base.run_effect(repair);
    }
    let error = base.judge(error);
    tracing::error!(%error, "a group of changes could not be committed");
    // Whether anything of it is stored is not known when the connection broke: the same answer either way.
    let (lost, error) = match error {
        StoreError::Query(error) if error.is_connection() => (true, StoreError::Unavailable(error)),
        other => (matches!(other, StoreError::Unavailable(_)), other),
    };
    if matches!(error, StoreError::Full) {
        space.refused(kept.len() as u64, crate::now());
    }
    answer_all(kept, &error);
    if base.access.ended().is_some() {
        tx.conn.close().await;
        return None;
    }
    if lost {
        drop(tx.conn);
        base.lost("the connection broke in a commit");
        return connect_and_wake(base, tx.after_commit).await;
    }
    rolled_back(tx.conn).await
}

/// A connection whose transaction was not committed, without the transaction; `None` = it cannot even be rolled back, and
/// the connection is to be replaced. SQLite may have rolled back by itself.
async fn rolled_back(mut conn: OwnedConn) -> Option<OwnedConn> {
    if matches!(&conn, OwnedConn::Lite(conn) if conn.undone_by().is_some()) {
        return Some(conn);
    }
    let done = statement(&mut conn, Statement::Rollback).await;
    done.is_ok().then_some(conn)
}

/// Gives every caller the reason why nothing was stored.
fn answer_all(jobs: Vec<Box<dyn Job>>, error: &StoreError) {
    for job in jobs {
        job.answer(Some(same(error)));
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
