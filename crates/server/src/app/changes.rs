//! Changes that are answered with what they changed: a service makes the change, and a reader shows it to who asked.

use std::collections::BTreeMap;

use det_ids::{
    CheckpointId, ExperimentId, ExternalExperimentId, ProjectId, RequestId, TaskId, TrialId,
    WorkspaceId,
};
use det_store::Store;
use det_store::namespaces::BindingRow;
use det_taskspec::TaskKind;
use serde_json::{Map, Value};

use crate::app::checkpoints::Checkpoints;
use crate::app::experiments::{CreatedExperiment, ExperimentPatch, Experiments};
use crate::app::jobs::{JobQueue, QueueChange};
use crate::app::launches::{LaunchOutcome, LaunchRequest, Launches, SubtreeStart};
use crate::app::projects::{NewProject, ProjectPatch, Projects};
use crate::app::reads::checkpoints::{self, CheckpointSources, ShownCheckpoint};
use crate::app::reads::experiments::listing::{BulkSelection, chosen};
use crate::app::reads::experiments::{self, ExperimentSources, ShownExperiments};
use crate::app::reads::homes::{self, HomeSources, ProjectView, WorkspaceView};
use crate::app::reads::tasks::{self, LaunchedView, TaskSources};
use crate::app::reads::trials::{self, TrialWithParts};
use crate::app::submission::NewExperimentRequest;
use crate::app::unmanaged::{Heartbeat, UnmanagedRuns};
use crate::app::workspaces::{NamespaceChoices, WorkspaceNamespaces, WorkspacePatch, Workspaces};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// What makes changes and shows what they changed.
pub(crate) struct Changes {
    pub(crate) experiments: ExperimentChanges,
    pub(crate) trials: TrialChanges,
    pub(crate) launches: LaunchChanges,
    pub(crate) workspaces: WorkspaceChanges,
    pub(crate) checkpoints: CheckpointChanges,
}

/// Changes experiments and shows them.
pub(crate) struct ExperimentChanges {
    pub(crate) experiments: Experiments,
    pub(crate) unmanaged: UnmanagedRuns,
    pub(crate) sources: ExperimentSources,
}

/// Changes unmanaged trials and shows them.
pub(crate) struct TrialChanges {
    pub(crate) unmanaged: UnmanagedRuns,
    pub(crate) store: Store,
}

/// Launches and changes tasks and shows them.
pub(crate) struct LaunchChanges {
    pub(crate) launches: Launches,
    pub(crate) queue: JobQueue,
    pub(crate) sources: TaskSources,
    /// Finds the experiments that a TensorBoard shows.
    pub(crate) experiments: ExperimentSources,
}

/// Changes workspaces and projects and shows them.
pub(crate) struct WorkspaceChanges {
    pub(crate) workspaces: Workspaces,
    pub(crate) namespaces: WorkspaceNamespaces,
    pub(crate) projects: Projects,
    pub(crate) sources: HomeSources,
}

/// Changes checkpoints and shows them.
pub(crate) struct CheckpointChanges {
    pub(crate) checkpoints: Checkpoints,
    pub(crate) sources: CheckpointSources,
}

/// Creates an experiment; without it when the submission was only checked.
pub(crate) async fn create_experiment(
    with: &ExperimentChanges,
    actor: &Actor,
    request: NewExperimentRequest,
) -> AppResult<(CreatedExperiment, Option<ShownExperiments>)> {
    let created = with.experiments.create(actor, request).await?;
    let shown = match created.id {
        Some(id) => Some(experiments::one(&with.sources, actor, id).await?),
        None => None,
    };
    Ok((created, shown))
}

/// The unmanaged experiment of an external id: as it is, or a new one; without it when the submission was only checked.
pub(crate) async fn put_experiment(
    with: &ExperimentChanges,
    actor: &Actor,
    external_id: ExternalExperimentId,
    request: NewExperimentRequest,
) -> AppResult<Option<ShownExperiments>> {
    let service = &with.unmanaged;
    let put = service.put_experiment(actor, external_id, request).await?;
    match put.id {
        Some(id) => Ok(Some(experiments::one(&with.sources, actor, id).await?)),
        None => Ok(None),
    }
}

/// The trial of an external id in an unmanaged experiment: as it is, or a new one. Without the id a new one.
pub(crate) async fn put_trial(
    with: &TrialChanges,
    actor: &Actor,
    experiment_id: ExperimentId,
    external_id: Option<RequestId>,
    hparams: Map<String, Value>,
) -> AppResult<TrialWithParts> {
    let service = &with.unmanaged;
    let id = service
        .put_trial(actor, experiment_id, external_id, hparams)
        .await?;
    trials::compacted(&with.store, actor, id).await
}

/// The code of an unmanaged trial reports that it runs, or how it ended.
pub(crate) async fn beat(
    with: &TrialChanges,
    actor: &Actor,
    id: TrialId,
    heartbeat: Heartbeat,
) -> AppResult<TrialWithParts> {
    with.unmanaged.beat(actor, id, heartbeat).await?;
    trials::compacted(&with.store, actor, id).await
}

/// Lets an ended experiment go on, with changed settings if any.
pub(crate) async fn continue_experiment(
    with: &ExperimentChanges,
    actor: &Actor,
    id: ExperimentId,
    override_config: &str,
) -> AppResult<ShownExperiments> {
    let service = &with.experiments;
    service.continue_ended(actor, id, override_config).await?;
    experiments::one(&with.sources, actor, id).await
}

/// Changes texts, labels, resources or checkpoint policy of an experiment.
pub(crate) async fn patch_experiment(
    with: &ExperimentChanges,
    actor: &Actor,
    id: ExperimentId,
    patch: ExperimentPatch,
) -> AppResult<ShownExperiments> {
    with.experiments.patch(actor, id, patch).await?;
    experiments::one(&with.sources, actor, id).await
}

/// Launches a task; without it when the configuration was only checked.
pub(crate) async fn launch(
    with: &LaunchChanges,
    actor: &Actor,
    request: LaunchRequest,
) -> AppResult<(LaunchOutcome, Option<LaunchedView>)> {
    let kind = request.kind.into();
    let made = with.launches.launch(actor, request).await?;
    let view = match &made.id {
        Some(id) => Some(tasks::launched_one(&with.sources, actor, kind, id).await?),
        None => None,
    };
    Ok((made, view))
}

/// Launches a TensorBoard; `more` are experiments to show besides those of the request.
pub(crate) async fn launch_tensorboard(
    with: &LaunchChanges,
    actor: &Actor,
    mut request: LaunchRequest,
    more: Option<(ProjectId, BulkSelection)>,
) -> AppResult<(LaunchOutcome, Option<LaunchedView>)> {
    if let Some((project, more)) = more {
        let meant = chosen(&with.experiments, actor, project, more).await?;
        request.tensorboard.experiment_ids.extend(meant);
    }
    launch(with, actor, request).await
}

/// Ends a launched task at once.
pub(crate) async fn kill_launched(
    with: &LaunchChanges,
    actor: &Actor,
    kind: TaskKind,
    id: &TaskId,
) -> AppResult<LaunchedView> {
    with.launches
        .kill(actor, kind, id, SubtreeStart::Task)
        .await?;
    tasks::launched_one(&with.sources, actor, kind, id).await
}

/// Changes the priority of a launched task's job.
pub(crate) async fn set_priority_of_launched(
    with: &LaunchChanges,
    actor: &Actor,
    kind: TaskKind,
    id: &TaskId,
    priority: i64,
) -> AppResult<LaunchedView> {
    let view = tasks::launched_one(&with.sources, actor, kind, id).await?;
    let change = QueueChange::of_priority(view.row.job_id, priority);
    with.queue.change(actor, vec![change]).await?;
    tasks::launched_one(&with.sources, actor, kind, id).await
}

/// Adds a workspace, and binds it to the namespaces of these choices, which limits in its clusters are for, too.
pub(crate) async fn create_workspace(
    with: &WorkspaceChanges,
    actor: &Actor,
    mut new: WorkspacePatch,
    mut choices: NamespaceChoices,
) -> AppResult<(WorkspaceView, Vec<BindingRow>)> {
    let has_namespaces = |cluster: &str| with.namespaces.has_namespaces(cluster);
    for (cluster, quota) in std::mem::take(&mut new.quotas) {
        match choices.get_mut(&cluster) {
            Some(choice) => choice.quota = Some(quota),
            None if has_namespaces(&cluster) => {
                return Err(AppError::precondition(
                    "a workspace has a quota in a Kubernetes cluster only in a namespace that is made for it",
                )
                .hint("ask for one with `--auto-create-namespace`, or limit all its work with `--max-slots N`"));
            }
            None => {
                new.quotas.insert(cluster, quota);
            }
        }
    }
    if !choices.is_empty() {
        let name = new.name.as_deref().unwrap_or_default();
        let possible = with.namespaces.require_possible(actor, name, &choices);
        possible.await?;
    }
    let row = with.workspaces.create(actor, new).await?;
    let bindings = bound(with, actor, row.id, choices).await;
    let bindings = bindings.map_err(|error| {
        let text = format!("workspace \"{}\" was added; {error}", row.name);
        AppError::new(error.kind, text).hint(format!(
            "go on with `det workspace bindings set \"{}\"`",
            row.name
        ))
    })?;
    let view = homes::shown_workspace(&with.sources, actor, row).await?;
    Ok((view, bindings))
}

/// Changes a workspace, and binds it to the namespaces of these choices.
pub(crate) async fn patch_workspace(
    with: &WorkspaceChanges,
    actor: &Actor,
    id: WorkspaceId,
    patch: WorkspacePatch,
    choices: NamespaceChoices,
) -> AppResult<(WorkspaceView, Vec<BindingRow>)> {
    // The namespaces first, since their clusters may refuse them.
    let is_about_namespaces = patch == WorkspacePatch::default() && !choices.is_empty();
    let bindings = bound(with, actor, id, choices).await?;
    let row = if is_about_namespaces {
        homes::all(&with.sources.homes, actor)?
            .workspace(id)?
            .clone()
    } else {
        with.workspaces.change(actor, id, patch).await?
    };
    let view = homes::shown_workspace(&with.sources, actor, row).await?;
    Ok((view, bindings))
}

async fn bound(
    with: &WorkspaceChanges,
    actor: &Actor,
    id: WorkspaceId,
    choices: NamespaceChoices,
) -> AppResult<Vec<BindingRow>> {
    if choices.is_empty() {
        return Ok(Vec::new());
    }
    with.namespaces.bind(actor, id, choices).await
}

/// Limits the slots of a workspace by cluster: those in its namespace there where the cluster has namespaces, else all.
pub(crate) async fn set_quotas(
    with: &WorkspaceChanges,
    actor: &Actor,
    id: WorkspaceId,
    quotas: BTreeMap<String, i64>,
) -> AppResult<()> {
    let (there, here): (BTreeMap<_, _>, BTreeMap<_, _>) = quotas
        .into_iter()
        .partition(|(cluster, _)| with.namespaces.has_namespaces(cluster));
    if !there.is_empty() {
        with.namespaces.set_quotas(actor, id, there).await?;
        if here.is_empty() {
            return Ok(());
        }
    }
    let patch = WorkspacePatch {
        quotas: here,
        ..WorkspacePatch::default()
    };
    with.workspaces.change(actor, id, patch).await.map(drop)
}

/// Adds a project.
pub(crate) async fn create_project(
    with: &WorkspaceChanges,
    actor: &Actor,
    new: NewProject,
) -> AppResult<ProjectView> {
    let row = with.projects.create(actor, new).await?;
    homes::shown_project(&with.sources, actor, row).await
}

/// Changes a project.
pub(crate) async fn patch_project(
    with: &WorkspaceChanges,
    actor: &Actor,
    id: ProjectId,
    patch: ProjectPatch,
) -> AppResult<ProjectView> {
    let row = with.projects.change(actor, id, patch).await?;
    homes::shown_project(&with.sources, actor, row).await
}

/// Replaces the user's metadata of a checkpoint.
pub(crate) async fn annotate_checkpoint(
    with: &CheckpointChanges,
    actor: &Actor,
    uuid: &CheckpointId,
    metadata: Map<String, Value>,
) -> AppResult<ShownCheckpoint> {
    let service = &with.checkpoints;
    let row = service.set_metadata(actor, uuid, metadata).await?;
    checkpoints::shown(&with.sources, actor, row).await
}
