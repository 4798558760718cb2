//! The typed configuration of an experiment.

use std::collections::BTreeMap;
use std::fmt;

use det_taskspec::DeviceMapping;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::searcher::Searcher;
use crate::container::{BindMount, Environment, LogPolicy, Pbs, Slurm};
use crate::hyperparameters::Space;
use crate::storage::CheckpointStorage;

/// Everything an experiment runs with. Later changes of templates, pools or the master do not change it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperimentConfig {
    /// Display name, not unique.
    pub name: String,
    /// Free text.
    pub description: Option<String>,
    /// A set of tags, sorted.
    pub labels: Vec<String>,
    /// Workspace by name; empty = the caller's default. Always together with `project`.
    pub workspace: String,
    /// Project by name; empty like `workspace`.
    pub project: String,
    /// Passed to training code untouched.
    pub data: Map<String, Value>,
    /// What to run; `None` only for unmanaged experiments.
    pub entrypoint: Option<Entrypoint>,
    /// Verbose logging of the task.
    pub debug: bool,
    /// Restarts allowed for each trial after failures.
    pub max_restarts: u32,
    /// Reactions to lines of the log, built-in ones last.
    pub log_policies: Vec<LogPolicy>,
    /// How long logs are kept; `None` = as the cluster says.
    pub retention_policy: Option<RetentionPolicy>,
    /// Validate before the first training step.
    pub perform_initial_validation: bool,
    /// When a validation leads to a checkpoint.
    pub checkpoint_policy: CheckpointPolicy,
    /// Where checkpoints are kept and how many.
    pub checkpoint_storage: CheckpointStorage,
    /// The space that is searched.
    #[serde(with = "crate::space::as_json")]
    pub hyperparameters: Space,
    /// How it is searched.
    pub searcher: Searcher,
    /// Slots, pool, priority.
    pub resources: Resources,
    /// Host directories of every trial.
    pub bind_mounts: Vec<BindMount>,
    /// Images, variables, ports.
    pub environment: Environment,
    /// Seconds that a preempted trial has to stop.
    pub preemption_timeout: u32,
    /// Seeds.
    pub reproducibility: Reproducibility,
    /// System metrics.
    pub profiling: Profiling,
    /// Webhooks and data lineage.
    pub integrations: Option<Integrations>,
    /// Knobs of old trial classes.
    pub optimizations: Optimizations,
    /// Options of Slurm, kept as written.
    pub slurm: Slurm,
    /// Options of PBS, kept as written.
    pub pbs: Pbs,
    /// Old training loop: at least one validation in each such stretch; 0 = only at the end.
    pub min_validation_period: Length,
    /// Old training loop: at least one checkpoint in each such stretch; 0 = only at the end.
    pub min_checkpoint_period: Length,
    /// Old training loop: batches between two reports, at least 1.
    pub scheduling_unit: u32,
    /// Old training loop: records of an epoch; 0 = not given.
    pub records_per_epoch: u64,
}

impl fmt::Debug for ExperimentConfig {
    /// Secrets are hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExperimentConfig {}", self.masked_json())
    }
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entrypoint {
    /// Run by a shell, or a trial class (see [`ExperimentConfig::is_trial_class`]).
    Shell(String),
    /// Run as it is, without a shell; never empty.
    Argv(Vec<String>),
}

/// When a validation leads to a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointPolicy {
    /// When it beats every earlier one of the experiment.
    Best,
    /// Always.
    All,
    /// Never.
    None,
}

/// A stretch of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// Batches.
    Batches(u64),
    /// Records of the data set.
    Records(u64),
    /// Passes over the data set.
    Epochs(u64),
}

/// How long logs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionPolicy {
    /// Days after the end of a task; -1 = for ever, 0 = until the next sweep.
    pub log_retention_days: i16,
}

/// What a trial needs to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// Slots of each trial; 0 = a trial on processors only, in the pool for auxiliary tasks.
    pub slots_per_trial: u32,
    /// Most slots of the whole experiment at once; `None` = no limit.
    pub max_slots: Option<u32>,
    /// Weight of the experiment in fair share, above 0.
    #[serde(serialize_with = "crate::space::short_number")]
    pub weight: f64,
    /// 1 to 99; on agents a lower number goes first. `None` = as the pool says.
    pub priority: Option<u8>,
    /// Pool; empty = the cluster's default for such trials.
    pub resource_pool: String,
    /// Pools to try in order, instead of `resource_pool`; empty = just that one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_pools: Vec<String>,
    /// Seconds that a trial waits in each of `resource_pools` before the next one counts as well; `None` = 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_pool_wait: Option<u32>,
    /// Whether all slots of a trial must be on one agent; `None` = no.
    pub is_single_node: Option<bool>,
    /// Size of `/dev/shm` in bytes.
    #[serde(default = "default_shm_size")]
    pub shm_size: u64,
    /// Host devices.
    pub devices: Vec<DeviceMapping>,
    /// Ignored; the in-task harness reads the key.
    #[serde(default)]
    pub native_parallel: bool,
}

fn default_shm_size() -> u64 {
    crate::container::DEFAULT_SHM_SIZE_BYTES
}

/// Seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reproducibility {
    /// Seeds the search and through it every trial.
    pub experiment_seed: u32,
}

/// System metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profiling {
    /// Whether they are collected.
    pub enabled: bool,
    /// Old training loop: first batch.
    pub begin_on_batch: u64,
    /// Old training loop: last batch; `None` = no end.
    pub end_after_batch: Option<u64>,
    /// Old training loop: wait for the device before taking times.
    pub sync_timings: bool,
}

/// Knobs of old trial classes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a key of the document with two values"
)]
pub struct Optimizations {
    /// Batches between two exchanges of gradients, at least 1.
    pub aggregation_frequency: u64,
    /// Average gradients instead of adding them.
    pub average_aggregated_gradients: bool,
    /// Average training metrics over slots.
    pub average_training_metrics: bool,
    /// Compress gradients to half precision.
    pub gradient_compression: bool,
    /// File of update sizes for tensor fusion.
    pub grad_updates_size_file: Option<String>,
    /// `O0` to `O3`.
    pub mixed_precision: String,
    /// MB.
    pub tensor_fusion_threshold: u64,
    /// Milliseconds.
    pub tensor_fusion_cycle_time: u64,
    /// Tune the two above while training.
    pub auto_tune_tensor_fusion: bool,
}

/// Other systems that an experiment speaks to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Integrations {
    /// Which webhooks fire; `None` = those of the workspace and the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhooks: Option<WebhookSelection>,
    /// A record of where the data came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pachyderm: Option<BTreeMap<String, Value>>,
}

/// Which webhooks fire for an experiment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookSelection {
    /// By number.
    pub webhook_id: Option<Vec<i64>>,
    /// By name.
    pub webhook_name: Option<Vec<String>>,
    /// None at all.
    pub exclude: bool,
}
