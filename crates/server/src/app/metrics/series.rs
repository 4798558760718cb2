//! Long metrics in few points: see `det_store::series`.
//!
//! A caller that asks for a series reads what is stored of it and what was reported since. That is little, because a
//! group whose reports have gathered is brought up to date in the background; and nothing is lost if that did not
//! happen: then the one who asks reads more, and stores what came of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use det_ids::{MetricChunkId, RunId, TrialId};
use det_store::series::{self, GroupSeries, Point};
use det_store::{StoreError, metrics};

use crate::app::context::Context;
use crate::app::metrics::journal::Journal;
use crate::app::metrics::reports::{Pages, ReportCutoffs};
use crate::error::AppResult;

/// Reports of a group after which its series are brought up to date.
const GATHERED: usize = 16_384;
/// Bytes of reports after which they are as well: metrics of single batches make few reports long.
const GATHERED_BYTES: usize = 16 << 20;
/// A reader stores what it had to read itself from so many reports on.
const WORTH_STORING: usize = 2048;
/// A reader also stores what it had to read itself from so many bytes on.
const BYTES_WORTH_STORING: usize = 1 << 20;
/// Chunks read at once for a close look.
const PAGE: i64 = 64;
/// Reports of a part of a long metric that are read one by one when its series has too few points in it.
const CLOSE_LOOK: i64 = 200_000;

/// Which groups have gathered how many reports since they were last looked at, and which are being looked at.
#[derive(Debug, Default)]
struct Work {
    gathered: Mutex<HashMap<(TrialId, String), GroupBacklog>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupBacklog {
    Reports { count: usize, bytes: usize },
    BeingStored,
}

impl Work {
    fn change<T>(
        &self,
        change: impl FnOnce(&mut HashMap<(TrialId, String), GroupBacklog>) -> T,
    ) -> T {
        change(&mut self.gathered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a report of so many bytes; whether it is time to bring the group up to date.
    fn count(&self, trial_id: TrialId, group: &str, size: usize) -> bool {
        self.change(|all| {
            // Bounded: groups that report seldom are evicted, and a reader loads what they gathered.
            if all.len() > 4096 {
                all.retain(|_, gathered| *gathered == GroupBacklog::BeingStored);
            }
            match all
                .entry((trial_id, group.to_owned()))
                .or_insert(GroupBacklog::Reports { count: 0, bytes: 0 })
            {
                GroupBacklog::BeingStored => false,
                GroupBacklog::Reports { count, bytes } => {
                    *count += 1;
                    *bytes += size;
                    *count >= GATHERED || *bytes >= GATHERED_BYTES
                }
            }
        })
    }

    /// Whether no other caller is storing this group now; then this one is.
    fn begin(&self, trial_id: TrialId, group: &str) -> bool {
        self.change(|all| {
            all.insert((trial_id, group.to_owned()), GroupBacklog::BeingStored)
                != Some(GroupBacklog::BeingStored)
        })
    }

    fn end(&self, trial_id: TrialId, group: &str) {
        self.change(|all| all.remove(&(trial_id, group.to_owned())));
    }
}

/// What to show of a metric.
#[derive(Debug, Clone)]
pub struct SeriesQuery {
    /// Most points that are shown of each metric.
    pub most: usize,
    /// The lowest step that is shown.
    pub from: i64,
    /// The highest step that is shown.
    pub to: i64,
}

/// Long metrics in few points. Cheap to clone.
#[derive(Clone)]
pub struct Series {
    context: Context,
    journal: Journal,
    work: Arc<Work>,
}

impl Series {
    /// Series of the reports that come out of this journal.
    pub(crate) fn new(context: Context, journal: Journal) -> Self {
        Self {
            context,
            journal,
            work: Arc::default(),
        }
    }

    /// Counts a report that was stored, of `size` bytes as it came, and sees to it that the series of its group do not
    /// fall far behind.
    pub(crate) fn note_report(&self, trial_id: TrialId, group: &str, size: usize) {
        if !self.work.count(trial_id, group, size) {
            return;
        }
        let (service, group) = (self.clone(), group.to_owned());
        // Ends by itself. Cut short by the end of the master it has done nothing, and the next one who asks does it.
        tokio::spawn(async move {
            if let Err(error) = service.store(trial_id, &group).await {
                tracing::warn!(trial.id = trial_id.0, group, %error, "the series of a metric could not be brought up to date");
            }
        });
    }

    /// Brings the stored series of a group up to date, unless another caller does.
    async fn store(&self, trial_id: TrialId, group: &str) -> Result<(), StoreError> {
        if !self.work.begin(trial_id, group) {
            return Ok(());
        }
        let outcome = self.store_alone(trial_id, group).await;
        self.work.end(trial_id, group);
        outcome
    }

    async fn store_alone(&self, trial_id: TrialId, group: &str) -> Result<(), StoreError> {
        let mut found = {
            let mut conn = self.context.store.read().await?;
            series::load(&mut conn.conn(), trial_id, group, None).await?
        };
        self.catch_up(trial_id, group, &mut found).await?;
        if found.new_reports == 0 {
            return Ok(());
        }
        let group = group.to_owned();
        self.context
            .store
            .write(move |tx| {
                Box::pin(
                    async move { series::save(&mut tx.conn(), trial_id, &group, &found).await },
                )
            })
            .await
    }

    /// Reads what was reported since `found` was stored.
    async fn catch_up(
        &self,
        trial_id: TrialId,
        group: &str,
        found: &mut GroupSeries,
    ) -> Result<(), StoreError> {
        let mut pages = Pages::new(&self.context.store, trial_id, group).after(found.through);
        loop {
            let chunks = pages.next().await?;
            if chunks.is_empty() {
                return Ok(());
            }
            for chunk in &chunks {
                found.add(chunk)?;
            }
        }
    }

    /// The points of some metrics of a trial's group, each in order of steps.
    pub async fn points(
        &self,
        trial_id: TrialId,
        group: &str,
        names: &[String],
        look: &SeriesQuery,
    ) -> AppResult<BTreeMap<String, Vec<Point>>> {
        self.journal.flush().await?;
        let outdating = ReportCutoffs::load(&self.context.store, trial_id).await?;
        if !outdating.has(group) {
            return Ok(BTreeMap::new());
        }
        let mut found = {
            let mut conn = self.context.store.read().await?;
            series::load(&mut conn.conn(), trial_id, group, Some(names)).await?
        };
        self.catch_up(trial_id, group, &mut found).await?;
        if found.new_reports >= WORTH_STORING || found.new_bytes >= BYTES_WORTH_STORING {
            let (service, group) = (self.clone(), group.to_owned());
            tokio::spawn(async move {
                if let Err(error) = service.store(trial_id, &group).await {
                    tracing::warn!(trial.id = trial_id.0, group, %error, "the series of a metric could not be stored");
                }
            });
        }
        let counts = |run_id: RunId, step: i64| {
            (look.from..=look.to).contains(&step) && outdating.counts(group, run_id, Some(step))
        };
        let mut points: BTreeMap<String, Vec<Point>> = names
            .iter()
            .map(|name| {
                let all = found.metrics.get(name);
                let points = all.map(|all| all.points(look.most, counts));
                (name.clone(), points.unwrap_or_default())
            })
            .collect();
        let few = points.values().any(|points| points.len() < look.most / 2);
        if few
            && let Some(close) = self
                .close_look(trial_id, group, names, look, &outdating)
                .await?
        {
            points = close;
        }
        points.retain(|_, points| !points.is_empty());
        Ok(points)
    }

    /// The same from the reports themselves, where these are not too many: for a small part of a long metric, or for more
    /// metrics than are kept as series.
    async fn close_look(
        &self,
        trial_id: TrialId,
        group: &str,
        names: &[String],
        look: &SeriesQuery,
        outdating: &ReportCutoffs,
    ) -> AppResult<Option<BTreeMap<String, Vec<Point>>>> {
        let mut close: BTreeMap<String, Vec<Point>> = names
            .iter()
            .map(|name| (name.clone(), Vec::new()))
            .collect();
        let (mut after, mut reports) = (MetricChunkId::default(), 0);
        loop {
            let chunks = {
                let mut conn = self.context.store.read().await?;
                let steps = look.from..=look.to;
                metrics::chunks_between(&mut conn.conn(), trial_id, group, steps, after, PAGE)
                    .await?
            };
            let Some(last) = chunks.last() else { break };
            after = last.id;
            for chunk in &chunks {
                reports += chunk.reports;
                if reports > CLOSE_LOOK {
                    return Ok(None);
                }
                for report in chunk.unpack_averages()? {
                    let Some(step) = report.step.filter(|s| (look.from..=look.to).contains(s))
                    else {
                        continue;
                    };
                    if !outdating.counts(group, chunk.run_id, Some(step)) {
                        continue;
                    }
                    for (name, points) in &mut close {
                        let value = report.metrics.get(name).and_then(metrics::number);
                        points.extend(value.filter(|v| v.is_finite()).map(|value| Point {
                            step,
                            at: report.at,
                            value,
                        }));
                    }
                }
            }
        }
        for points in close.values_mut() {
            points.sort_by_key(|point| point.step);
            *points = series::thin(std::mem::take(points), look.most);
        }
        Ok(Some(close))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_brought_up_to_date_by_one_at_a_time() {
        let work = Work::default();
        assert!((1..GATHERED).all(|_| !work.count(TrialId(1), "training", 100)));
        assert!(work.count(TrialId(1), "training", 100));
        assert!(!work.count(TrialId(1), "validation", 100));
        assert!(work.begin(TrialId(1), "training"));
        assert!(
            !work.begin(TrialId(1), "training"),
            "another caller is at it"
        );
        assert!(!work.count(TrialId(1), "training", 100));
        work.end(TrialId(1), "training");
        assert!(work.begin(TrialId(1), "training"));
    }

    #[test]
    fn few_long_reports_are_as_many_short_ones() {
        let work = Work::default();
        let long = GATHERED_BYTES / 8;
        assert!((1..8).all(|_| !work.count(TrialId(1), "training", long)));
        assert!(work.count(TrialId(1), "training", long));
    }
}
