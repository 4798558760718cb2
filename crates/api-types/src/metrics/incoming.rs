//! Reading a metric report without building what is only passed on.
//!
//! Reports are the most frequent requests, and single batches make them long. Written as our own clients write them
//! they are read straight into their types, the batches checked and kept as text. Anything else (another spelling, a
//! quoted number, an error) is parsed by the general decoder, [`wire::decode`], which gives the same or returns what is
//! wrong.

use std::fmt;

use det_ids::{ReportId, RunId, TrialId};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{ReportTrialMetricsRequest, TrialMetrics};
use crate::wire::{self, Timestamp, WireError};

/// A report as it is ingested.
#[derive(Debug)]
pub struct IncomingReport {
    /// Which run of the trial reports; must be its current one.
    pub trial_run_id: RunId,
    /// Batches, or what the trial counts, done so far; `None` only for profiler groups.
    pub steps_completed: Option<i64>,
    /// When it was measured; `None` = when it arrives.
    pub report_time: Option<Timestamp>,
    /// Values over the whole report.
    pub avg_metrics: Map<String, Value>,
    /// Values of each batch: the JSON text of a list of objects. `None` = not reported.
    pub batch_metrics: Option<Box<RawValue>>,
    /// `training`, `validation`, or a group of the user's own; no points.
    pub group: String,
    /// Identity of this report within the trial, chosen by the sender; `None` = it gave none.
    pub report_id: Option<ReportId>,
}

/// Reads the body of `ReportTrialMetrics`.
///
/// # Errors
/// As [`wire::decode`] of [`ReportTrialMetricsRequest`].
pub fn read_report(body: &[u8]) -> Result<IncomingReport, WireError> {
    if let Ok(plain) = serde_json::from_slice::<PlainRequest>(body)
        && let Some(report) = plain.into_report()
    {
        return Ok(report);
    }
    check_tree(body)?;
    let request: ReportTrialMetricsRequest = wire::decode(body)?;
    let TrialMetrics {
        trial_run_id,
        steps_completed,
        report_time,
        metrics,
        ..
    } = request.metrics;
    let batch_metrics = metrics
        .batch_metrics
        .map(|batches| RawValue::from_string(batches.get().to_owned()))
        .transpose()
        .map_err(|e| WireError::new(format!("the batch metrics cannot be kept: {e}")))?;
    Ok(IncomingReport {
        trial_run_id,
        steps_completed,
        report_time,
        avg_metrics: metrics.avg_metrics.0,
        batch_metrics,
        group: request.group,
        report_id: request.report_id,
    })
}

/// Most bytes that values of a report may take as objects. Values of single batches stay text and do not count, when they
/// are written as our clients write them.
const TREE_BYTES: usize = 40 << 20;

fn check_tree(text: &[u8]) -> Result<(), WireError> {
    if wire::tree_bytes(text) <= TREE_BYTES {
        return Ok(());
    }
    Err(WireError::new(format!(
        "the report holds too many values: as objects they may take at most {} MiB of memory; send them in several reports",
        TREE_BYTES >> 20
    )))
}

/// The request in its plain form. A name that is not known here may be another spelling of one that is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlainRequest<'a> {
    #[serde(borrow)]
    metrics: PlainTrialMetrics<'a>,
    group: String,
    #[serde(default, alias = "report_id")]
    report_id: Option<ReportId>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlainTrialMetrics<'a> {
    #[serde(default, alias = "trial_id", rename = "trialId")]
    _trial_id: TrialId,
    #[serde(alias = "trial_run_id")]
    trial_run_id: RunId,
    #[serde(default, alias = "steps_completed")]
    steps_completed: Option<i64>,
    #[serde(default, alias = "report_time")]
    report_time: Option<String>,
    #[serde(borrow)]
    metrics: PlainMetrics<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlainMetrics<'a> {
    #[serde(borrow, alias = "avg_metrics")]
    avg_metrics: &'a RawValue,
    #[serde(default, borrow, alias = "batch_metrics")]
    batch_metrics: Option<&'a RawValue>,
}

impl PlainRequest<'_> {
    /// `None` when it is not so plain after all.
    fn into_report(self) -> Option<IncomingReport> {
        let metrics = self.metrics;
        let report_time = match metrics.report_time {
            None => None,
            Some(text) => Some(text.parse().ok()?),
        };
        let batch_metrics = match metrics.metrics.batch_metrics {
            None => None,
            Some(raw) => {
                let _: Batches = serde_json::from_str(raw.get()).ok()?;
                Some(raw.to_owned())
            }
        };
        // The text is whole JSON: what is too large for an object goes the general way, and is refused there.
        let averages = metrics.metrics.avg_metrics.get();
        check_tree(averages.as_bytes()).ok()?;
        let avg_metrics: Map<String, Value> = serde_json::from_str(averages).ok()?;
        Some(IncomingReport {
            trial_run_id: metrics.trial_run_id,
            steps_completed: metrics.steps_completed,
            report_time,
            avg_metrics,
            batch_metrics,
            group: self.group,
            report_id: self.report_id,
        })
    }
}

/// A list of objects that [`Value`] could represent; it is checked and dropped.
struct Batches;

impl<'de> Deserialize<'de> for Batches {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Batches;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of objects")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Batches, A::Error> {
                while seq.next_element::<Batch>()?.is_some() {}
                Ok(Batches)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

struct Batch;

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Batch;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Batch, A::Error> {
                while map.next_entry::<StrictValue, StrictValue>()?.is_some() {}
                Ok(Batch)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Any JSON value, looked at in full: unlike with serde's `IgnoredAny`, a number that no float holds and a text that is no Unicode
/// are errors.
struct StrictValue;

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictValue)
    }
}

impl<'de> Visitor<'de> for StrictValue {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// What the general way gives, in the same form.
    fn general(body: &[u8]) -> Result<Value, String> {
        let request: ReportTrialMetricsRequest = wire::decode(body).map_err(|e| e.to_string())?;
        Ok(json!({
            "run": request.metrics.trial_run_id,
            "step": request.metrics.steps_completed,
            "at": request.metrics.report_time.map(|t| t.0),
            "avg": request.metrics.metrics.avg_metrics,
            "batches": request.metrics.metrics.batch_metrics,
            "group": request.group,
            "id": request.report_id,
        }))
    }

    fn read(body: &[u8]) -> Result<Value, String> {
        let report = read_report(body).map_err(|e| e.to_string())?;
        let batches = report
            .batch_metrics
            .map(|raw| serde_json::from_str::<Value>(raw.get()).unwrap());
        Ok(json!({
            "run": report.trial_run_id,
            "step": report.steps_completed,
            "at": report.report_time.map(|t| t.0),
            "avg": report.avg_metrics,
            "batches": batches,
            "group": report.group,
            "id": report.report_id,
        }))
    }

    fn is_plain(body: &str) -> bool {
        serde_json::from_str::<PlainRequest>(body).is_ok_and(|plain| plain.into_report().is_some())
    }

    #[test]
    fn what_our_clients_send_is_plain() {
        for body in [
            // The PyPI client, generated from protocol buffers.
            r#"{"group":"training","metrics":{"metrics":{"avgMetrics":{"loss":0.5},"batchMetrics":[{"loss":0.5},{}]},
                "reportTime":null,"stepsCompleted":3,"trialId":1,"trialRunId":2}}"#,
            // Our own package.
            r#"{"group":"validation","reportId":"a.1","metrics":{"trialId":1,"trialRunId":1,"stepsCompleted":1,
                "reportTime":"2025-01-31T12:00:00Z","metrics":{"avgMetrics":{"loss":"NaN"}}}}"#,
        ] {
            assert!(is_plain(body), "{body}");
            assert_eq!(read(body.as_bytes()), general(body.as_bytes()));
        }
    }

    #[test]
    fn whatever_else_is_read_or_refused_as_everywhere() {
        let with = |batches: &str| {
            format!(
                r#"{{"group":"g","metrics":{{"trialRunId":1,"stepsCompleted":1,"metrics":{{"avgMetrics":{{}},"batchMetrics":{batches}}}}}}}"#
            )
        };
        for body in [
            "",
            "null",
            "{",
            "[]",
            r#"{"group":7}"#,
            r#"{"group":"g","metrics":null}"#,
            r#"{"group":"g","metrics":{"trial_runId":"4","metrics":{"avg_Metrics":{"a":1}}}}"#,
            r#"{"group":"g","metrics":{"trialRunId":1,"trialRunId":2,"metrics":{"avgMetrics":{}}}}"#,
            r#"{"group":"g","metrics":{"trialRunId":1,"metrics":{"avgMetrics":{}}}} {"group":"h"}"#,
            r#"{"group":"g","metrics":{"trialRunId":1,"stepsCompleted":1.5,"metrics":{"avgMetrics":{}}}}"#,
            r#"{"group":"g","metrics":{"trialRunId":1,"reportTime":"noon","metrics":{"avgMetrics":{}}}}"#,
            r#"{"group":"g","metrics":{"trialRunId":1,"metrics":{"avgMetrics":{"a":1e999}}}}"#,
            &with("{}"),
            &with("[1]"),
            &with("[null]"),
            &with(r#"[{"a":1e999}]"#),
            &with(r#"[{"a":"\ud800"}]"#),
            &with("[{\"a\":[1,{\"b\":null}]},\n {\"a\":1,\"a\":2}]"),
            &with(&format!(
                "[{{\"a\":{}{}}}]",
                "[".repeat(200),
                "]".repeat(200)
            )),
        ] {
            assert_eq!(read(body.as_bytes()), general(body.as_bytes()), "{body}");
        }
    }

    fn any_body() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z0-9.:TZ-]{0,8}".prop_map(Value::from),
        ];
        let entries = prop::collection::btree_map("[a-c]", scalar.clone(), 0..3)
            .prop_map(|entries| entries.into_iter().collect::<Value>());
        let batches = prop_oneof![
            scalar.clone(),
            prop::collection::vec(prop_oneof![entries.clone(), scalar.clone()], 0..3)
                .prop_map(Value::from),
        ];
        let name = |names: &'static [&'static str]| prop::sample::select(names);
        (
            (name(&["trialRunId", "trial_run_id", "trialRun_Id"]), prop_oneof![Just(json!(1)), scalar.clone()]),
            (name(&["stepsCompleted", "steps_completed", "x"]), prop_oneof![Just(json!(7)), scalar.clone()]),
            (name(&["avgMetrics", "avg_metrics"]), prop_oneof![entries, scalar.clone()]),
            (name(&["batchMetrics", "batch_metrics"]), batches),
            (name(&["group", "reportId", "report_id", "more"]), scalar),
        )
            .prop_map(|(run, step, avg, batches, more)| {
                json!({
                    "group": "training",
                    more.0: more.1,
                    "metrics": {run.0: run.1, step.0: step.1, "metrics": {avg.0: avg.1, batches.0: batches.1}},
                })
            })
    }

    proptest! {
        #[test]
        fn both_ways_give_the_same(body in any_body()) {
            let body = body.to_string();
            prop_assert_eq!(read(body.as_bytes()), general(body.as_bytes()));
        }

        #[test]
        fn both_ways_give_the_same_of_cut_bodies(body in any_body(), keep in 0.0..1.0_f64) {
            let body = body.to_string();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in a short text")]
            let body = &body.as_bytes()[..(body.len() as f64 * keep) as usize];
            prop_assert_eq!(read(body), general(body));
        }
    }
}
