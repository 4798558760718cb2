//! Removals of checkpoints in storage that the master does not reach or may not touch: a task of the experiment's owner
//! deletes the files, as that owner's Unix user and with nothing of the master's rights.
//!
//! The transaction that marks the checkpoints also stores the task, and a row that the removal is open
//! ([`det_store::checkpoint_removals`]). The task reports what is left of each checkpoint. Once it has ended, however it did,
//! the clean-up in the background takes the marks away and closes the row.

use std::collections::BTreeSet;
use std::path::Path;

use det_config::errors::{ConfigError, ConfigErrors};
use det_config::experiment::ExperimentConfig;
use det_config::origin::{Layer, Source};
use det_config::policies::{Policies, Workload};
use det_config::storage::StorageLocation;
use det_config::submitted::{SubmittedTask, TaskDefaults, check_stored_pod};
use det_config::task::{LaunchKind, TaskConfig};
use det_ids::{CheckpointId, ClusterId, ExperimentId, Micros, TaskId, UserId, WorkspaceId};
use det_lifecycle::record::ActorName;
use det_lifecycle::task::{TaskEnd, TaskEvent, TaskState};
use det_orchestrator::{Due, Event};
use det_store::allocations;
use det_store::checkpoint_removals::{self, OpenRemoval};
use det_store::checkpoints;
use det_store::experiments::ExperimentRow;
use det_store::task_documents;
use det_store::workspaces::WorkspaceRow;
use det_store::{Conn, WriteTx};
use det_taskspec::{
    CheckpointGcDetails, EMPTY_IMAGE, Mount, RemovalCause, Remover, SHARED_FS_DIR, TaskDetails,
    WORK_DIR,
};
use serde_json::{Value, json};

use crate::app::admission::{Admission, Findings};
use crate::app::checkpoints::{Checkpoints, parsed, resources};
use crate::app::config_policies::ConfigPolicies;
use crate::app::context::Context;
use crate::app::documents::document_error;
use crate::app::homes::KnownHomes;
use crate::app::new_task::{NewTask, TaskParts};
use crate::app::orchestration::{Cause, Orchestration};
use crate::app::pools::Pools;
use crate::app::searches::config_of;
use crate::error::{AppError, AppResult, ErrorKind};

/// Removals by tasks. Cheap to clone.
#[derive(Clone)]
pub struct RemovalTasks {
    pub(crate) context: Context,
    pub(crate) homes: KnownHomes,
    pub(crate) pools: Pools,
    pub(crate) policies: ConfigPolicies,
    pub(crate) admission: Admission,
    pub(crate) orchestration: Orchestration,
    pub(crate) checkpoints: Checkpoints,
    /// Of the cluster; names the directory of TensorBoard files.
    pub(crate) cluster_id: ClusterId,
}

/// A task that deletes files of an experiment, without those that it is to delete.
pub(crate) struct RemovalDraft {
    experiment_id: ExperimentId,
    owner_id: UserId,
    workspace_id: WorkspaceId,
    config: TaskConfig,
    remover: Remover,
    mounts: Vec<Mount>,
    /// What is to follow once it has happened.
    cause: RemovalCause,
}

/// What came of a removal task that has ended.
pub(crate) struct RemovalOutcome {
    /// Number of the experiment whose checkpoints were removed.
    pub(crate) experiment_id: ExperimentId,
    /// Why they were to go.
    pub(crate) cause: RemovalCause,
    /// Checkpoints that were to go.
    pub(crate) count: usize,
    /// A sentence for users on why not all went; `None` = all did.
    pub(crate) failure: Option<String>,
}

impl RemovalTasks {
    /// What a task that deletes files of an experiment would run as, under what is configured and demanded of tasks today.
    ///
    /// # Errors
    /// The storage's path leads out of its directory, there is no pool that a task could run in, or policies of the
    /// experiment's workspace do not admit it.
    pub(crate) async fn draft(
        &self,
        experiment: &ExperimentRow,
        cause: RemovalCause,
    ) -> AppResult<RemovalDraft> {
        let config = config_of(experiment)?;
        let (remover, mounts) = self.remover(&config, experiment.id, cause)?;
        let homes = self.homes.get();
        let (_, workspace) = homes.project(experiment.project_id)?;
        let document = document(&config, &remover);
        let pod = document["environment"].get("pod_spec");
        let policies_of_pod = match pod {
            Some(pod) if !pod.is_null() => {
                let workload = Workload::Experiment;
                self.policies.over(workspace.id, workload).await?
            }
            _ => Vec::new(),
        };
        let judge_pod = |pool: &str| self.judge_pod(&config, pool, &policies_of_pod);
        let config = match &remover {
            // Nothing of a user's runs, not even an image.
            Remover::Supervisor { .. } => {
                let pool = self.pool(experiment, workspace).await?;
                let errors = judge_pod(&pool);
                self.completed(experiment, document, Vec::new(), pool, errors)?
            }
            // The user's image, as in every task that users launch.
            Remover::Python { .. } => {
                let policies = self.policies.over(workspace.id, Workload::Tasks).await?;
                // The pod is the experiment's, and judged as one.
                let policies = policies.into_iter().map(Policies::without_pod_constraints);
                let policies: Vec<Policies> = policies.collect();
                let submitted = submitted(&document);
                let mut findings = Findings::default();
                let governed = submitted.under(&policies);
                let size = governed.size();
                let admitted = self
                    .admission
                    .admit(&governed.placement(), workspace, size, &mut findings)
                    .await?;
                let mut errors = governed.placed(findings.errors);
                let pool = admitted.pools.into_iter().next();
                let pool = pool.unwrap_or_else(|| experiment.resource_pool.clone());
                errors.extend(judge_pod(&pool));
                self.completed(experiment, document, policies, pool, errors)?
            }
        };
        Ok(RemovalDraft {
            experiment_id: experiment.id,
            owner_id: experiment.owner_id,
            workspace_id: workspace.id,
            config,
            remover,
            mounts,
            cause,
        })
    }

    /// The task of a draft for these checkpoints, not stored yet. `globs` = patterns of files.
    pub(crate) fn task(
        &self,
        draft: RemovalDraft,
        checkpoints: Vec<CheckpointId>,
        globs: Vec<String>,
    ) -> NewTask {
        let details = TaskDetails::CheckpointGc(CheckpointGcDetails {
            experiment_id: draft.experiment_id,
            checkpoints,
            globs,
            cause: draft.cause,
            remover: draft.remover,
            mounts: draft.mounts,
        });
        let parts = TaskParts {
            owner_id: draft.owner_id,
            workspace_id: draft.workspace_id,
            config: draft.config,
            details,
            parent: None,
            context: None,
            warnings: Vec::new(),
        };
        NewTask::new(parts, &self.pools)
    }

    /// Stores a prepared task, in the transaction that marks its checkpoints.
    pub(crate) async fn launch(
        &self,
        tx: &mut WriteTx,
        task: NewTask,
        experiment_id: ExperimentId,
        actor: &ActorName,
    ) -> AppResult<()> {
        let id = task.task.id.clone();
        task.store(tx, &self.context, &self.orchestration, actor)
            .await?;
        checkpoint_removals::insert(&mut tx.conn(), &id, experiment_id).await?;
        Ok(())
    }

    /// Ends removals that have run for longer than they may, and returns when the next one will have.
    pub(crate) async fn end_overlong(&self) -> AppResult<Option<Micros>> {
        let limit = self.context.config().checkpoint_removal_timeout;
        let mut deadlines = Vec::new();
        {
            let mut conn = self.context.store.read().await?;
            let open = checkpoint_removals::open(&mut conn.conn()).await?;
            let ids: Vec<TaskId> = open.into_iter().map(|removal| removal.task_id).collect();
            for attempt in allocations::of_tasks(&mut conn.conn(), &ids).await? {
                // When it was placed is by the system's clock: one that was put forward ends nothing too early.
                if let (Some(placed), None) = (attempt.placed_at, attempt.ended_at) {
                    let micros = i64::try_from(limit.as_micros()).unwrap_or(i64::MAX);
                    deadlines.push((attempt.task_id, Micros(placed.saturating_add(micros))));
                }
            }
        }
        let now = det_store::earliest_now();
        let due = Due::of(deadlines, Micros(now));
        for id in due.now {
            let reason = format!(
                "it had run for {} s, which is how long a deletion of checkpoints may run (\"checkpoint_removal_timeout\" of \
                 the master's configuration)",
                limit.as_secs()
            );
            let killed = Event::Task {
                id,
                event: TaskEvent::Kill,
                cause: Cause::master(reason),
            };
            match self.orchestration.commit(killed).await {
                // It has ended by itself just now.
                Err(error)
                    if matches!(error.kind, ErrorKind::Precondition | ErrorKind::NotFound) => {}
                done => done?,
            }
        }
        // By the steady clock, which the caller waits by: the system's may be behind it.
        let left = due.next.map(|next| next.0.saturating_sub(now));
        Ok(left.map(|left| Micros(det_store::steady_now().saturating_add(left))))
    }

    /// Takes away the marks of a removal whose task has ended, and closes it.
    pub(crate) async fn finish(
        &self,
        tx: &mut WriteTx,
        removal: &OpenRemoval,
        actor: &ActorName,
    ) -> AppResult<Option<RemovalOutcome>> {
        let document = task_documents::find(&mut tx.conn(), &removal.task_id).await?;
        let Some(TaskDetails::CheckpointGc(details)) = document.map(|document| document.details)
        else {
            checkpoint_removals::finish(&mut tx.conn(), &removal.task_id).await?;
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
        checkpoint_removals::finish(&mut tx.conn(), &removal.task_id).await?;
        let failure = match removal.state {
            TaskState::Ended(TaskEnd::Completed) => None,
            _ => Some(failure(tx, &removal.task_id).await?),
        };
        Ok(Some(RemovalOutcome {
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
                    shared: None,
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

    /// What policies over experiments do not let users set of the experiment's pod, which a deletion in this pool has, unless
    /// an administrator's takes its place there. The experiment may have been admitted in another workspace.
    fn judge_pod(
        &self,
        config: &ExperimentConfig,
        pool: &str,
        policies: &[Policies],
    ) -> Vec<ConfigError> {
        let replaced = self.pools.container_defaults(pool);
        if replaced.checkpoint_gc_pod_spec.is_some() {
            return Vec::new();
        }
        let of_experiment = &config.resources.resource_pool;
        let defaults = self.pools.container_defaults(of_experiment);
        let judged = check_stored_pod(config, &defaults, policies);
        judged.err().map_or_else(Vec::new, |errors| errors.0)
    }

    /// The default pool of zero-slot tasks. The experiment's own where there is none, and where that one runs tasks in
    /// another way: files that a container has written may belong to users that a process cannot be, and paths in a
    /// container may lead elsewhere.
    async fn pool(
        &self,
        experiment: &ExperimentRow,
        workspace: &WorkspaceRow,
    ) -> AppResult<String> {
        let of_workspace = workspace.default_aux_pool.clone();
        let pool = of_workspace
            .filter(|pool| self.pools.require(pool).is_ok())
            .or_else(|| self.pools.default_aux_pool())
            .unwrap_or_else(|| experiment.resource_pool.clone());
        self.pools.require(&pool)?;
        let own = &experiment.resource_pool;
        if self.pools.require(own).is_ok()
            && self.pools.aux_limit(own) > 0
            && !self.admission.run_alike(own, &pool).await?
        {
            return Ok(own.clone());
        }
        Ok(pool)
    }

    /// The whole configuration in a pool, whose pod for deletions replaces that of the experiment. `errors` = what speaks
    /// against it already.
    fn completed(
        &self,
        experiment: &ExperimentRow,
        mut document: Value,
        policies: Vec<Policies>,
        pool: String,
        errors: Vec<ConfigError>,
    ) -> AppResult<TaskConfig> {
        let defaults = self.pools.container_defaults(&pool);
        let policies = Policies::all_with_order(policies, self.pools.priority_order(&pool));
        if let Some(pod_spec) = &defaults.checkpoint_gc_pod_spec {
            document["environment"]["pod_spec"] = pod_spec.clone();
        }
        let completed = submitted(&document)
            .under(&policies)
            .complete(&TaskDefaults {
                description: format!("deletion of checkpoints of experiment {}", experiment.id),
                task_container_defaults: &defaults,
                default_priority: Some(self.pools.default_priority(&pool)),
                has_context: false,
            });
        match completed {
            Ok(mut config) if errors.is_empty() => {
                config.resources.resource_pool = pool;
                // It is never given up for more important work.
                config.preemptible = Some(false);
                Ok(config)
            }
            completed => {
                let mut all = completed.err().map_or_else(Vec::new, |errors| errors.0);
                all.extend(errors);
                let what = format!(
                    "the configuration of the task that is to delete checkpoints of experiment {}",
                    experiment.id
                );
                let refused = document_error(&what, &ConfigErrors::together(all));
                Err(refused.hint(
                    "it runs with the experiment's environment, in its workspace, under the policies there; \
                     \"checkpoint_gc_pod_spec\" of the pool takes the place of the experiment's pod",
                ))
            }
        }
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
            // The shared file system has its own mount; another directory is where the experiment has it mounted.
            let location = &config.checkpoint_storage.location;
            if !matches!(location, StorageLocation::SharedFs { .. }) {
                document["bind_mounts"] = json!(config.bind_mounts);
                document["environment"]["pod_spec"] = json!(config.environment.pod_spec);
            }
        }
        Remover::Python { .. } => {
            document["environment"] = json!(config.environment);
            document["bind_mounts"] = json!(config.bind_mounts);
        }
    }
    document
}

fn submitted(document: &Value) -> SubmittedTask {
    let source = Source::layer(Layer::Document);
    SubmittedTask::of_layer(LaunchKind::Command, source, document)
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
) -> AppResult<BTreeSet<CheckpointId>> {
    let mut uuids = BTreeSet::new();
    for removal in open {
        let document = task_documents::find(conn, &removal.task_id).await?;
        if let Some(TaskDetails::CheckpointGc(details)) = document.map(|d| d.details) {
            uuids.extend(details.checkpoints);
        }
    }
    Ok(uuids)
}
