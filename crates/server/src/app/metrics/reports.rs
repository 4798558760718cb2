//! Reading a trial's metric reports as they count now: without those that a newer run has outdated, and with the parts
//! of one step put together.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{MetricChunkId, RunId, TrialId};
use det_store::metrics::{self, ChunkRow, StoredReport};
use det_store::{Store, StoreError};

/// Chunks read at once at first. A connection is held only while a page is read.
const FIRST_PAGE: i64 = 16;
/// Most chunks of a page.
const LARGEST_PAGE: i64 = 4096;
/// Packed bytes that a page may well have.
const PAGE_BYTES: usize = 512 * 1024;
/// Up to this many steps of a trial are looked up one by one; for more, its group is read through.
const LOOK_UPS: usize = 16;

/// Which reports of a trial still count.
#[derive(Debug, Clone, Default)]
pub struct ReportCutoffs {
    by_group: BTreeMap<String, BTreeMap<RunId, i64>>,
}

impl ReportCutoffs {
    /// Of one trial, as of now.
    pub async fn load(store: &Store, trial_id: TrialId) -> Result<Self, StoreError> {
        let mut conn = store.read().await?;
        let starts = metrics::run_starts(&mut conn.conn(), trial_id).await?;
        Ok(Self::new(&starts))
    }

    /// Of several trials, as of now; trials that have reported nothing are left out.
    pub async fn load_all(
        store: &Store,
        trial_ids: &[TrialId],
    ) -> Result<BTreeMap<TrialId, Self>, StoreError> {
        let mut conn = store.read().await?;
        let starts = metrics::run_starts_of(&mut conn.conn(), trial_ids).await?;
        Ok(starts
            .into_iter()
            .map(|(trial_id, starts)| (trial_id, Self::new(&starts)))
            .collect())
    }

    fn new(starts: &[(String, RunId, i64)]) -> Self {
        let names: BTreeSet<&String> = starts.iter().map(|(group, _, _)| group).collect();
        let by_group = names
            .into_iter()
            .map(|name| (name.clone(), metrics::outdated_from(starts, name)))
            .collect();
        Self { by_group }
    }

    /// Whether a report still counts.
    pub fn counts(&self, group: &str, run_id: RunId, step: Option<i64>) -> bool {
        self.by_group
            .get(group)
            .is_none_or(|from| metrics::counts(from, run_id, step))
    }

    /// Whether the trial has reported anything in this group.
    pub fn has(&self, group: &str) -> bool {
        self.by_group.contains_key(group)
    }

    /// The groups that the trial has reported in.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.by_group.keys().map(String::as_str)
    }
}

/// Reads a trial's chunks of one group page by page, in order of arrival.
pub struct Pages<'a> {
    store: &'a Store,
    trial_id: TrialId,
    group: &'a str,
    after: MetricChunkId,
    through: MetricChunkId,
    limit: i64,
}

impl<'a> Pages<'a> {
    /// Reads the reports of one group of a trial, from the first stored one on.
    pub fn new(store: &'a Store, trial_id: TrialId, group: &'a str) -> Self {
        Self {
            store,
            trial_id,
            group,
            after: MetricChunkId::default(),
            through: MetricChunkId::END,
            limit: FIRST_PAGE,
        }
    }

    /// Begins after this chunk; after the default with the first one.
    #[must_use]
    pub fn after(mut self, chunk_id: MetricChunkId) -> Self {
        self.after = chunk_id;
        self
    }

    /// Ends with this chunk: later ones are left out.
    #[must_use]
    pub fn through(mut self, chunk_id: MetricChunkId) -> Self {
        self.through = chunk_id;
        self
    }

    /// The next chunks; none at the end. Pages of small chunks grow: a trial that reports now and then leaves a chunk for
    /// each report.
    pub async fn next(&mut self) -> Result<Vec<ChunkRow>, StoreError> {
        if self.after >= self.through {
            return Ok(Vec::new());
        }
        let mut conn = self.store.read().await?;
        let (trial_id, group) = (self.trial_id, Some(self.group));
        let mut chunks =
            metrics::chunks(&mut conn.conn(), trial_id, group, self.after, self.limit).await?;
        self.after = chunks.last().map_or(MetricChunkId::END, |c| c.id);
        let bytes: usize = chunks.iter().map(|c| c.data.len()).sum();
        self.limit = if bytes > PAGE_BYTES {
            (self.limit / 2).max(1)
        } else if bytes < PAGE_BYTES / 4 {
            (self.limit * 4).min(LARGEST_PAGE)
        } else {
            self.limit
        };
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

/// The reports of one group that count, at the given steps of each trial: by trial and step, without the values of single
/// batches. With `only` the metric of this name is all that each has: of many reports it takes much less memory.
pub async fn at_steps(
    store: &Store,
    group: &str,
    wanted: &BTreeMap<TrialId, BTreeSet<i64>>,
    only: Option<&str>,
) -> Result<BTreeMap<(TrialId, i64), StoredReport>, StoreError> {
    let mut found = BTreeMap::new();
    if wanted.is_empty() {
        return Ok(found);
    }
    let trial_ids: Vec<TrialId> = wanted.keys().copied().collect();
    let outdating = ReportCutoffs::load_all(store, &trial_ids).await?;
    let mut take = |chunk: &ChunkRow| -> Result<(), StoreError> {
        let (Some(steps), Some(outdating)) =
            (wanted.get(&chunk.trial_id), outdating.get(&chunk.trial_id))
        else {
            return Ok(());
        };
        if !steps
            .range(chunk.first_step..=chunk.last_step.max(chunk.first_step))
            .any(|_| true)
        {
            return Ok(());
        }
        for mut report in chunk.unpack()? {
            let Some(step) = report.step else { continue };
            if !steps.contains(&step) || !outdating.counts(group, chunk.run_id, Some(step)) {
                continue;
            }
            report.batches = None;
            if let Some(only) = only {
                report.metrics.retain(|name, _| name == only);
            }
            match found.entry((chunk.trial_id, step)) {
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
    let reported = |trial_id: &TrialId| {
        outdating
            .get(trial_id)
            .is_some_and(|outdating| outdating.has(group))
    };
    let mut places = Vec::new();
    for (trial_id, steps) in wanted.iter().filter(|(trial_id, _)| reported(trial_id)) {
        if steps.len() <= LOOK_UPS {
            places.extend(steps.iter().map(|step| (*trial_id, *step)));
            continue;
        }
        let mut pages = Pages::new(store, *trial_id, group);
        loop {
            let chunks = pages.next().await?;
            if chunks.is_empty() {
                break;
            }
            for chunk in &chunks {
                take(chunk)?;
            }
        }
    }
    // A page of places at a time, so that what is held is bounded.
    for some in places.chunks(200) {
        let mut conn = store.read().await?;
        let chunks = metrics::chunks_at(&mut conn.conn(), group, some).await?;
        drop(conn);
        for chunk in &chunks {
            take(chunk)?;
        }
    }
    Ok(found)
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
            batches: batches.map(|batches| serde_json::value::to_raw_value(&batches).unwrap()),
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
        let outdating = ReportCutoffs::new(&[
            start("training", RunId(1), 0),
            start("training", RunId(2), 5),
            start("validation", RunId(1), 5),
        ]);
        assert!(outdating.counts("training", RunId(1), Some(4)));
        assert!(!outdating.counts("training", RunId(1), Some(5)));
        assert!(outdating.counts("training", RunId(2), Some(5)));
        assert!(
            outdating.counts("validation", RunId(1), Some(5)),
            "the same step of another group is kept"
        );
        assert!(!outdating.counts("validation", RunId(1), Some(6)));
        assert!(outdating.counts("gpu", RunId(1), None));
        assert_eq!(
            outdating.groups().collect::<Vec<_>>(),
            ["training", "validation"]
        );
    }
}
