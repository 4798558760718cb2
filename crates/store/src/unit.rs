//! Live rows in memory: read once, changed in memory, written together.
//!
//! The writer owns one [`Unit`]. While changes of a group run, the functions of the row modules find rows of trials,
//! tasks, allocations, containers, experiments and places here and change them here; what is only ever appended (events,
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
//! A table takes part in all of this from its line in `unit!` and its `Cell`; so does a list.
//!
//! [`Changes`] has what a commit has changed for an observer, so that others can keep a cache of the live rows too.

use std::collections::HashMap;
use std::sync::Arc;

use crate::allocations::{AllocationRow, ContainerRow};
use crate::events::StoredEvent;
use crate::logs::LogLine;
use crate::places::PlaceRow;
use crate::trials::TrialRow;
use crate::{Conn, StoreError};

mod cells;
mod table;
mod write;

pub(crate) use cells::{AllocationCell, ExperimentCell, TaskCell};
use det_ids::{AllocationId, ContainerId, ExperimentId, JobId, PlaceId, TaskId, TrialId};
pub(crate) use table::{AppendList, Appendix, Cell};
use table::{NoteList, Table};
pub(crate) use write::{insert_texts, save_rows};

/// Rows kept at most after a commit; beyond it all are dropped and read again when needed.
const MOST_CELLS: usize = 200_000;

/// What one commit has changed among live things: the rows as they are now.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// Allocations that are new or changed, or whose containers are; each with all its containers, ended ones included.
    pub allocations: Vec<(Arc<AllocationRow>, Vec<Arc<ContainerRow>>)>,
    /// Places that are new or changed.
    pub places: Vec<Arc<PlaceRow>>,
    /// Places whose rows were deleted.
    pub removed_places: Vec<PlaceId>,
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
            && self.places.is_empty()
            && self.removed_places.is_empty()
            && self.jobs.is_empty()
            && !self.everything
            && !self.own_event
    }
}

/// A line of the master's own for a task's log.
pub(crate) struct Line {
    pub(crate) task_id: TaskId,
    pub(crate) line: LogLine,
}

/// Declares [`Unit`] with its parts. A part takes part in all that follows from its declaration alone: `tables` and
/// `lists` are written in this order, what is referred to before what refers to it; `others` are not written, or in a way
/// of their own.
macro_rules! unit {
    (
        tables { $($(#[$table_doc:meta])* $table:ident: $cell:ty,)+ }
        lists { $($(#[$list_doc:meta])* $list:ident: $item:ty,)+ }
        others { $($(#[$doc:meta])* $part:ident: $kind:ty,)+ }
    ) => {
        /// The rows in memory, and what waits to be written.
        #[derive(Default)]
        pub struct Unit {
            /// The number of the change under way.
            serial: u64,
            /// The allocation of a container. A hint: it may name an allocation that is not kept any more.
            allocation_of: HashMap<ContainerId, AllocationId>,
            own_event: bool,
            $($(#[$table_doc])* pub(crate) $table: Table<$cell>,)+
            $($(#[$list_doc])* pub(crate) $list: AppendList<$item>,)+
            $($(#[$doc])* pub(crate) $part: $kind,)+
        }

        impl Unit {
            fn parts(&mut self) -> impl Iterator<Item = &mut dyn Part> {
                [
                    $(&mut self.$table as &mut dyn Part,)+
                    $(&mut self.$list as &mut dyn Part,)+
                    $(&mut self.$part as &mut dyn Part,)+
                ]
                .into_iter()
            }

            /// Writes the tables and lists.
            async fn write(&mut self, conn: &mut Conn<'_>) -> Result<(), StoreError> {
                $(self.$table.write(conn).await?;)+
                $(self.$list.write(conn).await?;)+
                Ok(())
            }

            /// What the tables have changed for observers; the rows of what has ended are dropped.
            fn take_changes(&mut self) -> Changes {
                let mut changes = Changes::default();
                $(self.$table.committed(&mut changes);)+
                changes
            }
        }
    };
}

unit! {
    tables {
        experiments: ExperimentCell,
        trials: Arc<TrialRow>,
        tasks: TaskCell,
        allocations: AllocationCell,
        places: Arc<PlaceRow>,
    }
    lists {
        events: StoredEvent,
        /// Hashes of tokens that act for an allocation.
        tokens: (Vec<u8>, AllocationId),
        /// Allocations whose tokens expire, and when.
        expiries: (AllocationId, i64),
        /// Events of searches, each with its number and JSON text.
        search_events: (ExperimentId, i64, String),
    }
    others {
        /// Packed into chunks, and counted in their tasks, before the tables are written.
        lines: AppendList<Line>,
        removed_places: NoteList<PlaceId>,
        /// Jobs that observers must look at again.
        jobs: NoteList<JobId>,
        everything: NoteList<()>,
    }
}

/// A part of the unit: a table of rows, or a list. All parts begin, are undone and end together.
trait Part {
    /// A change begins, which has this number.
    fn begin(&mut self, serial: u64);
    /// The change that began last is refused.
    fn undo(&mut self);
    /// Whether something of it waits to be written.
    fn has_unwritten(&self) -> bool;
    /// Rows that it keeps between groups.
    fn kept(&self) -> usize;
    /// Drops all rows, which are read again when needed.
    fn evict(&mut self);
    /// The group is over: lists are emptied.
    fn clear(&mut self);
}

impl Unit {
    /// Notes that a change of the group begins.
    pub(crate) fn begin(&mut self) {
        self.serial += 1;
        let serial = self.serial;
        for part in self.parts() {
            part.begin(serial);
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
        let changes = Changes {
            removed_places: std::mem::take(&mut self.removed_places.items),
            jobs: std::mem::take(&mut self.jobs.items),
            everything: !self.everything.items.is_empty(),
            own_event: std::mem::take(&mut self.own_event),
            ..self.take_changes()
        };
        for (row, containers) in &changes.allocations {
            if row.ended_at.is_some() {
                for container in containers {
                    self.allocation_of.remove(&container.id);
                }
            }
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

    /// Changes a trial. Its experiment counts those that live.
    pub(crate) fn edit_trial(&mut self, id: TrialId, change: impl FnOnce(&mut TrialRow)) {
        let mut ended = None;
        self.trials.edit(&id, |row| {
            let before = row.ended_at.is_some();
            change(row);
            if before != row.ended_at.is_some() {
                ended = Some((row.experiment_id, row.ended_at.is_some()));
            }
        });
        if let Some((experiment_id, ended)) = ended {
            self.experiments
                .count_trials(experiment_id, if ended { -1 } else { 1 });
        }
    }

    /// Keeps an allocation. A new one has no containers yet, and is its task's live one.
    pub(crate) fn keep_allocation(&mut self, row: AllocationRow, is_new: bool) {
        if is_new && row.ended_at.is_none() {
            self.tasks
                .set_live_allocation(&row.task_id, Some(row.id.clone()));
        }
        self.allocations
            .keep(AllocationCell::of(row, is_new), is_new);
    }

    /// Changes an allocation.
    pub(crate) fn edit_allocation(
        &mut self,
        id: &AllocationId,
        change: impl FnOnce(&mut AllocationRow),
    ) {
        let mut ended = None;
        self.allocations.edit(id, |row| {
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
                self.tasks.set_live_allocation(&task_id, None);
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
        self.allocations.note(allocation_id, |cell| {
            let rows = rows.into_iter().map(|row| (Arc::new(row), false));
            cell.containers = Some(rows.collect());
        });
    }

    /// Adds a container to a kept allocation whose containers are known.
    pub(crate) fn add_container(&mut self, row: ContainerRow) {
        self.allocation_of
            .insert(row.id.clone(), row.allocation_id.clone());
        let allocation_id = row.allocation_id.clone();
        self.allocations.edit_cell(&allocation_id, |cell| {
            let rows = cell.containers.get_or_insert_default();
            let at = rows.partition_point(|(other, _)| other.member <= row.member);
            rows.insert(at, (Arc::new(row), true));
        });
    }

    /// The allocation of a container, where it is known.
    pub(crate) fn allocation_of(&self, container_id: &ContainerId) -> Option<&AllocationId> {
        self.allocation_of
            .get(container_id)
            .filter(|id| self.allocations.get(id).is_some())
    }

    /// A place's row is gone.
    pub(crate) fn remove_place(&mut self, id: &PlaceId) {
        self.places.remove(id);
        self.removed_places.push(id.clone());
    }

    /// The store itself records an event with the commit that comes now.
    pub(crate) fn note_own_event(&mut self) {
        self.own_event = true;
    }

    /// Rows were changed past the unit, everything waiting having been written before: they are read again when
    /// needed, here and by observers.
    pub(crate) fn evict_rows(&mut self) {
        for part in self.parts() {
            part.evict();
        }
        self.everything.push(());
    }
}

impl Table<ExperimentCell> {
    /// Adds to the count of an experiment's live trials, if it is known.
    pub(crate) fn count_trials(&mut self, id: ExperimentId, more: i64) {
        self.note(&id, |cell| {
            cell.live_trials = cell.live_trials.map(|n| n + more);
        });
    }
}

impl Table<TaskCell> {
    /// The live allocation of a kept task; `None` = it has none.
    pub(crate) fn set_live_allocation(&mut self, id: &TaskId, allocation_id: Option<AllocationId>) {
        self.note(id, |cell| cell.live = Some(allocation_id));
    }
}

impl Table<AllocationCell> {
    /// Changes a container of a kept allocation.
    pub(crate) fn edit_container(
        &mut self,
        id: &AllocationId,
        container_id: &ContainerId,
        change: impl FnOnce(&mut ContainerRow),
    ) {
        self.edit_cell(id, |cell| {
            let rows = cell.containers.iter_mut().flatten();
            if let Some((row, dirty)) = rows.into_iter().find(|(row, _)| row.id == *container_id) {
                *dirty = true;
                change(Arc::make_mut(row));
            }
        });
    }
}

impl AppendList<Line> {
    /// Whether lines wait for this task's log.
    pub(crate) fn wait_for(&self, task_id: &TaskId) -> bool {
        self.items[self.written..]
            .iter()
            .any(|line| line.task_id == *task_id)
    }
}
