//! Removals of checkpoints in storage that the master does not reach or may not touch: a task of the experiment's owner
//! deletes the files, as that owner's Unix user and with nothing of the master's rights.
//!
//! The transaction that marks the checkpoints also stores the task, and a row that the removal is open
//! ([`det_store::checkpoint_removals`]). The task reports what is left of each checkpoint. Once it has ended, however it did,
//! the clean-up in the background takes the marks away and closes the row.

use std::collections::BTreeSet;
use std::path::Path;

use det_config::experiment::ExperimentConfig;
use det_config::origin::{Layer, Source};
use det_config::policies::Policies;
use det_config::storage::StorageLocation;
use det_config::submitted::{SubmittedTask, TaskDefaults};
use det_config::task::{LaunchKind, TaskConfig};
use det_ids::{ExperimentId, TaskId};
use det_lifecycle::task::{Demand, TaskEnd, TaskState};
use det_store::allocations::{self, TaskRow};
use det_store::checkpoint_removals::{self, OpenRemoval};
use det_store::checkpoints;
use det_store::experiments::{ExperimentRow, JobKind, JobRow};
use det_store::task_documents::{self, TaskDocument};
use det_store::{Conn, WriteTx};
use det_taskspec::{
    CheckpointGcDetails, EMPTY_IMAGE, Mount, RemovalCause, Remover, SHARED_FS_DIR, TaskDetails,
    TaskKind, WORK_DIR,
};
use serde_json::{Value, json};

use crate::app::checkpoints::{Checkpoints, parsed, resources};
use crate::app::context::Context;
use crate::app::homes::KnownHomes;
use crate::app::new_task::NewTask;
use crate::app::orchestration::Orchestration;
use crate::app::pools::Pools;
use crate::app::searches::config_of;
use crate::error::{AppError, AppResult};

/// Removals by tasks. Cheap to clone.
#[derive(Clone)]
pub struct RemovalTasks {
    pub(crate) context: Context,
    pub(crate) homes: KnownHomes,
    pub(crate) pools: Pools,
    pub(crate) orchestration: Orchestration,
    pub(crate) checkpoints: Checkpoints,
    /// Of the cluster; names the directory of TensorBoard files.
    pub(crate) cluster_id: std::sync::Arc<str>,
}

/// What a removal task is to delete.
pub(crate) struct ToRemove {
    /// UUIDs of checkpoints of one experiment.
    pub(crate) checkpoints: Vec<String>,
    /// Patterns of files.
    pub(crate) globs: Vec<String>,
    /// What is to follow once it has happened.
    pub(crate) cause: RemovalCause,
}

/// What came of a removal task that has ended.
pub(crate) struct Settled {
    /// Whose checkpoints they were.
    pub(crate) experiment_id: ExperimentId,
    /// Why they were to go.
    pub(crate) cause: RemovalCause,
    /// Checkpoints that were to go.
    pub(crate) count: usize,
    /// Why not all went, for people; `None` = all did.
    pub(crate) failure: Option<String>,
}

impl RemovalTasks {
    /// The task that deletes checkpoints of an experiment, not stored yet.
    ///
    /// # Errors
    /// The storage's path leads out of its directory, or there is no pool that a task could run in.
    pub(crate) fn prepare(&self, experiment: &ExperimentRow, what: ToRemove) -> AppResult<NewTask> {
        let config = config_of(experiment)?;
        let (remover, mounts) = self.remover(&config, experiment.id, what.cause)?;
        let (pool, workspace_id) = self.pool_and_workspace(experiment)?;
        let document = document(&config, &remover);
        let config = self.completed(&document, &pool)?;
        let now = det_store::now();
        let id = TaskId(uuid::Uuid::new_v4().to_string());
        let job = JobRow {
            id: uuid::Uuid::new_v4().to_string().into(),
            kind: JobKind::Task,
            owner_id: experiment.owner_id,
            resource_pool: pool.clone(),
            priority: self.pools.default_priority(&pool),
            weight: 1.0,
            max_slots: None,
            position: None,
            moved: false,
            fallback: None,
            submitted_at: now,
            workspace_id,
        };
        let task = TaskRow {
            id: id.clone(),
            kind: TaskKind::CheckpointGc,
            job_id: job.id.clone(),
            owner_id: experiment.owner_id,
            experiment_id: None,
            trial_id: None,
            state: TaskState::Suspended,
            demand: Some(Demand {
                slots: 0,
                single_place: true,
                preemption_timeout: 0,
                preemptible: Some(false),
            }),
            attempts: 0,
            log_lines: 0,
            created_at: now,
            ended_at: None,
            logs_deleted_at: None,
            log_findings: None,
            log_retention_days: None,
        };
        let details = TaskDetails::CheckpointGc(CheckpointGcDetails {
            experiment_id: experiment.id,
            checkpoints: what.checkpoints,
            globs: what.globs,
            cause: what.cause,
            remover,
            mounts,
        });
        let document = TaskDocument {
            task_id: id,
            parent_id: None,
            description: format!("deletion of checkpoints of experiment {}", experiment.id),
            config: config.to_json().to_string(),
            details,
        };
        Ok(NewTask {
            job,
            task,
            document,
            context: None,
            warnings: Vec::new(),
        })
    }

    /// Stores a prepared task, in the transaction that marks its checkpoints.
    pub(crate) async fn launch(
        &self,
        tx: &mut WriteTx,
        task: NewTask,
        experiment_id: ExperimentId,
        actor: &str,
    ) -> AppResult<()> {
        let id = task.task.id.clone();
        task.store(tx, &self.context, &self.orchestration, actor)
            .await?;
        checkpoint_removals::insert(&mut tx.conn(), &id, experiment_id).await?;
        Ok(())
    }

    /// Takes away the marks of a removal whose task has ended, and closes it.
    pub(crate) async fn settle(
        &self,
        tx: &mut WriteTx,
        removal: &OpenRemoval,
        actor: &str,
    ) -> AppResult<Option<Settled>> {
        let document = task_documents::find(&mut tx.conn(), &removal.task_id).await?;
        let Some(TaskDetails::CheckpointGc(details)) = document.map(|document| document.details)
        else {
            checkpoint_removals::settle(&mut tx.conn(), &removal.task_id).await?;
            return Ok(None);
        };
        let removed = parsed(&details.globs)?;
        for uuid in &details.checkpoints {
            if let Some(row) = checkpoints::find(&mut tx.conn(), uuid).await? {
                let left = resources(&row)?;
                self.checkpoints
                    .note_left(tx, row, left, &removed, actor, None)
                    .await?;
            }
        }
        checkpoint_removals::settle(&mut tx.conn(), &removal.task_id).await?;
        let failure = match removal.state {
            TaskState::Ended(TaskEnd::Completed) => None,
            _ => Some(failure(tx, &removal.task_id).await?),
        };
        Ok(Some(Settled {
            experiment_id: removal.experiment_id,
            cause: details.cause,
            count: details.checkpoints.len(),
            failure,
        }))
    }

    /// Who deletes, and what is mounted for that.
    fn remover(
        &self,
        config: &ExperimentConfig,
        id: ExperimentId,
        cause: RemovalCause,
    ) -> AppResult<(Remover, Vec<Mount>)> {
        let location = &config.checkpoint_storage.location;
        let own = self.context.config();
        let facts = config
            .checkpoint_storage
            .facts(own.checkpoint_storage.as_ref());
        let tensorboard = cause == RemovalCause::Deletion;
        let in_directory = |directory: String| Remover::Supervisor {
            directory,
            tensorboard: tensorboard
                .then(|| format!("{}/tensorboard/experiment/{id}", self.cluster_id)),
        };
        match location {
            StorageLocation::SharedFs { host_path, .. } => {
                let below = location.shared_fs_subdirectory().ok_or_else(|| {
                    AppError::precondition(format!(
                        "checkpoint storage: \"storage_path\" leads out of \"{host_path}\""
                    ))
                })?;
                let directory = Path::new(SHARED_FS_DIR).join(below);
                let mount = facts.shared_fs.map(|shared| Mount {
                    host_path: shared.host_path,
                    container_path: SHARED_FS_DIR.to_owned(),
                    read_only: false,
                    propagation: shared.propagation,
                    // A directory that is made for the task has nothing in it to delete.
                    create: false,
                    trusted: shared.is_clusters_own,
                });
                let directory = directory.to_string_lossy().into_owned();
                Ok((in_directory(directory), mount.into_iter().collect()))
            }
            StorageLocation::Directory { container_path } => {
                Ok((in_directory(container_path.clone()), Vec::new()))
            }
            StorageLocation::S3 { .. }
            | StorageLocation::Gcs { .. }
            | StorageLocation::Azure { .. } => {
                let remover = Remover::Python {
                    storage: facts.document,
                    tensorboard,
                };
                Ok((remover, Vec::new()))
            }
        }
    }

    /// The default pool of zero-slot tasks, else the experiment's own; and the experiment's workspace.
    fn pool_and_workspace(
        &self,
        experiment: &ExperimentRow,
    ) -> AppResult<(String, det_ids::WorkspaceId)> {
        let homes = self.homes.get();
        let (_, workspace) = homes.project(experiment.project_id)?;
        let of_workspace = workspace.default_aux_pool.clone();
        let pool = of_workspace
            .filter(|pool| self.pools.require(pool).is_ok())
            .or_else(|| self.pools.default_aux_pool())
            .unwrap_or_else(|| experiment.resource_pool.clone());
        self.pools.require(&pool)?;
        Ok((pool, workspace.id))
    }

    fn completed(&self, document: &Value, pool: &str) -> AppResult<TaskConfig> {
        let source = Source::layer(Layer::Document);
        let submitted = SubmittedTask::of_layer(LaunchKind::Command, source, document);
        let defaults = self.pools.container_defaults(pool);
        // What administrators demand of users' tasks does not concern one that the master makes.
        let policies = Policies::all_with_order(Vec::new(), self.pools.priority_order(pool));
        let completed = submitted.under(&policies).complete(&TaskDefaults {
            description: String::from("deletion of checkpoints"),
            task_container_defaults: &defaults,
            default_priority: Some(self.pools.default_priority(pool)),
            has_context: false,
        });
        let mut config = completed.map_err(|errors| {
            AppError::internal(anyhow::anyhow!(
                "the configuration of a task that deletes checkpoints is refused: {errors}"
            ))
        })?;
        pool.clone_into(&mut config.resources.resource_pool);
        Ok(config)
    }
}

/// What the task is configured to be. In a directory nothing of the experiment is needed, not even its image.
fn document(config: &ExperimentConfig, remover: &Remover) -> Value {
    let mut document = json!({
        "entrypoint": ["true"],
        "resources": {"slots": 0},
        "work_dir": WORK_DIR,
    });
    match remover {
        Remover::Supervisor { .. } => {
            document["environment"] = json!({"image": EMPTY_IMAGE, "force_pull_image": false});
            // The shared file system has its own mount.
            let location = &config.checkpoint_storage.location;
            if !matches!(location, StorageLocation::SharedFs { .. }) {
                document["bind_mounts"] = json!(config.bind_mounts);
            }
        }
        Remover::Python { .. } => {
            document["environment"] = json!(config.environment);
            document["bind_mounts"] = json!(config.bind_mounts);
        }
    }
    document
}

/// Why a task did not delete what it was to delete.
async fn failure(tx: &mut WriteTx, id: &TaskId) -> AppResult<String> {
    let attempts = allocations::of_task(&mut tx.conn(), id).await?;
    let reason = attempts
        .into_iter()
        .filter_map(|a| a.exit_reason)
        .next_back();
    let reason = reason.unwrap_or_else(|| "it ended before it ran".to_owned());
    Ok(format!(
        "task {id}, which was to delete them, did not: {reason} (its log: det task logs {id})"
    ))
}

/// The checkpoints that open removals delete.
pub(crate) async fn under_way(
    conn: &mut Conn<'_>,
    open: &[OpenRemoval],
) -> AppResult<BTreeSet<String>> {
    let mut uuids = BTreeSet::new();
    for removal in open {
        let document = task_documents::find(conn, &removal.task_id).await?;
        if let Some(TaskDetails::CheckpointGc(details)) = document.map(|d| d.details) {
            uuids.extend(details.checkpoints);
        }
    }
    Ok(uuids)
}
