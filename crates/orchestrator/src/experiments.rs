//! What follows for an experiment.

use det_ids::ExperimentId;
use det_lifecycle::experiment::{ExperimentEffect, ExperimentEvent, ExperimentState, Stop};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{EventKind, Subject};
use det_lifecycle::trial::{TrialEvent, TrialState};
use det_lifecycle::unmanaged::on_experiment;
use det_searcher::{Action, Event as SearchEvent, Search};

use crate::searches::json;
use crate::{
    Cause, Continuation, Effect, Event, Experiment, ExperimentRows, Record, Refusal, Scene,
    SearchState, Topic, TrialRows,
};

/// The experiment with this number, or the refusal "not found".
pub(crate) fn known<R: ExperimentRows>(
    scene: &Scene<'_, R>,
    id: ExperimentId,
) -> Result<Experiment, Refusal> {
    let row = scene.rows.experiment(id);
    row.ok_or_else(|| Refusal::not_found(ObjectKind::Experiment, id))
}

/// Something happens to an experiment.
pub(crate) fn on<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    event: ExperimentEvent,
    cause: &Cause,
) -> Result<(), Refusal> {
    let mut row = known(scene, id)?;
    let before = row.state;
    let step = if row.unmanaged {
        on_experiment(before, event)?
    } else {
        before.on(event)?
    };
    if step.state != before {
        row.state = step.state;
        if step.effects.contains(&ExperimentEffect::End) {
            row.ended_at = Some(scene.clock.wall);
        }
        scene.rows.update_experiment(&row);
        scene.record(Record {
            cause: cause.clone(),
            subject: Subject::Experiment(id),
            kind: EventKind::State,
            from: Some(before.state_name().into()),
            to: Some(step.state.state_name().into()),
            detail: None,
        });
        scene.wake(Topic::Schedule);
    }
    for effect in step.effects {
        let each = match effect {
            ExperimentEffect::PauseTrials => TrialEvent::Pause,
            ExperimentEffect::ActivateTrials => TrialEvent::Activate,
            ExperimentEffect::CancelTrials => TrialEvent::Cancel,
            ExperimentEffect::KillTrials => TrialEvent::Kill,
            ExperimentEffect::CloseSearch => {
                let event = SearchEvent::Close;
                scene.then(Event::Search { id, event });
                continue;
            }
            ExperimentEffect::End => {
                scene.then(Event::ExperimentEnds { id });
                continue;
            }
            ExperimentEffect::Remove => {
                scene.wake(Topic::CleanUp);
                continue;
            }
        };
        let cause = cause.clone();
        scene.then(Event::LiveTrials {
            id,
            event: each,
            cause,
        });
    }
    Ok(())
}

/// The same happens to each live trial.
pub(crate) fn each_live_trial<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    event: &TrialEvent,
    cause: &Cause,
) {
    if matches!(event, TrialEvent::Cancel | TrialEvent::Kill) {
        // As many as there are slots at most.
        for (trial, state) in scene.rows.live_trials(id) {
            if matches!(state, TrialState::Stopping(_)) {
                let (event, cause) = (event.clone(), cause.clone());
                scene.then(Event::Trial {
                    id: trial,
                    event,
                    cause,
                });
            }
        }
    }
    some_follow(scene, id, event, cause);
    // The last trial may end on the way; one that was paused ends at once.
    if matches!(event, TrialEvent::Cancel | TrialEvent::Kill) {
        let cause = cause.clone();
        scene.then(Event::TrialMayBeLast { id, cause });
    }
}

/// Some of the trials that do not do yet what `event` asks of them are asked; whether there were any.
fn some_follow<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    event: &TrialEvent,
    cause: &Cause,
) -> bool {
    let mut left = scene.core.trials_at_once;
    let mut any = false;
    for (trial, state) in scene.rows.live_trials(id) {
        let lags = match event {
            TrialEvent::Pause => state == TrialState::Active,
            TrialEvent::Activate => matches!(state, TrialState::Paused | TrialState::Pausing),
            _ => !matches!(state, TrialState::Stopping(_)),
        };
        if !lags {
            continue;
        }
        if left == 0 {
            scene.wake(Topic::Backlog(id));
            break;
        }
        left -= 1;
        any = true;
        let (event, cause) = (event.clone(), cause.clone());
        scene.then(Event::Trial {
            id: trial,
            event,
            cause,
        });
    }
    any
}

/// Goes on with what one change has left: trials that are to follow their experiment, then those that are to be created.
pub(crate) fn catch_up<R: ExperimentRows + TrialRows>(scene: &mut Scene<'_, R>, id: ExperimentId) {
    let Some(row) = scene.rows.experiment(id).filter(|row| !row.unmanaged) else {
        return;
    };
    let (event, why) = match row.state {
        ExperimentState::Active => (TrialEvent::Activate, "its experiment was activated"),
        ExperimentState::Paused => (TrialEvent::Pause, "its experiment was paused"),
        ExperimentState::Stopping(Stop::Killed)
        | ExperimentState::StoppingToDelete(Stop::Killed) => {
            (TrialEvent::Kill, "its experiment was killed")
        }
        ExperimentState::Stopping(_) | ExperimentState::StoppingToDelete(_) => {
            (TrialEvent::Cancel, "its experiment is being stopped")
        }
        ExperimentState::Completed
        | ExperimentState::Canceled
        | ExperimentState::Errored
        | ExperimentState::Deleting
        | ExperimentState::DeleteFailed => return,
    };
    let owes = |search: &mut SearchState| search.search.owes_trials();
    let owes = scene.rows.search(id).is_some_and(owes);
    let followed = some_follow(scene, id, &event, &Cause::master(why));
    match (owes, followed) {
        (true, true) => scene.wake(Topic::Backlog(id)),
        (true, false) => {
            let most = scene.core.trials_at_once;
            let event = SearchEvent::More { most };
            scene.then(Event::Search { id, event });
        }
        (false, _) => {}
    }
}

/// Without a live trial an experiment that stops has come to its end.
pub(crate) fn trial_ended<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    cause: &Cause,
) -> Result<(), Refusal> {
    if scene.rows.live_trial_count(id) > 0 {
        return Ok(());
    }
    match on(scene, id, ExperimentEvent::TrialsEnded, cause) {
        // Trials end an experiment in several ways at once; the second one finds it ended, as it should be.
        Err(Refusal::Precondition(_)) => Ok(()),
        other => other,
    }
}

/// The end of an experiment: its search is over, and background work applies its checkpoint policy.
pub(crate) fn end<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
) -> Result<(), Refusal> {
    let row = known(scene, id)?;
    scene.effect(Effect::ExperimentEnded {
        id,
        completed: row.state == ExperimentState::Completed,
    });
    scene.effect(Effect::EndSearch(id));
    scene.wake(Topic::CleanUp);
    Ok(())
}

/// An ended experiment goes on.
pub(crate) fn continue_it<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    mut search: Box<Search>,
    single: bool,
    cause: Cause,
) -> Result<(), Refusal> {
    on(scene, id, ExperimentEvent::Continue, &cause)?;
    let mut row = known(scene, id)?;
    row.ended_at = None;
    scene.rows.update_experiment(&row);
    scene.effect(Effect::ExperimentContinued(id));
    let waiting = search.start_some(scene.core.trials_at_once);
    scene.then(Event::ContinueTrials(Continuation {
        id,
        search,
        single,
        cause,
        waiting,
        new: Vec::new(),
        resumed: 0,
    }));
    Ok(())
}

/// Decides on the next trial that the search of a continued experiment asks for: one that completed counts, any other goes
/// on, and one that did not exist is created when all have been decided on.
pub(crate) fn continue_trials<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    mut continuation: Continuation,
) -> Result<(), Refusal> {
    let id = continuation.id;
    let Some(action) = continuation.waiting.pop() else {
        let decided = continuation.resumed > 0 || !continuation.new.is_empty();
        if !decided && continuation.search.owes_trials() {
            let most = scene.core.trials_at_once;
            continuation.waiting = continuation.search.on(SearchEvent::More { most });
            scene.then(Event::ContinueTrials(continuation));
            return Ok(());
        }
        let Continuation {
            search,
            new: actions,
            ..
        } = continuation;
        if !decided {
            return Err(Refusal::Precondition(format!(
                "experiment {id} cannot be continued: all its trials have completed"
            )));
        }
        scene.then(Event::SearchBegins {
            id,
            search,
            actions,
        });
        return Ok(());
    };
    if let Action::Create {
        request_id,
        hparams,
        ..
    } = &action
    {
        match scene.rows.trial_of_request(id, request_id) {
            Some(trial) if trial.state == TrialState::Completed && !continuation.single => {
                let request_id = request_id.clone();
                let more = continuation.search.on(SearchEvent::Ended { request_id });
                continuation.waiting.extend(more);
            }
            Some(trial) => {
                scene.then(Event::TrialContinues {
                    id: trial.id,
                    hparams: json(hparams),
                    cause: continuation.cause.clone(),
                });
                continuation.resumed += 1;
            }
            None => continuation.new.push(action),
        }
    }
    scene.then(Event::ContinueTrials(continuation));
    Ok(())
}
