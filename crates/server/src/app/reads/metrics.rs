//! Reading the reports of trials.

use std::collections::BTreeSet;

use det_authz::Kind;
use det_ids::TrialId;
use det_lifecycle::object::ObjectKind;
use det_store::{Store, trials};

use crate::app::context::Context;
use crate::app::metrics::journal::Journal;
use crate::app::metrics::stream::Reports;
use crate::app::reads;
use crate::auth::Actor;
use crate::budget::Budget;
use crate::error::{AppError, AppResult};

/// Trials asked about in one statement: below the least number of values that either database takes.
const BATCH: usize = 10_000;

/// What the reports of trials are read from.
#[derive(Clone)]
pub(crate) struct MetricSources {
    pub(crate) context: Context,
    /// Reports are in it before they are in the store.
    pub(crate) journal: Journal,
    /// What streams of metrics may take.
    pub(crate) streams: Budget,
}

/// The reports of trials that exist, in the order of their ids, of one group or of all.
pub(crate) async fn reports(
    sources: &MetricSources,
    actor: &Actor,
    trial_ids: Vec<TrialId>,
    group: Option<String>,
) -> AppResult<Reports> {
    reads::require(actor, Kind::Trial, "trials")?;
    if trial_ids.is_empty() {
        return Err(AppError::invalid(
            "field \"trialIds\" is missing: name at least one trial",
        ));
    }
    let store = &sources.context.store;
    Ok(Reports::new(
        (store, &sources.journal),
        (&sources.streams, Some(actor.user().id)),
        known(store, trial_ids).await?,
        group,
    ))
}

/// The ids of these trials in order, each once, if each exists.
async fn known(store: &Store, mut trial_ids: Vec<TrialId>) -> AppResult<Vec<TrialId>> {
    trial_ids.sort_unstable();
    trial_ids.dedup();
    let mut conn = store.read().await?;
    let mut known = BTreeSet::new();
    for batch in trial_ids.chunks(BATCH) {
        let rows = trials::find_all(&mut conn.conn(), batch).await?;
        known.extend(rows.iter().map(|row| row.id));
    }
    match trial_ids.iter().find(|id| !known.contains(id)) {
        Some(missing) => Err(AppError::not_found(ObjectKind::Trial, missing)),
        None => Ok(trial_ids),
    }
}
