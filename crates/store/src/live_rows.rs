//! The live rows of a change as they are in memory: what decisions read and write without waiting.
//!
//! What is to be read is loaded first, with the functions of [`WriteTx`] below; what is absent afterwards does not exist.
//! Changes go to the unit of work, and to the database before the commit.

use det_ids::{AllocationId, ContainerId, ExperimentId, PlaceId, TaskId, TrialId};

use crate::allocations::{self, AllocationRow, ContainerRow, TaskRow};
use crate::experiments::{self, ExperimentRow};
use crate::places::{self, PlaceRow};
use crate::trials::{self, TrialRow};
use crate::unit::{TaskCell, Unit};
use crate::{StoreError, WriteTx};

/// Rows that have been loaded in this or an earlier change.
pub struct LiveRows<'a> {
    unit: &'a mut Unit,
}

impl WriteTx {
    /// The rows in memory, as this change has them.
    pub fn live_rows(&mut self) -> LiveRows<'_> {
        LiveRows {
            unit: self.unit_mut(),
        }
    }

    /// Loads the row of an experiment, if it exists and is not loaded.
    pub async fn load_experiment(&mut self, id: ExperimentId) -> Result<(), StoreError> {
        if self.live_rows().experiment(id).is_none() {
            experiments::find(&mut self.conn(), id).await?;
        }
        Ok(())
    }

    /// Loads the row of a trial, if it exists and is not loaded.
    pub async fn load_trial(&mut self, id: TrialId) -> Result<(), StoreError> {
        if self.live_rows().trial(id).is_none() {
            trials::find(&mut self.conn(), id).await?;
        }
        Ok(())
    }

    /// Loads a task and its live allocation.
    pub async fn load_task(&mut self, id: &TaskId) -> Result<(), StoreError> {
        let known = self.live_rows().unit.tasks.get(id);
        if known.is_some_and(|cell| cell.live.is_some()) {
            return Ok(());
        }
        // A task that does not exist, as that of a trial that is being created, has no allocation either.
        if allocations::find_task(&mut self.conn(), id)
            .await?
            .is_some()
        {
            allocations::live_of_task(&mut self.conn(), id).await?;
        }
        Ok(())
    }

    /// Loads an allocation and its containers.
    pub async fn load_allocation(&mut self, id: &AllocationId) -> Result<(), StoreError> {
        let known = self.live_rows().unit.allocations.get(id);
        if known.is_none_or(|cell| cell.containers.is_none()) {
            allocations::containers(&mut self.conn(), id).await?;
        }
        Ok(())
    }

    /// Loads a container, its allocation and that one's other containers.
    pub async fn load_container(&mut self, id: &ContainerId) -> Result<(), StoreError> {
        if self.live_rows().container(id).is_none() {
            allocations::find_container(&mut self.conn(), id).await?;
        }
        Ok(())
    }

    /// Loads a place.
    pub async fn load_place(&mut self, id: &PlaceId) -> Result<(), StoreError> {
        if self.live_rows().place(id).is_none() {
            places::find(&mut self.conn(), id).await?;
        }
        Ok(())
    }
}

impl LiveRows<'_> {
    /// The row of an experiment; `None` = it is not loaded, or there is none.
    pub fn experiment(&self, id: ExperimentId) -> Option<&ExperimentRow> {
        self.unit.experiments.get(&id).map(|cell| &*cell.row)
    }

    /// Changes the row of an experiment that is loaded.
    pub fn edit_experiment(&mut self, id: ExperimentId, change: impl FnOnce(&mut ExperimentRow)) {
        self.unit.experiments.edit(&id, change);
    }

    /// The row of a trial; `None` = it is not loaded, or there is none.
    pub fn trial(&self, id: TrialId) -> Option<&TrialRow> {
        self.unit.trials.get(&id).map(|row| &**row)
    }

    /// Changes the row of a trial that is loaded.
    pub fn edit_trial(&mut self, id: TrialId, change: impl FnOnce(&mut TrialRow)) {
        self.unit.edit_trial(id, change);
    }

    /// The row of a task; `None` = it is not loaded, or there is none.
    pub fn task(&self, id: &TaskId) -> Option<&TaskRow> {
        self.unit.tasks.get(id).map(|cell| &*cell.row)
    }

    /// Adds a task.
    pub fn add_task(&mut self, row: TaskRow) {
        self.unit.tasks.keep(TaskCell::of(row, true), true);
    }

    /// Changes a task.
    pub fn edit_task(&mut self, id: &TaskId, change: impl FnOnce(&mut TaskRow)) {
        self.unit.tasks.edit(id, change);
    }

    /// The live allocation of a task.
    pub fn live_allocation(&self, task_id: &TaskId) -> Option<&AllocationId> {
        let cell = self.unit.tasks.get(task_id)?;
        cell.live.as_ref()?.as_ref()
    }

    /// The row of an allocation; `None` = it is not loaded, or there is none.
    pub fn allocation(&self, id: &AllocationId) -> Option<&AllocationRow> {
        self.unit.allocations.get(id).map(|cell| &*cell.row)
    }

    /// Adds an allocation. Its kind and experiment are those of its task.
    ///
    /// # Panics
    /// If its task is not loaded: the change is refused before the database refuses the whole group.
    pub fn add_allocation(&mut self, row: AllocationRow) {
        assert!(
            self.task(&row.task_id).is_some(),
            "allocation {} is added before its task is loaded",
            row.id
        );
        self.unit.keep_allocation(row, true);
    }

    /// Changes an allocation.
    pub fn edit_allocation(&mut self, id: &AllocationId, change: impl FnOnce(&mut AllocationRow)) {
        self.unit.edit_allocation(id, change);
    }

    /// The containers of an allocation in order of their ranks.
    pub fn containers(&self, allocation_id: &AllocationId) -> impl Iterator<Item = &ContainerRow> {
        let cell = self.unit.allocations.get(allocation_id);
        let rows = cell.and_then(|cell| cell.containers.as_deref());
        rows.unwrap_or_default().iter().map(|(row, _)| &**row)
    }

    /// The row of a container; `None` = it is not loaded, or there is none.
    pub fn container(&self, id: &ContainerId) -> Option<&ContainerRow> {
        let allocation_id = self.unit.allocation_of(id)?;
        self.containers(allocation_id).find(|row| row.id == *id)
    }

    /// Adds a container.
    ///
    /// # Panics
    /// If its allocation is not loaded: the container would be lost.
    pub fn add_container(&mut self, row: ContainerRow) {
        assert!(
            self.allocation(&row.allocation_id).is_some(),
            "container {} is added before its allocation is loaded",
            row.id
        );
        self.unit.add_container(row);
    }

    /// Changes a container.
    pub fn edit_container(
        &mut self,
        allocation_id: &AllocationId,
        id: &ContainerId,
        change: impl FnOnce(&mut ContainerRow),
    ) {
        self.unit
            .allocations
            .edit_container(allocation_id, id, change);
    }

    /// The row of a place; `None` = it is not loaded, or there is none.
    pub fn place(&self, id: &PlaceId) -> Option<&PlaceRow> {
        self.unit.places.get(id).map(|row| &**row)
    }
    /// Changes a place.
    pub fn edit_place(&mut self, id: &PlaceId, change: impl FnOnce(&mut PlaceRow)) {
        self.unit.places.edit(id, change);
    }
}
