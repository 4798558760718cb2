//! Reading experiments.

pub(crate) mod listing;

use std::collections::BTreeMap;
use std::sync::Arc;

use det_authz::Kind;
use det_ids::{ExperimentId, ProjectId, TrialId, UserId, WorkspaceId};
use det_lifecycle::experiment::ExperimentState;
use det_store::experiments::ExperimentRow;
use det_store::metrics::number;
use det_store::{Store, allocations, trials};

use crate::app::homes::{Homes, KnownHomes};
use crate::app::jobs::{JobQueue, QueuedJob};
use crate::app::metrics::journal::Journal;
use crate::app::metrics::reports::{Pages, ReportCutoffs};
use crate::app::metrics::{VALIDATION, is_better};
use crate::app::reads::phase::Phase;
use crate::app::reads::sight::Sight;
use crate::app::{existing, reads};
use crate::auth::{Actor, Auth};
use crate::error::{AppError, AppResult, ErrorKind};
use det_store::catalogue::Catalogue;
use tokio::sync::Semaphore;

/// Ids in one statement: below the least that either database takes.
const BATCH: usize = 10_000;

pub(super) fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Experiment, "experiments")
}

/// One experiment, or the refusal that it does not exist.
pub(crate) async fn find(
    store: &Store,
    actor: &Actor,
    id: ExperimentId,
) -> AppResult<ExperimentRow> {
    require(actor)?;
    let mut conn = store.read().await?;
    existing::experiment(&mut conn.conn(), id).await
}

/// What experiments are read from.
#[derive(Clone)]
pub(crate) struct ExperimentSources {
    pub(crate) store: Store,
    pub(crate) homes: KnownHomes,
    pub(crate) auth: Auth,
    /// Reports are in it before they are in the store.
    pub(crate) journal: Journal,
    pub(crate) queue: JobQueue,
    /// What lists are filtered and sorted by.
    pub(crate) catalogue: Arc<Catalogue>,
    /// Who makes a list: as many at once as there are cores, first come, first served. Shared out in small turns among
    /// more, each of the lists would be as late as the last one.
    pub(crate) listings: Arc<Semaphore>,
}

/// The project and workspace that an experiment is in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Home<'a> {
    /// Name of its project.
    pub project: &'a str,
    /// Number of its workspace.
    pub workspace_id: WorkspaceId,
    /// Name of its workspace.
    pub workspace: &'a str,
    /// Owner of its project.
    pub owner_id: UserId,
    /// Whether project or workspace are put away.
    pub archived: bool,
}

/// Experiments with how far they are and where, for one reader.
pub(crate) struct ShownExperiments {
    rows: Vec<ExperimentRow>,
    phases: BTreeMap<ExperimentId, Phase>,
    homes: Arc<Homes>,
    /// The user who represents the cluster.
    cluster_owner: UserId,
    reader: Actor,
}

impl ShownExperiments {
    /// Of these experiments, in this order.
    async fn of(
        sources: &ExperimentSources,
        actor: &Actor,
        rows: Vec<ExperimentRow>,
    ) -> AppResult<Self> {
        let active = rows
            .iter()
            .filter(|row| row.state == ExperimentState::Active);
        let active: Vec<ExperimentId> = active.map(|row| row.id).collect();
        Ok(Self {
            phases: phases(&sources.store, &active).await?,
            homes: reads::homes::all(&sources.homes, actor)?,
            cluster_owner: sources
                .auth
                .cluster_owner()
                .map_or(UserId::default(), |user| user.id),
            reader: actor.clone(),
            rows,
        })
    }

    /// Each with how far it is while it is active, where it is, and what the reader sees of its configuration.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&ExperimentRow, Phase, Home<'_>, Sight)> {
        self.rows.iter().map(|row| {
            // What is unmanaged is active while its code runs.
            let phase = if row.unmanaged {
                Phase::Running
            } else {
                self.phases.get(&row.id).copied().unwrap_or_default()
            };
            let sight = Sight::of(&self.reader, row.owner_id);
            (row, phase, self.home(row.project_id), sight)
        })
    }

    /// Where the experiments of a project are.
    fn home(&self, project_id: ProjectId) -> Home<'_> {
        let home = self.homes.home(project_id);
        home.map_or_else(Home::default, |(project, workspace)| Home {
            project: &project.name,
            workspace_id: workspace.id,
            workspace: &workspace.name,
            owner_id: project.owner_id.unwrap_or(self.cluster_owner),
            archived: self.homes.is_archived(project),
        })
    }
}

/// One experiment as it is now.
pub(crate) async fn one(
    sources: &ExperimentSources,
    actor: &Actor,
    id: ExperimentId,
) -> AppResult<ShownExperiments> {
    let row = find(&sources.store, actor, id).await?;
    ShownExperiments::of(sources, actor, vec![row]).await
}

/// One experiment as it is now, and where its job is in its queue.
pub(crate) async fn with_place(
    sources: &ExperimentSources,
    actor: &Actor,
    id: ExperimentId,
) -> AppResult<(ShownExperiments, QueuePlace)> {
    let row = find(&sources.store, actor, id).await?;
    let place = queue_place(sources, &row).await?;
    Ok((
        ShownExperiments::of(sources, actor, vec![row]).await?,
        place,
    ))
}

/// How far active experiments are.
async fn phases(store: &Store, ids: &[ExperimentId]) -> AppResult<BTreeMap<ExperimentId, Phase>> {
    let mut phases: BTreeMap<ExperimentId, Phase> = BTreeMap::new();
    let mut conn = store.read().await?;
    for batch in ids.chunks(BATCH) {
        for live in allocations::live_states_of_experiments(&mut conn.conn(), batch).await? {
            let phase = phases.entry(live.experiment_id).or_default();
            *phase = (*phase).max(Phase::of_allocation(&live.state));
        }
    }
    Ok(phases)
}

/// Where the job of an experiment is in its queue.
pub(crate) enum QueuePlace {
    /// In none: the experiment is not active.
    NotActive,
    /// It runs, so it waits for nothing.
    Runs,
    /// In none for a moment, between two runs.
    BetweenRuns,
    /// In its queue, as this entry describes.
    Queued(Box<QueuedJob>),
}

/// Where the job of an experiment is in its queue.
async fn queue_place(sources: &ExperimentSources, row: &ExperimentRow) -> AppResult<QueuePlace> {
    if row.state != ExperimentState::Active || row.unmanaged {
        return Ok(QueuePlace::NotActive);
    }
    let phases = phases(&sources.store, &[row.id]).await?;
    if phases
        .get(&row.id)
        .is_some_and(|phase| *phase > Phase::Queued)
    {
        return Ok(QueuePlace::Runs);
    }
    let queue = sources.queue.list(Some(&row.resource_pool)).await?;
    let queued = queue.into_iter().find(|queued| queued.job.id == row.job_id);
    Ok(queued.map_or(QueuePlace::BetweenRuns, |queued| {
        QueuePlace::Queued(Box::new(queued))
    }))
}

/// Labels in use, of one project or of all.
pub(crate) async fn labels(
    sources: &ExperimentSources,
    actor: &Actor,
    project_id: Option<ProjectId>,
) -> AppResult<Vec<String>> {
    require(actor)?;
    sources.catalogue.refresh(&sources.store).await?;
    Ok(sources.catalogue.labels(project_id))
}

/// The best value of the searcher's metric over the whole experiment.
pub(crate) async fn best_metric(store: &Store, actor: &Actor, id: ExperimentId) -> AppResult<f64> {
    let row = find(store, actor, id).await?;
    row.best_metric.ok_or_else(|| {
        AppError::new(
            ErrorKind::NotFound,
            format!(
                "experiment {id} has no validation with metric \"{}\" yet",
                row.searcher_metric
            ),
        )
    })
}

/// A validation that was better than all before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Record {
    /// When it was reported, in microseconds.
    pub(crate) at: i64,
    /// The trial that reported it.
    pub(crate) trial_id: TrialId,
    /// The value of the searcher's metric.
    pub(crate) metric: f64,
}

/// How the best value of the searcher's metric came about, oldest first.
pub(crate) async fn validation_history(
    sources: &ExperimentSources,
    actor: &Actor,
    id: ExperimentId,
) -> AppResult<Vec<Record>> {
    let experiment = find(&sources.store, actor, id).await?;
    sources.journal.flush().await?;
    let trials = {
        let mut conn = sources.store.read().await?;
        trials::of_experiment(&mut conn.conn(), id).await?
    };
    let validated: Vec<TrialId> = trials
        .iter()
        .filter(|trial| trial.latest_validation.is_some())
        .map(|trial| trial.id)
        .collect();
    let outdating = ReportCutoffs::load_all(&sources.store, &validated).await?;
    let mut validations = Vec::new();
    for (trial_id, outdating) in &outdating {
        let mut pages = Pages::new(&sources.store, *trial_id, VALIDATION);
        loop {
            let chunks = pages.next().await?;
            if chunks.is_empty() {
                break;
            }
            for chunk in &chunks {
                validations.extend(chunk.unpack_averages()?.iter().filter_map(|report| {
                    let counts = outdating.counts(VALIDATION, chunk.run_id, report.step);
                    let metric = report
                        .metrics
                        .get(&experiment.searcher_metric)
                        .and_then(number)?;
                    (counts && metric.is_finite()).then_some(Record {
                        at: report.at,
                        trial_id: *trial_id,
                        metric,
                    })
                }));
            }
        }
    }
    Ok(records(validations, experiment.smaller_is_better))
}

/// The validations that are better than all before them.
fn records(mut validations: Vec<Record>, smaller_is_better: bool) -> Vec<Record> {
    validations.sort_by_key(|record| (record.at, record.trial_id));
    let mut best = None;
    validations.retain(|record| {
        let better = is_better(record.metric, best, smaller_is_better);
        if better {
            best = Some(record.metric);
        }
        better
    });
    validations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_holds_records_only() {
        let validations: Vec<Record> = [
            (3, 1, 0.4),
            (1, 1, 0.9),
            (2, 2, 0.95),
            (4, 2, 0.4),
            (5, 2, 0.1),
        ]
        .map(|(at, trial_id, metric)| Record {
            at,
            trial_id: TrialId(trial_id),
            metric,
        })
        .to_vec();
        let trials: Vec<(TrialId, f64)> = records(validations.clone(), true)
            .iter()
            .map(|record| (record.trial_id, record.metric))
            .collect();
        assert_eq!(
            trials,
            [(1, 0.9), (1, 0.4), (2, 0.1)].map(|(id, metric)| (TrialId(id), metric))
        );
        let metrics: Vec<f64> = records(validations, false)
            .iter()
            .map(|record| record.metric)
            .collect();
        assert_eq!(metrics, [0.9, 0.95]);
    }
}
