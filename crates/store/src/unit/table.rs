//! The containers of the unit of work, each with what it takes to undo the change under way.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use super::Part;

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

impl<K: Clone + Eq + Hash + Ord, C: Clone> Part for Table<K, C> {
    fn begin(&mut self) {
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

    fn evict(&mut self, serial: u64) {
        self.remove_all(serial);
    }

    fn clear(&mut self) {}
}

impl<K: Clone + Eq + Hash + Ord, C: Clone> Table<K, C> {
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<&C>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.cells.get(key).map(|kept| &kept.cell)
    }

    pub(super) fn set(&mut self, serial: u64, key: K, cell: C, dirty: bool) {
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

    pub(super) fn edit<Q>(&mut self, serial: u64, key: &Q, change: impl FnOnce(&mut C)) -> bool
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

    /// Changes what the cell holds besides its row: nothing is to be written.
    pub(super) fn note<Q>(&mut self, serial: u64, key: &Q, change: impl FnOnce(&mut C))
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

    pub(super) fn remove(&mut self, serial: u64, key: &K) {
        if let Some(kept) = self.cells.remove(key)
            && kept.serial != serial
        {
            self.journal.push((key.clone(), Some(kept)));
        }
    }

    pub(super) fn remove_all(&mut self, serial: u64) {
        let keys: Vec<K> = self.cells.keys().cloned().collect();
        for key in keys {
            self.remove(serial, &key);
        }
    }

    /// The cells that differ from their rows, in order of their keys; they count as written from now on.
    pub(super) fn take_dirty(&mut self, serial: u64) -> Vec<C> {
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

    /// The cells written in the group that has been committed. Those for which `over` returns `true` are dropped.
    pub(super) fn take_written(&mut self, over: impl Fn(&C) -> bool) -> Vec<C> {
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

/// A list of rows that are written once, at the end of the group.
pub(super) struct Appended<T> {
    pub(super) items: Vec<T>,
    /// How many of them have been written.
    pub(super) written: usize,
    /// Both when the change under way began.
    pub(super) mark: (usize, usize),
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

impl<T> Part for Appended<T> {
    fn begin(&mut self) {
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

    fn evict(&mut self, _serial: u64) {}

    fn clear(&mut self) {
        self.items.clear();
        self.written = 0;
        self.mark = (0, 0);
    }
}

impl<T> Appended<T> {
    pub(super) fn take_new(&mut self) -> std::ops::Range<usize> {
        let new = self.written..self.items.len();
        self.written = self.items.len();
        new
    }
}

/// A list for observers of the commit, which is not written.
pub(super) struct Noted<T> {
    pub(super) items: Vec<T>,
    /// How many there were when the change under way began.
    mark: usize,
}

impl<T> Default for Noted<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            mark: 0,
        }
    }
}

impl<T> Part for Noted<T> {
    fn begin(&mut self) {
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

    fn evict(&mut self, _serial: u64) {}

    fn clear(&mut self) {
        self.items.clear();
        self.mark = 0;
    }
}
