//! Live rows in memory: read once, changed in memory, written together.
//!
//! The writer owns one [`Unit`]. While changes of a group run, the functions of the row modules find rows of trials,
//! tasks, allocations, containers, experiments and agents here and change them here; what is only ever appended (events,
//! log lines, tokens, events of searches) gathers beside them. Before the commit everything goes to the database in few
//! statements: one for each row on SQLite, where a statement costs no round trip, one for each table on PostgreSQL.
//!
//! - **The rows stay the truth.** Between groups the unit holds what is committed and nothing else; when a commit fails
//!   it is emptied, and the rows are read again. Emptying it at any moment costs time and nothing else.
//! - **A refused change leaves nothing behind.** Every cell is kept as it was when the change under way first touched
//!   it, and put back; so are the ends of what gathered.
//! - **Who asks by key is answered from here; who asks for more is answered by the database**, after what waits has been
//!   written (`Conn::settle`).
//! - In builds with debug assertions every row that a group wrote is read again before the commit and compared.
//!
//! [`Changes`] tells an observer what a commit has changed, so that others can keep an image of the live rows too.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use crate::agents::AgentRow;
use crate::allocations::{AllocationRow, ContainerRow, TaskRow};
use crate::events::StoredEvent;
use crate::experiments::ExperimentRow;
use crate::logs::LogLine;
use crate::trials::TrialRow;
use crate::{Conn, StoreError};

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
    pub removed_agents: Vec<String>,
    /// Jobs that are new or changed.
    pub jobs: Vec<String>,
    /// More may have changed than is listed here: an image must be made anew from the rows.
    pub everything: bool,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.allocations.is_empty()
            && self.agents.is_empty()
            && self.removed_agents.is_empty()
            && self.jobs.is_empty()
            && !self.everything
    }
}

/// One kind of rows, by key.
pub(crate) struct Table<K, C> {
    cells: HashMap<K, Kept<C>>,
    /// Cells as they were when the change under way first touched them, in the order of touching.
    journal: Vec<(K, Option<Kept<C>>)>,
    /// Keys of cells that may differ from their rows.
    dirty: BTreeSet<K>,
    /// Keys of cells that were written in this group.
    written: BTreeSet<K>,
}

#[derive(Clone)]
struct Kept<C> {
    cell: C,
    /// Whether it differs from its row.
    dirty: bool,
    /// The change that touched it last.
    serial: u64,
}

impl<K, C> Default for Table<K, C> {
    fn default() -> Self {
        Self {
            cells: HashMap::new(),
            journal: Vec::new(),
            dirty: BTreeSet::new(),
            written: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord, C: Clone> Table<K, C> {
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<&C>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.cells.get(key).map(|kept| &kept.cell)
    }

    fn set(&mut self, serial: u64, key: K, cell: C, dirty: bool) {
        let kept = Kept {
            cell,
            dirty,
            serial,
        };
        if dirty {
            self.dirty.insert(key.clone());
        }
        let before = self.cells.insert(key.clone(), kept);
        if before.as_ref().is_none_or(|kept| kept.serial != serial) {
            self.journal.push((key, before));
        }
    }

    fn edit<Q>(&mut self, serial: u64, key: &Q, change: impl FnOnce(&mut C)) -> bool
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let Some(kept) = self.cells.get_mut(key) else {
            return false;
        };
        if kept.serial != serial {
            self.journal.push((key.to_owned(), Some(kept.clone())));
            kept.serial = serial;
        }
        if !kept.dirty {
            kept.dirty = true;
            self.dirty.insert(key.to_owned());
        }
        change(&mut kept.cell);
        true
    }

    /// Changes what is known beside the row: there is nothing to write.
    fn note<Q>(&mut self, serial: u64, key: &Q, change: impl FnOnce(&mut C))
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(kept) = self.cells.get_mut(key) {
            if kept.serial != serial {
                self.journal.push((key.to_owned(), Some(kept.clone())));
                kept.serial = serial;
            }
            change(&mut kept.cell);
        }
    }

    fn remove(&mut self, serial: u64, key: &K) {
        if let Some(kept) = self.cells.remove(key)
            && kept.serial != serial
        {
            self.journal.push((key.clone(), Some(kept)));
        }
    }

    fn remove_all(&mut self, serial: u64) {
        let keys: Vec<K> = self.cells.keys().cloned().collect();
        for key in keys {
            self.remove(serial, &key);
        }
    }

    fn undo(&mut self) {
        for (key, before) in self.journal.drain(..).rev() {
            match before {
                Some(kept) => {
                    if kept.dirty {
                        self.dirty.insert(key.clone());
                    }
                    self.cells.insert(key, kept);
                }
                None => {
                    self.cells.remove(&key);
                }
            }
        }
    }

    /// The cells that differ from their rows, in order of their keys; they count as written from now on.
    fn take_dirty(&mut self, serial: u64) -> Vec<C> {
        let mut cells = Vec::new();
        for key in std::mem::take(&mut self.dirty) {
            if let Some(kept) = self.cells.get_mut(&key)
                && kept.dirty
            {
                if kept.serial != serial {
                    self.journal.push((key.clone(), Some(kept.clone())));
                    kept.serial = serial;
                }
                cells.push(kept.cell.clone());
                kept.dirty = false;
                self.written.insert(key);
            }
        }
        cells
    }

    /// The cells written in the group that has been committed. Those that `over` says are done with are dropped.
    fn settled(&mut self, over: impl Fn(&C) -> bool) -> Vec<C> {
        self.journal.clear();
        let mut cells = Vec::with_capacity(self.written.len());
        for key in std::mem::take(&mut self.written) {
            let Some(kept) = self.cells.get(&key) else {
                continue;
            };
            cells.push(kept.cell.clone());
            if over(&kept.cell) {
                self.cells.remove(&key);
            }
        }
        cells
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
    pub(crate) live: Option<Option<String>>,
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

/// What gathers and is written once, at the end of the group.
struct Appended<T> {
    items: Vec<T>,
    /// How many of them have been written.
    written: usize,
    /// Both when the change under way began.
    mark: (usize, usize),
}

impl<T> Default for Appended<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            written: 0,
            mark: (0, 0),
        }
    }
}

impl<T> Appended<T> {
    fn begin(&mut self) {
        self.mark = (self.items.len(), self.written);
    }

    fn undo(&mut self) {
        self.items.truncate(self.mark.0);
        self.written = self.mark.1;
    }

    fn take_new(&mut self) -> std::ops::Range<usize> {
        let new = self.written..self.items.len();
        self.written = self.items.len();
        new
    }

    fn clear(&mut self) {
        self.items.clear();
        self.written = 0;
        self.mark = (0, 0);
    }
}

/// A line of the master's own for a task's log.
struct Line {
    task_id: String,
    line: LogLine,
}

/// The rows in memory, and what waits to be written.
#[derive(Default)]
pub struct Unit {
    serial: u64,
    pub(crate) trials: Table<i64, Arc<TrialRow>>,
    pub(crate) experiments: Table<i64, ExperimentCell>,
    pub(crate) tasks: Table<String, TaskCell>,
    pub(crate) allocations: Table<String, AllocationCell>,
    pub(crate) agents: Table<String, Arc<AgentRow>>,
    /// The allocation of a container. A hint: it may name an allocation that is not kept any more.
    allocation_of: HashMap<String, String>,
    events: Appended<StoredEvent>,
    lines: Appended<Line>,
    tokens: Appended<(Vec<u8>, String)>,
    /// Allocations whose tokens expire, and when.
    expiries: Appended<(String, i64)>,
    search_events: Appended<(i64, i64, String)>,
    removed_agents: Appended<String>,
    jobs: Appended<String>,
    everything: Appended<()>,
}

impl Unit {
    /// A change begins.
    pub(crate) fn begin(&mut self) {
        self.serial += 1;
        self.trials.journal.clear();
        self.experiments.journal.clear();
        self.tasks.journal.clear();
        self.allocations.journal.clear();
        self.agents.journal.clear();
        self.events.begin();
        self.lines.begin();
        self.tokens.begin();
        self.expiries.begin();
        self.search_events.begin();
        self.removed_agents.begin();
        self.jobs.begin();
        self.everything.begin();
    }

    /// The change that began last is refused: as if it had never been.
    pub(crate) fn undo(&mut self) {
        self.trials.undo();
        self.experiments.undo();
        self.tasks.undo();
        self.allocations.undo();
        self.agents.undo();
        self.events.undo();
        self.lines.undo();
        self.tokens.undo();
        self.expiries.undo();
        self.search_events.undo();
        self.removed_agents.undo();
        self.jobs.undo();
        self.everything.undo();
    }

    /// The group is committed. Gives what it changed, and drops the rows of what has ended.
    pub(crate) fn committed(&mut self) -> Option<Changes> {
        self.trials.settled(|row| row.ended_at.is_some());
        self.experiments.settled(|cell| cell.row.ended_at.is_some());
        self.tasks.settled(|cell| cell.row.ended_at.is_some());
        let mut changes = Changes {
            agents: self.agents.settled(|_| false),
            removed_agents: std::mem::take(&mut self.removed_agents.items),
            jobs: std::mem::take(&mut self.jobs.items),
            everything: !self.everything.items.is_empty(),
            ..Changes::default()
        };
        for cell in self.allocations.settled(|cell| cell.row.ended_at.is_some()) {
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
        self.clear_appended();
        if self.len() > MOST_CELLS {
            self.drop_all();
        }
        (!changes.is_empty()).then_some(changes)
    }

    /// Forgets everything: a commit has failed, or the connection was lost.
    pub(crate) fn drop_all(&mut self) {
        *self = Self {
            serial: self.serial,
            ..Self::default()
        };
    }

    fn clear_appended(&mut self) {
        self.events.clear();
        self.lines.clear();
        self.tokens.clear();
        self.expiries.clear();
        self.search_events.clear();
        self.removed_agents.clear();
        self.jobs.clear();
        self.everything.clear();
    }

    fn len(&self) -> usize {
        self.trials.cells.len()
            + self.experiments.cells.len()
            + self.tasks.cells.len()
            + self.allocations.cells.len()
            + self.agents.cells.len()
    }

    // Trials.

    pub(crate) fn keep_trial(&mut self, row: TrialRow, dirty: bool) {
        self.trials.set(self.serial, row.id, Arc::new(row), dirty);
    }

    pub(crate) fn edit_trial(&mut self, id: i64, change: impl FnOnce(&mut TrialRow)) {
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
    pub(crate) fn count_trials(&mut self, experiment_id: i64, more: i64) {
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

    pub(crate) fn edit_experiment(&mut self, id: i64, change: impl FnOnce(&mut ExperimentRow)) {
        self.experiments.edit(self.serial, &id, |cell| {
            change(Arc::make_mut(&mut cell.row));
        });
    }

    pub(crate) fn set_live_trials(&mut self, id: i64, count: i64) {
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

    pub(crate) fn edit_task(&mut self, id: &str, change: impl FnOnce(&mut TaskRow)) {
        self.tasks
            .edit(self.serial, id, |cell| change(Arc::make_mut(&mut cell.row)));
    }

    pub(crate) fn set_live_allocation(&mut self, task_id: &str, allocation_id: Option<String>) {
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

    pub(crate) fn edit_allocation(&mut self, id: &str, change: impl FnOnce(&mut AllocationRow)) {
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
                    .is_some_and(|live| live.as_deref() == Some(id))
            };
            if self.tasks.get(&task_id).is_some_and(is_it) {
                self.set_live_allocation(&task_id, None);
            }
        }
    }

    /// The containers of a kept allocation as they were read.
    pub(crate) fn keep_containers(&mut self, allocation_id: &str, rows: Vec<ContainerRow>) {
        for row in &rows {
            self.allocation_of
                .insert(row.id.clone(), allocation_id.to_owned());
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
        allocation_id: &str,
        id: &str,
        change: impl FnOnce(&mut ContainerRow),
    ) {
        self.allocations.edit(self.serial, allocation_id, |cell| {
            let rows = cell.containers.iter_mut().flatten();
            if let Some((row, dirty)) = rows.into_iter().find(|(row, _)| row.id == id) {
                *dirty = true;
                change(Arc::make_mut(row));
            }
        });
    }

    /// The allocation of a container, where it is known.
    pub(crate) fn allocation_of(&self, container_id: &str) -> Option<&String> {
        self.allocation_of
            .get(container_id)
            .filter(|id| self.allocations.get(*id).is_some())
    }

    // Agents.

    pub(crate) fn keep_agent(&mut self, row: AgentRow, dirty: bool) {
        self.agents
            .set(self.serial, row.id.clone(), Arc::new(row), dirty);
    }

    pub(crate) fn remove_agent(&mut self, id: &str) {
        self.agents.remove(self.serial, &id.to_owned());
        self.removed_agents.items.push(id.to_owned());
    }

    // What is only appended.

    pub(crate) fn append_event(&mut self, event: StoredEvent) {
        self.events.items.push(event);
    }

    pub(crate) fn append_line(&mut self, task_id: &str, line: LogLine) {
        self.lines.items.push(Line {
            task_id: task_id.to_owned(),
            line,
        });
    }

    /// Whether lines wait for this task's log.
    pub(crate) fn has_lines(&self, task_id: &str) -> bool {
        self.lines.items[self.lines.written..]
            .iter()
            .any(|line| line.task_id == task_id)
    }

    pub(crate) fn append_token(&mut self, hash: &[u8], allocation_id: &str) {
        self.tokens
            .items
            .push((hash.to_vec(), allocation_id.to_owned()));
    }

    pub(crate) fn expire_tokens(&mut self, allocation_id: &str, at: i64) {
        self.expiries.items.push((allocation_id.to_owned(), at));
    }

    pub(crate) fn append_search_event(&mut self, experiment_id: i64, seq: i64, event: &str) {
        self.search_events
            .items
            .push((experiment_id, seq, event.to_owned()));
    }

    /// Observers must look at this job again.
    pub(crate) fn job_changed(&mut self, job_id: &str) {
        self.jobs.items.push(job_id.to_owned());
    }

    /// Rows were changed past the unit, everything waiting having been written before: they are read again when
    /// needed, here and by observers.
    pub(crate) fn forget_rows(&mut self) {
        self.trials.remove_all(self.serial);
        self.experiments.remove_all(self.serial);
        self.tasks.remove_all(self.serial);
        self.allocations.remove_all(self.serial);
        self.agents.remove_all(self.serial);
        self.everything.items.push(());
    }

    /// The same of some trials, which nobody observes.
    pub(crate) fn forget_trials(&mut self, ids: impl IntoIterator<Item = i64>) {
        for id in ids {
            self.trials.remove(self.serial, &id);
        }
    }

    /// The same of experiments alone, which nobody observes.
    pub(crate) fn forget_experiments(&mut self) {
        self.experiments.remove_all(self.serial);
    }
}

impl Conn<'_> {
    /// Writes everything that waits, so that a statement sees the rows as this change sees them. Nothing to do for a
    /// reading connection.
    pub(crate) async fn settle(&mut self) -> Result<(), StoreError> {
        let Some(unit) = self.unit.take() else {
            return Ok(());
        };
        let outcome = write_rows(&mut self.bare(), unit).await;
        let outcome = match outcome {
            Ok(()) => write_appended(&mut self.bare(), unit).await,
            failed @ Err(_) => failed,
        };
        self.unit = Some(unit);
        outcome
    }
}

/// Writes the rows that differ from what is stored, what is referred to before what refers to it.
async fn write_rows(conn: &mut Conn<'_>, unit: &mut Unit) -> Result<(), StoreError> {
    let serial = unit.serial;
    let experiments = unit.experiments.take_dirty(serial);
    crate::experiments::save_changed(conn, experiments.iter().map(|cell| &*cell.row)).await?;
    let trials = unit.trials.take_dirty(serial);
    crate::trials::save_changed(conn, &trials).await?;
    if !unit.lines.items[unit.lines.written..].is_empty() {
        write_lines(conn, unit).await?;
    }
    let tasks = unit.tasks.take_dirty(serial);
    let tasks: Vec<_> = tasks.into_iter().map(|cell| cell.row).collect();
    crate::allocations::save_tasks(conn, &tasks).await?;
    let (mut rows, mut containers) = (Vec::new(), Vec::new());
    let cells = unit.allocations.take_dirty(serial);
    for cell in &cells {
        if cell.row_dirty {
            rows.push(cell.row.clone());
        }
        for (row, dirty) in cell.containers.iter().flatten() {
            if *dirty {
                containers.push(row.clone());
            }
        }
    }
    for cell in &cells {
        unit.allocations.note(serial, &cell.row.id, |cell| {
            cell.row_dirty = false;
            for (_, dirty) in cell.containers.iter_mut().flatten() {
                *dirty = false;
            }
        });
    }
    crate::allocations::save_allocations(conn, &rows).await?;
    crate::allocations::save_containers(conn, &containers).await?;
    let agents = unit.agents.take_dirty(serial);
    crate::agents::save_all(conn, &agents).await?;
    if cfg!(debug_assertions) {
        compare(conn, &trials, &tasks, &rows, &containers, &agents).await?;
    }
    Ok(())
}

/// Writes what gathered.
async fn write_appended(conn: &mut Conn<'_>, unit: &mut Unit) -> Result<(), StoreError> {
    let new = unit.events.take_new();
    crate::events::save_all(conn, &unit.events.items[new]).await?;
    let new = unit.tokens.take_new();
    crate::allocations::save_tokens(conn, &unit.tokens.items[new]).await?;
    let new = unit.expiries.take_new();
    crate::allocations::save_expiries(conn, &unit.expiries.items[new]).await?;
    let new = unit.search_events.take_new();
    crate::searches::save_events(conn, &unit.search_events.items[new]).await
}

/// Writes the lines that wait: one chunk for each task.
async fn write_lines(conn: &mut Conn<'_>, unit: &mut Unit) -> Result<(), StoreError> {
    let new = unit.lines.take_new();
    let lines = unit.lines.items[new]
        .iter()
        .map(|line| (line.task_id.clone(), line.line.clone()));
    let mut chunks: Vec<(String, Vec<LogLine>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (task_id, line) in lines {
        let place = *places.entry(task_id.clone()).or_insert_with(|| {
            chunks.push((task_id, Vec::new()));
            chunks.len() - 1
        });
        chunks[place].1.push(line);
    }
    let mut packed = Vec::with_capacity(chunks.len());
    for (task_id, lines) in chunks {
        let lines = crate::logs::pack(&lines)?;
        let mut conn = Conn {
            link: conn.link.reborrow(),
            unit: Some(unit),
        };
        // Lines of a task that was deleted meanwhile go with it.
        if let Some(last) =
            crate::allocations::count_lines(&mut conn, &task_id, lines.count()).await?
        {
            packed.push((task_id, last, lines));
        }
    }
    let chunks: Vec<_> = packed
        .iter()
        .flat_map(|(task_id, last, lines)| lines.placed(task_id, *last))
        .collect();
    crate::logs::save_chunks(conn, &chunks).await
}

/// Reads again what was written, and fails if the database holds anything else than memory.
async fn compare(
    conn: &mut Conn<'_>,
    trials: &[Arc<TrialRow>],
    tasks: &[Arc<TaskRow>],
    allocations: &[Arc<AllocationRow>],
    containers: &[Arc<ContainerRow>],
    agents: &[Arc<AgentRow>],
) -> Result<(), StoreError> {
    let differs = |what: String| StoreError::Corrupt {
        what,
        message: "memory and row differ: a defect of the store".into(),
    };
    for row in trials {
        if crate::trials::find(conn, row.id).await?.as_ref() != Some(&**row) {
            return Err(differs(format!("trial {}", row.id)));
        }
    }
    for row in tasks {
        if crate::allocations::find_task(conn, &row.id).await?.as_ref() != Some(&**row) {
            return Err(differs(format!("task {}", row.id)));
        }
    }
    for row in allocations {
        if crate::allocations::find(conn, &row.id).await?.as_ref() != Some(&**row) {
            return Err(differs(format!("allocation {}", row.id)));
        }
    }
    for row in containers {
        if crate::allocations::find_container(conn, &row.id)
            .await?
            .as_ref()
            != Some(&**row)
        {
            return Err(differs(format!("container {}", row.id)));
        }
    }
    for row in agents {
        if crate::agents::find(conn, &row.id).await?.as_ref() != Some(&**row) {
            return Err(differs(format!("agent {}", row.id)));
        }
    }
    Ok(())
}

/// Saves rows: one statement for each on SQLite, one for all on PostgreSQL, with an array for each column.
///
/// `save_rows!(conn, rows, "INSERT INTO t", (a: "text" = |row| &*row.a, ...), "ON CONFLICT ...")`.
macro_rules! save_rows {
    ($conn:expr, $rows:expr, $into:literal, ($($column:ident: $kind:literal = |$row:ident| $value:expr),+ $(,)?), $tail:literal) => {{
        static TEXTS: std::sync::LazyLock<(String, String)> = std::sync::LazyLock::new(|| {
            $crate::unit::insert_texts($into, &[$((stringify!($column), $kind)),+], $tail)
        });
        let rows = $rows;
        if !rows.is_empty() {
            match &mut $conn.link {
                $crate::db::Link::Lite(c) => {
                    for row in rows {
                        c.execute(TEXTS.0.as_str(), &[$(&{ let $row = row; $value }),+])?;
                    }
                }
                $crate::db::Link::Pg(c) => {
                    sqlx::query(TEXTS.1.as_str())
                        $(.bind(rows.iter().map(|$row| $value).collect::<Vec<_>>()))+
                        .execute(&mut **c)
                        .await?;
                }
            }
        }
    }};
}
pub(crate) use save_rows;

/// The texts of [`save_rows`] for SQLite and PostgreSQL.
pub(crate) fn insert_texts(into: &str, columns: &[(&str, &str)], tail: &str) -> (String, String) {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let names = names.join(", ");
    let numbered = |form: &dyn Fn(usize, &str) -> String| {
        let all: Vec<String> = columns
            .iter()
            .zip(1..)
            .map(|((_, kind), number)| form(number, kind))
            .collect();
        all.join(", ")
    };
    let values = numbered(&|number, _| format!("${number}"));
    let arrays = numbered(&|number, kind| format!("${number}::{kind}[]"));
    (
        format!("{into} ({names}) VALUES ({values}) {tail}"),
        // Without an order of its own the rows come as they stand in the arrays.
        format!("{into} ({names}) SELECT * FROM UNNEST({arrays}) {tail}"),
    )
}
