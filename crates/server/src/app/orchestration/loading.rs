//! What an event needs, loaded before it is decided on: rows into the memory of the change, and what is no live row beside
//! them.

use std::collections::{BTreeSet, HashMap};

use det_ids::{
    AllocationId, ExperimentId, JobId, Micros, PlaceId, RequestId, SlotId, TaskId, TrialId,
};
use det_lifecycle::task::Demand;
use det_lifecycle::trial::TrialState;
use det_lifecycle::unmanaged::TrialCounts;
use det_orchestrator::{
    Container, Event, Need, Place, SearchState, SearchedMetrics, Terms, Unreadable,
};
use det_store::allocations::ContainerRow;
use det_store::places::PlaceRow;
use det_store::{Conn, StoreError, WriteTx, allocations, experiments, trials};
use det_taskspec::TaskKind;

use super::{CORE, Orchestration};
use crate::app::configs::log_retention_days;
use crate::app::orchestration::searched_metric;
use crate::app::searches::Searches;
use crate::error::{AppError, AppResult};

/// Allocations that hold something on a place, each with its slots there.
type Holders = Vec<(AllocationId, BTreeSet<SlotId>)>;

/// What decisions read beside the live rows. Each entry is as it was when it was last loaded.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) terms: HashMap<ExperimentId, Result<Terms, Unreadable>>,
    pub(super) live_trials: HashMap<ExperimentId, Vec<(TrialId, TrialState)>>,
    pub(super) live_trial_counts: HashMap<ExperimentId, usize>,
    pub(super) trial_counts: HashMap<ExperimentId, TrialCounts>,
    pub(super) named: HashMap<(ExperimentId, RequestId), TrialId>,
    pub(super) restart_forbidden: HashMap<TrialId, Option<String>>,
    pub(super) task_counts: HashMap<TrialId, usize>,
    pub(super) searched_metrics: HashMap<ExperimentId, SearchedMetrics>,
    pub(super) pools: HashMap<JobId, String>,
    pub(super) places: HashMap<PlaceId, Place>,
    pub(super) live_containers: HashMap<PlaceId, Vec<Container>>,
    pub(super) holders: HashMap<PlaceId, Holders>,
    /// The search that the event notifies or begins.
    pub(super) search: Option<(ExperimentId, SearchState)>,
}

impl Facts {
    /// Loads what an event needs.
    pub(super) async fn load(
        &mut self,
        service: &Orchestration,
        tx: &mut WriteTx,
        event: &Event,
    ) -> AppResult<()> {
        for need in event.needs() {
            self.load_need(service, tx, need).await?;
        }
        Ok(())
    }

    async fn load_need(
        &mut self,
        service: &Orchestration,
        tx: &mut WriteTx,
        need: Need,
    ) -> AppResult<()> {
        match need {
            Need::Experiment(id) => self.load_experiment(service, tx, id).await?,
            Need::LiveTrials(id) => {
                let most = i64::from(CORE.trials_at_once) + 1;
                let live = trials::live_states(&mut tx.conn(), id, most).await?;
                let live = live.into_iter().map(|row| (row.id, row.state));
                self.live_trials.insert(id, live.collect());
            }
            Need::LiveTrialCount(id) => {
                let count = trials::count_live(&mut tx.conn(), id).await?;
                let count = usize::try_from(count).unwrap_or(0);
                self.live_trial_counts.insert(id, count);
            }
            Need::Search(id) => self.load_search(service, tx, id).await?,
            Need::SearchedMetrics(id) => {
                tx.load_experiment(id).await?;
                let row = tx.live_rows().experiment(id).map(|row| (*row).clone());
                if let Some(row) = row
                    && let Ok(config) = service.configs.of(&row)
                {
                    let metrics = searched_metric::of_search(tx, &row, &config).await?;
                    self.searched_metrics.insert(id, metrics);
                }
            }
            Need::TrialCounts(id) => {
                let counts = trials::counts(&mut tx.conn(), id).await?;
                self.trial_counts.insert(id, counts);
            }
            Need::Trial(id) => self.load_trial(service, tx, id).await?,
            Need::TrialOfRequest(id, request_id) => {
                self.load_experiment(service, tx, id).await?;
                let name = (id, request_id);
                if !self.named.contains_key(&name) {
                    let found = trials::find_by_request(&mut tx.conn(), id, &name.1).await?;
                    if let Some(row) = found {
                        self.named.insert(name.clone(), row.id);
                    }
                }
                if let Some(trial) = self.named.get(&name).copied() {
                    self.load_trial(service, tx, trial).await?;
                }
            }
            Need::TaskCount(id) => {
                let tasks = allocations::tasks_of_trial(&mut tx.conn(), id).await?;
                self.task_counts.insert(id, tasks.len());
            }
            Need::Task(id) => self.load_task(service, tx, &id).await?,
            Need::RestartForbidden(id) => self.load_restart_forbidden(service, tx, id).await?,
            Need::Allocation(id) => self.load_allocation(service, tx, &id).await?,
            Need::Container(id) => {
                tx.load_container(&id).await?;
                let rows = tx.live_rows();
                let of = rows.container(&id).map(|row| row.allocation_id.clone());
                if let Some(of) = of {
                    self.load_allocation(service, tx, &of).await?;
                }
            }
            Need::Place(id) => {
                tx.load_place(&id).await?;
                self.places.remove(&id);
                if let Some(row) = tx.live_rows().place(&id) {
                    self.places.insert(id, place_of(row));
                }
            }
            Need::LiveContainersOn(place) => {
                let rows = allocations::live_containers_of_place(&mut tx.conn(), &place).await?;
                let rows = rows.iter().map(container_of).collect();
                self.live_containers.insert(place, rows);
            }
            Need::Holders(place) => {
                let rows = allocations::live_containers_of_place(&mut tx.conn(), &place).await?;
                let holders = rows.into_iter().map(|row| (row.allocation_id, row.slots));
                self.holders.insert(place, holders.collect());
            }
        }
        Ok(())
    }

    async fn load_experiment(
        &mut self,
        service: &Orchestration,
        tx: &mut WriteTx,
        id: ExperimentId,
    ) -> AppResult<()> {
        tx.load_experiment(id).await?;
        let rows = tx.live_rows();
        let Some(row) = rows.experiment(id) else {
            return Ok(());
        };
        let terms = service.configs.of(row).map(|config| Terms {
            max_restarts: config.max_restarts,
            demand: Demand {
                slots: config.resources.slots_per_trial,
                single_place: config.resources.is_single_node.unwrap_or(false),
                preemption_timeout: config.preemption_timeout,
                preemptible: None,
            },
            log_retention_days: log_retention_days(&config),
        });
        let terms = readable(terms)?;
        self.terms.insert(id, terms);
        Ok(())
    }

    async fn load_trial(
        &mut self,
        service: &Orchestration,
        tx: &mut WriteTx,
        id: TrialId,
    ) -> AppResult<()> {
        tx.load_trial(id).await?;
        let rows = tx.live_rows();
        let Some(row) = rows.trial(id) else {
            return Ok(());
        };
        let (experiment_id, task_id) = (row.experiment_id, row.task_id.clone());
        self.load_experiment(service, tx, experiment_id).await?;
        Ok(tx.load_task(&task_id).await?)
    }

    async fn load_task(
        &mut self,
        service: &Orchestration,
        tx: &mut WriteTx,
        id: &TaskId,
    ) -> AppResult<()> {
        tx.load_task(id).await?;
        let rows = tx.live_rows();
        let Some(row) = rows.task(id) else {
            return Ok(());
        };
        if let (TaskKind::Trial, Some(trial)) = (row.kind, row.trial_id) {
            return self.load_trial(service, tx, trial).await;
        }
        let job_id = row.job_id.clone();
        if let Some(job) = experiments::job(&mut tx.conn(), &job_id).await? {
            self.pools.insert(job_id, job.resource_pool);
        }
        Ok(())
    }

    async fn load_restart_forbidden(
        &mut self,
        service: &Orchestration,
        tx: &mut WriteTx,
        id: TrialId,
    ) -> AppResult<()> {
        let rows = tx.live_rows();
        let Some(trial) = rows.trial(id) else {
            return Ok(());
        };
        let Some(experiment) = rows.experiment(trial.experiment_id) else {
            return Ok(());
        };
        let Some(task) = rows.task(&trial.task_id) else {
            return Ok(());
        };
        // Of a configuration that cannot be read the decision does not ask.
        let why = match service.configs.of(experiment) {
            Ok(_) => service.restarts.forbidden_because(experiment, task).await?,
            Err(_) => None,
        };
        self.restart_forbidden.insert(id, why);
        Ok(())
    }

    async fn load_allocation(
        &mut self,
        service: &Orchestration,
        tx: &mut WriteTx,
        id: &AllocationId,
    ) -> AppResult<()> {
        tx.load_allocation(id).await?;
        let rows = tx.live_rows();
        let Some(row) = rows.allocation(id) else {
            return Ok(());
        };
        let task_id = row.task_id.clone();
        tx.load_task(&task_id).await?;
        let task = tx.live_rows().task(&task_id).map(|task| task.experiment_id);
        match task.flatten() {
            Some(experiment) => self.load_experiment(service, tx, experiment).await,
            None => Ok(()),
        }
    }

    async fn load_search(
        &mut self,
        service: &Orchestration,
        tx: &mut WriteTx,
        id: ExperimentId,
    ) -> AppResult<()> {
        let rows = tx.live_rows();
        let Some(row) = rows.experiment(id) else {
            return Ok(());
        };
        // Of one that is over nothing is asked, and it has no search; nor has one that runs outside the cluster.
        if !row.state.is_live() || row.unmanaged {
            return Ok(());
        }
        let config = service.configs.of(row);
        let mut conn: Conn<'_> = tx.conn();
        self.search = match service.searches.load(&mut conn, id, config).await {
            Ok(search) => Some((id, search)),
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(
                    experiment.id = id.0,
                    %error,
                    "the search of an experiment cannot be restored; the experiment fails"
                );
                None
            }
            Err(error) => return Err(AppError::from(error)),
        };
        Ok(())
    }

    /// Hands the search back to the memory of the master; if the change fails it is dropped there.
    pub(super) fn keep_search(&mut self, searches: &Searches, tx: &mut WriteTx) {
        if let Some((id, search)) = self.search.take() {
            searches.keep(tx, id, search);
        }
    }
}

/// A container's row for decisions.
pub(super) fn container_of(row: &ContainerRow) -> Container {
    Container {
        id: row.id.clone(),
        allocation_id: row.allocation_id.clone(),
        place: row.place_id.clone(),
        member: u32::try_from(row.member).unwrap_or(u32::MAX),
        desired: row.desired,
        observed: row.observed.clone(),
        daemon: row.daemon,
        joined: row.joined,
        ended_at: row.ended_at.map(Micros),
    }
}

/// A place, from its row, for decisions.
pub(crate) fn place_of(row: &PlaceRow) -> Place {
    Place {
        resource_pool: row.resource_pool.clone(),
        instance: row.instance_id.clone(),
        services: row.services.clone(),
        disconnected_at: row.disconnected_at.map(Micros),
    }
}

/// What was read; the inner error = it is stored and cannot be read.
fn readable<T>(read: Result<T, StoreError>) -> Result<Result<T, Unreadable>, StoreError> {
    match read {
        Ok(value) => Ok(Ok(value)),
        Err(StoreError::Corrupt { what, message }) => Ok(Err(Unreadable { what, message })),
        Err(error) => Err(error),
    }
}
