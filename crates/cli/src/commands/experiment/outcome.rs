//! What came of an experiment: its best trial, and why it or its trials failed.

use det_ids::quantity;
use std::collections::{BTreeMap, BTreeSet};

use det_client::{Client, ClientError, Query, api_path};
use serde_json::Value;

use crate::commands::failures;
use crate::error::CliError;
use crate::output;
use crate::values::{items, members, number, rounded, state, text};

/// Most failed trials whose reasons are asked for; each takes a request.
const ASKED: usize = 5;
/// Events of a page.
const PAGE: u32 = 1_000;

/// The best trial of an experiment by the searcher's metric, in words; `None` before the first validation. `experiment`
/// is as the API returns it.
pub(super) fn best_trial(experiment: &Value) -> Option<String> {
    let trial = experiment["bestTrialId"].as_i64()?;
    let metric = text(&experiment["config"]["searcher"], "metric");
    let value = number(&experiment["bestTrialSearcherMetric"]);
    let value = value.map_or_else(String::new, |value| {
        format!(", {metric} {}", rounded(value))
    });
    Some(format!("trial {trial}{value}"))
}

/// Prints which trial of an experiment is the best.
pub(super) fn note_best_trial(experiment: &Value) {
    if let Some(best) = best_trial(experiment) {
        let id = text(experiment, "id");
        output::note(format_args!("best trial of experiment {id}: {best}"));
    }
}

/// Prints why files of an experiment's checkpoints that were to be deleted are still there.
pub(super) fn note_kept_checkpoints(experiment: &Value) {
    let failure = text(experiment, "checkpointFailure");
    if !failure.is_empty() {
        let id = text(experiment, "id");
        output::note(format_args!("checkpoints of experiment {id}: {failure}"));
    }
}

/// Prints what is missing where trials of an experiment have reported metrics, and no validation has the one by which its
/// search decides. Each of `validations` is the object of metrics of one; `trains` = any of them has reported at all.
pub(super) fn note_missing_metric<'a>(
    experiment: &Value,
    validations: impl IntoIterator<Item = &'a Value>,
    trains: bool,
) {
    if let Some(missing) = missing_metric(experiment, validations, trains) {
        output::note(missing);
    }
}

fn missing_metric<'a>(
    experiment: &Value,
    validations: impl IntoIterator<Item = &'a Value>,
    trains: bool,
) -> Option<String> {
    let metric = text(&experiment["config"]["searcher"], "metric");
    let validations = validations.into_iter().flat_map(members);
    let reported: BTreeSet<&str> = validations.map(|(name, _)| name.as_str()).collect();
    // One that goes on may report it yet, where it has validated nothing.
    let silent = reported.is_empty() && !(trains && experiment["endTime"].is_string());
    if metric.is_empty() || silent || reported.contains(metric.as_str()) {
        return None;
    }
    let reported = if reported.is_empty() {
        "none, only training metrics".to_owned()
    } else {
        reported.into_iter().collect::<Vec<_>>().join(", ")
    };
    Some(format!(
        "searcher metric \"{metric}\" was never reported in experiment {}; reported validation metrics: {reported}",
        text(experiment, "id")
    ))
}

/// Prints what the failed trials of an experiment failed of, with the last lines of the code of one; where an experiment
/// without any ended in an error, what the record of changes has of its end; and why one could not be deleted. `trials` has
/// at least those that failed.
pub(super) async fn note_failure(
    client: &Client,
    experiment: &Value,
    trials: &[Value],
) -> Result<(), CliError> {
    let id = text(experiment, "id");
    let now = state(experiment, "state");
    if now == "DELETE_FAILED" {
        if let Some(reason) = reason_of(client, "experiment", &id, is_failed_deletion).await? {
            output::note(format_args!("experiment {id} was not deleted: {reason}"));
        }
        return Ok(());
    }
    let failed: Vec<String> = trials
        .iter()
        .filter(|trial| state(trial, "state") == "ERROR")
        .map(|trial| text(trial, "id"))
        .collect();
    let mut by_reason: BTreeMap<String, (Vec<&str>, Value)> = BTreeMap::new();
    for id in failed.iter().take(ASKED) {
        let Some(trial) = failures::trial(client, id).await? else {
            continue;
        };
        if let Some(reason) = failures::reason(&trial) {
            let lines = || trial["lastFailure"]["lastLines"].clone();
            let alike = by_reason
                .entry(reason)
                .or_insert_with(|| (Vec::new(), lines()));
            alike.0.push(id);
        }
    }
    for (reason, (ids, last_lines)) in &by_reason {
        output::note(failures::with_last_lines(
            &of_trials(ids, reason),
            last_lines,
        ));
    }
    if failed.len() > ASKED {
        let more = quantity((failed.len() - ASKED) as u64, "more trial");
        output::note(format_args!("{more} failed"));
    }
    if failed.is_empty()
        && now == "ERROR"
        && let Some(reason) = reason_of(client, "experiment", &id, begins_to_fail).await?
    {
        output::note(format_args!("experiment {id} failed: {reason}"));
    }
    Ok(())
}

/// That these trials failed for one reason; the lines that may follow are those of the first.
fn of_trials(ids: &[&str], reason: &str) -> String {
    match ids {
        [id] => format!("trial {id} failed: {reason}"),
        [first, ..] => format!(
            "trials {} failed, here is trial {first}: {reason}",
            ids.join(", ")
        ),
        [] => reason.to_owned(),
    }
}

/// Whether an event is the beginning of an end in an error.
fn begins_to_fail(event: &Value) -> bool {
    match text(event, "to").as_str() {
        "STOPPING_ERROR" => true,
        // What was stopping has its reason already.
        "ERROR" => text(event, "from") != "STOPPING_ERROR",
        _ => false,
    }
}

/// Whether an event is a deletion that did not succeed.
fn is_failed_deletion(event: &Value) -> bool {
    text(event, "to") == "DELETE_FAILED"
}

/// The reason of the last event of something that is `wanted`; `None` where the record has none, or the master keeps no record.
async fn reason_of(
    client: &Client,
    kind: &str,
    id: &str,
    wanted: fn(&Value) -> bool,
) -> Result<Option<String>, CliError> {
    let mut found = None;
    let mut after = "0".to_owned();
    loop {
        let query = Query::new()
            .with("subjectKind", kind)
            .with("subjectId", id)
            .with("after", &after)
            .with("limit", PAGE);
        let answer = match client.get(&api_path(["events"]), &query).await {
            Err(ClientError::NotFound { .. }) => return Ok(None),
            answer => answer?,
        };
        for event in items(&answer["events"]) {
            if wanted(event) {
                found = Some(text(event, "reason")).filter(|reason| !reason.is_empty());
            }
        }
        let next = text(&answer, "nextAfter");
        if next.is_empty() || next == after {
            return Ok(found);
        }
        after = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_searcher_metric_that_no_validation_has_is_named_with_those_that_they_have() {
        let mut experiment = json!({"id": 3, "config": {"searcher": {"metric": "loss"}}});
        let missing = |experiment: &Value, reported: &[Value], trains| {
            missing_metric(experiment, reported, trains)
        };
        assert_eq!(
            missing(
                &experiment,
                &[json!({"f1": 1}), json!({"accuracy": 1, "f1": 2})],
                true
            )
            .unwrap(),
            "searcher metric \"loss\" was never reported in experiment 3; reported validation metrics: accuracy, f1"
        );
        let reported = [json!({"f1": 1}), json!({"loss": 1})];
        assert_eq!(missing(&experiment, &reported, true), None);
        assert_eq!(missing(&experiment, &[], true), None);
        experiment["endTime"] = json!("2026-11-21T10:00:00Z");
        assert_eq!(missing(&experiment, &[], false), None);
        let training = missing(&experiment, &[], true).unwrap();
        assert!(
            training.ends_with("none, only training metrics"),
            "{training}"
        );
    }

    #[test]
    fn the_best_trial_is_named_with_its_metric() {
        let mut experiment = json!({"id": 3, "config": {"searcher": {"metric": "loss"}}});
        assert_eq!(best_trial(&experiment), None);
        experiment["bestTrialId"] = json!(7);
        assert_eq!(best_trial(&experiment).unwrap(), "trial 7");
        experiment["bestTrialSearcherMetric"] = json!(0.123_456);
        assert_eq!(best_trial(&experiment).unwrap(), "trial 7, loss 0.1235");
    }
}
