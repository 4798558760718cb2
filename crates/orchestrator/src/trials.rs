//! What follows for a trial.

use det_ids::{ExperimentId, RequestId, RunId, TaskId, TrialId, quantity};
use det_lifecycle::log_findings::LogFindings;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::task::{TaskEnd, TaskEvent, TaskState};
use det_lifecycle::trial::{EarlyExit, History, TrialEffect, TrialEvent, TrialState};
use det_lifecycle::unmanaged::refuse_trial;
use det_searcher::{Event as SearchEvent, ExitReason};
use det_taskspec::TaskKind;

use crate::{
    Cause, Effect, Event, Experiment, LogLevel, Mutant, Record, Refusal, Rows, Scene, Task, Topic,
    Trial, experiments, tasks,
};

fn known<R: Rows>(scene: &Scene<'_, R>, id: TrialId) -> Result<(Trial, Experiment), Refusal> {
    let trial = scene
        .rows
        .trial(id)
        .ok_or_else(|| Refusal::not_found(ObjectKind::Trial, id))?;
    let experiment = experiments::known(scene, trial.experiment_id)?;
    Ok((trial, experiment))
}

/// The cause with what a user did to the trial in words.
fn worded(event: &TrialEvent, cause: &Cause) -> Cause {
    match event {
        TrialEvent::Pause => cause.of_deed("paused"),
        TrialEvent::Activate => cause.of_deed("resumed"),
        TrialEvent::Cancel => cause.of_deed("canceled"),
        TrialEvent::Kill => cause.of_deed("killed"),
        _ => cause.clone(),
    }
}

/// A trial that has come to rest has in its log how it goes on.
fn log_pause<R: Rows>(scene: &mut Scene<'_, R>, row: &Trial) {
    if row.state == TrialState::Paused {
        let text = format!(
            "Paused: `det experiment activate {}` lets it go on",
            row.experiment_id
        );
        scene.log(&row.task_id, None, text);
    }
}

/// Something happens to a trial.
pub(crate) fn on<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: TrialId,
    event: TrialEvent,
    cause: &Cause,
) -> Result<(), Refusal> {
    let (mut row, experiment) = known(scene, id)?;
    if row.unmanaged.is_some() {
        return Err(refuse_trial(match event {
            TrialEvent::Pause => "paused",
            TrialEvent::Activate => "activated",
            TrialEvent::Cancel => "canceled",
            TrialEvent::Kill => "killed",
            TrialEvent::StopBySearch | TrialEvent::AllocationEnded(_) => "stopped",
            TrialEvent::EarlyExit(_) => "ended early",
            TrialEvent::Continue => "continued",
        })
        .into());
    }
    let before = row.state;
    let worded = worded(&event, cause);
    let is_activated = event == TrialEvent::Activate;
    let attempt_ended = matches!(event, TrialEvent::AllocationEnded(_));
    let (max_restarts, forbidden) = match scene.rows.terms(experiment.id) {
        Ok(terms) if attempt_ended => (terms.max_restarts, scene.rows.restart_forbidden(id)),
        Ok(terms) => (terms.max_restarts, None),
        // What it is to do is not known any more; it can still end.
        Err(unreadable) => (u32::MAX, Some(unreadable.to_string())),
    };
    let history = History {
        restarts: row.restarts,
        max_restarts,
        experiment_stops: experiment.state.is_stopping(),
        restarts_forbidden: forbidden.is_some(),
    };
    let step = before.on(event, history)?;
    if attempt_ended && step.effects.contains(&TrialEffect::NotifyErrored) {
        let why = match &forbidden {
            _ if history.restarts >= max_restarts => {
                Some(format!("its \"max_restarts\" is {max_restarts}"))
            }
            // What was stopping anyway has its reason elsewhere.
            forbidden => forbidden.clone(),
        };
        if let Some(why) = why {
            let restarts = quantity(history.restarts.into(), "restart");
            let text = format!("Not started again after {restarts}: {why}");
            scene.log_at(LogLevel::Error, &row.task_id, None, text);
        }
    }
    for effect in &step.effects {
        match effect {
            TrialEffect::ChargeRestart => {
                row.restarts += 1;
                if !step.effects.contains(&TrialEffect::NotifyErrored) {
                    let text = format!(
                        "Restart {} of {max_restarts} (\"max_restarts\") follows this failure",
                        row.restarts
                    );
                    scene.log_at(LogLevel::Warning, &row.task_id, None, text);
                }
            }
            TrialEffect::ResetRestarts => row.restarts = 0,
            _ => {}
        }
    }
    if step.state != before || row.restarts != history.restarts {
        row.state = step.state;
        row.ended_at = step.state.is_terminal().then_some(scene.clock.wall);
        scene.rows.update_trial(&row);
        scene.record(Record {
            cause: cause.clone(),
            subject: Subject::Trial(id),
            kind: EventKind::State,
            from: Some(before.state_name().into()),
            to: Some(step.state.state_name().into()),
            detail: None,
        });
        if is_activated && row.run_id >= RunId::FIRST {
            scene.log(&row.task_id, None, format!("Goes on: {}", worded.why()));
        }
        log_pause(scene, &row);
    }
    for effect in step.effects {
        carry_out(scene, &row, effect, &worded)?;
    }
    Ok(())
}

fn carry_out<R: Rows>(
    scene: &mut Scene<'_, R>,
    row: &Trial,
    effect: TrialEffect,
    cause: &Cause,
) -> Result<(), Refusal> {
    let id = row.id;
    let (experiment_id, request_id) = (row.experiment_id, row.request_id.clone());
    let early = |reason| Event::Search {
        id: experiment_id,
        event: SearchEvent::EarlyExit { request_id, reason },
    };
    let mut task = |event| tasks::on(scene, &row.task_id, event, cause).map(|()| None);
    let next = match effect {
        TrialEffect::Request => task(TaskEvent::Resume)?,
        TrialEffect::Preempt => task(TaskEvent::Suspend)?,
        TrialEffect::Kill => task(TaskEvent::Kill)?,
        TrialEffect::KillSoon => scene
            .rows
            .live_allocation(&row.task_id)
            .map(|id| Event::EndsSoon { id }),
        // Counted with the state.
        TrialEffect::ChargeRestart | TrialEffect::ResetRestarts => None,
        TrialEffect::NotifyErrored => Some(early(ExitReason::Errored)),
        TrialEffect::NotifyCanceled => Some(early(ExitReason::Canceled)),
        TrialEffect::NotifyInvalid => Some(early(ExitReason::InvalidHyperparameters)),
        TrialEffect::End => {
            let cause = cause.clone();
            Some(Event::TrialEnds { id, cause })
        }
    };
    if let Some(next) = next {
        scene.then(next);
    }
    Ok(())
}

/// A trial's code reports that it ends early. Only its newest run may; a trial that has ended stays as it is.
pub(crate) fn early_exit<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: TrialId,
    run: Option<RunId>,
    reason: EarlyExit,
    cause: Cause,
) -> Result<(), Refusal> {
    let (trial, _) = known(scene, id)?;
    scene
        .core
        .require_current_run(&trial, run, Mutant::UnfencedEarlyExit)?;
    if trial.ended_at.is_none() {
        let event = TrialEvent::EarlyExit(reason);
        scene.then(Event::Trial { id, event, cause });
    }
    Ok(())
}

/// The end of a trial, and of its task.
pub(crate) fn end<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: TrialId,
    cause: Cause,
) -> Result<(), Refusal> {
    let (row, experiment) = known(scene, id)?;
    let how = match row.state {
        TrialState::Completed => TaskEnd::Completed,
        TrialState::Errored => TaskEnd::Failed,
        TrialState::Canceled
        | TrialState::Active
        | TrialState::Paused
        | TrialState::Pausing
        | TrialState::Stopping(_) => TaskEnd::Canceled,
    };
    tasks::on(scene, &row.task_id, TaskEvent::End(how), &cause)?;
    scene.effect(Effect::TrialEnded(id));
    scene.wake(Topic::Trial(id));
    let event = SearchEvent::Ended {
        request_id: row.request_id,
    };
    let id = experiment.id;
    scene.then(Event::Search { id, event });
    scene.then(Event::TrialMayBeLast { id, cause });
    Ok(())
}

/// A trial has been added: it gets its first task, and asks for a run unless its experiment is paused.
pub(crate) fn created<R: Rows>(
    scene: &mut Scene<'_, R>,
    experiment_id: ExperimentId,
    request_id: &RequestId,
) -> Result<(), Refusal> {
    let trial = scene
        .rows
        .trial_of_request(experiment_id, request_id)
        .ok_or_else(|| Refusal::not_found(ObjectKind::Trial, request_id))?;
    let days = scene.rows.terms(experiment_id)?.log_retention_days;
    insert_task(scene, &trial, None, days)?;
    scene.record(Record {
        cause: Cause::actor(ActorName::Master),
        subject: Subject::Trial(trial.id),
        kind: EventKind::Created,
        from: None,
        to: Some(trial.state.state_name().into()),
        detail: Some(format!("{{\"experimentId\":{experiment_id}}}")),
    });
    if trial.state == TrialState::Active {
        let cause = Cause::master("its trial begins");
        tasks::on(scene, &trial.task_id, TaskEvent::Resume, &cause)?;
    }
    Ok(())
}

fn insert_task<R: Rows>(
    scene: &mut Scene<'_, R>,
    trial: &Trial,
    log_findings: Option<LogFindings>,
    log_retention_days: Option<i64>,
) -> Result<(), Refusal> {
    let experiment = experiments::known(scene, trial.experiment_id)?;
    scene.rows.insert_task(Task {
        id: trial.task_id.clone(),
        kind: TaskKind::Trial,
        job_id: experiment.job_id,
        owner_id: experiment.owner_id,
        experiment_id: Some(trial.experiment_id),
        trial_id: Some(trial.id),
        state: TaskState::Suspended,
        demand: None,
        log_findings,
        log_retention_days,
        attempts: 0,
        losses: 0,
        ended_at: None,
    });
    Ok(())
}

/// Lets an ended trial go on. Restarts stay within a task; what is continued gets one of its own, so that its log can be
/// followed (`docs/contract/http-api.md`, "Tasks and allocations").
pub(crate) fn continue_in_new_task<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: TrialId,
    hparams: &str,
    cause: Cause,
) -> Result<(), Refusal> {
    let (mut trial, _) = known(scene, id)?;
    let earlier = scene.rows.task_count(id);
    let before = scene
        .rows
        .task(&trial.task_id)
        .ok_or_else(|| Refusal::not_found(ObjectKind::Task, &trial.task_id))?;
    trial.task_id = TaskId(format!(
        "{}.{}-{earlier}",
        trial.experiment_id, trial.request_id
    ));
    let findings = before.log_findings.map(LogFindings::continued);
    insert_task(scene, &trial, findings, before.log_retention_days)?;
    scene.rows.update_trial(&trial);
    scene.rows.set_hparams(id, hparams);
    let event = TrialEvent::Continue;
    scene.then(Event::Trial { id, event, cause });
    Ok(())
}

/// Begins a trial's next run, which is the attempt that its task is about to make.
pub(crate) fn begin_run<R: Rows>(scene: &mut Scene<'_, R>, id: TrialId) -> Result<RunId, Refusal> {
    let (trial, _) = known(scene, id)?;
    let number = trial.run_id.next();
    scene.rows.start_run(id, number, true);
    scene.effect(Effect::RunStarted(id));
    scene.wake(Topic::Trial(id));
    Ok(number)
}
