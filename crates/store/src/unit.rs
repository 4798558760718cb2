//! Live rows in memory: read once, changed in memory, written together.
//!
//! The writer owns one [`Unit`]. While changes of a group run, the functions of the row modules find rows of trials,
//! tasks, allocations, containers, experiments and agents here and change them here; what is only ever appended (events,
//! log lines, tokens, events of searches) is kept in lists. Before the commit everything goes to the database in few
//! statements: one for each row on SQLite, where a statement costs no round trip, one for each table on PostgreSQL.
//!
//! - **The rows stay the truth.** Between groups the unit holds what is committed and nothing else; when a commit fails
//!   it is emptied, and the rows are read again. Emptying it at any moment costs time and nothing else.
//! - **A refused change leaves nothing behind.** Every cell is kept as it was when the change under way first touched
//!   it, and put back; so are the ends of the lists.
//! - **A row is read by its key from here; every other query is answered by the database**, after what waits has been
//!   written (`Conn::flush`).
//! - In builds with debug assertions every row that a group wrote is read again before the commit and compared.
//!
//! [`Changes`] has what a commit has changed for an observer, so that others can keep a cache of the live rows too.

use std::collections::HashMap;
use std::sync::Arc;

use crate::agents::AgentRow;
use crate::allocations::{AllocationRow, ContainerRow, TaskRow};
use crate::events::StoredEvent;
use crate::experiments::ExperimentRow;
use crate::logs::LogLine;
use crate::trials::TrialRow;

mod table;
mod write;

use det_ids::{AllocationId, ContainerId, ExperimentId, JobId, PlaceId, TaskId, TrialId};
use table::{Appended, Noted, Table};
pub(crate) use write::{insert_texts, save_rows};

/// Rows kept at most after a commit; beyond it all are dropped and read again when needed.
const MOST_CELLS: usize = 200_000;

/// What one commit has changed among live things: the rows as they are now.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// Allocations that are new or changed, or whose containers are; each with all its containers, ended ones included.
    pub allocations: Vec<(Arc<AllocationRow>, Vec<Arc<ContainerRow>>)>,
    /// Agents that are new or changed.
    pub agents: Vec<Arc<AgentRow>>,
    /// Agents that are gone.
    pub removed_agents: Vec<PlaceId>,
    /// Jobs that are new or changed.
    pub jobs: Vec<JobId>,
    /// More may have changed than is listed here: a cache must be loaded again from the rows.
    pub everything: bool,
    /// The store itself has recorded an event: those who follow events are notified of it by the observer alone.
    pub own_event: bool,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.allocations.is_empty()
            && self.agents.is_empty()
            && self.removed_agents.is_empty()
            && self.jobs.is_empty()
            && !self.everything
            && !self.own_event
    }
}

/// An experiment, and how many of its trials live, once that was counted.
#[derive(Clone)]
pub(crate) struct ExperimentCell {
    pub(crate) row: Arc<ExperimentRow>,
    pub(crate) live_trials: Option<i64>,
}

/// A task, and its live allocation, once that was looked for.
#[derive(Clone)]
#[expect(
    clippy::option_option,
    reason = "not looked for yet, looked for and absent, and there are three things"
)]
pub(crate) struct TaskCell {
    pub(crate) row: Arc<TaskRow>,
    pub(crate) live: Option<Option<AllocationId>>,
}

/// An allocation with its containers.
#[derive(Clone)]
pub(crate) struct AllocationCell {
    pub(crate) row: Arc<AllocationRow>,
    /// Whether the row itself differs from what is stored.
    pub(crate) row_dirty: bool,
    /// In order of their place, once they were read; each with whether it differs from its row.
    pub(crate) containers: Option<Vec<(Arc<ContainerRow>, bool)>>,
}

/// A line of the master's own for a task's log.
struct Line {
    task_id: TaskId,
    line: LogLine,
}

/// Declares [`Unit`] with its parts. A part takes part in all that follows from its declaration alone.
macro_rules! unit {
    ($($(#[$doc:meta])* $visibility:vis $part:ident: $kind:ty,)+) => {
        /// The rows in memory, and what waits to be written.
        #[derive(Default)]
        pub struct Unit {
            /// The number of the change under way.
            serial: u64,
            /// The allocation of a container. A hint: it may name an allocation that is not kept any more.
            allocation_of: HashMap<ContainerId, AllocationId>,
            own_event: bool,
            $($(#[$doc])* $visibility $part: $kind,)+
        }

        impl Unit {
            fn parts(&mut self) -> impl Iterator<Item = &mut dyn Part> {
                [$(&mut self.$part as &mut dyn Part),+].into_iter()
            }
        }
    };
}

unit! {
    pub(crate) trials: Table<TrialId, Arc<TrialRow>>,
    pub(crate) experiments: Table<ExperimentId, ExperimentCell>,
    pub(crate) tasks: Table<TaskId, TaskCell>,
    pub(crate) allocations: Table<AllocationId, AllocationCell>,
    pub(crate) agents: Table<PlaceId, Arc<AgentRow>>,
    events: Appended<StoredEvent>,
    lines: Appended<Line>,
    tokens: Appended<(Vec<u8>, AllocationId)>,
    /// Allocations whose tokens expire, and when.
    expiries: Appended<(AllocationId, i64)>,
    search_events: Appended<(ExperimentId, i64, String)>,
    removed_agents: Noted<PlaceId>,
    jobs: Noted<JobId>,
    everything: Noted<()>,
}

/// A part of the unit: a table of rows, or a list. All parts begin, are undone and end together.
trait Part {
    /// A change begins.
    fn begin(&mut self);
    /// The change that began last is refused.
    fn undo(&mut self);
    /// Whether something of it waits to be written.
    fn has_unwritten(&self) -> bool;
    /// Rows that it keeps between groups.
    fn kept(&self) -> usize;
    /// Drops all rows, which are read again when needed.
    fn evict(&mut self, serial: u64);
    /// The group is over: lists are emptied.
    fn clear(&mut self);
}

impl Unit {
    /// A change begins.
    pub(crate) fn begin(&mut self) {
        self.serial += 1;
        for part in self.parts() {
            part.begin();
        }
    }

    /// Whether anything waits to be written.
    pub(crate) fn has_unwritten(&mut self) -> bool {
        self.parts().any(|part| part.has_unwritten())
    }

    /// The change that began last is refused: as if it had never been.
    pub(crate) fn undo(&mut self) {
        for part in self.parts() {
            part.undo();
        }
    }

    /// The group is committed. Gives what it changed, and drops the rows of what has ended.
    pub(crate) fn committed(&mut self) -> Option<Changes> {
        self.trials.take_written(|row| row.ended_at.is_some());
        self.experiments
            .take_written(|cell| cell.row.ended_at.is_some());
        self.tasks.take_written(|cell| cell.row.ended_at.is_some());
        let mut changes = Changes {
            agents: self.agents.take_written(|_| false),
            removed_agents: std::mem::take(&mut self.removed_agents.items),
            jobs: std::mem::take(&mut self.jobs.items),
            everything: !self.everything.items.is_empty(),
            own_event: std::mem::take(&mut self.own_event),
            ..Changes::default()
        };
        for cell in self
            .allocations
            .take_written(|cell| cell.row.ended_at.is_some())
        {
            let containers: Vec<Arc<ContainerRow>> = cell
                .containers
                .into_iter()
                .flatten()
                .map(|(row, _)| row)
                .collect();
            if cell.row.ended_at.is_some() {
                for container in &containers {
                    self.allocation_of.remove(&container.id);
                }
            }
            changes.allocations.push((cell.row, containers));
        }
        let mut kept = 0;
        for part in self.parts() {
            part.clear();
            kept += part.kept();
        }
        if kept > MOST_CELLS {
            self.drop_all();
        }
        (!changes.is_empty()).then_some(changes)
    }

    /// Drops everything: a commit has failed, or the connection was lost.
    pub(crate) fn drop_all(&mut self) {
        *self = Self {
            serial: self.serial,
            ..Self::default()
        };
    }

    // Trials.

    pub(crate) fn keep_trial(&mut self, row: TrialRow, dirty: bool) {
        self.trials.set(self.serial, row.id, Arc::new(row), dirty);
    }

    pub(crate) fn edit_trial(&mut self, id: TrialId, change: impl FnOnce(&mut TrialRow)) {
        let mut ended = None;
        self.trials.edit(self.serial, &id, |row| {
            let row = Arc::make_mut(row);
            let before = row.ended_at.is_some();
            change(row);
            if before != row.ended_at.is_some() {
                ended = Some((row.experiment_id, row.ended_at.is_some()));
            }
        });
        if let Some((experiment_id, ended)) = ended {
            self.count_trials(experiment_id, if ended { -1 } else { 1 });
        }
    }

    /// So many trials more live.
    pub(crate) fn count_trials(&mut self, experiment_id: ExperimentId, more: i64) {
        self.experiments.note(self.serial, &experiment_id, |cell| {
            cell.live_trials = cell.live_trials.map(|n| n + more);
        });
    }

    // Experiments.

    pub(crate) fn keep_experiment(&mut self, row: ExperimentRow) {
        let cell = ExperimentCell {
            row: Arc::new(row),
            live_trials: None,
        };
        self.experiments.set(self.serial, cell.row.id, cell, false);
    }

    pub(crate) fn edit_experiment(
        &mut self,
        id: ExperimentId,
        change: impl FnOnce(&mut ExperimentRow),
    ) {
        self.experiments.edit(self.serial, &id, |cell| {
            change(Arc::make_mut(&mut cell.row));
        });
    }

    pub(crate) fn set_live_trials(&mut self, id: ExperimentId, count: i64) {
        self.experiments
            .note(self.serial, &id, |cell| cell.live_trials = Some(count));
    }

    // Tasks.

    pub(crate) fn keep_task(&mut self, row: TaskRow, is_new: bool) {
        let cell = TaskCell {
            row: Arc::new(row),
            // A new one has none.
            live: is_new.then_some(None),
        };
        let key = cell.row.id.clone();
        self.tasks.set(self.serial, key, cell, is_new);
    }

    pub(crate) fn edit_task(&mut self, id: &TaskId, change: impl FnOnce(&mut TaskRow)) {
        self.tasks
            .edit(self.serial, id, |cell| change(Arc::make_mut(&mut cell.row)));
    }

    pub(crate) fn set_live_allocation(
        &mut self,
        task_id: &TaskId,
        allocation_id: Option<AllocationId>,
    ) {
        self.tasks
            .note(self.serial, task_id, |cell| cell.live = Some(allocation_id));
    }

    // Allocations and their containers.

    pub(crate) fn keep_allocation(&mut self, row: AllocationRow, is_new: bool) {
        if is_new && row.ended_at.is_none() {
            self.set_live_allocation(&row.task_id, Some(row.id.clone()));
        }
        let cell = AllocationCell {
            row: Arc::new(row),
            row_dirty: is_new,
            containers: is_new.then(Vec::new),
        };
        let key = cell.row.id.clone();
        self.allocations.set(self.serial, key, cell, is_new);
    }

    pub(crate) fn edit_allocation(
        &mut self,
        id: &AllocationId,
        change: impl FnOnce(&mut AllocationRow),
    ) {
        let mut ended = None;
        self.allocations.edit(self.serial, id, |cell| {
            cell.row_dirty = true;
            let row = Arc::make_mut(&mut cell.row);
            change(row);
            if row.ended_at.is_some() {
                ended = Some(row.task_id.clone());
            }
        });
        if let Some(task_id) = ended {
            let is_it = |cell: &TaskCell| {
                cell.live
                    .as_ref()
                    .is_some_and(|live| live.as_ref() == Some(id))
            };
            if self.tasks.get(&task_id).is_some_and(is_it) {
                self.set_live_allocation(&task_id, None);
            }
        }
    }

    /// The containers of a kept allocation as they were read.
    pub(crate) fn keep_containers(
        &mut self,
        allocation_id: &AllocationId,
        rows: Vec<ContainerRow>,
    ) {
        for row in &rows {
            self.allocation_of
                .insert(row.id.clone(), allocation_id.clone());
        }
        self.allocations.note(self.serial, allocation_id, |cell| {
            let rows = rows.into_iter().map(|row| (Arc::new(row), false));
            cell.containers = Some(rows.collect());
        });
    }

    /// Adds a container to a kept allocation whose containers are known.
    pub(crate) fn add_container(&mut self, row: ContainerRow) {
        self.allocation_of
            .insert(row.id.clone(), row.allocation_id.clone());
        let allocation_id = row.allocation_id.clone();
        self.allocations.edit(self.serial, &allocation_id, |cell| {
            let rows = cell.containers.get_or_insert_default();
            let at = rows.partition_point(|(other, _)| other.member <= row.member);
            rows.insert(at, (Arc::new(row), true));
        });
    }

    pub(crate) fn edit_container(
        &mut self,
        allocation_id: &AllocationId,
        id: &ContainerId,
        change: impl FnOnce(&mut ContainerRow),
    ) {
        self.allocations.edit(self.serial, allocation_id, |cell| {
            let rows = cell.containers.iter_mut().flatten();
            if let Some((row, dirty)) = rows.into_iter().find(|(row, _)| row.id == *id) {
                *dirty = true;
                change(Arc::make_mut(row));
            }
        });
    }

    /// The allocation of a container, where it is known.
    pub(crate) fn allocation_of(&self, container_id: &ContainerId) -> Option<&AllocationId> {
        self.allocation_of
            .get(container_id)
            .filter(|id| self.allocations.get(*id).is_some())
    }

    // Agents.

    pub(crate) fn keep_agent(&mut self, row: AgentRow, dirty: bool) {
        self.agents
            .set(self.serial, row.id.clone(), Arc::new(row), dirty);
    }

    pub(crate) fn remove_agent(&mut self, id: &PlaceId) {
        self.agents.remove(self.serial, id);
        self.removed_agents.items.push(id.clone());
    }

    // What is only appended.

    pub(crate) fn append_event(&mut self, event: StoredEvent) {
        self.events.items.push(event);
    }

    /// The store itself records an event with the commit that comes now.
    pub(crate) fn note_own_event(&mut self) {
        self.own_event = true;
    }

    pub(crate) fn append_line(&mut self, task_id: &TaskId, line: LogLine) {
        self.lines.items.push(Line {
            task_id: task_id.clone(),
            line,
        });
    }

    /// Whether lines wait for this task's log.
    pub(crate) fn has_lines(&self, task_id: &TaskId) -> bool {
        self.lines.items[self.lines.written..]
            .iter()
            .any(|line| line.task_id == *task_id)
    }

    pub(crate) fn append_token(&mut self, hash: &[u8], allocation_id: &AllocationId) {
        self.tokens
            .items
            .push((hash.to_vec(), allocation_id.clone()));
    }

    pub(crate) fn expire_tokens(&mut self, allocation_id: &AllocationId, at: i64) {
        self.expiries.items.push((allocation_id.clone(), at));
    }

    pub(crate) fn append_search_event(
        &mut self,
        experiment_id: ExperimentId,
        seq: i64,
        event: &str,
    ) {
        self.search_events
            .items
            .push((experiment_id, seq, event.to_owned()));
    }

    /// Observers must look at this job again.
    pub(crate) fn job_changed(&mut self, job_id: &JobId) {
        self.jobs.items.push(job_id.clone());
    }

    /// Rows were changed past the unit, everything waiting having been written before: they are read again when
    /// needed, here and by observers.
    pub(crate) fn evict_rows(&mut self) {
        let serial = self.serial;
        for part in self.parts() {
            part.evict(serial);
        }
        self.everything.items.push(());
    }

    /// The same of some trials, which nobody observes.
    pub(crate) fn evict_trials(&mut self, ids: impl IntoIterator<Item = TrialId>) {
        for id in ids {
            self.trials.remove(self.serial, &id);
        }
    }

    /// The same of all trials.
    pub(crate) fn evict_all_trials(&mut self) {
        self.trials.remove_all(self.serial);
    }

    /// The same of experiments alone, which nobody observes.
    pub(crate) fn evict_experiments(&mut self) {
        self.experiments.remove_all(self.serial);
    }
}
