//! A list that stays in queue order while entries come and go.

use std::collections::HashMap;
use std::ops::Deref;

use det_ids::{AllocationId, Micros};

/// More new entries than this are sorted in together instead of one by one.
const FEW: usize = 16;

/// What stands in the list.
pub(crate) trait Entry {
    /// Number of its job.
    fn job(&self) -> usize;
    fn requested_at(&self) -> Micros;
    fn id(&self) -> &AllocationId;
}

/// The list. What is added and removed shows after [`Self::remove_gone`] and [`Self::insert_fresh`], so that many changes
/// cost little more than one.
pub(crate) struct Ordered<T> {
    entries: Vec<T>,
    fresh: Vec<T>,
    gone: Vec<(AllocationId, Place)>,
    known: HashMap<AllocationId, Place>,
}

/// What gives an entry its place, besides its id: the number of its job, and its time.
type Place = (usize, Micros);

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            fresh: Vec::new(),
            gone: Vec::new(),
            known: HashMap::new(),
        }
    }
}

impl<T> Deref for Ordered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.entries
    }
}

impl<T: Entry> Ordered<T> {
    pub(crate) fn entries_mut(&mut self) -> &mut [T] {
        &mut self.entries
    }

    /// Takes everything out, in no order.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        let gone = std::mem::take(&mut self.gone);
        let gone: HashMap<AllocationId, Place> = gone.into_iter().collect();
        let mut all = std::mem::take(&mut self.entries);
        all.retain(|entry| !gone.contains_key(entry.id()));
        all.append(&mut self.fresh);
        self.known.clear();
        all
    }

    pub(crate) fn len_when_settled(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn is_empty_when_settled(&self) -> bool {
        self.known.is_empty()
    }

    /// Adds an entry in the place of one with the same id.
    pub(crate) fn add(&mut self, entry: T) {
        let id = entry.id();
        let place = (entry.job(), entry.requested_at());
        if let Some(before) = self.known.insert(id.clone(), place) {
            self.take_out(id, before);
        }
        self.fresh.push(entry);
    }

    /// Removes an entry; whether there was one.
    pub(crate) fn remove(&mut self, id: &AllocationId) -> bool {
        let Some(place) = self.known.remove(id) else {
            return false;
        };
        self.take_out(id, place);
        true
    }

    fn take_out(&mut self, id: &AllocationId, place: Place) {
        match self.fresh.iter().position(|entry| entry.id() == id) {
            Some(fresh) => {
                self.fresh.swap_remove(fresh);
            }
            None => self.gone.push((id.clone(), place)),
        }
    }

    /// The entry of an id.
    pub(crate) fn get(&self, id: &AllocationId, order: impl Fn(usize) -> u32) -> Option<&T> {
        let place = self.known.get(id)?;
        match self.fresh.iter().find(|entry| entry.id() == id) {
            Some(fresh) => Some(fresh),
            None => self.entries.get(self.find(id, *place, order)?),
        }
    }

    /// The number of an id's entry in a list that is settled.
    pub(crate) fn number_of(
        &self,
        id: &AllocationId,
        order: impl Fn(usize) -> u32,
    ) -> Option<usize> {
        self.find(id, *self.known.get(id)?, order)
    }

    fn find(
        &self,
        id: &AllocationId,
        (job, at): Place,
        order: impl Fn(usize) -> u32,
    ) -> Option<usize> {
        let wanted = (order(job), at, id);
        let found = self
            .entries
            .binary_search_by(|entry| key(entry, &order).cmp(&wanted));
        found.ok()
    }

    /// Takes out what was removed; `order` gives the jobs' places as they were when the list was last settled.
    pub(crate) fn remove_gone(&mut self, order: impl Fn(usize) -> u32) {
        if self.gone.is_empty() {
            return;
        }
        let mut places: Vec<usize> = std::mem::take(&mut self.gone)
            .into_iter()
            .filter_map(|(id, place)| self.find(&id, place, &order))
            .collect();
        places.sort_unstable();
        if places.len() <= FEW {
            for place in places.into_iter().rev() {
                self.entries.remove(place);
            }
            return;
        }
        let mut gone = places.into_iter().peekable();
        let mut number = 0;
        self.entries.retain(|_| {
            let goes = gone.next_if_eq(&number).is_some();
            number += 1;
            !goes
        });
    }

    /// Takes in what was added; `order` gives the jobs' places now, `moved` says whether some have changed.
    pub(crate) fn insert_fresh(&mut self, order: impl Fn(usize) -> u32, moved: bool) {
        let fresh = std::mem::take(&mut self.fresh);
        if moved || fresh.len() > FEW {
            self.entries.extend(fresh);
            self.entries
                .sort_by(|a, b| key(a, &order).cmp(&key(b, &order)));
            return;
        }
        for entry in fresh {
            let place = self
                .entries
                .partition_point(|other| key(other, &order) < key(&entry, &order));
            self.entries.insert(place, entry);
        }
    }
}

fn key<T: Entry>(entry: &T, order: impl Fn(usize) -> u32) -> (u32, Micros, &AllocationId) {
    (order(entry.job()), entry.requested_at(), entry.id())
}
