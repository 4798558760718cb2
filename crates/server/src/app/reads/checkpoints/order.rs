//! The order of lists of checkpoints.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use det_api_types::checkpoints::CheckpointSortBy;
use det_api_types::page::OrderBy;
use det_ids::TrialId;
use det_store::checkpoints::CheckpointHead;

/// What a listing is sorted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SortKey {
    /// An attribute of the checkpoint.
    Attribute(CheckpointSortBy),
    /// A validation metric; checkpoints without it come last.
    Metric {
        /// Name of the metric, without its group.
        name: String,
        /// Whether the largest comes first.
        largest_first: bool,
    },
}

impl SortKey {
    /// The validation metric that the order depends on.
    pub(crate) fn metric(&self) -> Option<&str> {
        match self {
            Self::Attribute(_) => None,
            Self::Metric { name, .. } => Some(name),
        }
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

/// Sorts a listing; the uuid is the tie break. `metrics` has the values of the key's metric by trial and step.
pub(crate) fn sort(
    heads: &mut [CheckpointHead],
    key: &SortKey,
    order: OrderBy,
    metrics: &BTreeMap<(TrialId, i64), f64>,
) {
    match key {
        SortKey::Attribute(attribute) => heads.sort_by(|a, b| {
            let ascending = by_attribute(*attribute, a, b).then_with(|| a.uuid.cmp(&b.uuid));
            if order == OrderBy::Desc {
                ascending.reverse()
            } else {
                ascending
            }
        }),
        SortKey::Metric { largest_first, .. } => heads.sort_by(|a, b| {
            // What is not finite ranks with what is not there.
            let value = |head: &CheckpointHead| {
                let value = metrics.get(&(head.trial_id?, head.steps)).copied();
                value.filter(|value| value.is_finite())
            };
            let order = match (value(a), value(b)) {
                (Some(a), Some(b)) if *largest_first => b.total_cmp(&a),
                (Some(a), Some(b)) => a.total_cmp(&b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            };
            order.then_with(|| a.uuid.cmp(&b.uuid))
        }),
    }
}

fn by_attribute(attribute: CheckpointSortBy, a: &CheckpointHead, b: &CheckpointHead) -> Ordering {
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
mod tests {
    use det_store::checkpoints::CheckpointState;

    use super::*;

    fn head(uuid: &str, steps: i64) -> CheckpointHead {
        CheckpointHead {
            uuid: uuid.into(),
            trial_id: Some(TrialId(9)),
            state: CheckpointState::Completed,
            steps,
            reported_at: 1,
            bytes: 26,
        }
    }

    fn sorted(attribute: CheckpointSortBy, order: OrderBy, smaller_is_better: bool) -> Vec<String> {
        let mut items = vec![head("a", 3), head("b", 2), head("c", 1), head("d", 4)];
        let losses = [(2, 0.5), (1, 0.1), (4, 0.5)];
        let losses = losses
            .map(|(steps, loss)| ((TrialId(9), steps), loss))
            .into();
        let key = sort_key(attribute, "", order, "loss", smaller_is_better).unwrap();
        sort(&mut items, &key, order, &losses);
        items.into_iter().map(|head| head.uuid.into()).collect()
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
