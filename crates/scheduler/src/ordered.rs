//! A list that stays in queue order while entries come and go.

use std::collections::HashMap;
use std::ops::Deref;

use det_ids::{AllocationId, Micros};

/// More new entries than this are added by sorting the whole list instead of one by one.
const FEW: usize = 16;

/// An entry of the list.
pub(crate) trait OrderedEntry {
    /// Number of the job that it belongs to.
    fn job(&self) -> usize;
    fn requested_at(&self) -> Micros;
    fn id(&self) -> &AllocationId;
}

/// The list. Additions and removals take effect with [`Self::apply_removals`] and [`Self::apply_additions`], so that
/// many changes cost little more than one.
pub(crate) struct OrderedList<T> {
    entries: Vec<T>,
    added: Vec<T>,
    removed: Vec<(AllocationId, EntryKey)>,
    keys: HashMap<AllocationId, EntryKey>,
}

/// What entries are sorted by, besides their id: the number of the job, and the time of the request.
type EntryKey = (usize, Micros);

impl<T> Default for OrderedList<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            added: Vec::new(),
            removed: Vec::new(),
            keys: HashMap::new(),
        }
    }
}

impl<T> Deref for OrderedList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.entries
    }
}

impl<T: OrderedEntry> OrderedList<T> {
    pub(crate) fn entries_mut(&mut self) -> &mut [T] {
        &mut self.entries
    }

    /// Removes and returns all entries, in no particular order.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        let removed = std::mem::take(&mut self.removed);
        let removed: HashMap<AllocationId, EntryKey> = removed.into_iter().collect();
        let mut all = std::mem::take(&mut self.entries);
        all.retain(|entry| !removed.contains_key(entry.id()));
        all.append(&mut self.added);
        self.keys.clear();
        all
    }

    pub(crate) fn len_after_changes(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn is_empty_after_changes(&self) -> bool {
        self.keys.is_empty()
    }

    /// Adds an entry; it replaces one with the same id.
    pub(crate) fn add(&mut self, entry: T) {
        let id = entry.id();
        let position = (entry.job(), entry.requested_at());
        if let Some(before) = self.keys.insert(id.clone(), position) {
            self.mark_removed(id, before);
        }
        self.added.push(entry);
    }

    /// Removes an entry; returns whether there was one.
    pub(crate) fn remove(&mut self, id: &AllocationId) -> bool {
        let Some(position) = self.keys.remove(id) else {
            return false;
        };
        self.mark_removed(id, position);
        true
    }

    fn mark_removed(&mut self, id: &AllocationId, position: EntryKey) {
        match self.added.iter().position(|entry| entry.id() == id) {
            Some(added) => {
                self.added.swap_remove(added);
            }
            None => self.removed.push((id.clone(), position)),
        }
    }

    /// The entry of an id.
    pub(crate) fn get(&self, id: &AllocationId, order: impl Fn(usize) -> u32) -> Option<&T> {
        let position = self.keys.get(id)?;
        match self.added.iter().find(|entry| entry.id() == id) {
            Some(added) => Some(added),
            None => self.entries.get(self.find(id, *position, order)?),
        }
    }

    /// The index of an id's entry, in a list without pending changes.
    pub(crate) fn number_of(
        &self,
        id: &AllocationId,
        order: impl Fn(usize) -> u32,
    ) -> Option<usize> {
        self.find(id, *self.keys.get(id)?, order)
    }

    fn find(
        &self,
        id: &AllocationId,
        (job, at): EntryKey,
        order: impl Fn(usize) -> u32,
    ) -> Option<usize> {
        let wanted = (order(job), at, id);
        let found = self
            .entries
            .binary_search_by(|entry| key(entry, &order).cmp(&wanted));
        found.ok()
    }

    /// Applies removals; `order` gives the positions of the jobs at the time of the last change of the list.
    pub(crate) fn apply_removals(&mut self, order: impl Fn(usize) -> u32) {
        if self.removed.is_empty() {
            return;
        }
        let mut positions: Vec<usize> = std::mem::take(&mut self.removed)
            .into_iter()
            .filter_map(|(id, position)| self.find(&id, position, &order))
            .collect();
        positions.sort_unstable();
        if positions.len() <= FEW {
            for position in positions.into_iter().rev() {
                self.entries.remove(position);
            }
            return;
        }
        let mut removed = positions.into_iter().peekable();
        let mut number = 0;
        self.entries.retain(|_| {
            let goes = removed.next_if_eq(&number).is_some();
            number += 1;
            !goes
        });
    }

    /// Applies additions; `order` gives the positions of the jobs now, `moved` = whether some have changed.
    pub(crate) fn apply_additions(&mut self, order: impl Fn(usize) -> u32, moved: bool) {
        let added = std::mem::take(&mut self.added);
        if moved || added.len() > FEW {
            self.entries.extend(added);
            self.entries
                .sort_by(|a, b| key(a, &order).cmp(&key(b, &order)));
            return;
        }
        for entry in added {
            let position = self
                .entries
                .partition_point(|other| key(other, &order) < key(&entry, &order));
            self.entries.insert(position, entry);
        }
    }
}

fn key<T: OrderedEntry>(entry: &T, order: impl Fn(usize) -> u32) -> (u32, Micros, &AllocationId) {
    (order(entry.job()), entry.requested_at(), entry.id())
}
