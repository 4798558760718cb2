//! What memory holds of experiments, within a number of bytes: what was used least recently leaves first.

use std::collections::HashMap;

use det_ids::ExperimentId;

/// Values by experiment, which together are counted for at most so many bytes.
pub(super) struct ByteCache<V> {
    entries: HashMap<ExperimentId, Entry<V>>,
    limit: usize,
    bytes: usize,
    /// Grows with each use.
    clock: u64,
}

struct Entry<V> {
    value: V,
    bytes: usize,
    used_at: u64,
}

impl<V> ByteCache<V> {
    /// Of at most `limit` bytes; a single value may have more.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            entries: HashMap::new(),
            limit,
            bytes: 0,
            clock: 0,
        }
    }

    /// The value of an experiment, which is used by that; `None` = none is held.
    pub(super) fn get(&mut self, id: ExperimentId) -> Option<&V> {
        self.clock += 1;
        let entry = self.entries.get_mut(&id)?;
        entry.used_at = self.clock;
        Some(&entry.value)
    }

    /// Holds a value that is counted for so many bytes.
    pub(super) fn insert(&mut self, id: ExperimentId, value: V, bytes: usize) {
        self.remove(id);
        self.clock += 1;
        let used_at = self.clock;
        while self.bytes.saturating_add(bytes) > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used_at);
            let Some(id) = oldest.map(|(id, _)| *id) else {
                break;
            };
            self.remove(id);
        }
        self.bytes += bytes;
        let entry = Entry {
            value,
            bytes,
            used_at,
        };
        self.entries.insert(id, entry);
    }

    /// Evicts the value of an experiment.
    pub(super) fn remove(&mut self, id: ExperimentId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(cache: &ByteCache<u32>) -> Vec<i64> {
        let mut ids: Vec<i64> = cache.entries.keys().map(|id| id.0).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn what_was_used_least_recently_leaves_when_there_is_too_much() {
        let mut values = ByteCache::new(100);
        for id in 1..=4 {
            values.insert(ExperimentId(id), 0, 25);
        }
        assert!(values.get(ExperimentId(1)).is_some());
        values.insert(ExperimentId(5), 0, 40);
        assert_eq!((held(&values), values.bytes), (vec![1, 4, 5], 90));
        // The same again replaces it, and one that is too large comes alone.
        values.insert(ExperimentId(5), 7, 50);
        assert_eq!(values.get(ExperimentId(5)), Some(&7));
        assert_eq!((held(&values), values.bytes), (vec![1, 4, 5], 100));
        values.insert(ExperimentId(6), 0, 1_000);
        assert_eq!(held(&values), [6]);
        values.remove(ExperimentId(6));
        values.remove(ExperimentId(6));
        assert_eq!((held(&values), values.bytes), (vec![], 0));
    }

    #[test]
    fn however_many_are_inserted_the_limit_holds() {
        let mut values = ByteCache::new(1_000);
        for id in 0..5_000 {
            values.insert(ExperimentId(id), 0, usize::try_from(id % 97).unwrap());
            assert!(values.bytes <= 1_000);
            let counted: usize = values.entries.values().map(|entry| entry.bytes).sum();
            assert_eq!(values.bytes, counted);
        }
    }
}
