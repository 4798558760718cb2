//! The order of lists of checkpoints.

use std::cmp::Ordering;

use det_api_types::checkpoints::CheckpointSortBy;
use det_api_types::page::OrderBy;

use crate::app::checkpoints::joined::Joined;

/// What a listing is sorted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SortKey {
    /// An attribute of the checkpoint.
    Attribute(CheckpointSortBy),
    /// A validation metric; checkpoints without it come last.
    Metric {
        /// Its name.
        name: String,
        /// Whether the largest comes first.
        largest_first: bool,
    },
}

impl SortKey {
    /// Whether the order depends on validations.
    pub(crate) fn needs_validations(&self) -> bool {
        matches!(self, Self::Metric { .. })
    }
}

/// What a request asks to sort by. `metric` is the searcher's, which is the key when nothing is asked; better values of
/// it come first unless a direction is given. `Err` names the fields that exclude each other.
pub(crate) fn sort_key(
    attribute: CheckpointSortBy,
    by_metric: &str,
    order: OrderBy,
    metric: &str,
    smaller_is_better: bool,
) -> Result<SortKey, &'static str> {
    match (attribute, by_metric) {
        (CheckpointSortBy::Unspecified | CheckpointSortBy::SearcherMetric, "") => {
            Ok(SortKey::Metric {
                name: metric.to_owned(),
                largest_first: match order {
                    OrderBy::Unspecified => !smaller_is_better,
                    OrderBy::Asc => false,
                    OrderBy::Desc => true,
                },
            })
        }
        (CheckpointSortBy::Unspecified, name) => Ok(SortKey::Metric {
            name: name.to_owned(),
            largest_first: order == OrderBy::Desc,
        }),
        (attribute, "") => Ok(SortKey::Attribute(attribute)),
        _ => Err("fields \"sortByAttr\" and \"sortByMetric\" exclude each other: give one of them"),
    }
}

/// Sorts a listing; the uuid is the tie break.
pub(crate) fn sort(items: &mut [Joined], key: &SortKey, order: OrderBy) {
    match key {
        SortKey::Attribute(attribute) => items.sort_by(|a, b| {
            let ascending =
                by_attribute(*attribute, a, b).then_with(|| a.row.uuid.cmp(&b.row.uuid));
            if order == OrderBy::Desc {
                ascending.reverse()
            } else {
                ascending
            }
        }),
        SortKey::Metric {
            name,
            largest_first,
        } => items.sort_by(|a, b| {
            // What is not finite ranks with what is not there.
            let value = |item: &Joined| item.metric(name).filter(|m| m.is_finite());
            let order = match (value(a), value(b)) {
                (Some(a), Some(b)) if *largest_first => b.total_cmp(&a),
                (Some(a), Some(b)) => a.total_cmp(&b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            };
            order.then_with(|| a.row.uuid.cmp(&b.row.uuid))
        }),
    }
}

fn by_attribute(attribute: CheckpointSortBy, a: &Joined, b: &Joined) -> Ordering {
    let (a, b) = (&a.row, &b.row);
    match attribute {
        // The searcher's metric is a metric and never comes here.
        CheckpointSortBy::Unspecified
        | CheckpointSortBy::SearcherMetric
        | CheckpointSortBy::Uuid => Ordering::Equal,
        CheckpointSortBy::TrialId => a.trial_id.cmp(&b.trial_id),
        CheckpointSortBy::BatchNumber => a.steps.cmp(&b.steps),
        CheckpointSortBy::EndTime => a.reported_at.cmp(&b.reported_at),
        CheckpointSortBy::State => a.state.cmp(&b.state),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use det_ids::{ExperimentId, TrialId};
    use det_store::checkpoints::{CheckpointRow, CheckpointState};
    use det_store::metrics::StoredReport;
    use serde_json::json;

    use super::*;

    pub(crate) fn joined(uuid: &str, steps: i64, loss: Option<f64>) -> Joined {
        Joined {
            row: CheckpointRow {
                uuid: uuid.into(),
                experiment_id: Some(ExperimentId(3)),
                trial_id: Some(TrialId(9)),
                task_id: "3.r".into(),
                allocation_id: Some("3.r.1".into()),
                state: CheckpointState::Completed,
                steps,
                metadata: format!("{{\"steps_completed\":{steps}}}"),
                resources: r#"{"m.pt":26}"#.into(),
                bytes: 26,
                reported_at: 1,
                storage_id: None,
                owner_uid: None,
                removing: None,
            },
            validation: loss.map(|loss| StoredReport {
                step: Some(steps),
                at: 0,
                metrics: serde_json::Map::from_iter([("loss".to_owned(), json!(loss))]),
                batches: None,
                report_id: None,
            }),
        }
    }

    fn sorted(attribute: CheckpointSortBy, order: OrderBy, smaller_is_better: bool) -> Vec<String> {
        let mut items = vec![
            joined("a", 3, None),
            joined("b", 2, Some(0.5)),
            joined("c", 1, Some(0.1)),
            joined("d", 4, Some(0.5)),
        ];
        let key = sort_key(attribute, "", order, "loss", smaller_is_better).unwrap();
        sort(&mut items, &key, order);
        items.into_iter().map(|j| j.row.uuid).collect()
    }

    #[test]
    fn better_ones_come_first_and_unvalidated_ones_last() {
        use CheckpointSortBy::{BatchNumber, SearcherMetric, Unspecified, Uuid};
        assert_eq!(
            sorted(Unspecified, OrderBy::Unspecified, true),
            ["c", "b", "d", "a"]
        );
        assert_eq!(
            sorted(SearcherMetric, OrderBy::Unspecified, false),
            ["b", "d", "c", "a"]
        );
        assert_eq!(
            sorted(SearcherMetric, OrderBy::Asc, false),
            ["c", "b", "d", "a"]
        );
        assert_eq!(
            sorted(BatchNumber, OrderBy::Desc, true),
            ["d", "a", "b", "c"]
        );
        assert_eq!(
            sorted(Uuid, OrderBy::Unspecified, true),
            ["a", "b", "c", "d"]
        );
    }

    #[test]
    fn two_sort_keys_are_refused() {
        assert!(sort_key(CheckpointSortBy::Uuid, "loss", OrderBy::Asc, "loss", true).is_err());
    }
}
