//! What the tables of the unit keep, and how it is written.

use std::sync::Arc;

use det_ids::{AllocationId, ExperimentId, PlaceId, TaskId, TrialId};

use super::{Appendix, Cell, Changes};
use crate::allocations::{AllocationRow, ContainerRow, TaskRow};
use crate::events::StoredEvent;
use crate::experiments::ExperimentRow;
use crate::places::PlaceRow;
use crate::trials::TrialRow;
use crate::{Conn, StoreError, allocations, events, experiments, places, searches, trials};

/// An experiment, and how many of its trials live, once that was counted.
#[derive(Clone)]
pub(crate) struct ExperimentCell {
    pub(crate) row: Arc<ExperimentRow>,
    pub(crate) live_trials: Option<i64>,
}

impl ExperimentCell {
    /// The cell of a row as it was read: nothing waits to be written.
    pub(crate) fn of(row: ExperimentRow) -> Self {
        Self {
            row: Arc::new(row),
            live_trials: None,
        }
    }
}

impl Cell for ExperimentCell {
    type Key = ExperimentId;
    type Row = ExperimentRow;

    fn key(&self) -> ExperimentId {
        self.row.id
    }

    fn row_mut(&mut self) -> &mut ExperimentRow {
        Arc::make_mut(&mut self.row)
    }

    fn is_over(&self) -> bool {
        self.row.ended_at.is_some()
    }

    async fn save(conn: &mut Conn<'_>, cells: &[Self]) -> Result<(), StoreError> {
        experiments::save_changed(conn, cells.iter().map(|cell| &*cell.row)).await
    }

    async fn difference(&self, _conn: &mut Conn<'_>) -> Result<Option<String>, StoreError> {
        // What is not written with it here is written where it is changed.
        Ok(None)
    }
}

/// `what`, if the stored row is another one than that in memory.
fn differs<R: PartialEq>(
    stored: Option<&R>,
    row: &R,
    what: impl FnOnce() -> String,
) -> Option<String> {
    (stored != Some(row)).then(what)
}

impl Cell for Arc<TrialRow> {
    type Key = TrialId;
    type Row = TrialRow;

    fn key(&self) -> TrialId {
        self.id
    }

    fn row_mut(&mut self) -> &mut TrialRow {
        Arc::make_mut(self)
    }

    fn is_over(&self) -> bool {
        self.ended_at.is_some()
    }

    async fn save(conn: &mut Conn<'_>, cells: &[Self]) -> Result<(), StoreError> {
        trials::save_changed(conn, cells).await
    }

    async fn difference(&self, conn: &mut Conn<'_>) -> Result<Option<String>, StoreError> {
        let stored = trials::find(conn, self.id).await?;
        Ok(differs(stored.as_ref(), self, || {
            format!("trial {}", self.id)
        }))
    }
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

impl TaskCell {
    /// Of a row. A new task has no live allocation.
    pub(crate) fn of(row: TaskRow, is_new: bool) -> Self {
        Self {
            row: Arc::new(row),
            live: is_new.then_some(None),
        }
    }
}

impl Cell for TaskCell {
    type Key = TaskId;
    type Row = TaskRow;

    fn key(&self) -> TaskId {
        self.row.id.clone()
    }

    fn row_mut(&mut self) -> &mut TaskRow {
        Arc::make_mut(&mut self.row)
    }

    fn is_over(&self) -> bool {
        self.row.ended_at.is_some()
    }

    async fn save(conn: &mut Conn<'_>, cells: &[Self]) -> Result<(), StoreError> {
        let rows: Vec<Arc<TaskRow>> = cells.iter().map(|cell| cell.row.clone()).collect();
        allocations::save_tasks(conn, &rows).await
    }

    async fn difference(&self, conn: &mut Conn<'_>) -> Result<Option<String>, StoreError> {
        let stored = allocations::find_task(conn, &self.row.id).await?;
        Ok(differs(stored.as_ref(), &*self.row, || {
            format!("task {}", self.row.id)
        }))
    }
}

/// An allocation with its containers.
#[derive(Clone)]
pub(crate) struct AllocationCell {
    pub(crate) row: Arc<AllocationRow>,
    /// Whether the row itself differs from what is stored.
    row_dirty: bool,
    /// In order of their place, once they were read; each with whether it differs from its row.
    pub(crate) containers: Option<Vec<(Arc<ContainerRow>, bool)>>,
}

impl AllocationCell {
    /// Of a row. A new allocation has no containers.
    pub(crate) fn of(row: AllocationRow, is_new: bool) -> Self {
        Self {
            row: Arc::new(row),
            row_dirty: is_new,
            containers: is_new.then(Vec::new),
        }
    }

    /// The containers that differ from their rows.
    fn changed_containers(&self) -> impl Iterator<Item = &Arc<ContainerRow>> {
        let containers = self.containers.iter().flatten();
        containers.filter(|(_, dirty)| *dirty).map(|(row, _)| row)
    }
}

impl Cell for AllocationCell {
    type Key = AllocationId;
    type Row = AllocationRow;

    fn key(&self) -> AllocationId {
        self.row.id.clone()
    }

    fn row_mut(&mut self) -> &mut AllocationRow {
        self.row_dirty = true;
        Arc::make_mut(&mut self.row)
    }

    fn is_over(&self) -> bool {
        self.row.ended_at.is_some()
    }

    fn written(&mut self) {
        self.row_dirty = false;
        for (_, dirty) in self.containers.iter_mut().flatten() {
            *dirty = false;
        }
    }

    fn observe(self, changes: &mut Changes) {
        let containers = self.containers.into_iter().flatten();
        let containers = containers.map(|(row, _)| row).collect();
        changes.allocations.push((self.row, containers));
    }

    async fn save(conn: &mut Conn<'_>, cells: &[Self]) -> Result<(), StoreError> {
        let rows = cells.iter().filter(|cell| cell.row_dirty);
        let rows: Vec<Arc<AllocationRow>> = rows.map(|cell| cell.row.clone()).collect();
        allocations::save_allocations(conn, &rows).await?;
        let containers = cells.iter().flat_map(Self::changed_containers);
        let containers: Vec<Arc<ContainerRow>> = containers.cloned().collect();
        allocations::save_containers(conn, &containers).await
    }

    async fn difference(&self, conn: &mut Conn<'_>) -> Result<Option<String>, StoreError> {
        if self.row_dirty {
            let stored = allocations::find(conn, &self.row.id).await?;
            let what = || format!("allocation {}", self.row.id);
            if let Some(what) = differs(stored.as_ref(), &*self.row, what) {
                return Ok(Some(what));
            }
        }
        for row in self.changed_containers() {
            let stored = allocations::find_container(conn, &row.id).await?;
            if let Some(what) = differs(stored.as_ref(), &**row, || format!("container {}", row.id))
            {
                return Ok(Some(what));
            }
        }
        Ok(None)
    }
}

impl Cell for Arc<PlaceRow> {
    type Key = PlaceId;
    type Row = PlaceRow;

    fn key(&self) -> PlaceId {
        self.id.clone()
    }

    fn row_mut(&mut self) -> &mut PlaceRow {
        Arc::make_mut(self)
    }

    fn is_over(&self) -> bool {
        false
    }

    fn observe(self, changes: &mut Changes) {
        changes.places.push(self);
    }

    async fn save(conn: &mut Conn<'_>, cells: &[Self]) -> Result<(), StoreError> {
        places::save_all(conn, cells).await
    }

    async fn difference(&self, conn: &mut Conn<'_>) -> Result<Option<String>, StoreError> {
        let stored = places::find(conn, &self.id).await?;
        Ok(differs(stored.as_ref(), self, || {
            format!("place {}", self.id)
        }))
    }
}

impl Appendix for StoredEvent {
    async fn save(conn: &mut Conn<'_>, items: &[Self]) -> Result<(), StoreError> {
        events::save_all(conn, items).await
    }
}

impl Appendix for (Vec<u8>, AllocationId) {
    async fn save(conn: &mut Conn<'_>, items: &[Self]) -> Result<(), StoreError> {
        allocations::save_tokens(conn, items).await
    }
}

impl Appendix for (AllocationId, i64) {
    async fn save(conn: &mut Conn<'_>, items: &[Self]) -> Result<(), StoreError> {
        allocations::save_expiries(conn, items).await
    }
}

impl Appendix for (ExperimentId, i64, String) {
    async fn save(conn: &mut Conn<'_>, items: &[Self]) -> Result<(), StoreError> {
        searches::save_events(conn, items).await
    }
}
