//! Reading trials.

pub(crate) mod compared;
pub(crate) mod history;

use std::collections::{BTreeMap, BTreeSet};

use det_api_types::page::{OrderBy, Pagination};
use det_api_types::trials::{GetExperimentTrialsQuery, TrialSortBy};
use det_authz::Kind;
use det_ids::{ExperimentId, ExternalExperimentId, RequestId, TrialId};
use det_lifecycle::object::ObjectKind;
use det_store::allocations::{self, AllocationRow, TaskRow};
use det_store::checkpoints::{self, CheckpointRow, CheckpointState};
use det_store::experiments::{self, ExperimentRow};
use det_store::metrics::{self, GroupSummary, StoredReport};
use det_store::trials::{self, Sort, TrialRow};
use det_store::{Store, StoreError};
use serde_json::Value;

use crate::app::failures::{self, Failure};
use crate::app::logs::retention::LogRetention;
use crate::app::metrics::journal::Journal;
use crate::app::metrics::series::Series;
use crate::app::reads::experiments::listing;
use crate::app::reads::paging;
use crate::app::reads::phase::{Phase, StateFilter};
use crate::app::{existing, reads};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// Trials asked about in one statement: below the least number of values that either database takes.
const BATCH: usize = 10_000;

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Trial, "trials")
}

/// What trials are read from.
#[derive(Clone)]
pub(crate) struct TrialSources {
    pub(crate) store: Store,
    /// Reports are in it before they are in the store.
    pub(crate) journal: Journal,
    pub(crate) series: Series,
    pub(crate) log_retention: LogRetention,
}

/// One trial, or the refusal that it does not exist.
pub(crate) async fn find(store: &Store, actor: &Actor, id: TrialId) -> AppResult<TrialRow> {
    require(actor)?;
    let mut conn = store.read().await?;
    existing::trial(&mut conn.conn(), id).await
}

/// What a trial is shown with besides its row.
#[derive(Debug, Clone, Default)]
pub struct TrialParts {
    /// How far it is, while it is active.
    pub phase: Phase,
    /// Its live allocation.
    pub allocation: Option<AllocationRow>,
    /// Its tasks, oldest first.
    pub tasks: Vec<TaskRow>,
    /// Statistics of its metric groups.
    pub summaries: BTreeMap<String, GroupSummary>,
    /// The checkpoint of its best validation.
    pub best_checkpoint: Option<CheckpointRow>,
    /// Failures that its experiment forgives: restarts beyond are not shown.
    pub max_restarts: i64,
    /// Why it has failed, or was last started again after a failure; looked up where one trial is shown.
    pub failure: Option<Failure>,
}

/// A trial with its parts.
pub(crate) type TrialWithParts = (TrialRow, TrialParts);

/// One trial with its parts, and the metrics that it has reported so far.
pub(crate) async fn whole(
    sources: &TrialSources,
    actor: &Actor,
    id: TrialId,
) -> AppResult<TrialWithParts> {
    sources.journal.flush().await?;
    let store = &sources.store;
    let (row, mut parts) = compacted(store, actor, id).await?;
    parts.failure = match failures::of_trial(&mut store.read().await?.conn(), &row).await {
        // Clients that know of no such reason read the trial nevertheless.
        Err(error @ StoreError::Corrupt { .. }) => {
            tracing::error!(trial = id.0, "why the trial failed cannot be read: {error}");
            None
        }
        found => found?,
    };
    Ok((row, parts))
}

/// One trial with its parts, by the names that its code gave to it and its experiment.
pub(crate) async fn by_external_id(
    sources: &TrialSources,
    actor: &Actor,
    experiment: &ExternalExperimentId,
    trial: &RequestId,
) -> AppResult<TrialWithParts> {
    require(actor)?;
    let found = {
        let mut conn = sources.store.read().await?;
        let row = experiments::find_by_external_id(&mut conn.conn(), experiment).await?;
        let row = row.ok_or_else(|| {
            AppError::not_found(
                ObjectKind::ExternalExperiment,
                experiment.as_str().escape_debug(),
            )
        })?;
        let found = trials::find_by_request(&mut conn.conn(), row.id, trial).await?;
        found.ok_or_else(|| {
            AppError::not_found(ObjectKind::ExternalTrial, trial.as_str().escape_debug())
        })?
    };
    whole(sources, actor, found.id).await
}

/// One trial with its parts, and with all of its metrics compacted before.
pub(crate) async fn compacted(
    store: &Store,
    actor: &Actor,
    id: TrialId,
) -> AppResult<TrialWithParts> {
    let row = find(store, actor, id).await?;
    let experiment = reads::experiments::find(store, actor, row.experiment_id).await?;
    let mut whole = with_parts(store, &experiment, vec![row]).await?;
    whole
        .pop()
        .ok_or_else(|| AppError::not_found(ObjectKind::Trial, id))
}

/// One page of an experiment's trials, each with its parts.
pub(crate) async fn page(
    sources: &TrialSources,
    actor: &Actor,
    experiment_id: ExperimentId,
    query: &GetExperimentTrialsQuery,
) -> AppResult<(Vec<TrialWithParts>, Pagination)> {
    require(actor)?;
    let store = &sources.store;
    let experiment = reads::experiments::find(store, actor, experiment_id).await?;
    sources.journal.flush().await?;
    let asked = listing::store_limit(query.limit);
    let asked = usize::try_from(asked).unwrap_or(usize::MAX);
    let offset = query.offset.max(0);
    let listing = Listing {
        store,
        experiment_id,
        query,
        filter: StateFilter::new(&query.states),
    };
    // What is shown of trials is many times what their rows have: a page is read in parts, and ends where it is large.
    let mut page = Page::default();
    let total = if let Some(filter) = listing.by_phase() {
        let (rows, total) = listing.in_phases(filter, offset, asked).await?;
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            let some = rows.by_ref().take(AT_ONCE).collect();
            if !page.add(with_parts(store, &experiment, some).await?) {
                break;
            }
        }
        total
    } else {
        loop {
            let limit = asked.saturating_sub(page.shown.len()).min(AT_ONCE);
            let offset = offset.saturating_add(signed(page.shown.len()));
            let (rows, total) = listing.rows(offset, limit).await?;
            let is_last = rows.len() < limit;
            let goes_on = page.add(with_parts(store, &experiment, rows).await?);
            if !goes_on || is_last || page.shown.len() >= asked {
                break total;
            }
        }
    };
    let pagination = listing::pagination(query.offset, query.limit, page.shown.len(), total);
    Ok((page.shown, pagination))
}

/// The trials of a page, until they have [`paging::PAGE_BYTES`].
struct Page {
    shown: Vec<TrialWithParts>,
    left: i64,
}

impl Default for Page {
    fn default() -> Self {
        Self {
            shown: Vec::new(),
            left: paging::PAGE_BYTES,
        }
    }
}

impl Page {
    /// Adds more, at least one in all; `false` = it is full.
    fn add(&mut self, more: Vec<TrialWithParts>) -> bool {
        for whole in more {
            self.left = self.left.saturating_sub(bytes_of(&whole));
            if self.left < 0 && !self.shown.is_empty() {
                return false;
            }
            self.shown.push(whole);
        }
        self.left >= 0
    }
}

/// Trials of a page that are read at once.
const AT_ONCE: usize = 200;
/// Bytes that are counted for each statistic of a metric.
const STATISTIC_BYTES: usize = 128;

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Bytes of the texts of a trial's row.
fn text_bytes(row: &TrialRow) -> i64 {
    let texts = [
        Some(&row.hparams),
        Some(&row.metadata),
        row.best_validation.as_ref(),
        row.latest_validation.as_ref(),
    ];
    signed(texts.into_iter().flatten().map(String::len).sum())
}

/// About how many bytes a trial is shown with.
fn bytes_of((row, parts): &TrialWithParts) -> i64 {
    let of_metrics = parts.summaries.values().flat_map(|group| {
        let names = group.metrics.keys();
        names.map(|name| name.len() + STATISTIC_BYTES)
    });
    let checkpoint = parts.best_checkpoint.iter();
    let checkpoint = checkpoint.map(|row| row.metadata.len() + row.resources.len());
    text_bytes(row).saturating_add(signed(of_metrics.chain(checkpoint).sum()))
}

/// The trials of an experiment that a query asks for, in its order.
struct Listing<'a> {
    store: &'a Store,
    experiment_id: ExperimentId,
    query: &'a GetExperimentTrialsQuery,
    filter: Option<StateFilter>,
}

impl Listing<'_> {
    /// The filter, if live allocations decide which trials it wants.
    fn by_phase(&self) -> Option<&StateFilter> {
        let filter = self.filter.as_ref();
        filter.filter(|filter| !filter.phases.is_empty() && !filter.wants_all_phases())
    }

    /// So many from `offset` on, as far as their rows decide, and how many there are.
    async fn rows(&self, offset: i64, limit: usize) -> AppResult<(Vec<TrialRow>, i64)> {
        let stored = self.filter.as_ref().map(StateFilter::in_question);
        let mut conn = self.store.read().await?;
        let mut conn = conn.conn();
        let rows = trials::list(
            &mut conn,
            self.experiment_id,
            stored.as_deref(),
            sort(self.query.sort_by),
            self.query.order_by == OrderBy::Desc,
            offset,
            signed(limit),
        );
        Ok(rows.await?)
    }

    /// Those in the phases of the filter: all are looked at, once, and the page is cut out of what is left. It ends where
    /// the rows alone have the bytes of a page.
    async fn in_phases(
        &self,
        filter: &StateFilter,
        offset: i64,
        limit: usize,
    ) -> AppResult<(Vec<TrialRow>, i64)> {
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        let (mut page, mut left) = (Vec::new(), paging::PAGE_BYTES);
        let (mut looked_at, mut wanted) = (0, 0_usize);
        loop {
            let (rows, _) = self.rows(signed(looked_at), AT_ONCE).await?;
            looked_at += rows.len();
            let is_last = rows.len() < AT_ONCE;
            let live = live(self.store, &rows).await?;
            let phase = |row: &TrialRow| match row.unmanaged {
                Some(_) => Phase::Running,
                None => live.get(&row.id).map_or(Phase::Queued, phase_of),
            };
            for row in rows {
                if !filter.wants(row.state.state_name(), phase(&row)) {
                    continue;
                }
                if wanted >= skipped && page.len() < limit && left >= 0 {
                    left = left.saturating_sub(text_bytes(&row));
                    page.push(row);
                }
                wanted += 1;
            }
            if is_last {
                return Ok((page, signed(wanted)));
            }
        }
    }
}

fn sort(by: TrialSortBy) -> Sort {
    match by {
        TrialSortBy::Unspecified | TrialSortBy::Id => Sort::Id,
        TrialSortBy::LogRetentionDays => Sort::LogRetentionDays,
        TrialSortBy::StartTime => Sort::StartTime,
        TrialSortBy::EndTime => Sort::EndTime,
        TrialSortBy::State => Sort::State,
        TrialSortBy::BestValidationMetric => Sort::BestValidation,
        TrialSortBy::LatestValidationMetric => Sort::LatestValidation,
        TrialSortBy::BatchesProcessed => Sort::BatchesProcessed,
        TrialSortBy::Duration => Sort::Duration,
        TrialSortBy::Restarts => Sort::Restarts,
        TrialSortBy::CheckpointSize => Sort::CheckpointSize,
    }
}

fn phase_of(allocation: &AllocationRow) -> Phase {
    Phase::of_allocation(&allocation.state)
}

/// The live allocations of trials that have one, by trial.
async fn live(store: &Store, rows: &[TrialRow]) -> AppResult<BTreeMap<TrialId, AllocationRow>> {
    let active: Vec<TrialId> = rows
        .iter()
        .filter(|row| row.ended_at.is_none())
        .map(|row| row.id)
        .collect();
    let mut found = BTreeMap::new();
    let mut conn = store.read().await?;
    for batch in active.chunks(BATCH) {
        for row in allocations::live_of_trials(&mut conn.conn(), batch).await? {
            if let Some(trial_id) = row.trial_id {
                found.insert(trial_id, row);
            }
        }
    }
    Ok(found)
}

/// Trials of one experiment, each with its parts.
async fn with_parts(
    store: &Store,
    experiment: &ExperimentRow,
    rows: Vec<TrialRow>,
) -> AppResult<Vec<TrialWithParts>> {
    let mut live = live(store, &rows).await?;
    let mut best = best_checkpoints(store, &rows).await?;
    let what = "configuration of experiment";
    let config = reads::document(what, experiment.id, &experiment.config)?;
    let max_restarts = config
        .get("max_restarts")
        .and_then(Value::as_i64)
        .unwrap_or(i64::MAX);
    let ids: Vec<TrialId> = rows.iter().map(|row| row.id).collect();
    let mut tasks: BTreeMap<TrialId, Vec<TaskRow>> = BTreeMap::new();
    let mut summaries = BTreeMap::new();
    for batch in ids.chunks(BATCH) {
        let mut conn = store.read().await?;
        for task in allocations::tasks_of_trials(&mut conn.conn(), batch).await? {
            if let Some(trial_id) = task.trial_id {
                tasks.entry(trial_id).or_default().push(task);
            }
        }
        summaries.extend(metrics::summaries_of(&mut conn.conn(), batch).await?);
    }
    let whole = |row: TrialRow| {
        let allocation = live.remove(&row.id);
        let parts = TrialParts {
            phase: match row.unmanaged {
                // It is active while its code runs.
                Some(_) => Phase::Running,
                None => allocation.as_ref().map_or(Phase::Queued, phase_of),
            },
            allocation,
            tasks: tasks.remove(&row.id).unwrap_or_default(),
            summaries: summaries.remove(&row.id).unwrap_or_default(),
            best_checkpoint: best.remove(&row.id),
            max_restarts,
            failure: None,
        };
        (row, parts)
    };
    Ok(rows.into_iter().map(whole).collect())
}

/// The checkpoints of the trials' best validations: those at the same step that still have files.
async fn best_checkpoints(
    store: &Store,
    rows: &[TrialRow],
) -> AppResult<BTreeMap<TrialId, CheckpointRow>> {
    let mut wanted = BTreeSet::new();
    for row in rows.iter().filter(|row| row.checkpoint_count > 0) {
        let best = validation(row, row.best_validation.as_deref())?;
        let step = best.and_then(|report| report.step);
        wanted.extend(step.map(|step| (row.id, step)));
    }
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let trial_ids: Vec<TrialId> = wanted.iter().map(|(trial_id, _)| *trial_id).collect();
    let mut conn = store.read().await?;
    let mut candidates = checkpoints::of_trials(&mut conn.conn(), &trial_ids).await?;
    // Of several at one step the last one is shown.
    candidates.sort_by(|a, b| (a.reported_at, &a.uuid).cmp(&(b.reported_at, &b.uuid)));
    Ok(candidates
        .into_iter()
        .filter(|c| c.state != CheckpointState::Deleted)
        .filter_map(|c| Some((c.trial_id?, c)))
        .filter(|(trial_id, c)| wanted.contains(&(*trial_id, c.steps)))
        .collect())
}

/// A validation that the row of its trial contains.
pub(crate) fn validation(
    row: &TrialRow,
    text: Option<&str>,
) -> Result<Option<StoredReport>, StoreError> {
    text.map(|text| {
        serde_json::from_str(text).map_err(|e| StoreError::Corrupt {
            what: format!("a validation of trial {}", row.id),
            message: e.to_string(),
        })
    })
    .transpose()
}

/// For how many days the log of a trial's newest task is still kept, begun ones counted: -1 = for ever.
pub(crate) async fn remaining_log_days(
    sources: &TrialSources,
    actor: &Actor,
    id: TrialId,
) -> AppResult<i64> {
    let trial = find(&sources.store, actor, id).await?;
    let mut conn = sources.store.read().await?;
    let task = allocations::find_task(&mut conn.conn(), &trial.task_id).await?;
    let ended_at = task.as_ref().and_then(|task| task.ended_at);
    let own = task.and_then(|task| task.log_retention_days);
    let kept = sources.log_retention.kept(own);
    Ok(kept.remaining(ended_at, det_store::now()))
}
