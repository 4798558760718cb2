//! What is done to experiments, one or many: to each by itself, with an outcome for each.

use det_ids::{ExperimentId, ProjectId};
use det_lifecycle::experiment::ExperimentEvent;
use det_lifecycle::object::ObjectKind;

use crate::app::experiments::Experiments;
use crate::app::logs::retention::LogRetention;
use crate::app::projects::Projects;
use crate::app::reads;
use crate::app::reads::experiments::ExperimentSources;
use crate::app::reads::experiments::listing::{self, BulkSelection, named_project};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// What is done to an experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    /// Lets its trials run.
    Activate,
    /// Lets its trials save and give their slots back.
    Pause,
    /// Ends it; its trials save first.
    Cancel,
    /// Ends it at once: its trials do not save.
    Kill,
    /// Removes it, which has ended, with its checkpoints; goes on in the background.
    Delete,
    /// Hides it, which has ended.
    Archive,
    /// Shows it again.
    Unarchive,
    /// Moves it to the project of this number.
    Move(ProjectId),
    /// Keeps its logs for so many days, -1 = for ever.
    KeepLogs(i16),
}

/// What does something to experiments.
pub(crate) struct Actions {
    pub(crate) experiments: Experiments,
    pub(crate) projects: Projects,
    pub(crate) log_retention: LogRetention,
    pub(crate) sources: ExperimentSources,
}

/// Does something to an experiment.
pub(crate) async fn act(
    actions: &Actions,
    actor: &Actor,
    id: ExperimentId,
    action: Action,
) -> AppResult<()> {
    let event = match action {
        Action::Activate => ExperimentEvent::Activate,
        Action::Pause => ExperimentEvent::Pause,
        Action::Cancel => ExperimentEvent::Cancel,
        Action::Kill => ExperimentEvent::Kill,
        Action::Delete => ExperimentEvent::Delete,
        Action::Archive => return actions.experiments.archive(actor, id, true).await,
        Action::Unarchive => return actions.experiments.archive(actor, id, false).await,
        Action::Move(to) => return actions.projects.move_experiment(actor, id, to).await,
        Action::KeepLogs(days) => {
            let retention = &actions.log_retention;
            return retention.set_days_of_experiment(actor, id, days).await;
        }
    };
    actions.experiments.steer(actor, id, event).await
}

/// Does something to each of the chosen experiments of a project, and returns what came of it; `project_id` of 0 or less
/// = of all projects.
pub(crate) async fn act_on_all(
    actions: &Actions,
    actor: &Actor,
    project_id: ProjectId,
    chosen: BulkSelection,
    action: Action,
) -> AppResult<Vec<(ExperimentId, AppResult<()>)>> {
    if let Action::Move(to) = action {
        reads::homes::all(&actions.sources.homes, actor)?.require_open(to)?;
    }
    let ids = listing::chosen(&actions.sources, actor, project_id, chosen).await?;
    let mut outcomes = Vec::with_capacity(ids.len());
    for id in ids {
        let outcome = act_within(actions, actor, project_id, id, action).await;
        if let Err(error) = &outcome {
            error.log();
        }
        outcomes.push((id, outcome));
    }
    Ok(outcomes)
}

/// Does something to an experiment that must be in this project.
async fn act_within(
    actions: &Actions,
    actor: &Actor,
    project_id: ProjectId,
    id: ExperimentId,
    action: Action,
) -> AppResult<()> {
    let row = reads::experiments::find(&actions.sources.store, actor, id).await?;
    if named_project(project_id).is_some_and(|project| row.project_id != project) {
        return Err(AppError::not_found(ObjectKind::Experiment, id)
            .hint(format!("it is not in project {project_id}")));
    }
    act(actions, actor, id, action).await
}
