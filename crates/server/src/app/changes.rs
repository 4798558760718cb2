//! Changes that are answered with what they changed: a service makes the change, and a reader shows it to who asked.

use std::collections::BTreeMap;

use det_ids::{CheckpointId, ExperimentId, ProjectId, TaskId, TrialId, WorkspaceId};
use det_store::namespaces::BindingRow;
use det_taskspec::TaskKind;
use serde_json::{Map, Value};

use crate::app::Master;
use crate::app::experiments::{CreatedExperiment, ExperimentPatch};
use crate::app::jobs::QueueChange;
use crate::app::launches::{LaunchOutcome, LaunchRequest, SubtreeStart};
use crate::app::projects::{NewProject, ProjectPatch};
use crate::app::reads::checkpoints::{self, ShownCheckpoint};
use crate::app::reads::experiments::listing::{BulkSelection, chosen};
use crate::app::reads::experiments::{self, ShownExperiments};
use crate::app::reads::homes::{self, ProjectView, WorkspaceView};
use crate::app::reads::tasks::{self, LaunchedView};
use crate::app::reads::trials::{self, TrialWithParts};
use crate::app::submission::NewExperimentRequest;
use crate::app::unmanaged::Heartbeat;
use crate::app::workspaces::{NamespaceChoices, WorkspacePatch};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// Creates an experiment; without it when the submission was only checked.
pub(crate) async fn create_experiment(
    master: &Master,
    actor: &Actor,
    request: NewExperimentRequest,
) -> AppResult<(CreatedExperiment, Option<ShownExperiments>)> {
    let created = master.experiments.create(actor, request).await?;
    let shown = match created.id {
        Some(id) => Some(experiments::one(master, actor, id).await?),
        None => None,
    };
    Ok((created, shown))
}

/// The unmanaged experiment of an external id: as it is, or a new one; without it when the submission was only checked.
pub(crate) async fn put_experiment(
    master: &Master,
    actor: &Actor,
    external_id: String,
    request: NewExperimentRequest,
) -> AppResult<Option<ShownExperiments>> {
    let service = &master.unmanaged;
    let put = service.put_experiment(actor, external_id, request).await?;
    match put.id {
        Some(id) => Ok(Some(experiments::one(master, actor, id).await?)),
        None => Ok(None),
    }
}

/// The trial of an external id in an unmanaged experiment: as it is, or a new one. Without the id a new one.
pub(crate) async fn put_trial(
    master: &Master,
    actor: &Actor,
    experiment_id: ExperimentId,
    external_id: Option<String>,
    hparams: Map<String, Value>,
) -> AppResult<TrialWithParts> {
    let service = &master.unmanaged;
    let id = service
        .put_trial(actor, experiment_id, external_id, hparams)
        .await?;
    trials::compacted(&master.context.store, actor, id).await
}

/// The code of an unmanaged trial reports that it runs, or how it ended.
pub(crate) async fn beat(
    master: &Master,
    actor: &Actor,
    id: TrialId,
    heartbeat: Heartbeat,
) -> AppResult<TrialWithParts> {
    master.unmanaged.beat(actor, id, heartbeat).await?;
    trials::compacted(&master.context.store, actor, id).await
}

/// Lets an ended experiment go on, with changed settings if any.
pub(crate) async fn continue_experiment(
    master: &Master,
    actor: &Actor,
    id: ExperimentId,
    override_config: &str,
) -> AppResult<ShownExperiments> {
    let service = &master.experiments;
    service.continue_ended(actor, id, override_config).await?;
    experiments::one(master, actor, id).await
}

/// Changes texts, labels, resources or checkpoint policy of an experiment.
pub(crate) async fn patch_experiment(
    master: &Master,
    actor: &Actor,
    id: ExperimentId,
    patch: ExperimentPatch,
) -> AppResult<ShownExperiments> {
    master.experiments.patch(actor, id, patch).await?;
    experiments::one(master, actor, id).await
}

/// Launches a task; without it when the configuration was only checked.
pub(crate) async fn launch(
    master: &Master,
    actor: &Actor,
    request: LaunchRequest,
) -> AppResult<(LaunchOutcome, Option<LaunchedView>)> {
    let kind = request.kind.into();
    let made = master.launches.launch(actor, request).await?;
    let view = match &made.id {
        Some(id) => Some(tasks::launched_one(master, actor, kind, id).await?),
        None => None,
    };
    Ok((made, view))
}

/// Launches a TensorBoard; `more` are experiments to show besides those of the request.
pub(crate) async fn launch_tensorboard(
    master: &Master,
    actor: &Actor,
    mut request: LaunchRequest,
    more: Option<(ProjectId, BulkSelection)>,
) -> AppResult<(LaunchOutcome, Option<LaunchedView>)> {
    if let Some((project, more)) = more {
        let meant = chosen(master, actor, project, more).await?;
        request.tensorboard.experiment_ids.extend(meant);
    }
    launch(master, actor, request).await
}

/// Ends a launched task at once.
pub(crate) async fn kill_launched(
    master: &Master,
    actor: &Actor,
    kind: TaskKind,
    id: &TaskId,
) -> AppResult<LaunchedView> {
    master
        .launches
        .kill(actor, kind, id, SubtreeStart::Task)
        .await?;
    tasks::launched_one(master, actor, kind, id).await
}

/// Changes the priority of a launched task's job.
pub(crate) async fn set_priority_of_launched(
    master: &Master,
    actor: &Actor,
    kind: TaskKind,
    id: &TaskId,
    priority: i64,
) -> AppResult<LaunchedView> {
    let view = tasks::launched_one(master, actor, kind, id).await?;
    let change = QueueChange::of_priority(view.row.job_id, priority);
    master.queue.change(actor, vec![change]).await?;
    tasks::launched_one(master, actor, kind, id).await
}

/// Adds a workspace, and binds it to the namespaces of these choices, which limits in its clusters are for, too.
pub(crate) async fn create_workspace(
    master: &Master,
    actor: &Actor,
    mut new: WorkspacePatch,
    mut choices: NamespaceChoices,
) -> AppResult<(WorkspaceView, Vec<BindingRow>)> {
    let is_kubernetes = |cluster: &str| master.namespaces.is_kubernetes(cluster);
    for (cluster, quota) in std::mem::take(&mut new.quotas) {
        match choices.get_mut(&cluster) {
            Some(choice) => choice.quota = Some(quota),
            None if is_kubernetes(&cluster) => {
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
        let possible = master.namespaces.require_possible(actor, name, &choices);
        possible.await?;
    }
    let row = master.workspaces.create(actor, new).await?;
    let bindings = bound(master, actor, row.id, choices).await;
    let bindings = bindings.map_err(|error| {
        let text = format!("workspace \"{}\" was added; {error}", row.name);
        AppError::new(error.kind, text).hint(format!(
            "go on with `det workspace bindings set \"{}\"`",
            row.name
        ))
    })?;
    let view = homes::shown_workspace(master, actor, row).await?;
    Ok((view, bindings))
}

/// Changes a workspace, and binds it to the namespaces of these choices.
pub(crate) async fn patch_workspace(
    master: &Master,
    actor: &Actor,
    id: WorkspaceId,
    patch: WorkspacePatch,
    choices: NamespaceChoices,
) -> AppResult<(WorkspaceView, Vec<BindingRow>)> {
    // The namespaces first, since their clusters may refuse them.
    let is_about_namespaces = patch == WorkspacePatch::default() && !choices.is_empty();
    let bindings = bound(master, actor, id, choices).await?;
    let row = if is_about_namespaces {
        homes::all(&master.homes, actor)?.workspace(id)?.clone()
    } else {
        master.workspaces.change(actor, id, patch).await?
    };
    let view = homes::shown_workspace(master, actor, row).await?;
    Ok((view, bindings))
}

async fn bound(
    master: &Master,
    actor: &Actor,
    id: WorkspaceId,
    choices: NamespaceChoices,
) -> AppResult<Vec<BindingRow>> {
    if choices.is_empty() {
        return Ok(Vec::new());
    }
    master.namespaces.bind(actor, id, choices).await
}

/// Limits the slots of a workspace by cluster: in Kubernetes clusters those in its namespace there, else all.
pub(crate) async fn set_quotas(
    master: &Master,
    actor: &Actor,
    id: WorkspaceId,
    quotas: BTreeMap<String, i64>,
) -> AppResult<()> {
    let (there, here): (BTreeMap<_, _>, BTreeMap<_, _>) = quotas
        .into_iter()
        .partition(|(cluster, _)| master.namespaces.is_kubernetes(cluster));
    if !there.is_empty() {
        master.namespaces.set_quotas(actor, id, there).await?;
        if here.is_empty() {
            return Ok(());
        }
    }
    let patch = WorkspacePatch {
        quotas: here,
        ..WorkspacePatch::default()
    };
    master.workspaces.change(actor, id, patch).await.map(drop)
}

/// Adds a project.
pub(crate) async fn create_project(
    master: &Master,
    actor: &Actor,
    new: NewProject,
) -> AppResult<ProjectView> {
    let row = master.projects.create(actor, new).await?;
    homes::shown_project(master, actor, row).await
}

/// Changes a project.
pub(crate) async fn patch_project(
    master: &Master,
    actor: &Actor,
    id: ProjectId,
    patch: ProjectPatch,
) -> AppResult<ProjectView> {
    let row = master.projects.change(actor, id, patch).await?;
    homes::shown_project(master, actor, row).await
}

/// Replaces the user's metadata of a checkpoint.
pub(crate) async fn annotate_checkpoint(
    master: &Master,
    actor: &Actor,
    uuid: &CheckpointId,
    metadata: Map<String, Value>,
) -> AppResult<ShownCheckpoint> {
    let service = &master.checkpoints;
    let row = service.set_metadata(actor, uuid, metadata).await?;
    checkpoints::shown(master, actor, row).await
}
