//! The simulated rows as the orchestration core sees them.

use det_ids::{
    AllocationId, ContainerId, ExperimentId, PlaceId, RequestId, RunId, SlotId, TaskId, TrialId,
};
use det_lifecycle::task::Demand;
use det_lifecycle::trial::TrialState;
use det_lifecycle::unmanaged::TrialCounts;
use det_orchestrator::{
    Allocation, Container, Experiment, ExperimentRows, Place, PlaceRows, SearchState,
    SearchedMetrics, Task, TaskRows, Terms, Trial, TrialRows, Unreadable,
};
use std::collections::BTreeSet;

use super::{Tx, replay};
use crate::rows;

impl ExperimentRows for Tx<'_> {
    fn experiment(&self, id: ExperimentId) -> Option<Experiment> {
        self.rows.experiments.get(&id).map(|e| e.row.clone())
    }

    fn update_experiment(&mut self, row: &Experiment) {
        if let Some(known) = self.rows.experiment_mut(row.id) {
            known.row.clone_from(row);
        }
    }

    fn terms(&self, id: ExperimentId) -> Result<Terms, Unreadable> {
        let experiment = self.rows.experiments.get(&id).ok_or_else(|| Unreadable {
            what: format!("configuration of experiment {id}"),
            message: "the experiment does not exist".to_owned(),
        })?;
        let submission = &experiment.submission;
        Ok(Terms {
            max_restarts: submission.max_restarts,
            demand: Demand {
                slots: submission.slots,
                single_place: submission.single_place,
                preemption_timeout: u32::try_from(submission.preemption_timeout)
                    .unwrap_or(u32::MAX),
                preemptible: None,
            },
            log_retention_days: None,
        })
    }

    fn live_trials(&self, id: ExperimentId) -> Vec<(TrialId, TrialState)> {
        let ids = self.rows.live_trials_of(id).into_iter();
        ids.filter_map(|id| Some((id, self.trial(id)?.state)))
            .collect()
    }

    fn live_trial_count(&self, id: ExperimentId) -> usize {
        self.rows.live_trials_of(id).len()
    }

    fn search(&mut self, id: ExperimentId) -> Option<&mut SearchState> {
        if !self.memory.searches.contains_key(&id) {
            let submission = &self.rows.experiments.get(&id)?.submission;
            let search = replay(submission, self.rows.searches.get(&id)?).ok()?;
            self.memory.searches.insert(id, search);
        }
        self.searches.insert(id);
        self.memory.searches.get_mut(&id)
    }

    fn searched_metrics(&self, _id: ExperimentId) -> Option<SearchedMetrics> {
        // Only a sentence for users is made of them.
        None
    }

    fn insert_search(&mut self, id: ExperimentId, search: SearchState) {
        self.searches.insert(id);
        self.memory.searches.insert(id, search);
    }
}

impl TrialRows for Tx<'_> {
    fn trial(&self, id: TrialId) -> Option<Trial> {
        self.rows.trials.get(&id).map(|t| t.row.clone())
    }

    fn trial_of_request(&self, id: ExperimentId, request_id: &RequestId) -> Option<Trial> {
        let name = (id, request_id.clone());
        self.trial(*self.rows.live.requests.get(&name)?)
    }

    fn update_trial(&mut self, row: &Trial) {
        if let Some(known) = self.rows.trial_mut(row.id) {
            known.row.clone_from(row);
        }
        if row.ended_at.is_some() {
            self.rows.live.trials.remove(&row.id);
        } else {
            self.rows.live.trials.insert(row.id);
        }
    }

    fn set_hparams(&mut self, _id: TrialId, _hparams: &str) {
        // Code here does not look at its hyperparameters.
    }

    fn trial_counts(&self, _id: ExperimentId) -> TrialCounts {
        // Nothing here runs outside the cluster.
        TrialCounts::default()
    }

    fn start_run(&mut self, id: TrialId, run_id: RunId, _resumes: bool) {
        if let Some(known) = self.rows.trial_mut(id) {
            known.row.run_id = run_id;
        }
    }

    fn restart_forbidden(&self, _id: TrialId) -> Option<String> {
        None
    }

    fn task_count(&self, id: TrialId) -> usize {
        let tasks = self.rows.tasks.values();
        tasks.filter(|task| task.trial_id == Some(id)).count()
    }
}

impl TaskRows for Tx<'_> {
    fn task(&self, id: &TaskId) -> Option<Task> {
        self.rows.tasks.get(id).cloned()
    }

    fn insert_task(&mut self, row: Task) {
        self.rows.version += 1;
        self.rows.touched.tasks.insert(row.id.clone());
        self.rows.tasks.insert(row.id.clone(), row);
    }

    fn update_task(&mut self, row: &Task) {
        self.insert_task(row.clone());
    }

    fn resource_pool(&self, task: &Task) -> Option<String> {
        match task.experiment_id {
            Some(id) => Some(self.experiment(id)?.resource_pool),
            // There is one pool.
            None => Some(String::new()),
        }
    }

    fn allocation(&self, id: &AllocationId) -> Option<Allocation> {
        let known = self.rows.allocations.get(id)?;
        Some(known.row.clone())
    }

    fn live_allocation(&self, task_id: &TaskId) -> Option<AllocationId> {
        let live = self.rows.live_of_task(task_id)?;
        Some(live.row.id.clone())
    }

    fn insert_allocation(&mut self, row: Allocation, _excluded: Option<BTreeSet<PlaceId>>) {
        self.rows.insert_allocation(rows::Allocation { row });
    }

    fn exclude(&mut self, _id: &AllocationId, _places: &BTreeSet<PlaceId>) {
        // There are no log policies here.
    }

    fn update_allocation(&mut self, row: &Allocation) {
        let known = self.rows.allocations.get(&row.id);
        let begins =
            known.is_some_and(|it| it.row.started_at.is_none()) && row.started_at.is_some();
        if let (true, Some(task)) = (begins, self.rows.launched.get_mut(&row.task_id)) {
            task.started += 1;
        }
        if let Some(known) = self.rows.allocation_mut(&row.id) {
            known.row.clone_from(row);
        }
        if row.ended_at.is_some() {
            self.rows.live.allocations.remove(&row.id);
        }
    }
}

impl PlaceRows for Tx<'_> {
    fn container(&self, id: &ContainerId) -> Option<Container> {
        let known = self.rows.containers.get(id)?;
        Some(known.row.clone())
    }

    fn containers(&self, id: &AllocationId) -> Vec<Container> {
        let members = self.rows.members(id);
        members.into_iter().map(|c| c.row.clone()).collect()
    }

    fn insert_container(&mut self, row: Container, slots: &[SlotId]) {
        let slots = slots.to_vec();
        self.rows.insert_container(rows::Container { row, slots });
    }

    fn update_container(&mut self, row: &Container) {
        if let Some(known) = self.rows.container_mut(&row.id) {
            known.row.clone_from(row);
        }
        if row.ended_at.is_some() {
            self.rows.live.containers.remove(&row.id);
        }
    }

    fn place(&self, id: &PlaceId) -> Option<Place> {
        self.rows.agents.get(id).map(|agent| agent.row.clone())
    }

    fn update_place(&mut self, id: &PlaceId, row: &Place) {
        self.rows.version += 1;
        if let Some(known) = self.rows.agents.get_mut(id) {
            known.row.clone_from(row);
        }
    }

    fn holders(&self, id: &PlaceId) -> Vec<(AllocationId, BTreeSet<SlotId>)> {
        let live = self.rows.live_containers_of(id).into_iter();
        let holders = live.map(|c| {
            let slots = c.slots.iter().copied().collect();
            (c.row.allocation_id.clone(), slots)
        });
        holders.collect()
    }

    fn live_containers_on(&self, place: &PlaceId) -> Vec<Container> {
        let live = self.rows.live_containers_of(place);
        live.into_iter().map(|c| c.row.clone()).collect()
    }
}
