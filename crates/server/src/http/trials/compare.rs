//! Series of metrics of several trials side by side, in few points.

use std::collections::BTreeMap;

use det_api_types::trials::{
    ComparableTrial, CompareTrialsQuery, CompareTrialsResponse, DataPoint, DownsampledMetrics,
    MetricType,
};
use det_api_types::wire::{Float, Object, Timestamp};
use det_store::series::Point;
use serde_json::{Map, Value, json};

use crate::app::metrics::series::SeriesQuery;
use crate::app::metrics::{TRAINING, VALIDATION};
use crate::app::reads::trials::compared::{Names, compare};
use crate::error::{AppError, AppResult};
use crate::http::extract::{Caller, WireQuery};
use crate::http::respond::{Answer, message};
use crate::http::routes::{Routes, routes};
use crate::http::views;

/// Points of a metric when no number is given.
const DEFAULT_POINTS: usize = 1000;
/// Most points of a metric: a series keeps no more of a long one.
const MOST_POINTS: i64 = 100_000;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new().routes(routes!(compare_trials))
}

/// Metrics of trials in few points: of a long metric the lowest and highest values, stretch by stretch.
#[utoipa::path(get, path = "/api/v1/trials/time-series", operation_id = "CompareTrials", tag = "trials",
    params(CompareTrialsQuery), responses((status = 200, body = CompareTrialsResponse)))]
async fn compare_trials(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<CompareTrialsQuery>,
) -> Answer {
    if query.trial_ids.is_empty() {
        return Err(
            AppError::invalid("field \"trialIds\" is missing: name at least one trial").into(),
        );
    }
    let groups = groups(&query)?;
    let look = look(&query)?;
    let now = det_store::now();
    let ids = query.trial_ids;
    let mut trials = Vec::with_capacity(ids.len());
    for compared in compare(&master.sources.trials, &actor, ids, &groups, &look).await? {
        let (row, parts) = compared.trial;
        let metrics = compared.groups.into_iter().map(|(group, points)| {
            let data = data(&points);
            DownsampledMetrics {
                data,
                kind: kind(&group),
                group,
            }
        });
        trials.push(ComparableTrial {
            trial: views::trials::trial(&row, &parts, now)?,
            metrics: metrics.collect(),
        });
    }
    message(&CompareTrialsResponse { trials })
}

fn kind(group: &str) -> MetricType {
    match group {
        TRAINING => MetricType::Training,
        VALIDATION => MetricType::Validation,
        _ => MetricType::Unspecified,
    }
}

/// The names asked for, by group.
fn groups(query: &CompareTrialsQuery) -> AppResult<Names> {
    let mut groups = Names::new();
    if !query.metric_names.is_empty() {
        let group = match (query.group.as_str(), query.metric_type) {
            ("", MetricType::Training) => TRAINING,
            ("", MetricType::Validation) => VALIDATION,
            ("", MetricType::Unspecified | MetricType::Profiling) => {
                return Err(AppError::invalid(
                    "field \"group\" must name the group that \"metricNames\" belong to",
                )
                .hint("or name metrics as \"group.name\" in \"metricIds\""));
            }
            (group, _) => group,
        };
        groups.insert(group.to_owned(), query.metric_names.clone());
    }
    for id in &query.metric_ids {
        // A group's name has no dot; a metric's may have some.
        let (group, name) = id.split_once('.').ok_or_else(|| {
            AppError::invalid(format!(
                "field \"metricIds\" must have metrics as \"group.name\", found \"{}\"",
                id.escape_debug()
            ))
        })?;
        groups
            .entry(group.to_owned())
            .or_default()
            .push(name.to_owned());
    }
    if groups.is_empty() {
        return Err(AppError::invalid(
            "no metric is named: give \"metricNames\" with a \"group\", or \"metricIds\"",
        ));
    }
    for names in groups.values_mut() {
        names.sort_unstable();
        names.dedup();
    }
    Ok(groups)
}

fn look(query: &CompareTrialsQuery) -> AppResult<SeriesQuery> {
    let most = match query.max_datapoints {
        0 => DEFAULT_POINTS,
        1..=MOST_POINTS => usize::try_from(query.max_datapoints).unwrap_or(DEFAULT_POINTS),
        other => {
            return Err(AppError::invalid(format!(
                "field \"maxDatapoints\" must be from 0 to {MOST_POINTS}, found {other}"
            )));
        }
    };
    Ok(SeriesQuery {
        most,
        from: query.start_batches.max(0),
        to: match query.end_batches {
            0 => i64::MAX,
            end => end,
        },
    })
}

/// Points of several metrics by step; each has the values that are shown at its step.
fn data(points: &BTreeMap<String, Vec<Point>>) -> Vec<DataPoint> {
    let mut by_step: BTreeMap<i64, (i64, Map<String, Value>)> = BTreeMap::new();
    for (name, points) in points {
        for point in points {
            let (at, values) = by_step.entry(point.step).or_insert((point.at, Map::new()));
            *at = (*at).max(point.at);
            values.insert(name.clone(), json!(point.value));
        }
    }
    by_step
        .into_iter()
        .map(|(step, (at, values))| DataPoint {
            batches: step,
            time: Timestamp(at),
            epoch: values.get("epoch").and_then(Value::as_f64).map(Float),
            values: Some(Object(values)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_named_with_their_group_one_way_or_the_other() {
        let query = CompareTrialsQuery {
            metric_names: vec!["loss".into()],
            metric_type: MetricType::Training,
            metric_ids: vec!["validation.a.b".into(), "training.loss".into()],
            ..CompareTrialsQuery::default()
        };
        let found = groups(&query).unwrap();
        assert_eq!(found["training"], ["loss"]);
        assert_eq!(found["validation"], ["a.b"]);
        let unnamed = CompareTrialsQuery {
            metric_names: vec!["loss".into()],
            ..CompareTrialsQuery::default()
        };
        assert!(groups(&unnamed).unwrap_err().message.contains("\"group\""));
        assert!(groups(&CompareTrialsQuery::default()).is_err());
        let dotless = CompareTrialsQuery {
            metric_ids: vec!["loss".into()],
            ..CompareTrialsQuery::default()
        };
        assert!(groups(&dotless).unwrap_err().message.contains("group.name"));
    }

    #[test]
    fn values_at_one_step_are_one_point() {
        let point = |step, value| Point {
            step,
            at: step,
            value,
        };
        let points = BTreeMap::from([
            ("a".to_owned(), vec![point(1, 0.5), point(3, 1.5)]),
            ("epoch".to_owned(), vec![point(3, 2.0)]),
        ]);
        let data = data(&points);
        assert_eq!(data.len(), 2);
        assert_eq!((data[1].batches, data[1].epoch), (3, Some(Float(2.0))));
        assert_eq!(data[1].values.as_ref().unwrap()["a"], 1.5);
        assert_eq!(data[0].epoch, None);
    }
}
