//! The containers of the unit of work, each with what it takes to undo the change under way.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use super::{Changes, Part};
use crate::{Conn, StoreError};

/// What a table keeps for one key: a row of the database, with what is known beside it.
pub(crate) trait Cell: Clone + Send + Sync {
    /// What rows are found by.
    type Key: Clone + Eq + Hash + Ord + Send + Sync;
    /// A row of the database.
    type Row;

    /// The key of this one.
    fn key(&self) -> Self::Key;

    /// The row, to be changed.
    fn row_mut(&mut self) -> &mut Self::Row;

    /// Whether nothing will ask for it any more once it is written.
    fn is_over(&self) -> bool;

    /// Called when the row is taken to be written.
    fn written(&mut self) {}

    /// Adds it to what a commit has changed for observers.
    fn observe(self, _changes: &mut Changes) {}

    /// Writes new and changed ones.
    fn save(
        conn: &mut Conn<'_>,
        cells: &[Self],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What of it the database holds otherwise than memory, once it is written; `None` = nothing.
    fn difference(
        &self,
        conn: &mut Conn<'_>,
    ) -> impl Future<Output = Result<Option<String>, StoreError>> + Send;
}

/// One kind of rows, by key.
pub(crate) struct Table<C: Cell> {
    cells: HashMap<C::Key, KeptCell<C>>,
    /// Cells as they were when the change under way first touched them, in the order of touching.
    journal: Vec<(C::Key, Option<KeptCell<C>>)>,
    /// Keys of cells that may differ from their rows.
    dirty: BTreeSet<C::Key>,
    /// Keys of cells that were written in this group.
    written: BTreeSet<C::Key>,
    /// The number of the change under way.
    serial: u64,
}

#[derive(Clone)]
struct KeptCell<C> {
    cell: C,
    /// Whether it differs from its row.
    dirty: bool,
    /// The change that touched it last.
    serial: u64,
}

impl<C: Cell> Default for Table<C> {
    fn default() -> Self {
        Self {
            cells: HashMap::new(),
            journal: Vec::new(),
            dirty: BTreeSet::new(),
            written: BTreeSet::new(),
            serial: 0,
        }
    }
}

impl<C: Cell> Part for Table<C> {
    fn begin(&mut self, serial: u64) {
        self.serial = serial;
        self.journal.clear();
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

    fn has_unwritten(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn kept(&self) -> usize {
        self.cells.len()
    }

    fn evict(&mut self) {
        self.remove_all();
    }

    fn clear(&mut self) {}
}

impl<C: Cell> Table<C> {
    /// What is kept for a key.
    pub(crate) fn get(&self, key: &C::Key) -> Option<&C> {
        self.cells.get(key).map(|kept| &kept.cell)
    }

    /// Keeps a row; `dirty` = it differs from what is stored.
    pub(crate) fn keep(&mut self, cell: C, dirty: bool) {
        let key = cell.key();
        let kept = KeptCell {
            cell,
            dirty,
            serial: self.serial,
        };
        if dirty {
            self.dirty.insert(key.clone());
        }
        let before = self.cells.insert(key.clone(), kept);
        if before
            .as_ref()
            .is_none_or(|kept| kept.serial != self.serial)
        {
            self.journal.push((key, before));
        }
    }

    /// Changes the row of a key, if it is kept.
    pub(crate) fn edit(&mut self, key: &C::Key, change: impl FnOnce(&mut C::Row)) {
        self.edit_cell(key, |cell| change(cell.row_mut()));
    }

    /// Changes what is kept for a key, if anything is: it is to be written.
    pub(super) fn edit_cell(&mut self, key: &C::Key, change: impl FnOnce(&mut C)) {
        let Some(kept) = self.cells.get_mut(key) else {
            return;
        };
        if kept.serial != self.serial {
            self.journal.push((key.clone(), Some(kept.clone())));
            kept.serial = self.serial;
        }
        if !kept.dirty {
            kept.dirty = true;
            self.dirty.insert(key.clone());
        }
        change(&mut kept.cell);
    }

    /// Changes what the cell holds besides its row: nothing is to be written.
    pub(crate) fn note(&mut self, key: &C::Key, change: impl FnOnce(&mut C)) {
        if let Some(kept) = self.cells.get_mut(key) {
            if kept.serial != self.serial {
                self.journal.push((key.clone(), Some(kept.clone())));
                kept.serial = self.serial;
            }
            change(&mut kept.cell);
        }
    }

    /// Rows were changed past the unit, everything waiting having been written before: one is read again when needed.
    pub(crate) fn remove(&mut self, key: &C::Key) {
        if let Some(kept) = self.cells.remove(key)
            && kept.serial != self.serial
        {
            self.journal.push((key.clone(), Some(kept)));
        }
    }

    /// The same of all of them.
    pub(crate) fn remove_all(&mut self) {
        let keys: Vec<C::Key> = self.cells.keys().cloned().collect();
        for key in keys {
            self.remove(&key);
        }
    }

    /// The cells that differ from their rows, in order of their keys; they count as written from now on.
    fn take_dirty(&mut self) -> Vec<C> {
        let mut cells = Vec::new();
        for key in std::mem::take(&mut self.dirty) {
            if let Some(kept) = self.cells.get_mut(&key)
                && kept.dirty
            {
                if kept.serial != self.serial {
                    self.journal.push((key.clone(), Some(kept.clone())));
                    kept.serial = self.serial;
                }
                cells.push(kept.cell.clone());
                kept.dirty = false;
                kept.cell.written();
                self.written.insert(key);
            }
        }
        cells
    }

    /// Writes the rows that differ from what is stored. In builds with debug assertions they are read again and compared.
    pub(super) async fn write(&mut self, conn: &mut Conn<'_>) -> Result<(), StoreError> {
        let cells = self.take_dirty();
        C::save(conn, &cells).await?;
        if cfg!(debug_assertions) {
            for cell in &cells {
                if let Some(what) = cell.difference(conn).await? {
                    return Err(StoreError::Corrupt {
                        what,
                        message: "memory and row differ: a defect of the store".into(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The group is committed: gives the cells written in it to observers, and drops those that are over.
    pub(super) fn committed(&mut self, changes: &mut Changes) {
        self.journal.clear();
        for key in std::mem::take(&mut self.written) {
            let Some(kept) = self.cells.get(&key) else {
                continue;
            };
            let cell = kept.cell.clone();
            if cell.is_over() {
                self.cells.remove(&key);
            }
            cell.observe(changes);
        }
    }
}

/// Something that is only ever appended.
pub(crate) trait Appendix: Sized + Sync {
    /// Writes items that were added since the last write.
    fn save(
        conn: &mut Conn<'_>,
        items: &[Self],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A list of rows that are written once, at the end of the group.
pub(crate) struct AppendList<T> {
    pub(super) items: Vec<T>,
    /// How many of them have been written.
    pub(super) written: usize,
    /// Both when the change under way began.
    pub(super) mark: (usize, usize),
}

impl<T> Default for AppendList<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            written: 0,
            mark: (0, 0),
        }
    }
}

impl<T> Part for AppendList<T> {
    fn begin(&mut self, _serial: u64) {
        self.mark = (self.items.len(), self.written);
    }

    fn undo(&mut self) {
        self.items.truncate(self.mark.0);
        self.written = self.mark.1;
    }

    fn has_unwritten(&self) -> bool {
        self.written < self.items.len()
    }

    fn kept(&self) -> usize {
        0
    }

    fn evict(&mut self) {}

    fn clear(&mut self) {
        self.items.clear();
        self.written = 0;
        self.mark = (0, 0);
    }
}

impl<T> AppendList<T> {
    /// Adds an item at the end; it is written with the next write of its list.
    pub(crate) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    /// Those that were not written yet; they count as written from now on.
    pub(super) fn take_new(&mut self) -> &[T] {
        let new = self.written..self.items.len();
        self.written = self.items.len();
        &self.items[new]
    }
}

impl<T: Appendix> AppendList<T> {
    /// Writes those that were not written yet.
    pub(super) async fn write(&mut self, conn: &mut Conn<'_>) -> Result<(), StoreError> {
        T::save(conn, self.take_new()).await
    }
}

/// A list for observers of the commit, which is not written.
pub(crate) struct NoteList<T> {
    pub(super) items: Vec<T>,
    /// How many there were when the change under way began.
    mark: usize,
}

impl<T> Default for NoteList<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            mark: 0,
        }
    }
}

impl<T> Part for NoteList<T> {
    fn begin(&mut self, _serial: u64) {
        self.mark = self.items.len();
    }

    fn undo(&mut self) {
        self.items.truncate(self.mark);
    }

    fn has_unwritten(&self) -> bool {
        false
    }

    fn kept(&self) -> usize {
        0
    }

    fn evict(&mut self) {}

    fn clear(&mut self) {
        self.items.clear();
        self.mark = 0;
    }
}

impl<T> NoteList<T> {
    /// Adds an item at the end, for the observers of the commit.
    pub(crate) fn push(&mut self, item: T) {
        self.items.push(item);
    }
}
