//! Which tasks are meant by the name of a task, of a job or of an allocation.

use std::collections::BTreeMap;

use det_ids::AllocationId;
use serde::{Deserialize, Serialize};

use crate::cluster::Task;

/// Numbers of tasks, by everything that they are called by.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TaskNames {
    tasks: BTreeMap<String, usize>,
    /// By job, in order of submission.
    jobs: BTreeMap<String, Vec<usize>>,
    /// By the allocations that tasks have had.
    allocations: BTreeMap<String, usize>,
}

impl TaskNames {
    /// Adds a new task.
    pub(crate) fn add(&mut self, task: &Task, number: usize) {
        self.tasks.insert(task.name.clone(), number);
        let of_job = self.jobs.entry(task.job.clone()).or_default();
        of_job.push(number);
    }

    /// Adds the allocation that a task has now.
    pub(crate) fn add_allocation(&mut self, task: &Task, number: usize) {
        self.allocations.insert(task.allocation(), number);
    }

    /// Whether a task has this name.
    pub(crate) fn has_task(&self, name: &str) -> bool {
        self.tasks.contains_key(name)
    }

    /// The tasks of the job of this name, or the task of this name.
    pub(crate) fn of(&self, name: &str) -> Vec<usize> {
        match self.jobs.get(name) {
            Some(of_job) => of_job.clone(),
            None => self.tasks.get(name).copied().into_iter().collect(),
        }
    }

    /// The same; errs with a sentence for users when there are none.
    pub(crate) fn known(&self, name: &str) -> Result<Vec<usize>, String> {
        let found = self.of(name);
        if found.is_empty() {
            return Err(format!("there is no task and no job \"{name}\""));
        }
        Ok(found)
    }

    /// The task of an allocation.
    pub(crate) fn of_allocation(&self, allocation: &AllocationId) -> Option<usize> {
        self.allocations.get(allocation.as_str()).copied()
    }
}
