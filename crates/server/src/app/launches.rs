//! Tasks that users launch by themselves, of all kinds: a checked document becomes a job, a task, what it runs as and the
//! files that it starts with; from then on the task goes through the life that all tasks have.

mod check;
mod kept;
mod notebook;
mod ports;
mod shell;
mod steering;
mod tensorboard;

use std::time::Duration;

use det_authz::{Kind, Permission};
use det_config::MasterConfig;
use det_config::task::{LaunchKind, TaskConfig};
use det_ids::{ClusterId, ProjectId, TaskId, WorkspaceId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::ActorName;
use det_store::WriteTx;
use det_store::archives::NewArchive;
use det_store::workspaces;
use det_taskspec::TaskDetails;
use serde_json::Value;

use crate::app::admission::Admission;
use crate::app::config_policies::ConfigPolicies;
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::documents::shown_task_config;
use crate::app::homes::{KnownHomes, require_open_workspace};
use crate::app::idle::Idle;
use crate::app::model_archive::{self, ContextFile};
use crate::app::new_task::{NewTask, TaskParts};
use crate::app::orchestration::Orchestration;
use crate::app::ownership::Ownership;
use crate::app::pools::Pools;
use crate::app::templates::Templates;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

use tensorboard::Exhibits;

pub use steering::SubtreeStart;
pub use tensorboard::TensorBoardRequest;

/// A task as its owner asks for it.
#[derive(Debug, Clone)]
pub struct LaunchRequest {
    /// Kind of the task, such as a notebook or a command.
    pub kind: LaunchKind,
    /// Its configuration, YAML or JSON.
    pub config: String,
    /// The files that it starts with.
    pub files: Vec<ContextFile>,
    /// Its workspace; `None` = Uncategorized.
    pub workspace_id: Option<WorkspaceId>,
    /// Templates to lay the configuration over; a later one is stronger than an earlier one.
    pub templates: Vec<String>,
    /// Whether the request is only checked, and nothing is stored.
    pub preview: bool,
    /// What only generic tasks can ask for.
    pub generic: GenericRequest,
    /// What only `TensorBoards` can ask for.
    pub tensorboard: TensorBoardRequest,
}

/// What only generic tasks can ask for.
#[derive(Debug, Clone, Default)]
pub struct GenericRequest {
    /// Project whose workspace it goes into.
    pub project_id: Option<ProjectId>,
    /// The generic task that it belongs to.
    pub parent: Option<TaskId>,
    /// The generic task whose configuration and files it begins with; its own configuration is laid over that.
    pub forked_from: Option<TaskId>,
    /// Whether it starts with the files of its parent.
    pub inherit_context: bool,
    /// Whether it refuses to be paused.
    pub no_pause: bool,
}

/// What came of a launch.
#[derive(Debug, Clone)]
pub struct LaunchOutcome {
    /// The new task; `None` when it was only checked.
    pub id: Option<TaskId>,
    /// Effective configuration, secrets hidden.
    pub config: Value,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Whether it asks for more slots than there are now.
    pub slots_exceeded: bool,
}

/// Launches tasks, and steers them. Cheap to clone.
#[derive(Clone)]
pub struct Launches {
    pub(super) context: Context,
    pub(super) cluster_id: ClusterId,
    pub(super) configs: Configs,
    pub(super) idle: Idle,
    pub(super) homes: KnownHomes,
    pub(super) pools: Pools,
    pub(super) ownership: Ownership,
    pub(super) templates: Templates,
    pub(super) policies: ConfigPolicies,
    pub(super) admission: Admission,
    pub(super) orchestration: Orchestration,
}

impl Launches {
    /// Checks a launch and, unless only that is asked, stores the task and requests its first attempt.
    pub async fn launch(&self, actor: &Actor, request: LaunchRequest) -> AppResult<LaunchOutcome> {
        actor.require(Permission::Create, Kind::Task, "launch tasks")?;
        if let Some(parent) = &request.generic.parent {
            self.require_joining(actor, parent).await?;
        }
        let base = self.base(actor, &request).await?;
        let exhibits = self.exhibits(actor, &request).await?;
        let under = exhibits
            .as_ref()
            .and_then(|exhibits| exhibits.underlay(&[]));
        let mut checked = self.check(&request, base.as_ref(), under).await?;
        let own = checked.config.clone();
        if let Some(exhibits) = &exhibits {
            self.require_allowed_storage(exhibits).await?;
            let mounts = exhibits.inherited(&own)?;
            if !mounts.is_empty() {
                // As the weakest layer of its configuration, so that its own mounts and those of policies replace them.
                let under = exhibits.underlay(&mounts);
                checked = self.check(&request, base.as_ref(), under).await?;
            }
        }
        let (details, more) = self.details(&request, &own, exhibits)?;
        let lost = kept::warning(request.kind, &checked.config);
        checked.warnings.extend(lost);
        checked.warnings.extend(more);
        let shown = shown_task_config(actor, actor.user().id, &checked.config.to_json());
        let preview = request.preview;
        let (mut warnings, slots_exceeded) = (checked.warnings.clone(), checked.slots_exceeded);
        if preview {
            return Ok(LaunchOutcome {
                id: None,
                config: shown,
                warnings,
                slots_exceeded,
            });
        }
        let context = match base.and_then(|base| base.archive_of) {
            Some(task_id) if request.files.is_empty() => Some(NewArchive::CopyOf(task_id)),
            _ => pack(request.files).await?.map(NewArchive::Packed),
        };
        let parts = TaskParts {
            owner_id: actor.user().id,
            workspace_id: checked.workspace_id,
            config: checked.config,
            details,
            parent: request.generic.parent,
            context,
            warnings: checked.warnings,
        };
        let new = NewTask::new(parts, &self.pools);
        let id = new.task.id.clone();
        let has_idle_timeout = new.document.details.idle_timeout().is_some();
        let (service, actor) = (self.clone(), actor.name());
        let notice = self
            .context
            .write(move |tx| Box::pin(async move { service.store(tx, new, &actor).await }))
            .await?;
        warnings.extend(notice);
        if has_idle_timeout {
            self.idle.wake();
        }
        Ok(LaunchOutcome {
            id: Some(id),
            config: shown,
            warnings,
            slots_exceeded,
        })
    }

    /// What only a task of this kind has, and what its owner should know of that.
    fn details(
        &self,
        request: &LaunchRequest,
        config: &TaskConfig,
        exhibits: Option<Exhibits>,
    ) -> AppResult<(TaskDetails, Vec<String>)> {
        let master = self.context.config();
        let details = match request.kind {
            LaunchKind::Command => TaskDetails::Command,
            LaunchKind::Generic => TaskDetails::Generic(det_taskspec::GenericDetails {
                forked_from: request.generic.forked_from.clone(),
                no_pause: request.generic.no_pause,
            }),
            LaunchKind::Shell => TaskDetails::Shell(shell::new_details()?),
            LaunchKind::Notebook => TaskDetails::Notebook(notebook::new_details(config, &master)?),
            LaunchKind::Tensorboard => {
                let exhibits = exhibits.ok_or_else(|| {
                    AppError::internal(anyhow::anyhow!("nothing was loaded for a TensorBoard"))
                })?;
                let (details, warnings) = exhibits.details(config, &master, &self.cluster_id)?;
                return Ok((TaskDetails::Tensorboard(details), warnings));
            }
        };
        Ok((details, Vec::new()))
    }

    /// Stores a task. Returns what its owner should know of its state.
    async fn store(
        &self,
        tx: &mut WriteTx,
        mut new: NewTask,
        actor: &ActorName,
    ) -> AppResult<Option<String>> {
        // They may have gone since the configuration was checked.
        self.pools.require(&new.job.resource_pool)?;
        let workspace_id = new.job.workspace_id;
        let workspace = workspaces::find(&mut tx.conn(), workspace_id).await?;
        let workspace =
            workspace.ok_or_else(|| AppError::not_found(ObjectKind::Workspace, workspace_id))?;
        require_open_workspace(&workspace, "nothing can be launched there")?;
        let mut notice = None;
        if let Some(parent) = &new.document.parent_id {
            let state = steering::require_live_parent(tx, parent).await?;
            if steering::is_paused_with(state, &new.task, &new.document) {
                notice = Some(format!(
                    "it is paused, as task \"{parent}\" is, which it belongs to; `det task unpause {parent}` lets both go on"
                ));
                new.is_paused = true;
            }
        }
        let reserved = &self.context.config().reserved_ports;
        ports::give_port(&mut new.document, reserved)?;
        new.store(tx, &self.context, &self.orchestration, actor)
            .await?;
        Ok(notice)
    }
}

/// Seconds that a task may be idle, at least one; `None` = for ever.
fn idle_seconds(config: &TaskConfig, kind: LaunchKind, master: &MasterConfig) -> Option<u32> {
    let (notebook, tensorboard) = (master.notebook_timeout, master.tensorboard_timeout);
    let timeout = config.effective_idle_timeout(kind, notebook, tensorboard)?;
    Some(whole_seconds(timeout))
}

/// A time in seconds, at least one.
fn whole_seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1)
}

/// The archive of a list of files; `None` = there are none.
async fn pack(files: Vec<ContextFile>) -> AppResult<Option<Vec<u8>>> {
    if files.is_empty() {
        return Ok(None);
    }
    let packed = tokio::task::spawn_blocking(move || model_archive::pack("files", &files));
    packed.await.map_err(AppError::internal)?.map(Some)
}
