//! Rows in maps, and a shell that keeps what effects ask for.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use det_config::hyperparameters::{Hyperparameter, SearchMethod, SearcherConfig, Space};
use det_ids::{
    AllocationId, ContainerId, ExperimentId, JobId, Micros, PlaceId, RequestId, RunId, SlotId,
    TaskId, TrialId, UserId,
};
use det_lifecycle::container::ObservedState;
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::task::Demand;
use det_lifecycle::trial::TrialState;
use det_lifecycle::unmanaged::TrialCounts;
use det_orchestrator::{
    Agenda, Allocation, Cause, Clock, Container, Core, Effect, Event, Experiment, ExperimentRows,
    Place, PlaceRows, PlacedAllocation, Refusal, SearchState, SearchedMetrics, Task, TaskRows,
    Terms, Topic, Trial, TrialRows, Unreadable,
};
use det_scheduler::{Placement, Services};
use det_searcher::Search;

/// One experiment and all its rows.
pub(crate) struct World {
    pub(crate) now: i64,
    pub(crate) experiment: Experiment,
    pub(crate) terms: Terms,
    pub(crate) search: Option<SearchState>,
    pub(crate) trials: BTreeMap<TrialId, Trial>,
    pub(crate) hparams: BTreeMap<TrialId, String>,
    pub(crate) tasks: BTreeMap<TaskId, Task>,
    pub(crate) allocations: BTreeMap<AllocationId, Allocation>,
    pub(crate) containers: BTreeMap<ContainerId, Container>,
    /// Places that allocations must not run on.
    pub(crate) excluded: BTreeMap<AllocationId, BTreeSet<PlaceId>>,
    slots: BTreeMap<ContainerId, BTreeSet<SlotId>>,
    pub(crate) places: BTreeMap<PlaceId, Place>,
    pub(crate) forbidden: Option<String>,
    /// By what the search decides.
    pub(crate) searched_metrics: Option<SearchedMetrics>,
    /// Whether the last run that began went on from a checkpoint.
    pub(crate) resumed: bool,
    pub(crate) effects: Vec<Effect>,
}

pub(crate) const EXPERIMENT: ExperimentId = ExperimentId(1);

/// What searches by this method are made of.
pub(crate) fn searcher(method: &SearchMethod) -> SearcherConfig {
    SearcherConfig {
        metric: "loss".to_owned(),
        smaller_is_better: true,
        source_trial_id: None,
        source_checkpoint_uuid: None,
        method: method.clone(),
    }
}

/// The hyperparameters that searches choose from.
pub(crate) fn space() -> Space {
    let rate = Hyperparameter::Log {
        minval: -4.0,
        maxval: -1.0,
        base: 10.0,
        count: None,
    };
    Space::from([("rate".to_owned(), rate)])
}

/// A search by this method, not started.
pub(crate) fn search(method: &SearchMethod) -> Search {
    Search::new(&searcher(method), &space(), 7).expect("a search")
}

/// An active experiment whose search, by this method, has begun.
pub(crate) fn world(method: &SearchMethod, max_restarts: u32) -> World {
    let mut world = empty(max_restarts);
    world.happens(Event::SearchBegins {
        id: EXPERIMENT,
        search: Box::new(search(method)),
        actions: Vec::new(),
    });
    world
}

/// An unmanaged experiment without trials.
pub(crate) fn unmanaged() -> World {
    let mut world = empty(0);
    world.experiment.unmanaged = true;
    world.experiment.state = ExperimentState::Paused;
    world
}

fn empty(max_restarts: u32) -> World {
    World {
        now: 1_000_000,
        experiment: Experiment {
            id: EXPERIMENT,
            state: ExperimentState::Active,
            job_id: JobId::from("job"),
            owner_id: UserId(1),
            resource_pool: "default".to_owned(),
            progress: 0.0,
            trial_count: 0,
            unmanaged: false,
            ended_at: None,
        },
        terms: Terms {
            max_restarts,
            demand: Demand {
                slots: 1,
                single_place: false,
                preemption_timeout: 60,
                preemptible: None,
            },
            log_retention_days: None,
        },
        search: None,
        trials: BTreeMap::new(),
        hparams: BTreeMap::new(),
        tasks: BTreeMap::new(),
        allocations: BTreeMap::new(),
        containers: BTreeMap::new(),
        excluded: BTreeMap::new(),
        slots: BTreeMap::new(),
        places: BTreeMap::from([("a".into(), place()), ("b".into(), place())]),
        forbidden: None,
        searched_metrics: None,
        resumed: false,
        effects: Vec::new(),
    }
}

fn place() -> Place {
    Place {
        resource_pool: "default".to_owned(),
        instance: "disk 1".into(),
        services: Services::default(),
        disconnected_at: None,
    }
}

/// Trials that one change deals with at most.
pub(crate) const AT_ONCE: u32 = 3;

impl World {
    /// Decides on an event with everything that follows.
    pub(crate) fn try_event(&mut self, event: Event) -> Result<(), Refusal> {
        let core = Core {
            snapshot_every: 100,
            trials_at_once: AT_ONCE,
            mutant: None,
        };
        let mut agenda = Agenda::new([event]);
        while let Some(event) = agenda.next_event() {
            let clock = Clock {
                wall: Micros(self.now),
                steady: Micros(self.now),
            };
            let outcome = core.decide(self, clock, event)?;
            for effect in outcome.effects {
                match &effect {
                    Effect::InsertTrial(new) => {
                        let id = TrialId(i64::try_from(self.trials.len()).expect("few") + 1);
                        self.hparams.insert(id, new.hparams.clone());
                        let trial = Trial {
                            id,
                            experiment_id: new.experiment_id,
                            request_id: new.request_id.clone(),
                            task_id: new.task_id.clone(),
                            state: new.state,
                            unmanaged: new.unmanaged,
                            run_id: RunId::default(),
                            restarts: 0,
                            ended_at: None,
                        };
                        self.trials.insert(id, trial);
                    }
                    Effect::EndSearch(_) => self.search = None,
                    Effect::RemovePlace(id) => {
                        self.places.remove(id);
                    }
                    _ => {}
                }
                self.effects.push(effect);
            }
            agenda.follow(outcome.then);
        }
        Ok(())
    }

    pub(crate) fn happens(&mut self, event: Event) {
        self.try_event(event).expect("it is accepted");
    }

    pub(crate) fn trial_row(&self, id: i64) -> &Trial {
        &self.trials[&TrialId(id)]
    }

    /// The live allocation of a trial.
    pub(crate) fn live(&self, trial: i64) -> AllocationId {
        self.live_allocation(&self.trial_row(trial).task_id)
            .expect("a live allocation")
    }

    /// Places the live allocation of a trial, one container on each place, and lets all of them run and meet.
    pub(crate) fn runs_on(&mut self, trial: i64, places: &[&str]) -> Vec<ContainerId> {
        let task_id = self.trial_row(trial).task_id.clone();
        self.task_runs_on(&task_id, places)
    }

    /// The same of a task.
    pub(crate) fn task_runs_on(&mut self, task_id: &TaskId, places: &[&str]) -> Vec<ContainerId> {
        let id = self.live_allocation(task_id).expect("a live allocation");
        let ids = self.task_starts_on(task_id, places);
        for container_id in &ids {
            self.happens(Event::Joined {
                id: id.clone(),
                container_id: container_id.clone(),
                cause: Cause::actor(ActorName::Task("code".into())),
            });
        }
        ids
    }

    /// The same, and its containers have not met.
    pub(crate) fn task_starts_on(&mut self, task_id: &TaskId, places: &[&str]) -> Vec<ContainerId> {
        let id = self.live_allocation(task_id).expect("a live allocation");
        let parts = places
            .iter()
            .map(|place| ((*place).into(), vec![SlotId(0)]));
        let ids: Vec<ContainerId> = (0..places.len())
            .map(|n| ContainerId(format!("{id}-{n}")))
            .collect();
        self.happens(Event::Place(PlacedAllocation {
            placement: Placement {
                allocation_id: id.clone(),
                parts: parts.collect(),
            },
            container_ids: ids.clone(),
            ports: det_taskspec::GivenPorts {
                step: Some(0),
                service: None,
            },
            namespace: Some("research".into()),
        }));
        for (container_id, place) in ids.iter().zip(places) {
            self.observe(place, container_id, running());
        }
        ids
    }

    pub(crate) fn observe(
        &mut self,
        place: &str,
        container_id: &ContainerId,
        observed: ObservedState,
    ) {
        self.happens(Event::Observed {
            place: place.into(),
            container_id: container_id.clone(),
            observed,
        });
    }

    /// Lines of the logs, in order.
    pub(crate) fn lines(&self) -> Vec<&str> {
        let lines = self.effects.iter().filter_map(|effect| match effect {
            Effect::Log { text, .. } => Some(text.as_str()),
            _ => None,
        });
        lines.collect()
    }

    /// Kinds of the records about a place, in order.
    pub(crate) fn records_of_place(&self, place: &str) -> Vec<EventKind> {
        let subject = Subject::Place(place.into());
        let kinds = self.effects.iter().filter_map(|effect| match effect {
            Effect::Record(record) if record.subject == subject => Some(record.kind),
            _ => None,
        });
        kinds.collect()
    }

    pub(crate) fn is_woken(&self, topic: &Topic) -> bool {
        let wake = |effect: &Effect| matches!(effect, Effect::Wake(woken) if woken == topic);
        self.effects.iter().any(wake)
    }
}

pub(crate) fn running() -> ObservedState {
    ObservedState::Running {
        host_address: "10.0.0.1".to_owned(),
        ports: Vec::new(),
        runtime_id: "1".to_owned(),
    }
}

impl ExperimentRows for World {
    fn experiment(&self, id: ExperimentId) -> Option<Experiment> {
        (id == EXPERIMENT).then(|| self.experiment.clone())
    }
    fn update_experiment(&mut self, row: &Experiment) {
        self.experiment = row.clone();
    }
    fn terms(&self, _id: ExperimentId) -> Result<Terms, Unreadable> {
        Ok(self.terms)
    }
    fn live_trials(&self, _id: ExperimentId) -> Vec<(TrialId, TrialState)> {
        let live = self.trials.values().filter(|t| t.ended_at.is_none());
        live.map(|t| (t.id, t.state)).collect()
    }
    fn live_trial_count(&self, id: ExperimentId) -> usize {
        self.live_trials(id).len()
    }
    fn search(&mut self, _id: ExperimentId) -> Option<&mut SearchState> {
        self.search.as_mut()
    }
    fn searched_metrics(&self, _id: ExperimentId) -> Option<SearchedMetrics> {
        self.searched_metrics.clone()
    }
    fn insert_search(&mut self, _id: ExperimentId, search: SearchState) {
        self.search = Some(search);
    }
}

impl TrialRows for World {
    fn trial(&self, id: TrialId) -> Option<Trial> {
        self.trials.get(&id).cloned()
    }
    fn trial_of_request(&self, _id: ExperimentId, name: &RequestId) -> Option<Trial> {
        self.trials
            .values()
            .find(|t| t.request_id == *name)
            .cloned()
    }
    fn update_trial(&mut self, row: &Trial) {
        self.trials.insert(row.id, row.clone());
    }
    fn set_hparams(&mut self, id: TrialId, hparams: &str) {
        self.hparams.insert(id, hparams.to_owned());
    }
    fn trial_counts(&self, _id: ExperimentId) -> TrialCounts {
        let mut counts = TrialCounts::default();
        for trial in self.trials.values() {
            counts.add(trial.state, 1);
        }
        counts
    }
    fn start_run(&mut self, id: TrialId, run_id: RunId, resumes: bool) {
        self.resumed = resumes;
        if let Some(trial) = self.trials.get_mut(&id) {
            trial.run_id = run_id;
        }
    }
    fn restart_forbidden(&self, _id: TrialId) -> Option<String> {
        self.forbidden.clone()
    }
    fn task_count(&self, id: TrialId) -> usize {
        self.tasks
            .values()
            .filter(|t| t.trial_id == Some(id))
            .count()
    }
}

impl TaskRows for World {
    fn task(&self, id: &TaskId) -> Option<Task> {
        self.tasks.get(id).cloned()
    }
    fn insert_task(&mut self, row: Task) {
        self.tasks.insert(row.id.clone(), row);
    }
    fn update_task(&mut self, row: &Task) {
        self.tasks.insert(row.id.clone(), row.clone());
    }
    fn resource_pool(&self, _task: &Task) -> Option<String> {
        Some(self.experiment.resource_pool.clone())
    }
    fn allocation(&self, id: &AllocationId) -> Option<Allocation> {
        self.allocations.get(id).cloned()
    }
    fn live_allocation(&self, task_id: &TaskId) -> Option<AllocationId> {
        let of_task = |a: &&Allocation| a.task_id == *task_id && a.ended_at.is_none();
        self.allocations
            .values()
            .find(of_task)
            .map(|a| a.id.clone())
    }
    fn insert_allocation(&mut self, row: Allocation, excluded: Option<BTreeSet<PlaceId>>) {
        self.excluded
            .extend(excluded.map(|places| (row.id.clone(), places)));
        self.allocations.insert(row.id.clone(), row);
    }
    fn exclude(&mut self, id: &AllocationId, places: &BTreeSet<PlaceId>) {
        self.excluded.insert(id.clone(), places.clone());
    }
    fn update_allocation(&mut self, row: &Allocation) {
        self.allocations.insert(row.id.clone(), row.clone());
    }
}

impl PlaceRows for World {
    fn container(&self, id: &ContainerId) -> Option<Container> {
        self.containers.get(id).cloned()
    }
    fn containers(&self, id: &AllocationId) -> Vec<Container> {
        let all = self.containers.values();
        all.filter(|c| c.allocation_id == *id).cloned().collect()
    }
    fn insert_container(&mut self, row: Container, slots: &[SlotId]) {
        let slots = slots.iter().copied().collect();
        self.slots.insert(row.id.clone(), slots);
        self.containers.insert(row.id.clone(), row);
    }
    fn update_container(&mut self, row: &Container) {
        self.containers.insert(row.id.clone(), row.clone());
    }
    fn place(&self, id: &PlaceId) -> Option<Place> {
        self.places.get(id).cloned()
    }
    fn update_place(&mut self, id: &PlaceId, row: &Place) {
        self.places.insert(id.clone(), row.clone());
    }
    fn holders(&self, id: &PlaceId) -> Vec<(AllocationId, BTreeSet<SlotId>)> {
        let live = self.live_containers_on(id).into_iter();
        let slots = live.map(|c| (c.allocation_id, self.slots[&c.id].clone()));
        slots.collect()
    }
    fn live_containers_on(&self, place: &PlaceId) -> Vec<Container> {
        let on = |c: &&Container| c.place == *place && c.ended_at.is_none();
        self.containers.values().filter(on).cloned().collect()
    }
}
