//! What follows for trials and experiments that run outside the cluster.

use det_ids::{ExperimentId, Micros, RequestId, TaskId, TrialId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{EventKind, Subject};
use det_lifecycle::task::{TaskEnd, TaskEvent};
use det_lifecycle::unmanaged::{UnmanagedEffect, UnmanagedEvent, UnmanagedState, experiment_state};

use crate::{
    Cause, Effect, Event, LogLevel, NewTrial, Record, Refusal, Rows, Scene, Topic, Trial,
    experiments, tasks,
};

/// Code outside the cluster registers a trial of its experiment, under a name that no trial of it has yet.
pub(crate) fn add<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    request_id: RequestId,
    hparams: String,
) -> Result<(), Refusal> {
    let mut experiment = experiments::known(scene, id)?;
    if !experiment.unmanaged {
        return Err(Refusal::Precondition(format!(
            "no trial can be added to experiment {id}: the master runs it, and its search creates its trials; only \
             unmanaged experiments are given trials"
        )));
    }
    require_not_removed(id, experiment.state)?;
    experiment.trial_count += 1;
    scene.rows.update_experiment(&experiment);
    let state = UnmanagedState::Awaited;
    scene.effect(Effect::InsertTrial(NewTrial {
        experiment_id: id,
        request_id: request_id.clone(),
        task_id: TaskId(format!("{id}.{request_id}")),
        state: state.trial_state(),
        unmanaged: Some(state),
        hparams,
        seed: 0,
    }));
    scene.then(Event::TrialCreated {
        experiment_id: id,
        request_id,
    });
    Ok(())
}

/// The code of a trial begins its next run. `resumes` = it goes on from the newest checkpoint.
pub(crate) fn start<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: TrialId,
    until: Micros,
    resumes: bool,
    cause: Cause,
) -> Result<(), Refusal> {
    let (trial, _) = known(scene, id, "started")?;
    let number = trial.run_id.next();
    scene.rows.start_run(id, number, resumes);
    scene.effect(Effect::RunStarted(id));
    scene.wake(Topic::Trial(id));
    scene.log(
        &trial.task_id,
        None,
        format!("Run {number} of trial {id} begins outside the cluster"),
    );
    let event = UnmanagedEvent::Start { until };
    scene.then(Event::Unmanaged { id, event, cause });
    Ok(())
}

/// Something happens to a trial, or its deadline is looked at.
pub(crate) fn on<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: TrialId,
    event: UnmanagedEvent,
    cause: &Cause,
) -> Result<(), Refusal> {
    let (mut row, before) = known(scene, id, "patched")?;
    let shown = row.state;
    let step = before.on(event);
    if step.state == before {
        return Ok(());
    }
    row.unmanaged = Some(step.state);
    row.state = step.state.trial_state();
    row.ended_at = row.state.is_terminal().then_some(scene.clock.wall);
    scene.rows.update_trial(&row);
    if before.deadline().is_none() {
        scene.wake(Topic::Deadlines);
    }
    if step.state == UnmanagedState::Lost {
        let text = format!(
            "Trial {id} counts as lost: no heartbeat of its code came in time. A later one, or another start, revives it"
        );
        scene.log_at(LogLevel::Error, &row.task_id, None, text);
    }
    for effect in step.effects {
        // An end that takes the place of another one is noted anew.
        tasks::on(scene, &row.task_id, TaskEvent::Reopen, cause)?;
        match effect {
            UnmanagedEffect::Reopen => {}
            UnmanagedEffect::End => {
                let how = match step.state {
                    UnmanagedState::Completed => TaskEnd::Completed,
                    _ => TaskEnd::Failed,
                };
                tasks::on(scene, &row.task_id, TaskEvent::End(how), cause)?;
                scene.effect(Effect::TrialEnded(id));
            }
        }
        scene.wake(Topic::Trial(id));
    }
    if row.state != shown {
        scene.record(Record {
            cause: cause.clone(),
            subject: Subject::Trial(id),
            kind: EventKind::State,
            from: Some(shown.state_name().into()),
            to: Some(row.state.state_name().into()),
            detail: None,
        });
        let (id, cause) = (row.experiment_id, cause.clone());
        scene.then(Event::FollowTrials { id, cause });
    }
    Ok(())
}

/// The state of an experiment follows from those of its trials.
pub(crate) fn follow_trials<R: Rows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    cause: &Cause,
) -> Result<(), Refusal> {
    let mut row = experiments::known(scene, id)?;
    let before = row.state;
    require_not_removed(id, before)?;
    row.state = experiment_state(scene.rows.trial_counts(id));
    if row.state == before {
        return Ok(());
    }
    let ends = row.state.is_terminal();
    row.ended_at = ends.then_some(scene.clock.wall);
    scene.rows.update_experiment(&row);
    scene.record(Record {
        cause: cause.clone(),
        subject: Subject::Experiment(id),
        kind: EventKind::State,
        from: Some(before.state_name().into()),
        to: Some(row.state.state_name().into()),
        detail: None,
    });
    if ends {
        scene.then(Event::ExperimentEnds { id });
    }
    Ok(())
}

/// An unmanaged trial with what is known of its code. `verb` completes "cannot be …".
fn known<R: Rows>(
    scene: &Scene<'_, R>,
    id: TrialId,
    verb: &str,
) -> Result<(Trial, UnmanagedState), Refusal> {
    let trial = scene
        .rows
        .trial(id)
        .ok_or_else(|| Refusal::not_found(ObjectKind::Trial, id))?;
    let Some(state) = trial.unmanaged else {
        return Err(Refusal::Precondition(format!(
            "trial {id} cannot be {verb}: the master runs it, and knows its state by itself; only the code of unmanaged \
             trials reports it"
        )));
    };
    let experiment = experiments::known(scene, trial.experiment_id)?;
    require_not_removed(experiment.id, experiment.state)?;
    Ok((trial, state))
}

/// Refuses what would bring a deleted experiment back.
fn require_not_removed(
    id: ExperimentId,
    state: det_lifecycle::experiment::ExperimentState,
) -> Result<(), Refusal> {
    use det_lifecycle::experiment::ExperimentState as State;
    match state {
        State::Deleting | State::DeleteFailed | State::StoppingToDelete(_) => {
            Err(Refusal::Precondition(format!(
                "experiment {id} is being deleted: nothing is added to it any more"
            )))
        }
        State::Active
        | State::Paused
        | State::Stopping(_)
        | State::Completed
        | State::Canceled
        | State::Errored => Ok(()),
    }
}
