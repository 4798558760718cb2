//! What lines of a log that log policies match mean for a task.

use std::collections::BTreeSet;

use det_config::container::LogAction;
use det_ids::{AllocationId, PlaceId, TaskId};
use det_lifecycle::log_findings::LogFindings;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_taskspec::TaskKind;
use serde_json::json;

use crate::{Cause, LogLevel, Record, Scene, Task, TaskRows, Topic, TrialRows};

/// A line of a log that a log policy matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogMatch {
    /// Name of the policy; its pattern where it has no name.
    pub policy: String,
    /// Regular expression of the policy, as configured.
    pub pattern: String,
    /// What it does; `None` = it only labels.
    pub action: Option<LogAction>,
    /// The attempt that wrote the line, where that is known.
    pub allocation_id: Option<AllocationId>,
    /// The place that the line names as its origin; `None` = it names none.
    pub named_place: Option<PlaceId>,
    /// Where the line can come from: the place that it names, else those of its attempt.
    pub places: Vec<PlaceId>,
}

/// Lines of a task's log match. Noting the same twice changes nothing, so a batch that is sent again does no harm.
pub(crate) fn matched<R: TrialRows + TaskRows>(
    scene: &mut Scene<'_, R>,
    id: &TaskId,
    matches: Vec<LogMatch>,
) {
    let Some(mut task) = noting_task(scene, id) else {
        return;
    };
    let before = task.log_findings.clone().unwrap_or_default();
    let mut findings = before.clone();
    for found in matches {
        if findings.add_match(&found.policy) {
            record(scene, &task, &found);
        }
        match found.action {
            None => {}
            // What earlier tasks of a trial that was continued printed and shipped late is forgiven.
            Some(LogAction::CancelRetries)
                if findings.retries_canceled_by.is_some() || task.id != *id => {}
            Some(LogAction::CancelRetries) => {
                let text = format!(
                    "The log policy \"{}\" matched: this trial is not restarted after a failure",
                    found.policy
                );
                scene.log_at(LogLevel::Warning, id, found.allocation_id.as_ref(), text);
                findings.retries_canceled_by = Some(found.policy);
            }
            Some(LogAction::ExcludeNode) => exclude(scene, id, found, &mut findings),
        }
    }
    if findings == before {
        return;
    }
    if findings.excluded_places != before.excluded_places {
        exclude_from_waiting(scene, &task.id, &findings.excluded_places);
    }
    task.log_findings = Some(findings);
    scene.rows.update_task(&task);
}

/// The task that notes what is found in the log of this one: of a trial that was continued its current task.
fn noting_task<R: TrialRows + TaskRows>(scene: &Scene<'_, R>, id: &TaskId) -> Option<Task> {
    let task = scene.rows.task(id)?;
    let trial = task.trial_id.and_then(|trial| scene.rows.trial(trial));
    match trial {
        Some(trial) if trial.task_id != *id => scene.rows.task(&trial.task_id),
        _ => Some(task),
    }
}

fn exclude<R: TrialRows + TaskRows>(
    scene: &mut Scene<'_, R>,
    id: &TaskId,
    found: LogMatch,
    findings: &mut LogFindings,
) {
    for place in found.places {
        if findings.exclude(place.clone(), &found.pattern) {
            let text = format!(
                "The log policy \"{}\" matched on place {place}, therefore will not schedule on {place}: later runs of this \
                 trial avoid that place",
                found.policy
            );
            scene.log_at(LogLevel::Warning, id, found.allocation_id.as_ref(), text);
        }
    }
}

/// An attempt that waits already avoids the places as well: lines can come later than the end of the one that wrote them.
fn exclude_from_waiting<R: TrialRows + TaskRows>(
    scene: &mut Scene<'_, R>,
    id: &TaskId,
    places: &BTreeSet<PlaceId>,
) {
    let live = scene.rows.live_allocation(id);
    let live = live.and_then(|live| scene.rows.allocation(&live));
    if let Some(live) = live.filter(|live| live.placed_at.is_none()) {
        scene.rows.exclude(&live.id, places);
        scene.wake(Topic::Schedule);
    }
}

fn record<R: TrialRows + TaskRows>(scene: &mut Scene<'_, R>, task: &Task, found: &LogMatch) {
    let detail = json!({
        "policy": found.policy,
        "pattern": found.pattern,
        "action": found.action,
        "agent": found.named_place,
    });
    scene.record(Record {
        cause: Cause::actor(ActorName::Master),
        subject: match (task.kind, task.trial_id) {
            (TaskKind::Trial, Some(id)) => Subject::Trial(id),
            _ => Subject::Task(task.id.clone()),
        },
        kind: EventKind::LogPolicyMatched,
        from: None,
        to: None,
        detail: Some(detail.to_string()),
    });
}
