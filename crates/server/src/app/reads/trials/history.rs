//! A trial's history: training, validations and checkpoints by step.
//!
//! Reports are read twice: first for what the page's order needs, then for the entries on the page. So a page of a long
//! history never holds more than that.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use det_api_types::page::{OrderBy, Pagination};
use det_api_types::trials::{GetTrialWorkloadsQuery, MetricType, WorkloadFilter};
use det_ids::{CheckpointId, RunId, TrialId};
use det_store::Store;
use det_store::checkpoints::{self, CheckpointHead, CheckpointRow, CheckpointState};
use det_store::metrics::{StoredReport, number};

use crate::app::metrics::reports::{Pages, ReportCutoffs, merge};
use crate::app::metrics::{TRAINING, VALIDATION};
use crate::app::reads;
use crate::app::reads::paging;
use crate::app::reads::trials::TrialSources;
use crate::auth::Actor;
use crate::error::AppResult;

/// The sort key that means the step.
const BY_STEP: &str = "batches";

/// Identity of an entry. Its order is that of a history: by step, and within a step training, validation, checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Report {
        step: i64,
        rank: u8,
        group: String,
        run_id: RunId,
    },
    Checkpoint {
        step: i64,
        uuid: CheckpointId,
    },
}

impl Key {
    fn report(group: &str, run_id: RunId, step: i64) -> Self {
        let rank = u8::from(group == VALIDATION);
        Self::Report {
            step,
            rank,
            group: group.to_owned(),
            run_id,
        }
    }

    fn order(&self) -> (i64, u8) {
        match self {
            Self::Report { step, rank, .. } => (*step, *rank),
            Self::Checkpoint { step, .. } => (*step, 2),
        }
    }
}

/// An entry of a trial's history.
pub(crate) enum Entry {
    /// A checkpoint that the trial has reported.
    Checkpoint(CheckpointRow),
    /// A report of the validation group.
    Validation(StoredReport),
    /// A report of any other group.
    Training(StoredReport),
}

/// Which reports are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Groups {
    None,
    /// Training and validation.
    Usual,
    One(String),
}

impl Groups {
    fn asked(query: &GetTrialWorkloadsQuery) -> Self {
        match (query.filter, query.group.as_str(), query.metric_type) {
            (WorkloadFilter::Checkpoint, _, _) => Self::None,
            (WorkloadFilter::Validation | WorkloadFilter::CheckpointOrValidation, _, _) => {
                Self::One(VALIDATION.into())
            }
            (WorkloadFilter::Unspecified, "", MetricType::Training) => Self::One(TRAINING.into()),
            (WorkloadFilter::Unspecified, "", MetricType::Validation) => {
                Self::One(VALIDATION.into())
            }
            (WorkloadFilter::Unspecified, "", MetricType::Profiling) => Self::None,
            (WorkloadFilter::Unspecified, "", MetricType::Unspecified) => Self::Usual,
            (WorkloadFilter::Unspecified, group, _) => Self::One(group.to_owned()),
        }
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Self::None => Vec::new(),
            Self::Usual => vec![TRAINING, VALIDATION],
            Self::One(name) => vec![name],
        }
    }
}

/// One page of a trial's history.
pub(crate) async fn page(
    sources: &TrialSources,
    actor: &Actor,
    trial_id: TrialId,
    query: &GetTrialWorkloadsQuery,
) -> AppResult<(Vec<Entry>, Pagination)> {
    let store = &sources.store;
    reads::trials::find(store, actor, trial_id).await?;
    let groups = Groups::asked(query);
    sources.journal.flush().await?;
    let outdating = ReportCutoffs::load(store, trial_id).await?;
    let mut values: BTreeMap<Key, EntrySize> = BTreeMap::new();
    let by_metric = Some(query.sort_key.as_str()).filter(|key| !key.is_empty() && *key != BY_STEP);
    for group in groups.names() {
        each(store, trial_id, group, &outdating, |run_id, report| {
            let value = by_metric
                .and_then(|name| report.metrics.get(name))
                .and_then(number);
            let slot = values
                .entry(Key::report(group, run_id, report.step.unwrap_or(0)))
                .or_default();
            slot.value = slot.value.or(value);
            let bytes = i64::try_from(report.bytes()).unwrap_or(i64::MAX);
            slot.bytes = slot.bytes.saturating_add(bytes);
        })
        .await?;
    }
    for head in wanted_checkpoints(store, trial_id, query).await? {
        let key = Key::Checkpoint {
            step: head.steps,
            uuid: head.uuid,
        };
        let bytes = head.bytes;
        values.insert(key, EntrySize { value: None, bytes });
    }
    let keys = sorted(values, by_metric.is_some(), query.order_by);

    let total = keys.len();
    let start = usize::try_from(query.offset.max(0))
        .unwrap_or(usize::MAX)
        .min(total);
    let count = match query.limit {
        // Unlike other listings of this family, 0 is all here.
        0 | -1 => usize::MAX,
        -2 => 0,
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let page = keys.into_iter().skip(start).take(count).collect();
    let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let pagination = Pagination {
        offset: query.offset,
        limit: query.limit,
        start_index: signed(start),
        end_index: signed(start.saturating_add(count).min(total)),
        total: signed(total),
    };
    // It ends early where its reports are large: clients go on at its end.
    let (page, pagination) = paging::within(page, pagination, |(_, bytes)| *bytes);
    let page: Vec<Key> = page.into_iter().map(|(key, _)| key).collect();
    let mut checkpoints = checkpoints_of(store, &page).await?;
    let mut reports = read(store, trial_id, &groups, &outdating, &page).await?;
    let entries = page.into_iter().filter_map(|key| match &key {
        Key::Checkpoint { uuid, .. } => checkpoints.remove(uuid).map(Entry::Checkpoint),
        // Between the two readings a newer run may have begun and outdated the report.
        Key::Report { group, .. } => reports.remove(&key).map(|report| {
            if group == VALIDATION {
                Entry::Validation(report)
            } else {
                Entry::Training(report)
            }
        }),
    });
    Ok((entries.collect(), pagination))
}

/// What the order and the size of a page need of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct EntrySize {
    /// The metric that is sorted by.
    value: Option<f64>,
    /// About how many bytes it has.
    bytes: i64,
}

async fn wanted_checkpoints(
    store: &Store,
    trial_id: TrialId,
    query: &GetTrialWorkloadsQuery,
) -> AppResult<Vec<CheckpointHead>> {
    if query.filter == WorkloadFilter::Validation {
        return Ok(Vec::new());
    }
    let mut conn = store.read().await?;
    let mut heads = checkpoints::heads_of_trial(&mut conn.conn(), trial_id).await?;
    let unwanted = query.remove_deleted_checkpoints;
    heads.retain(|head| !(unwanted && head.state == CheckpointState::Deleted));
    Ok(heads)
}

/// The checkpoints of a page.
async fn checkpoints_of(
    store: &Store,
    page: &[Key],
) -> AppResult<BTreeMap<CheckpointId, CheckpointRow>> {
    let named = page.iter().filter_map(|key| match key {
        Key::Checkpoint { uuid, .. } => Some(uuid.clone()),
        Key::Report { .. } => None,
    });
    let uuids: Vec<CheckpointId> = named.collect();
    let mut conn = store.read().await?;
    let rows = checkpoints::find_all(&mut conn.conn(), &uuids).await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.uuid.clone(), row))
        .collect())
}

/// The entries in the order asked for, with their sizes; those without the metric come last in either direction.
fn sorted(values: BTreeMap<Key, EntrySize>, by_metric: bool, order: OrderBy) -> Vec<(Key, i64)> {
    let descending = order == OrderBy::Desc;
    let mut entries: Vec<(Key, EntrySize)> = values.into_iter().collect();
    entries.sort_by(|(a, x), (b, y)| {
        let by_value = match (x.value, y.value) {
            _ if !by_metric => Ordering::Equal,
            (Some(x), Some(y)) if descending => y.total_cmp(&x),
            (Some(x), Some(y)) => x.total_cmp(&y),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        };
        let by_step = a.order().cmp(&b.order()).then_with(|| a.cmp(b));
        by_value.then(if descending {
            by_step.reverse()
        } else {
            by_step
        })
    });
    let sized = entries.into_iter().map(|(key, seen)| (key, seen.bytes));
    sized.collect()
}

/// Shows every report of a group that counts, in order of arrival.
async fn each(
    store: &Store,
    trial_id: TrialId,
    group: &str,
    outdating: &ReportCutoffs,
    mut see: impl FnMut(RunId, StoredReport),
) -> AppResult<()> {
    if !outdating.has(group) {
        return Ok(());
    }
    let mut pages = Pages::new(store, trial_id, group);
    loop {
        let chunks = pages.next().await?;
        if chunks.is_empty() {
            return Ok(());
        }
        for chunk in &chunks {
            for report in chunk.unpack()? {
                if outdating.counts(group, chunk.run_id, report.step) {
                    see(chunk.run_id, report);
                }
            }
        }
    }
}

/// Reads the reports of a page, the parts of one step put together.
async fn read(
    store: &Store,
    trial_id: TrialId,
    groups: &Groups,
    outdating: &ReportCutoffs,
    page: &[Key],
) -> AppResult<BTreeMap<Key, StoredReport>> {
    let wanted: BTreeSet<&Key> = page.iter().collect();
    let mut found: BTreeMap<Key, StoredReport> = BTreeMap::new();
    for group in groups.names() {
        if !wanted
            .iter()
            .any(|key| matches!(key, Key::Report { group: name, .. } if name == group))
        {
            continue;
        }
        each(store, trial_id, group, outdating, |run_id, report| {
            let key = Key::report(group, run_id, report.step.unwrap_or(0));
            if wanted.contains(&key) {
                match found.get_mut(&key) {
                    Some(whole) => merge(whole, report),
                    None => {
                        found.insert(key, report);
                    }
                }
            }
        })
        .await?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(change: impl FnOnce(&mut GetTrialWorkloadsQuery)) -> GetTrialWorkloadsQuery {
        let mut query = GetTrialWorkloadsQuery::default();
        change(&mut query);
        query
    }

    #[test]
    fn filters_name_groups() {
        assert_eq!(
            Groups::asked(&query(|_| {})).names(),
            [TRAINING, VALIDATION]
        );
        assert_eq!(
            Groups::asked(&query(|q| q.filter = WorkloadFilter::Checkpoint)),
            Groups::None
        );
        assert_eq!(
            Groups::asked(&query(|q| q.filter = WorkloadFilter::Validation)).names(),
            [VALIDATION]
        );
        assert_eq!(
            Groups::asked(&query(|q| q.metric_type = MetricType::Training)).names(),
            [TRAINING]
        );
        assert_eq!(
            Groups::asked(&query(|q| q.group = "mine".into())).names(),
            ["mine"]
        );
    }

    fn checkpoint(step: i64) -> Key {
        Key::Checkpoint {
            step,
            uuid: "u".into(),
        }
    }

    fn in_order(values: BTreeMap<Key, EntrySize>, by_metric: bool, order: OrderBy) -> Vec<Key> {
        let entries = sorted(values, by_metric, order).into_iter();
        entries.map(|(key, _)| key).collect()
    }

    #[test]
    fn a_history_is_sorted_by_step_and_kind() {
        let keys = [
            checkpoint(1),
            Key::report(VALIDATION, RunId::FIRST, 1),
            Key::report(TRAINING, RunId::FIRST, 1),
            checkpoint(0),
        ];
        let values: BTreeMap<Key, EntrySize> = keys
            .into_iter()
            .map(|key| (key, EntrySize::default()))
            .collect();
        let expected = vec![
            checkpoint(0),
            Key::report(TRAINING, RunId::FIRST, 1),
            Key::report(VALIDATION, RunId::FIRST, 1),
            checkpoint(1),
        ];
        assert_eq!(in_order(values.clone(), false, OrderBy::Asc), expected);
        let reversed: Vec<Key> = expected.into_iter().rev().collect();
        assert_eq!(in_order(values, false, OrderBy::Desc), reversed);
    }

    #[test]
    fn entries_without_the_metric_come_last_either_way() {
        let (low, high) = (
            Key::report(TRAINING, RunId::FIRST, 5),
            Key::report(TRAINING, RunId::FIRST, 1),
        );
        let seen = |value| EntrySize { value, bytes: 1 };
        let values = BTreeMap::from([
            (low.clone(), seen(Some(0.1))),
            (high.clone(), seen(Some(0.9))),
            (checkpoint(0), seen(None)),
        ]);
        assert_eq!(
            in_order(values.clone(), true, OrderBy::Asc),
            [low.clone(), high.clone(), checkpoint(0)]
        );
        assert_eq!(
            in_order(values, true, OrderBy::Desc),
            [high, low, checkpoint(0)]
        );
    }
}
