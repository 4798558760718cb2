//! Pausing, stopping, archiving and deleting experiments.

use std::process::ExitCode;

use clap::Args;
use det_client::{Client, ClientError};
use det_ids::ExperimentId;
use serde_json::json;

use super::follow::is_terminal;
use super::{get, path, path_below};
use crate::commands::lookup;
use crate::error::{CliError, Exit};
use crate::values::state;
use crate::{output, prompt};

/// The experiment that a command is about.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ExperimentArg {
    /// Id of the experiment
    pub(crate) experiment_id: ExperimentId,
}

/// One experiment or several.
#[derive(Debug, Args)]
pub(crate) struct ExperimentsArg {
    /// Ids of the experiments
    #[arg(required = true, value_name = "EXPERIMENT_ID")]
    pub(crate) experiment_ids: Vec<ExperimentId>,
}

/// Options of `det experiment delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    several: ExperimentsArg,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// What can be asked of experiments whatever their state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Pause,
    Activate,
    Cancel,
    Kill,
    Archive,
    Unarchive,
}

/// What an action means for an experiment in some state.
enum ActionEffect {
    /// It changes it.
    Other,
    /// It is so already: what to report in place of success, after the master was asked all the same.
    Same(&'static str),
    /// It has ended, and the master need not be asked.
    Ended,
}

impl Action {
    /// Its name in the API's paths.
    fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Activate => "activate",
            Self::Cancel => "cancel",
            Self::Kill => "kill",
            Self::Archive => "archive",
            Self::Unarchive => "unarchive",
        }
    }

    /// The word that reports it.
    fn done(self) -> &'static str {
        match self {
            Self::Pause => "Paused",
            Self::Activate => "Activated",
            Self::Cancel => "Canceled",
            Self::Kill => "Killed",
            Self::Archive => "Archived",
            Self::Unarchive => "Unarchived",
        }
    }

    fn depends_on_state(self) -> bool {
        !matches!(self, Self::Archive | Self::Unarchive)
    }

    fn before(self, state: &str) -> ActionEffect {
        match (self, state) {
            (Self::Pause, "PAUSED") => ActionEffect::Same("was paused already"),
            (Self::Activate, "ACTIVE" | "QUEUED" | "PULLING" | "STARTING" | "RUNNING") => {
                ActionEffect::Same("was not paused: it goes on")
            }
            (Self::Cancel | Self::Kill, state) if is_terminal(state) => ActionEffect::Ended,
            _ => ActionEffect::Other,
        }
    }
}

/// Asks the master for an action on each experiment, and reports what that has changed.
pub(crate) async fn act(
    client: &Client,
    several: &ExperimentsArg,
    action: Action,
) -> Result<ExitCode, CliError> {
    let mut outcomes = Outcomes::of(several.experiment_ids.len());
    for &id in &several.experiment_ids {
        let mut before = ActionEffect::Other;
        if action.depends_on_state() {
            let Some(answer) = outcomes.take(id, get(client, id).await)? else {
                continue;
            };
            let now = state(&answer["experiment"], "state");
            before = action.before(&now);
            if let ActionEffect::Ended = before {
                output::note(format_args!(
                    "experiment {id} has ended already ({now}), so there is nothing to {}",
                    action.name()
                ));
                continue;
            }
        }
        let answer = client.post(&path_below(id, action.name()), None).await;
        match before {
            ActionEffect::Same(report) => {
                if outcomes.take(id, answer)?.is_some() {
                    output::note(format_args!("experiment {id} {report}"));
                }
            }
            ActionEffect::Other | ActionEffect::Ended => {
                outcomes.report(id, answer, || format!("{} experiment {id}", action.done()))?;
            }
        }
    }
    Ok(outcomes.exit())
}

/// Deletes experiments after asking.
pub(crate) async fn delete(client: &Client, args: &DeleteArgs) -> Result<ExitCode, CliError> {
    let mut outcomes = Outcomes::of(args.several.experiment_ids.len());
    let mut found = Vec::new();
    let mut unmanaged = Vec::new();
    for &id in &args.several.experiment_ids {
        if let Some(answer) = outcomes.take(id, get(client, id).await)? {
            found.push(id);
            if answer["experiment"]["unmanaged"] == true {
                unmanaged.push(id);
            }
        }
    }
    if !unmanaged.is_empty() {
        output::note(unreachable_files(&unmanaged));
    }
    if !args.yes && !found.is_empty() && !prompt::confirm(&question(&found), "--yes")? {
        output::note("nothing was deleted");
        return Ok(ExitCode::SUCCESS);
    }
    for &id in &found {
        let answer = client.delete(&path(id)).await;
        outcomes.report(id, answer, || {
            format!("Deletion of experiment {id} is in progress")
        })?;
    }
    Ok(outcomes.exit())
}

/// The warning before unmanaged experiments are deleted: afterwards nothing would lead to their files.
fn unreachable_files(ids: &[ExperimentId]) -> String {
    let (noun, verb) = match ids {
        [_] => ("experiment", "is"),
        _ => ("experiments", "are"),
    };
    format!(
        "note: {noun} {} {verb} unmanaged: checkpoint files that their code stored on a machine which the master does not \
         reach stay there (`det e list-checkpoints` names them)",
        shown(ids).join(", ")
    )
}

fn shown(ids: &[ExperimentId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

fn question(ids: &[ExperimentId]) -> String {
    let shown = shown(ids);
    match shown.as_slice() {
        [id] => format!(
            "Deleting experiment {id} deletes its logs, metrics and checkpoints for good. \
             (`det e archive {id}` only hides it.) Delete it?"
        ),
        several => format!(
            "Deleting the {} experiments {} deletes their logs, metrics and checkpoints for good. \
             (`det e archive {}` only hides them.) Delete them?",
            several.len(),
            several.join(", "),
            several.join(" ")
        ),
    }
}

/// The outcomes of a command on several experiments.
pub(super) struct Outcomes {
    named: usize,
    failed: usize,
}

impl Outcomes {
    /// No outcome yet, of this many experiments.
    pub(super) fn of(named: usize) -> Self {
        Self { named, failed: 0 }
    }

    /// Prints one outcome.
    fn report<T>(
        &mut self,
        id: ExperimentId,
        answer: Result<T, ClientError>,
        done: impl FnOnce() -> String,
    ) -> Result<(), CliError> {
        match self.take(id, answer)? {
            Some(_) => output::line(done()),
            None => Ok(()),
        }
    }

    /// The answer; `None` after a refusal, which is printed: the other experiments are still tried. Errs when the master
    /// cannot be reached or the user is not logged in, and when only one experiment was named.
    pub(super) fn take<T>(
        &mut self,
        id: ExperimentId,
        answer: Result<T, ClientError>,
    ) -> Result<Option<T>, CliError> {
        let error = match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        let stops = error.is_connection() || matches!(error, ClientError::Unauthenticated { .. });
        if stops || self.named == 1 {
            return Err(error.into());
        }
        self.failed += 1;
        let reason = match CliError::from(error) {
            CliError::Failure {
                message,
                hint: Some(hint),
                ..
            } => format!("{message} (hint: {hint})"),
            other => other.to_string(),
        };
        output::note(format_args!("error: experiment {id}: {reason}"));
        Ok(None)
    }

    /// The exit code: a failure if any experiment was refused.
    pub(super) fn exit(&self) -> ExitCode {
        if self.failed == 0 {
            return ExitCode::SUCCESS;
        }
        output::note(format_args!(
            "{} of {} experiments were refused",
            self.failed, self.named
        ));
        Exit::Failed.into()
    }
}

/// Options of `det experiment move`.
#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    one: ExperimentArg,
    /// Name of the workspace that it goes to
    workspace_name: String,
    /// Name of the project that it goes to
    project_name: String,
}

/// Moves an experiment to another project.
pub(crate) async fn move_to_project(client: &Client, args: &MoveArgs) -> Result<(), CliError> {
    let (id, name) = (args.one.experiment_id, &args.project_name);
    let project = lookup::project(client, &args.workspace_name, name).await?;
    let body = json!({"experimentId": id, "destinationProjectId": project["id"]});
    client.post(&path_below(id, "move"), Some(&body)).await?;
    output::line(format_args!("Moved experiment {id} to project \"{name}\""))
}
