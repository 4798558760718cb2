//! Plays a trace: passes its events to a search.

use det_config::ConfigErrors;
use det_config::container::TaskContainerDefaults;
use det_config::experiment::ExperimentConfig;
use det_config::submitted::{CompletionDefaults, SubmittedDocument};
use det_ids::RequestId;
use det_searcher::{Action, Event, Search, TrialState};
use serde_json::{Map, Value, json};

use super::{
    ActionExpectation, SearchAction, StepReport, Trace, TraceEvent, TraceMismatch, TraceReport,
    TraceStep, TracedTrial, outcome_word,
};
use crate::fields::{DescriptionError, DescriptionErrors};

/// The largest difference between an expected and an actual progress.
const NEAR: f64 = 1e-9;

/// Passes the events of a trace to the search of a configuration and compares its actions with what is expected.
///
/// # Errors
/// The configuration has errors or cannot be searched, or an event is about a trial that does not exist by then.
pub fn play_trace(
    trace: &Trace,
    config: SubmittedDocument,
) -> Result<TraceReport, DescriptionErrors> {
    let config = completed(config, trace.seed.unwrap_or(0))?;
    let seed = trace.seed.unwrap_or(config.reproducibility.experiment_seed);
    let cannot = |error: det_searcher::SearchError| {
        DescriptionErrors::from(DescriptionError {
            path: "config".to_owned(),
            line: None,
            message: error.to_string(),
            hint: None,
        })
    };
    let search = Search::new(&config.searcher, &config.hyperparameters, seed).map_err(cannot)?;
    let mut player = Player {
        config: &config,
        search,
        trials: Vec::new(),
        steps: Vec::new(),
        mismatches: Vec::new(),
    };
    if trace.restarts {
        player.restart()?;
    }
    let actions = player.search.start();
    player.record_step("the search starts".to_owned(), "", actions);
    player.compare("start", None, trace.start.as_ref());
    for step in &trace.events {
        if trace.restarts {
            player.restart()?;
        }
        player.play(step)?;
        player.compare(
            &format!("{}.expect", step.path),
            step.line,
            step.expect.as_ref(),
        );
    }
    Ok(player.report(trace.name.clone(), seed))
}

/// The configuration, with the required keys filled in that a search does not use.
///
/// # Errors
/// All errors of the configuration.
pub fn completed(config: SubmittedDocument, seed: u32) -> Result<ExperimentConfig, ConfigErrors> {
    let defaults = CompletionDefaults {
        name: "trace".to_owned(),
        experiment_seed: seed,
        // Nothing is stored, so any storage will do.
        checkpoint_storage: Some(json!({"type": "directory", "container_path": "/"})),
        task_container_defaults: &TaskContainerDefaults::default(),
        default_priority: None,
        // Nothing is run, so no entrypoint is needed.
        managed: false,
    };
    config.complete(&defaults)
}

struct Player<'c> {
    config: &'c ExperimentConfig,
    search: Search,
    trials: Vec<TracedTrial>,
    steps: Vec<StepReport>,
    mismatches: Vec<TraceMismatch>,
}

impl Player<'_> {
    /// Replaces the search by one restored from its snapshot.
    fn restart(&mut self) -> Result<(), DescriptionErrors> {
        let cannot = |message: String| {
            DescriptionErrors::from(DescriptionError {
                path: String::new(),
                line: None,
                message: format!("the search could not be restored: {message}"),
                hint: None,
            })
        };
        let text = self.search.snapshot().to_string();
        let snapshot = serde_json::from_str(&text).map_err(|error| cannot(error.to_string()))?;
        let (searcher, space) = (&self.config.searcher, &self.config.hyperparameters);
        self.search = Search::restore(searcher, space, &snapshot)
            .map_err(|error| cannot(error.to_string()))?;
        Ok(())
    }

    fn play(&mut self, step: &TraceStep) -> Result<(), DescriptionErrors> {
        let event = match step.event {
            TraceEvent::Restart => {
                self.restart()?;
                self.record_step(step.event.to_string(), &step.note, Vec::new());
                return Ok(());
            }
            TraceEvent::Close => Event::Close,
            TraceEvent::Report {
                trial,
                metric,
                time,
            } => {
                let request_id = self.request_id(step, trial)?;
                match metric {
                    Some(metric) => Event::Validation {
                        request_id,
                        metric,
                        time,
                    },
                    None => Event::UnusableValidation { request_id },
                }
            }
            TraceEvent::Progress { trial, fraction } => Event::Progress {
                request_id: self.request_id(step, trial)?,
                fraction,
            },
            TraceEvent::Exit { trial, reason } => Event::EarlyExit {
                request_id: self.request_id(step, trial)?,
                reason,
            },
            TraceEvent::End { trial } => Event::Ended {
                request_id: self.request_id(step, trial)?,
            },
        };
        let actions = self.search.on(event);
        self.record_step(step.event.to_string(), &step.note, actions);
        Ok(())
    }

    fn request_id(&self, step: &TraceStep, trial: usize) -> Result<RequestId, DescriptionErrors> {
        match trial
            .checked_sub(1)
            .and_then(|index| self.trials.get(index))
        {
            Some(trial) => Ok(trial.request_id.clone()),
            None => Err(DescriptionError {
                path: step.path.clone(),
                line: step.line,
                message: format!(
                    "there is no trial {trial} by then; the search has created {}",
                    self.trials.len()
                ),
                hint: None,
            }
            .into()),
        }
    }

    fn record_step(&mut self, event: String, note: &str, actions: Vec<Action>) {
        let actions = actions
            .into_iter()
            .map(|action| match action {
                Action::Create {
                    request_id,
                    hparams,
                    seed,
                } => {
                    let trial = self.trials.len() + 1;
                    self.trials.push(TracedTrial {
                        trial,
                        request_id,
                        hyperparameters: hparams.clone(),
                        seed,
                        state: "running",
                    });
                    SearchAction::Create {
                        trial,
                        hyperparameters: hparams,
                    }
                }
                Action::Stop { request_id, .. } => SearchAction::Stop {
                    trial: self
                        .trials
                        .iter()
                        .position(|trial| trial.request_id == request_id)
                        .map_or(0, |index| index + 1),
                },
                Action::Shutdown(outcome) => SearchAction::Shutdown(outcome),
            })
            .collect();
        self.steps.push(StepReport {
            event,
            note: note.to_owned(),
            actions,
            progress: self.search.progress(),
        });
    }

    fn compare(&mut self, path: &str, line: Option<u32>, expected: Option<&ActionExpectation>) {
        let (Some(expected), Some(step)) = (expected, self.steps.last()) else {
            return;
        };
        let mismatches_of = mismatches_of(expected, step, &self.trials);
        let event = step.event.clone();
        self.mismatches
            .extend(mismatches_of.into_iter().map(|message| TraceMismatch {
                path: path.to_owned(),
                line,
                event: event.clone(),
                message,
            }));
    }

    fn report(mut self, name: String, seed: u32) -> TraceReport {
        for (trial, (_, state)) in self.trials.iter_mut().zip(self.search.trials()) {
            trial.state = match state {
                TrialState::Running => "running",
                TrialState::Stopping => "stopping",
                TrialState::Exiting(_) => "exiting",
                TrialState::Ended(_) => "ended",
            };
        }
        TraceReport {
            name,
            seed,
            steps: self.steps,
            trials: self.trials,
            outcome: self.search.outcome(),
            mismatches: self.mismatches,
        }
    }
}

/// The expectations that the actions do not meet, as sentences.
fn mismatches_of(
    expected: &ActionExpectation,
    step: &StepReport,
    trials: &[TracedTrial],
) -> Vec<String> {
    let mut mismatches_of = Vec::new();
    let (mut create, mut stop, mut shutdown) = (Vec::new(), Vec::new(), None);
    for action in &step.actions {
        match action {
            SearchAction::Create { trial, .. } => create.push(*trial),
            SearchAction::Stop { trial } => stop.push(*trial),
            SearchAction::Shutdown(outcome) => shutdown = Some(*outcome),
        }
    }
    for (what, expected, found) in [
        ("created", &expected.create, &create),
        ("stopped", &expected.stop, &stop),
    ] {
        if expected != found {
            let (expected, found) = (trial_list(expected), trial_list(found));
            mismatches_of.push(format!("expected {expected} to be {what}, found {found}"));
        }
    }
    if expected.shutdown != shutdown {
        let word = |outcome: Option<_>| outcome.map_or("no end of the search", outcome_word);
        mismatches_of.push(format!(
            "expected {}, found {}",
            word(expected.shutdown),
            word(shutdown)
        ));
    }
    if let Some(progress) = expected.progress
        && (progress - step.progress).abs() > NEAR
    {
        mismatches_of.push(format!(
            "expected a progress of {progress}, found {}",
            step.progress
        ));
    }
    for (number, wanted) in &expected.hyperparameters {
        match number.checked_sub(1).and_then(|index| trials.get(index)) {
            Some(trial) => {
                mismatches_of.extend(differences(*number, wanted, &trial.hyperparameters));
            }
            None => mismatches_of.push(format!("there is no trial {number} by then")),
        }
    }
    mismatches_of
}

fn differences(
    trial: usize,
    wanted: &Map<String, Value>,
    found: &Map<String, Value>,
) -> Vec<String> {
    let missing = Value::Null;
    wanted
        .iter()
        .filter_map(|(path, wanted)| {
            let mut steps = path.split('.');
            let first = steps.next().and_then(|key| found.get(key));
            let found = steps.fold(first, |value, key| value?.get(key));
            let found = found.unwrap_or(&missing);
            (found != wanted).then(|| {
                format!("expected hyperparameter \"{path}\" of trial {trial} to be {wanted}, found {found}")
            })
        })
        .collect()
}

fn trial_list(numbers: &[usize]) -> String {
    if numbers.is_empty() {
        return "no trial".to_owned();
    }
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    format!("trial {}", numbers.join(", "))
}
