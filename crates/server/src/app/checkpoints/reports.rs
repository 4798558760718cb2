//! Reading a trial's metric reports as they count now: without those that a newer run has outdated, and with the parts
//! of one step put together.

use std::collections::{BTreeMap, BTreeSet};

use det_store::metrics::{self, ChunkRow, StoredReport};
use det_store::{Store, StoreError};

/// Chunks read at once. A connection is held only while a page is read.
const PAGE: i64 = 64;
/// Up to this many steps are looked up one by one; for more, the group is read through.
const LOOK_UPS: usize = 16;

/// Which reports of a trial still count.
#[derive(Debug, Clone, Default)]
pub struct Outdating {
    starts: Vec<(String, i64, i64)>,
    by_group: BTreeMap<String, BTreeMap<i64, i64>>,
}

impl Outdating {
    /// Of one trial, as of now.
    pub async fn load(store: &Store, trial_id: i64) -> Result<Self, StoreError> {
        let mut conn = store.read().await?;
        Ok(Self::new(
            metrics::run_starts(&mut conn.conn(), trial_id).await?,
        ))
    }

    fn new(starts: Vec<(String, i64, i64)>) -> Self {
        let names: BTreeSet<&String> = starts.iter().map(|(group, _, _)| group).collect();
        let by_group = names
            .into_iter()
            .map(|name| (name.clone(), metrics::outdated_from(&starts, name)))
            .collect();
        Self { starts, by_group }
    }

    /// Whether a report still counts.
    pub fn counts(&self, group: &str, run_id: i64, step: Option<i64>) -> bool {
        self.by_group
            .get(group)
            .is_none_or(|from| metrics::counts(from, run_id, step))
    }

    /// Whether the trial has reported anything in this group.
    pub fn has(&self, group: &str) -> bool {
        self.by_group.contains_key(group)
    }

    /// Runs that have reported in this group, oldest first.
    fn runs(&self, group: &str) -> impl Iterator<Item = i64> {
        self.starts
            .iter()
            .filter(move |(name, _, _)| name == group)
            .map(|(_, run, _)| *run)
    }
}

/// Reads a trial's chunks page by page, in order of arrival.
pub struct Pages<'a> {
    store: &'a Store,
    trial_id: i64,
    group: Option<&'a str>,
    after: i64,
    through: i64,
}

impl<'a> Pages<'a> {
    /// Of one group, or of all.
    pub fn new(store: &'a Store, trial_id: i64, group: Option<&'a str>) -> Self {
        Self {
            store,
            trial_id,
            group,
            after: 0,
            through: i64::MAX,
        }
    }

    /// Ends with this chunk: later ones are left out.
    #[must_use]
    pub fn through(mut self, chunk_id: i64) -> Self {
        self.through = chunk_id;
        self
    }

    /// The next chunks; none at the end.
    pub async fn next(&mut self) -> Result<Vec<ChunkRow>, StoreError> {
        if self.after >= self.through {
            return Ok(Vec::new());
        }
        let mut conn = self.store.read().await?;
        let mut chunks = metrics::chunks(
            &mut conn.conn(),
            self.trial_id,
            self.group,
            self.after,
            PAGE,
        )
        .await?;
        self.after = chunks.last().map_or(i64::MAX, |c| c.id);
        chunks.retain(|c| c.id <= self.through);
        Ok(chunks)
    }
}

/// Adds a later report of the same run, group and step to an earlier one.
pub fn merge(into: &mut StoredReport, later: StoredReport) {
    into.at = into.at.max(later.at);
    into.metrics.extend(later.metrics);
    if into.batches.is_none() {
        into.batches = later.batches;
    }
}

/// The reports of one group that count, at the given steps.
pub async fn at_steps(
    store: &Store,
    outdating: &Outdating,
    trial_id: i64,
    group: &str,
    steps: &BTreeSet<i64>,
) -> Result<BTreeMap<i64, StoredReport>, StoreError> {
    let mut found = BTreeMap::new();
    if steps.is_empty() || !outdating.has(group) {
        return Ok(found);
    }
    let mut take = |chunk: &ChunkRow| -> Result<(), StoreError> {
        if !steps
            .range(chunk.first_step..=chunk.last_step.max(chunk.first_step))
            .any(|_| true)
        {
            return Ok(());
        }
        for report in chunk.unpack()? {
            let Some(step) = report.step else { continue };
            if !steps.contains(&step) || !outdating.counts(group, chunk.run_id, Some(step)) {
                continue;
            }
            match found.entry(step) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(report);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    merge(entry.get_mut(), report);
                }
            }
        }
        Ok(())
    };
    if steps.len() <= LOOK_UPS {
        let mut holding = BTreeMap::new();
        for run in outdating.runs(group) {
            for step in steps {
                let mut conn = store.read().await?;
                for chunk in
                    metrics::chunks_with_step(&mut conn.conn(), trial_id, group, run, *step).await?
                {
                    holding.insert(chunk.id, chunk);
                }
            }
        }
        for chunk in holding.values() {
            take(chunk)?;
        }
        return Ok(found);
    }
    let mut pages = Pages::new(store, trial_id, Some(group));
    loop {
        let chunks = pages.next().await?;
        if chunks.is_empty() {
            return Ok(found);
        }
        for chunk in &chunks {
            take(chunk)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(
        at: i64,
        metrics: serde_json::Value,
        batches: Option<serde_json::Value>,
    ) -> StoredReport {
        let serde_json::Value::Object(metrics) = metrics else {
            panic!("an object")
        };
        StoredReport {
            step: Some(1),
            at,
            metrics,
            batches,
            report_id: None,
        }
    }

    #[test]
    fn parts_of_one_step_are_put_together() {
        let mut whole = report(5, json!({"loss": 0.5}), None);
        merge(
            &mut whole,
            report(7, json!({"accuracy": 0.9}), Some(json!([{"loss": 1.0}]))),
        );
        assert_eq!(
            whole,
            report(
                7,
                json!({"loss": 0.5, "accuracy": 0.9}),
                Some(json!([{"loss": 1.0}]))
            )
        );
    }

    #[test]
    fn a_newer_run_outdates_its_first_step_and_later_ones() {
        let start = |group: &str, run, step| (group.to_owned(), run, step);
        let outdating = Outdating::new(vec![
            start("training", 1, 0),
            start("training", 2, 5),
            start("validation", 1, 5),
        ]);
        assert!(outdating.counts("training", 1, Some(4)));
        assert!(!outdating.counts("training", 1, Some(5)));
        assert!(outdating.counts("training", 2, Some(5)));
        assert!(
            outdating.counts("validation", 1, Some(5)),
            "the same step of another group is kept"
        );
        assert!(!outdating.counts("validation", 1, Some(6)));
        assert!(outdating.counts("gpu", 1, None));
        assert_eq!(outdating.runs("training").collect::<Vec<_>>(), [1, 2]);
    }
}
