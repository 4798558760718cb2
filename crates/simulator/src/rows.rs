//! What is committed: the master's rows, as the store has them. All that survives a crash of the master.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use det_ids::{
    AllocationId, CheckpointId, ContainerId, ExperimentId, JobId, PlaceId, RequestId, RunId,
    SlotId, SpoolId, TaskId, TrialId,
};
use det_lifecycle::record::{EventKind, RecordedState, Subject};
use det_orchestrator::Task;
use det_taskspec::{GivenPorts, HostPorts, Hosts, PortWish};

use crate::history::{Launch, Submission};

/// Microseconds since the simulated cluster began.
pub type Time = i64;

/// One second of simulated time.
pub const SECOND: Time = 1_000_000;

/// An experiment and its job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Experiment {
    pub(crate) row: det_orchestrator::Experiment,
    pub(crate) submission: Rc<Submission>,
    pub(crate) priority: u8,
    /// Share weight of its job, counted in halves: 2 = a weight of 1.
    pub(crate) weight: u8,
    pub(crate) max_slots: Option<u32>,
    pub(crate) submitted_at: Time,
}

/// A trial, with what only the store knows of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trial {
    pub(crate) row: det_orchestrator::Trial,
    pub(crate) seed: u32,
    /// The complete checkpoint with most steps, and these.
    pub(crate) latest_checkpoint: Option<(CheckpointId, i64)>,
}

/// An allocation as the master stores it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Allocation {
    pub(crate) row: det_orchestrator::Allocation,
}

/// A task of its own, with its job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LaunchedTask {
    pub(crate) launch: Rc<Launch>,
    pub(crate) job_id: JobId,
    pub(crate) submitted_at: Time,
    /// The generic task that it belongs to.
    pub(crate) parent: Option<TaskId>,
    /// Attempts whose code has begun to run.
    pub(crate) started: usize,
}

/// A container, with the slots that it was given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Container {
    pub(crate) row: det_orchestrator::Container,
    pub(crate) slots: Vec<SlotId>,
}

/// An agent as last seen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Agent {
    pub(crate) id: PlaceId,
    pub(crate) slots: u32,
    pub(crate) row: det_orchestrator::Place,
}

impl Agent {
    /// Whether it is connected, by its row.
    pub(crate) fn is_connected(&self) -> bool {
        self.row.disconnected_at.is_none()
    }

    /// Every slot of the place, numbered from 0.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotId> {
        (0..self.slots).map(SlotId)
    }
}

/// A checkpoint that a trial has reported.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) uuid: CheckpointId,
    pub(crate) trial_id: TrialId,
    pub(crate) run_id: RunId,
    pub(crate) steps: i64,
    pub(crate) files: BTreeMap<String, i64>,
}

/// A search: its last snapshot and the events since.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredSearch {
    pub(crate) through: i64,
    pub(crate) snapshot: String,
    pub(crate) events: Vec<(i64, String)>,
}

/// A reported metric of a trial, as stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Metric {
    pub(crate) trial_id: TrialId,
    pub(crate) run_id: RunId,
    pub(crate) step: i64,
    pub(crate) value: f64,
}

/// A line of a log, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) trial_id: TrialId,
    pub(crate) run_id: RunId,
    pub(crate) spool: SpoolId,
    pub(crate) sequence: i64,
}

/// The state that the newest event names, where one does, and all kinds of events so far.
pub(crate) type SubjectRecord = (Option<RecordedState>, BTreeSet<EventKind>);

/// All rows of the master's database.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rows {
    pub(crate) experiments: BTreeMap<ExperimentId, Experiment>,
    pub(crate) trials: BTreeMap<TrialId, Trial>,
    pub(crate) tasks: BTreeMap<TaskId, Task>,
    pub(crate) launched: BTreeMap<TaskId, LaunchedTask>,
    pub(crate) allocations: BTreeMap<AllocationId, Allocation>,
    pub(crate) containers: BTreeMap<ContainerId, Container>,
    pub(crate) agents: BTreeMap<PlaceId, Agent>,
    pub(crate) checkpoints: BTreeMap<CheckpointId, Checkpoint>,
    pub(crate) searches: BTreeMap<ExperimentId, StoredSearch>,
    pub(crate) metrics: Vec<Metric>,
    /// Steps stored by trial and run.
    pub(crate) steps: BTreeMap<(TrialId, RunId), BTreeSet<i64>>,
    pub(crate) lines: Vec<Line>,
    /// The next number of each spool.
    pub(crate) spools: BTreeMap<SpoolId, i64>,
    /// Of each subject: the state that its newest event names, and what happened to it.
    pub(crate) recorded: BTreeMap<Subject, SubjectRecord>,
    /// Number of events that were recorded since the start of the history.
    pub(crate) events: u64,
    pub(crate) last_experiment: i64,
    pub(crate) last_trial: i64,
    pub(crate) last_task: u64,
    pub(crate) last_container: u64,
    /// Live allocations, containers that hold slots, live trials: what the database has indexes for.
    pub(crate) live: Live,
    /// Grows with every change.
    pub(crate) version: u64,
    /// What changed since it was last taken.
    pub(crate) touched: TouchedRows,
}

/// Ids of the rows that are live, as indexes for queries.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Live {
    pub(crate) allocations: BTreeSet<AllocationId>,
    pub(crate) containers: BTreeSet<ContainerId>,
    pub(crate) trials: BTreeSet<TrialId>,
    pub(crate) containers_of: BTreeMap<AllocationId, Vec<ContainerId>>,
    pub(crate) trials_of: BTreeMap<ExperimentId, Vec<TrialId>>,
    pub(crate) requests: BTreeMap<(ExperimentId, RequestId), TrialId>,
}

/// The rows that a transaction has changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TouchedRows {
    pub(crate) experiments: BTreeSet<ExperimentId>,
    pub(crate) trials: BTreeSet<TrialId>,
    pub(crate) allocations: BTreeSet<AllocationId>,
    pub(crate) tasks: BTreeSet<TaskId>,
}

impl Rows {
    /// An experiment, to be changed.
    pub(crate) fn experiment_mut(&mut self, id: ExperimentId) -> Option<&mut Experiment> {
        self.version += 1;
        self.touched.experiments.insert(id);
        self.experiments.get_mut(&id)
    }

    /// A trial, to be changed.
    pub(crate) fn trial_mut(&mut self, id: TrialId) -> Option<&mut Trial> {
        self.version += 1;
        self.touched.trials.insert(id);
        self.trials.get_mut(&id)
    }

    /// The ports that live allocations have; each place is a host.
    pub(crate) fn host_ports(&self) -> HostPorts {
        let mut ports = HostPorts::new(Hosts::default(), &[]);
        for id in &self.live.allocations {
            let Some(allocation) = self.allocations.get(id) else {
                continue;
            };
            let given = GivenPorts {
                step: allocation.row.port_step,
                service: allocation.row.service_port,
            };
            let containers = self.live.containers_of.get(id).into_iter().flatten();
            let containers = containers.filter_map(|id| self.containers.get(id));
            ports.note(given, containers.map(|container| &container.row.place));
        }
        ports
    }

    /// The port that the service of an allocation would like. Kinds have few here, so that it is in use often.
    pub(crate) fn port_wish(&self, id: &AllocationId) -> Option<PortWish> {
        let ports = self.allocations.get(id)?.row.kind.service_ports()?;
        let first = *ports.start();
        Some(PortWish {
            ports: first..=first + 2,
            first,
            own: BTreeSet::new(),
        })
    }

    /// An allocation, to be changed.
    pub(crate) fn allocation_mut(&mut self, id: &AllocationId) -> Option<&mut Allocation> {
        self.version += 1;
        self.touched.allocations.insert(id.clone());
        self.allocations.get_mut(id)
    }

    /// A container, to be changed.
    pub(crate) fn container_mut(&mut self, id: &ContainerId) -> Option<&mut Container> {
        self.version += 1;
        let container = self.containers.get_mut(id)?;
        self.touched
            .allocations
            .insert(container.row.allocation_id.clone());
        Some(container)
    }

    pub(crate) fn insert_trial(&mut self, trial: Trial) {
        let (id, of) = (trial.row.id, trial.row.experiment_id);
        self.version += 1;
        self.touched.trials.insert(id);
        self.live.trials.insert(id);
        self.live.trials_of.entry(of).or_default().push(id);
        let request = trial.row.request_id.clone();
        self.live.requests.insert((of, request), id);
        self.trials.insert(id, trial);
    }

    pub(crate) fn insert_allocation(&mut self, allocation: Allocation) {
        let id = allocation.row.id.clone();
        self.version += 1;
        self.touched.allocations.insert(id.clone());
        self.live.allocations.insert(id.clone());
        self.allocations.insert(id, allocation);
    }

    pub(crate) fn insert_container(&mut self, container: Container) {
        let id = container.row.id.clone();
        let of = container.row.allocation_id.clone();
        self.version += 1;
        self.touched.allocations.insert(of.clone());
        self.live.containers.insert(id.clone());
        self.live
            .containers_of
            .entry(of)
            .or_default()
            .push(id.clone());
        self.containers.insert(id, container);
    }

    /// Adds a line to the record of changes; with `to` a subject's new state.
    pub(crate) fn record(&mut self, subject: Subject, what: EventKind, to: Option<RecordedState>) {
        self.version += 1;
        self.events += 1;
        let known = self.recorded.entry(subject).or_default();
        if to.is_some() {
            known.0 = to;
        }
        known.1.insert(what);
    }

    /// Stores a metric report, unless the run has reported that step already; whether it was stored.
    pub(crate) fn insert_metric(&mut self, metric: Metric, stores_twice: bool) -> bool {
        let run = (metric.trial_id, metric.run_id);
        let is_new = self.steps.entry(run).or_default().insert(metric.step);
        if is_new || stores_twice {
            self.version += 1;
            self.metrics.push(metric);
        }
        is_new || stores_twice
    }

    /// The row of an allocation.
    pub(crate) fn allocation(
        &self,
        id: &AllocationId,
    ) -> Result<&det_orchestrator::Allocation, String> {
        let found = self.allocations.get(id).map(|it| &it.row);
        found.ok_or_else(|| format!("allocation {id} not found"))
    }

    /// The containers of an allocation, the chief first.
    pub(crate) fn members(&self, allocation_id: &AllocationId) -> Vec<&Container> {
        self.live
            .containers_of
            .get(allocation_id)
            .into_iter()
            .flatten()
            .filter_map(|id| self.containers.get(id))
            .collect()
    }

    /// The live allocation of a task.
    pub(crate) fn live_of_task(&self, task_id: &TaskId) -> Option<&Allocation> {
        let task = self.tasks.get(task_id)?;
        self.allocations
            .get(&task.id.allocation(task.attempts))
            .filter(|a| a.row.ended_at.is_none())
    }

    /// Containers of an agent that hold slots.
    pub(crate) fn live_containers_of(&self, place: &PlaceId) -> Vec<&Container> {
        self.live
            .containers
            .iter()
            .filter_map(|id| self.containers.get(id))
            .filter(|c| c.row.place == *place)
            .collect()
    }

    /// Live trials of an experiment by number.
    pub(crate) fn live_trials_of(&self, experiment_id: ExperimentId) -> Vec<TrialId> {
        self.live
            .trials_of
            .get(&experiment_id)
            .into_iter()
            .flatten()
            .copied()
            .filter(|id| self.live.trials.contains(id))
            .collect()
    }

    /// Removes everything of an experiment.
    pub(crate) fn delete_experiment(&mut self, id: ExperimentId) {
        self.version += 1;
        let trials: BTreeSet<TrialId> = self
            .live
            .trials_of
            .remove(&id)
            .unwrap_or_default()
            .into_iter()
            .collect();
        self.experiments.remove(&id);
        self.searches.remove(&id);
        self.live.requests.retain(|(e, _), _| *e != id);
        self.trials.retain(|t, _| !trials.contains(t));
        self.tasks
            .retain(|_, task| task.trial_id.is_none_or(|t| !trials.contains(&t)));
        self.checkpoints
            .retain(|_, c| !trials.contains(&c.trial_id));
        self.metrics.retain(|m| !trials.contains(&m.trial_id));
        self.lines.retain(|l| !trials.contains(&l.trial_id));
        let gone: Vec<AllocationId> = self
            .allocations
            .values()
            .filter(|a| a.row.trial_id.is_some_and(|t| trials.contains(&t)))
            .map(|a| a.row.id.clone())
            .collect();
        for allocation in gone {
            self.allocations.remove(&allocation);
            for container in self
                .live
                .containers_of
                .remove(&allocation)
                .unwrap_or_default()
            {
                self.containers.remove(&container);
            }
        }
    }
}
