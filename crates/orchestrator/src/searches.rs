//! Searches: what they are notified of, and what they ask for.

use det_ids::{ExperimentId, RequestId, TaskId};
use det_lifecycle::experiment::{ExperimentEvent, ExperimentState, SearchOutcome};
use det_lifecycle::trial::{TrialEvent, TrialState};
use det_searcher::{Action, Event as SearchEvent, Outcome, Search, StopReason};
use serde_json::{Map, Value};

use crate::{
    Cause, Effect, Event, ExperimentRows, Mutant, NewTrial, Refusal, Scene, SearchState,
    SearchedMetrics, Topic, TrialRows, experiments,
};

fn cause() -> Cause {
    Cause::master("the search decided it")
}

/// What the search receives of a validation of the trial that it calls `request_id`. `metric` = the searcher's metric in
/// it; `time` = how far the trial is by the metric that the search measures training by, the outer `None` = it measures
/// none. The search cannot use a validation that lacks one of the two.
pub fn validation(
    request_id: RequestId,
    metric: Option<f64>,
    time: Option<Option<f64>>,
) -> SearchEvent {
    match (metric, time) {
        (Some(metric), None) => SearchEvent::Validation {
            request_id,
            metric,
            time: None,
        },
        (Some(metric), Some(Some(time))) => SearchEvent::Validation {
            request_id,
            metric,
            time: Some(time),
        },
        (None, _) | (_, Some(None)) => SearchEvent::UnusableValidation { request_id },
    }
}

/// A search begins: it is started if it is not yet, stored, and what it asks for is carried out.
pub(crate) fn begin<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    mut search: Search,
    mut actions: Vec<Action>,
) -> Result<(), Refusal> {
    actions.extend(search.start_some(scene.core.trials_at_once));
    if search.owes_trials() {
        scene.wake(Topic::Backlog(id));
    }
    let experiment = experiments::known(scene, id)?;
    scene.effect(Effect::SaveSearch {
        experiment_id: id,
        through: 0,
        snapshot: search.snapshot().to_string(),
    });
    scene.rows.insert_search(id, SearchState::new(search));
    let state = experiment.state;
    for action in actions {
        scene.then(Event::SearchAction { id, state, action });
    }
    scene.wake(Topic::Schedule);
    Ok(())
}

/// Notifies the search of a live experiment. Of one that is over or unmanaged, nothing happens.
pub(crate) fn on<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    event: SearchEvent,
) -> Result<(), Refusal> {
    let Some(mut experiment) = scene.rows.experiment(id) else {
        return Ok(());
    };
    let state = experiment.state;
    // What runs outside the cluster is searched there, if at all.
    if !state.is_live() || experiment.unmanaged {
        return Ok(());
    }
    let every = scene.core.snapshot_every;
    let skips_storing =
        scene.is(Mutant::LosesSearchEvents) && matches!(event, SearchEvent::Validation { .. });
    let Some(loaded) = scene.rows.search(id) else {
        // Without its search an experiment can only end.
        if !matches!(state, ExperimentState::Stopping(_)) {
            let action = Action::Shutdown(Outcome::Failed);
            scene.then(Event::SearchAction { id, state, action });
        }
        return Ok(());
    };
    if matches!(event, SearchEvent::More { .. }) && !loaded.search.owes_trials() {
        return Ok(());
    }
    let text = serde_json::to_string(&event).map_err(|error| {
        Refusal::Precondition(format!(
            "an event of the search of experiment {id} cannot be stored: {error}"
        ))
    })?;
    loaded.through += 1;
    let number = loaded.through;
    let actions = loaded.search.on(event);
    let progress = loaded.search.progress();
    let owes = loaded.search.owes_trials();
    let snapshot = (number - loaded.snapshot >= every).then(|| {
        loaded.snapshot = number;
        loaded.search.snapshot().to_string()
    });
    if !skips_storing {
        scene.effect(Effect::AppendSearchEvent {
            experiment_id: id,
            number,
            text,
        });
    }
    if let Some(snapshot) = snapshot {
        scene.effect(Effect::SaveSearch {
            experiment_id: id,
            through: number,
            snapshot,
        });
    }
    if owes {
        scene.wake(Topic::Backlog(id));
    }
    if progress > experiment.progress {
        experiment.progress = progress;
        scene.rows.update_experiment(&experiment);
    }
    for action in actions {
        scene.then(Event::SearchAction { id, state, action });
    }
    Ok(())
}

/// Carries out what a search asks for. `state` is the experiment's when the search was asked.
pub(crate) fn carry_out<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    state: ExperimentState,
    action: Action,
) -> Result<(), Refusal> {
    match action {
        Action::Create {
            request_id,
            hparams,
            seed,
        } => {
            let known = scene.rows.trial_of_request(id, &request_id);
            match known.filter(|_| !scene.is(Mutant::CreatesTwice)) {
                Some(trial) if trial.state == TrialState::Completed => {
                    // The search of a continued experiment comes to a trial that counts already.
                    let event = SearchEvent::Ended { request_id };
                    scene.then(Event::Search { id, event });
                }
                Some(trial) => {
                    scene.then(Event::TrialContinues {
                        id: trial.id,
                        hparams: json(&hparams),
                        cause: cause(),
                    });
                    if state != ExperimentState::Active {
                        scene.then(Event::Trial {
                            id: trial.id,
                            event: TrialEvent::Pause,
                            cause: cause(),
                        });
                    }
                }
                None => create(scene, id, state, request_id, &hparams, seed)?,
            }
        }
        Action::Stop { request_id, reason } => {
            if let Some(trial) = scene.rows.trial_of_request(id, &request_id) {
                scene.then(Event::Trial {
                    id: trial.id,
                    event: TrialEvent::StopBySearch,
                    cause: Cause::master(match reason {
                        StopReason::FullyTrained => {
                            "the search stopped it: it has trained as long as the search trains a trial"
                        }
                        StopReason::NotAmongBest => {
                            "the search stopped it: its validation is not among the best"
                        }
                    }),
                });
            }
        }
        Action::Shutdown(outcome) => {
            let trials_live = scene.rows.live_trial_count(id) > 0;
            let (outcome, why) = match outcome {
                Outcome::Completed => (
                    SearchOutcome::Completed,
                    "the search is complete: all its trials have ended".to_owned(),
                ),
                Outcome::Canceled => (
                    SearchOutcome::Canceled,
                    "all trials of the search were canceled".to_owned(),
                ),
                Outcome::Failed => {
                    let metrics = scene.rows.searched_metrics(id);
                    (
                        SearchOutcome::Failed,
                        why_failed(metrics.as_ref(), trials_live),
                    )
                }
            };
            scene.then(Event::Experiment {
                id,
                event: ExperimentEvent::SearchOver {
                    outcome,
                    trials_live,
                },
                cause: Cause::master(why),
            });
        }
    }
    Ok(())
}

/// Why a search failed: with the metrics that it needed, and what was reported in place of them.
fn why_failed(metrics: Option<&SearchedMetrics>, trials_live: bool) -> String {
    let names = metrics.map_or_else(|| "the searcher metric".to_owned(), ToString::to_string);
    // Only where nothing can be decided does a search end before its trials.
    let why = if trials_live {
        format!("the search failed: it decides by {names}, which no trial reports")
    } else {
        format!(
            "the search failed: its trials failed, had invalid hyperparameters, or did not report {names}"
        )
    };
    match metrics.and_then(|metrics| metrics.misses.as_ref()) {
        Some(misses) => format!("{why}; {misses}"),
        None => why,
    }
}

fn create<R: ExperimentRows + TrialRows>(
    scene: &mut Scene<'_, R>,
    id: ExperimentId,
    state: ExperimentState,
    request_id: RequestId,
    hparams: &Map<String, Value>,
    seed: u32,
) -> Result<(), Refusal> {
    let mut experiment = experiments::known(scene, id)?;
    experiment.trial_count += 1;
    scene.rows.update_experiment(&experiment);
    scene.effect(Effect::InsertTrial(NewTrial {
        experiment_id: id,
        request_id: request_id.clone(),
        task_id: TaskId(format!("{id}.{request_id}")),
        state: match state {
            ExperimentState::Active => TrialState::Active,
            ExperimentState::Paused
            | ExperimentState::Stopping(_)
            | ExperimentState::Completed
            | ExperimentState::Canceled
            | ExperimentState::Errored
            | ExperimentState::StoppingToDelete(_)
            | ExperimentState::Deleting
            | ExperimentState::DeleteFailed => TrialState::Paused,
        },
        unmanaged: None,
        hparams: json(hparams),
        seed,
    }));
    scene.then(Event::TrialCreated {
        experiment_id: id,
        request_id,
    });
    Ok(())
}

pub(crate) fn json(hparams: &Map<String, Value>) -> String {
    Value::Object(hparams.clone()).to_string()
}
