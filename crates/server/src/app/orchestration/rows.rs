//! The rows of a change as decisions see them.

use det_ids::{
    AllocationId, ContainerId, ExperimentId, Micros, PlaceId, RequestId, RunId, SlotId, TaskId,
    TrialId,
};
use det_lifecycle::trial::TrialState;
use det_lifecycle::unmanaged::TrialCounts;
use det_orchestrator::{
    Allocation, Container, Experiment, ExperimentRows, Place, PlaceRows, SearchState,
    SearchedMetrics, Task, TaskRows, Terms, Trial, TrialRows, Unreadable,
};
use det_store::allocations::{AllocationRow, ContainerRow, TaskRow};
use det_store::live_rows::LiveRows;
use std::collections::BTreeSet;

use super::loading::{Facts, container_of};

/// Live rows and what was loaded beside them.
pub(super) struct TxRows<'a> {
    pub(super) live: LiveRows<'a>,
    pub(super) facts: &'a mut Facts,
    pub(super) now: Micros,
}

fn count(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn raw(at: Option<Micros>) -> Option<i64> {
    at.map(|at| at.0)
}

impl ExperimentRows for TxRows<'_> {
    fn experiment(&self, id: ExperimentId) -> Option<Experiment> {
        let row = self.live.experiment(id)?;
        Some(Experiment {
            id,
            state: row.state,
            job_id: row.job_id.clone(),
            owner_id: row.owner_id,
            resource_pool: row.resource_pool.clone(),
            progress: row.progress,
            trial_count: row.trial_count,
            unmanaged: row.unmanaged,
            ended_at: row.ended_at.map(Micros),
        })
    }

    fn update_experiment(&mut self, row: &Experiment) {
        self.live.edit_experiment(row.id, |known| {
            known.state = row.state;
            known.progress = row.progress;
            known.trial_count = row.trial_count;
            known.ended_at = raw(row.ended_at);
        });
    }

    fn terms(&self, id: ExperimentId) -> Result<Terms, Unreadable> {
        let unknown = || Unreadable {
            what: format!("configuration of experiment {id}"),
            message: "it was not loaded".to_owned(),
        };
        self.facts
            .terms
            .get(&id)
            .cloned()
            .unwrap_or_else(|| Err(unknown()))
    }

    fn live_trials(&self, id: ExperimentId) -> Vec<(TrialId, TrialState)> {
        self.facts.live_trials.get(&id).cloned().unwrap_or_default()
    }

    fn live_trial_count(&self, id: ExperimentId) -> usize {
        self.facts.live_trial_counts.get(&id).copied().unwrap_or(0)
    }

    fn search(&mut self, id: ExperimentId) -> Option<&mut SearchState> {
        match &mut self.facts.search {
            Some((of, search)) if *of == id => Some(search),
            _ => None,
        }
    }

    fn searched_metrics(&self, id: ExperimentId) -> Option<SearchedMetrics> {
        self.facts.searched_metrics.get(&id).cloned()
    }

    fn insert_search(&mut self, id: ExperimentId, search: SearchState) {
        self.facts.search = Some((id, search));
    }
}

impl TrialRows for TxRows<'_> {
    fn trial(&self, id: TrialId) -> Option<Trial> {
        let row = self.live.trial(id)?;
        Some(Trial {
            id,
            experiment_id: row.experiment_id,
            request_id: row.request_id.clone(),
            task_id: row.task_id.clone(),
            state: row.state,
            unmanaged: row.unmanaged,
            run_id: row.run_id,
            restarts: count(row.restarts),
            ended_at: row.ended_at.map(Micros),
        })
    }

    fn trial_of_request(&self, id: ExperimentId, request_id: &RequestId) -> Option<Trial> {
        let name = (id, request_id.clone());
        self.trial(*self.facts.named.get(&name)?)
    }

    fn update_trial(&mut self, row: &Trial) {
        self.live.edit_trial(row.id, |known| {
            known.task_id.clone_from(&row.task_id);
            known.state = row.state;
            known.unmanaged = row.unmanaged;
            known.restarts = i64::from(row.restarts);
            known.ended_at = raw(row.ended_at);
        });
    }

    fn set_hparams(&mut self, id: TrialId, hparams: &str) {
        self.live
            .edit_trial(id, |row| hparams.clone_into(&mut row.hparams));
    }

    fn trial_counts(&self, id: ExperimentId) -> TrialCounts {
        self.facts
            .trial_counts
            .get(&id)
            .copied()
            .unwrap_or_default()
    }

    fn start_run(&mut self, id: TrialId, run_id: RunId, resumes: bool) {
        self.live.edit_trial(id, |row| {
            row.run_id = run_id;
            let from = row.latest_checkpoint_steps.filter(|_| resumes);
            row.total_batches = from.unwrap_or(0);
            row.runner_state.clear();
        });
    }

    fn restart_forbidden(&self, id: TrialId) -> Option<String> {
        self.facts.restart_forbidden.get(&id).cloned().flatten()
    }

    fn task_count(&self, id: TrialId) -> usize {
        self.facts.task_counts.get(&id).copied().unwrap_or(0)
    }
}

impl TaskRows for TxRows<'_> {
    fn task(&self, id: &TaskId) -> Option<Task> {
        let row = self.live.task(id)?;
        Some(Task {
            id: id.clone(),
            kind: row.kind,
            job_id: row.job_id.clone(),
            owner_id: row.owner_id,
            experiment_id: row.experiment_id,
            trial_id: row.trial_id,
            state: row.state,
            demand: row.demand,
            log_findings: row.log_findings.clone(),
            log_retention_days: row.log_retention_days,
            attempts: count(row.attempts),
            losses: count(row.losses),
            ended_at: row.ended_at.map(Micros),
        })
    }

    fn insert_task(&mut self, row: Task) {
        self.live.add_task(TaskRow {
            id: row.id,
            kind: row.kind,
            job_id: row.job_id,
            owner_id: row.owner_id,
            experiment_id: row.experiment_id,
            trial_id: row.trial_id,
            state: row.state,
            demand: row.demand,
            attempts: i64::from(row.attempts),
            losses: i64::from(row.losses),
            log_lines: 0,
            created_at: self.now.0,
            ended_at: raw(row.ended_at),
            logs_deleted_at: None,
            log_findings: row.log_findings,
            log_retention_days: row.log_retention_days,
        });
    }

    fn update_task(&mut self, row: &Task) {
        self.live.edit_task(&row.id, |known| {
            known.state = row.state;
            if known.log_findings != row.log_findings {
                known.log_findings.clone_from(&row.log_findings);
            }
            known.attempts = i64::from(row.attempts);
            known.losses = i64::from(row.losses);
            known.ended_at = raw(row.ended_at);
        });
    }

    fn resource_pool(&self, task: &Task) -> Option<String> {
        match task.experiment_id {
            Some(id) => self
                .live
                .experiment(id)
                .map(|row| row.resource_pool.clone()),
            None => self.facts.pools.get(&task.job_id).cloned(),
        }
    }

    fn allocation(&self, id: &AllocationId) -> Option<Allocation> {
        let row = self.live.allocation(id)?;
        Some(Allocation {
            id: id.clone(),
            task_id: row.task_id.clone(),
            kind: row.kind,
            job_id: row.job_id.clone(),
            experiment_id: row.experiment_id,
            trial_id: row.trial_id,
            run_id: row.run_id,
            state: row.state.clone(),
            resource_pool: row.resource_pool.clone(),
            slots: count(row.slots),
            single_place: row.single_place,
            preemptible: row.preemptible,
            requested_at: Micros(row.requested_at),
            not_before: row.not_before.map(Micros),
            placed_at: row.placed_at.map(Micros),
            started_at: row.started_at.map(Micros),
            ended_at: row.ended_at.map(Micros),
            preempt_deadline: row.preempt_deadline.map(Micros),
            preempted_for: row.preempted_for.clone(),
            port_step: row.port_step.and_then(|step| u16::try_from(step).ok()),
            service_port: row.service_port.and_then(|port| u16::try_from(port).ok()),
            namespace: row.namespace.clone(),
            exit_reason: row.exit_reason.clone(),
            status_code: row.status_code,
            wait_reason: row.wait_reason.clone(),
            wait_since: row.wait_since.map(Micros),
        })
    }

    fn live_allocation(&self, task_id: &TaskId) -> Option<AllocationId> {
        self.live.live_allocation(task_id).cloned()
    }

    fn insert_allocation(&mut self, row: Allocation, excluded: Option<BTreeSet<PlaceId>>) {
        self.live.add_allocation(AllocationRow {
            preemptible: row.preemptible,
            id: row.id,
            task_id: row.task_id,
            kind: row.kind,
            job_id: row.job_id,
            experiment_id: row.experiment_id,
            trial_id: row.trial_id,
            run_id: row.run_id,
            state: row.state,
            resource_pool: row.resource_pool,
            slots: i64::from(row.slots),
            single_place: row.single_place,
            requested_at: row.requested_at.0,
            not_before: raw(row.not_before),
            placed_at: raw(row.placed_at),
            started_at: raw(row.started_at),
            ended_at: raw(row.ended_at),
            preempt_deadline: raw(row.preempt_deadline),
            preempted_for: row.preempted_for,
            port_step: row.port_step.map(i64::from),
            service_port: row.service_port.map(i64::from),
            namespace: row.namespace,
            exit_reason: row.exit_reason,
            status_code: row.status_code,
            excluded_places: excluded,
            wait_reason: row.wait_reason,
            wait_since: raw(row.wait_since),
        });
    }

    fn exclude(&mut self, id: &AllocationId, places: &BTreeSet<PlaceId>) {
        self.live.edit_allocation(id, |known| {
            known.excluded_places = Some(places.clone());
        });
    }

    fn update_allocation(&mut self, row: &Allocation) {
        self.live.edit_allocation(&row.id, |known| {
            known.state.clone_from(&row.state);
            known.resource_pool.clone_from(&row.resource_pool);
            known.placed_at = raw(row.placed_at);
            known.started_at = raw(row.started_at);
            known.ended_at = raw(row.ended_at);
            known.preempt_deadline = raw(row.preempt_deadline);
            known.preempted_for.clone_from(&row.preempted_for);
            known.port_step = row.port_step.map(i64::from);
            known.service_port = row.service_port.map(i64::from);
            known.namespace.clone_from(&row.namespace);
            known.exit_reason.clone_from(&row.exit_reason);
            known.status_code = row.status_code;
            known.wait_reason.clone_from(&row.wait_reason);
            known.wait_since = raw(row.wait_since);
        });
    }
}

impl PlaceRows for TxRows<'_> {
    fn container(&self, id: &ContainerId) -> Option<Container> {
        self.live.container(id).map(container_of)
    }

    fn containers(&self, id: &AllocationId) -> Vec<Container> {
        self.live.containers(id).map(container_of).collect()
    }

    fn insert_container(&mut self, row: Container, slots: &[SlotId]) {
        self.live.add_container(ContainerRow {
            id: row.id,
            allocation_id: row.allocation_id,
            place_id: row.place,
            member: i64::from(row.member),
            slots: slots.iter().copied().collect(),
            desired: row.desired,
            observed: row.observed,
            daemon: row.daemon,
            joined: row.joined,
            accelerators: None,
            ended_at: raw(row.ended_at),
        });
    }

    fn update_container(&mut self, row: &Container) {
        let (of, id) = (&row.allocation_id, &row.id);
        self.live.edit_container(of, id, |known| {
            known.desired = row.desired;
            known.observed.clone_from(&row.observed);
            known.daemon = row.daemon;
            known.joined = row.joined;
            known.ended_at = raw(row.ended_at);
        });
    }

    fn place(&self, id: &PlaceId) -> Option<Place> {
        self.facts.places.get(id).cloned()
    }

    fn update_place(&mut self, id: &PlaceId, row: &Place) {
        self.live.edit_place(id, |known| {
            known.services.clone_from(&row.services);
            known.disconnected_at = raw(row.disconnected_at);
        });
    }

    fn holders(&self, id: &PlaceId) -> Vec<(AllocationId, BTreeSet<SlotId>)> {
        self.facts.holders.get(id).cloned().unwrap_or_default()
    }

    fn live_containers_on(&self, place: &PlaceId) -> Vec<Container> {
        self.facts
            .live_containers
            .get(place)
            .cloned()
            .unwrap_or_default()
    }
}
