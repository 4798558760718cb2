//! Driving a search.

use det_config::ConfigErrors;
use det_config::container::TaskContainerDefaults;
use det_config::experiment::{CompletionDefaults, ExperimentConfig, Submitted};
use det_ids::RequestId;
use det_searcher::{Action, Event, Search, TrialState};
use serde_json::{Map, Value, json};

use super::{
    Answer, Answered, Expected, Trace, TraceEvent, TraceMismatch, TraceReport, TraceStep,
    TracedTrial, outcome_word,
};
use crate::fields::{Mistake, Mistakes};

/// How near a progress must be to the one expected.
const NEAR: f64 = 1e-9;

/// Hands the events of a trace to the search of a configuration and compares the answers with what is expected.
///
/// # Errors
/// The configuration has mistakes or cannot be searched, or an event is about a trial that does not exist by then.
pub fn play_trace(trace: &Trace, config: Submitted) -> Result<TraceReport, Mistakes> {
    let config = completed(config, trace.seed.unwrap_or(0))?;
    let seed = trace.seed.unwrap_or(config.reproducibility.experiment_seed);
    let cannot = |error: det_searcher::SearchError| {
        Mistakes::from(Mistake {
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
    player.answered("the search starts".to_owned(), "", actions);
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

/// The configuration with what a search does not ask for filled in.
///
/// # Errors
/// Every mistake that it has.
pub fn completed(config: Submitted, seed: u32) -> Result<ExperimentConfig, ConfigErrors> {
    let defaults = CompletionDefaults {
        name: "trace".to_owned(),
        experiment_seed: seed,
        // Nothing is stored, so any place will do.
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
    steps: Vec<Answered>,
    mismatches: Vec<TraceMismatch>,
}

impl Player<'_> {
    /// The search as it comes back from a store.
    fn restart(&mut self) -> Result<(), Mistakes> {
        let cannot = |message: String| {
            Mistakes::from(Mistake {
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

    fn play(&mut self, step: &TraceStep) -> Result<(), Mistakes> {
        let event = match step.event {
            TraceEvent::Restart => {
                self.restart()?;
                self.answered(step.event.to_string(), &step.note, Vec::new());
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
        self.answered(step.event.to_string(), &step.note, actions);
        Ok(())
    }

    fn request_id(&self, step: &TraceStep, trial: usize) -> Result<RequestId, Mistakes> {
        match trial
            .checked_sub(1)
            .and_then(|index| self.trials.get(index))
        {
            Some(trial) => Ok(RequestId(trial.request_id.clone())),
            None => Err(Mistake {
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

    fn answered(&mut self, event: String, note: &str, actions: Vec<Action>) {
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
                        request_id: request_id.0,
                        hyperparameters: hparams.clone(),
                        seed,
                        state: "running",
                    });
                    Answer::Create {
                        trial,
                        hyperparameters: hparams,
                    }
                }
                Action::Stop { request_id } => Answer::Stop {
                    trial: self
                        .trials
                        .iter()
                        .position(|trial| trial.request_id == request_id.0)
                        .map_or(0, |index| index + 1),
                },
                Action::Shutdown(outcome) => Answer::Shutdown(outcome),
            })
            .collect();
        self.steps.push(Answered {
            event,
            note: note.to_owned(),
            actions,
            progress: self.search.progress(),
        });
    }

    fn compare(&mut self, path: &str, line: Option<u32>, expected: Option<&Expected>) {
        let (Some(expected), Some(step)) = (expected, self.steps.last()) else {
            return;
        };
        let complaints = complaints(expected, step, &self.trials);
        let event = step.event.clone();
        self.mismatches
            .extend(complaints.into_iter().map(|message| TraceMismatch {
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

/// What of an answer is not as expected.
fn complaints(expected: &Expected, step: &Answered, trials: &[TracedTrial]) -> Vec<String> {
    let mut complaints = Vec::new();
    let (mut create, mut stop, mut shutdown) = (Vec::new(), Vec::new(), None);
    for action in &step.actions {
        match action {
            Answer::Create { trial, .. } => create.push(*trial),
            Answer::Stop { trial } => stop.push(*trial),
            Answer::Shutdown(outcome) => shutdown = Some(*outcome),
        }
    }
    for (what, expected, found) in [
        ("created", &expected.create, &create),
        ("stopped", &expected.stop, &stop),
    ] {
        if expected != found {
            let (expected, found) = (trial_list(expected), trial_list(found));
            complaints.push(format!("expected {expected} to be {what}, found {found}"));
        }
    }
    if expected.shutdown != shutdown {
        let word = |outcome: Option<_>| outcome.map_or("no end of the search", outcome_word);
        complaints.push(format!(
            "expected {}, found {}",
            word(expected.shutdown),
            word(shutdown)
        ));
    }
    if let Some(progress) = expected.progress
        && (progress - step.progress).abs() > NEAR
    {
        complaints.push(format!(
            "expected a progress of {progress}, found {}",
            step.progress
        ));
    }
    for (number, wanted) in &expected.hyperparameters {
        match number.checked_sub(1).and_then(|index| trials.get(index)) {
            Some(trial) => {
                complaints.extend(differences(*number, wanted, &trial.hyperparameters));
            }
            None => complaints.push(format!("there is no trial {number} by then")),
        }
    }
    complaints
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
