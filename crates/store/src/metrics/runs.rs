//! The step at which each run of a trial's group begins: what newer runs have outdated is known by it.
//!
//! The table `metric_runs` has it apart from the chunks: a trial has few runs and may have a hundred thousand chunks.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use det_ids::{RunId, TrialId};

use super::NewChunk;
use crate::db::Link;
use crate::query::{Query, pieces};
use crate::{Conn, StoreError};

macro_rules! begins_earlier {
    () => {
        " ON CONFLICT (trial_id, group_name, run_id) DO UPDATE SET first_step = excluded.first_step \
         WHERE excluded.first_step >= 0 \
         AND (metric_runs.first_step < 0 OR excluded.first_step < metric_runs.first_step)"
    };
}

/// Notes the runs that these chunks are of, and that they begin earlier than was known. Those of trials that are gone
/// are left out.
pub(super) async fn note(conn: &mut Conn<'_>, chunks: &[NewChunk]) -> Result<(), StoreError> {
    // A chunk without steps (-1) has no information on where its run starts.
    let mut runs: BTreeMap<(TrialId, &str, RunId), i64> = BTreeMap::new();
    for chunk in chunks {
        let first = runs
            .entry((chunk.trial_id, &chunk.group, chunk.run_id))
            .or_insert(-1);
        *first = match (*first, chunk.first_step) {
            (-1, step) | (step, -1) => step,
            (one, other) => one.min(other),
        };
    }
    let pg = match &mut conn.link {
        Link::Pg(pg) => pg,
        Link::Lite(_) => {
            for ((trial_id, group, run_id), first_step) in runs {
                execute!(
                    conn,
                    concat!(
                        "INSERT INTO metric_runs (trial_id, group_name, run_id, first_step) \
                         SELECT $1, $2, $3, $4 WHERE EXISTS (SELECT 1 FROM trials WHERE id = $1)",
                        begins_earlier!()
                    ),
                    trial_id,
                    group,
                    run_id,
                    first_step
                )?;
            }
            return Ok(());
        }
    };
    // On PostgreSQL each statement is a round trip: one for all.
    sqlx::query(concat!(
        "INSERT INTO metric_runs (trial_id, group_name, run_id, first_step) \
         SELECT n.trial_id, n.group_name, n.run_id, n.first_step \
         FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[]) \
         AS n (trial_id, group_name, run_id, first_step) JOIN trials t ON t.id = n.trial_id",
        begins_earlier!()
    ))
    .bind(runs.keys().map(|run| run.0.0).collect::<Vec<_>>())
    .bind(runs.keys().map(|run| run.1).collect::<Vec<_>>())
    .bind(runs.keys().map(|run| run.2.0).collect::<Vec<_>>())
    .bind(runs.values().copied().collect::<Vec<_>>())
    .execute(&mut **pg)
    .await?;
    Ok(())
}

pub(crate) fn run_starts_query(trial_ids: &[TrialId]) -> Query {
    let mut query = Query::new("SELECT trial_id, group_name, run_id, first_step FROM metric_runs");
    query.any_of("trial_id", trial_ids.iter().copied());
    query.push(" ORDER BY trial_id, group_name, run_id");
    query
}

/// As [`run_starts`], of several trials.
pub async fn run_starts_of(
    conn: &mut Conn<'_>,
    trial_ids: &[TrialId],
) -> Result<BTreeMap<TrialId, Vec<(String, RunId, i64)>>, StoreError> {
    let mut all: BTreeMap<TrialId, Vec<(String, RunId, i64)>> = BTreeMap::new();
    for ids in pieces(trial_ids) {
        let rows = run_starts_query(ids)
            .fetch_all::<(TrialId, String, RunId, i64)>(conn)
            .await?;
        for (trial_id, group, run, start) in rows {
            all.entry(trial_id).or_default().push((group, run, start));
        }
    }
    Ok(all)
}

/// The groups that a trial has reported, with the runs and their lowest steps: what a reader needs to leave out reports
/// that a newer run has outdated.
pub async fn run_starts(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
) -> Result<Vec<(String, RunId, i64)>, StoreError> {
    let mut all = run_starts_of(conn, &[trial_id]).await?;
    Ok(all.remove(&trial_id).unwrap_or_default())
}

/// From which step on each run has outdated the runs before it in `group`, from [`run_starts`].
///
/// A run outdates older reports at or after its own first step in the same group, and after its first step in any other
/// group (`docs/contract/http-api.md`, "Metric reports"). Reports without a step are never outdated.
pub fn outdated_from(run_starts: &[(String, RunId, i64)], group: &str) -> BTreeMap<RunId, i64> {
    let mut from: BTreeMap<RunId, i64> = BTreeMap::new();
    for (name, run, start) in run_starts.iter().filter(|(_, _, start)| *start >= 0) {
        let step = if name == group { *start } else { start + 1 };
        from.entry(*run)
            .and_modify(|s| *s = (*s).min(step))
            .or_insert(step);
    }
    from
}

/// Whether a report of `run` at `step` still counts.
pub fn counts(outdated_from: &BTreeMap<RunId, i64>, run: RunId, step: Option<i64>) -> bool {
    step.is_none_or(|step| {
        outdated_from
            .range((Excluded(run), Unbounded))
            .all(|(_, from)| *from > step)
    })
}
