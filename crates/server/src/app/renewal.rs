//! Configurations of experiments that exist, as they become effective again: when an experiment is continued, activated
//! after a pause, or moved. What holds of a submission holds of them too: policies, pools, sizes.
//!
//! The decision needs rows that no transaction changes at the same time (policies, pools), so it is made before the
//! transaction that stores it; one that was made of another configuration than the stored one is not stored but made anew.

use det_config::errors::ConfigErrors;
use det_config::experiment::ExperimentConfig;
use det_config::policies::{Policies, Workload};
use det_config::submitted::{
    CompletionDefaults, SubmittedDocument, WorkSize, check_changed_pod, check_stored_pod,
};
use det_ids::{ExperimentId, ProjectId};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{EventKind, Subject};
use det_store::events::NewEvent;
use det_store::experiments::{self, ExperimentRow};
use det_store::workspaces::WorkspaceRow;
use det_store::{WriteTx, allocations, trials};
use serde_json::Value;

use crate::app::admission::{Admission, Findings, above_limit};
use crate::app::config_policies::ConfigPolicies;
use crate::app::configs::{Configs, log_retention_days};
use crate::app::context::Context;
use crate::app::documents::{check_size, document_error, warning_of_variables};
use crate::app::homes::KnownHomes;
use crate::app::job_changes::JobChanges;
use crate::app::orchestration::Cause;
use crate::app::pools::Pools;
use crate::app::scheduling::fallback::fallback_of;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;

/// How often a decision is made anew that others have overtaken.
pub(crate) const ATTEMPTS: usize = 4;

/// For what a configuration becomes effective again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// An ended experiment begins its search again.
    Continue,
    /// A paused experiment goes on.
    Activate,
    /// An experiment goes into another project, whatever it does there.
    Move,
}

/// A decision about the configuration of an experiment.
#[derive(Debug, Clone)]
pub(crate) struct RenewedConfig {
    /// Text of the stored configuration that was decided about.
    from: String,
    /// Project that the experiment was in.
    project_id: ProjectId,
    before: ExperimentConfig,
    /// The configuration from now on.
    pub(crate) config: ExperimentConfig,
    /// What policies replaced, and what else is remarkable.
    pub(crate) warnings: Vec<String>,
}

impl RenewedConfig {
    /// Whether this was decided about an experiment as it is now.
    pub(crate) fn is_about(&self, row: &ExperimentRow) -> bool {
        self.from == row.config && self.project_id == row.project_id
    }
}

/// Decides about configurations that become effective again, and stores what it decided. Cheap to clone.
#[derive(Clone)]
pub struct Renewals {
    context: Context,
    homes: KnownHomes,
    configs: Configs,
    policies: ConfigPolicies,
    admission: Admission,
    pools: Pools,
    job_changes: JobChanges,
}

impl Renewals {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        homes: KnownHomes,
        configs: Configs,
        policies: ConfigPolicies,
        (admission, pools): (Admission, Pools),
        job_changes: JobChanges,
    ) -> Self {
        Self {
            context,
            homes,
            configs,
            policies,
            admission,
            pools,
            job_changes,
        }
    }

    /// Decides about the configuration of an experiment that is to be in this workspace, with `over` over it.
    pub(crate) async fn renew(
        &self,
        row: &ExperimentRow,
        over: Option<SubmittedDocument>,
        workspace: &WorkspaceRow,
        renewal: Renewal,
    ) -> AppResult<RenewedConfig> {
        let what = format!("the configuration of experiment {}", row.id);
        let refused = |errors: &ConfigErrors| document_error(&what, errors);
        let before = self.configs.of(row)?.as_ref().clone();
        let policies = self
            .policies
            .over(workspace.id, Workload::Experiment)
            .await?;
        let stored = SubmittedDocument::renewed(&before, &policies).map_err(|e| refused(&e))?;
        let (placed, is_changed) = (stored.under(&[]).placement(), over.is_some());
        let submitted = match over {
            Some(over) => over.over(stored),
            None => stored,
        };
        let mut findings = Findings::default();
        let replaced = submitted.under(&policies).replaced();
        findings
            .warnings
            .extend(replaced.iter().map(ToString::to_string));
        let placement = submitted.under(&policies).placement();
        let goes_elsewhere = placement != placed;
        let size = submitted.under(&policies).size();
        let pools = if renewal == Renewal::Move && !goes_elsewhere {
            self.require_below_limit(workspace, size, &mut findings);
            Vec::new()
        } else {
            self.admission
                .admit(&placement, workspace, size, &mut findings)
                .await?
                .pools
        };
        let errors = std::mem::take(&mut findings.errors);
        let admission_errors = submitted.under(&policies).placed(errors);
        let first = pools.first().filter(|_| goes_elsewhere);
        let pool = first.unwrap_or(&before.resources.resource_pool);
        let order = self.admission.priority_order(pool);
        let policies = Policies::all_with_order(policies, order);
        let defaults = self.pools.container_defaults(pool);
        let completed = complete(&submitted, &before, &policies).and_then(|config| {
            let from = is_changed.then_some(&before);
            judge_pod(&config, from, &defaults, &policies).map(|()| config)
        });
        let mut config = match completed {
            Ok(config) if admission_errors.is_empty() => config,
            completed => {
                let mut errors = completed.err().map_or_else(Vec::new, |errors| errors.0);
                errors.extend(admission_errors);
                return Err(refused(&ConfigErrors::together(errors)));
            }
        };
        if goes_elsewhere && let Some(first) = pools.first() {
            config.resources.resource_pool.clone_from(first);
            if !config.resources.resource_pools.is_empty() {
                config.resources.resource_pools = pools;
            }
        } else {
            let (kept, resources) = (&before.resources, &mut config.resources);
            resources.resource_pool.clone_from(&kept.resource_pool);
            resources.resource_pools.clone_from(&kept.resource_pools);
        }
        if renewal != Renewal::Continue {
            keep_begun(&before, &mut config);
        }
        if is_changed || config != before {
            check_size(&config)?;
        }
        if is_changed {
            let warning = warning_of_variables(&config.environment.environment_variables);
            findings.warnings.extend(warning);
        }
        Ok(RenewedConfig {
            from: row.config.clone(),
            project_id: row.project_id,
            before,
            config,
            warnings: findings.warnings,
        })
    }

    fn require_below_limit(
        &self,
        workspace: &WorkspaceRow,
        size: Option<WorkSize>,
        findings: &mut Findings,
    ) {
        if let Some(error) = size.and_then(|size| above_limit(workspace, size)) {
            findings.too_large(self.context.config().launch_error, error);
        }
    }

    /// Stores a decision with all that follows from it. The caller has made sure that it is about the row as it is.
    pub(crate) async fn store(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        renewed: &RenewedConfig,
        cause: &Cause,
    ) -> AppResult<()> {
        let (before, config) = (&renewed.before, &renewed.config);
        if before == config {
            return Ok(());
        }
        let id = row.id;
        experiments::set_config(&mut tx.conn(), id, &config.to_json().to_string()).await?;
        if (&before.name, &before.description, &before.labels)
            != (&config.name, &config.description, &config.labels)
        {
            let labels = serde_json::to_string(&config.labels).map_err(AppError::internal)?;
            let description = config.description.clone().unwrap_or_default();
            experiments::set_texts(
                &mut tx.conn(),
                id,
                &config.name,
                &description,
                &labels,
                &row.notes,
            )
            .await?;
        }
        let (old, new) = (&before.searcher, &config.searcher);
        if (&old.metric, old.smaller_is_better) != (&new.metric, new.smaller_is_better) {
            experiments::set_searcher(&mut tx.conn(), id, &new.metric, new.smaller_is_better)
                .await?;
            // Only a single search takes another metric: there are few.
            for trial in trials::of_experiment(&mut tx.conn(), id).await? {
                trials::set_validations(&mut tx.conn(), trial.id, (None, None), (None, None))
                    .await?;
            }
        }
        let days = log_retention_days(config);
        if days != log_retention_days(before) {
            allocations::set_log_retention_of_experiment(&mut tx.conn(), id, days).await?;
        }
        self.update_job(tx, row, before, config, cause).await?;
        let reason = renewed.warnings.join("; ");
        let event = NewEvent::new(&cause.actor, Subject::Experiment(id), EventKind::Changed)
            .reason(Some(reason.as_str()).filter(|reason| !reason.is_empty()));
        self.context.record(tx, event).await?;
        self.context.wake(tx, Topic::Schedule);
        Ok(())
    }

    /// The job's place and share follow the configuration.
    async fn update_job(
        &self,
        tx: &mut WriteTx,
        row: &ExperimentRow,
        before: &ExperimentConfig,
        config: &ExperimentConfig,
        cause: &Cause,
    ) -> AppResult<()> {
        let (old, new) = (&before.resources, &config.resources);
        let mut job = experiments::job(&mut tx.conn(), &row.job_id)
            .await?
            .ok_or_else(|| AppError::not_found(ObjectKind::Job, &row.job_id))?;
        let mut moved = false;
        if old.priority != new.priority
            && let Some(priority) = new.priority
        {
            job.priority = priority;
            (job.position, job.moved) = (None, false);
        }
        if (old.weight - new.weight).abs() > f64::EPSILON {
            job.weight = new.weight;
        }
        if old.max_slots != new.max_slots {
            job.max_slots = new.max_slots;
        }
        if (&old.resource_pool, &old.resource_pools) != (&new.resource_pool, &new.resource_pools) {
            job.resource_pool.clone_from(&new.resource_pool);
            job.fallback = fallback_of(config);
            (job.position, job.moved) = (None, false);
            moved = true;
        }
        job.demands = self.pools.demands.of(&config.environment);
        experiments::update_job(&mut tx.conn(), &job).await?;
        if moved {
            self.job_changes
                .move_trials(tx, row, &job.resource_pool, cause)
                .await?;
        }
        Ok(())
    }

    /// The checkpoint storages, as configurations have them, that experiments in a project get without asking: the
    /// cluster's, and its workspace's.
    pub(crate) fn storage_of_the_cluster(&self, project_id: ProjectId) -> AppResult<Vec<Value>> {
        let mut all = Vec::new();
        if let Some(storage) = &self.context.config().checkpoint_storage {
            all.push(serde_json::to_value(storage).map_err(AppError::internal)?);
        }
        let homes = self.homes.get();
        if let Some((_, workspace)) = homes.home(project_id)
            && let Some(storage) = &workspace.checkpoint_storage
        {
            all.push(serde_json::from_str(storage).map_err(AppError::internal)?);
        }
        Ok(all)
    }
}

/// The refusal of a change that others have overtaken again and again.
pub(crate) fn overtaken(id: ExperimentId) -> AppError {
    AppError::new(
        ErrorKind::Conflict,
        format!("experiment {id} was changed by others at the same time"),
    )
    .hint("look at it, and try again")
}

/// A stored configuration, changed or not, under policies. What the cluster gives where a document is silent it was given
/// when it was submitted.
fn complete(
    submitted: &SubmittedDocument,
    before: &ExperimentConfig,
    policies: &[Policies],
) -> Result<ExperimentConfig, ConfigErrors> {
    // The pod has the pool's part in it, and is judged once it is whole.
    let policies = policies.iter().cloned();
    let policies: Vec<Policies> = policies.map(Policies::without_pod_constraints).collect();
    let defaults = CompletionDefaults {
        name: before.name.clone(),
        experiment_seed: before.reproducibility.experiment_seed,
        checkpoint_storage: None,
        task_container_defaults: &det_config::container::TaskContainerDefaults::default(),
        default_priority: before.resources.priority,
        managed: true,
    };
    submitted.under(&policies).complete(&defaults)
}

/// Judges the pod of a configuration; `from` = what a user has changed into it.
fn judge_pod(
    config: &ExperimentConfig,
    from: Option<&ExperimentConfig>,
    defaults: &det_config::container::TaskContainerDefaults,
    policies: &[Policies],
) -> Result<(), ConfigErrors> {
    check_stored_pod(config, defaults, policies)?;
    from.map_or(Ok(()), |from| check_changed_pod(from, config, policies))
}

/// Keeps what a search that has begun depends on, and the place where its checkpoints are.
fn keep_begun(before: &ExperimentConfig, config: &mut ExperimentConfig) {
    config.searcher.clone_from(&before.searcher);
    config.hyperparameters.clone_from(&before.hyperparameters);
    config.reproducibility.clone_from(&before.reproducibility);
    config
        .checkpoint_storage
        .location
        .clone_from(&before.checkpoint_storage.location);
}
