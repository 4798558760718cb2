//! What is due at a moment: preempted work that did not exit in time, agents that stayed away, heartbeats of unmanaged
//! trials, deletions of checkpoints that run too long, expired tokens.
//!
//! Sleeps until the next due moment, or until a change sets an earlier one.

use std::time::Duration;

use det_ids::Micros;
use det_lifecycle::unmanaged::UnmanagedEvent;
use det_orchestrator::{Due, Event};
use det_store::{allocations, trials, users};

use crate::app::Master;
use crate::app::orchestration::Cause;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;

/// Expired sessions and tokens are swept this often.
const SWEEP: Duration = Duration::from_secs(3600);
/// After a failed pass (the database is away), try again after this long.
const RETRY: Duration = Duration::from_secs(1);

/// Watches until the master stops.
pub async fn run(master: Master) {
    let mut changes = master.context.hub.subscribe(Topic::Deadlines);
    let mut swept: Option<tokio::time::Instant> = None;
    let since = Micros(det_store::steady_now());
    loop {
        if swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            match sweep(&master).await {
                Ok(()) => swept = Some(tokio::time::Instant::now()),
                Err(error) => {
                    tracing::warn!(%error, cause = ?error.cause, "expired tokens could not be removed");
                }
            }
        }
        let wait = match pass(&master, since).await {
            Ok(next) => next.map_or(SWEEP, |at| {
                let micros = u64::try_from(at.saturating_sub(det_store::steady_now())).unwrap_or(0);
                Duration::from_micros(micros).clamp(Duration::from_millis(1), SWEEP)
            }),
            Err(error) => {
                tracing::warn!(%error, cause = ?error.cause, "looking after deadlines failed; it is repeated");
                RETRY
            }
        };
        tokio::select! {
            () = changes.changed() => {}
            () = tokio::time::sleep(wait) => {}
            () = master.context.shutdown.cancelled() => return,
        }
    }
}

/// Does what is due and gives the next due moment. `since` = when this master began to look.
async fn pass(master: &Master, since: Micros) -> AppResult<Option<i64>> {
    let next_agent = master.places.give_up_lost().await?;
    let next_allocation = end_overdue(master).await?;
    let next_trial = end_silent(master, since).await?;
    let next_removal = master.removal_tasks.end_overlong().await?.map(|at| at.0);
    let next = next_agent.into_iter().chain(next_allocation);
    Ok(next.chain(next_trial).chain(next_removal).min())
}

/// Removes sessions and tokens that have expired.
async fn sweep(master: &Master) -> AppResult<()> {
    let now = det_store::earliest_now();
    master
        .context
        .write(move |tx| {
            Box::pin(async move {
                users::delete_expired_sessions(&mut tx.conn(), now).await?;
                allocations::delete_expired_tokens(&mut tx.conn(), now).await?;
                Ok::<_, AppError>(())
            })
        })
        .await
}

async fn end_overdue(master: &Master) -> AppResult<Option<i64>> {
    let rows = {
        let mut conn = master.context.store.read().await?;
        allocations::with_deadline(&mut conn.conn()).await?
    };
    let deadlines = rows
        .into_iter()
        .filter_map(|row| Some((row.id, Micros(row.preempt_deadline?))));
    let due = Due::of(deadlines, Micros(det_store::steady_now()));
    for id in due.now {
        master.orchestration.commit(Event::Overdue { id }).await?;
    }
    Ok(due.next.map(|at| at.0))
}

/// Ends unmanaged trials whose code has sent no heartbeat in time. While no master ran none could arrive, so that each has
/// the whole time again from the start of this one.
async fn end_silent(master: &Master, since: Micros) -> AppResult<Option<i64>> {
    let rows = {
        let mut conn = master.context.store.read().await?;
        trials::unmanaged(&mut conn.conn()).await?
    };
    let patience = master.context.config().unmanaged_heartbeat_timeout;
    let micros = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
    let earliest = Micros(since.0.saturating_add(micros));
    let deadlines = rows
        .into_iter()
        .filter_map(|row| Some((row.id, row.state.deadline()?.max(earliest))));
    let now = Micros(det_store::steady_now());
    let due = Due::of(deadlines, now);
    for id in due.now {
        let silent = Event::Unmanaged {
            id,
            event: UnmanagedEvent::Deadline { now },
            cause: Cause::master("no heartbeat of its code came in time"),
        };
        match master.orchestration.commit(silent).await {
            // It was deleted in the meantime.
            Err(error) if error.kind == ErrorKind::NotFound => {}
            done => done?,
        }
    }
    Ok(due.next.map(|at| at.0))
}
